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

@functools.cache
def passed_on(stages: int) -> Any:
    """Return the kernel that adds three tiles, whose stages variables pass on."""
    PIPE = tma.TilePipeline(stages, x=TILE)

    @cuda.jit
    def kernel(x, y, n):
        pipe = PIPE.start()
        if pipe.is_producer():
            for z, stage in pipe.produce(0, n):
                x.load(stage.x, (z, 0), stage.barrier)
        else:
            consumer = pipe.consumer()
            below, here = consumer.wait(), consumer.wait()
            for z in range(1, n - 1):
                above = consumer.wait()
                for i in range(pipe.consumer_thread(), COLUMNS, pipe.num_consumers()):
                    y[z, i] = below.x[0, i] + here.x[0, i] + above.x[0, i]
                consumer.release()
                below = here
                here = above
            consumer.release()
            consumer.release()
        pipe.close()

    return kernel


# ---------------------------------------------------------------------- a 7-point stencil

ROWS, WIDTH, PAD = 16, 64, 4
PLANE = tma.Tile((1, ROWS + 2, WIDTH + 2 * PAD), "f32")


@functools.cache
def stencil(by_hand: bool = False, stages: int = 5, warps: int = 8) -> Any:
    """Return the roles and the kernel of a 7-point stencil: a block has a part of every plane.

    By hand: sums of the planes that have been read wait in registers, which is the form with the
    fewest reads of shared memory.
    """
    ROLES = tma.Roles(work=tma.Warps(warps), load=tma.Warps(1))
    PIPE = tma.TilePipeline(stages, x=PLANE, producer=ROLES.load, consumer=ROLES.work)
    DOWN = 32 * warps // WIDTH
    POINTS = ROWS // DOWN

    @cuda.jit
    def with_windows(x, y, first, stop):
        pipe = PIPE.start()
        row, column = cuda.blockIdx.y * ROWS, cuda.blockIdx.x * WIDTH
        if pipe.is_producer():
            for z, stage in pipe.produce_windows(first, stop):
                x.load(stage.x, (z, row - 1, column - PAD), stage.barrier)
        else:
            thread = pipe.consumer_thread()
            i, j = thread // WIDTH, thread % WIDTH
            for z, window in pipe.windows(first, stop):
                below, here, above = window[-1].x, window[0].x, window[1].x
                for p in range(POINTS):
                    r, c = i + p * DOWN + 1, j + PAD
                    total = below[0, r, c] + above[0, r, c]
                    total += here[0, r - 1, c] + here[0, r + 1, c]
                    total += here[0, r, c - 1] + here[0, r, c + 1]
                    y[z, row + r - 1, column + j] = total - np.float32(6) * here[0, r, c]
        pipe.close()

    @cuda.jit
    def with_sums(x, y, first, stop):
        pipe = PIPE.start()
        row, column = cuda.blockIdx.y * ROWS, cuda.blockIdx.x * WIDTH
        if pipe.is_producer():
            for z, stage in pipe.produce(first - 1, stop + 1):
                x.load(stage.x, (z, row - 1, column - PAD), stage.barrier)
        else:
            thread = pipe.consumer_thread()
            i, j = thread // WIDTH, thread % WIDTH
            sums, below = cuda.local.array(POINTS, np.float32), cuda.local.array(POINTS, np.float32)
            for p in range(POINTS):
                sums[p] = below[p] = np.float32(0)
            for z, stage in pipe.consume(first - 1, stop + 1):
                here = stage.x
                for p in range(POINTS):
                    r, c = i + p * DOWN + 1, j + PAD
                    middle = here[0, r, c]
                    if z > first:
                        y[z - 1, row + r - 1, column + j] = sums[p] + middle
                    total = below[p] + here[0, r - 1, c] + here[0, r + 1, c]
                    total += here[0, r, c - 1] + here[0, r, c + 1]
                    sums[p] = total - np.float32(6) * middle
                    below[p] = middle
        pipe.close()

    return ROLES, with_sums if by_hand else with_windows
