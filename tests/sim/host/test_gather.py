"""Rows by number in the simulator: values, what lies outside, and every error."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import Swizzle, Tile, gather_map, ptx
from numba_tma.simulator import (
    BadCoordinate,
    BadOperand,
    MissingFence,
    UninitializedRead,
    WrongByteCount,
)

RNG = np.random.default_rng(0)
NUMBER_TILE, BYTES_32, BYTES_64 = Tile((8,), "i32"), Tile((32,), "u8"), Tile((64,), "u8")
ROWS = (3, 19, 0, -1, 7, 7, 20, 2**31 - 1)  # 20 rows: the last two and -1 lie outside


def make_gather(tile, listed="tuple"):
    @cuda.jit
    def kernel(x, numbers, column, out):
        held, full = tma.shared_tile(tile), tma.shared_barrier()
        table = tma.shared_tile(NUMBER_TILE)
        thread = cuda.threadIdx.x
        if thread < 8:
            table[thread] = numbers[thread]
        if thread == 0:
            full.init(1)
            tma.fence_mbarrier_init()
        cuda.syncthreads()
        if thread == 0:
            full.arrive_expect_tx(tile.nbytes)
            if listed == "tuple":
                x.prefetch_rows(ROWS, column)
                x.gather(held, ROWS, column, full)
            elif listed == "global":
                tma.gather_rows(held, x, numbers, full, column)
            else:
                x.gather(held, table, column, full)
        full.wait(0)
        for i in range(thread, tile.shape[0] * tile.shape[1], 32):
            row, col = i // tile.shape[1], i % tile.shape[1]
            out[row, col] = held[row, col]

    return kernel


TILES = [
    Tile((8, 64), "f16", Swizzle.B128),
    Tile((8, 128), "f16", Swizzle.B128),  # two slabs
    Tile((8, 32), "f16", Swizzle.B64),
    Tile((8, 8), "f32", Swizzle.B32),
    Tile((8, 8), "f32"),
    Tile((8, 64), "f16", Swizzle.B128_ATOM_32B),
]


@pytest.mark.parametrize("listed", ["tuple", "global", "shared"])
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_rows_arrive_in_the_order_of_their_numbers(tile, listed):
    x = RNG.standard_normal((20, 144)).astype(tile.dtype.numpy)
    for column, fill in ((16, "zeros"), (-8, "nan"), (136, "zeros")):
        out = np.full(tile.shape, 9, np.float32)
        source = gather_map(x, tile, oob_fill=fill)
        make_gather(tile, listed)[1, 32](source, np.array(ROWS, np.int64), column, out)
        image = tma.reference_gather(x, tile, ROWS, column, oob_fill=fill)
        at = tile.offset(*np.indices(tile.shape)) // tile.itemsize
        expected = image.view(tile.dtype.numpy)[at].astype(np.float32)
        np.testing.assert_array_equal(out, expected)


def test_the_reference_is_fancy_indexing():
    x = np.arange(20 * 16, dtype=np.float32).reshape(20, 16)
    tile = Tile((4, 8), "f32")
    image = tma.reference_gather(x, tile, (3, 19, -1, 5), 12)
    expected = np.zeros((4, 8), np.float32)
    expected[[0, 1, 3], :4] = x[[3, 19, 5], 12:]
    np.testing.assert_array_equal(image.view(np.float32).reshape(4, 8), expected)
    y = np.zeros_like(x)
    tma.reference_scatter(y, image, tile, (1, 30, 2, 0), 4)
    np.testing.assert_array_equal(y[[1, 2, 0], 4:12], expected[[0, 2, 3]])
    assert not y[3:].any()


def make_scatter(tile, fenced=True, by_bulk=False):
    columns = tile.shape[1]

    @cuda.jit
    def kernel(y, numbers, column, count):
        held = tma.shared_tile(tile)
        for i in range(cuda.threadIdx.x, 8 * columns, 32):
            held[i // columns, i % columns] = i
        if fenced:
            tma.fence_proxy_async()
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            if by_bulk:
                tma.scatter_rows(held, y, numbers, column, count)
            else:
                tma.scatter_rows(held, y, numbers, column)
            ptx.cp_async_bulk_commit_group()
            ptx.cp_async_bulk_wait_group(0)

    return kernel


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_rows_are_stored_by_their_numbers(tile):
    y = np.full((20, 144), -1, tile.dtype.numpy)
    numbers = np.array([3, 19, 0, 20, 7, 8, 2**31 - 1, 1])
    make_scatter(tile)[1, 32](gather_map(y, tile), numbers, 16, None)
    expected = np.full_like(y, -1)
    values = np.arange(8 * tile.shape[1]).reshape(tile.shape)
    inside = numbers < 20
    expected[numbers[inside], 16 : 16 + tile.shape[1]] = values[inside]
    np.testing.assert_array_equal(y, expected)


PLAIN = Tile((8, 8), "f32")


@pytest.mark.parametrize(("first", "count"), [(2, 5), (0, 8), (12, 100), (19, 1), (5, 0)])
def test_the_row_loop_ends_with_the_sequence(first, count):
    y = np.full((20, 16), -1, np.float32)
    make_scatter(PLAIN, by_bulk=True)[1, 32](y, first, 4, count)
    expected = np.full_like(y, -1)
    values = np.arange(64).reshape(8, 8)
    expected[first : first + count, 4:12] = values[: min(count, 8)]
    np.testing.assert_array_equal(y, expected)


@cuda.jit
def gather_plain(x, numbers, column, expects):
    held, full = tma.shared_tile(PLAIN), tma.shared_barrier()
    if cuda.threadIdx.x == 0:
        full.init(1)
        tma.fence_mbarrier_init()
        full.arrive_expect_tx(expects)
        tma.gather_rows(held, x, numbers, full, column)
    full.wait(0)


X = np.zeros((20, 16), np.float32)
NUMBERS = np.arange(8)


@pytest.mark.parametrize(
    ("source", "numbers", "column", "error", "text"),
    [
        (gather_map(X, PLAIN), NUMBERS, 2, BadOperand, "the column is 2, which is 8 B into"),
        (gather_map(X, PLAIN), (1, 2, 3), 0, BadOperand, "3 row numbers for a tile of 8 rows"),
        (gather_map(X, PLAIN), NUMBERS + 2**31, 0, BadCoordinate, "number of row 0 is 2147483648"),
        (tma.tensor_map(X, PLAIN), NUMBERS, 0, BadOperand, "takes a map of gather_map, or the ar"),
        (gather_map(X, Tile((4, 8), "f32")), NUMBERS, 0, BadOperand, "the map copies Tile"),
        (X, NUMBERS + 13, 0, BadCoordinate, "row 20, columns 0 to 7, is not in the array"),
        (X, NUMBERS, 12, BadCoordinate, "columns 12 to 19, is not in the array"),
        (X, NUMBERS - 1, 0, BadCoordinate, "row -1"),
        (X, NUMBERS, 1, BadOperand, "global addresses must be multiples of 16"),
        (X, (1, 2), 0, BadOperand, "2 row numbers for Tile"),
        (X.astype("f8"), NUMBERS, 0, BadOperand, "the array has 8 B an element"),
        (X[0], NUMBERS, 0, BadOperand, "both are matrices"),
    ],
)
def test_what_a_gather_refuses(source, numbers, column, error, text):
    with pytest.raises(error, match=text):
        gather_plain[1, 1](source, numbers, column, PLAIN.nbytes)


@pytest.mark.parametrize("source", [gather_map(X, PLAIN), X], ids=["map", "array"])
def test_the_bytes_are_those_of_the_tile(source):
    gather_plain[1, 1](source, NUMBERS, 4, PLAIN.nbytes)
    with pytest.raises(WrongByteCount):
        gather_plain[1, 1](source, NUMBERS, 4, PLAIN.nbytes - 32)


def test_rows_begin_at_column_0():
    x = np.arange(320, dtype=np.float32).reshape(20, 16)
    y = np.full_like(x, -1)

    @cuda.jit
    def kernel(x, y, numbers):
        held, full = tma.shared_tile(PLAIN), tma.shared_barrier()
        if cuda.threadIdx.x == 0:
            full.init(1)
            tma.fence_mbarrier_init()
            full.arrive_expect_tx(PLAIN.nbytes)
            tma.gather_rows(held, x, numbers, full)
            full.wait(0)
            tma.scatter_rows(held, y, numbers)
            ptx.cp_async_bulk_commit_group()
            ptx.cp_async_bulk_wait_group(0)

    kernel[1, 32](x, y, NUMBERS)
    expected = np.full_like(x, -1)
    expected[NUMBERS, :8] = x[NUMBERS, :8]
    np.testing.assert_array_equal(y, expected)


def test_what_a_scatter_refuses():
    y = gather_map(X.copy(), PLAIN)
    with pytest.raises(BadCoordinate, match="starts inside or past the tensor"):
        make_scatter(PLAIN)[1, 32](y, NUMBERS - 1, 0, None)
    with pytest.raises(BadOperand, match="the number of row 2 is -1; a store never starts"):
        make_scatter(PLAIN)[1, 32](y, (0, 1, -1, 2, 3, 4, 5, 6), 0, None)
    with pytest.raises(MissingFence):
        make_scatter(PLAIN, fenced=False)[1, 32](y, NUMBERS, 0, None)
    with pytest.raises(BadOperand, match="count=...\\) is for an array"):
        make_scatter(PLAIN, by_bulk=True)[1, 32](y, NUMBERS, 0, 3)
    swizzled = Tile((8, 8), "f32", Swizzle.B32)
    with pytest.raises(BadOperand, match="is swizzled, .* pass gather_map"):
        make_scatter(swizzled)[1, 32](X.copy(), NUMBERS, 0, None)
    with pytest.raises(BadOperand, match="a row of the tensor is 15 f32"):
        make_scatter(PLAIN)[1, 32](gather_map(X[:, :15], PLAIN), NUMBERS, 0, None)


@cuda.jit
def store_masked(y, mask):
    tile = tma.shared_tile(BYTES_64)
    for i in range(cuda.threadIdx.x, 64, 32):
        tile[i] = i
    tma.fence_proxy_async()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        ptx.cp_async_bulk_store_masked(y, tile, 64, mask)
        ptx.cp_async_bulk_commit_group()
        ptx.cp_async_bulk_wait_group(0)


def test_a_masked_store_leaves_the_other_bytes_of_each_16():
    y = np.full(64, 200, np.uint8)
    store_masked[1, 32](y, 0b1000_0000_0000_0101)
    expected = np.full((4, 16), 200, np.uint8)
    expected[:, [0, 2, 15]] = np.arange(64).reshape(4, 16)[:, [0, 2, 15]]
    np.testing.assert_array_equal(y, expected.reshape(-1))


@cuda.jit
def load_ignoring(x, left, right, out):
    """Copy 32 bytes, and read those that are not ignored."""
    tile, full = tma.shared_tile(BYTES_32), tma.shared_barrier()
    if cuda.threadIdx.x == 0:
        full.init(1)
        tma.fence_mbarrier_init()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        full.arrive_expect_tx(32)
        ptx.cp_async_bulk_load_ignore_oob(tile, x, 32, left, right, full)
    full.wait(0)
    i = cuda.threadIdx.x
    if left <= i < out.size:
        out[i] = tile[i]


@pytest.mark.parametrize(("left", "right"), [(0, 0), (0, 3), (15, 15), (7, 0)])
def test_a_row_whose_ends_do_not_exist(left, right):
    x = np.arange(100, 132, dtype=np.uint8)[: 32 - right]
    out = np.zeros(32 - right, np.uint8)
    load_ignoring[1, 32](x, left, right, out)
    expected = x.copy()
    expected[:left] = 0
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(
    ("right", "size", "error", "text"),
    [
        (16, 32, BadOperand, "ignored_right is 16; 0 to 15 bytes can be ignored"),
        (3, 28, BadOperand, "src has 28 bytes, and 32 - 3 are read: ignore up to 15 bytes more"),
        (3, 32, UninitializedRead, "before|never"),  # `out` asks for bytes that are indeterminate
    ],
)
def test_ignored_bytes_that_are_used(right, size, error, text):
    with pytest.raises(error, match=text):
        load_ignoring[1, 32](np.zeros(size, np.uint8), 0, right, np.zeros(32, np.uint8))


@pytest.mark.parametrize("method", ["gather", "scatter", "prefetch_rows"])
@pytest.mark.parametrize(("row", "column"), [(2**31, 0), (-(2**31) - 1, 0), (3, 2), (3, 2**31)])
def test_every_copy_checks_the_numbers_that_only_run_time_knows(method, row, column):
    @cuda.jit
    def kernel(x, numbers):
        held, full = tma.shared_tile(PLAIN), tma.shared_barrier()
        if cuda.threadIdx.x == 0:
            full.init(1)
            rows = (numbers[0],) * 8
            if method == "gather":
                x.gather(held, rows, numbers[1], full)
            elif method == "scatter":
                x.scatter(held, rows, numbers[1])
            else:
                x.prefetch_rows(rows, numbers[1])

    source = gather_map(np.zeros((20, 16), np.float32), PLAIN)
    with pytest.raises((BadCoordinate, BadOperand), match="the number of row 0|the column"):
        kernel[1, 1](source, np.array([row, column]))
