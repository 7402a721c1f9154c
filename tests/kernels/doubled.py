"""A kernel that doubles the tiles of a tensor: for tests of processes and threads."""

from numba import cuda

import numba_tma as tma

TILE = tma.Tile((4, 32), "f32")
PIPE = tma.TilePipeline(2, x=TILE)


@cuda.jit
def double(x, y, n):
    pipe = PIPE.start()
    if pipe.is_producer():
        for tile, stage in pipe.produce(0, n, 1):
            x.load(stage.x, (tile * 4, 0), stage.barrier)
    elif pipe.is_consumer():
        for tile, stage in pipe.consume(0, n, 1):
            for i in range(pipe.consumer_thread(), 128, pipe.num_consumers()):
                y[tile * 4 + i // 32, i % 32] = 2 * stage.x[i // 32, i % 32]
