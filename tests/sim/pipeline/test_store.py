"""Store pipelines in the simulator: right in any order of threads, or an error."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import simulator
from numba_tma.pipeline import store as start_of_stores
from numba_tma.pipeline import store_handle as store
from tests.kernels.pipeline_kernels import (
    PARTS,
    ping_pong,
    ping_pong_reference,
    reduce_store,
    store_pipeline,
)
from tests.tiers import quick

ROWS, COLUMNS = 2, 32
TILE = tma.Tile((ROWS, COLUMNS), "u32")
COUNTS = [(stages, tiles) for stages in (1, 2, 4) for tiles in {0, 1, stages, 2 * stages + 1}]


def numbered(tiles, start=0):
    return np.arange(tiles * TILE.size, dtype=np.uint32).reshape(-1, COLUMNS) + np.uint32(start)


def poisoned(tiles):
    return np.full((max(1, tiles) * ROWS, COLUMNS), 0xDEADBEEF, np.uint32)


def expect(out, tiles, want):
    np.testing.assert_array_equal(out[: tiles * ROWS], want)
    assert (out[tiles * ROWS :] == 0xDEADBEEF).all()


@pytest.mark.parametrize(("stages", "tiles"), COUNTS)
def test_stores(stages, tiles):
    kernel, _ = store_pipeline(stages, TILE)
    for seed in range(2):
        simulator.seed(seed)
        out = poisoned(tiles)
        kernel[1, 32](tma.tensor_map(out, TILE), 7, tiles)
        expect(out, tiles, numbered(tiles, 7))


@pytest.mark.parametrize(("stages", "tiles"), COUNTS)
def test_reductions(stages, tiles):
    kernel, _ = reduce_store(stages, TILE, warps=1)
    for seed in range(2):
        simulator.seed(seed)
        out, total = poisoned(tiles), numbered(1)
        kernel[1, 64](tma.tensor_map(out, TILE), tma.tensor_map(total, TILE), 7, tiles)
        expect(out, tiles, numbered(tiles, 7))
        added = numbered(tiles, 7).reshape(-1, ROWS, COLUMNS).sum(axis=0, dtype=np.uint32)
        np.testing.assert_array_equal(total, numbered(1) + added)


SIZES = [(1, 1), (2, 2), (3, 1), (4, 3)]


@pytest.mark.parametrize("tiles", [0, 1, 2, 5])
@pytest.mark.parametrize(("stages", "store_stages"), quick([(1, 1), (3, 1)], SIZES))
def test_ping_pong(stages, store_stages, tiles):
    kernel, _ = ping_pong(stages, store_stages, warps=1)
    tile = tma.Tile((4, 32), "u32")
    x = np.random.default_rng(tiles).integers(0, 1000, (4 * PARTS * tiles, 32), np.uint32)
    for seed in range(2):
        simulator.seed(seed)
        y = np.full((4 * max(1, tiles), 32), 0xDEADBEEF, np.uint32)
        source = x if tiles else np.zeros((4, 32), np.uint32)
        kernel[1, 96](tma.tensor_map(source, tile), tma.tensor_map(y, tile), tiles)
        np.testing.assert_array_equal(y[: 4 * tiles], ping_pong_reference(x))
        assert (y[4 * tiles :] == 0xDEADBEEF).all()


# ------------------------------------------------------------------------ forms of use


def run(kernel, tiles, threads=32, seeds=4):
    for seed in range(seeds):
        simulator.seed(seed)
        out = poisoned(tiles)
        kernel[1, threads](tma.tensor_map(out, TILE), tiles)
        expect(out, tiles, numbered(tiles))


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_a_loop_without_commit_and_one_after_a_break(stages):
    OUT = tma.StorePipeline(stages, y=TILE)

    @cuda.jit
    def number(y, num_tiles):
        out = OUT.start()
        thread = cuda.threadIdx.x
        half = num_tiles // 2
        for tile, stage in out.stages(0, num_tiles):
            for row in range(ROWS):
                stage.y[row, thread] = (tile * ROWS + row) * COLUMNS + thread
            out.store(y, stage.y, (tile * ROWS, 0))
            if tile == half - 1:
                break
        for tile, stage in out.stages(half, num_tiles):
            for row in range(ROWS):
                stage.y[row, thread] = (tile * ROWS + row) * COLUMNS + thread
            out.store(y, stage.y, (tile * ROWS, 0))
        out.tail(read=True)

    run(number, 7)


def test_the_scope_form():
    OUT = tma.StorePipeline(2, y=TILE)

    @cuda.jit
    def number(y, num_tiles):
        out = OUT.start()
        if out.enters():
            for tile in range(num_tiles):
                stage = out.acquire()
                if stage.enters():
                    for row in range(ROWS):
                        column = cuda.threadIdx.x
                        stage.y[row, column] = (tile * ROWS + row) * COLUMNS + column
                    out.store(y, stage.y, (tile * ROWS, 0))
                stage.close()
        out.close()

    run(number, 5)


@pytest.mark.parametrize("stages", [1, 2])
def test_a_stage_that_nothing_is_stored_of(stages):
    OUT = tma.StorePipeline(stages, y=TILE)

    @cuda.jit
    def number(y, num_tiles):
        out = OUT.start()
        thread = cuda.threadIdx.x
        for tile in range(2 * num_tiles):
            stage = out.acquire()
            for row in range(ROWS):
                stage.y[row, thread] = (tile // 2 * ROWS + row) * COLUMNS + thread
            if tile % 2:
                out.store(y, stage.y, (tile // 2 * ROWS, 0))
            out.commit()
        out.tail()

    run(number, 4)


def test_tiles_in_memory_of_the_caller_and_the_stages_afterwards():
    OUT = tma.StorePipeline(2, y=TILE)
    MEMORY = tma.Tile((2 * ROWS, COLUMNS), "u32")

    @cuda.jit
    def number(y, num_tiles):
        memory = tma.shared_tile(MEMORY)
        thread = cuda.threadIdx.x
        out = OUT.start(tiles=memory)
        for tile, stage in out.stages(0, num_tiles):
            for row in range(ROWS):
                stage.y[row, thread] = (tile * ROWS + row) * COLUMNS + thread
            out.store(y, stage.y, (tile * ROWS, 0))
        out.tail(read=True)
        out.sync()
        memory[0, 31 - thread] = 1

    run(number, 5)


# ------------------------------------------------------------------------ what is caught


class Broken(store.StorePipelineHandle):
    """A store pipeline with one step left out."""

    leaves_out = ""

    def _await_read(self):
        if self.leaves_out != "wait":
            super()._await_read()

    def sync(self):
        if self.leaves_out != "sync":
            super().sync()


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("step", ["wait", "sync", "fence"])
def test_no_step_is_superfluous(stages, step, monkeypatch):
    monkeypatch.setattr(start_of_stores, "StorePipelineHandle", Broken)
    monkeypatch.setattr(Broken, "leaves_out", step)
    if step == "fence":
        monkeypatch.setattr(store, "fence_proxy_async", lambda: None)
    kernel, _ = store_pipeline(stages, tma.Tile((ROWS, 64), "u32"))
    out = np.zeros((8 * ROWS, 64), np.uint32)
    with pytest.raises(simulator.SimulatorError):
        kernel[1, 64](tma.tensor_map(out, tma.Tile((ROWS, 64), "u32")), 0, 8)


def test_a_write_after_the_store_is_caught():
    OUT = tma.StorePipeline(2, y=TILE)

    @cuda.jit
    def late(y, num_tiles):
        out = OUT.start()
        for tile, stage in out.stages(0, num_tiles):
            for row in range(ROWS):
                stage.y[row, cuda.threadIdx.x] = row
            out.store(y, stage.y, (tile * ROWS, 0))
            stage.y[0, cuda.threadIdx.x] = 1
        out.tail()

    with pytest.raises((simulator.EarlyOverwrite, simulator.MissingFence)):
        run(late, 3)


def test_an_end_without_tail_is_caught():
    OUT = tma.StorePipeline(2, y=TILE)

    @cuda.jit
    def hasty(y, num_tiles):
        out = OUT.start()
        stage = out.acquire()
        for row in range(ROWS):
            stage.y[row, cuda.threadIdx.x] = row
        out.store(y, stage.y, (0, 0))

    with pytest.raises(simulator.UnfinishedCopy):
        run(hasty, 1)


def test_a_block_of_another_size():
    kernel, _ = reduce_store(2, TILE, warps=1)
    y = tma.tensor_map(poisoned(1), TILE)
    with pytest.raises(simulator.SimulatorError, match="block 32: the roles.*have 64 threads"):
        kernel[1, 32](y, y, 0, 1)
