"""Elements of 4 and 6 bits in tensor memory, columns of B that are shifted, and what is refused."""

import numpy as np
import pytest

from numba_tma import ptx
from numba_tma import simulator as sim
from numba_tma.simulator.tcgen05_products import column_shift
from tests.kernels.tensor_products import (
    as_type,
    chunked,
    codes,
    descriptor,
    idesc,
    integers,
    row_bytes,
    run,
)
from tests.tiers import every

FORMATS = {"e2m1": "b8x16.b4x16_p64", "e2m3": "b8x16.b6x16_p32", "e3m2": "b8x16.b6x16_p32"}
M, N = 128, 64


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("shape", "rows", "nbytes"),
    every(2, [("128x256b", 128, 32), ("32x128b.warpx4", 32, 16), ("4x256b", 4, 32)]),
)
def test_a_copy_gives_each_element_a_byte(name, shape, rows, nbytes):
    values = integers(np.random.default_rng(1), name, (rows, nbytes))
    image = row_bytes(values, name)
    # Core matrices have 8 rows: the 4 rows of 4x256b lie in one of them.
    padded = np.zeros((max(rows, 8), 32), np.uint8)
    padded[:rows, :nbytes] = image

    def body(rank, base, at, barrier):
        if ptx.elect_sync():
            ptx.tcgen05_cp(base, descriptor(at[0], max(rows, 8)), shape, 1, FORMATS[name])
            ptx.tcgen05_commit(barrier, 1)
        barrier.wait(0)

    (memory,) = run(body, [chunked(padded)])
    place = codes(values, name) << (2 if name == "e2m1" else 0)
    lanes = {"4x256b": slice(0, 128, 32), "32x128b.warpx4": slice(64, 96)}.get(shape, slice(None))
    found = np.ascontiguousarray(memory[lanes, : nbytes // 4]).view(np.uint8)
    np.testing.assert_array_equal(found, place)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("old", [False, True])
def test_a_decompressed_operand_multiplies(name, old):
    rng = np.random.default_rng(2)
    left, right = integers(rng, name, (M, 32)), integers(rng, "e4m3", (N, 32))
    said = idesc("f8f6f4", M, N, name, "e4m3")

    def body(rank, base, at, barrier):
        if ptx.elect_sync():
            ptx.tcgen05_cp(base + N, descriptor(at[0], M), "128x256b", 1, FORMATS[name])
            for step in range(1 + old):
                ptx.tcgen05_mma_tmem(
                    base, base + N, descriptor(at[1], N), said, step == 1, "f8f6f4", 1
                )
            ptx.tcgen05_commit(barrier, 1)
        barrier.wait(0)

    (memory,) = run(body, [chunked(row_bytes(left, name)), chunked(row_bytes(right, "e4m3"))])
    np.testing.assert_array_equal(as_type(memory[:, :N], "f32"), (1 + old) * left @ right.T)


@pytest.mark.parametrize("m", every(2, [128, 64, 32]))
@pytest.mark.parametrize("shift", [1, 16])
@pytest.mark.parametrize("masked", [False, True])
def test_a_mask_shifts_the_columns_of_b(m, shift, masked):
    rng = np.random.default_rng(3)
    left, right = integers(rng, "f16", (m, 16)), integers(rng, "f16", (N + 32, 16))
    parts = 128 // m
    mask = shift << 56 | (1 << 39 | 3 << 40 | 3 << 48 if masked else 0)
    said = idesc("f16", m, N, "f16", "f16", max_shift=16)

    def body(rank, base, at, barrier):
        if ptx.elect_sync():
            places = descriptor(at[0], m), descriptor(at[1], N + 32)
            sim.tcgen05_mma(
                "f16", base, *places, said, False, a_in_tmem=False, cta_group=1, ws=True,
                zero_mask=mask,
            )  # fmt: skip
            ptx.tcgen05_commit(barrier, 1)
        barrier.wait(0)

    (memory,) = run(body, [chunked(row_bytes(left, "f16")), chunked(row_bytes(right, "f16"))])
    used = right[shift : shift + N].copy()
    if masked:  # 4 columns are used and 4 are zeros, from the first column of the product on
        used[np.arange(N) % (N // parts) % 8 >= 4] = 0
    columns = as_type(memory[:, : N // parts], "f32")
    found = np.concatenate([columns[i * m : (i + 1) * m] for i in range(parts)], axis=1)
    np.testing.assert_array_equal(found, left @ used.T)


@pytest.mark.parametrize(
    ("m", "limit", "legal"), [(128, 0, 0), (128, 32, 32), (64, 8, 8), (32, 32, 16)]
)
def test_the_largest_shift(m, limit, legal):
    assert column_shift(legal << 56, m, limit) == legal
    with pytest.raises(sim.BadOperand, match=f"max_shift {limit} .* M {m} allow {legal}"):
        column_shift((legal + 1) << 56, m, limit)


def refused(kind="f16", a="f16", form=None, descriptors=0, **fields):
    """Issue one product of M 128, N 64."""
    said = idesc(kind, M, N, a, a, **fields)
    options = {"a_in_tmem": False, "cta_group": 1} | (form or {})

    def body(rank, base, at, barrier):
        if ptx.elect_sync():
            place = descriptor(at[0], M) | descriptors
            sim.tcgen05_mma(kind, base, place, place, said, False, **options)

    run(body, [np.zeros(128 * 32, np.uint8)])


MXF4 = {"scale_type": "ue8m0", "form": {"scale_a": 128, "scale_b": 160, "block": "block32"}}


@pytest.mark.parametrize(
    ("product", "error", "text"),
    [
        (
            {"kind": "mxf4", "a": "e2m1", "k96": True} | MXF4,
            NotImplementedError, r"kind::mxf4: a K of 96 \(sm_103a\) is not simulated",
        ),
        (
            {"descriptors": 1 << 52},
            (NotImplementedError, sim.BadOperand), "bit 52, an absolute second address .* not simu",
        ),
        ({"max_shift": 8}, sim.BadOperand, "says max_shift 8; only the .ws form shifts"),
    ],
)  # fmt: skip
def test_what_is_refused_names_its_form(product, error, text):
    with pytest.raises(error, match=text):
        refused(**product)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda b: ptx.tcgen05_mma_tmem(b, b, 0, 0, True, "f16", 1, ashift="ashift"),
            "tcgen05_mma_tmem .* is not simulated: .* or leave ashift out",
        ),
        (
            lambda b: ptx.tcgen05_alloc_exclusive(0, 32, 1),
            "tcgen05_alloc_exclusive .* is not simulated: .* or call tcgen05_alloc",
        ),
    ],
)
def test_rows_that_are_only_assembled_name_themselves(call, text):
    with pytest.raises(NotImplementedError, match=text):
        run(lambda rank, base, at, barrier: call(base), [np.zeros(16, np.uint8)])
