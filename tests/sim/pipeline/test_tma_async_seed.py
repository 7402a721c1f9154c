"""Every row of Mojo's tma_async, in the words of numba_tma: for those who come from there.

A test bears the name of the struct, function or method whose use it writes down. The answers in
full are in docs/guide/migration.md.
"""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma import simulator as sim

WORDS_4, WORDS_32 = tma.Tile(4, "u32"), tma.Tile(32, "u32")
WARP = 32


@pytest.fixture(
    autouse=True,
    params=[0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)],
)
def seeded(request):
    sim.seed(request.param)


def numbers(*shape):
    return np.random.default_rng(7).integers(0, 2**31, shape).astype(np.uint32)


@cuda.jit(device=True)
def ready_barrier():
    """Return a barrier of one arrival that all threads know as initialised."""
    barrier = tma.shared_barrier()
    if cuda.threadIdx.x == 0:
        barrier.init(1)
        tma.fence_mbarrier_init()
    cuda.syncthreads()
    return barrier


def move(x, y, tile, at, to):
    """Load a tile of `x` and store it to `y`: the loop of most tests here."""
    SHAPE = tile

    @cuda.jit
    def kernel(x, y):
        tile, barrier = tma.shared_tile(SHAPE), ready_barrier()
        if cuda.threadIdx.x == 0:
            barrier.arrive_expect_tx(SHAPE.nbytes)
            x.load(tile, at, barrier)
            barrier.wait(0)
            y.store(tile, to)
            ptx.cp_async_bulk_commit_group()
            ptx.cp_async_bulk_wait_group(0)

    kernel[1, WARP](tma.tensor_map(x, SHAPE), tma.tensor_map(y, SHAPE))


# ------------------------------------------------------------------------------ structs


def test_TMATensorTile():
    x, y = numbers(24, 32), np.zeros((24, 32), np.uint32)
    move(x, y, tma.Tile((8, 16), "u32"), (20, 16), (4, 0))  # four rows lie past the end
    expected = np.zeros_like(y)
    expected[4:8, :16] = x[20:24, 16:]
    np.testing.assert_array_equal(y, expected)


def test_SharedMemBarrier():
    @cuda.jit
    def kernel(out):
        barrier, box = tma.shared_barrier(), tma.shared_tile(WORDS_4)
        thread = cuda.threadIdx.x
        if thread == 0:
            barrier.init(4)
            tma.fence_mbarrier_init()
        cuda.syncthreads()
        if thread < 4:
            box[thread] = 10 * thread
            barrier.arrive()
        barrier.wait(0)
        if thread == 5:
            for i in range(4):
                out[i] = box[i]

    out = np.zeros(4, np.uint32)
    kernel[1, WARP](out)
    np.testing.assert_array_equal(out, [0, 10, 20, 30])


@pytest.mark.parametrize("stages", [1, 2, 5])
def test_PipelineState(stages):
    @cuda.jit
    def kernel(out):
        state = tma.PipelineState(stages)
        for i in range(len(out)):
            out[i, 0], out[i, 1], out[i, 2] = state.index, state.phase, state.count
            if i % 2:
                state.step()
            else:
                state = state.next()

    out = np.zeros((4 * stages + 1, 3), np.int64)
    kernel[1, 1](out)
    steps = np.arange(len(out))
    expected = np.stack([steps % stages, steps // stages % 2, steps], 1)
    np.testing.assert_array_equal(out, expected)


def test_PipelineState_of_one_stage_toggles_on_each_step():
    @cuda.jit
    def kernel(out):
        state = tma.PipelineState(1)
        for i in range(4):
            state.step()
            out[i] = 10 * state.index + state.phase

    out = np.zeros(4, np.int64)
    kernel[1, 1](out)
    assert out.tolist() == [1, 0, 1, 0]


def test_TMATensorTileArray():
    TILE = tma.Tile((4, 8), "u32")

    @cuda.jit
    def kernel(tiles, out, order):
        tile, barrier = tma.shared_tile(TILE), ready_barrier()
        thread = cuda.threadIdx.x
        if thread == 0:
            barrier.arrive_expect_tx(TILE.nbytes)
            tiles[order[cuda.blockIdx.x]].load(tile, (0, 0), barrier)
        barrier.wait(0)
        out[cuda.blockIdx.x, thread // 8, thread % 8] = tile[thread // 8, thread % 8]

    arrays = numbers(3, 4, 8)
    out = np.zeros((2, 4, 8), np.uint32)
    kernel[2, WARP](
        tma.TensorMapArray([tma.tensor_map(a, TILE) for a in arrays]), out, np.array([2, 0])
    )
    np.testing.assert_array_equal(out, arrays[[2, 0]])


def test_RaggedTensorMap():
    TILE = tma.Tile((4, 8), "u32")

    @cuda.jit
    def kernel(y, starts, lengths):
        tile = tma.shared_tile(TILE)
        block, thread = cuda.blockIdx.x, cuda.threadIdx.x
        tile[thread // 8, thread % 8] = block + 1
        tma.fence_proxy_async()
        cuda.syncthreads()
        if thread == 0:
            # Mojo's store_ragged_tile: as many boxes as cover the sequence; the last is cut off.
            for row in range(0, lengths[block], 4):
                y.sequence(starts[block], lengths[block]).store(tile, (row, 0))
            ptx.cp_async_bulk_commit_group()
            ptx.cp_async_bulk_wait_group(0)

    lengths = np.array([5, 0, 4, 11])
    starts = np.cumsum(lengths) - lengths
    y = np.zeros((lengths.sum(), 8), np.uint32)
    kernel[4, WARP](tma.ragged_tensor_map(y, TILE, encoding="shift"), starts, lengths)
    np.testing.assert_array_equal(y, np.repeat(np.arange(4) + 1, lengths)[:, None] * np.ones(8))


def test_SplitLastDimTMATensorTile():
    # Rows of 80 words for a swizzle that spans 32: the last dimension lies in three slabs.
    TILE = tma.Tile((8, 80), "u32", swizzle=tma.Swizzle.B128)

    @cuda.jit
    def kernel(x, out):
        tile, barrier = tma.shared_tile(TILE), ready_barrier()
        if cuda.threadIdx.x == 0:
            barrier.arrive_expect_tx(TILE.nbytes)
            x.load(tile, (0, 0), barrier)
        barrier.wait(0)
        for i in range(cuda.threadIdx.x, 8 * 80, WARP):
            out[i // 80, i % 80] = tile[i // 80, i % 80]
            if i % 80 % 32 == 0 and i // 80 == 0:
                out[8, i % 80] = tile.address_of((0, i % 80)) - tile.address

    x, out = numbers(8, 80), np.zeros((9, 80), np.uint32)
    x_map = tma.tensor_map(x, TILE)
    assert (x_map.box, TILE.shared_nbytes) == ((8, 32), 8 * 96 * 4)
    kernel[1, WARP](x_map, out)
    np.testing.assert_array_equal(out[:8], x)
    np.testing.assert_array_equal(out[8, ::32], [0, 8 * 128, 16 * 128])


# ---------------------------------------------------------------------------- functions


def test_create_tma_tile():
    x = numbers(16, 64)
    tile = tma.tensor_map(x, tma.Tile((8, 32), "u32", swizzle=tma.Swizzle.B128))
    assert (tile.rank, tile.box, tile.swizzle) == (2, (8, 32), tma.Swizzle.B128)
    with pytest.raises(ValueError, match="16 B"):
        tma.tensor_map(x[:, 1:], tma.Tile((8, 32), "u32"))
    y = np.zeros_like(x)
    move(x, y, tile.tile, (8, 32), (0, 0))
    np.testing.assert_array_equal(y[:8, :32], x[8:, 32:])


def test_create_tma_tile_template():
    TILE = tma.Tile((4, 8), "u32")

    @cuda.jit
    def kernel(template, maps, x, out):
        scratch = tma.shared_tile(tma.DESCRIPTOR)
        tma.edit_map(maps[0], template, scratch, x, x.shape, x.strides)
        maps[0].fence_acquire()
        tile, barrier = tma.shared_tile(TILE), ready_barrier()
        thread = cuda.threadIdx.x
        if thread == 0:
            barrier.arrive_expect_tx(TILE.nbytes)
            maps[0].load(tile, (0, 0), barrier)
        barrier.wait(0)
        out[thread // 8, thread % 8] = tile[thread // 8, thread % 8]

    template = tma.tensor_map(numbers(64, 64), TILE)
    x, out = numbers(3, 16), np.zeros((4, 8), np.uint32)
    kernel[1, WARP](template, tma.TensorMapArray([template]), x, out)
    np.testing.assert_array_equal(out[:3], x[:, :8])
    assert (out[3] == 0).all()  # the extents are those of x


def test_create_split_tma():
    # The first dimension is only known at run time; boxes as wide as the swizzle, or one copy.
    TILE = tma.Tile((8, 64), "u32", swizzle=tma.Swizzle.B128)
    for rows in (8, 11):
        x = numbers(rows, 128)
        boxes, folded = tma.tensor_map(x, TILE), tma.tensor_map(x, TILE, fold=True)
        assert [len(m.copies.starts) for m in (boxes, folded)] == [2, 1]
        for fold in (False, True):
            y = np.zeros_like(x)
            move_split(x, y, TILE, fold)
            expected = np.zeros_like(x)
            expected[: min(8, rows - 2), :64] = x[2:10, 64:]
            np.testing.assert_array_equal(y, expected)


def move_split(x, y, tile, fold):
    SHAPE = tile

    @cuda.jit
    def kernel(x, y):
        tile, barrier = tma.shared_tile(SHAPE), ready_barrier()
        if cuda.threadIdx.x == 0:
            barrier.arrive_expect_tx(SHAPE.nbytes)
            x.load(tile, (2, 64), barrier)
            barrier.wait(0)
            y.store(tile, (0, 0))
            ptx.cp_async_bulk_commit_group()
            ptx.cp_async_bulk_wait_group(0)

    kernel[1, WARP](tma.tensor_map(x, SHAPE, fold=fold), tma.tensor_map(y, SHAPE, fold=fold))


# --------------------------------------------------------------- methods of TMATensorTile


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((9, 12), (4, 8)),
        ((3, 5, 8), (2, 3, 4)),
        ((3, 4, 5, 8), (2, 2, 3, 4)),
        ((2, 3, 4, 5, 8), (1, 2, 2, 3, 4)),
    ],
    ids=["async_copy", "async_copy_3d", "async_copy_4d", "async_copy_5d"],
)
def test_async_copy(shape, tile):
    x, y = numbers(*shape), np.zeros(shape, np.uint32)
    at = (1,) * (len(shape) - 1) + (4,)  # in the array's order; Mojo's coordinates are reversed
    move(x, y, tma.Tile(tile, "u32"), at, (0,) * len(shape))
    taken = x[tuple(slice(a, a + t) for a, t in zip(at, tile))]
    expected = np.zeros_like(x)
    expected[tuple(slice(0, n) for n in taken.shape)] = taken
    np.testing.assert_array_equal(y, expected)


def test_async_copy_elect():
    TILE = tma.Tile((4, 8), "u32")

    @cuda.jit
    def kernel(x, out):
        tile, barrier = tma.shared_tile(TILE), ready_barrier()
        if tma.elect_sync():
            barrier.arrive_expect_tx(TILE.nbytes)
            x.load(tile, (0, 0), barrier)
        barrier.wait(0)
        out[cuda.threadIdx.x // 8, cuda.threadIdx.x % 8] = tile[
            cuda.threadIdx.x // 8, cuda.threadIdx.x % 8
        ]

    x, out = numbers(4, 8), np.zeros((4, 8), np.uint32)
    kernel[1, WARP](tma.tensor_map(x, TILE), out)
    np.testing.assert_array_equal(out, x)


def multicast(shape, slices):
    """Return what each of two blocks got of a tile that is multicast, whole or by slices."""
    SHAPE = tma.Tile(shape, "u32")
    part = (shape[0] // slices, *shape[1:])
    at = (0,) * len(shape)
    FLAT = tma.Tile(SHAPE.size, "u32")

    @cuda.jit
    @tma.cluster(2)
    def kernel(x, out):
        tile, barrier = tma.shared_tile(SHAPE), ready_barrier()
        rank, thread = ptx.cluster_ctarank(), cuda.threadIdx.x
        if thread == 0:
            barrier.arrive_expect_tx(SHAPE.nbytes)  # each receiver expects the whole tile
        tma.cluster_sync()
        if thread == 0:
            if slices == 2:
                tma.load_partitioned(x, tile, at, barrier, rank)
            elif rank == 0:
                x.load(tile, at, barrier, multicast=0b11)
        barrier.wait(0)
        flat = tile.view(FLAT)
        for i in range(thread, FLAT.size, WARP):
            out[rank, i] = flat[i]
        tma.cluster_sync()  # no block exits while copies into it are under way

    x, out = numbers(*shape), np.zeros((2, SHAPE.size), np.uint32)
    kernel[2, WARP](tma.tensor_map(x, tma.Tile(part, "u32")), out)
    return x, out.reshape(2, *shape)


@pytest.mark.parametrize(
    "shape",
    [(4, 8), (2, 4, 8), (2, 3, 4, 8)],
    ids=["async_multicast_load", "async_multicast_load_3d", "async_multicast_load_4d"],
)
def test_async_multicast_load(shape):
    x, got = multicast(shape, 1)
    np.testing.assert_array_equal(got, np.stack([x, x]))


def test_async_multicast_load_partitioned():
    x, got = multicast((8, 8), 2)
    np.testing.assert_array_equal(got, np.stack([x, x]))


def test_async_store():
    TILE = tma.Tile((4, 8), "u32")

    @cuda.jit
    def kernel(y):
        tile, thread = tma.shared_tile(TILE), cuda.threadIdx.x
        tile[thread // 8, thread % 8] = 3 * thread
        tma.fence_proxy_async()  # by all who wrote
        cuda.syncthreads()
        if thread == 0:
            y.store(tile, (2, 0))
            ptx.cp_async_bulk_commit_group()
            ptx.cp_async_bulk_wait_group(0)

    y = np.zeros((6, 8), np.uint32)
    kernel[1, WARP](tma.tensor_map(y, TILE))
    np.testing.assert_array_equal(y[2:], 3 * np.arange(32).reshape(4, 8))
    assert not y[:2].any()


@pytest.mark.parametrize(
    ("op", "expected"), [("add", np.add), ("min", np.minimum), ("max", np.maximum)]
)
def test_async_reduce(op, expected):
    TILE = tma.Tile((4, 8), "u32")

    @cuda.jit
    def kernel(y):
        tile, thread = tma.shared_tile(TILE), cuda.threadIdx.x
        tile[thread // 8, thread % 8] = 7 * thread
        tma.fence_proxy_async()
        cuda.syncthreads()
        if thread == 0:
            y.reduce(tile, (0, 0), op)
            ptx.cp_async_bulk_commit_group()
            ptx.cp_async_bulk_wait_group(0)

    y = np.random.default_rng(1).integers(0, 250, (4, 8)).astype(np.uint32)
    before = y.copy()
    kernel[1, WARP](tma.tensor_map(y, TILE))
    np.testing.assert_array_equal(y, expected(before, 7 * np.arange(32).reshape(4, 8)))


@pytest.mark.parametrize("waits", ["wait_group", "wait_group of 1", "before it is written again"])
def test_commit_group_and_wait_group(waits):
    TILE = tma.Tile(32, "u32")
    read, left = waits.startswith("before"), int(waits.endswith("1"))

    @cuda.jit
    def kernel(y):
        tiles = tma.shared_tile(WORDS_32), tma.shared_tile(TILE)
        thread = cuda.threadIdx.x
        for t in range(4):
            tile = tiles[t % (1 + left)]
            tile[thread] = 100 * t + thread
            tma.fence_proxy_async()
            cuda.syncthreads()
            if thread == 0:
                y.store(tile, (32 * t,))
                ptx.cp_async_bulk_commit_group()
                if read:
                    ptx.cp_async_bulk_wait_group_read(0)
                elif left:
                    ptx.cp_async_bulk_wait_group(1)  # the newest may be under way
                else:
                    ptx.cp_async_bulk_wait_group(0)
            cuda.syncthreads()
        if thread == 0:
            ptx.cp_async_bulk_wait_group(0)

    y = np.zeros(128, np.uint32)
    kernel[1, WARP](tma.tensor_map(y, TILE))
    np.testing.assert_array_equal(y.reshape(4, 32), 100 * np.arange(4)[:, None] + np.arange(32))


def test_prefetch_descriptor():
    TILE = tma.Tile((4, 8), "u32")

    @cuda.jit
    def kernel(x, out):
        if cuda.threadIdx.x == 0:
            x.prefetch()
        tile, barrier = tma.shared_tile(TILE), ready_barrier()
        if cuda.threadIdx.x == 0:
            barrier.arrive_expect_tx(TILE.nbytes)
            x.load(tile, (0, 0), barrier)
        barrier.wait(0)
        out[cuda.threadIdx.x] = tile[cuda.threadIdx.x // 8, cuda.threadIdx.x % 8]

    x, out = numbers(4, 8), np.zeros(32, np.uint32)
    kernel[1, WARP](tma.tensor_map(x, TILE), out)
    np.testing.assert_array_equal(out.reshape(4, 8), x)


def test_descriptor():
    """A launch passes the encoded map; the simulator has none, and copies all the same."""
    x = tma.tensor_map(numbers(4, 8), tma.Tile((4, 8), "u32"))
    assert x.value is None and x.tile.nbytes == 128


def test_async_copy_gather4():
    """Also gather4_tile_bytes and async_copy_gather4_tile: all rows of a tile, by one call."""
    TILE = tma.Tile((8, 16), "u32")
    ROWS = (3, 19, 0, 7, 7, 11, 2, 5)

    @cuda.jit
    def kernel(x, listed, out):
        tile, barrier = tma.shared_tile(TILE), ready_barrier()
        thread = cuda.threadIdx.x
        for turn in range(2):
            if thread == 0:
                barrier.arrive_expect_tx(TILE.nbytes)
                if turn == 0:
                    x.gather(tile, ROWS, 16, barrier)
                else:
                    tma.gather_rows(tile, x, listed, barrier, 16)
            barrier.wait(turn)
            for i in range(thread, 128, WARP):
                out[turn, i // 16, i % 16] = tile[i // 16, i % 16]
            tma.fence_proxy_async()
            cuda.syncthreads()

    x, out = numbers(20, 32), np.zeros((2, 8, 16), np.uint32)
    kernel[1, WARP](tma.gather_map(x, TILE), np.array(ROWS), out)
    np.testing.assert_array_equal(out, [x[list(ROWS), 16:]] * 2)


def test_TMATensorTileIm2col():
    """A row of a 3 x 3 convolution's matrix for one offset of the filter."""
    TILE = tma.Tile((16, 8), "u32")

    @cuda.jit
    def kernel(x, out, low):
        tile, barrier = tma.shared_tile(TILE), ready_barrier()
        thread = cuda.threadIdx.x
        if thread == 0:
            barrier.arrive_expect_tx(TILE.nbytes)
            x.load_im2col(tile, (0, low[0], low[1], 0), (1, 2), barrier)
        barrier.wait(0)
        if thread < 16:
            for c in range(8):
                out[thread, c] = tile[thread, c]

    x, out = numbers(1, 4, 4, 8), np.zeros((16, 8), np.uint32)
    x_map = tma.im2col_map(x, TILE, filter=(3, 3), padding=((1, 1), (1, 1)))
    kernel[1, WARP](x_map, out, x_map.pixel_box.lower)
    padded = np.pad(x[0], ((1, 1), (1, 1), (0, 0)))
    np.testing.assert_array_equal(out, padded[1:5, 2:6].reshape(16, 8))


# ---------------------------------------------------------------- the edits of a tensormap


EDITED = tma.Tile((2, 8), "u32")


@cuda.jit(device=True)
def load_edited(map_, out):
    """Acquire a map that a kernel has edited, and load its first tile."""
    map_.fence_acquire()
    tile, barrier = tma.shared_tile(EDITED), ready_barrier()
    thread = cuda.threadIdx.x
    if thread == 0:
        barrier.arrive_expect_tx(EDITED.nbytes)
        map_.load(tile, (0, 0), barrier)
    barrier.wait(0)
    if thread < 16:
        out[thread // 8, thread % 8] = tile[thread // 8, thread % 8]


def edited(by_hand, x):
    template = tma.tensor_map(numbers(32, 16), EDITED)
    out = np.zeros((2, 8), np.uint32)
    cuda.jit(by_hand)[1, WARP](template, tma.TensorMapArray([template]), x, out)
    return out


def test_tensormap_edits():
    """smem_tensormap_init, replace_..._in_shared_mem, tensormap_cp_fence_release, ..._acquire."""

    def kernel(template, maps, x, out):
        scratch = tma.shared_tile(tma.DESCRIPTOR)
        # Copies the template, replaces, lets the warp meet, copies back and releases.
        tma.edit_map(maps[0], template, scratch, x, x.shape, x.strides)
        load_edited(maps[0], out)

    x = numbers(1, 12)  # one row less than the tile has
    out = edited(kernel, x)
    np.testing.assert_array_equal(out[0], x[0, :8])
    assert not out[1].any()


def test_replace_tensormap_global_address():
    def kernel(template, maps, x, out):
        scratch = tma.shared_tile(tma.DESCRIPTOR)
        tma.edit_map(maps[0], template, scratch, x)  # extents and strides stay
        load_edited(maps[0], out)

    x = numbers(32, 16)[::-1].copy()
    np.testing.assert_array_equal(edited(kernel, x), x[:2, :8])


def test_replace_tensormap_global_dim_strides():
    def kernel(template, maps, x, out):
        scratch = tma.shared_tile(tma.DESCRIPTOR)
        tma.edit_map(maps[0], template, scratch, x, (2, 8), (128,))  # every second row, in bytes
        load_edited(maps[0], out)

    x = numbers(32, 16)
    np.testing.assert_array_equal(edited(kernel, x), x[0:4:2, :8])


def test_tensormap_fence_acquire():
    def kernel(template, maps, x, out):
        scratch = tma.shared_tile(tma.DESCRIPTOR)
        tma.edit_map(maps[0], template, scratch, x)
        tile, barrier = tma.shared_tile(EDITED), ready_barrier()
        if cuda.threadIdx.x == 0:
            maps[0].load(tile, (0, 0), barrier)  # not acquired

    with pytest.raises(sim.MissingFence, match="call fence_acquire"):
        edited(kernel, numbers(32, 16))


def test_the_rows_of_replace_tensormap_global_dim_strides_and_fence_acquire():
    def kernel(template, maps, stride, out):
        scratch, thread = tma.shared_tile(tma.DESCRIPTOR), cuda.threadIdx.x
        tma.edit_map(maps[0], template, scratch)
        if thread == 0:
            ptx.tensormap_replace_global_stride(scratch, "shared::cta", 0, stride)
        cuda.syncwarp()
        ptx.tensormap_cp_fenceproxy(maps[0], scratch, "gpu")
        cuda.syncwarp()
        tile, barrier = tma.shared_tile(EDITED), ready_barrier()
        if thread == 0:
            ptx.fence_proxy_tensormap_acquire(maps[0], "gpu")
            barrier.arrive_expect_tx(EDITED.nbytes)
            maps[0].load(tile, (0, 0), barrier)
        barrier.wait(0)
        if thread < 16:
            out[thread // 8, thread % 8] = tile[thread // 8, thread % 8]

    x = numbers(32, 16)  # the template's array
    np.testing.assert_array_equal(edited(kernel, 128), x[0:4:2, :8])


def test_smem_tensormap_init_and_tensormap_cp_fence_release():
    """The steps that edit_map takes, one by one."""

    def kernel(template, maps, address, out):
        scratch = tma.shared_tile(tma.DESCRIPTOR)
        tma.edit_map(maps[0], template, scratch)  # smem_tensormap_init, and back
        if cuda.threadIdx.x == 0:
            ptx.tensormap_replace_global_address(scratch, "shared::cta", address)
            ptx.tensormap_replace_global_dim(scratch, "shared::cta", 1, 1)  # innermost is 0
        cuda.syncwarp()
        ptx.tensormap_cp_fenceproxy(maps[0], scratch, "gpu")
        cuda.syncwarp()
        load_edited(maps[0], out)

    x = numbers(32, 16)[::-1].copy()
    out = edited(kernel, x.ctypes.data)
    np.testing.assert_array_equal(out[0], x[0, :8])
    assert not out[1].any()


def test_replace_tensormap_global_address_in_gmem_and_tensormap_fence_release():
    def kernel(template, maps, address, out):
        if cuda.threadIdx.x == 0:
            ptx.tensormap_replace_global_address(maps[0], "global", address)
            ptx.fence_proxy_tensormap_release("gpu")
        cuda.syncwarp()
        load_edited(maps[0], out)

    x = numbers(32, 16)[::-1].copy()
    np.testing.assert_array_equal(edited(kernel, x.ctypes.data), x[:2, :8])


def test_tensormap_replace_address_on_the_host():
    x, y = numbers(2, 8, 16)
    tile = tma.tensor_map(x, EDITED)
    assert tile.replace_address(y).address == y.ctypes.data


# ------------------------------------------------------------- methods of SharedMemBarrier


def on_one_barrier(body, threads, *outs, cluster=0):
    kernel = cuda.jit(tma.cluster(cluster)(body) if cluster else body)
    kernel[max(1, cluster), threads](*outs)


def test_init_and_arrive():
    def kernel(out):
        barrier = tma.shared_barrier()
        if cuda.threadIdx.x == 0:
            barrier.init(3)
            tma.fence_mbarrier_init()
            for i in range(3):
                out[i] = barrier.pending_count(barrier.arrive())
            out[3] = barrier.test_wait(0)

    out = np.zeros(4, np.int64)
    on_one_barrier(kernel, 1, out)
    assert out.tolist() == [3, 2, 1, 1]


def test_expect_bytes():
    # Mojo's expect_bytes arrives: it is arrive_expect_tx. Our expect_tx does not arrive.
    def kernel(out):
        barrier = ready_barrier()
        barrier.expect_tx(16)
        out[0] = barrier.test_wait(0)
        barrier.arrive_expect_tx(16)
        out[1] = barrier.test_wait(0)
        barrier.complete_tx(32)
        out[2] = barrier.test_wait(0)

    out = np.full(3, -1)
    on_one_barrier(kernel, 1, out)
    assert out.tolist() == [0, 0, 1]


def test_expect_bytes_relaxed():
    def kernel(out):
        barrier = ready_barrier()
        out[0] = barrier.pending_count(
            ptx.mbarrier_arrive_expect_tx(barrier, 16, semantics="relaxed.cta")
        )
        barrier.complete_tx(16)
        barrier.wait(0)

    out = np.zeros(1, np.int64)
    on_one_barrier(kernel, 1, out)
    assert out[0] == 1


def test_arrive_and_expect_bytes():
    """Block 1 arrives at block 0's barrier and lets it expect the bytes that it sends there."""

    def kernel(out):
        barrier, word = ready_barrier(), tma.shared_tile(WORDS_4)
        tma.cluster_sync()
        if ptx.cluster_ctarank() == 1:
            theirs = ptx.mapa(barrier, 0)
            ptx.mbarrier_arrive_expect_tx_remote(theirs, 4)
            ptx.st_async_b32(ptx.mapa(word, 0), 41, theirs)
        else:
            barrier.wait(0)
            out[0] = word[0]
        tma.cluster_sync()

    out = np.zeros(1, np.int64)
    on_one_barrier(kernel, 1, out, cluster=2)
    assert out[0] == 41


def test_arrive_cluster():
    def kernel(out):
        barrier = ready_barrier()
        rank = ptx.cluster_ctarank()
        tma.cluster_sync()
        ptx.mbarrier_arrive_remote(ptx.mapa(barrier, 1 - rank), None, "release.cluster")
        while not ptx.mbarrier_try_wait_parity(barrier, 0, None, "acquire.cluster"):
            pass
        out[rank] = 1
        tma.cluster_sync()

    out = np.zeros(2, np.int64)
    on_one_barrier(kernel, 1, out, cluster=2)
    assert out.tolist() == [1, 1]


def test_wait():
    def kernel(out):
        barrier, box = ready_barrier(), tma.shared_tile(WORDS_4)
        barrier.wait(1)  # on a fresh barrier parity 1 passes at once, and parity 0 blocks
        if cuda.threadIdx.x == 1:
            box[0] = 5
            barrier.arrive()
        barrier.wait(0)
        if cuda.threadIdx.x == 0:
            out[0] = box[0]

    out = np.zeros(1, np.int64)
    on_one_barrier(kernel, 2, out)
    assert out[0] == 5


def test_wait_acquire_and_wait_relaxed():
    def kernel(out):
        barrier, box = ready_barrier(), tma.shared_tile(WORDS_4)
        if cuda.threadIdx.x == 1:
            box[0] = 6
            barrier.arrive()
        while not ptx.mbarrier_try_wait_parity(barrier, 0, semantics="relaxed.cta"):
            pass  # says when, orders nothing
        while not ptx.mbarrier_try_wait_parity(barrier, 0, semantics="acquire.cta"):
            pass
        if cuda.threadIdx.x == 0:
            out[0] = box[0]

    out = np.zeros(1, np.int64)
    on_one_barrier(kernel, 2, out)
    assert out[0] == 6


def test_try_wait():
    def kernel(out):
        barrier = ready_barrier()
        out[0] = barrier.try_wait(0)
        barrier.arrive()
        out[1] = barrier.try_wait(0)

    out = np.full(2, -1)
    on_one_barrier(kernel, 1, out)
    assert out.tolist() == [0, 1]


def test_complete_transaction():
    """Credits the bytes of a load that is left out, here and in another block."""
    TILE = SAME = tma.Tile((4, 8), "u32")

    def kernel(x, out):
        tiles = tma.shared_tile(TILE), tma.shared_tile(SAME)
        barrier, thread = ready_barrier(), cuda.threadIdx.x
        rank = ptx.cluster_ctarank()
        if thread == 0:
            barrier.arrive_expect_tx(3 * TILE.nbytes)
        tma.cluster_sync()
        if thread == 0:
            x.load(tiles[0], (4 * rank, 0), barrier)
            barrier.complete_tx(TILE.nbytes)
            ptx.mbarrier_complete_tx_remote(ptx.mapa(barrier, 1 - rank), TILE.nbytes)
        barrier.wait(0)
        out[rank, thread] = tiles[0][thread // 8, thread % 8]
        tma.cluster_sync()

    x, out = numbers(8, 8), np.zeros((2, 32), np.uint32)
    on_one_barrier(kernel, WARP, tma.tensor_map(x, TILE), out, cluster=2)
    np.testing.assert_array_equal(out.reshape(8, 8), x)


def test_unsafe_ptr():
    def kernel(out):
        barrier = ready_barrier()
        ptx.mbarrier_arrive(barrier.address)  # every row takes the address as well
        out[0] = barrier.test_wait(0)

    out = np.zeros(1, np.int64)
    on_one_barrier(kernel, 1, out)
    assert out[0] == 1
