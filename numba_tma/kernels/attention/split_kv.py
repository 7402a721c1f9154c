"""What follows attention whose keys were shared out: the parts of each query's result are added up.

Few queries are too few blocks for all multiprocessors. Then the keys of each block of queries are
shared out to several, each of which computes a result o and the logarithm of its sum, lse, in
float32, as if there were no other keys. With L = log(sum of exp(lse)), the result is the sum of
exp(lse - L) o, added up in the order of the parts, and its logarithm is L.

Cost model: parts stay in the L2 cache; each is read once.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import cuda

from numba_tma import ptx
from numba_tma.device.arithmetic import exp2, fused, larger
from numba_tma.device.row_share import (
    Share,
    from_float,
    keep,
    load_global,
    store_global,
    to_float,
    weighted,
    zeros,
)
from numba_tma.device.vectors import largest, total
from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.kernels._host.launching import Matrix, launch
from numba_tma.kernels.attention.arrays import Heads
from numba_tma.kernels.attention.softmax import (
    LOG2_E,
    MINUS_INFINITY,
    ZERO,
    inverse,
    log_of_sum,
    shift_of,
)
from numba_tma.kernels.rows.columns import workspace

THREADS = 128
CHUNK = 4  # elements of a thread
F32 = as_dtype("f32")


@functools.cache
def adding_kernel(dtype: DType, depth: int, logs: bool, together: int) -> Any:
    """Return the kernel in which each thread adds up the parts of `CHUNK` elements.

    `parts` is the address of float32 (batch, heads, queries, splits, depth), `sums` that of the
    logarithms, the same without the depth. `out` is (batch, queries, heads, depth) of `dtype`, with
    strides in bytes, and `lse` (batch, heads, queries), which is written if `logs`. So many parts
    are loaded `together`: a thread waits for memory once for all of them.
    """
    CHUNKS, LSE, TOGETHER = depth // CHUNK, logs, together
    PARTS = Share(F32, 4 * CHUNK, TOGETHER, CHUNKS, False)
    NUMBERS = Share(F32, 4, TOGETHER, 1, False)
    OUT = Share(dtype, dtype.itemsize * CHUNK, 1, 1, True)

    @cuda.jit
    def add_parts(parts, sums, splits, out, strides, rows, queries, heads, lse):  # type: ignore[no-untyped-def]
        thread = np.uint32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
        row, chunk = np.int64(thread // CHUNKS), np.int32(thread % CHUNKS)
        number, query = np.uint32(row) // np.uint32(queries), np.uint32(row) % np.uint32(queries)
        sequence, head = np.int64(number // np.uint32(heads)), np.int64(number % np.uint32(heads))
        ptx.griddepcontrol_wait()  # its blocks start while the last parts are computed
        if row < rows:
            numbers = sums + 4 * row * splits
            top = MINUS_INFINITY
            for part in range(0, splits, TOGETHER):
                found = load_global(NUMBERS, numbers, part, splits)
                found = keep(NUMBERS, to_float(NUMBERS, found), part, splits, MINUS_INFINITY)
                top = larger(top, largest(found))
            shift = shift_of(top, LOG2_E)
            result, whole = zeros(OUT), ZERO
            for part in range(0, splits, TOGETHER):
                at = parts + 4 * depth * (row * splits + part)
                found = load_global(NUMBERS, numbers, part, splits)
                values = load_global(PARTS, at, chunk, (splits - part) * CHUNKS)
                found = keep(NUMBERS, to_float(NUMBERS, found), part, splits, MINUS_INFINITY)
                weights = exp2(fused(found, LOG2_E, shift))
                result += weighted(PARTS, to_float(PARTS, values), weights)
                whole += total(weights)
            result *= inverse(whole)
            to = out + sequence * strides[0] + np.int64(query) * strides[1] + head * strides[2]
            store_global(OUT, to, chunk, CHUNKS, from_float(OUT, result))
            if LSE:
                if chunk == 0:
                    ptx.st_global_f32(lse + 4 * row, log_of_sum(whole, shift))

    return add_parts


def parts_of(out: Heads, splits: int, kept: list[Any]) -> tuple[int, int]:
    """Return addresses for the results of parts, (batch, heads, queries, splits, depth), and logs.

    The logarithms are (batch, heads, queries, splits). `kept` gets the memory.
    """
    batch, queries, heads, depth = out.shape
    rows = batch * heads * queries
    parts, sums = workspace(rows * splits, depth), workspace(rows, splits)
    kept += [parts, sums]
    first, second = (Matrix("workspace", w).address for w in (parts, sums))
    return first, second


def add_up(parts: int, sums: int, splits: int, out: Heads, lse: int | None, stream: Any) -> None:
    """Launch the kernel that adds up parts."""
    batch, queries, heads, depth = out.shape
    rows = batch * queries * heads
    launch(
        adding_kernel(out.dtype, depth, lse is not None, 8 if splits <= 8 else 32),
        -(-rows * (depth // CHUNK) // THREADS),
        THREADS,
        stream,
        *(parts, sums, splits),
        *(out.address, out.strides[:3], rows, queries, heads),
        lse or 0,
        pdl=True,
    )
