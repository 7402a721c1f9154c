"""Kernels with matrices in tensor memory, for the compiler, the simulator and their errors."""

from numba import cuda

import numba_tma as tma

TMEM = tma.TensorMemory(256)


@cuda.jit
def round_trip(x, y, wide, narrow):
    """Store rows to an f32 and an f16 accumulator, and load them again; 128 threads, 16 columns."""
    tmem = TMEM.start()
    one = tmem.tile(128, 128)
    two = tmem.tile(128, 64, "f16", column=128)
    row = one.row
    one.store(8, (x[row, 0], x[row, 1]))
    two.store(0, (y[row, 0], y[row, 1]))
    first, second = one.load(8, 2)
    wide[row, 0], wide[row, 1] = first, second
    first, second = two.load(0, 2)
    narrow[row, 0], narrow[row, 1] = first, second
    tmem.close()


@cuda.jit
def packed(x, out):
    """Store a bf16 operand into an accumulator's columns, and load the cells as f32."""
    tmem = TMEM.start()
    scores = tmem.tile(128, 64)
    weights = scores.operand(64, "bf16", column=32)
    row = scores.row
    weights.store(4, (x[row, 0], x[row, 1], x[row, 2], x[row, 3]))
    first, second = scores.load(34, 2)
    out[row, 0], out[row, 1] = first, second
    tmem.close()
