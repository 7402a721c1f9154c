"""Reductions: the operations of each type, and NumPy's models against loops over elements."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_tma import Swizzle, Tile, reference_reduce
from numba_tma.host.dtypes import as_dtype, names, reduction_violation
from numba_tma.host.layout import swizzle_index
from numba_tma.host.reference import reduce_elements

LEGAL = {
    "u32": {"add", "min", "max", "inc", "dec", "and", "or", "xor"},
    "i32": {"add", "min", "max", "and", "or", "xor"},
    "u64": {"add", "min", "max", "and", "or", "xor"},
    "i64": {"min", "max"},
    "f16": {"add", "min", "max"},
    "bf16": {"add", "min", "max"},
    "f32": {"add"},
    "f64": {"add"},
    "c64": {"add"},
    "c128": {"add"},
}
#: Those of numbers of one word; complex ones are in `tests/cpu/host/test_words.py`.
PAIRS = [(name, op) for name in LEGAL if name[0] != "c" for op in sorted(LEGAL[name])]


@pytest.mark.parametrize("name", names)
def test_the_reductions_of_a_type(name):
    dtype = as_dtype(name)
    assert set(dtype.reductions) == LEGAL.get(name, set())
    for operation in LEGAL["u32"]:
        assert (reduction_violation(dtype, operation) is None) == (operation in dtype.reductions)


@pytest.mark.parametrize(
    ("name", "operation", "parts"),
    [
        ("f32", "min", ["'min' of f32: it has 'add'", "'min' it has of u32, i32, u64, i64, f16"]),
        ("f16", "inc", ["it has 'add', 'min', 'max'", "'inc' it has of u32"]),
        ("u8", "add", ["no reduction of u8", "it reduces u32, i32, u64, i64, f16, bf16, f32, f64"]),
        ("tf32", "add", ["no reduction of tf32"]),
        ("i64", "add", ["'add' of i64", 'dtype="u64" gives the same bits']),
        ("u32", "mul", ["'mul' of u32: it has 'add', 'min', 'max', 'inc', 'dec', 'and'"]),
        ("u32", None, ["no reduction None of u32"]),
    ],
)
def test_what_there_is_not(name, operation, parts):
    text = reduction_violation(as_dtype(name), operation)
    assert all(part in text for part in parts), text
    with pytest.raises(ValueError) as caught:
        tile = Tile((4, 16), name)
        array = np.zeros((4, 16), tile.dtype.numpy)
        reference_reduce(array, np.zeros(tile.nbytes, np.uint8), tile, (0, 0), operation)
    assert str(caught.value) == text


def in_python(operation, old, operand, dtype):
    """Return one element's new value in Python's own arithmetic."""
    if dtype.is_float:
        a, b = float(old), float(operand)
        return {"add": lambda: a + b, "min": lambda: min(a, b), "max": lambda: max(a, b)}[
            operation
        ]()
    a, b = int(old), int(operand)
    bits = 8 * dtype.itemsize
    value = {
        "add": lambda: a + b,
        "min": lambda: min(a, b),
        "max": lambda: max(a, b),
        "inc": lambda: 0 if a >= b else a + 1,
        "dec": lambda: b if a == 0 or a > b else a - 1,
        "and": lambda: a & b,
        "or": lambda: a | b,
        "xor": lambda: a ^ b,
    }[operation]()
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype.numpy.kind == "i" and value >> (bits - 1) else value


def elements(dtype, count, rng):
    if dtype.is_float:
        return rng.standard_normal(count).astype(dtype.numpy)
    bounds = np.iinfo(dtype.numpy)
    wide = rng.integers(bounds.min, bounds.max, count, dtype.numpy, endpoint=True)
    near = rng.integers(0, 4, count).astype(dtype.numpy)
    edges = rng.choice(np.array([bounds.min, bounds.max, 0, 1], dtype.numpy), count)
    kind = rng.integers(0, 3, count)
    return np.choose(kind, [wide, near, edges])


@pytest.mark.parametrize(("name", "operation"), PAIRS)
def test_elements_are_reduced_as_in_python(name, operation):
    dtype, rng = as_dtype(name), np.random.default_rng(PAIRS.index((name, operation)))
    old, operand = elements(dtype, 500, rng), elements(dtype, 500, rng)
    result = reduce_elements(operation, old.copy(), operand)
    expected = [in_python(operation, a, b, dtype) for a, b in zip(old, operand)]
    # Two float16 or bfloat16 add exactly in a double, which is then rounded once.
    wide = np.array(expected, None if dtype.is_float else dtype.numpy)
    np.testing.assert_array_equal(result, wide.astype(dtype.numpy))
    assert result.dtype == dtype.numpy


@pytest.mark.parametrize("numpy", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_sums_keep_subnormals(numpy):
    least = np.array([1], f"u{np.dtype(numpy).itemsize}").view(numpy)
    assert reduce_elements("add", least, least).view(f"u{least.itemsize}") == 2


@st.composite
def reductions(draw):
    name, operation = draw(st.sampled_from(PAIRS))
    dtype = as_dtype(name)
    rank = draw(st.integers(1, 4))
    outer = tuple(draw(st.integers(1, 4)) for _ in range(rank - 1))
    swizzle = draw(st.sampled_from(Swizzle))
    width = 16 * draw(st.integers(1, swizzle.span // 16 if swizzle else 3)) // dtype.itemsize
    tile = Tile((*outer, width), dtype, swizzle)
    shape = tuple(draw(st.integers(1, 2 * n + 2)) for n in tile.shape)
    coords = tuple(draw(st.integers(-2, n + 1)) for n in shape)
    steps = (*(draw(st.integers(1, 2)) for _ in outer), 1)
    return operation, tile, shape, coords, steps, draw(st.integers(0, 2**32 - 1))


@settings(max_examples=150, deadline=None)
@given(reductions())
def test_reference_reduce_equals_a_loop_over_elements(case):
    operation, tile, shape, coords, steps, seed = case
    rng = np.random.default_rng(seed)
    dtype = tile.dtype
    array = elements(dtype, int(np.prod(shape)), rng).reshape(shape)
    image = elements(dtype, tile.shared_nbytes // dtype.itemsize, rng)
    expected = array.copy()
    for index in np.ndindex(*tile.shape):
        at = tuple(c + i * step for c, i, step in zip(coords, index, steps))
        if all(0 <= a < n for a, n in zip(at, shape)):
            row = int(np.ravel_multi_index((*index[:-1], 0), (*tile.shape[:-1], 1)))
            offset = swizzle_index(tile.swizzle, row * tile.pitch + index[-1] * tile.itemsize)
            value = in_python(operation, expected[at], image[offset // tile.itemsize], dtype)
            expected[at] = np.array(value).astype(dtype.numpy)
    reference_reduce(array, image.view(np.uint8), tile, coords, operation, steps)
    assert array.tobytes() == expected.tobytes()


def test_a_view_of_a_larger_array_is_reduced_in_place():
    memory = np.zeros((8, 32), np.uint32)
    image = np.ones(16, np.uint32).view(np.uint8)
    reference_reduce(memory[::2, :8], image, Tile((2, 8), "u32"), (1, 0), "add")
    assert memory.sum() == 16 and (memory[2:5:2, :8] == 1).all()
