"""Debug mode on a GPU: each way to hang ends the kernel with the right numbers, not the context."""

import time

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma.tools.pytest_plugin.worker import Worker
from tests.gpu.worker import on_gpu

ENVIRONMENT = {"NUMBA_TMA_DEBUG": "1", "NUMBA_TMA_DEBUG_TIMEOUT": "0.2"}
TILE = tma.Tile((8, 32), "f32")
NBYTES = TILE.nbytes
SPACE = tma.Tile(2048, "u8")


@pytest.fixture(scope="module")
def worker():
    """Return a process in which every wait is bounded."""
    worker = Worker(environment=ENVIRONMENT)
    yield worker
    worker.stop()


@pytest.fixture
def run(worker):
    def call(function, *args):
        return worker.call(function, *args, limit=20)

    return call


def pipelines(**tiles):
    return tma.TilePipeline(2, debug=True, **tiles)


ONE, TWO = pipelines(x=TILE), pipelines(x=TILE, y=TILE)


def new_map(rows=64):
    return tma.tensor_map(cuda.to_device(np.zeros((rows, 64), np.float32)), TILE)


@cuda.jit
def double(x, y, n):
    pipe = ONE.start()
    first, step = cuda.blockIdx.x, cuda.gridDim.x
    if pipe.is_producer():
        for tile, stage in pipe.produce(first, n, step):
            x.load(stage.x, (tile * 8, 0), stage.barrier)
    else:
        for tile, stage in pipe.consume(first, n, step):
            for i in range(cuda.threadIdx.x, 256, pipe.num_consumers()):
                stage.x[i // 32, i % 32] = 2 * stage.x[i // 32, i % 32]
            pipe.store(y, stage.x, (tile * 8, 0))
        pipe.release_pending()


def check_double(n, blocks=3, threads=96):
    """Run a healthy pipeline in the same process and compare bit for bit."""
    x = np.random.default_rng(n).standard_normal((8 * max(n, 1), 32)).astype(np.float32)
    y = cuda.to_device(np.full_like(x, np.nan))
    double[blocks, threads](tma.tensor_map(cuda.to_device(x), TILE), tma.tensor_map(y, TILE), n)
    expected = 2 * x if n else np.full_like(x, np.nan)
    np.testing.assert_array_equal(y.copy_to_host(), expected)


def caught(kernel, grid, block, *args):
    """Return what a launch raises; the next launch of this process works."""
    start = time.monotonic()
    try:
        kernel[grid, block](*args)
    except tma.PipelineError as error:
        raised = error
    else:
        raise AssertionError("nothing was raised")
    took = time.monotonic() - start
    check_double(5)
    records = [
        dict(vars(r), what=r.site.what, kind=r.site.kind, role=r.site.role, site=None)
        for r in raised.records
    ]
    return type(raised).__name__, str(raised), records, took


def first_of(records, **wanted):
    """Return the records that have these values."""
    return [r for r in records if all(r[name] == value for name, value in wanted.items())]


# ------------------------------------------------------------------------------ healthy


@on_gpu
def healthy(n, blocks, threads):
    check_double(n, blocks, threads)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 5, 1000])
@pytest.mark.parametrize(("blocks", "threads"), [(1, 64), (7, 160)])
def test_a_healthy_pipeline_runs_as_ever(run, n, blocks, threads):
    run(healthy, n, blocks, threads)


@cuda.jit
def double_drawn(x, y, counter, n):
    pipe = ONE.start()
    queue = tma.TileQueue(counter, n)
    if pipe.is_producer():
        for tile, stage in pipe.produce_from(queue):
            x.load(stage.x, (tile * 8, 0), stage.barrier)
    else:
        for tile, stage in pipe.consume_from():
            for i in range(cuda.threadIdx.x, 256, pipe.num_consumers()):
                stage.x[i // 32, i % 32] = 2 * stage.x[i // 32, i % 32]
            pipe.store(y, stage.x, (tile * 8, 0))
        pipe.release_pending()


@on_gpu
def healthy_queue(n):
    x = np.random.default_rng(n).standard_normal((8 * n, 32)).astype(np.float32)
    y, counter = cuda.to_device(np.full_like(x, np.nan)), cuda.to_device(np.zeros(1, np.uint32))
    maps = tma.tensor_map(cuda.to_device(x), TILE), tma.tensor_map(y, TILE)
    for _ in range(2):
        double_drawn[5, 96](*maps, counter, n)
    np.testing.assert_array_equal(y.copy_to_host(), 2 * x)


@pytest.mark.parametrize("n", [1, 4, 300])
def test_a_healthy_queue_runs_as_ever(run, n):
    run(healthy_queue, n)


# -------------------------------------------------------------------------------- bytes


@cuda.jit
def miss_a_load(x):
    pipe = TWO.start()
    if pipe.is_producer():
        for tile, stage in pipe.produce(0, 3):
            x.load(stage.x, (tile * 8, 0), stage.barrier)
            if tile != 1:
                x.load(stage.y, (tile * 8, 32), stage.barrier)
    else:
        for _ in pipe.consume(0, 3):
            pass


@on_gpu
def missing_load():
    return caught(miss_a_load, 1, 96, new_map())


def test_a_missing_load(run):
    kind, text, records, _ = run(missing_load)
    assert kind == "PipelineTimeout"
    assert text.startswith("consumer warp ")
    assert (
        f"waited 0.2 s on 'x+y.full' stage 1 phase 0 in iteration 1; {NBYTES:,} of {2 * NBYTES:,} "
        f"bytes were issued; 0 of 1 arrivals are pending, {NBYTES:,} bytes outstanding: a load of "
        "this stage is missing"
    ) in text
    waiting = first_of(records, what="'x+y.full'")
    assert {r["warp"] for r in waiting} == {0, 1}
    assert {(r["pending"], r["outstanding"], r["issued"]) for r in waiting} == {(0, NBYTES, NBYTES)}


@cuda.jit
def expect_too_much(x, surplus, out):
    tile, barrier = tma.shared_tile(TILE), tma.shared_barrier()
    if cuda.threadIdx.x == 0:
        barrier.init(1)
        tma.fence_mbarrier_init()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        barrier.arrive_expect_tx(NBYTES + surplus)
        x.load(tile, (0, 0), barrier)
    barrier.wait(0)
    out[cuda.blockIdx.x] = 1


@on_gpu
def short_bytes(blocks):
    out = cuda.to_device(np.zeros(blocks))
    result = caught(expect_too_much, blocks, 64, new_map(), 16, out)
    assert not out.copy_to_host().any()
    expect_too_much[blocks, 64](new_map(), 0, out)
    assert out.copy_to_host().all()
    return result


def test_too_few_bytes_on_a_barrier_of_ones_own(run):
    kind, text, records, _ = run(short_bytes, 1)
    assert kind == "PipelineTimeout" and "Barrier.wait at shared address" in text
    assert "0 of 1 arrivals are pending, 16 bytes outstanding: fewer bytes were copied" in text
    assert {(r["warp"], r["count"], r["pending"], r["outstanding"]) for r in records} == {
        (0, 1, 0, 16),
        (1, 1, 0, 16),
    }


def test_a_grid_of_stuck_blocks_ends_soon(run):
    kind, text, records, took = run(short_bytes, 20_000)
    assert kind == "PipelineTimeout" and "later waits were cut short" in text
    assert {r["outstanding"] for r in records} <= {16, None}
    assert took < 10


@cuda.jit
def load_twice(x):
    pipe = ONE.start()
    if pipe.is_producer():
        for tile, stage in pipe.produce(0, 1):
            x.load(stage.x, (tile * 8, 0), stage.barrier)
            x.load(stage.x, (tile * 8, 0), stage.barrier)
    else:
        for _ in pipe.consume(0, 1):
            pass


@on_gpu
def too_many_bytes():
    return caught(load_twice, 1, 64, new_map())


def test_too_many_bytes(run):
    kind, text, records, _ = run(too_many_bytes)
    if kind == "ByteLedgerError":
        assert (
            f"'x.full' stage 0 in iteration 0: {2 * NBYTES:,} bytes issued, {NBYTES:,} expected"
            in text
        )
        assert "loaded twice" in text
    else:  # both copies were counted at once, and the phase went past its end
        assert kind == "PipelineTimeout"
        assert f"{2 * NBYTES:,} of {NBYTES:,} bytes were issued" in text
        assert f"{NBYTES:,} bytes more came than were expected" in text


@cuda.jit
@tma.cluster(2)
def count_a_multicast(x, source, counts):
    space = tma.shared_tile(SPACE)
    barrier = tma.Barrier(space.address + 1024, 8)
    if cuda.threadIdx.x == 0:
        barrier.init(1)
        ptx.st_shared_u32(space.address + 1032, 0)
        tma.fence_mbarrier_init()
        barrier.arrive_expect_tx(NBYTES)
    cuda.syncthreads()
    tma.cluster_sync()
    if cuda.blockIdx.x == 0 and cuda.threadIdx.x == 0:
        x.load(space.address, (0, 0), barrier, multicast=3)
    barrier.wait(0)
    tma.cluster_sync()
    counts[cuda.blockIdx.x] = ptx.ld_shared_u32(space.address + 1032)


@on_gpu
def multicast_ledger():
    counts = cuda.to_device(np.zeros(2, np.uint32))
    count_a_multicast[2, 32](new_map(), cuda.to_device(np.zeros(64, np.uint8)), counts)
    return counts.copy_to_host().tolist()


def test_a_multicast_is_counted_in_every_block(run):
    assert run(multicast_ledger) == [NBYTES, NBYTES]


# --------------------------------------------------------------------- keys and values

ROLES = tma.Roles(mma=tma.Warps(2), load=tma.Warps(1))
KEYS, DEPTH, PARTS = 16, 64, 2
KV = tma.KVPipeline(
    3, KEYS, DEPTH, "f16", PARTS,
    swizzle=tma.Swizzle.B64, producer=ROLES.load, consumer=ROLES.mma, debug=True,
)  # fmt: skip
PART, WHOLE = KV.staged_k_bytes, KV.full_kv_bytes
RIGHT, NO_PART, NO_V, PART_TWICE, V_TWICE = range(5)


@cuda.jit
def attend(k, v, out, tiles, fault):
    """K(n), V(n), K(n + 1), ...: in turns through three stages, with a `fault` at n = 2."""
    pipe = KV.start()
    loads, works = pipe.producer(), pipe.consumer()
    if ROLES.load.is_member():
        if loads.enters():
            for n in range(tiles):
                for part in range(PARTS):
                    loads.acquire_k(part)
                    barrier, tile = loads.get_k(part)
                    if not (fault == NO_PART and n == 2 and part == 1):
                        k.load(tile, (n * KEYS, part * loads.BK), barrier)
                    if fault == PART_TWICE and n == 2 and part == 1:
                        k.load(tile, (n * KEYS, part * loads.BK), barrier)
                loads.commit_step()
                loads.acquire_v()
                barrier, whole = loads.get_v()
                if not (fault == NO_V and n == 2):
                    v.load(whole, (n * KEYS, 0), barrier)
                if fault == V_TWICE and n == 2:
                    v.load(whole, (n * KEYS, 0), barrier)
                loads.commit_step()
    else:
        thread = cuda.threadIdx.x
        for n in range(tiles):
            for part in range(PARTS):
                works.wait_k(part)
                out[n, part, thread] = works.get_k_tile(part)[thread % KEYS, thread // KEYS]
                works.release_k(part)
            works.wait_v()
            out[n, PARTS, thread] = works.get_v_tile()[thread % KEYS, thread // KEYS]
            works.release_v()


def attended(tiles):
    """Return keys and values, their maps, and room for what the threads read."""
    x = np.random.default_rng(tiles).standard_normal((2, max(1, tiles) * KEYS, DEPTH))
    x = x.astype(np.float16)
    maps = [tma.tensor_map(cuda.to_device(x[i]), t) for i, t in enumerate((KV.k_tile, KV.v_tile))]
    shape = max(1, tiles), PARTS + 1, ROLES.mma.members
    return x, maps, cuda.to_device(np.full(shape, np.nan, np.float32))


@on_gpu
def healthy_keys_and_values(tiles):
    x, maps, out = attended(tiles)
    attend[1, ROLES.threads](*maps, out, tiles, RIGHT)
    thread = np.arange(ROLES.mma.members)
    got = out.copy_to_host()
    for n in range(tiles):
        row, column = n * KEYS + thread % KEYS, thread // KEYS
        for part in range(PARTS):
            np.testing.assert_array_equal(got[n, part], x[0][row, part * KV.BK + column])
        np.testing.assert_array_equal(got[n, PARTS], x[1][row, column])
    assert tiles or np.isnan(got).all()


@pytest.mark.parametrize("tiles", [0, 1, 2, 5, 1000])
def test_healthy_keys_and_values_run_as_ever(run, tiles):
    run(healthy_keys_and_values, tiles)


@on_gpu
def faulty_keys_and_values(fault):
    _, maps, out = attended(4)
    return caught(attend, 1, ROLES.threads, *maps, out, 4, fault)


@pytest.mark.parametrize(
    ("fault", "where", "parity", "nbytes"),
    [  # K(2) is the first K in stage 1, where V(0) was before, and V(2) comes after K(1) in stage 2
        (NO_PART, "'k.full' stage 1 sub-stage 1 phase 0 in iteration 4", 0, PART),
        (NO_V, "'v.full' stage 2 phase 1 in iteration 5", 1, WHOLE),
    ],
)
def test_a_missing_load_of_keys_or_values(run, fault, where, parity, nbytes):
    kind, text, records, _ = run(faulty_keys_and_values, fault)
    assert kind == "PipelineTimeout"
    assert (
        f"waited 0.2 s on {where}; 0 of {nbytes:,} bytes were issued; 0 of 1 arrivals are pending, "
        f"{nbytes:,} bytes outstanding: a load of this stage is missing"
    ) in text
    waiting = first_of(records, role="mma")
    assert {r["warp"] for r in waiting} == {0, 1}
    assert {(r["parity"], r["issued"], r["outstanding"]) for r in waiting} == {(parity, 0, nbytes)}


@pytest.mark.parametrize(
    ("fault", "where", "nbytes"),
    [
        (PART_TWICE, "'k.full' stage 1 sub-stage 1", PART),
        (V_TWICE, "'v.full' stage 2", WHOLE),
    ],
)
def test_a_load_of_keys_or_values_too_many(run, fault, where, nbytes):
    kind, text, _, _ = run(faulty_keys_and_values, fault)
    if kind == "ByteLedgerError":
        assert f"{where} in iteration " in text
        assert f"{2 * nbytes:,} bytes issued, {nbytes:,} expected: a tile" in text
    else:  # both copies were counted at once, and the phase went past its end
        assert kind == "PipelineTimeout" and where in text
        assert f"{2 * nbytes:,} of {nbytes:,} bytes were issued" in text


# ------------------------------------------------------------------------------ arrivals


@cuda.jit(device=True)
def forget(consumer):
    """Hand nothing back, where the compiler does not look."""


@cuda.jit
def never_release(x):
    pipe = ONE.start()
    if pipe.is_producer():
        for tile, stage in pipe.produce(0, 3):
            x.load(stage.x, (tile * 8, 0), stage.barrier)
    else:
        for _ in range(3):
            pipe.consumer().wait()
        forget(pipe.consumer())


@on_gpu
def forgotten_release():
    return caught(never_release, 1, 128, new_map())


def test_a_forgotten_release(run):
    kind, text, records, _ = run(forgotten_release)
    assert kind == "PipelineTimeout"
    assert text.startswith(
        "producer warp 3 of block (0, 0, 0) waited 0.2 s on 'x.empty' stage 0 phase 0 in iteration "
        "2; 3 of 3 arrivals are pending, 0 bytes outstanding: consumer warps have not released"
    )
    consumers = first_of(records, role="consumer", stage=0, iteration=2)
    assert {r["warp"] for r in consumers} == {0, 1, 2}
    assert {(r["pending"], r["count"], r["outstanding"]) for r in consumers} == {(1, 1, 0)}


@cuda.jit
def leave_early(x):
    pipe = ONE.start()
    if pipe.is_producer():
        for tile, stage in pipe.produce(0, 5):
            x.load(stage.x, (tile * 8, 0), stage.barrier)
    else:
        for tile, _ in pipe.consume(0, 5):
            if tile == 1 and cuda.threadIdx.x >= 32:
                break


@on_gpu
def early_exit():
    return caught(leave_early, 1, 96, new_map())


def test_a_consumer_that_leaves_early(run):
    kind, text, records, _ = run(early_exit)
    assert kind == "PipelineTimeout"
    assert "'x.empty' stage 1 phase 0 in iteration 3; 1 of 2 arrivals are pending" in text
    (producer,) = first_of(records, role="producer")
    assert (producer["pending"], producer["count"], producer["outstanding"]) == (1, 2, 0)


@cuda.jit
def wait_for_the_phase_to_come(out):
    barrier = tma.shared_barrier()
    barrier.init(1)
    tma.fence_mbarrier_init()
    barrier.arrive()
    barrier.wait(0)
    out[0] = 1
    barrier.wait(1)
    out[0] = 2


@on_gpu
def wrong_parity():
    out = cuda.to_device(np.zeros(1))
    result = caught(wait_for_the_phase_to_come, 1, 1, out)
    assert out.copy_to_host()[0] == 1
    return result


def test_a_wrong_parity(run):
    kind, text, (record,), _ = run(wrong_parity)
    assert kind == "PipelineTimeout" and "phase 1; 1 of 1 arrivals are pending" in text
    assert "or the wait names the wrong parity" in text
    assert (record["parity"], record["lane"], record["outstanding"]) == (1, 0, 0)


@cuda.jit
def wait_at_two_times(out, delay):
    """Two warps at one barrier that lacks an arrival; the second comes `delay` ns later."""
    barrier = tma.shared_barrier()
    if cuda.threadIdx.x == 0:
        barrier.init(3)
        tma.fence_mbarrier_init()
    cuda.syncthreads()
    if cuda.threadIdx.x >= 32:
        start = ptx.globaltimer()
        while ptx.globaltimer() - start < delay:
            ptx.nanosleep(1000)
    if cuda.threadIdx.x % 32 == 0:
        barrier.arrive()
        barrier.wait(0)
        out[0] = 1


@on_gpu
def two_warps(delay):
    out = cuda.to_device(np.zeros(1))
    result = caught(wait_at_two_times, 1, 64, out, delay)
    assert out.copy_to_host()[0] == 0
    return result


@pytest.mark.parametrize("delay", [0, 50_000_000])  # the second waits when the first takes it apart
def test_two_warps_stuck_at_one_barrier(run, delay):
    kind, text, records, _ = run(two_warps, np.uint64(delay))
    assert kind == "PipelineTimeout"
    assert [r["warp"] for r in sorted(records, key=lambda r: r["warp"])] == [0, 1]
    assert {(r["pending"], r["count"], r["outstanding"]) for r in records} == {(1, 3, 0)}


def test_an_arrival_at_a_barrier_that_was_taken_apart(run):
    kind, text, records, _ = run(two_warps, np.uint64(400_000_000))
    assert kind == "PipelineTimeout"
    # The first warp left when two arrivals were missing; the second saw that and left as well.
    assert [(r["warp"], r["pending"]) for r in records] == [(0, 2)]
    assert "1 later waits were cut short" in text


# -------------------------------------------------------------------- coordinates, meetings


@cuda.jit
def copy_off_16_bytes(x, column, stores):
    tile, barrier = tma.shared_tile(TILE), tma.shared_barrier()
    barrier.init(1)
    tma.fence_mbarrier_init()
    if stores:
        tma.fence_proxy_async()
        x.store(tile, (0, column))
        ptx.cp_async_bulk_commit_group()
        ptx.cp_async_bulk_wait_group_read(0)
    else:
        barrier.arrive_expect_tx(NBYTES)
        x.load(tile, (0, column), barrier)
        barrier.wait(0)


@on_gpu
def coordinate(column, stores):
    for right in (0, 4, -4 if not stores else 32):
        copy_off_16_bytes[1, 1](new_map(), right, stores)
    return caught(copy_off_16_bytes, 1, 1, new_map(), column, stores)


@pytest.mark.parametrize(("column", "stores"), [(3, False), (-1, False), (2, True)])
def test_an_innermost_coordinate_off_16_bytes(run, column, stores):
    kind, text, records, _ = run(coordinate, column, stores)
    assert kind == "CoordinateError" and len(records) == 1
    what = f"{'store' if stores else 'load'} of {TILE}"
    assert f"{what}: innermost coordinate {column} x 4 B is not a multiple of 16 B" in text


@cuda.jit
def meet_alone(out):
    pipe = ONE.start()
    if pipe.is_consumer():
        pipe.sync_consumers()
        out[0] = 1
        if cuda.threadIdx.x < 32:
            pipe.sync_consumers()
            out[0] = 2


@on_gpu
def lonely():
    out = cuda.to_device(np.zeros(1))
    result = caught(meet_alone, 1, 128, out)
    assert out.copy_to_host()[0] == 1
    return result


def test_a_meeting_that_some_consumers_miss(run):
    kind, text, records, _ = run(lonely)
    assert kind == "PipelineTimeout"
    assert "on sync_consumers() or store() of 'x'; 64 of 96 arrivals are pending" in text
    assert {r["warp"] for r in records} == {0}


STORES = tma.StorePipeline(2, y=TILE, debug=True)
HALVES = tma.Roles(left=tma.Warps(2), rest=tma.Warps(1), right=tma.Warps(3))
TWO_ROLES = tma.StorePipeline(1, y=TILE, role=(HALVES.left, HALVES.right), debug=True)


@cuda.jit
def number(y, n, alone):
    """Number the elements of n tiles; with `alone` the first warp writes the last one by itself."""
    out = STORES.start()
    for tile, stage in out.stages(0, n):
        if alone and tile == n - 1 and out.thread >= 32:
            return
        for i in range(out.thread, 256, out.num_threads):
            stage.y[i // 32, i % 32] = tile * 256 + i
        out.store(y, stage.y, (tile * 8, 0))
        out.commit()
    out.tail()


@cuda.jit
def number_by_roles(y, n):
    out = TWO_ROLES.start()
    if not HALVES.rest.is_member():
        first = 1 if HALVES.right.is_member() else 0
        for tile, stage in out.stages(first, n, 2):
            for i in range(out.thread, 256, out.num_threads):
                stage.y[i // 32, i % 32] = tile * 256 + i
            out.store(y, stage.y, (tile * 8, 0))
            out.commit()
        out.tail()


def check_numbers(kernel, threads, n, *args):
    y = cuda.to_device(np.full((8 * n, 32), np.nan, np.float32))
    kernel[1, threads](tma.tensor_map(y, TILE), n, *args)
    np.testing.assert_array_equal(y.copy_to_host(), np.arange(256 * n).reshape(-1, 32))


@on_gpu
def stores(n):
    check_numbers(number, 96, n, False)
    check_numbers(number_by_roles, HALVES.threads, n)


@pytest.mark.parametrize("n", [1, 2, 5, 300])
def test_a_healthy_store_pipeline_runs_as_ever(run, n):
    run(stores, n)


@on_gpu
def lonely_store():
    return caught(number, 1, 96, new_map(), 4, True)


def test_a_store_that_some_warps_miss(run):
    kind, text, records, _ = run(lonely_store)
    assert kind == "PipelineTimeout"
    assert "on sync() or store() of 'y'; 64 of 96 arrivals are pending" in text
    assert {(r["warp"], r["count"], r["pending"]) for r in records} == {(0, 96, 64)}


# --------------------------------------------------------------------- circular buffers


def circular(war, barriers):
    """Return kernels over tiles of x and their right neighbours.

    One adds and has two buffers in the same memory, one after the other. One makes mistakes: with
    `mistake` 1 a load of tile 1 is left out, with 2 it comes twice, with 3 all warps but the first
    leave at tile 1.
    """
    BUFFER = tma.CircularBuffer(3, 1, war=war, barriers=barriers, debug=True, x=TILE, y=TILE)
    MEMORY = tma.Tile(BUFFER.storage_nbytes, "u8")
    count = BUFFER.num_barriers

    @cuda.jit
    def add(x, out, n):
        memory, array = tma.shared_tile(MEMORY), tma.shared_barriers(count)
        for part in range(2):
            ring = BUFFER.start(memory.address, array)
            for tile, stage in ring.tiles(part, n, 2):
                for ahead, slot in ring.loads():
                    x.load(slot.x, (ahead * 8, 0), slot.barrier_of("x"))
                    x.load(slot.y, (ahead * 8, 32), slot.barrier_of("y"))
                full = stage.wait()
                for i in range(ring.thread(), 256, ring.num_threads()):
                    row, column = i // 32, i % 32
                    out[tile * 8 + row, column] = full.x[row, column] + full.y[row, column]
            ring.close()
            cuda.syncthreads()

    @cuda.jit
    def wrong(x, mistake):
        ring = BUFFER.start()
        for tile, stage in ring.tiles(0, 6):
            for ahead, slot in ring.loads():
                barrier = slot.barrier_of("x")
                x.load(slot.x, (ahead * 8, 0), barrier)
                if not (mistake == 1 and ahead == 1):
                    x.load(slot.y, (ahead * 8, 32), slot.barrier_of("y"))
                if mistake == 2 and ahead == 1:
                    x.load(slot.x, (ahead * 8, 0), barrier)
            stage.wait()
            if mistake == 3 and tile == 1 and ring.thread() >= 32:
                return
        ring.close()

    return add, wrong


FORMS = [(war, barriers) for war in ("sync", "mbarrier") for barriers in ("one", "each")]
CIRCULAR = {form: circular(*form) for form in FORMS}


@on_gpu
def circular_sums(form, n):
    x = np.random.default_rng(n).standard_normal((8 * n, 64)).astype(np.float32)
    out = cuda.to_device(np.full((8 * n, 32), np.nan, np.float32))
    CIRCULAR[form][0][1, 96](tma.tensor_map(cuda.to_device(x), TILE), out, n)
    np.testing.assert_array_equal(out.copy_to_host(), x[:, :32] + x[:, 32:])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n", [1, 2, 7, 200])
def test_a_healthy_circular_buffer_runs_as_ever(run, form, n):
    run(circular_sums, form, n)


@on_gpu
def circular_mistake(form, mistake):
    return caught(CIRCULAR[form][1], 1, 64, new_map(), mistake)


@pytest.mark.parametrize("form", FORMS)
def test_a_circular_buffer_without_one_load(run, form):
    kind, text, records, _ = run(circular_mistake, form, 1)
    assert kind == "PipelineTimeout"
    if form[1] == "each":
        assert "on 'y.full' stage 1 phase 0 in iteration 1; 0 of 1,024 bytes were issued" in text
    else:
        assert "on 'x+y.full' stage 1 phase 0 in iteration 1; 1,024 of 2,048 bytes" in text
    assert "0 of 1 arrivals are pending, 1,024 bytes outstanding: a load of this stage" in text
    assert {r["warp"] for r in records} == {0, 1}


@pytest.mark.parametrize("form", FORMS)
def test_a_circular_buffer_with_a_load_too_many(run, form):
    kind, text, _, _ = run(circular_mistake, form, 2)
    name, once = ("x", NBYTES) if form[1] == "each" else ("x+y", 2 * NBYTES)
    issued = f"{once + NBYTES:,}"
    if kind == "ByteLedgerError":
        counted = f"'{name}.full' stage 1 in iteration 1: {issued} bytes issued, {once:,} expected"
        assert counted in text and "loaded twice" in text
    else:  # the copies were counted at once, and the phase went past its end
        assert kind == "PipelineTimeout"
        assert f"'{name}.full'" in text


@pytest.mark.parametrize("form", FORMS)
def test_a_circular_buffer_that_some_warps_leave(run, form):
    kind, text, records, _ = run(circular_mistake, form, 3)
    assert kind == "PipelineTimeout"
    if form[0] == "sync":
        assert "of an iteration, or sync() or close(), of 'x+y'; 32 of 64 arrivals" in text
    else:
        assert "'x+y.empty' stage 1" in text and "1 of 2 arrivals are pending" in text
    assert {r["warp"] for r in records} == {0}


# ----------------------------------------------------------------------------- clusters


@cuda.jit
@tma.cluster(2)
def wait_for_a_peer(dead, out):
    barrier = tma.shared_barrier()
    if cuda.threadIdx.x == 0:
        barrier.init(1)
        tma.fence_mbarrier_init()
    cuda.syncthreads()
    tma.cluster_sync()
    if cuda.blockIdx.x % 2 == 1:
        if not dead and cuda.threadIdx.x == 0:
            ptx.mbarrier_arrive_remote(ptx.mapa(barrier, 0))
    else:
        barrier.wait(0)
        out[cuda.blockIdx.x // 2] = 1
    tma.cluster_sync()


@on_gpu
def dead_peer():
    out = cuda.to_device(np.zeros(3))
    result = caught(wait_for_a_peer, 6, 32, True, out)
    assert not out.copy_to_host().any()
    wait_for_a_peer[6, 32](False, out)
    assert out.copy_to_host().all()
    return result


def test_a_dead_peer_in_a_cluster(run):
    kind, text, records, _ = run(dead_peer)
    assert kind == "PipelineTimeout" and "1 of 1 arrivals are pending" in text
    assert {(r["block"], r["rank"], r["pending"]) for r in records} == {
        ((block, 0, 0), 0, 1) for block in (0, 2, 4)
    }


# ------------------------------------------------------- without the environment's word


@on_gpu
def pipelines_that_ask_for_it():
    import numba_tma.host.environment as environment

    assert not environment.debugging()
    return caught(never_release, 1, 128, new_map())


def test_debug_true_needs_no_variable():
    kind, text, _, took = pipelines_that_ask_for_it()
    assert kind == "PipelineTimeout" and "waited 2.0 s on 'x.empty'" in text
    assert took < 15
