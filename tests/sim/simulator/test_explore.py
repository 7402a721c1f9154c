"""`explore` on the library's pipeline, and on broken pipelines, all of which it finds."""

import re
import threading

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import simulator as sim
from numba_tma.host.layout import Tile
from numba_tma.simulator import exploration
from numba_tma.simulator.hazards import Hazards
from tests.tiers import quick, seeds

COLUMNS = 16
TILE = Tile((1, COLUMNS), "f32")


def pipeline_kernel(stages, in_flight, form):
    PIPE = tma.TilePipeline(stages, x=TILE)

    @cuda.jit
    def kernel(x, y, tiles):
        pipe = PIPE.start()
        if pipe.is_producer():
            for tile, stage in pipe.produce(0, tiles):
                x.load(stage.x, (tile, 0), stage.barrier)
            if tma.elect_sync():
                pipe.producer().tail()
        else:
            thread = cuda.threadIdx.x
            for tile, stage in pipe.consume(0, tiles, in_flight=in_flight):
                if form == "read":
                    stage.x[0, thread % COLUMNS]
                    continue
                if form == "changed and stored" and thread < COLUMNS:
                    stage.x[0, thread] *= 2
                pipe.store(y, stage.x, (tile, 0), written=form != "stored")
            pipe.release_pending()

    return kernel


def explore_pipeline(stages, tiles, consumers, in_flight, form, seeds=(0,)):
    kernel = pipeline_kernel(stages, in_flight, form)
    x = np.zeros((max(tiles, 1), COLUMNS), np.float32)
    maps = tma.tensor_map(x, TILE), tma.tensor_map(np.zeros_like(x), TILE)
    threads = 32 * (consumers + 1)
    return sim.explore(lambda: kernel[1, threads](*maps, tiles), seeds=seeds)


GRID = [
    (stages, consumers, in_flight)
    for stages in (1, 2, 3, 4)
    for consumers in (1, 2, 3)
    for in_flight in ((0, 1) if stages > 1 else (0,))
]


QUICK = [(1, 1, 0), (2, 2, 0), (2, 2, 1), (3, 1, 1), (4, 1, 0)]


@pytest.mark.parametrize(("stages", "consumers", "in_flight"), quick(QUICK, GRID))
def test_no_interleaving_of_the_pipeline_goes_wrong(stages, consumers, in_flight):
    states = []
    for tiles in range(10):
        seeds = (0, 1) if tiles == stages + 1 else (0,)
        report = explore_pipeline(stages, tiles, consumers, in_flight, "read", seeds)
        states.append(report.states)
        assert report.runs == 1 and report.transitions >= report.states - 1
    assert max(states) == states[-1] > 50


@pytest.mark.slow
@pytest.mark.parametrize(("stages", "consumers", "in_flight"), GRID)
@pytest.mark.parametrize("form", ["changed and stored", "stored"])
def test_no_interleaving_goes_wrong_where_tiles_are_stored(stages, consumers, in_flight, form):
    few, many = (
        explore_pipeline(stages, tiles, consumers, in_flight, form) for tiles in (1, stages + 2)
    )
    assert 0 < few.states < many.states


# ------------------------------------------------------------------------------ mutants

F32 = np.dtype(np.float32)
VALUES, STAGES, TILES = 16, 2, 5
BYTES = 4 * VALUES


def wait(barrier, parity):
    while not sim.mbarrier_try_wait_parity(barrier, parity):
        pass


@cuda.jit
def ring(x, y, consumers, mutant):
    """Warp 0 loads; the other warps read; thread 32 stores what came, if the mutant says so."""
    base = sim.allocate_shared("ring", STAGES * BYTES, 128)
    full = sim.allocate_shared("full", 8 * STAGES, 8)
    empty = sim.allocate_shared("empty", 8 * STAGES, 8)
    thread = sim.thread_index()[0]
    if thread == 0:
        for s in range(STAGES):
            sim.label(base + s * BYTES, f"x[{s}] of Ring")
            sim.label(full + 8 * s, f"full[{s}] of Ring")
            sim.label(empty + 8 * s, f"empty[{s}] of Ring")
            sim.mbarrier_init(full + 8 * s, 1)
            count = {"count too small": -1, "count too large": 1}.get(mutant, 0)
            sim.mbarrier_init(empty + 8 * s, consumers + count)
        sim.fence_mbarrier_init()
    cuda.syncthreads()
    if thread == 0:
        produce(x, base, full, empty, mutant)
    elif thread >= 32:
        consume(y, base, full, empty, mutant, thread - 32)


def produce(x, base, full, empty, mutant):
    for i in range(TILES):
        s, turn = i % STAGES, i // STAGES
        parity = turn & 1 ^ (mutant != "the producer's first parity is 0")
        if mutant != "no wait for empty":
            wait(empty + 8 * s, parity)
        armed = {"bytes too few": -16, "bytes too many": 16}.get(mutant, 0) + BYTES
        if mutant == "expects after it arrives":
            sim.mbarrier_arrive(full + 8 * s)
            sim.mbarrier_expect_tx(full + 8 * s, armed)
        else:
            sim.mbarrier_arrive_expect_tx(full + 8 * s, armed)
        sim.cp_async_bulk_load(base + s * BYTES, x[i * VALUES : (i + 1) * VALUES], full + 8 * s)


def consume(y, base, full, empty, mutant, worker):
    lane = worker % 32
    for i in range(TILES):
        s = i % STAGES
        if mutant != "no wait for full":
            wait(full + 8 * s, i // STAGES & 1 ^ (mutant == "the consumers' first parity is 1"))
        if mutant == "release before the last read":
            release(empty + 8 * s, lane, mutant)
        if lane == 0 or mutant not in ONE_LANE_READS:
            sim.shared_read(base + s * BYTES + 4 * (lane % VALUES), F32)
        if worker == 0 and mutant in STORED:
            sim.cp_async_bulk_store(y[i * VALUES : (i + 1) * VALUES], base + s * BYTES)
            if mutant != "no commit":
                sim.cp_async_bulk_commit_group()
            if mutant == "in flight, released one step early":
                sim.cp_async_bulk_wait_group_read(1)
            elif mutant != "a store is not waited for":
                sim.cp_async_bulk_wait_group_read(0)
        if mutant != "release before the last read":
            release(empty + 8 * s, lane, mutant)
        if mutant == "release twice" and i == 2 and worker == 0:
            sim.mbarrier_arrive(empty + 8 * s)
    if worker == 0 and mutant in STORED:
        if mutant == "no commit":
            sim.cp_async_bulk_commit_group()
        sim.cp_async_bulk_wait_group_read(0)


def release(barrier, lane, mutant):
    if mutant not in UNSYNCED:
        sim.syncwarp()
    if lane == 0:
        sim.mbarrier_arrive(barrier)


ONE_LANE_READS = ("no syncwarp, one lane reads",)
UNSYNCED = ("no syncwarp", "no syncwarp, one lane reads")
STORED = ("stored", "no commit", "a store is not waited for", "in flight, released one step early")


def run_ring(mutant, consumers=2):
    x = np.arange(TILES * VALUES, dtype=np.float32)
    ring[1, 32 * (consumers + 1)](x, np.zeros_like(x), consumers, mutant)


#: Whatever the order of the recorded run: what it or the exploration raises.
MUTANTS = {
    "no wait for empty": (sim.EarlyOverwrite, sim.BarrierMisuse),
    "no wait for full": (sim.UninitializedRead,),
    "the producer's first parity is 0": (sim.Deadlock,),
    "the consumers' first parity is 1": (sim.UninitializedRead,),
    "release before the last read": (sim.EarlyOverwrite,),
    "release twice": (sim.EarlyOverwrite,),
    "count too small": (sim.EarlyOverwrite, sim.Deadlock),
    "count too large": (sim.Deadlock,),
    "bytes too few": (sim.WrongByteCount,),
    "bytes too many": (sim.Deadlock,),
    "expects after it arrives": (sim.EarlyRead,),
    "a store is not waited for": (sim.EarlyOverwrite,),
    "no commit": (sim.EarlyOverwrite,),
    "in flight, released one step early": (sim.EarlyOverwrite,),
    "no syncwarp": (sim.EarlyOverwrite,),
    "no syncwarp, one lane reads": (sim.Deadlock,),
}


@pytest.mark.parametrize("mutant", [None, "stored"])
@pytest.mark.parametrize("consumers", [1, 2])
def test_the_ring_is_right_without_a_mutation(mutant, consumers):
    states = {
        sim.explore(lambda: run_ring(mutant, consumers), seeds=(seed, 7)).states
        for seed in range(3)
    }
    assert len(states) == 1  # it does not matter which order was recorded


@seeds(1, 4)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_every_mutant_is_found_whatever_was_recorded(mutant, seeds):
    for seed in seeds:
        with pytest.raises(MUTANTS[mutant]):
            sim.explore(lambda: run_ring(mutant), seeds=(seed,))


@pytest.mark.parametrize("mutant", ["release twice", "no syncwarp, one lane reads"])
def test_what_some_seeds_miss_is_found_in_every_record(mutant):
    missed = 0
    for seed in range(8):
        sim.seed(seed)
        try:
            run_ring(mutant)
        except sim.SimulatorError:
            continue
        missed += 1
        with pytest.raises(MUTANTS[mutant]) as caught:
            sim.explore(lambda: run_ring(mutant), seeds=(seed,))
        assert len(caught.value.interleaving) > 10
    assert 0 < missed < 8


@pytest.mark.parametrize(
    "mutant",
    [
        "release before the last read", "release twice", "a store is not waited for", "no commit",
        "in flight, released one step early", "no syncwarp",
    ],
)  # fmt: skip
def test_the_exploration_needs_no_vector_clocks(mutant, monkeypatch):
    for check in ("read", "write", "load", "store"):
        monkeypatch.setattr(Hazards, check, lambda *arguments, **options: None)
    explored = 0
    for seed in range(4):
        with pytest.raises((sim.EarlyOverwrite, sim.EarlyRead, sim.Deadlock)) as caught:
            sim.explore(lambda: run_ring(mutant), seeds=(seed,))
        explored += bool(caught.value.interleaving)
    assert explored > 0


def test_the_way_to_an_error_is_a_shortest_one():
    ways = set()
    for seed in (4, 5, 6):
        with pytest.raises(sim.EarlyOverwrite) as caught:
            sim.explore(lambda: run_ring("release twice"), seeds=(seed,))
        ways.add(len(caught.value.interleaving))
        text = str(caught.value)
    assert len(ways) == 1
    assert re.search(r"warp \d lanes? .*x\[\d\] of Ring, bytes 0 to 63: read while", text)
    assert "after these steps:\n  ... 9 steps before\n  10. " in text
    assert "warp 0 lane 0: wait for parity 1 of empty[0] of Ring" in caught.value.interleaving[-3]


def test_a_deadlock_says_who_waits_for_what():
    with pytest.raises(sim.Deadlock) as caught:
        sim.explore(lambda: run_ring("no syncwarp, one lane reads"), seeds=(0,))
    text = str(caught.value)
    assert "every live thread waits and no copy is under way" in text
    assert "warp 1 lanes 1-31: wait for parity 0 of full[1] of Ring, which is in phase 2" in text
    assert "exited: block (0, 0, 0): warp 0 lanes 0-31; warps 1-2 lane 0" in text


# --------------------------------------------------------------- other ways of passing data


def test_a_ring_that_every_lane_releases():
    @cuda.jit
    def kernel(x, tiles):
        tile = sim.allocate_shared("tile", BYTES, 128)
        full = sim.allocate_shared("full", 8, 8)
        empty = sim.allocate_shared("empty", 8, 8)
        thread = cuda.threadIdx.x
        if thread == 0:
            sim.mbarrier_init(full, 1)
            sim.mbarrier_init(empty, 32)
            sim.fence_mbarrier_init()
        cuda.syncthreads()
        for i in range(tiles):
            if thread == 32:
                wait(empty, i & 1 ^ 1)
                sim.mbarrier_arrive_expect_tx(full, BYTES)
                sim.cp_async_bulk_load(tile, x[i * VALUES : (i + 1) * VALUES], full)
            else:
                wait(full, i & 1)
                sim.shared_read(tile, F32)
                sim.mbarrier_arrive(empty)

    x = np.zeros(3 * VALUES, np.float32)
    assert 1000 < sim.explore(lambda: kernel[1, 33](x, 3)).states < 10_000


def test_tile_numbers_that_are_passed_through_shared_memory():
    PIPE = tma.TilePipeline(2, x=TILE)

    @cuda.jit
    def kernel(x, counter, tiles):
        pipe = PIPE.start()
        queue = tma.TileQueue(counter, tiles)
        if pipe.is_producer():
            for tile, stage in pipe.produce_from(queue):
                x.load(stage.x, (tile, 0), stage.barrier)
        else:
            for _, stage in pipe.consume_from():
                stage.x[0, 0]

    maps = tma.tensor_map(np.zeros((4, COLUMNS), np.float32), TILE)
    report = sim.explore(lambda: kernel[1, 96](maps, np.zeros(1, np.uint32), 4))
    assert report.states > 100


@pytest.mark.parametrize("synced", [True, False])
def test_what_threads_write_for_each_other(synced):
    @cuda.jit
    def kernel():
        values = sim.allocate_shared("values", 16, 16)
        gate = sim.allocate_shared("gate", 8, 8)
        thread = cuda.threadIdx.x
        if thread == 0:
            sim.label(values, "values")
            sim.mbarrier_init(gate, 1)
        cuda.syncthreads()
        if thread == 0:
            sim.shared_write(values, np.float32(1))
            sim.mbarrier_arrive(gate)
        elif thread == 1:
            for _ in range(1 if synced else 20):
                sim.yield_turn()  # long enough for most orders, and no order at all
            if synced:
                wait(gate, 0)
            sim.shared_read(values, F32)

    if synced:
        assert sim.explore(lambda: kernel[1, 2]()).states > 3
        return
    with pytest.raises(sim.DataRace, match="values, bytes 0 to 3: read at test_explore.py"):
        sim.explore(lambda: kernel[1, 2](), seeds=(2,))


@pytest.mark.parametrize("arrival", ["noinc", "inc", "at once"])
def test_copies_of_single_threads(arrival):
    @cuda.jit
    def kernel(x):
        values = sim.allocate_shared("values", 32, 16)
        full = sim.allocate_shared("full", 8, 8)
        thread = cuda.threadIdx.x
        if thread == 0:
            sim.mbarrier_init(full, 2)
        cuda.syncthreads()
        if thread < 2:
            source = x[4 * thread : 4 * thread + 4].view(np.uint8)
            sim.cp_async("cp_async", values + 16 * thread, source, 16, 16)
            if arrival == "noinc":
                sim.cp_async_mbarrier_arrive_noinc(full)
            elif arrival == "inc":
                sim.cp_async_mbarrier_arrive(full)
                sim.mbarrier_arrive(full)
            else:
                sim.mbarrier_arrive(full)
        else:
            wait(full, 0)
            sim.shared_read(values + 16, F32)

    x = np.zeros(8, np.float32)
    if arrival != "at once":
        assert sim.explore(lambda: kernel[1, 3](x)).states > 20
        return
    with pytest.raises(sim.EarlyRead):
        sim.explore(lambda: kernel[1, 3](x))


@pytest.mark.parametrize("released", ["by both blocks", "by one block"])
def test_a_multicast_ring_of_a_cluster(released):
    @cuda.jit
    @tma.cluster(2)
    def kernel(x, tiles):
        tile = sim.allocate_shared("tile", BYTES, 128)
        full = sim.allocate_shared("full", 8, 8)
        empty = sim.allocate_shared("empty", 8, 8)
        thread, rank = cuda.threadIdx.x, sim.cluster_rank()
        if thread == 0:
            sim.mbarrier_init(full, 1)
            sim.mbarrier_init(empty, 2 if released == "by both blocks" else 1)
            sim.fence_mbarrier_init()
        sim.barrier_cluster_arrive("")
        sim.barrier_cluster_wait("")
        if thread == 0:
            for i in range(tiles):
                if rank == 0:
                    wait(empty, i & 1 ^ 1)
                sim.mbarrier_arrive_expect_tx(full, BYTES)
                if rank == 0:
                    source = x[i * VALUES : (i + 1) * VALUES]
                    sim.cp_async_bulk_load(tile, source, full, 0b11)
                else:
                    wait(full, i & 1)
        else:
            for i in range(tiles):
                wait(full, i & 1)
                sim.shared_read(tile, F32)
                if released == "by both blocks" or rank == 0:
                    sim.mbarrier_arrive_remote(sim.mapa(empty, 0))
        sim.barrier_cluster_arrive("")
        sim.barrier_cluster_wait("")

    x = np.zeros(3 * VALUES, np.float32)
    if released == "by both blocks":
        report = sim.explore(lambda: kernel[2, 2](x, 3))
        assert report.runs == 1 and report.states > 50
        return
    with pytest.raises(sim.EarlyOverwrite):
        sim.explore(lambda: kernel[2, 2](x, 3))


# ------------------------------------------------------------------ what is not explored


def test_threads_that_look_at_the_time():
    @cuda.jit
    def kernel():
        gate, other = sim.allocate_shared("gate", 8, 8), sim.allocate_shared("other", 8, 8)
        thread = cuda.threadIdx.x
        if thread == 0:
            sim.mbarrier_init(gate, 1)
            sim.mbarrier_init(other, 2)
        cuda.syncthreads()
        if thread == 0:
            sim.mbarrier_arrive(gate)
        elif sim.mbarrier_test_wait_parity(gate, 0):
            sim.mbarrier_arrive(other)

    with pytest.raises(sim.TimingDependent, match="warp 0 lane 1 of block .* does something else"):
        sim.explore(lambda: kernel[1, 2](), seeds=range(8))


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ([(1, 4), (3, 2)], r"ran 2 blocks or clusters with 6 threads, and seed 7 4 with 10"),
        ([(1, 4)], r"ran 2 blocks or clusters with 6 threads, and seed 7 1 with 4"),
        ([(1, 4), (1, 3)], r"ran 2 blocks or clusters with 6 threads, and seed 7 2 with 7"),
        ([(1, 2), (1, 4)], r"ran 2 blocks or clusters with 6 threads, and seed 7 2 with 6"),
    ],
)
def test_launches_of_other_blocks_under_another_seed(other, text):
    """Threads that exist under one seed alone are a difference, whatever the others do."""

    @cuda.jit
    def kernel():
        pass

    launches = iter([[(1, 4), (1, 2)], other])

    def launch():
        for extents in next(launches):
            kernel[extents]()

    with pytest.raises(sim.TimingDependent, match=f"^seed 3 {text}: only launches of the same"):
        sim.explore(launch, seeds=(3, 7))


def test_more_states_than_asked_for():
    with pytest.raises(sim.TooManyStates, match="more than 100 states"):
        sim.explore(lambda: run_ring(None), seeds=(0,), limit=100)


def test_a_named_barrier_of_several_groups():
    @cuda.jit
    def kernel():
        if sim.warp_id() < 2:
            sim.barrier_sync(3, 64)
        cuda.syncthreads()
        if sim.warp_id() > 1:
            sim.barrier_sync(3, 64)

    with pytest.raises(sim.BadOperand, match="named barrier 3 for 64 threads is used by 128"):
        sim.explore(lambda: kernel[1, 128](), seeds=(0,))


def test_each_block_is_a_run_of_its_own():
    kernel = pipeline_kernel(2, 0, "read")
    maps = [tma.tensor_map(np.zeros((3, COLUMNS), np.float32), TILE) for _ in range(2)]
    one, two = (sim.explore(lambda n=n: kernel[n, 64](*maps, 3), seeds=(0,)) for n in (1, 2))
    assert two == sim.Report(2, 2 * one.states, 2 * one.transitions)


# ------------------------------------------------------------------- loads without a reader


def test_a_tile_that_nobody_reads_is_loaded():
    PIPE = tma.TilePipeline(2, x=TILE, unread=TILE)

    @cuda.jit
    def kernel(x, tiles):
        pipe = PIPE.start()
        if pipe.is_producer():
            for tile, stage in pipe.produce(0, tiles):
                x.load(stage.x, (tile, 0), stage.barrier)
                x.load(stage.unread, (tile, 0), stage.barrier)
        else:
            for _, stage in pipe.consume(0, tiles):
                stage.x[0, cuda.threadIdx.x % COLUMNS]

    x_map = tma.tensor_map(np.zeros((4, COLUMNS), np.float32), TILE)
    assert sim.explore(lambda: kernel[1, 64](x_map, 4)).states > 50


@pytest.mark.parametrize("read", [True, False])
def test_an_array_in_shared_memory_is_loaded(read):
    @cuda.jit
    def kernel(x):
        target, barrier = cuda.shared.array(COLUMNS, np.float32), tma.shared_barrier()
        if cuda.threadIdx.x == 0:
            barrier.init(1)
            tma.fence_mbarrier_init()
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            barrier.arrive_expect_tx(4 * COLUMNS)
            tma.ptx.cp_async_bulk_load(target, x, 4 * COLUMNS, barrier)
        barrier.wait(0)
        if read:
            x[cuda.threadIdx.x] = target[cuda.threadIdx.x]

    x = np.zeros(COLUMNS, np.float32)
    assert sim.explore(lambda: kernel[1, COLUMNS](x)).states > 5


def test_threads_explore_and_record_their_own_launches():
    found, traced, workers = [], [], []

    def work(tiles):
        with sim.record() as trace:
            found.append((tiles, explore_pipeline(2, tiles, 1, 0, "read", seeds=(0, 1)).states))
        traced.append({event.run for event in trace.events})

    workers = [threading.Thread(target=work, args=(tiles,)) for tiles in (1, 2, 1, 2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    alone = {tiles: explore_pipeline(2, tiles, 1, 0, "read").states for tiles in (1, 2)}
    assert sorted(found) == sorted([*alone.items()] * 2)
    assert traced == [{0, 1}] * 4


def test_a_line_counts_the_states(monkeypatch):
    told, lines = [], []

    class Line:
        def __init__(self):
            lines.append(self)

        def show(self, text):
            told.append(text)

        def clear(self):
            lines.remove(self)

    monkeypatch.setattr(exploration, "ProgressLine", Line)
    report = explore_pipeline(2, 2, 1, 0, "loop")
    assert not lines and told[-1] == f"explored {report.states:,} states, of 1,000,000 at most"
