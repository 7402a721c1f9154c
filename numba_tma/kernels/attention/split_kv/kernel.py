"""Split-K/V: combines the results of the splits of each query's keys.

Few queries are fewer tiles than SMs. The K/V tiles of each tile of queries are then split over
several blocks. Each computes its O and lse, float32, as if there were no other keys. With L =
log(sum of exp(lse)), the result is the sum of exp(lse - L) O, added in the order of the splits, and
its lse is L.

Cost model: the partial results stay in the L2 cache, and each is read once.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import cuda

from numba_tma import ptx
from numba_tma.backend.interface import device_function
from numba_tma.device.arithmetic import exp2, fused, larger
from numba_tma.device.row_share import (
    from_float,
    keep,
    load_global,
    store_global,
    to_float,
    weighted,
    zeros,
)
from numba_tma.device.share import Share
from numba_tma.device.vectors import largest, total
from numba_tma.host.annotations import Address, Integer, Kernel, Registers
from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.kernels.attention.softmax import (
    LOG2_E,
    MINUS_INFINITY,
    ZERO,
    inverse,
    log_of_sum,
    shift_of,
)
from numba_tma.kernels.attention.split_kv import CHUNK, THREADS

F32 = as_dtype("f32")


@device_function
def place_of_thread(chunks: Any, queries: Integer, heads: Integer) -> Any:
    """Return a thread's row, its chunk of the row, and the row's sequence, query and head."""
    thread = np.uint32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
    row, chunk = np.int64(thread // chunks), np.int32(thread % chunks)
    number, query = np.uint32(row) // np.uint32(queries), np.uint32(row) % np.uint32(queries)
    sequence, head = np.int64(number // np.uint32(heads)), np.int64(number % np.uint32(heads))
    return row, chunk, sequence, np.int64(query), head


@device_function
def weights_of(lse: Any, shift: Registers) -> Any:
    """Return exp(lse - L) of splits, where `shift` is -L times log2(e)."""
    return exp2(fused(lse, LOG2_E, shift))


@device_function
def store_rounded(share: Any, address: Address, chunk: Any, chunks: Any, values: Registers) -> None:
    """Round a chunk of a row of O to its type, and store it."""
    store_global(share, address, chunk, chunks, from_float(share, values))


@functools.cache
def combine_kernel(dtype: DType, head_dim: int, lse: bool, together: int) -> Kernel:
    """Return the kernel in which each thread combines `CHUNK` elements of a row of O.

    `partials` is the address of float32 (batch, heads, queries, splits, head dim), `partial_lse`
    that of (batch, heads, queries, splits). `out` is (batch, queries, heads, head dim) of `dtype`
    with strides in bytes, and `lse` (batch, heads, queries), which is written if `lse`. A thread
    loads `together` splits at a time, and waits for memory once for all of them.
    """
    CHUNKS, LSE, TOGETHER = head_dim // CHUNK, lse, together
    PARTIALS = Share(F32, 4 * CHUNK, TOGETHER, CHUNKS, False)
    NUMBERS = Share(F32, 4, TOGETHER, 1, False)
    OUT = Share(dtype, dtype.itemsize * CHUNK, 1, 1, True)

    @cuda.jit
    def combine(partials, partial_lse, splits, out, strides, rows, queries, heads, lse):  # type: ignore[no-untyped-def]
        row, chunk, sequence, query, head = place_of_thread(CHUNKS, queries, heads)
        ptx.griddepcontrol_wait()  # its blocks start while the last splits are computed
        if row < rows:
            numbers = partial_lse + 4 * row * splits
            top = MINUS_INFINITY
            for part in range(0, splits, TOGETHER):
                found = load_global(NUMBERS, numbers, part, splits)
                found = keep(NUMBERS, to_float(NUMBERS, found), part, splits, MINUS_INFINITY)
                top = larger(top, largest(found))
            shift = shift_of(top, LOG2_E)
            result, whole = zeros(OUT), ZERO
            for part in range(0, splits, TOGETHER):
                at = partials + 4 * head_dim * (row * splits + part)
                found = load_global(NUMBERS, numbers, part, splits)
                values = load_global(PARTIALS, at, chunk, (splits - part) * CHUNKS)
                found = keep(NUMBERS, to_float(NUMBERS, found), part, splits, MINUS_INFINITY)
                weights = weights_of(found, shift)
                result += weighted(PARTIALS, to_float(PARTIALS, values), weights)
                whole += total(weights)
            result *= inverse(whole)
            to = out + sequence * strides[0] + query * strides[1] + head * strides[2]
            store_rounded(OUT, to, chunk, CHUNKS, result)
            if LSE:
                if chunk == 0:
                    ptx.st_global_f32(lse + 4 * row, log_of_sum(whole, shift))

    return combine
