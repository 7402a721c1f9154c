"""Mutants of kernels with pipelines, and the simulator's errors."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import simulator as sim
from numba_tma.host.layout import Tile
from numba_tma.pipeline import ConsumerStage

ROWS, COLUMNS, STAGES, TILES = 4, 16, 2, 7
TILE, MARKS = Tile((ROWS, COLUMNS), "f32"), Tile((2, 16), "u8")
PIPE = tma.TilePipeline(STAGES, x=TILE, marks=MARKS)
NAME = repr(PIPE)
SEEDS, MORE_SEEDS = (0, 5), (1, 2, 3, 4, 6, 7, 8, 9)


@cuda.jit
def doubled(x, marks, y, mutation):
    """The last warp loads two tiles a stage; the other two double x in place and store it."""
    pipe = PIPE.start()
    if pipe.is_producer():
        if tma.elect_sync():
            produce(pipe, x, marks, mutation)
    else:
        consume(pipe, y, mutation)
        if mutation not in UNRELEASED:
            pipe.release_pending()


def produce(pipe, x, marks, mutation):
    tiles = TILES + {"one tile too few": -1, "one tile too many": 1}.get(mutation, 0)
    for t in range(tiles):
        stage = acquire(pipe, mutation)
        column = 2 if mutation == "load off 16 bytes" else 0
        if mutation == "more bytes expected":
            stage.barrier.expect_tx(16)
        x.load(stage.x, (t * ROWS, column), stage.barrier)
        if mutation == "loaded twice":
            x.load(stage.x, (t * ROWS, 0), stage.barrier)
        if mutation != "a tile of the stage is not loaded":
            marks.load(stage.marks, (2 * t, 0), stage.barrier)
        pipe.producer().commit()
    pipe.producer().tail()


def acquire(pipe, mutation):
    producer = pipe.producer()
    armed = PIPE.tx_bytes
    if mutation == "fewer bytes expected":
        armed -= 16
    elif mutation != "no wait for empty":
        return producer.acquire()
    if mutation != "no wait for empty":
        producer._await_next()
    else:
        producer.state.step()
    stage = tma.pipeline.ProducerStage(producer, producer.state.index)
    stage.barrier.arrive_expect_tx(armed)
    return stage


def stage_at(pipe, index):
    return ConsumerStage(pipe.consumer(), index)


def double(tile, other=None):
    for i in range(cuda.threadIdx.x, TILE.size, 64):
        at = (i // COLUMNS, i % COLUMNS)
        tile[at] *= 2 if other is None else 2 + 0 * other[at]


UNRELEASED = ("break without a release", "still in flight at the end", "break after a store")


STORED_BY_HAND = ("stored without a fence", "stored without a sync", "a store is not waited for")


def store_by_hand(pipe, y, tile, at, mutation):
    if mutation != "stored without a fence":
        tma.fence_proxy_async()
    if mutation != "stored without a sync":
        pipe.sync_consumers()
    if cuda.threadIdx.x == 0:
        y.store(tile, at)
        tma.ptx.cp_async_bulk_commit_group()
        if mutation != "a store is not waited for":
            tma.ptx.cp_async_bulk_wait_group_read(0)


def consume(pipe, y, mutation):
    warp = cuda.threadIdx.x // 32
    in_flight = 1 if mutation == "still in flight at the end" else 0
    for t, stage in pipe.consume(0, TILES, in_flight=in_flight):
        if mutation == "the next stage is read too":
            double(stage.x, stage_at(pipe, 1 - stage.index).x)
        elif mutation == "the last stage is read late" and t > 0:
            double(stage.x, stage_at(pipe, 1 - stage.index).x)
        elif mutation == "the last stage is doubled late":
            if t > 0:
                double(stage_at(pipe, 1 - stage.index).x)
                continue
        elif mutation == "break without a release" and t == 3:
            break
        double(stage.x)
        at = (t * ROWS, 8 + 1 if mutation == "store off 16 bytes" else 0)
        if mutation == "break after a store" and t == TILES - 1:
            pipe.store(y, stage.x, at)
            break
        if mutation == "stored as not written":
            pipe.store(y, stage.x, at, written=False)
        elif mutation in STORED_BY_HAND:
            store_by_hand(pipe, y, stage.x, at, mutation)
        else:
            pipe.store(y, stage.x, at)
        if mutation == "one warp keeps a stage" and t == 2 and warp == 1:
            pipe.consumer().current = PIPE.num_stages
        if mutation == "released twice" and t == 2 and cuda.threadIdx.x == 32:
            tma.Barrier(pipe.consumer().barriers + PIPE.empty_offset + 8 * stage.index).arrive()


def run(mutation, seed):
    sim.seed(seed)
    x = np.arange(TILES * TILE.size, dtype=np.float32).reshape(-1, COLUMNS)
    marks = np.zeros((2 * TILES, 16), np.uint8)
    y = np.zeros_like(x)
    maps = tma.tensor_map(x, TILE), tma.tensor_map(marks, MARKS), tma.tensor_map(y, TILE)
    doubled[1, 96](*maps, mutation)
    np.testing.assert_array_equal(y, 2 * x)


def test_the_kernel_is_right_without_a_mutation():
    for seed in SEEDS:
        run(None, seed)


#: The error, what it says under every seed, and what else the mistake may show itself as.
MUTANTS = {
    "one tile too few": (
        sim.Deadlock,
        [f"full[0] of {NAME} is in phase 3 (parity 1): 1 of 1 arrivals pending, 0 bytes missing",
         "a phase of parity 1 wanted", "warps 0-1 lanes 0-31"],
    ),
    "one tile too many": (
        sim.Deadlock,
        [f"empty[1] of {NAME} is in phase 3 (parity 1): 2 of 2 arrivals pending, 0 bytes missing",
         "warp 2 lane 0"],
    ),
    "a tile of the stage is not loaded": (
        sim.Deadlock,
        [f"full[0] of {NAME} is in phase 0 (parity 0): 0 of 1 arrivals pending, 32 bytes missing "
         "(288 expected, 256 issued)", "parity 0 wanted", "block (0, 0, 0): warps 0-1 lanes 0-31",
         f"empty[0] of {NAME}", "warp 2 lane 0"],
    ),
    "more bytes expected": (
        sim.Deadlock,
        [f"full[0] of {NAME}", "16 bytes missing (304 expected, 288 issued)",
         "the producer loads every tile of the pipeline", "warps 0-1 lanes 0-31"],
    ),
    "fewer bytes expected": (
        sim.WrongByteCount,
        [f"] of {NAME}, phase 0: the loads bring 16 bytes more", "272 expected, 288 issued"],
    ),
    "loaded twice": (sim.EarlyOverwrite, [f"x[0] of {NAME}", "overwritten by another load"]),
    "no wait for empty": (sim.EarlyOverwrite, [f"[0] of {NAME}"], sim.BarrierMisuse),
    "the next stage is read too": (
        sim.EarlyRead, [f"x[1] of {NAME}", "full[1]", "wait for that phase"],
        sim.UninitializedRead,
    ),
    "the last stage is read late": (sim.EarlyOverwrite, [f"of {NAME}"], sim.EarlyRead),
    "the last stage is doubled late": (sim.EarlyOverwrite, [f"x[0] of {NAME}", "a write to"]),
    "load off 16 bytes": (
        sim.BadCoordinate, ["innermost coordinate (axis 1) is 2", "8 bytes", "multiple of 4"],
    ),
    "store off 16 bytes": (
        sim.BadCoordinate, ["innermost coordinate (axis 1) is 9", "36 bytes", "multiple of 4"],
    ),
    "stored as not written": (sim.MissingFence, [f"of {NAME}", "fence_proxy_async()"]),
    "stored without a fence": (sim.MissingFence, [f"of {NAME}", "fence_proxy_async()"]),
    "stored without a sync": (sim.MissingFence, [f"of {NAME}", "synchronise with the thread"]),
    "a store is not waited for": (sim.EarlyOverwrite, [f"of {NAME}", "may still be reading"]),
    "one warp keeps a stage": (
        sim.Deadlock, [f"empty[0] of {NAME}", "1 of 2 arrivals pending", "warp 2 lane 0"],
    ),
    "released twice": (
        sim.EarlyOverwrite, [f"of {NAME}", "may still be reading"],
    ),
    "break without a release": (
        sim.Deadlock,
        [f"empty[1] of {NAME}", "2 of 2 arrivals pending", "warp 2 lane 0",
         "exited: block (0, 0, 0): warps 0-1 lanes 0-31"],
    ),
    "break after a store": (
        sim.Deadlock, [f"empty[0] of {NAME}", "2 of 2 arrivals pending", "warp 2 lane 0"],
    ),
    "still in flight at the end": (
        sim.UnfinishedCopy, ["1 committed store(s) that it has not waited for"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("seeds", [SEEDS, pytest.param(MORE_SEEDS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mutation", MUTANTS)
def test_every_mutant_is_caught_under_any_seed(mutation, seeds):
    kind, texts, *others = MUTANTS[mutation]
    seen = 0
    for seed in seeds:
        with pytest.raises((kind, *others)) as caught:
            run(mutation, seed)
        if type(caught.value) is kind:
            seen += 1
            for text in texts:
                assert text in str(caught.value), f"seed {seed}"
    assert seen > 0 if others else seen == len(seeds)


# ------------------------------------------------------ what the compiler refuses on a GPU


OTHER = Tile((2, 16), "f32")


def launch(body, threads=32, tile=TILE):
    """Call body(map, tile, barrier) in thread 0, with a map of TILE and a shared `tile`."""

    @cuda.jit
    def kernel(x):
        t, barrier = tma.shared_tile(tile), tma.shared_barrier()
        if cuda.threadIdx.x == 0:
            barrier.init(1)
            tma.fence_mbarrier_init()
            body(x, t, barrier)

    kernel[1, threads](tma.tensor_map(np.zeros((64, 64), np.float32), TILE))


REFUSED = {
    "load into another tile": (
        lambda m, t, b: m.load(t, (0, 0), b),
        [f"the map copies {TILE}", f"the tile in shared memory is {OTHER}"],
        OTHER,
    ),
    "store from another tile": (
        lambda m, t, b: m.store(t, (0, 0)),
        [f"the map copies {TILE}", f"the tile in shared memory is {OTHER}"],
        OTHER,
    ),
    "a barrier for the tile": (
        lambda m, t, b: m.load(b, (0, 0), b), ["a barrier is given where the tile belongs"], TILE,
    ),
    "a tile for the barrier": (
        lambda m, t, b: m.load(t, (0, 0), t), ["a tile is given where the barrier belongs"], TILE,
    ),
    "three coordinates for two axes": (
        lambda m, t, b: m.load(t, (0, 0, 0), b), ["3 coordinates", "rank 2", "axis order"], TILE,
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", REFUSED)
def test_what_does_not_go_together(mistake):
    body, texts, tile = REFUSED[mistake]
    with pytest.raises(sim.BadOperand) as caught:
        launch(body, tile=tile)
    for text in texts:
        assert text in str(caught.value)


@pytest.mark.parametrize("threads", [32, 48, 100])
def test_a_block_has_a_producer_warp_and_consumer_warps(threads):
    @cuda.jit
    def kernel():
        PIPE.start()

    with pytest.raises(sim.BadOperand) as caught:
        kernel[1, threads]()
    assert f"the block has {threads} threads" in str(caught.value)
    assert "a multiple of 32, and at least 64" in str(caught.value)


@pytest.mark.parametrize("index", [(4, 0), (0, 16), (-1, 0)])
def test_an_index_outside_a_tile(index):
    with pytest.raises(IndexError, match=r"is outside Tile\(\(4, 16\), f32, NONE\)"):
        launch(lambda m, t, b: t[index])


@pytest.mark.parametrize("index", [(0,), 0])
def test_an_index_has_an_integer_for_each_axis(index):
    with pytest.raises(IndexError, match="has 2 axes but is indexed with 1 integers"):
        launch(lambda m, t, b: t[index])


def test_a_vector_starts_at_16_bytes():
    with pytest.raises(IndexError, match="8 B after a multiple of 16 B: use a multiple of 4"):
        launch(lambda m, t, b: t.read_vector((0, 2)))


def test_a_view_has_the_size_of_its_tile():
    with pytest.raises(ValueError, match=r"has 256 B and cannot be seen as .* which has 128 B"):
        launch(lambda m, t, b: t.view(OTHER))


def test_a_stage_has_the_tiles_of_its_pipeline():
    @cuda.jit
    def kernel():
        stage_at(PIPE.start(), 0).z  # noqa: B018

    with pytest.raises(AttributeError, match="has no tile 'z'"):
        kernel[1, 64]()
