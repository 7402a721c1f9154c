"""Every interleaving: of the library's pipeline, and of broken ones, which are all found."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import simulator as sim
from numba_tma.layout import Tile

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
                pipe.producer.tail()
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


@pytest.mark.parametrize(("stages", "consumers", "in_flight"), GRID)
def test_no_interleaving_of_the_pipeline_goes_wrong(stages, consumers, in_flight):
    states = []
    for tiles in range(10):
        seeds = (0, 1) if tiles == stages + 1 else (0,)
        report = explore_pipeline(stages, tiles, consumers, in_flight, "read", seeds)
        states.append(report.states)
        assert report.runs == 1 and report.transitions >= report.states - 1
    assert max(states) == states[-1] > 50


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
