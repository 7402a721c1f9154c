"""Kernels whose consumers read windows of a stream, and what they compute."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import cuda

import numba_tma as tma

COLUMNS = 32
TILE = tma.Tile((1, COLUMNS), "f32")


@functools.cache
def window_sums(
    before: int, after: int, stages: int, backwards: bool = False, warps: int = 2
) -> Any:
    """Return the kernel that weighs the tiles of each window of several chunks of a stream.

    The order in which a block has its windows stands in column 0 of `order`.
    """
    ROLES = tma.Roles(work=tma.Warps(warps), load=tma.Warps(1))
    PIPE = tma.TilePipeline(stages, x=TILE, producer=ROLES.load, consumer=ROLES.work)
    FIRST, LAST, STEP = -before, after + 1, -1 if backwards else 1

    @cuda.jit
    def kernel(x, y, order, chunks):
        pipe = PIPE.start()
        if pipe.is_producer():
            for chunk in range(chunks.shape[0]):
                first, stop = chunks[chunk, 0], chunks[chunk, 1]
                if backwards:
                    first, stop = stop - 1, first - 1
                for z, stage in pipe.produce_windows(first, stop, STEP, before=before, after=after):
                    x.load(stage.x, (z, 0), stage.barrier)
        else:
            thread, turn = pipe.consumer_thread(), 0
            for chunk in range(chunks.shape[0]):
                first, stop = chunks[chunk, 0], chunks[chunk, 1]
                if backwards:
                    first, stop = stop - 1, first - 1
                for z, window in pipe.windows(first, stop, STEP, before=before, after=after):
                    for i in range(thread, COLUMNS, pipe.num_consumers()):
                        total = np.float32(0)
                        for d in range(FIRST, LAST):
                            total += window[d].x[0, i] * np.float32(d + 10)
                        y[z, i] += total + window[0].x[0, i]
                    if thread == 0:
                        order[turn] = z
                    turn += 1
        pipe.close()

    return ROLES, kernel


def expected_sums(x: Any, before: int, after: int, chunks: Any) -> Any:
    """Return what `window_sums` computes: tiles outside of the stream are 0."""
    padded, y = np.pad(x, ((before, after), (0, 0))), np.zeros_like(x)
    for first, stop in chunks:
        for z in range(first, stop):
            weights = np.arange(-before, after + 1, dtype=x.dtype) + 10
            y[z] += weights @ padded[z : z + before + 1 + after] + x[z]
    return y
