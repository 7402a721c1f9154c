"""The values of tcgen05 products: every kind, layout and form against NumPy."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma import simulator as sim
from numba_tma.host import tensor_memory_layout as layout
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.matrix_layout import MatrixLayout
from numba_tma.host.reference import reference_tile
from numba_tma.host.zero_columns import zero_columns
from tests.kernels.tensor_products import (
    HELD,
    as_type,
    chunked,
    descriptor,
    idesc,
    integers,
    row_bytes,
    run,
)
from tests.tiers import every

K = {"f16": 16, "tf32": 8, "mxf4": 64, "mxf4nvf4": 64}
CASES = [
    ("f16", "f16", "f16", "f32"),
    ("f16", "f16", "f16", "f16"),
    ("f16", "bf16", "bf16", "f32"),
    ("tf32", "tf32", "tf32", "f32"),
    ("i8", "i8", "u8", "i32"),
    ("i8", "u8", "u8", "i32"),
    ("f8f6f4", "e4m3", "e5m2", "f32"),
    ("f8f6f4", "e5m2", "e4m3", "f16"),
    ("f8f6f4", "e2m1", "e3m2", "f32"),
    ("f8f6f4", "e2m3", "e2m1", "f32"),
]


def operands(kind, a, b, m, n, seed=0):
    rng, k = np.random.default_rng(seed), K.get(kind, 32)
    return integers(rng, a, (m, k)), integers(rng, b, (n, k))


def product(kind, a, b, d, m, n, group=1, form=None, old=None, **fields):
    """Return A B and the accumulator of one product, as its layout has it in tensor memory."""
    options = {"a_in_tmem": False, "cta_group": group} | (form or {})
    left, right = operands(kind, a, b, m, n)
    parts = [
        np.stack([chunked(part) for part in np.split(row_bytes(matrix, name, kind), group)])
        for matrix, name in ((left, a), (right, b))
    ]
    said = idesc(kind, m, n, a, b, d, **fields)
    name = layout.accumulator_layout(m, group, ws=options.get("ws", False), sparse=False)

    def body(rank, base, at, barrier):
        if rank == 0 and ptx.elect_sync():
            places = descriptor(at[0], m // group), descriptor(at[1], n // group)
            if old is not None:  # two products: the first one makes D
                sim.tcgen05_mma(kind, base, *places, said, False, **options | old)
            sim.tcgen05_mma(kind, base, *places, said, old is not None, **options)
            mask = None if group == 1 else 0b11
            ptx.tcgen05_commit(barrier, group, mask)
        barrier.wait(0)

    memories = run(body, parts, cluster=group)
    cells = layout.accumulator_cells(name, m, n)
    found = np.stack(memories)[cells.block, cells.lane, cells.column]
    return left @ right.T, as_type(found, d)


@pytest.mark.parametrize(("kind", "a", "b", "d"), every(4, CASES))
def test_every_kind(kind, a, b, d):
    expected, found = product(kind, a, b, d, 128, 32)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("m", "n", "group", "ws"),
    every(4, [
        (64, 8, 1, False), (128, 256, 1, False), (128, 64, 2, False), (256, 32, 2, False),
        (64, 64, 1, True), (32, 64, 1, True), (128, 64, 1, True),
    ]),
)  # fmt: skip
def test_every_layout(m, n, group, ws):
    expected, found = product("f16", "bf16", "bf16", "f32", m, n, group, {"ws": ws})
    np.testing.assert_array_equal(found, expected)


def test_accumulates_and_negates():
    once, twice = product("f16", "f16", "f16", "f32", 128, 32, old={})
    np.testing.assert_array_equal(twice, 2 * once)
    once, found = product("f16", "f16", "f16", "f32", 128, 32, negate_b=True)
    np.testing.assert_array_equal(found, -once)
    once, found = product("f16", "f16", "f16", "f32", 128, 32, negate_a=True, negate_b=True)
    np.testing.assert_array_equal(found, once)


def test_scale_d():
    once, found = product("f16", "f16", "f16", "f32", 128, 32, form={"scale_d": 3}, old={})
    np.testing.assert_array_equal(found, once + once / 8)


@pytest.mark.parametrize("group", every(2, [1, 2]))
def test_masked_lanes_stay(group):
    mask = [0xFFFF0001, 0, 0, 1 << 31] + [0, 2, 0, 0] * (group - 1)
    once, found = product(
        "f16",
        "f16",
        "f16",
        "f32",
        128 * group,
        32,
        group,
        {"mask": mask},
        {"mask": [0] * 4 * group},
    )
    masked = [row for row in range(128 * group) if mask[row // 32] >> row % 32 & 1]
    once = 2 * once
    once[masked] /= 2
    np.testing.assert_array_equal(found, once)


def test_i8_wraps_or_saturates():
    left, right = np.full((128, 32), -128.0), np.full((8, 32), 255.0)
    images = [chunked(row_bytes(left, "i8")), chunked(row_bytes(right, "u8"))]
    for saturate in (False, True):
        said = idesc("i8", 64, 8, "i8", "u8", "i32", saturate=saturate)

        def body(rank, base, at, barrier, said=said):
            ptx.tcgen05_st_32x32b(base, (0x80000001,) * 8, 8)
            ptx.tcgen05_wait_st()
            if ptx.elect_sync():
                places = descriptor(at[0], 128), descriptor(at[1], 8)
                sim.tcgen05_mma(
                    "i8",
                    base,
                    *places,
                    said,
                    True,
                    a_in_tmem=False,
                    cta_group=1,
                    mask=[0xFFFF0000, -1, -1, -1],
                )
                ptx.tcgen05_commit(barrier, 1)
            barrier.wait(0)

        found = as_type(run(body, images)[0][:16, :8], "i32")
        total = -(2**31) + 1 - 32 * 128 * 255
        assert (found == (-(2**31) if saturate else total + 2**32)).all()


@pytest.mark.parametrize("value", every(2, [np.inf, np.nan]))
def test_not_a_number(value):
    left, right = np.zeros((128, 16)), np.full((8, 16), value)
    images = [chunked(row_bytes(left, "f16")), chunked(row_bytes(np.repeat(right, 2, 0), "f16"))]

    def body(rank, base, at, barrier):
        if ptx.elect_sync():
            said = idesc("f16", 128, 16, "f16", "f16")
            places = descriptor(at[0], 128), descriptor(at[1], 16)
            sim.tcgen05_mma("f16", base, *places, said, False, a_in_tmem=False, cta_group=1)
            ptx.tcgen05_commit(barrier, 1)
        barrier.wait(0)

    assert (run(body, images)[0][:, :16] == 0x7FFFFFFF).all()


# ---------------------------------------------------------------- layouts in shared memory


@pytest.mark.parametrize(
    ("name", "swizzle", "major"),
    every(3, [
        ("f16", "B128", "K"), ("f16", "B128", "MN"), ("f16", "B64", "MN"), ("bf16", "B32", "K"),
        ("e4m3", "B128", "MN"), ("tf32", "B128", "K"), ("tf32", "B128_ATOM_32B", "MN"),
    ]),
)  # fmt: skip
def test_swizzled_operands(name, swizzle, major):
    """Images are made by the tile's own layout, read by descriptors of `MatrixLayout`."""
    kind = {"f16": "f16", "bf16": "f16", "tf32": "tf32"}.get(name, "f8f6f4")
    dtype, width = as_dtype(name), 32 // as_dtype(name).itemsize
    steps, m, n = 2, 128, 64
    rng = np.random.default_rng(5)
    matrices = [integers(rng, name, (rows, steps * width)) for rows in (m, n)]
    images, layouts = [], []
    for matrix in matrices:
        stored = (matrix if major == "K" else matrix.T).astype(dtype.numpy)
        tile = tma.Tile(stored.shape, dtype, tma.Swizzle[swizzle])
        images.append(reference_tile(stored, tile, (0, 0)))
        layouts.append(MatrixLayout(tile, major, "tcgen05"))
    said = idesc(kind, m, n, name, name, a_major=major, b_major=major)

    def body(rank, base, at, barrier):
        if ptx.elect_sync():
            for step in range(steps):
                places = [layout.descriptor(place, step) for layout, place in zip(layouts, at)]
                sim.tcgen05_mma(kind, base, *places, said, step, a_in_tmem=False, cta_group=1)
            ptx.tcgen05_commit(barrier, 1)
        barrier.wait(0)

    (memory,) = run(body, images)
    left, right = matrices
    np.testing.assert_array_equal(as_type(memory[:, :n], "f32"), left @ right.T)


# -------------------------------------------------------------------------- .ws and errors


def test_a_zero_column_mask():
    # sub-mask 0 begins with 3 + 1 - 1 used columns, then skips 2 and uses 4 in turn
    mask = 1 << 39 | 1 << 40 | 3 << 48 | 1
    zero = np.array([c >= 3 and (c - 3) % 6 < 2 for c in range(64)])
    expected, found = product(
        "f16", "f16", "f16", "f32", 128, 64, form={"ws": True, "zero_mask": mask}
    )
    np.testing.assert_array_equal(found, np.where(zero, 0, expected))
    expected, found = product(  # off: bit 39 is clear
        "f16", "f16", "f16", "f32", 128, 64, form={"ws": True, "zero_mask": mask & ~(1 << 39)}
    )
    np.testing.assert_array_equal(found, expected)


def test_each_part_of_the_lanes_has_a_sub_mask():
    mask = 1 << 39 | 7 << 40 | 7 << 48 | 0b0010 << 32  # the second part begins with zeros
    found = zero_columns(mask, 64, 64)
    assert (found == [(c % 32 // 8 + c // 32) % 2 == 1 for c in range(64)]).all()


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"zero_mask": 1}, "a zero-column mask goes with the .ws form alone"),
        ({"ws": True, "mask": [0] * 4}, "the .ws form takes no scale factors, no mask"),
        ({"scale_d": 16}, "scale_d is 16; it is 0 to 15"),
        ({"block": "block32"}, "block32 is for kinds with scale factors"),
    ],
)
def test_operands_that_do_not_go_together(form, text):
    with pytest.raises(sim.BadOperand, match=text):
        product("f16", "f16", "f16", "f32", 128, 64, form=form)


def test_a_product_of_a_pair_comes_after_both_allocations():
    """The blocks allocate together, which does not order one's allocation before the other."""

    @cuda.jit
    @tma.cluster(2)
    def kernel(rank):
        held = tma.shared_tile(HELD)
        ptx.tcgen05_alloc(held, 32, 2)
        base = ptx.ld_shared_u32(held.address)
        if ptx.cluster_ctarank() == rank and ptx.elect_sync():
            said = idesc("f16", 128, 32, "f16", "f16")
            ptx.tcgen05_mma(base, descriptor(0, 64), descriptor(0, 16), said, False, "f16", 2)
        tma.cluster_sync()

    for rank in (0, 1):
        with pytest.raises(sim.TensorMemoryMisuse, match="has not synchronised with their tcgen05"):
            kernel[2, 32](rank)
