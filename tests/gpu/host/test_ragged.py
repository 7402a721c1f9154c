"""Ragged maps on the GPU: rows of random sequences, and canaries in every row between them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda

import numba_tma as tma
from numba_tma import Swizzle, Tile, ragged_tensor_map
from tests.gpu.worker import on_gpu

THREADS = 128
TRIES = 100_000
TYPES = {"u8": np.uint8, "f16": np.float16, "f32": np.float32, "f64": np.float64}
#: Tiles of 8 rows of 64 B along the ragged axis 0, by rank.
TILES = {
    (rank, name): Tile((8, *(2,) * (rank - 2), 64 // np.dtype(dtype).itemsize), name)
    for rank in (2, 3, 4)
    for name, dtype in TYPES.items()
}


#: The coordinates of a tile by rank, since a tuple has its length at compile time.
COORDINATES = {
    2: lambda row, middle, column: (row, column),
    3: lambda row, middle, column: (row, middle, column),
    4: lambda row, middle, column: (row, middle, 0, column),
}


def make_kernels(tile):
    """Return kernels that copy the sequences of one array, one sequence to a block.

    Sequence s has the rows starts[s] to starts[s] + lengths[s].
    """
    last, flat_tile, nbytes = tile.shape[-1], Tile((tile.nbytes,), "u8"), tile.nbytes
    at = cuda.jit(device=True)(COORDINATES[tile.ndim])

    @cuda.jit
    def load(x, starts, lengths, tiles, middles, columns, image, failed):
        """Load every tile of the sequences, and tiles past their ends, into `image`."""
        buffer, full = tma.shared_tile(tile), tma.shared_barrier()
        flat = buffer.view(flat_tile)
        thread = cuda.threadIdx.x
        s = cuda.blockIdx.x
        if thread == 0:
            full.init(1)
            tma.fence_mbarrier_init()
        cuda.syncthreads()
        parity = 0
        for t in range(tiles):
            for m in range(middles):
                for c in range(columns):
                    for i in range(thread, nbytes, THREADS):
                        flat[i] = 77
                    tma.fence_proxy_async()
                    cuda.syncthreads()
                    if thread == 0:
                        full.arrive_expect_tx(tile.nbytes)
                        sequence = x.sequence(starts[s], lengths[s])
                        sequence.load(buffer, at(8 * t, 2 * m, last * c), full)
                        done = False
                        for _ in range(TRIES):
                            if full.test_wait(parity):
                                done = True
                                break
                        if not done:
                            failed[0] = 1
                    cuda.syncthreads()
                    parity ^= 1
                    for i in range(thread, nbytes, THREADS):
                        image[s, t, m, c, i] = flat[i]
                    cuda.syncthreads()

    @cuda.jit
    def store(y, starts, lengths, tiles, middles, columns, value):
        """Store tiles of `value` over every tile of the sequences, and past their ends."""
        buffer = tma.shared_tile(tile)
        flat = buffer.view(flat_tile)
        thread = cuda.threadIdx.x
        s = cuda.blockIdx.x
        for i in range(thread, nbytes, THREADS):
            flat[i] = value
        tma.fence_proxy_async()
        cuda.syncthreads()
        if thread == 0:
            for t in range(tiles):
                for m in range(middles):
                    for c in range(columns):
                        sequence = y.sequence(starts[s], lengths[s])
                        sequence.store(buffer, at(8 * t, 2 * m, last * c))
            tma.ptx.cp_async_bulk_commit_group()
            tma.ptx.cp_async_bulk_wait_group(0)

    return load, store


KERNELS = {}


def kernels(tile):
    if tile not in KERNELS:
        KERNELS[tile] = make_kernels(tile)
    return KERNELS[tile]


def ragged_array(rank, name, lengths, gaps, seed, columns=2, middles=2):
    """Return random bytes as an array of sequences with `gaps` rows between, and their starts."""
    tile = TILES[rank, name]
    starts = np.cumsum(np.asarray(gaps[:-1]) + [0, *lengths[:-1]]).astype(np.int32)
    rows = int(starts[-1] + lengths[-1]) + gaps[-1] + 1
    middle = () if rank == 2 else (2 * middles - 1, *(2,) * (rank - 3))
    shape = (rows, *middle, columns * tile.shape[-1])
    nbytes = int(np.prod(shape)) * tile.itemsize
    data = np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)
    return data.view(TYPES[name]).reshape(shape), starts


def device_bits(array):
    """Return a device copy as unsigned integers: no value is a NaN there."""
    return cuda.to_device(array.view(f"u{array.itemsize}"))


@on_gpu(limit=60)
def check_loads(rank, name, lengths, gaps, seed, oob_fill="zeros"):
    tile, lengths = TILES[rank, name], np.asarray(lengths, np.int32)
    host, starts = ragged_array(rank, name, lengths, gaps, seed)
    x = ragged_tensor_map(device_bits(host), tile, dtype=name, oob_fill=oob_fill)
    assert x.encoding == "wrap"
    tiles = int(max(lengths)) // 8 + 2  # the last lies wholly past the end
    middles, columns = (1 if rank == 2 else 2), 2
    shape = (len(lengths), tiles, middles, columns, tile.nbytes)
    image, failed = cuda.to_device(np.full(shape, 99, np.uint8)), cuda.to_device(np.zeros(1, "i4"))
    kernels(tile)[0][len(lengths), THREADS](
        x, cuda.to_device(starts), cuda.to_device(lengths), tiles, middles, columns, image, failed
    )
    assert not failed.copy_to_host()[0], "a load did not complete"
    image = image.copy_to_host()
    for s, (start, length) in enumerate(zip(starts, lengths)):
        sequence = host[start : start + length]
        for t, m, c in np.ndindex(tiles, middles, columns):
            at = (8 * t, *(2 * m, 0)[: rank - 2], c * tile.shape[-1])
            expected = tma.reference_tile(sequence, tile, at, oob_fill=oob_fill)
            np.testing.assert_array_equal(image[s, t, m, c], expected, f"{s}, tile {t, m, c}")


@on_gpu(limit=60)
def check_stores(rank, name, encoding, lengths, gaps, seed):
    tile, lengths = TILES[rank, name], np.asarray(lengths, np.int32)
    host, starts = ragged_array(rank, name, lengths, gaps, seed)
    array = device_bits(host)
    y = ragged_tensor_map(array, tile, dtype=name, encoding=encoding)
    tiles, middles = int(max(lengths)) // 8 + 2, (1 if rank == 2 else 2)
    kernels(tile)[1][len(lengths), THREADS](
        y, cuda.to_device(starts), cuda.to_device(lengths), tiles, middles, 2, 0xA5
    )
    expected = host.copy()
    for start, length in zip(starts, lengths):
        expected[start : start + length].view(np.uint8)[...] = 0xA5
    result = array.copy_to_host()
    np.testing.assert_array_equal(result, expected.view(result.dtype))


SEQUENCES = st.lists(st.integers(0, 41), min_size=1, max_size=6).flatmap(
    lambda lengths: st.tuples(
        st.just(lengths),
        st.lists(st.integers(0, 9), min_size=len(lengths) + 1, max_size=len(lengths) + 1),
        st.integers(0, 2**32),
    )
)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("rank", [2, 3])
@settings(max_examples=25, deadline=None)
@given(case=SEQUENCES)
def test_loads_give_the_rows_of_a_sequence_and_then_zeros(rank, name, case):
    check_loads(rank, name, *case)


@pytest.mark.parametrize(
    ("rank", "encoding"), [(2, "wrap"), (3, "wrap"), (2, "shift"), (3, "shift"), (4, "shift")]
)
@pytest.mark.parametrize("name", TYPES)
@settings(max_examples=20, deadline=None)
@given(case=SEQUENCES)
def test_stores_write_the_rows_of_a_sequence_and_no_byte_more(rank, encoding, name, case):
    check_stores(rank, name, encoding, *case)


def test_loads_fill_with_nan():
    check_loads(2, "f32", [3, 0, 17], [0, 1, 2, 3], 5, oob_fill="nan")


SWIZZLED = Tile((16, 32), "f32", Swizzle.B128)
PIPE = tma.TilePipeline(3, x=SWIZZLED)


@cuda.jit
def negate(x, y, starts, lengths):
    pipe = PIPE.start()
    s = cuda.blockIdx.x
    tiles = (lengths[s] + 15) // 16
    if pipe.is_producer():
        for t, stage in pipe.produce(0, tiles, 1):
            x.sequence(starts[s], lengths[s]).load(stage.x, (16 * t, 0), stage.barrier)
    else:
        for t, stage in pipe.consume(0, tiles, 1):
            for i in range(cuda.threadIdx.x, 512, 128):
                stage.x[i // 32, i % 32] = -stage.x[i // 32, i % 32]
            pipe.store(y.sequence(starts[s], lengths[s]), stage.x, (16 * t, 0))


@pytest.mark.parametrize("encoding", ["wrap", "shift"])
@on_gpu
def test_a_pipeline_over_sequences_that_touch(encoding):
    """Without gaps: the tile that ends a sequence reaches into the next, in place, all at once."""
    rng = np.random.default_rng(1)
    lengths = rng.integers(0, 100, 200).astype(np.int32)
    starts = np.cumsum([0, *lengths[:-1]]).astype(np.int32)
    host = rng.standard_normal((int(lengths.sum()), 32)).astype(np.float32)
    for in_place in (False, True):
        x = cuda.to_device(host)
        y = x if in_place else cuda.to_device(np.full_like(host, 9))
        source = ragged_tensor_map(x, SWIZZLED)
        target = ragged_tensor_map(y, SWIZZLED, encoding=encoding)
        negate[200, 160](source, target, cuda.to_device(starts), cuda.to_device(lengths))
        np.testing.assert_array_equal(y.copy_to_host(), -host)


@on_gpu
def test_a_sequence_past_the_arrays_end_is_not_copied():
    """The map knows how many rows there are: what claims more is dropped, not written behind."""
    memory = cuda.to_device(np.full((64, 16), 3, np.float32))
    tile = TILES[2, "f32"]
    for encoding in ("wrap", "shift"):
        y = ragged_tensor_map(memory[:20], tile, encoding=encoding)
        one = cuda.to_device(np.array([15], np.int32)), cuda.to_device(np.array([6], np.int32))
        kernels(tile)[1][1, THREADS](y, *one, 1, 1, 1, 0xA5)
        assert (memory.copy_to_host() == 3).all()


@on_gpu
def test_another_axis_than_the_first():
    rng = np.random.default_rng(2)
    host = rng.standard_normal((3, 40, 32)).astype(np.float32)
    x, y = cuda.to_device(host), cuda.to_device(np.full_like(host, 9))
    tile = Tile((1, 16, 32), "f32")
    source, target = (ragged_tensor_map(a, tile, axis=1) for a in (x, y))
    copy_heads[3, 64](source, target, 7, 21)
    expected = np.full_like(host, 9)
    expected[:, 7:28] = host[:, 7:28]
    np.testing.assert_array_equal(y.copy_to_host(), expected)


HEADS = tma.TilePipeline(2, x=Tile((1, 16, 32), "f32"))


@cuda.jit
def copy_heads(x, y, start, length):
    pipe = HEADS.start()
    head, tiles = cuda.blockIdx.x, (length + 15) // 16
    if pipe.is_producer():
        for t, stage in pipe.produce(0, tiles, 1):
            x.sequence(start, length).load(stage.x, (head, 16 * t, 0), stage.barrier)
    else:
        for t, stage in pipe.consume(0, tiles, 1):
            pipe.store(y.sequence(start, length), stage.x, (head, 16 * t, 0), written=False)


@cuda.jit
def sum_sequences(y, starts, lengths):
    """Add 1, 2, 3, ... to the first tile of each sequence."""
    tile = tma.shared_tile(SWIZZLED)
    thread, s = cuda.threadIdx.x, cuda.blockIdx.x
    for i in range(thread, 512, 128):
        tile[i // 32, i % 32] = i + 1.0
    tma.fence_proxy_async()
    cuda.syncthreads()
    if thread == 0:
        y.sequence(starts[s], lengths[s]).reduce(tile, (0, 0), "add")
        tma.ptx.cp_async_bulk_commit_group()
        tma.ptx.cp_async_bulk_wait_group(0)


@pytest.mark.parametrize("encoding", ["wrap", "shift"])
@on_gpu
def test_a_reduction_ends_with_the_sequence(encoding):
    lengths = np.random.default_rng(3).integers(0, 24, 100).astype(np.int32)
    starts = np.cumsum([0, *lengths[:-1]]).astype(np.int32)
    host = np.random.default_rng(4).integers(0, 99, (int(lengths.sum()), 32)).astype(np.float32)
    y = cuda.to_device(host)
    target = ragged_tensor_map(y, SWIZZLED, encoding=encoding)
    sum_sequences[100, 128](target, cuda.to_device(starts), cuda.to_device(lengths))
    added = np.arange(1, 513, dtype=np.float32).reshape(16, 32)
    expected = host.copy()
    for start, length in zip(starts, lengths):
        expected[start : start + length][:16] += added[:length]
    np.testing.assert_array_equal(y.copy_to_host(), expected)


@cuda.jit
def prefetch_and_multicast(x, starts, lengths, image, failed):
    """Load the first tile of each sequence, to the block's own rank, after a prefetch."""
    tile, full = tma.shared_tile(SWIZZLED), tma.shared_barrier()
    thread, s = cuda.threadIdx.x, cuda.blockIdx.x
    if thread == 0:
        full.init(1)
        tma.fence_mbarrier_init()
        sequence = x.sequence(starts[s], lengths[s])
        sequence.prefetch_tile((0, 0))
        full.arrive_expect_tx(SWIZZLED.nbytes)
        sequence.load(tile, (0, 0), full, multicast=1)
        done = False
        for _ in range(TRIES):
            if full.test_wait(0):
                done = True
                break
        if not done:
            failed[0] = 1
    cuda.syncthreads()
    for i in range(thread, 512, 128):
        image[s, i // 32, i % 32] = tile[i // 32, i % 32]


@on_gpu
def test_a_prefetched_multicast_ends_with_the_sequence():
    lengths = np.random.default_rng(5).integers(0, 24, 50).astype(np.int32)
    starts = np.cumsum([0, *lengths[:-1]]).astype(np.int32)
    host = np.random.default_rng(6).standard_normal((int(lengths.sum()), 32)).astype(np.float32)
    source = ragged_tensor_map(cuda.to_device(host), SWIZZLED)
    image = cuda.to_device(np.full((50, 16, 32), 9, np.float32))
    failed = cuda.to_device(np.zeros(1, "i4"))
    prefetch_and_multicast[50, 128](
        source, cuda.to_device(starts), cuda.to_device(lengths), image, failed
    )
    assert not failed.copy_to_host()[0], "a load did not complete"
    expected = np.zeros((50, 16, 32), np.float32)
    for s, (start, length) in enumerate(zip(starts, lengths)):
        rows = host[start : start + min(length, 16)]
        expected[s, : len(rows)] = rows
    np.testing.assert_array_equal(image.copy_to_host(), expected)


HEAD = Tile((32, 128), "f16", Swizzle.B128)  # two slabs of 64 columns
LONG = Tile((512, 32), "f16", Swizzle.B64)  # two boxes of 256 rows


def make_copy_tiles(tile):
    rows = tile.shape[0]
    pipe_of = tma.TilePipeline(2, x=tile)

    @cuda.jit
    def copy_tiles(x, y, starts, lengths):
        pipe = pipe_of.start()
        s = cuda.blockIdx.x
        tiles = (lengths[s] + rows - 1) // rows
        if pipe.is_producer():
            for t, stage in pipe.produce(0, tiles, 1):
                part = x.sequence(starts[s], lengths[s])
                part.load(stage.x, (rows * t, 0), stage.barrier)
        else:
            for t, stage in pipe.consume(0, tiles, 1):
                part = y.sequence(starts[s], lengths[s])
                pipe.store(part, stage.x, (rows * t, 0), written=False)

    return copy_tiles


@pytest.mark.parametrize("encoding", ["wrap", "shift"])
@pytest.mark.parametrize("tile", [HEAD, LONG], ids=["slabs", "boxes of rows"])
@on_gpu
def test_tiles_of_several_boxes_end_with_the_sequence(tile, encoding):
    rng = np.random.default_rng(7)
    lengths = rng.integers(0, 700, 60).astype(np.int32)
    starts = np.cumsum([0, *lengths[:-1] + 1]).astype(np.int32)  # a row between them
    host = rng.standard_normal((int(starts[-1] + lengths[-1]) + 1, tile.shape[1])).astype("f2")
    x, y = cuda.to_device(host), cuda.to_device(np.full_like(host, 9))
    target = ragged_tensor_map(y, tile, encoding=encoding)
    make_copy_tiles(tile)[60, 160](
        ragged_tensor_map(x, tile), target, cuda.to_device(starts), cuda.to_device(lengths)
    )
    expected = np.full_like(host, 9)
    for start, length in zip(starts, lengths):
        expected[start : start + length] = host[start : start + length]
    np.testing.assert_array_equal(y.copy_to_host(), expected)
