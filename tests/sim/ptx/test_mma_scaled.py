"""mma.sync of 8-, 6- and 4-bit floats: fragments, scale factors and sums against NumPy."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

from numba_tma import ptx
from numba_tma import simulator as sim
from tests.kernels.tensor_products import BITS, TYPES

NARROW = ["e4m3", "e5m2", "e3m2", "e2m3", "e2m1"]
SCALES = {"ue8m0": ml_dtypes.float8_e8m0fnu, "ue4m3": ml_dtypes.float8_e4m3fn}


def matrix(rng, name, rows, k):
    """Return random elements as codes and as numbers."""
    codes = rng.integers(0, 1 << BITS.get(name, 8), (rows, k)).astype(np.uint8)
    if name in ("e4m3", "e5m2"):  # finite, and of a range in which float64 is exact
        codes &= 0xB7
    return codes, codes.view(TYPES[name]).astype(np.float64)


def fragments(codes, bits, packed):
    """Return the registers of each lane: (32, registers), by the rule of the PTX manual."""
    rows, k = codes.shape
    per, width = (8, 4) if packed else (4, 8)
    words = np.zeros((32, rows // 8 * (k // (4 * per))), np.uint32)
    for row in range(rows):
        for column in range(k):
            chunk, inner = divmod(column, 4 * per)
            lane, place = row % 8 * 4 + inner // per, inner % per
            first = 0 if packed else {4: 2, 6: 0, 8: 0}[bits]
            register = row // 8 + rows // 8 * chunk
            words[lane, register] |= np.uint32(int(codes[row, column]) << (width * place + first))
    return words


def tuples(words, lane, kind=int):
    return tuple(kind(x) for x in words[lane])


def run(call, k, a_type, b_type, packed=False, c=None, scales=None):
    """Return what 32 lanes compute, as a matrix, and the operands as numbers."""
    rng = np.random.default_rng(5)
    (a, left), (b, right) = matrix(rng, a_type, 16, k), matrix(rng, b_type, 8, k)
    a_words = fragments(a, BITS.get(a_type, 8), packed)
    b_words = fragments(b, BITS.get(b_type, 8), packed)
    start = rng.integers(-3, 4, (16, 8)).astype(np.float64)
    out = np.zeros((16, 8))

    @cuda.jit
    def kernel():
        lane = cuda.threadIdx.x
        row, column = lane // 4, 2 * (lane % 4)
        own = start[[row, row + 8]][:, column : column + 2]
        c = tuple(own.ravel())
        if call.__name__.endswith("f16"):
            c = tuple(int(x) for x in own.astype(np.float16).view(np.uint32).ravel())
        given = scales(lane) if scales else ()
        d = call(tuples(a_words, lane), tuples(b_words, lane), c, *given)
        if call.__name__.endswith("f16"):
            d = np.array(d, np.uint32).view(np.float16)
        out[[row, row + 8], column] = d[0], d[2]
        out[[row, row + 8], column + 1] = d[1], d[3]

    kernel[1, 32]()
    return out, left, right, start


@pytest.mark.parametrize("a_type", NARROW)
@pytest.mark.parametrize("b_type", ["e4m3", "e2m3", "e2m1"])
def test_any_two_types(a_type, b_type):
    def call(a, b, c):
        return ptx.mma_m16n8k32_f8f6f4(a, b, c, a_type, b_type)

    out, left, right, start = run(call, 32, a_type, b_type)
    np.testing.assert_array_equal(out, (left @ right.T + start).astype(np.float32))


def test_sums_of_f16():
    def call_f16(a, b, c):
        return ptx.mma_m16n8k32_f8f6f4_f16(a, b, c, "e2m1", "e3m2")

    out, left, right, start = run(call_f16, 32, "e2m1", "e3m2")
    np.testing.assert_array_equal(out, (left @ right.T + start).astype(np.float16))


def scaled(kind, k, types, factors, scale_type, places):
    """Run a scaled row with all factors in their lanes, and noise elsewhere."""
    (byte_a, thread_a), (byte_b, thread_b) = places
    rng = np.random.default_rng(9)
    noise = rng.integers(0, 256, (2, 32, 4)).astype(np.uint8)
    bias, shift = (127, 0) if scale_type == "ue8m0" else (7, 3)
    codes_a = (rng.integers(-2, 3, (16, factors)) + bias << shift).astype(np.uint8)
    codes_b = (rng.integers(-2, 3, (8, factors)) + bias << shift).astype(np.uint8)
    for row in range(8):
        noise[0, 4 * row + 2 * thread_a, byte_a : byte_a + factors] = codes_a[row]
        noise[0, 4 * row + 2 * thread_a + 1, byte_a : byte_a + factors] = codes_a[row + 8]
        noise[1, 4 * row + thread_b, byte_b : byte_b + factors] = codes_b[row]
    words = noise.view(np.uint32)[..., 0]

    def given(lane):
        return int(words[0, lane]), byte_a, thread_a, int(words[1, lane]), byte_b, thread_b

    out, left, right, start = run(kind, k, *types, k == 64, scales=given)
    values = [
        c.view(SCALES[scale_type]).astype(np.float64).repeat(k // factors, 1)
        for c in (codes_a, codes_b)
    ]
    expected = (left * values[0]) @ (right * values[1]).T + start
    np.testing.assert_array_equal(out, expected.astype(np.float32))


@pytest.mark.parametrize("places", [((0, 0), (0, 0)), ((3, 1), (2, 3)), ((1, 0), (0, 1))])
def test_a_factor_for_32_elements(places):
    def call(*operands):
        return ptx.mma_m16n8k32_mxf8f6f4(*operands, "e4m3", "e2m3")

    scaled(call, 32, ("e4m3", "e2m3"), 1, "ue8m0", places)


@pytest.mark.parametrize("row", [ptx.mma_m16n8k64_mxf4, ptx.mma_m16n8k64_mxf4nvf4_2x])
def test_two_factors_for_64_elements(row):
    scaled(lambda *operands: row(*operands), 64, ("e2m1", "e2m1"), 2, "ue8m0", ((2, 1), (0, 3)))


@pytest.mark.parametrize("scale_type", ["ue4m3", "ue8m0"])
def test_four_factors_for_64_elements(scale_type):
    def call(*operands):
        return ptx.mma_m16n8k64_mxf4nvf4_4x(*operands, scale_type)

    scaled(call, 64, ("e2m1", "e2m1"), 4, scale_type, ((0, 1), (0, 2)))


def fails(error, text, call, threads=32):
    kernel = cuda.jit(lambda: call())
    with pytest.raises(error, match=text):
        kernel[1, threads]()


A, B, C = (0,) * 4, (0,) * 2, (0.0,) * 4


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: ptx.mma_m16n8k64_mxf4(A, B, C, 0, 1, 0, 0, 0, 0), "byte_a is 1; .* it is 0 or 2"),
        (
            lambda: ptx.mma_m16n8k64_mxf4(A, B, C, 0, 0, 2, 0, 0, 0),
            "thread_a is 2; it is 0 to 1",
        ),
        (
            lambda: ptx.mma_m16n8k64_mxf4(A, B, C, 0, 0, 0, 0, 0, 4),
            "thread_b is 4; it is 0 to 3",
        ),
        (
            lambda: ptx.mma_m16n8k64_mxf4(A, B, C, 0, 0, cuda.laneid % 2, 0, 0, 0),
            "the lanes give different byte_a or thread_a",
        ),
        (
            lambda: ptx.mma_m16n8k32_f8f6f4(A, B, C, "f16", "e4m3"),
            r"a_type=...\) is part of the instruction",
        ),
    ],
)
def test_operands_that_there_are_not(call, text):
    fails(sim.BadOperand, text, call)


def test_half_a_warp():
    def call():
        ptx.mma_m16n8k32_f8f6f4(A, B, C, "e4m3", "e4m3")

    fails(sim.BadOperand, "16 threads of the warp execute it; it takes all 32", call, 16)


# ------------------------------------------------------------------------------- sparse A


def sparse_fragments(rng, name, k):
    """Return A as numbers, what it stores as codes, and each lane's metadata, group by group.

    A group has 4 elements, or 4 pairs if k is 128; lane 4 g + 2 h + i has those of row g + 8 i in
    half h of K.
    """
    unit = 2 if k == 128 else 1
    codes, _ = matrix(rng, name, 16, k // 2)
    dense = np.zeros((16, k), np.uint8)
    metadata = np.zeros(32, np.uint32)
    for row in range(16):
        for group in range(16):
            first, second = sorted(int(x) for x in rng.permutation(4)[:2])
            for place, which in ((first, 0), (second, 1)):
                stored = codes[row, 2 * unit * group + unit * which :][:unit]
                dense[row, 4 * unit * group + unit * place :][:unit] = stored
            lane = 4 * (row % 8) + row // 8 + 2 * (group // 8)
            metadata[lane] |= np.uint32((first | second << 2) << 4 * (group % 8))
    return dense.view(TYPES[name]).astype(np.float64), codes, metadata


def sparse(call, k, a_type, b_type, factors=0, scale_type="ue8m0"):
    """Hold a sparse row against NumPy; factors of a power of two by row are in every lane."""
    rng = np.random.default_rng(7)
    left, stored, metadata = sparse_fragments(rng, a_type, k)
    codes, right = matrix(rng, b_type, 8, k)
    packed = k == 128
    a_words = fragments(stored, BITS.get(a_type, 8), packed)
    b_words = fragments(codes, BITS.get(b_type, 8), packed)
    scale = (np.arange(2, 2 + factors) if scale_type == "ue8m0" else np.arange(factors)).astype(int)
    byte = {"ue8m0": 125 + scale, "ue4m3": 7 + scale << 3}[scale_type]
    word = sum(int(b) << 8 * i for i, b in enumerate(byte))
    out = np.zeros((16, 8))

    @cuda.jit
    def kernel():
        lane = cuda.threadIdx.x
        given = (word, 0, 0, word, 0, 0) if factors else ()
        a, b = tuples(a_words, lane), tuples(b_words, lane)
        c = (0, 0) if call.__name__ == "call_f16" else (0.0,) * 4
        d = call(a, b, c, int(metadata[lane]), *given)
        if call.__name__ == "call_f16":
            d = np.array(d, np.uint32).view(np.float16)
        row, column = lane // 4, 2 * (lane % 4)
        out[[row, row + 8], column] = d[0], d[2]
        out[[row, row + 8], column + 1] = d[1], d[3]

    kernel[1, 32]()
    if factors:
        shift = 2 if scale_type == "ue8m0" else 0
        powers = 2.0 ** (2 * (scale - shift)).repeat(k // factors)
        left = left * powers
    expected = left @ right.T
    kind = np.float16 if call.__name__ == "call_f16" else np.float32
    np.testing.assert_array_equal(out, expected.astype(kind))


@pytest.mark.parametrize(("a_type", "b_type"), [("e4m3", "e4m3"), ("e2m1", "e3m2")])
def test_a_sparse_operand(a_type, b_type):
    def call(*operands):
        return ptx.mma_sp_m16n8k64_f8f6f4(*operands, a_type, b_type)

    def call_f16(*operands):
        return ptx.mma_sp_m16n8k64_f8f6f4_f16(*operands, a_type, b_type)

    sparse(call, 64, a_type, b_type)
    if a_type == "e2m1":
        sparse(call_f16, 64, a_type, b_type)


def test_a_sparse_operand_with_a_factor():
    def call(*operands):
        return ptx.mma_sp_m16n8k64_mxf8f6f4(*operands, "e2m3", "e4m3")

    sparse(call, 64, "e2m3", "e4m3", 1)


@pytest.mark.parametrize(
    ("row", "factors", "scale_type"),
    [
        (ptx.mma_sp_m16n8k128_mxf4, 2, "ue8m0"),
        (ptx.mma_sp_m16n8k128_mxf4nvf4_2x, 2, "ue8m0"),
        (ptx.mma_sp_m16n8k128_mxf4nvf4_4x, 4, "ue4m3"),
    ],
)
def test_sparse_pairs_of_4_bits(row, factors, scale_type):
    def call(*operands):
        return row(*operands, *((scale_type,) if factors == 4 else ()))

    sparse(call, 128, "e2m1", "e2m1", factors, scale_type)


def test_a_code_that_ptx_does_not_define():
    def call():
        ptx.mma_sp_m16n8k64_f8f6f4(A, A, C, 0x44444446, "e4m3", "e4m3")

    fails(sim.BadOperand, "the metadata have the code 0x6 for row 0, elements 0 on; PTX def", call)


SINGLE = {
    ("f16", "f16"): lambda a, b, zero: ptx.mma_m16n8k16(a, b, zero, "f16"),
    ("bf16", "bf16"): lambda a, b, zero: ptx.mma_m16n8k16(a, b, zero, "bf16"),
    ("tf32", "tf32"): ptx.mma_m16n8k8_tf32,
    ("e4m3", "e5m2"): lambda a, b, zero: ptx.mma_m16n8k32_f8(a, b, zero, "e4m3", "e5m2"),
    ("e5m2", "e4m3"): lambda a, b, zero: ptx.mma_m16n8k32_f8(a, b, zero, "e5m2", "e4m3"),
    ("i8", "u8"): lambda a, b, zero: ptx.mma_m16n8k32_i8(a, b, zero, "s8", "u8"),
    ("u8", "i8"): lambda a, b, zero: ptx.mma_m16n8k32_i8(a, b, zero, "u8", "s8"),
}


@pytest.mark.parametrize("types", SINGLE, ids=" ".join)
def test_blocks_of_rows_and_columns_are_multiplied_by_themselves(types):
    """Two blocks of 16 rows, each with three of 8 columns: one after the other, and together."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 2**32, (32, count), np.uint32) for count in (8, 6))
    if "8" not in types[0][1:]:
        a, b = a & 0x3C3C3C3C, b & 0x3C3C3C3C  # finite
    found = {}

    @cuda.jit
    def kernel():
        lane = sim.lane_id()
        whole = sim.mma_sync_parts("mma", types, a[lane], b[lane])
        for row, column in itertools.product(range(2), range(3)):
            part = a[lane, 4 * row : 4 * row + 4], b[lane, 2 * column : 2 * column + 2]
            (alone,) = sim.mma_sync_parts("mma", types, *part)
            single = SINGLE[types](*(tuple(each.tolist()) for each in part), (0,) * 4)
            found[lane, row, column] = whole[row][4 * column : 4 * column + 4], alone, single
        assert len(whole) == 2 and all(len(block) == 12 for block in whole)

    kernel[1, 32]()
    assert len(found) == 32 * 6
    for together, alone, single in found.values():
        np.testing.assert_array_equal(together, alone)
        np.testing.assert_array_equal(np.float32(alone), np.float32(single))
