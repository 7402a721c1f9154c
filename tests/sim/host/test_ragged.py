"""Ragged maps in the simulator: values and errors."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import Tile, ptx, ragged_tensor_map, simulator
from numba_tma.simulator import BadCoordinate, BadOperand

TILE = Tile((4, 8), "f32")
PIPE = tma.TilePipeline(2, x=TILE)


@cuda.jit
def copy_sequences(x, y, starts, lengths):
    pipe = PIPE.start()
    start, length = starts[cuda.blockIdx.x], lengths[cuda.blockIdx.x]
    tiles = (length + 3) // 4
    if pipe.is_producer():
        for t, stage in pipe.produce(0, tiles, 1):
            x.sequence(start, length).load(stage.x, (4 * t, 0), stage.barrier)
    else:
        for t, stage in pipe.consume(0, tiles, 1):
            row, column = cuda.threadIdx.x // 8, cuda.threadIdx.x % 8  # one consumer warp
            stage.x[row, column] += 1.0
            pipe.store(y.sequence(start, length), stage.x, (4 * t, 0))


@pytest.mark.parametrize("encoding", ["wrap", "shift"])
def test_sequences_are_copied_and_nothing_beside_them(encoding):
    rng = np.random.default_rng(0)
    for seed in range(3):
        simulator.seed(seed)
        lengths = rng.integers(0, 11, 5)
        starts = np.cumsum([0, *lengths[:-1] + 2])  # two rows between them
        x = rng.standard_normal((int(starts[-1] + lengths[-1]) + 3, 8)).astype(np.float32)
        y = np.full_like(x, -7)
        source = ragged_tensor_map(x, TILE)
        copy_sequences[5, 64](
            source, ragged_tensor_map(y, TILE, encoding=encoding), starts, lengths
        )
        expected = np.full_like(x, -7)
        for start, length in zip(starts, lengths):
            expected[start : start + length] = x[start : start + length] + 1
        np.testing.assert_array_equal(y, expected)


@cuda.jit
def load_one(x, coords, start, length, out):
    tile, full = tma.shared_tile(TILE3), tma.shared_barrier()
    if cuda.threadIdx.x == 0:
        full.init(1)
        tma.fence_mbarrier_init()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        full.arrive_expect_tx(TILE3.nbytes)
        x.sequence(start, length).load(tile, coords, full)
    full.wait(0)
    for i in range(2):
        for j in range(4):
            for k in range(4):
                out[i, j, k] = tile[i, j, k]


TILE3 = Tile((2, 4, 4), "f32")


@pytest.mark.parametrize("oob_fill", ["zeros", "nan"])
def test_a_load_fills_past_the_end_of_a_sequence_along_another_axis(oob_fill):
    x = np.arange(3 * 20 * 4, dtype=np.float32).reshape(3, 20, 4)
    out = np.zeros((2, 4, 4), np.float32)
    y = ragged_tensor_map(x, TILE3, axis=1, oob_fill=oob_fill)
    load_one[1, 1](y, (-1, 2, 0), 5, 4, out)
    fill = np.nan if oob_fill == "nan" else 0
    expected = np.full((2, 4, 4), fill, np.float32)
    expected[1, :2] = x[0, 7:9]  # rows 2 and 3 of the sequence; the next are another's
    np.testing.assert_array_equal(np.isnan(out), np.isnan(expected))
    np.testing.assert_array_equal(np.nan_to_num(out), np.nan_to_num(expected))


@pytest.mark.parametrize(
    ("coords", "start", "length", "error", "text"),
    [
        (
            (0, 0, 0),
            18,
            3,
            BadCoordinate,
            "sequence of 3 rows at 18 is not in the array, which has",
        ),
        ((0, 0, 0), -1, 3, BadCoordinate, "sequence of 3 rows at -1 is not in the array"),
        ((0, 0, 0), 1, -3, BadCoordinate, "sequence of -3 rows at 1 is not in the array"),
        ((0, -1, 0), 5, 4, BadCoordinate, "coordinate of axis 1 is -1; a tile starts in its"),
        ((0, 0, 1), 5, 4, BadCoordinate, "innermost coordinate"),
        ((0, 0), 5, 4, BadOperand, "2 coordinates for TensorMap"),
    ],
)
def test_what_a_copy_may_not_do(coords, start, length, error, text):
    y = ragged_tensor_map(np.zeros((3, 20, 4), np.float32), TILE3, axis=1)
    with pytest.raises(error, match=text):
        load_one[1, 1](y, coords, start, length, np.zeros((2, 4, 4), np.float32))


def test_a_shifted_map_is_not_loaded_from():
    y = ragged_tensor_map(np.zeros((3, 20, 4), np.float32), TILE3, axis=1, encoding="shift")
    with pytest.raises(BadOperand, match="'shift' starts in front of the array and only stores"):
        load_one[1, 1](y, (0, 0, 0), 5, 4, np.zeros((2, 4, 4), np.float32))


@cuda.jit
def sum_sequences(y, starts, lengths):
    tile = tma.shared_tile(TILE)
    row, column = cuda.threadIdx.x // 8, cuda.threadIdx.x % 8
    tile[row, column] = float(cuda.threadIdx.x)
    tma.fence_proxy_async()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        part = y.sequence(starts[cuda.blockIdx.x], lengths[cuda.blockIdx.x])
        part.prefetch_tile((0, 0))
        part.reduce(tile, (0, 0), "add")
        ptx.cp_async_bulk_commit_group()
        ptx.cp_async_bulk_wait_group(0)


def test_a_reduction_ends_with_the_sequence():
    y = np.ones((9, 8), np.float32)
    expected = y.copy()
    added = np.arange(32, dtype=np.float32).reshape(4, 8)
    starts, lengths = np.array([0, 0, 4]), np.array([2, 3, 4])
    for start, length in zip(starts, lengths):
        expected[start : start + length] += added[:length]
    sum_sequences[3, 32](ragged_tensor_map(y, TILE), starts, lengths)
    np.testing.assert_array_equal(y, expected)


@cuda.jit
def prefetch_sequence(y):
    y.sequence(0, 3).prefetch_tile((0, 0))


def test_a_shifted_map_is_not_prefetched_from():
    y = ragged_tensor_map(np.ones((9, 8), np.float32), TILE, encoding="shift")
    with pytest.raises(BadOperand, match="prefetch_tile: the encoding 'shift' starts in front"):
        prefetch_sequence[1, 1](y)


@cuda.jit
def copies_without_a_sequence(x, reduces):
    if reduces:
        x.reduce(tma.shared_tile(TILE), (0, 0), "add")
    else:
        x.prefetch_tile((0, 0))


def test_every_copy_needs_a_sequence():
    for reduces, name in ((True, "reduce"), (False, "prefetch_tile")):
        with pytest.raises(TypeError, match=f"RaggedTensorMap.{name}: a ragged map copies within"):
            copies_without_a_sequence[1, 1](
                ragged_tensor_map(np.zeros((9, 8), np.float32), TILE), reduces
            )


@cuda.jit
def slices(x):
    tma.load_partitioned(x, tma.shared_tile(TILE), (0, 0), tma.shared_barrier(), 0)


@cuda.jit
def slices_of_a_sequence(x):
    part = x.sequence(0, 3)
    tma.load_partitioned(part, tma.shared_tile(TILE), (0, 0), tma.shared_barrier(), 0)


def test_blocks_share_the_tiles_of_tiled_maps():
    y = ragged_tensor_map(np.zeros((9, 8), np.float32), TILE)
    for kernel in (slices, slices_of_a_sequence):
        with pytest.raises(BadOperand, match="load_partitioned: the blocks share the tiles of a m"):
            kernel[1, 1](y)
    pixels = tma.im2col_map(np.zeros((1, 4, 4, 8), np.float32), TILE)
    with pytest.raises(BadOperand, match="load_partitioned: the map is Im2colMap"):
        slices[1, 1](pixels)


@cuda.jit
def load_without_a_sequence(x):
    x.load(tma.shared_tile(TILE), (0, 0), tma.shared_barrier())


def test_a_load_needs_a_sequence():
    with pytest.raises(TypeError, match="use y.sequence"):
        load_without_a_sequence[1, 1](ragged_tensor_map(np.zeros((9, 8), np.float32), TILE))


HEAD = Tile((8, 128), "bf16", tma.Swizzle.B128)  # two slabs of 64 columns
LONG = Tile((512, 16), "f32")  # two boxes of 256 rows


def make_copies_whole(tile):
    rows, columns = tile.shape

    @cuda.jit
    def kernel(x, y, start, length):
        """Load and store one tile of a sequence, which ends inside of it."""
        held, full = tma.shared_tile(tile), tma.shared_barrier()
        if cuda.threadIdx.x == 0:
            full.init(1)
            tma.fence_mbarrier_init()
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            part = x.sequence(start, length)
            full.arrive_expect_tx(tile.nbytes)
            part.prefetch_tile((0, 0))
            part.load(held, (0, 0), full)
        full.wait(0)
        for row in range(cuda.threadIdx.x, rows, 32):
            if row >= length:
                for column in range(columns):
                    assert held[row, column] == 0
        tma.fence_proxy_async()
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            y.sequence(start, length).store(held, (0, 0))
            ptx.cp_async_bulk_commit_group()
            ptx.cp_async_bulk_wait_group(0)
            y.sequence(start, length).reduce(held, (0, 0), "add")
            ptx.cp_async_bulk_commit_group()
            ptx.cp_async_bulk_wait_group(0)

    return kernel


@pytest.mark.parametrize("encoding", ["wrap", "shift"])
@pytest.mark.parametrize(("tile", "lengths"), [(HEAD, [0, 5, 8, 12]), (LONG, [200, 256, 301])])
def test_a_tile_of_several_boxes_ends_with_the_sequence(tile, lengths, encoding):
    kernel = make_copies_whole(tile)
    for length in lengths:
        x = np.arange((length + 20) * tile.shape[1]) % 61
        x = x.reshape(-1, tile.shape[1]).astype(tile.dtype.numpy)
        y = np.full_like(x, -7)
        target = ragged_tensor_map(y, tile, encoding=encoding)
        kernel[1, 32](ragged_tensor_map(x, tile), target, 3, length)
        expected, copied = np.full_like(x, -7), min(length, tile.shape[0])
        expected[3 : 3 + copied] = 2 * x[3 : 3 + copied]  # stored, then added
        np.testing.assert_array_equal(y, expected)
