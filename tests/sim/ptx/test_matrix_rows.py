"""The rows of tcgen05 products, copies and loads in kernels: operands reach their places."""

import numpy as np
import pytest

from numba_tma import ptx
from numba_tma import simulator as sim
from tests.kernels.tensor_products import (
    as_type,
    chunked,
    descriptor,
    idesc,
    integers,
    row_bytes,
    run,
)

M, N = 128, 32


def images(kind, a, b, k, seed=0, n=N):
    """Return A and B as numbers and as images in shared memory."""
    rng = np.random.default_rng(seed)
    left, right = integers(rng, a, (M, k)), integers(rng, b, (n, k))
    parts = [chunked(row_bytes(x, name, kind)) for x, name in ((left, a), (right, b))]
    return left, right, parts


def once(body):
    """Return the body of a kernel in which one thread issues, and the warp waits."""

    def warp(rank, base, at, barrier):
        if ptx.elect_sync():
            body(base, descriptor(at[0], M), descriptor(at[1], N), at)
            ptx.tcgen05_commit(barrier, 1)
        barrier.wait(0)

    return warp


# ----------------------------------------------------------------------------- products


@pytest.mark.parametrize("collector", [None, "fill", "lastuse"])
def test_a_product(collector):
    left, right, parts = images("f16", "bf16", "bf16", 16)
    said = idesc("f16", M, N, "bf16", "bf16")

    def issue(base, a, b, at):
        if collector == "lastuse":
            ptx.tcgen05_mma(base, a, b, said, False, "f16", 1, "fill")
        ptx.tcgen05_mma(base, a, b, said, False, "f16", 1, collector)
        ptx.tcgen05_mma(base, a, b, said, True, "f16", 1, scale_input_d=2)
        mask = (0xFFFFFFFE, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF)
        ptx.tcgen05_mma(base, a, b, said, True, "f16", 1, disable_output_lane=mask)

    found = as_type(run(once(issue), parts)[0][:, :N], "f32")
    expected = 1.25 * (left @ right.T)
    expected[0] += (left @ right.T)[0]
    np.testing.assert_array_equal(found, expected)


def test_a_product_of_a_pair():
    rng = np.random.default_rng(3)
    left, right = integers(rng, "i8", (256, 32)), integers(rng, "u8", (64, 32))
    said = idesc("i8", 256, 64, "i8", "u8", "i32")
    parts = [
        np.stack([chunked(row_bytes(x, name)) for x in np.split(matrix, 2)])
        for matrix, name in ((left, "i8"), (right, "u8"))
    ]

    def warp(rank, base, at, barrier):
        if rank == 0 and ptx.elect_sync():
            a, b = descriptor(at[0], 128), descriptor(at[1], 32)
            ptx.tcgen05_mma(base, a, b, said, False, "i8", 2, disable_output_lane=(0,) * 8)
            ptx.tcgen05_commit(barrier, 2, 3)
        barrier.wait(0)

    found = np.concatenate([as_type(cells[:, :64], "i32") for cells in run(warp, parts, cluster=2)])
    np.testing.assert_array_equal(found, left @ right.T)


def test_a_in_tensor_memory():
    left, right, parts = images("f8f6f4", "e4m3", "e5m2", 32)
    said, at_a = idesc("f8f6f4", M, N, "e4m3", "e5m2"), 64

    def issue(base, a, b, at):
        ptx.tcgen05_cp(base + at_a, a, "128x256b", 1)
        ptx.tcgen05_mma_tmem(base, base + at_a, b, said, False, "f8f6f4", 1)

    found = as_type(run(once(issue), parts)[0][:, :N], "f32")
    np.testing.assert_array_equal(found, left @ right.T)


@pytest.mark.parametrize("tmem", [False, True])
def test_weight_stationary(tmem):
    left, right, parts = images("f16", "f16", "f16", 16, n=64)
    said = idesc("f16", M, 64, "f16", "f16")

    def warp(rank, base, at, barrier):
        if ptx.elect_sync():
            a, b = descriptor(at[0], M), descriptor(at[1], 64)
            if tmem:
                ptx.tcgen05_cp(base + 256, a, "128x256b", 1)
                ptx.tcgen05_mma_ws_tmem(base, base + 256, b, said, False, "f16", "b2", "fill")
            else:
                ptx.tcgen05_mma_ws(base, a, b, said, False, "f16", "b0", "discard")
            ptx.tcgen05_commit(barrier, 1)
        barrier.wait(0)

    found = as_type(run(warp, parts)[0][:, :64], "f32")
    np.testing.assert_array_equal(found, left @ right.T)


def atom(codes):
    """Return the 512 bytes of an atom of (128, 4) scale factors."""
    row, k = np.indices((128, 4))
    image = np.zeros(512, np.uint8)
    image[row % 32 * 16 + row // 32 * 4 + k] = codes
    return image


def scale_source(address):
    """Return the descriptor of an atom: 32 rows of 16 B, in core matrices of 128 B."""
    return address // 16 | 8 << 16 | 8 << 32 | 1 << 46


@pytest.mark.parametrize("tmem", [False, True])
@pytest.mark.parametrize(
    ("kind", "a", "b", "k", "block", "scale_type", "first"),
    [
        ("mxf8f6f4.block_scale.block32", "e4m3", "e5m2", 32, 32, "ue8m0", 3),
        ("mxf8f6f4.block_scale", "e5m2", "e5m2", 32, 32, "ue8m0", 1),
        ("mxf4.block_scale.scale_vec::2X", "e2m1", "e2m1", 64, 32, "ue8m0", 2),
        ("mxf4nvf4.block_scale.block16", "e2m1", "e2m1", 64, 16, "ue4m3", 0),
    ],
)
def test_scale_factors_reach_the_product(kind, a, b, k, block, scale_type, first, tmem):
    name = kind.partition(".")[0]
    left, right, parts = images(name, a, b, k)
    rng = np.random.default_rng(7)
    exponents = rng.integers(-2, 3, (2, 128, 4))
    codes = exponents + 127 if scale_type == "ue8m0" else exponents + 7 << 3
    parts += [atom(c.astype(np.uint8)) for c in codes]
    said = idesc(name, M, N, a, b, scale_type=scale_type, scale_a_id=first, scale_b_id=first)
    sfa, sfb, at_a = 128, 132, 64

    def issue(base, a, b, at):
        ptx.tcgen05_cp(base + sfa, scale_source(at[2]), "32x128b.warpx4", 1)
        ptx.tcgen05_cp(base + sfb, scale_source(at[3]), "32x128b.warpx4", 1)
        scales = base + sfa, base + sfb
        if tmem:
            ptx.tcgen05_cp(base + at_a, a, "128x256b", 1)
            ptx.tcgen05_mma_block_scaled_tmem(base, base + at_a, b, said, *scales, False, kind, 1)
        else:
            ptx.tcgen05_mma_block_scaled(base, a, b, said, *scales, False, kind, 1)

    found = as_type(run(once(issue), parts)[0][:, :N], "f32")
    count = k // block
    used = [2.0 ** e[:, first : first + count].repeat(block, 1) for e in exponents]
    expected = (left * used[0]) @ (right * used[1][:N]).T
    np.testing.assert_array_equal(found, expected)


# ------------------------------------------------------------------- what is not simulated


@pytest.mark.parametrize(
    "call",
    [
        lambda b: ptx.tcgen05_mma_tmem(b, b, 0, 0x08200010, True, "f16", 1, ashift="ashift"),
        lambda b: ptx.tcgen05_alloc_exclusive(0, 32, 1),
    ],
)
def test_what_the_simulator_does_not_have(call):
    with pytest.raises(NotImplementedError, match="not simulated"):
        run(lambda rank, base, at, barrier: call(base), [np.zeros(16, np.uint8)])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda b: ptx.tcgen05_mma(b, 0, 0, 0, True, "f8f6f4", 1, scale_input_d=1),
            "does not take scale_input_d together with f8f6f4: leave one out",
        ),
        (
            lambda b: ptx.tcgen05_mma_tmem(b, b, 0, 0, True, "f16", 1, "use", "ashift"),
            "does not take ashift together with use",
        ),
        (
            lambda b: ptx.tcgen05_mma(b, 0, 0, 0, True, "f32", 1),
            r"kind=...\) is part of the instruction",
        ),
        (lambda b: ptx.tcgen05_cp(b, 0, "64x128b", 1), r"shape=...\) is part of the instruction"),
    ],
)
def test_what_ptx_does_not_have(call, text):
    with pytest.raises(sim.BadOperand, match=text):
        run(lambda rank, base, at, barrier: call(base), [np.zeros(16, np.uint8)])


# -------------------------------------------------------------------- copies and loads


def test_lanes_move():
    values = np.arange(128 * 8, dtype=np.uint32).reshape(128, 8)
    part = chunked(values.view(np.uint8))

    def issue(base, a, b, at):
        ptx.tcgen05_cp(base, a, "128x256b", 1)
        ptx.tcgen05_shift(base, 1)

    found = run(once(issue), [part, part])[0][:, :8]
    lane = np.arange(128)
    np.testing.assert_array_equal(found, values[np.where(lane % 32 < 31, lane + 1, lane)])


def test_loads_with_an_extremum():
    bits = np.array([-3.5, 2.0, -0.25, 1.0], np.float32).view(np.uint32)
    seen = {}

    def warp(rank, base, at, barrier):
        lane = ptx.laneid()
        values = tuple(int(x) for x in bits) if lane % 2 else (5, 0xFFFFFFFE, 1, 9)
        ptx.tcgen05_st_16x32bx2(base, 8, values, 4)
        ptx.tcgen05_wait_st()
        floats = ptx.tcgen05_ld_red_16x32bx2_f32(base, 8, 4, "max", absolute="abs")
        words = ptx.tcgen05_ld_red_16x32bx2_int(base, 8, 4, "max", "u32")
        own = ptx.tcgen05_ld_16x32bx2(base, 8, 4)
        ptx.tcgen05_wait_ld()
        seen[lane] = [[int(x) for x in part] for part in (floats, words, own)], values

    run(warp, [np.zeros(16, np.uint8)])
    for lane, ((floats, words, own), values) in seen.items():
        assert own == list(values) == floats[:4] == words[:4]
        assert words[4] == max(values)
        if lane % 2:
            assert np.array(floats[4], np.uint32).view(np.float32) == 3.5


def test_loads_with_an_extremum_of_32_lanes():
    seen = []

    def warp(rank, base, at, barrier):
        ptx.tcgen05_st_32x32b(base, (0x40000000, 0xBF800000), 2)
        ptx.tcgen05_wait_st()
        least = ptx.tcgen05_ld_red_32x32b_f32(base, 2, "min", nan="NaN")
        signed = ptx.tcgen05_ld_red_32x32b_int(base, 2, "max", "s32")
        ptx.tcgen05_wait_ld()
        seen.append((int(least[2]), int(signed[2])))

    run(warp, [np.zeros(16, np.uint8)])
    assert set(seen) == {(0xBF800000, 0x40000000)}
