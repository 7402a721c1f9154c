"""wgmma and fragments on a GPU: each product, conversion, reduction and store against NumPy.

Products of small integers are exact in every type, so that they equal NumPy's bit for bit.
"""

import functools

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import Swizzle, Tile, ptx
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.mma_rules import fragment_coords, num_elements
from tests.gpu.device.test_matrix_descriptor import on_device
from tests.gpu.worker import on_gpu
from tests.kernels import mma_kernels
from tests.kernels.matrix_operands import Operand, ways

PLAIN = (Swizzle.NONE, Swizzle.B32, Swizzle.B64, Swizzle.B128)
B128 = Swizzle.B128
#: What holds the bits of an accumulator, or of narrow elements.
BITS = {"f32": np.float32, "i32": np.int32}
WARPGROUP = 128


def held_as(dtype):
    """Return the NumPy type of arrays that a fragment is stored to."""
    dtype = as_dtype(dtype)
    return BITS.get(dtype.name, np.dtype(f"u{dtype.itemsize}"))


def values_of(array, dtype):
    """Return what the elements of a stored array are, as float64."""
    return array.view(as_dtype(dtype).numpy).astype(np.float64)


# ---------------------------------------------------------------------------- products


def products():
    """List operands in every way that each is read, mixed types and accumulators, many n."""
    pairs = [
        *(("f16", "f16", "f32"), ("f16", "f16", "f16"), ("bf16", "bf16", "f32")),
        *(("tf32", "tf32", "f32"), ("f32", "tf32", "f32")),
        *(("e4m3", "e4m3", "f32"), ("e4m3", "e5m2", "f16"), ("e5m2", "e4m3", "f32")),
        *(("e5m2", "e5m2", "f16"), ("i8", "i8", "i32"), ("i8", "u8", "i32"), ("u8", "i8", "i32")),
    ]
    widths = {"i32": [8, 64, 24, 256, 112, 32], "f16": [16, 256, 8, 72, 128, 200]}
    found = []
    for a, b, accumulator in pairs:
        ways_a, ways_b = ways(as_dtype(a)), ways(as_dtype(b))
        for i, way in enumerate(ways_a):
            n = widths.get(accumulator, [256, 8, 64, 24, 128, 192, 88])[i % 6]
            major, swizzle = ways_b[(i + 3) % len(ways_b)]
            # MN-major tiles have whole spans of columns.
            span = max(swizzle.span // as_dtype(b).itemsize, 8) if major == "MN" else 8
            columns = max(-(-n // span) * span, 16)
            k = 128 // as_dtype(a).itemsize
            operands = Operand(64, k, a, *way), Operand(columns, k, b, major, swizzle)
            found.append((*operands, n, accumulator))
    return found


def small(operand, seed):
    """Return small integers, none below 0 for u8, whose sums an accumulator of f16 holds too."""
    most = {"i8": 127, "u8": 127, "e4m3": 2, "e5m2": 2}.get(operand.dtype, 4)
    least = 0 if operand.dtype == "u8" else -most
    drawn = np.random.default_rng(seed).integers(least, most + 1, (operand.rows, operand.k))
    return drawn.astype(np.int32)


@on_gpu
def check_product(a, b, n, accumulator, first_row=0, start=0, scale_d=True):
    x, y = small(a, 1), small(b, 2)
    (a_map, a_memory), (b_map, b_memory) = on_device(a, x), on_device(b, y)
    rows = a.rows - first_row
    kernel, _ = mma_kernels.product(a, b, n, accumulator)
    out = cuda.to_device(np.zeros((rows, n), held_as(accumulator)))
    value = (np.int32 if accumulator == "i32" else np.float32)(start)
    kernel[1, 2 * rows](a_map, b_map, np.int32(first_row), value, scale_d, out)
    expected = x[first_row:].astype(np.float64) @ y[:n].T + (start if scale_d else 0)
    np.testing.assert_array_equal(values_of(out.copy_to_host(), accumulator), expected)
    assert a_memory is not None and b_memory is not None  # alive until here


@pytest.mark.parametrize(("a", "b", "n", "accumulator"), products(), ids=str)
def test_a_product(a, b, n, accumulator):
    check_product(a, b, n, accumulator)


def test_a_product_is_added_to_what_there_is_or_not():
    a, b = Operand(64, 64, "bf16"), Operand(64, 64, "bf16")
    for scale_d in (True, False):
        check_product(a, b, 64, "f32", start=7, scale_d=scale_d)
    check_product(Operand(64, 64, "i8"), Operand(16, 64, "u8"), 16, "i32", start=-3)


def test_rows_of_a_larger_tile():
    for swizzle in PLAIN:
        a, b = Operand(192, 64, "bf16", "K", swizzle), Operand(24, 64, "bf16", "K", swizzle)
        check_product(a, b, 24, "f32", first_row=64)


# ------------------------------------------------------ what a kernel says of a product

SHARED_A, SHARED_B = Tile((64, 128), "bf16", B128), Tile((64, 128), "bf16", B128)


@cuda.jit(device=True)
def fill(tile, values):
    """Write a matrix to a tile of its shape, and let the tensor cores see it."""
    for i in range(cuda.threadIdx.x, values.size, cuda.blockDim.x):
        row, column = i // values.shape[1], i % values.shape[1]
        tile[row, column] = values[row, column]
    tma.fence_proxy_async()
    cuda.syncthreads()


def chained(acc, a, b):
    """Two calls, one group; the second one goes on along K."""
    acc = tma.wgmma(acc, a, b, k_steps=4, commit=False)
    acc = tma.wgmma(acc, a.advance(k_step=4), b.advance(k_step=4), k_steps=4, fence=False)
    return tma.wgmma_wait(acc)


def pending(acc, a, b):
    """Two groups into two accumulators: the first is waited for first."""
    acc = tma.wgmma(acc, a, b, k_steps=4)
    other = tma.wgmma(tma.fragment(64), a.advance(k_step=4), b.advance(k_step=4), k_steps=4)
    acc = tma.wgmma_wait(acc, 1)
    acc, other = tma.wgmma_wait((acc, other))
    return acc + other


def added_to(acc, a, b):
    acc = tma.wgmma(acc + np.float32(5), a, b)
    return tma.wgmma_wait(acc)


def in_order(acc, a, b):
    """Products of one shape into one accumulator, each a group."""
    acc = tma.wgmma(acc, a, b)
    acc = tma.wgmma_wait(acc, 1)
    acc = tma.wgmma(acc, a, b, negate_a=True)
    acc = tma.wgmma_wait(acc, 1)
    acc = tma.wgmma(acc, a, b)
    return tma.wgmma_wait(acc)


def grouped_by_hand(acc, a, b):
    ptx.wgmma_fence()
    acc = tma.wgmma(acc, a, b, commit=False)
    ptx.wgmma_commit_group()
    ptx.wgmma_wait_group(0)
    return tma.wgmma_wait(acc)


def summed(acc, a, b):
    """A wait that stays behind other arithmetic."""
    acc = tma.wgmma(acc, a, b)
    sums = (tma.fragment(32) + 2).row_sum()
    return tma.wgmma_wait(acc, after=sums) + sums


CALLS = {
    "plain": (lambda acc, a, b: tma.wgmma_wait(tma.wgmma(acc, a, b)), lambda p: p),
    "negate_a": (
        lambda acc, a, b: tma.wgmma_wait(tma.wgmma(acc, a, b, negate_a=True)),
        lambda p: -p,
    ),
    "negate_b": (
        lambda acc, a, b: tma.wgmma_wait(tma.wgmma(acc, a, b, negate_b=True)),
        lambda p: -p,
    ),
    "both": (
        lambda acc, a, b: tma.wgmma_wait(tma.wgmma(acc, a, b, negate_a=True, negate_b=True)),
        lambda p: p,
    ),
    "overwritten": (
        lambda acc, a, b: tma.wgmma_wait(tma.wgmma(acc + np.float32(9), a, b, scale_d=False)),
        lambda p: p,
    ),
    "added to": (added_to, lambda p: p + 5),
    "chained": (chained, lambda p: p),
    "pending": (pending, lambda p: p),
    "in order": (in_order, lambda p: p),
    "grouped by hand": (grouped_by_hand, lambda p: p),
    "summed": (summed, lambda p: p + 64),
}


def random_integers(shape, seed, most=4):
    return np.random.default_rng(seed).integers(-most, most + 1, shape).astype(np.float32)


@on_gpu
def check_call(name):
    call, expected = CALLS[name]
    call = cuda.jit(device=True)(call)

    def body(x, y, out):
        a, b = tma.shared_tile(SHARED_A), tma.shared_tile(SHARED_B)
        fill(a, x)
        fill(b, y)
        acc = call(tma.fragment(64), a.matrix_descriptor(), b.matrix_descriptor())
        acc.store_global(out, 0, 0)

    x, y = random_integers((64, 128), 1), random_integers((64, 128), 2)
    out = np.zeros((64, 64), np.float32)
    at_work(body, x, y, out)
    np.testing.assert_array_equal(out, expected(x.astype(np.float64) @ y.T))


@pytest.mark.parametrize("name", CALLS)
def test_a_call(name):
    check_call(name)


# ----------------------------------------------------------------- a matrix A in registers


@on_gpu
def check_registers(dtype, other, accumulator, k, n, swizzle, b_major="K"):
    A = Tile((64, k), dtype, swizzle)
    b = Operand(n, k, other, b_major)
    B, factor = b.tile, 1 if accumulator == "i32" else 2

    def body(x, y, out):
        a, b = tma.shared_tile(A), tma.shared_tile(B)
        fill(a, x)
        fill(b, y)
        left = tma.load_fragment(a, (0, 0), k) * factor
        acc = tma.fragment(n, accumulator)
        acc = tma.wgmma_wait(tma.wgmma(acc, left, b.matrix_descriptor(b_major)))
        acc.store_global(out, 0, 0)

    x, y = random_integers((64, k), 1, 2), random_integers((n, k), 2, 2)
    if "u8" in (dtype, other):
        x, y = abs(x), abs(y)
    out = np.zeros((64, n), held_as(accumulator))
    at_work(body, x, y if b_major == "K" else np.ascontiguousarray(y.T), out)
    expected = factor * x.astype(np.float64) @ y.T
    np.testing.assert_array_equal(values_of(out, accumulator), expected)


@pytest.mark.parametrize(
    ("dtype", "other", "accumulator", "k", "n", "swizzle", "b_major"),
    [
        ("bf16", "bf16", "f32", 64, 128, B128, "MN"),
        ("bf16", "bf16", "f32", 16, 8, Swizzle.NONE, "K"),
        ("f16", "f16", "f32", 32, 256, Swizzle.B64, "K"),
        ("f16", "f16", "f16", 128, 64, B128, "MN"),
        ("e4m3", "e5m2", "f32", 128, 64, B128, "K"),
        ("e5m2", "e5m2", "f16", 32, 24, Swizzle.B32, "K"),
        ("i8", "u8", "i32", 64, 32, Swizzle.B64, "K"),
        ("u8", "i8", "i32", 32, 8, Swizzle.NONE, "K"),
    ],
)
def test_a_matrix_in_registers(dtype, other, accumulator, k, n, swizzle, b_major):
    check_registers(dtype, other, accumulator, k, n, swizzle, b_major)


# -------------------------------------------------------------------- element by element


@cuda.jit(device=True)
def taken(_, row, column, values):
    return values[row, column]


def at_work(body, *given):
    """Run a function of arrays, which it may change, as a kernel of one warpgroup."""
    on_gpu_too = [cuda.to_device(x) if isinstance(x, np.ndarray) else x for x in given]
    cuda.jit(body)[1, WARPGROUP](*on_gpu_too)
    for array, there in zip(given, on_gpu_too):
        if isinstance(array, np.ndarray):
            there.copy_to_host(array)


@functools.cache
def noise(n, seed=0):
    """Return floats of many sizes, and among them those that round, saturate and are not."""
    rng = np.random.default_rng(seed)
    drawn = rng.standard_normal((64, n)) * 2.0 ** rng.integers(-20, 12, (64, n))
    drawn[0, :8] = 0.0, -0.0, 1e30, -1e30, 448.0, 465.0, 57344.0, 70000.0
    return drawn.astype(np.float32)


def narrowed(values, dtype):
    """Round floats as cvt does: 8 bits saturate."""
    dtype = as_dtype(dtype)
    if dtype.itemsize == 1:
        most = float(ml_dtypes.finfo(dtype.numpy).max)
        values = np.clip(values, -most, most)
    with np.errstate(over="ignore"):
        return values.astype(dtype.numpy)


@on_gpu
def check_conversion(dtype, n):
    def body(values, out):
        f = tma.fragment(n).map_coords(taken, values)
        f.to(dtype).store_global(out, 0, 0)

    values, out = noise(n), np.zeros((64, n), held_as(dtype))
    at_work(body, values, out)
    expected = narrowed(values, dtype)
    np.testing.assert_array_equal(
        out.view(expected.dtype).view(out.dtype), expected.view(out.dtype)
    )


@pytest.mark.parametrize("n", [16, 96, 256])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "e4m3", "e5m2"])
def test_conversions(dtype, n):
    check_conversion(dtype, n)


@on_gpu
def check_widening(dtype):
    def body(values, out):
        f = tma.fragment(40).map_coords(taken, values)
        f.to(dtype).to("f32").store_global(out, 0, 0)

    values, out = noise(40), np.zeros((64, 40), np.float32)
    at_work(body, values, out)
    np.testing.assert_array_equal(out, narrowed(values, dtype).astype(np.float32))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_16_bits_become_32(dtype):
    check_widening(dtype)


@on_gpu
def check_integers():
    def body(values, out, rounded, most):
        f = tma.fragment(16, "i32").map_coords(taken, values)
        most[cuda.threadIdx.x] = f.row_max()[0]
        f = f * 3 - 1
        f.to("f32").store_global(out, 0, 0)
        f.to("bf16").store_global(rounded, 0, 0)

    values = np.random.default_rng(0).integers(-1000, 1000, (64, 16)).astype(np.int32)
    out, rounded = np.zeros((64, 16), np.float32), np.zeros((64, 16), np.uint16)
    most = np.zeros(WARPGROUP, np.int32)
    at_work(body, values, out, rounded, most)
    expected = (3 * values - 1).astype(np.float32)
    np.testing.assert_array_equal(out, expected)
    bits = expected.astype(ml_dtypes.bfloat16).view(np.uint16)
    np.testing.assert_array_equal(rounded, bits)
    row, _ = fragment_coords(0, np.arange(WARPGROUP))
    np.testing.assert_array_equal(most, values.max(axis=1)[row])


def test_integers():
    check_integers()


@on_gpu
def check_places(dtype, n):
    count = num_elements(n)

    def body(out):
        f = tma.fragment(n, dtype)
        for i in range(f.num_elements):
            row, column = f.coords(i)
            out[cuda.threadIdx.x, i, 0] = row
            out[cuda.threadIdx.x, i, 1] = column
        two = tma.rows(2)
        for i in range(2):
            out[cuda.threadIdx.x, count, i] = two.coords(i)

    out = np.zeros((WARPGROUP, count + 1, 2), np.int32)
    at_work(body, out)
    thread, i = np.indices((WARPGROUP, count))
    expected = np.stack(fragment_coords(i, thread, as_dtype(dtype).itemsize), axis=-1)
    np.testing.assert_array_equal(out[:, :count], expected)
    row, _ = fragment_coords(np.array([0, 2]), np.arange(WARPGROUP)[:, None])
    np.testing.assert_array_equal(out[:, count], row)


@pytest.mark.parametrize(("dtype", "n"), [("f32", 24), ("bf16", 8), ("e4m3", 48)])
def test_places(dtype, n):
    check_places(dtype, n)


@cuda.jit(device=True)
def larger(a, b):
    return max(a, b)


@cuda.jit(device=True)
def weighed(value, row, column, bias, factor, other, number):
    return value * factor + bias[column] - other * number + np.float32(row)


@on_gpu
def check_arithmetic(n):
    def body(x, y, bias, out, numbers):
        f, g = tma.fragment(n).map_coords(taken, x), tma.fragment(n).map_coords(taken, y)
        most, total = f.row_max(), f.row_sum()
        part = f.row_sum(quad=False).quad_sum() - f.row_max(quad=False).quad_max()
        numbers[cuda.threadIdx.x, 0] = most[0]
        numbers[cuda.threadIdx.x, 1] = total[1]
        numbers[cuda.threadIdx.x, 2] = (total - most - part)[0]
        numbers[cuda.threadIdx.x, 3] = f[3]
        f += g * 2
        f = (f - most) / 4
        f *= tma.rows(3) + most.map(larger, total)
        h = 1 - f + g
        h = h.map_coords(weighed, bias, most, g, np.float32(0.5))
        h.store_global(out, 0, 0)

    x, y = random_integers((64, n), 1), random_integers((64, n), 2)
    bias = random_integers((n,), 3)
    out, numbers = np.zeros((64, n), np.float32), np.zeros((WARPGROUP, 4), np.float32)
    at_work(body, x, y, bias, out, numbers)
    most, total = x.max(axis=1, keepdims=True), x.sum(axis=1, keepdims=True)
    f = (x + 2 * y - most) / 4 * (3 + np.maximum(most, total))
    expected = (1 - f + y) * most + bias - y / 2 + np.arange(64)[:, None]
    np.testing.assert_array_equal(out, expected)
    thread = np.arange(WARPGROUP)
    (upper, _), (lower, column) = (fragment_coords(i, thread) for i in (0, 3))
    expected = np.stack([most[upper, 0], total[lower, 0], 0 * upper, x[lower, column]], axis=1)
    np.testing.assert_array_equal(numbers, expected)


@pytest.mark.parametrize("n", [8, 64, 120])
def test_arithmetic(n):
    check_arithmetic(n)


@on_gpu
def check_narrow_arithmetic(dtype):
    def body(x, out, most):
        f = tma.fragment(32).map_coords(taken, x).to(dtype)
        f = f * f + np.float32(0.1)
        most[cuda.threadIdx.x] = f.row_max()[1]
        f.store_global(out, 0, 0)

    x, out = noise(32), np.zeros((64, 32), np.uint16)
    most = np.zeros(WARPGROUP, np.float32)
    at_work(body, x, out, most)
    held = narrowed(x, dtype)
    with np.errstate(over="ignore"):
        squares = (held.astype(np.float32) ** 2).astype(held.dtype).astype(np.float32)
        expected = (squares + np.float32(0.1)).astype(held.dtype)
    np.testing.assert_array_equal(out, expected.view(np.uint16))
    row, _ = fragment_coords(2, np.arange(WARPGROUP))
    np.testing.assert_array_equal(most, expected.astype(np.float32).max(axis=1)[row])


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_arithmetic_of_16_bits(dtype):
    check_narrow_arithmetic(dtype)


@on_gpu
def check_nan():
    def body(x, out):
        out[cuda.threadIdx.x] = tma.fragment(16).map_coords(taken, x).row_max()[0]

    x = random_integers((64, 16), 1)
    x[::3, 5] = np.nan
    x[16, :] = np.nan
    out = np.zeros(WARPGROUP, np.float32)
    at_work(body, x, out)
    row, _ = fragment_coords(0, np.arange(WARPGROUP))
    expected = np.fmax.reduce(x, axis=1)[row]
    np.testing.assert_array_equal(out, expected)


def test_a_maximum_leaves_nan_out():
    check_nan()


# ------------------------------------------------------------------------ shared memory


def places():
    """List a dtype, a tile's columns and swizzle, a corner, and a fragment's columns."""
    found = []
    for dtype in ("f32", "i32", "f16", "bf16", "e4m3", "i8"):
        unit = 16 // as_dtype(dtype).itemsize
        for swizzle in PLAIN:
            span = max(swizzle.span, 16) // as_dtype(dtype).itemsize
            whole, narrow = 2 * max(span, 8), max(8, unit)
            found.append((dtype, 4 * max(span, 8), swizzle, (0, 0), whole))
            found.append((dtype, 4 * max(span, 8), swizzle, (24, unit), narrow))
    return found


@on_gpu
def check_store(dtype, columns, swizzle, at, n):
    TILE = Tile((96, columns), dtype, swizzle)
    row, column = at

    def body(x, out, again, row, column):
        tile = tma.shared_tile(TILE)
        for i in range(cuda.threadIdx.x, 96 * columns, WARPGROUP):
            tile[i // columns, i % columns] = 1
        cuda.syncthreads()
        f = tma.fragment(n, dtype).map_coords(taken, x)
        f.store(tile, (row, column))
        cuda.syncthreads()
        for i in range(cuda.threadIdx.x, 96 * columns, WARPGROUP):
            out[i // columns, i % columns] = tile[i // columns, i % columns]
        g = tma.load_fragment(tile, (row, column), n)
        g.store_global(again, 0, 0)

    compute = np.dtype(as_dtype(dtype).compute)
    x = random_integers((64, n), 1).astype(compute)
    out, again = np.zeros((96, columns), compute), np.zeros((64, n), held_as(dtype))
    at_work(body, x, out, again, np.int32(row), np.int32(column))
    expected = np.ones((96, columns), compute)
    expected[row : row + 64, column : column + n] = x
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(values_of(again, dtype), x)


@pytest.mark.parametrize(("dtype", "columns", "swizzle", "at", "n"), places())
def test_to_shared_memory_and_back(dtype, columns, swizzle, at, n):
    check_store(dtype, columns, swizzle, at, n)


@on_gpu
def check_rows(start):
    TALL = Tile(96, "f32")

    def body(x, out, start):
        tile = tma.shared_tile(TALL)
        if cuda.threadIdx.x < 96:
            tile[cuda.threadIdx.x] = x[cuda.threadIdx.x]
        cuda.syncthreads()
        (tma.fragment(16) + tma.load_rows(tile, start)).store_global(out, 0, 0)

    x, out = noise(96)[7], np.ones((64, 16), np.float32)
    at_work(body, x, out, np.int32(start))
    np.testing.assert_array_equal(out, np.repeat(x[start : start + 64, None], 16, 1))


@pytest.mark.parametrize("start", [0, 7, 32])
def test_a_number_for_each_row(start):
    check_rows(start)


def test_what_was_stored_is_an_operand():
    """P of attention, by way of shared memory: written, fenced, read by wgmma."""
    check_stored_operand()


@on_gpu
def check_stored_operand():
    def body(x, y, out):
        a, b = tma.shared_tile(SHARED_A), tma.shared_tile(SHARED_B)
        fill(b, y)
        tma.fragment(128).map_coords(taken, x).to("bf16").store(a, (0, 0))
        tma.fence_proxy_async()
        cuda.syncthreads()
        acc = tma.wgmma(tma.fragment(64), a.matrix_descriptor(), b.matrix_descriptor())
        tma.wgmma_wait(acc).store_global(out, 0, 0)

    x, y = random_integers((64, 128), 1), random_integers((64, 128), 2)
    out = np.zeros((64, 64), np.float32)
    at_work(body, x, y, out)
    np.testing.assert_array_equal(out, x @ y.T)


# ------------------------------------------------------------------------ global memory


@on_gpu
def check_global(dtype, n, shape, row, column, layout="C"):
    def body(x, out, row, column):
        tma.fragment(n, dtype).map_coords(taken, x).store_global(out, row, column)

    compute, bits = np.dtype(as_dtype(dtype).compute), held_as(dtype)
    x = random_integers((64, n), 1).astype(compute)
    margins = np.full((shape[0] + 2, 2 * shape[1] + 2), 77, bits)
    expected = {
        "C": np.full(shape, 77, bits),
        "F": np.full(shape, 77, bits, order="F"),
        "strided": margins[1:-1, 1:-1:2],
        "part": margins[1:-1, 1 : shape[1] + 1],
    }[layout]
    memory = cuda.to_device(expected if layout in "CF" else margins)
    out = {"strided": memory[1:-1, 1:-1:2], "part": memory[1:-1, 1 : shape[1] + 1]}.get(
        layout, memory
    )
    at_work(body, x, out, np.int64(row), np.int64(column))
    rows, columns = np.indices((64, n))
    rows, columns = rows + row, columns + column
    inside = (rows >= 0) & (rows < expected.shape[0])
    inside &= (columns >= 0) & (columns < expected.shape[1])
    stored = x.astype(as_dtype(dtype).numpy).view(bits)
    expected[rows[inside], columns[inside]] = stored[inside]
    whole = expected if layout in "CF" else margins  # nothing beside it was written
    np.testing.assert_array_equal(memory.copy_to_host(), whole)


@pytest.mark.parametrize("dtype", ["f32", "i32", "f16", "bf16", "e4m3"])
@pytest.mark.parametrize(
    ("n", "shape", "row", "column", "layout"),
    [
        (64, (128, 128), 64, 64, "C"),
        (48, (70, 61), 20, 30, "C"),  # rows start at odd places, and the block overhangs
        (16, (64, 64), -5, -3, "C"),
        (16, (64, 64), 60, 100, "C"),  # outside
        (32, (64, 66), 0, 1, "C"),
        (32, (64, 80), 3, 4, "part"),
        (32, (64, 48), 3, 4, "strided"),
        (32, (96, 48), 3, 4, "F"),
    ],
)
def test_to_global_memory(dtype, n, shape, row, column, layout):
    check_global(dtype, n, shape, row, column, layout)


@on_gpu
def check_columns(dtype):
    def body(x, out):
        f = tma.fragment(64, dtype).map_coords(taken, x)
        f.columns(16, 32).store_global(out, 0, 0)

    compute = np.dtype(as_dtype(dtype).compute)
    x = random_integers((64, 64), 1).astype(compute)
    out = np.zeros((64, 32), held_as(dtype))
    at_work(body, x, out)
    np.testing.assert_array_equal(values_of(out, dtype), x[:, 16:48])


@pytest.mark.parametrize("dtype", ["f32", "i32", "f16", "bf16", "e4m3"])
def test_some_columns(dtype):
    check_columns(dtype)


# ------------------------------------------------------------------------- whole kernels


def bf16_map(matrix, tile):
    """Return the map of a matrix of bf16, and the memory that it lies in."""
    memory = cuda.to_device(matrix.astype(ml_dtypes.bfloat16).view(np.uint16))
    return tma.tensor_map(memory, tile, dtype=tile.dtype), memory


@on_gpu(limit=60)
def check_matmul(m, n, k, blocks):
    kernel, _ = mma_kernels.matmul()
    x, y = random_integers((m, k), 1), random_integers((n, k), 2)
    (a, a_memory), (b, b_memory) = bf16_map(x, mma_kernels.A), bf16_map(y, mma_kernels.B)
    c = cuda.to_device(np.zeros((m, n), np.float32))
    tiles_m, tiles_n = -(-m // mma_kernels.BM), -(-n // mma_kernels.BN)
    counts = (tiles_m * tiles_n, tiles_n, -(-k // mma_kernels.BK))
    kernel[blocks, 384](a, b, c, *map(np.int32, counts))
    np.testing.assert_array_equal(c.copy_to_host(), x @ y.T)
    assert a_memory is not None and b_memory is not None


@pytest.mark.parametrize(
    ("m", "n", "k", "blocks"),
    [(128, 256, 64, 1), (256, 512, 512, 2), (512, 512, 1024, 3), (200, 300, 136, 4)],
)
def test_a_matmul(m, n, k, blocks):
    check_matmul(m, n, k, blocks)


@on_gpu(limit=60)
def check_attention(queries, keys):
    kernel, _ = mma_kernels.attention()
    depth = mma_kernels.DEPTH
    rng = np.random.default_rng(0)
    shapes = ((queries, depth), (keys, depth), (keys, depth))
    tiles = (mma_kernels.QUERY, mma_kernels.HELD, mma_kernels.HELD)
    arrays = [rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in shapes]
    maps = [bf16_map(array, tile) for array, tile in zip(arrays, tiles)]
    out = cuda.to_device(np.zeros((queries, depth), np.float32))
    scale = np.float32(np.log2(np.e) / np.sqrt(depth))
    kernel[queries // mma_kernels.QUERIES, 384](
        *(each for each, _ in maps), out, np.int32(keys // mma_kernels.KEYS), scale
    )
    q, k, v = (array.astype(np.float64) for array in arrays)
    scores = np.exp2(q @ k.T * scale)
    expected = scores / scores.sum(axis=1, keepdims=True) @ v
    np.testing.assert_allclose(out.copy_to_host(), expected, atol=0.01 * abs(expected).max())


@pytest.mark.parametrize(("queries", "keys"), [(128, 128), (256, 256), (128, 1024)])
def test_attention(queries, keys):
    check_attention(queries, keys)
