"""Python that numba-cuda compiles in any kernel: the simulator's reading must accept it all."""

import collections
import enum
import math
import operator

import numpy as np
from numba import cuda, float32

import numba_tma as tma


class Color(enum.IntEnum):
    RED = 1
    GREEN = 2


Options = collections.namedtuple("Options", "count scale")

TABLE = np.arange(4, dtype=np.float32)
PAIR = (3, 4)
OPTIONS = Options(2, 3.0)
TILE = tma.Tile((8,), np.float32)

KERNELS = {}


def kernel(function):
    KERNELS[function.__name__] = cuda.jit(function)
    return function


@cuda.jit(device=True)
def both(x):
    return x, x * 2


@cuda.jit(device=True)
def scaled(x, scale=2, shift=0):
    return x * scale + shift


@kernel
def loops_over_tuples(y):
    for i, value in enumerate(PAIR):
        y[i] = value
    for a, b in zip(PAIR, (5, 6)):
        y[2] = a + b


@kernel
def a_closure(y):
    def inner(z):
        return z * 2

    y[0] = inner(3)


@kernel
def a_lambda(y):
    twice = lambda z: z * 2  # noqa: E731
    y[0] = twice(3)


@kernel
def globals_of_every_kind(y):
    y[0] = TABLE[2] + OPTIONS.count + OPTIONS.scale + PAIR[1]
    if Color.RED == Color.GREEN:
        y[1] = 1


@kernel
def a_complex_number(y):
    z = complex(1.0, 2.0)
    y[0] = z.real * z.imag


@kernel
def assertions(y):
    assert y.shape[0] > 1
    if y.size == 0:
        raise ValueError("empty")


@kernel
def unpacking(y):
    a, b = both(y[0])
    (c, d), e = (a, b), 3
    y[1] = a + b + c + d + e


@kernel
def arguments_by_name(y):
    y[0] = scaled(2, shift=1)
    y[1] = scaled(shift=1, x=2, scale=3)


@kernel
def loops_with_else(y):
    i = 0
    while i < 3:
        i += 1
    else:
        y[0] = i
    for j in range(3):
        if j == 5:
            break
    else:
        y[1] = j


@kernel
def arrays(y):
    a = cuda.local.array(4, np.float32)
    a[0] = 1
    part, whole = y[1:3], y[:]
    part[0] = a[0]
    whole[3] = y.size + y.ndim + y.itemsize
    y[4] = cuda.const.array_like(TABLE)[1]


@kernel
def shared_memory(y):
    s = cuda.shared.array((4, 4), float32)
    t = tma.shared_tile(TILE)
    i = cuda.threadIdx.x
    if i < 4:
        s[i, 0] = 1
        t[i] = 2
    cuda.syncthreads()
    y[i % 8] = s[0, 0] + t[1]


@kernel
def builtins(y):
    y[0] = min(1, 2, 3) + max(1.0, 2.0) + abs(-1) + round(1.5) + int(2.7) + float(3) + bool(1)
    y[1] = pow(2, 3) + divmod(7, 2)[0] + len(PAIR) + sum((1, 2, 3))
    y[2] = math.sin(1.0) + math.pi + np.float32(1) + np.int64(3) + operator.add(1, 2)


@kernel
def tuples(y):
    t = (1, 2) + (3,)
    y[0] = t[-1]
    y[1] = t[1:][0]
    y[2] = 1 if 2 in t else 0


@kernel
def choices(y):
    match y.shape[0]:
        case 8:
            y[0] = 1
        case _:
            y[0] = 2
    mode = "fast"
    if mode == "fast" and isinstance(y[0], float):
        y[1] = 3


@kernel
def integers(y):
    n = 0
    for i in range(3):
        n |= i
        n ^= 1
        n <<= 1
    y[0], y[1], y[2] = n, not n, ~n
    y[3] = n // 2 if n else -n


@kernel
def functions_of_cuda(y):
    y[0] = cuda.shfl_sync(0xFFFFFFFF, cuda.laneid, 0) + cuda.popc(3) + cuda.ffs(4)
    y[1] = cuda.selp(True, 1, 2)
    cuda.atomic.add(y, 2, 1.0)
    cuda.threadfence()
    for i in range(cuda.grid(1) + 3, y.shape[0], cuda.gridsize(1)):
        y[i] = i
