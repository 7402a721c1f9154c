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
@pytest.mark.parametrize("form", ["read", "changed and stored", "stored"])
def test_no_interleaving_of_the_pipeline_goes_wrong(stages, consumers, in_flight, form):
    states = []
    for tiles in range(10) if form == "read" else (0, 1, stages, 9):
        seeds = (0, 1) if tiles == 2 * stages else (0,)
        report = explore_pipeline(stages, tiles, consumers, in_flight, form, seeds)
        states.append(report.states)
        assert report.runs == 1 and report.transitions >= report.states - 1
    assert max(states) == states[-1] > 50
