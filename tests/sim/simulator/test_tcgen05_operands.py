"""Operands in tensor memory, copies, scale factors, shifts, and the loads around them."""

import itertools
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from numba_tma import ptx
from numba_tma import simulator as sim
from numba_tma.host import tensor_memory_layout as layout
from numba_tma.simulator import tcgen05_descriptor
from numba_tma.simulator.errors import BadOperand
from numba_tma.simulator.tcgen05_descriptor import product_shape
from numba_tma.simulator.tcgen05_instructions import _merged
from numba_tma.simulator.tcgen05_operands import in_shared
from tests.kernels.tensor_products import (
    as_type,
    chunked,
    descriptor,
    idesc,
    integers,
    row_bytes,
    run,
)
from tests.tiers import every

ROWS, N = 128, 16


def issued(body):
    """Return a body whose `body(rank, base, at)` one thread executes, and commits."""

    def whole(rank, base, at, barrier):
        if ptx.elect_sync():
            body(rank, base, at)
            ptx.tcgen05_commit(barrier, 1)
        barrier.wait(0)

    return whole


# --------------------------------------------------------------------- A in tensor memory


@pytest.mark.parametrize(
    ("kind", "a", "m", "ws"),
    every(3, [
        ("f16", "f16", 128, False),
        ("tf32", "tf32", 128, False),
        ("i8", "i8", 64, False),
        ("f8f6f4", "e4m3", 128, False),
        ("f16", "bf16", 64, True),
        ("f16", "bf16", 32, True),
    ]),
)  # fmt: skip
def test_a_in_tensor_memory(kind, a, m, ws):
    rng, n = np.random.default_rng(1), 64 if ws else 16
    k = {"f16": 16, "tf32": 8}.get(kind, 32)
    left, right = integers(rng, a, (m, k)), integers(rng, a, (n, k))
    name = layout.accumulator_layout(m, 1, ws=ws, sparse=False)
    lanes = np.zeros((128, 32), np.uint8)
    lanes[layout.operand_lanes(name, m)] = row_bytes(left, a)
    said = idesc(kind, m, n, a, a, "i32" if kind == "i8" else "f32")

    def body(rank, base, at):  # tcgen05.cp brings the rows of A to their lanes
        sim.tcgen05_cp("128x256b", base + 256, descriptor(at[0], 128), 1)
        where = descriptor(at[1], n)
        sim.tcgen05_mma(
            kind, base, base + 256, where, said, False, a_in_tmem=True, cta_group=1, ws=ws
        )

    (memory,) = run(issued(body), [chunked(lanes), chunked(row_bytes(right, a))])
    cells = layout.accumulator_cells(name, m, n)
    found = as_type(memory[cells.lane, cells.column], "i32" if kind == "i8" else "f32")
    np.testing.assert_array_equal(found, left @ right.T)


def test_copies_of_a_row_that_differ():
    image = np.zeros((128, 32), np.uint8)
    image[70, 3] = 1

    def body(rank, base, at):
        sim.tcgen05_cp("128x256b", base + 256, descriptor(at[0], 128), 1)
        said = idesc("f16", 64, 64, "f16", "f16")
        sim.tcgen05_mma("f16", base, base + 256, descriptor(at[0], 128), said, False,
                        a_in_tmem=True, cta_group=1, ws=True)  # fmt: skip

    with pytest.raises(sim.TensorMemoryMisuse, match="other values in lanes 64 and on than in la"):
        run(issued(body), [chunked(image)])


def test_a_that_was_not_written():
    def body(rank, base, at):
        said = idesc("f16", 128, N, "f16", "f16")
        sim.tcgen05_mma("f16", base, base + 256, descriptor(at[0], N), said, False,
                        a_in_tmem=True, cta_group=1)  # fmt: skip

    with pytest.raises(sim.UninitializedRead, match="reads A there, before all of it was written"):
        run(issued(body), [np.zeros(N * 32, np.uint8)])


# ------------------------------------------------------------------------------- copies


@pytest.mark.parametrize("shape", every(4, layout.COPY_SHAPES))
def test_every_shape_of_a_copy(shape):
    rows, nbytes = layout.copy_rows(shape)
    image = np.random.default_rng(2).integers(0, 256, (rows, nbytes), np.uint8)
    grouped = max(8, rows)
    stored = np.zeros((grouped, nbytes), np.uint8)
    stored[:rows] = image
    data = chunked(stored) if nbytes == 32 else stored.ravel()
    lane = 3 if shape == "4x256b" else 0

    def body(rank, base, at):
        sim.tcgen05_cp(shape, base + (lane << 16), descriptor(at[0], grouped), 1)

    (memory,) = run(issued(body), [data])
    words = image.view(np.uint32)
    for lanes in layout.copy_lanes(shape):
        np.testing.assert_array_equal(memory[lanes + lane, : words.shape[1]], words)


@pytest.mark.parametrize(
    ("shape", "lane"), [("4x256b", 31), ("4x256b", 32), ("128x128b", 1), ("32x128b.warpx4", 32)]
)
def test_a_copy_begins_at_lane_0_or_of_four_rows_at_any_of_32(shape, lane):
    rows, nbytes = layout.copy_rows(shape)
    data = np.zeros((max(8, rows), nbytes), np.uint8)

    def body(rank, base, at):
        sim.tcgen05_cp(shape, base + (lane << 16), descriptor(at[0], max(8, rows)), 1)

    images = [chunked(data) if nbytes == 32 else data.ravel()]
    if shape == "4x256b" and lane < 32:
        run(issued(body), images)
        return
    repair = "use lane 0 to 31" if shape == "4x256b" else "use lane 0$"
    with pytest.raises(sim.TensorMemoryMisuse, match=f"begins at lane {lane}, .*{repair}"):
        run(issued(body), images)


def test_a_shift():
    image = np.random.default_rng(3).integers(0, 256, (128, 32), np.uint8)

    def body(rank, base, at):
        sim.tcgen05_cp("128x256b", base, descriptor(at[0], 128), 1)
        sim.tcgen05_shift(base + (32 << 16), 1)

    (memory,) = run(issued(body), [chunked(image)])
    expected = image.view(np.uint32).copy()
    for first in (32, 64, 96):
        expected[first : first + 31] = expected[first + 1 : first + 32].copy()
    np.testing.assert_array_equal(memory[:, :8], expected)


@pytest.mark.parametrize("lane", [1, 48, 128])
def test_a_shift_begins_at_a_warps_first_lane(lane):
    def body(rank, base, at):
        sim.tcgen05_cp("128x256b", base, descriptor(at[0], 128), 1)
        sim.tcgen05_shift(base + (lane << 16), 1)

    with pytest.raises(sim.TensorMemoryMisuse, match=f"lane {lane}; use 0, 32, 64 or 96"):
        run(issued(body), [np.zeros(4096, np.uint8)])


# ------------------------------------------------------------------------- scale factors


SCALED = [
    ("mxf8f6f4", "e4m3", "e5m2", "ue8m0", 32, None, 3),
    ("mxf8f6f4", "e2m1", "e3m2", "ue8m0", 32, "block32", 0),
    ("mxf4", "e2m1", "e2m1", "ue8m0", 32, "scale_vec::2X", 2),
    ("mxf4nvf4", "e2m1", "e2m1", "ue4m3", 16, "block16", 0),
    ("mxf4nvf4", "e2m1", "e2m1", "ue8m0", 16, "scale_vec::4X", 0),
]


def atoms(codes):
    """Return rows x 4 scale factors as atoms of 128 rows, each 32 rows of 16 B."""
    rows = -(-len(codes) // 128) * 128
    padded = np.zeros((rows, 4), np.uint8)
    padded[: len(codes)] = codes
    return padded.reshape(-1, 4, 32, 4).swapaxes(1, 2).reshape(-1, 512)


@pytest.mark.parametrize(
    ("kind", "a", "b", "scale", "block", "said_block", "first"), every(4, SCALED)
)
@pytest.mark.parametrize("n", [16, pytest.param(192, marks=pytest.mark.slow)])
def test_scale_factors(kind, a, b, scale, block, said_block, first, n):
    rng, k = np.random.default_rng(4), 64 if kind.startswith("mxf4") else 32
    left, right = integers(rng, a, (ROWS, k)), integers(rng, b, (n, k))
    exponents = rng.integers(-2, 3, (ROWS + n, 4))
    code = exponents + 127 if scale == "ue8m0" else (exponents + 7) * 8 | 0x80  # bit 7 is ignored
    scales_a, scales_b = np.split(code.astype(np.uint8), [ROWS])
    images = [
        chunked(row_bytes(left, a, kind)), chunked(row_bytes(right, b, kind)),
        atoms(scales_a).ravel(), atoms(scales_b).ravel(),
    ]  # fmt: skip
    said = idesc(kind, ROWS, n, a, b, scale_type=scale, scale_a_id=first, scale_b_id=first)

    def body(rank, base, at):
        scale_a, scale_b = base + 400, base + 408
        for place, columns, count in ((at[2], scale_a, 1), (at[3], scale_b, -(-n // 128))):
            for i in range(count):
                where = descriptor(place + 512 * i, 32)
                sim.tcgen05_cp("32x128b.warpx4", columns + 4 * i, where, 1)
        sim.tcgen05_mma(
            kind, base, descriptor(at[0], ROWS), descriptor(at[1], n), said, False,
            a_in_tmem=False, cta_group=1, scale_a=scale_a, scale_b=scale_b, block=said_block,
        )  # fmt: skip

    (memory,) = run(issued(body), images)
    used = slice(first, first + k // block)
    factors = np.repeat(2.0 ** exponents[:, used], block, axis=1)
    expected = (left * factors[:ROWS]) @ (right * factors[ROWS:]).T
    np.testing.assert_array_equal(as_type(memory[:, :n], "f32"), expected)


def scaled(before):
    """Run a scaled product after `before(base, at)`."""

    def body(rank, base, at):
        before(base, at)
        said = idesc("mxf8f6f4", ROWS, N, "e4m3", "e4m3", scale_type="ue8m0")
        sim.tcgen05_mma("mxf8f6f4", base, descriptor(at[0], ROWS), descriptor(at[0], ROWS), said,
                        False, a_in_tmem=False, cta_group=1, scale_a=base + 400,
                        scale_b=base + 404)  # fmt: skip

    image = (np.arange(4096) // 512).astype(np.uint8)  # another value for each 32 rows
    run(issued(body), [image])


def test_scale_factors_that_were_not_copied():
    with pytest.raises(sim.UninitializedRead, match="scale factors of A there that were never cop"):
        scaled(lambda base, at: None)

    def one(base, at):
        sim.tcgen05_cp("32x128b.warpx4", base + 400, descriptor(at[0], 32), 1)

    with pytest.raises(sim.UninitializedRead, match="scale factors of B there that were never cop"):
        scaled(one)


def test_scale_factors_in_two_of_four_groups():
    def two(base, at):
        sim.tcgen05_cp("64x128b.warpx2::02_13", base + 400, descriptor(at[0], 64), 1)
        sim.tcgen05_cp("128x128b", base + 404, descriptor(at[0] + 16, 64), 1)

    with pytest.raises(sim.TensorMemoryMisuse, match="differ between the four groups of 32 lanes"):
        scaled(two)


# --------------------------------------------------------------- loads and stores around


def stored_row(values, load):
    """Store the registers of each lane in 32 lanes, and return what `load(base)` returns."""
    found = {}

    def body(rank, base, at, barrier):
        ptx.tcgen05_st_32x32b(base, values, len(values))
        ptx.tcgen05_wait_st()
        registers = load(base)
        ptx.tcgen05_wait_ld()
        found[sim.lane_id()] = [int(register) for register in registers]

    run(body, [])
    return [found[lane] for lane in range(32)]


def reduced(base, count, operation, dtype, **options):
    return sim.tcgen05_ld_red("32x32b", base, count, operation, dtype, **options)


def test_reduced_loads():
    def bits(*values):
        return tuple(int(word) for word in np.array(values, np.float32).view(np.uint32))

    values = bits(1.5, -4.0, np.nan, 2.0)
    for operation, absolute, expected in (
        ("min", False, -4.0),
        ("max", False, 2.0),
        ("max", True, 4.0),
        ("min", True, 1.5),
    ):
        load = partial(reduced, count=4, operation=operation, dtype="f32", absolute=absolute)
        assert stored_row(values, load)[0] == [*values, *bits(expected)]
    found = stored_row(values, lambda b: sim.tcgen05_ld_red("32x32b", b, 4, "max", "f32", nan=True))
    assert found[0][-1] == 0x7FFFFFFF
    signed = (3, 2**32 - 2)
    for dtype, expected in (("s32", 2**32 - 2), ("u32", 3)):
        load = partial(reduced, count=2, operation="min", dtype=dtype)
        assert stored_row(signed, load)[0] == [*signed, expected]


def test_two_places_of_16_lanes():
    found = stored_row((10, 11, 12, 13), lambda base: sim.tcgen05_ld("16x32bx2", base, 2, offset=2))
    assert found == [[10, 11]] * 16 + [[12, 13]] * 16


def test_packed_registers():
    values = (0xAAAA0001, 0xBBBB0002, 0xCCCC0003, 0xDDDD0004)
    found = stored_row(values, lambda base: sim.tcgen05_ld("32x32b", base, 2, pack=True))
    assert found[0] == [0x00020001, 0x00040003]

    def unpacked(base):
        sim.tcgen05_st("32x32b", base, (0x00020001, 0x00040003), 2, unpack=True)
        ptx.tcgen05_wait_st()
        return sim.tcgen05_ld("32x32b", base, 4)

    assert stored_row(values, unpacked)[0] == [1, 2, 3, 4]


# ------------------------------------------------------------- what a descriptor cannot say


def said(kind="f16", m=128, n=32, a="f16", b="f16", d="f32", cta=1, ws=False, block=None, **more):
    """Return the product that an instruction descriptor describes."""
    return product_shape(kind, idesc(kind, m, n, a, b, d, **more), cta, ws=ws, block=block)


SCALED = {"kind": "mxf4nvf4", "a": "e2m1", "b": "e2m1"}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"m": 96}, "says M 96; with cta_group 1 it is 64 or 128"),
        ({"m": 256}, "says M 256; with cta_group 1 it is 64 or 128"),
        ({"m": 64, "cta": 2}, "says M 64; with cta_group 2 it is 128 or 256"),
        ({"m": 16, "ws": True}, "says M 16; with cta_group 1 and .ws it is 32 or 64 or 128"),
        ({"n": 40}, "says N 40; with cta_group 1 and M 128 it is 16, 32, 48"),
        ({"n": 32, "m": 64, "ws": True}, "says N 32; with cta_group 1 and .ws and M 64 it is 64"),
        ({"max_shift": 8}, "says max_shift 8; only the .ws form shifts columns of B"),
        ({"b": "bf16"}, "there is no f16 x bf16 -> f32; the kind multiplies f16"),
        ({"block": "block32"}, "block32 is for kinds with scale factors"),
        (
            SCALED | {"block": "block64", "scale_type": "ue8m0"},
            "the block of its scale factors is block64: use one of",
        ),
        (
            SCALED | {"block": "block32", "scale_type": "ue4m3"},
            "idesc says scale factors of ue4m3; those of 32 elements are ue8m0",
        ),
        (
            SCALED | {"block": "block32", "scale_type": "ue8m0", "scale_b_id": 1},
            "the scale factors of B begin at byte 1; of 2 a row, that is a multiple of 2 below 4",
        ),
        (
            SCALED | {"block": "block16", "scale_type": "ue4m3", "scale_a_id": 2},
            "the scale factors of A begin at byte 2; of 4 a row, that is a multiple of 4 below 4",
        ),
    ],
)
def test_there_is_no_such_product(given, text):
    with pytest.raises(sim.BadOperand) as caught:
        said(**given)
    assert text in str(caught.value)


def test_there_are_products():
    assert (said().k, said().scales) == (16, 0)
    assert said(m=64, n=64, ws=True, max_shift=8).says.max_shift == 8
    for block, scales, kind in (("block32", 2, "ue8m0"), ("block16", 4, "ue4m3")):
        found = said(**SCALED, block=block, scale_type=kind)
        assert (found.k, found.scales) == (64, scales)
    assert said("mxf8f6f4", a="e4m3", b="e5m2", scale_type="ue8m0").scales == 1
    with pytest.raises(NotImplementedError, match="a K of 96"):
        said(**SCALED, block="block32", scale_type="ue8m0", k96=True)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"disable_output_lane": (0, 0)}, "the mask of lanes has 2 words; with cta_group 1 it"),
        ({"scale_input_d": 16}, "scale_d is 16; it is 0 to 15"),
        ({"scale_input_d": -1}, "scale_d is -1; it is 0 to 15"),
    ],
)
def test_optional_operands_have_a_range(given, text):
    says = idesc("f16", 128, 32, "f16", "f16")

    def body(rank, base, at):
        a = descriptor(at[0], 128)
        ptx.tcgen05_mma(base, a, a, says, False, "f16", 1, **given)

    with pytest.raises(sim.BadOperand) as caught:
        run(issued(body), [np.zeros(16384, np.uint8)])
    assert text in str(caught.value)


# --------------------------------------------------------- the bytes of an operand, as runs


@pytest.mark.parametrize("stride", [128, 144, 240, 256, 1024])
def test_runs_of_an_operand_are_one_unless_a_row_of_128_bytes_lies_between(stride):
    """Of 32 rows, 8 of them a group of 128 bytes; the second 16 bytes of rows lie far behind."""
    sdesc = 8192 // 16 << 16 | stride // 16 << 32 | 1 << 46
    place = in_shared("x", sdesc, 32, "u8", "K")
    groups = [(chunk + stride * i, 128) for chunk in (0, 8192) for i in range(4)]
    whole = [(chunk, 3 * stride + 128) for chunk in (0, 8192)]
    assert place.runs == tuple(whole if stride == 128 else groups)
    assert _merged(place) == (whole if stride < 256 else groups)


#: The blocks that share a scale factor, by kind, with the elements that they have.
BLOCKS = {
    "mxf8f6f4": {None: 32, "block32": 32, "scale_vec::1X": 32},
    "mxf4": {None: 32, "block32": 32, "scale_vec::2X": 32},
    "mxf4nvf4": {"block32": 32, "scale_vec::2X": 32, "block16": 16, "scale_vec::4X": 16},
}


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("first", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("scales", ["ue8m0", "ue4m3"])
def test_scale_factors_of_a_row_lie_in_one_word(kind, first, scales):
    """Whole ones of it; only kinds with one size of block may leave it out."""
    k = 32 if kind == "mxf8f6f4" else 64
    form = SimpleNamespace(scales=True, k=k)
    words = {None, "block16", "block32", "block64", *(f"scale_vec::{n}X" for n in (1, 2, 4))}
    for operand, block in itertools.product("ab", words):
        says = {"kind": kind, "scale_type": scales, "scale_a_id": 0, "scale_b_id": 0}
        says = SimpleNamespace(**says | {f"scale_{operand}_id": first})
        each = BLOCKS[kind].get(block, 0)
        count = k // (each or k)
        if not each:
            wrong = "use one of"
        elif each == 32 and scales == "ue4m3":
            wrong = "those of 32 elements are ue8m0"
        elif first % count or first + count > 4:
            wrong = f"the scale factors of {operand.upper()} begin at byte {first}"
        else:
            assert tcgen05_descriptor._scales("it", says, form, block) == count
            continue
        with pytest.raises(BadOperand, match=wrong):
            tcgen05_descriptor._scales("it", says, form, block)
    plain = SimpleNamespace(scales=False)
    assert tcgen05_descriptor._scales("it", says, plain, None) == 0
    with pytest.raises(BadOperand, match="it: block32 is for kinds with scale factors"):
        tcgen05_descriptor._scales("it", says, plain, "block32")
