"""Kernels for `testing.check`: right ones, and ones that a half refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

import numba_tma as tma

TILE = tma.Tile((4, 32), "f32")
PIPE = tma.TilePipeline(2, x=TILE)


@cuda.jit(device=True)
def twice(value):
    return 2 * value


def copies(factor: Any) -> Any:
    """Return a kernel that no module has by a name; `factor` is in its closure."""

    @cuda.jit
    def scaled(x, y, n):
        pipe = PIPE.start()
        if pipe.is_producer():
            for t, stage in pipe.produce(0, n):
                x.load(stage.x, (t * 4, 0), stage.barrier)
        else:
            lane = cuda.threadIdx.x
            for t, stage in pipe.consume(0, n):
                for i in range(4):
                    y[4 * t + i, lane] = twice(stage.x[i, lane]) * factor

    return scaled


@cuda.jit
def does_not_compile(x, y, n):
    for word in ("a", 2):  # a tuple of two types
        y[0, 0] = len(str(word))


@cuda.jit
def deadlocks(x, y, n):
    pipe = PIPE.start()
    if pipe.is_producer():
        for t, stage in pipe.produce(0, n - 1):
            x.load(stage.x, (t * 4, 0), stage.barrier)
    else:
        for _ in pipe.consume(0, n):
            pass


def arguments() -> tuple[Any, ...]:
    x = np.arange(16 * 32, dtype=np.float32).reshape(16, 32)
    return tma.tensor_map(x, TILE), np.zeros_like(x), 4


class Unpicklable:
    """A global that no other process can have, and that may be an array for all its source says."""

    dtype = None

    def __reduce__(self) -> Any:
        raise ValueError("this one stays")


#: A cell of a notebook: its kernel is in `__main__`, and no file has its source.
NOTEBOOK = """
from numba import cuda
import numba_tma as tma
from tests.kernels.checked import PIPE, arguments

def make():
    return arguments()

@cuda.jit
def copy(x, y, n):
    pipe = PIPE.start()
    if pipe.is_producer():
        for t, stage in pipe.produce(0, n):
            x.load(stage.x, (t * 4, 0), stage.barrier)
    else:
        for t, stage in pipe.consume(0, n):
            y[4 * t, cuda.threadIdx.x] = stage.x[0, cuda.threadIdx.x]

done = tma.testing.check(copy, make, 1, 64)
assert (done.arguments[1] == done.arguments[0])[::4].all(), done.arguments
"""
