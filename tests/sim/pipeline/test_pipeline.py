"""Pipelines, queues and shared tiles in the simulator: each form of loop, against NumPy."""

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import simulator
from numba_tma.host import dtypes
from numba_tma.host.layout import Swizzle, Tile
from numba_tma.host.reference import reference_tile
from tests.tiers import every, quick, seeds

ROWS, COLUMNS = 4, 16
TILE = Tile((ROWS, COLUMNS), "f32")


def matrix(rows, columns=COLUMNS):
    return np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)


def scale_kernel(stages, in_flight=0):
    PIPE = tma.TilePipeline(stages, x=TILE)

    @cuda.jit
    def scale(x, y, factor, n_tiles):
        pipe = PIPE.start()
        first, step = cuda.blockIdx.x, cuda.gridDim.x
        if pipe.is_producer():
            for tile, stage in pipe.produce(first, n_tiles, step):
                x.load(stage.x, (tile * ROWS, 0), stage.barrier)
        elif pipe.is_consumer():
            for tile, stage in pipe.consume(first, n_tiles, step, in_flight):
                for i in range(cuda.threadIdx.x, TILE.size, pipe.num_consumers()):
                    stage.x[i // COLUMNS, i % COLUMNS] *= factor
                pipe.store(y, stage.x, (tile * ROWS, 0))
            pipe.release_pending()

    return scale


def check_scale(kernel, rows=29, grid=1, threads=64, seed=0):
    simulator.seed(seed)
    x = matrix(rows)
    y = np.full_like(x, np.nan)
    tiles = -(-rows // ROWS)
    kernel[grid, threads](tma.tensor_map(x, TILE), tma.tensor_map(y, TILE), 2.0, tiles)
    np.testing.assert_array_equal(y, 2 * x)


# ------------------------------------------------------------------------------- loops


@pytest.mark.parametrize("stages", quick([1, 2, 5], range(1, 9)))
def test_scale_with_any_number_of_stages(stages):
    for seed in range(2):
        check_scale(scale_kernel(stages), seed=seed)


@pytest.mark.parametrize("grid", [1, 3, 11])
@pytest.mark.parametrize("rows", [1, 4, 5, 37])
def test_scale_with_more_and_fewer_tiles_than_stages_and_blocks(rows, grid):
    check_scale(scale_kernel(3), rows, grid)


@pytest.mark.parametrize("threads", [64, 96, 160])
def test_scale_with_any_number_of_consumer_warps(threads):
    for seed in range(2):
        check_scale(scale_kernel(2), threads=threads, seed=seed)


@pytest.mark.slow
def test_scale_under_many_seeds():
    kernel = scale_kernel(2)
    for seed in range(20):
        check_scale(kernel, seed=seed)


@seeds(1, 5)
@pytest.mark.parametrize(("stages", "in_flight"), [(2, 1), (3, 1), (3, 2), (8, 7)])
def test_scale_with_stages_in_flight(stages, in_flight, seeds):
    kernel = scale_kernel(stages, in_flight)
    for seed in seeds:
        check_scale(kernel, rows=41, seed=seed)


@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_stage_is_handed_back_once_its_store_has_read_it(in_flight):
    """Also if the tiles after it store nothing."""
    pipeline = tma.TilePipeline(in_flight + 1, x=TILE)

    @cuda.jit
    def kernel(x, y, n_tiles):
        pipe = pipeline.start()
        if pipe.is_producer():
            for tile, stage in pipe.produce(0, n_tiles):
                x.load(stage.x, (tile * ROWS, 0), stage.barrier)
        elif pipe.is_consumer():
            for tile, stage in pipe.consume(0, n_tiles, 1, in_flight):
                if tile % 2 == 0:
                    pipe.store(y, stage.x, (tile * ROWS, 0), written=False)
            pipe.release_pending()

    x = matrix(7 * ROWS)
    y = np.zeros_like(x)
    kernel[1, 64](tma.tensor_map(x, TILE), tma.tensor_map(y, TILE), 7)
    stored = np.arange(7 * ROWS) // ROWS % 2 == 0
    np.testing.assert_array_equal(y, np.where(stored[:, None], x, 0))


@pytest.mark.parametrize("in_flight", [0, 1, 2])
def test_a_stage_is_handed_back_that_many_tiles_later(in_flight):
    with simulator.record() as trace:
        check_scale(scale_kernel(4, in_flight), rows=41)
    waited = released = 0
    for event in trace.events:
        if event.thread == (0, 0, 0) and event.kind == "wait" and event.label.startswith("full"):
            assert released == max(0, waited - in_flight)
            waited += 1
        elif event.thread == (0, 0, 0) and event.kind == "release":
            assert event.label.startswith(f"empty[{released % 4}]")
            released += 1
    assert (waited, released) == (11, 11)


def test_the_state_walks_round_and_flips_its_phase():
    state = tma.PipelineState(3)
    seen = []
    for _ in range(7):
        seen.append((state.index, state.phase, state.count))
        state.step()
    assert seen == [(0, 0, 0), (1, 0, 1), (2, 0, 2), (0, 1, 3), (1, 1, 4), (2, 1, 5), (0, 0, 6)]
    single = tma.PipelineState(1, 0, 1)
    single.step()
    assert (single.index, single.phase) == (0, 0)


@pytest.mark.parametrize("stages", [1, 3])
def test_nested_persistent_loops_carry_the_state_on(stages):
    PIPE = tma.TilePipeline(stages, x=TILE)

    @cuda.jit
    def sum_groups(x, out, groups, length):
        pipe = PIPE.start()
        if pipe.is_producer():
            for group in range(groups):
                for k, stage in pipe.produce(group * length, (group + 1) * length):
                    x.load(stage.x, (k * ROWS, 0), stage.barrier)
        else:
            thread = cuda.threadIdx.x
            for group in range(groups):
                total = 0.0
                for _, stage in pipe.consume(0, length):
                    for j in range(2):
                        total += stage.x[(thread + 32 * j) // COLUMNS, thread % COLUMNS]
                out[group, thread] = total

    groups, length = 5, 4
    x = np.arange(groups * length * TILE.size, dtype=np.float32).reshape(-1, COLUMNS)
    out = np.zeros((groups, 32), np.float32)
    sum_groups[1, 64](tma.tensor_map(x, TILE), out, groups, length)
    want = x.reshape(groups, length, 2, 32).sum(axis=(1, 2))
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("in_flight", [0, 1])
def test_the_next_loop_hands_back_what_a_break_left(stages, in_flight):
    PIPE = tma.TilePipeline(stages, x=TILE)

    @cuda.jit
    def first_tiles(x, y, groups, length, taken):
        pipe = PIPE.start()
        if pipe.is_producer():
            for group in range(groups):
                for k, stage in pipe.produce(group * length, group * length + taken):
                    x.load(stage.x, (k * ROWS, 0), stage.barrier)
        else:
            for group in range(groups):
                for k, stage in pipe.consume(0, length, in_flight=in_flight):
                    at = ((group * length + k) * ROWS, 0)
                    pipe.store(y, stage.x, at, written=False)
                    if k == taken - 1:
                        break
            pipe.close()

    groups, length, taken = 4, 5, 3
    x = matrix(groups * length * ROWS)
    want = np.zeros_like(x)
    for group in range(groups):
        rows = slice(group * length * ROWS, (group * length + taken) * ROWS)
        want[rows] = x[rows]
    for seed in range(4):
        simulator.seed(seed)
        y = np.zeros_like(x)
        maps = tma.tensor_map(x, TILE), tma.tensor_map(y, TILE)
        first_tiles[1, 64](*maps, groups, length, taken)
        np.testing.assert_array_equal(y, want)


def test_a_release_waits_for_the_store_that_a_loop_left_in_flight():
    PIPE = tma.TilePipeline(2, x=TILE)

    @cuda.jit
    def copy(x, y, groups, length):
        pipe = PIPE.start()
        if pipe.is_producer():
            for group in range(groups):
                for tile, stage in pipe.produce(group * length, (group + 1) * length):
                    x.load(stage.x, (tile * ROWS, 0), stage.barrier)
        else:
            for group in range(groups):
                for k, stage in pipe.consume(0, length, in_flight=1):
                    at = ((group * length + k) * ROWS, 0)
                    pipe.store(y, stage.x, at, written=False)
                pipe.consumer().release()

    x = matrix(9 * ROWS)
    for seed in range(4):
        simulator.seed(seed)
        y = np.zeros_like(x)
        copy[1, 64](tma.tensor_map(x, TILE), tma.tensor_map(y, TILE), 3, 3)
        np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_the_explicit_form(stages):
    PIPE = tma.TilePipeline(stages, x=TILE)

    @cuda.jit
    def scale(x, y, factor, n_tiles):
        pipe = PIPE.start()
        if pipe.is_producer():
            if tma.elect_sync():
                for tile in range(n_tiles):
                    stage = pipe.producer().acquire()
                    x.load(stage.x, (tile * ROWS, 0), stage.barrier)
                    pipe.producer().commit()
                pipe.producer().tail()
        else:
            for tile in range(n_tiles):
                stage = pipe.consumer().wait()
                for i in range(cuda.threadIdx.x, TILE.size, pipe.num_consumers()):
                    stage.x[i // COLUMNS, i % COLUMNS] *= factor
                pipe.store(y, stage.x, (tile * ROWS, 0))
                pipe.consumer().release()

    with simulator.record() as trace:
        check_scale(scale, threads=96)
    # tail: the producing thread outlives the last release of every stage it filled.
    order = [(event.kind, event.thread) for event in trace.events]
    last_empty = max(i for i, (kind, _) in enumerate(order) if kind == "empty")
    assert order.index(("exit", (64, 0, 0))) > last_empty
    assert sum(kind == "empty" for kind, _ in order) == 8


@pytest.mark.parametrize("stages", [2, 4])
def test_release_older_keeps_the_newest_stage(stages):
    PIPE = tma.TilePipeline(stages, x=TILE)

    @cuda.jit
    def add_neighbours(x, y, n_tiles):  # each tile and the one before it
        pipe = PIPE.start()
        if pipe.is_producer():
            for tile, stage in pipe.produce(0, n_tiles):
                x.load(stage.x, (tile * ROWS, 0), stage.barrier)
        else:
            works = pipe.consumer()
            before = works.wait().x
            for tile in range(1, n_tiles):
                now = works.wait().x
                for i in range(cuda.threadIdx.x, TILE.size, pipe.num_consumers()):
                    row, column = i // COLUMNS, i % COLUMNS
                    y[tile * ROWS + row, column] = before[row, column] + now[row, column]
                works.release_older()
                before = now
            pipe.release_pending()

    x, n_tiles = matrix(7 * ROWS), 7
    want = x[ROWS:] + x[:-ROWS]
    for seed in range(4):
        simulator.seed(seed)
        y = np.zeros_like(x)
        add_neighbours[1, 96](tma.tensor_map(x, TILE), y, n_tiles)
        np.testing.assert_array_equal(y[ROWS:], want)


def test_release_older_waits_for_stores_that_a_loop_left_in_flight():
    PIPE = tma.TilePipeline(3, x=TILE)

    @cuda.jit
    def copy(x, y, groups):
        pipe = PIPE.start()
        if pipe.is_producer():
            for group in range(groups):
                for tile, stage in pipe.produce(group * 4, group * 4 + 4):
                    x.load(stage.x, (tile * ROWS, 0), stage.barrier)
        else:
            works = pipe.consumer()
            for group in range(groups):
                for k, stage in pipe.consume(0, 3, in_flight=2):
                    pipe.store(y, stage.x, ((group * 4 + k) * ROWS, 0), written=False)
                pipe.store(y, works.wait().x, ((group * 4 + 3) * ROWS, 0), written=False)
                works.release_older()

    x = matrix(12 * ROWS)
    for seed in range(4):
        simulator.seed(seed)
        y = np.zeros_like(x)
        copy[1, 64](tma.tensor_map(x, TILE), tma.tensor_map(y, TILE), 3)
        np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("flights", [(3, 2), (4, 2), (4, 3), (2, 1), (2, 0)])
def test_a_loop_waits_for_stores_that_a_longer_one_left_in_flight(flights):
    """It holds fewer stages, and those that it releases at its start may be read by stores."""
    PIPE, LOOPS = tma.TilePipeline(5, x=TILE), 4

    @cuda.jit
    def copy(x, y):
        pipe = PIPE.start()
        for loop in range(LOOPS):
            begin, end = 5 * loop, 5 * loop + 5
            if pipe.is_producer():
                for tile, stage in pipe.produce(begin, end):
                    x.load(stage.x, (tile * ROWS, 0), stage.barrier)
            elif loop % 2 == 0:
                for tile, stage in pipe.consume(begin, end, in_flight=flights[0]):
                    pipe.store(y, stage.x, (tile * ROWS, 0), written=False)
            else:
                for tile, stage in pipe.consume(begin, end, in_flight=flights[1]):
                    pipe.store(y, stage.x, (tile * ROWS, 0), written=False)
        if pipe.is_consumer():
            pipe.release_pending()

    x = matrix(5 * LOOPS * ROWS)
    for seed in range(4):
        simulator.seed(seed)
        y = np.zeros_like(x)
        copy[1, 64](tma.tensor_map(x, TILE), tma.tensor_map(y, TILE))
        np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize(("tiles", "grid", "stages"), [(7, 1, 2), (7, 3, 2), (2, 5, 4), (0, 2, 1)])
@pytest.mark.parametrize("in_flight", quick([1], [0, 1]))
def test_a_queue_hands_out_every_tile_once(tiles, grid, stages, in_flight):
    in_flight = min(in_flight, stages - 1)
    PIPE = tma.TilePipeline(stages, x=TILE)

    @cuda.jit
    def copy(x, y, counter, n_tiles, drawn):
        pipe = PIPE.start()
        if pipe.is_producer():
            for tile, stage in pipe.produce_from(tma.TileQueue(counter, n_tiles)):
                drawn[tile] += 1
                x.load(stage.x, (tile * ROWS, 0), stage.barrier)
        else:
            for tile, stage in pipe.consume_from(in_flight):
                pipe.store(y, stage.x, (tile * ROWS, 0), written=False)
            pipe.release_pending()

    x = matrix(max(1, tiles * ROWS - 1))
    counter = np.zeros(1, np.uint32)
    for seed in range(2):  # the second launch needs the counter back at 0
        simulator.seed(seed)
        y = np.zeros_like(x)
        drawn = np.zeros(tiles, np.int64)
        maps = tma.tensor_map(x, TILE), tma.tensor_map(y, TILE)
        copy[grid, 64](*maps, counter, tiles, drawn)
        assert (drawn == 1).all() and counter[0] == 0
        if tiles:
            np.testing.assert_array_equal(y, x)


def test_queues_follow_each_other():
    PIPE = tma.TilePipeline(2, x=TILE)

    @cuda.jit
    def copy(x, y, counters, n_tiles):
        pipe = PIPE.start()
        if pipe.is_producer():
            for half in range(2):
                for tile, stage in pipe.produce_from(tma.TileQueue(counters[half], n_tiles)):
                    at = ((half * n_tiles + tile) * ROWS, 0)
                    x.load(stage.x, at, stage.barrier)
        else:
            for half in range(2):
                for tile, stage in pipe.consume_from(in_flight=1):
                    at = ((half * n_tiles + tile) * ROWS, 0)
                    pipe.store(y, stage.x, at, written=False)
            pipe.release_pending()

    x = matrix(2 * 3 * ROWS)
    counters = np.zeros((2, 1), np.uint32)
    for seed in range(4):
        simulator.seed(seed)
        y = np.zeros_like(x)
        copy[2, 96](tma.tensor_map(x, TILE), tma.tensor_map(y, TILE), counters, 3)
        np.testing.assert_array_equal(y, x)
        assert not counters.any()


def test_two_pipelines_in_one_kernel():
    PIPE = tma.TilePipeline(2, x=TILE)

    @cuda.jit
    def add(x, y, out, n_tiles):
        left, right = PIPE.start(), PIPE.start()
        if left.is_producer():
            for (tile, a), (_, b) in zip(left.produce(0, n_tiles), right.produce(0, n_tiles)):
                x.load(a.x, (tile * ROWS, 0), a.barrier)
                y.load(b.x, (tile * ROWS, 0), b.barrier)
        else:
            for tile, a in left.consume(0, n_tiles):
                b = right.consumer().wait()
                for i in range(cuda.threadIdx.x, TILE.size, left.num_consumers()):
                    at = (i // COLUMNS, i % COLUMNS)
                    a.x[at] += b.x[at]
                right.consumer().release()
                left.store(out, a.x, (tile * ROWS, 0))

    x, y = matrix(19), matrix(19)[::-1].copy()
    for seed in range(3):
        simulator.seed(seed)
        out = np.zeros_like(x)
        add[1, 64](*(tma.tensor_map(array, TILE) for array in (x, y, out)), 5)
        np.testing.assert_array_equal(out, x + y)


def test_tiles_of_several_types_share_a_stage_and_its_barrier():
    BITS, WIDE = Tile((3, 16), "u8"), Tile((8, 32), "bf16", Swizzle.B64)
    PIPE = tma.TilePipeline(3, bits=BITS, x=TILE, wide=WIDE)

    @cuda.jit
    def gather(bits, x, wide, out, n_tiles):
        pipe = PIPE.start()
        if pipe.is_producer():
            for t, stage in pipe.produce(0, n_tiles):
                bits.load(stage.bits, (3 * t, 0), stage.barrier)
                x.load(stage.x, (ROWS * t, 0), stage.barrier)
                wide.load(stage.wide, (8 * t, 0), stage.barrier)
        else:
            i, j = cuda.threadIdx.x // 16, cuda.threadIdx.x % 16
            for t, stage in pipe.consume(0, n_tiles):
                total = float(stage.bits[i, j]) + stage.x[i, j]
                out[t, i, j] = total + stage.wide[4 * i, 2 * j]

    n = 5
    bits = np.arange(3 * n * 16, dtype=np.uint8).reshape(-1, 16)
    x, wide = matrix(ROWS * n), matrix(8 * n, 32).astype(ml_dtypes.bfloat16)
    out = np.zeros((n, 2, 16))
    gather[1, 64](
        tma.tensor_map(bits, BITS), tma.tensor_map(x, TILE), tma.tensor_map(wide, WIDE), out, n
    )
    want = bits.reshape(n, 3, 16)[:, :2].astype(np.float64) + x.reshape(n, ROWS, 16)[:, :2]
    want += wide.reshape(n, 8, 32)[:, :5:4, ::2].astype(np.float64)
    np.testing.assert_allclose(out, want, rtol=1e-6)


# ------------------------------------------------------------------------------- tiles


#: Ten rows each, so that every swizzle pattern wraps round; then rows narrower than the pattern.
TILES = [
    Tile((10, max(swizzle.span, 32) // dtype.itemsize), dtype, swizzle)
    for dtype in map(dtypes.as_dtype, dtypes.byte_names)
    for swizzle in Swizzle
]
TILES += [Tile((10, swizzle.span // 8), "f32", swizzle) for swizzle in list(Swizzle)[1:]]


def any_bits(tile, seed=0):
    bits = np.random.default_rng(seed).integers(0, 256, tile.nbytes, np.uint8)
    array = bits.view(tile.dtype.kernel_storage).reshape(tile.shape)
    with np.errstate(invalid="ignore"):
        array[~np.isfinite(array.astype(tile.dtype.compute))] = 1
    return array


def as_loaded(array, tile):
    """Return what a load puts at `Tile.offset` of each element, in the type kernels read."""
    image = reference_tile(array, tile, (0,) * tile.ndim)
    offsets = tile.offset(*np.indices(tile.shape))
    at = offsets[..., None] + np.arange(tile.itemsize)
    stored = image.view(np.uint8).reshape(-1)[at].copy().view(tile.dtype.kernel_storage)[..., 0]
    return stored.astype(tile.dtype.compute)


def one_tile_kernel(tile, body):
    """Return a kernel that loads `tile`, calls body(source, target, out), and stores target."""

    @cuda.jit
    def kernel(x, y, out):
        source, target = tma.shared_tile(tile), tma.shared_tile(tile)
        full = tma.shared_barrier()
        if cuda.threadIdx.x == 0:
            full.init(1)
            tma.fence_mbarrier_init()
            full.arrive_expect_tx(tile.nbytes)
            x.load(source, (0,) * tile.ndim, full)
        cuda.syncthreads()
        full.wait(0)
        body(source, target, out)
        tma.fence_proxy_async()
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            y.store(target, (0,) * tile.ndim)
            tma.ptx.cp_async_bulk_commit_group()
            tma.ptx.cp_async_bulk_wait_group_read(0)

    return kernel


def run_one_tile(tile, array, body, out):
    y = np.zeros_like(array)
    maps = (tma.tensor_map(a, tile, dtype=tile.dtype.name) for a in (array, y))
    one_tile_kernel(tile, body)[1, 32](*maps, out)
    return y


@pytest.mark.parametrize("tile", every(7, TILES), ids=str)
def test_elements_go_through_the_swizzle(tile):
    columns = tile.shape[1]
    written = np.random.default_rng(3).integers(0, 8, tile.shape).astype(tile.dtype.compute)

    def body(source, target, out):
        for i in range(cuda.threadIdx.x, tile.size, 32):
            at = (i // columns, i % columns)
            out[at] = source[at]
            target[at] = written[at]

    array = any_bits(tile)
    out = np.zeros(tile.shape, tile.dtype.compute)
    y = run_one_tile(tile, array, body, out)
    np.testing.assert_array_equal(out, as_loaded(array, tile))
    np.testing.assert_array_equal(y.astype(tile.dtype.compute), written)


@pytest.mark.parametrize("tile", every(7, TILES), ids=str)
def test_vectors_go_through_the_swizzle(tile):
    lanes = 16 // tile.itemsize
    per_row = tile.shape[1] // lanes

    def body(source, target, out):
        for i in range(cuda.threadIdx.x, tile.size // lanes, 32):
            row, column = i // per_row, i % per_row * lanes
            v = source.read_vector((row, column))
            for k in range(lanes):
                out[row, column + k] = v[k]
            target.write_vector((row, column), v - v + 3)

    array = any_bits(tile, seed=1)
    out = np.zeros(tile.shape, tile.dtype.compute)
    y = run_one_tile(tile, array, body, out)
    np.testing.assert_array_equal(out, as_loaded(array, tile))
    np.testing.assert_array_equal(y.astype(np.float64), np.full(tile.shape, 3.0))


@pytest.mark.parametrize("name", ["f16", "bf16", "e4m3", "e5m2"])
def test_narrow_floats_are_rounded_to_nearest_even_when_written(name):
    tile = Tile((32, 16), name)
    rng = np.random.default_rng(2)
    written = rng.standard_normal(tile.shape) * 2.0 ** rng.integers(-20, 17, tile.shape)
    written = written.astype(np.float32)

    def body(source, target, out):
        for j in range(16):
            target[cuda.threadIdx.x, j] = written[cuda.threadIdx.x, j]

    y = run_one_tile(tile, any_bits(tile), body, None)
    limit = float(ml_dtypes.finfo(tile.dtype.numpy).max)
    kept = np.clip(written, -limit, limit) if tile.itemsize == 1 else written
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(y, kept.astype(tile.dtype.numpy))
    if tile.itemsize == 1:
        assert (np.abs(written) > limit).any() and np.isfinite(y.astype(np.float32)).all()


def test_a_view_shows_the_same_bytes():
    tile = Tile((4, 8, 16), "bf16")
    flat, bits = Tile(512, "bf16"), Tile((4, 8, 16), "u16")

    def body(source, target, out):
        for i in range(cuda.threadIdx.x, 512, 32):
            at = (i // 128, i // 16 % 8, i % 16)
            assert source.view(flat)[i] == source[at]
            out[at] = source.view(bits)[at]
            target.view(bits)[at] = out[at] ^ 0x8000

    array = any_bits(tile)
    out = np.zeros(tile.shape, np.uint16)
    y = run_one_tile(tile, array, body, out)
    np.testing.assert_array_equal(out, array.view(np.uint16))
    np.testing.assert_array_equal(y.view(np.uint16), array.view(np.uint16) ^ 0x8000)


def test_a_producer_can_go_on_after_its_tail():
    tile, rounds = Tile((2, 16), "f32"), 2
    pipeline = tma.TilePipeline(2, x=tile)

    @cuda.jit
    def kernel(x, out):
        pipe = pipeline.start()
        if pipe.is_producer():
            if tma.elect_sync():
                for i in range(3 * rounds):
                    stage = pipe.producer().acquire()
                    x.load(stage.x, (2 * i, 0), stage.barrier)
                    pipe.producer().commit()
                    if i % 3 == 2:
                        pipe.producer().tail()
        else:
            for i in range(3 * rounds):
                stage = pipe.consumer().wait()
                if cuda.threadIdx.x == 0:
                    out[i] = stage.x[0, 0]
                pipe.consumer().release()

    x = np.arange(6 * rounds * 16, dtype=np.float32).reshape(-1, 16)
    out = np.zeros(3 * rounds, np.float32)
    kernel[1, 64](tma.tensor_map(x, tile), out)
    np.testing.assert_array_equal(out, x[::2, 0])


def test_a_queue_hands_each_tile_out_once_in_a_grid_of_two_axes():
    tile = Tile((1, 16), "f32")
    pipeline = tma.TilePipeline(2, x=tile)

    @cuda.jit
    def kernel(x, counter, taken):
        pipe = pipeline.start()
        if pipe.is_producer():
            for t, stage in pipe.produce_from(tma.TileQueue(counter, 5)):
                x.load(stage.x, (t, 0), stage.barrier)
        else:
            for t, _ in pipe.consume_from():
                if cuda.threadIdx.x == 0:
                    taken[t] += 1

    taken, counter = np.zeros(5, np.int64), np.zeros(1, np.uint32)
    kernel[(2, 2), 64](tma.tensor_map(np.zeros((5, 16), np.float32), tile), counter, taken)
    assert taken.tolist() == [1] * 5 and counter[0] == 0
