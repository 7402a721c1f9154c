"""Rows by number on the GPU: loads of one row on Hopper, gather4 on Blackwell, and bulk copies."""

import numpy as np
import pytest
from numba import cuda
from numba.core.errors import TypingError

import numba_tma as tma
from numba_tma import Swizzle, Tile, gather_map
from numba_tma.backend.numba_cuda.functions import toolkit
from tests.gpu.worker import on_gpu

THREADS = 128
ROWS, COLUMNS = 300, 320
TRIES = 100_000
NARROW = Tile((12, 32), "f32")
TILES = [
    Tile((8, 64), "f16", Swizzle.B128),
    Tile((64, 128), "f16", Swizzle.B128),  # two slabs
    Tile((32, 80), "f32", Swizzle.B128),  # three slabs, the last padded
    Tile((16, 64), "f16"),
    NARROW,
]


def make_gather(tile, listed):
    """Return a kernel whose block b copies the rows ``numbers[b]``."""
    rows = tile.shape[0]
    table_tile = Tile((rows,), "i32")

    @cuda.jit
    def kernel(x, numbers, column, image, failed):
        held, full = tma.shared_tile(tile), tma.shared_barrier()
        table = tma.shared_tile(table_tile)
        thread, b = cuda.threadIdx.x, cuda.blockIdx.x
        for i in range(thread, rows, THREADS):
            table[i] = numbers[b, i]
        if thread == 0:
            full.init(1)
            tma.fence_mbarrier_init()
        cuda.syncthreads()
        if thread == 0:
            full.arrive_expect_tx(tile.nbytes)
            if listed == "shared":
                x.prefetch_rows(table, column)
                x.gather(held, table, column, full, tma.CachePolicy.EVICT_FIRST)
            else:
                tma.gather_rows(held, x, numbers[b], full, column)
            done = False
            for _ in range(TRIES):
                if full.test_wait(0):
                    done = True
                    break
            if not done:
                failed[0] = 1
        cuda.syncthreads()
        for i in range(thread, rows * tile.shape[1], THREADS):
            row, col = i // tile.shape[1], i % tile.shape[1]
            image[b, row, col] = held[row, col]

    return kernel


def numbers_of(tile, blocks, low, high, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(low, high, (blocks, tile.shape[0])).astype(np.int32)


def expected_rows(host, tile, numbers, column, fill=0):
    result = np.full((*numbers.shape, tile.shape[1]), fill, np.float32)
    columns = np.arange(column, column + tile.shape[1])
    inside = (columns >= 0) & (columns < host.shape[1])
    for at in np.ndindex(*numbers.shape):
        if 0 <= numbers[at] < len(host):
            result[at][inside] = host[numbers[at]][columns[inside]]
    return result


def check(tile, listed, low, high, column, by_array=False, fill="zeros"):
    host = np.random.default_rng(1).standard_normal((ROWS, COLUMNS)).astype(tile.dtype.numpy)
    numbers = numbers_of(tile, 40, low, high)
    x, failed = cuda.to_device(host), cuda.to_device(np.zeros(1, "i4"))
    image = cuda.to_device(np.full((40, *tile.shape), 9, np.float32))
    source = x if by_array else gather_map(x, tile, oob_fill=fill)
    make_gather(tile, listed)[40, THREADS](source, cuda.to_device(numbers), column, image, failed)
    assert not failed.copy_to_host()[0], "a gather did not complete"
    value = np.nan if fill == "nan" else 0
    expected = expected_rows(host, tile, numbers, column, value)
    np.testing.assert_array_equal(image.copy_to_host(), expected)


@pytest.mark.parametrize("listed", ["shared", "global"])
@pytest.mark.parametrize("tile", TILES, ids=str)
@on_gpu(limit=60)
def test_rows_arrive_in_the_order_of_their_numbers(tile, listed):
    check(tile, listed, 0, ROWS, 16)


@pytest.mark.parametrize(("column", "fill"), [(-16, "zeros"), (304, "nan"), (0, "nan")])
@pytest.mark.parametrize("tile", TILES[:2], ids=str)
@on_gpu(limit=60)
def test_what_lies_outside_is_filled(tile, column, fill):
    check(tile, "global", -40, ROWS + 40, column, fill=fill)


@pytest.mark.parametrize("tile", TILES[3:], ids=str)
@on_gpu(limit=60)
def test_rows_of_an_array_are_copied_one_by_one(tile):
    check(tile, "global", 0, ROWS, 32, by_array=True)


def make_tuple(tile):
    @cuda.jit
    def kernel(x, y, first):
        held, full = tma.shared_tile(tile), tma.shared_barrier()
        if cuda.threadIdx.x == 0:
            full.init(1)
            tma.fence_mbarrier_init()
            full.arrive_expect_tx(tile.nbytes)
            x.gather(held, (first, 299, 3, 3, 300, -1, first + 1, 0), 64, full)
            full.wait(0)
            tma.scatter_rows(held, y, (7, 6, 5, 4, 300, 2**31 - 1, first, 0), 128)
            tma.ptx.cp_async_bulk_commit_group()
            tma.ptx.cp_async_bulk_wait_group(0)

    return kernel


@on_gpu
def test_a_tuple_names_rows_and_a_scatter_stores_them():
    tile = TILES[0]
    host = np.random.default_rng(2).standard_normal((ROWS, COLUMNS)).astype(np.float16)
    x, y = cuda.to_device(host), cuda.to_device(np.full_like(host, 9))
    make_tuple(tile)[1, 32](gather_map(x, tile), gather_map(y, tile), 40)
    expected = np.full_like(host, 9)
    for source, target in ((40, 7), (299, 6), (3, 5), (3, 4), (41, 40), (0, 0)):
        expected[target, 128:192] = host[source, 64:128]
    np.testing.assert_array_equal(y.copy_to_host(), expected)


def make_scatter(tile, count):
    rows, columns = tile.shape

    @cuda.jit
    def kernel(y, numbers, column):
        held, b = tma.shared_tile(tile), cuda.blockIdx.x
        for i in range(cuda.threadIdx.x, rows * columns, THREADS):
            held[i // columns, i % columns] = b * rows + i // columns
        tma.fence_proxy_async()
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            tma.scatter_rows(held, y, numbers[b], column, count)
            tma.ptx.cp_async_bulk_commit_group()
            tma.ptx.cp_async_bulk_wait_group(0)

    return kernel


SCATTERED = TILES[3:] + TILES[:2]
#: Bulk copies know no swizzle, so rows of an array are stored from plain tiles alone.
WAYS = [(tile, True) for tile in SCATTERED] + [(t, False) for t in SCATTERED if not t.swizzle]


@pytest.mark.parametrize(("tile", "by_map"), WAYS, ids=str)
@on_gpu(limit=60)
def test_rows_are_stored_by_their_numbers(tile, by_map):
    rows, columns = tile.shape
    blocks = ROWS // rows
    numbers = np.random.default_rng(3).permutation(ROWS)[: blocks * rows].reshape(blocks, rows)
    count = None if by_map else rows - 3
    if by_map:
        numbers[:, 1] += 1000  # past the end: not stored
    host = np.full((ROWS, COLUMNS), -1, tile.dtype.numpy)
    y = cuda.to_device(host)
    target = gather_map(y, tile) if by_map else y
    make_scatter(tile, count)[blocks, THREADS](target, cuda.to_device(numbers), 32)
    expected = host.copy()
    for block, row in np.ndindex(blocks, rows if by_map else rows - 3):
        if numbers[block, row] < ROWS:
            expected[numbers[block, row], 32 : 32 + columns] = block * rows + row
    np.testing.assert_array_equal(y.copy_to_host(), expected)


@cuda.jit
def store_rows(y, starts, lengths):
    held, s = tma.shared_tile(NARROW), cuda.blockIdx.x
    for i in range(cuda.threadIdx.x, 12 * 32, THREADS):
        held[i // 32, i % 32] = s + 1
    tma.fence_proxy_async()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        for row in range(0, lengths[s], 12):
            tma.scatter_rows(held, y, starts[s] + row, 0, lengths[s] - row)
        tma.ptx.cp_async_bulk_commit_group()
        tma.ptx.cp_async_bulk_wait_group(0)


@on_gpu
def test_the_row_loop_ends_with_each_sequence():
    lengths = np.random.default_rng(4).integers(0, 40, 50).astype(np.int32)
    starts = np.cumsum([0, *lengths[:-1] + 1]).astype(np.int32)
    y = cuda.to_device(np.zeros((int(starts[-1] + lengths[-1]) + 1, 32), np.float32))
    store_rows[50, THREADS](y, cuda.to_device(starts), cuda.to_device(lengths))
    expected = np.zeros(y.shape, np.float32)
    for s, (start, length) in enumerate(zip(starts, lengths)):
        expected[start : start + length] = s + 1
    np.testing.assert_array_equal(y.copy_to_host(), expected)


BYTES = Tile((48,), "u8")


@cuda.jit
def load_ignoring(x, left, right, out, failed):
    """Copy 48 bytes a block, and write out those that are not ignored."""
    tile, full = tma.shared_tile(BYTES), tma.shared_barrier()
    thread, b = cuda.threadIdx.x, cuda.blockIdx.x
    if thread == 0:
        full.init(1)
        tma.fence_mbarrier_init()
    cuda.syncthreads()
    if thread == 0:
        full.arrive_expect_tx(BYTES.nbytes)
        tma.ptx.cp_async_bulk_load_ignore_oob(tile, x[48 * b :], 48, left, right, full)
        done = False
        for _ in range(TRIES):
            if full.test_wait(0):
                done = True
                break
        if not done:
            failed[0] = 1
    cuda.syncthreads()
    if left <= thread < 48 - right:
        out[b, thread] = tile[thread]


@on_gpu
@pytest.mark.parametrize(("left", "right"), [(0, 0), (3, 0), (0, 15), (15, 1)])
def test_bytes_out_of_bounds_are_ignored(left, right):
    """The last block's ignored bytes lie behind the array. Before CUDA 13.2 it is refused."""
    x = np.random.default_rng(5).integers(0, 256, 48 * 20 - right).astype(np.uint8)
    out, failed = (
        cuda.to_device(np.zeros((20, 48), np.uint8)),
        cuda.to_device(np.zeros(1, np.int32)),
    )
    if toolkit() < (13, 2):
        with pytest.raises(TypingError, match=r"needs PTX ISA 9\.2"):
            load_ignoring[20, 64](cuda.to_device(x), left, right, out, failed)
        return
    load_ignoring[20, 64](cuda.to_device(x), left, right, out, failed)
    expected = np.zeros(48 * 20, np.uint8)
    expected[: len(x)] = x
    expected = expected.reshape(20, 48)
    expected[:, :left] = expected[:, 48 - right :] = 0
    assert failed.copy_to_host()[0] == 0
    np.testing.assert_array_equal(out.copy_to_host(), expected)
