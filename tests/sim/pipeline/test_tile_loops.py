"""The loops of a tile pipeline hold `in_flight` stages besides the newest while they go on."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import simulator as sim

TILE = tma.Tile((1, 32), "f32")
STAGES, TILES = 4, 7


def loops(by_queue):
    """Return the kernel with a loop for each `in_flight`, which adds the stages that it holds."""
    PIPE = tma.TilePipeline(STAGES, x=TILE)

    @cuda.jit
    def kernel(x, out, counters, flights):
        pipe = PIPE.start()
        lane = cuda.threadIdx.x % 32
        for number, in_flight in enumerate(flights):
            if pipe.is_producer():
                queue = tma.TileQueue(counters[number], TILES)
                for tile, stage in pipe.produce_from(queue) if by_queue else pipe.produce(0, TILES):
                    x.load(stage.x, (tile, 0), stage.barrier)
            else:
                held = []
                for tile, stage in (
                    pipe.consume_from(in_flight)
                    if by_queue
                    else pipe.consume(0, TILES, in_flight=in_flight)
                ):
                    held = [*held, stage][-in_flight - 1 :]
                    for one in held:
                        cuda.syncwarp()  # other threads and copies may go on
                        out[number, tile, lane] += one.x[0, lane]
        if pipe.is_consumer():
            pipe.release_pending()

    return kernel


@pytest.mark.parametrize("by_queue", [False, True])
@pytest.mark.parametrize("flights", [(0, 2, 1), (3, 0, 1)])
def test_a_loop_holds_the_stages_in_flight(by_queue, flights):
    x = np.random.default_rng(1).integers(0, 99, (TILES, 32)).astype(np.float32)
    sums = [[x[max(0, t - n) : t + 1].sum(axis=0) for t in range(TILES)] for n in flights]
    kernel, x_map = loops(by_queue), tma.tensor_map(x, TILE)
    for seed in range(3):
        sim.seed(seed)
        out, counters = np.zeros((3, TILES, 32)), np.zeros((3, 1), np.uint32)
        kernel[1, 64](x_map, out, counters, flights)
        np.testing.assert_array_equal(out, sums)
