"""The kernels before and after attention's backward kernel.

`prepare` computes delta, the row sums of dO * O, scales lse and clears the sums of dQ. `finish`
rounds these sums to dQ: the backward kernel adds dQ in the order in which threads hold a product,
64 x 64 elements after each other. `add_splits` adds and rounds the splits of dK and dV, where there
are any. Each kernel reads and writes each byte once.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import cuda

from numba_tma import ptx
from numba_tma.device.row_share import (
    from_float,
    load_global,
    store_global,
    store_sums,
    to_float,
    zeros,
)
from numba_tma.device.share import Share
from numba_tma.device.vectors import four, total
from numba_tma.host.annotations import Kernel
from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.warpgroup import ROWS
from numba_tma.kernels.attention.backward.plan import CHUNK, WARPGROUPS, block_q
from numba_tma.kernels.attention.backward.plan import PASS_THREADS as THREADS
from numba_tma.kernels.attention.plan import AttentionProblem
from numba_tma.kernels.attention.softmax import LOG2_E

INFINITY = np.float32(np.inf)
ZERO: Any = np.float32(0)
F32 = as_dtype("f32")


@functools.cache
def prepare_kernel(problem: AttentionProblem) -> Kernel:
    """Return the kernel that computes delta, scales lse and clears the sums of dQ.

    It writes delta and lse for whole tiles of queries. Rows after the last query, and rows that see
    no key, get an lse of infinity: their P is 0 then.
    """
    ELEMENTS, NUMBER = Share(problem.dtype, 16, 1, 1, False), Share(F32, 4, 1, 1, False)
    CLEARED = Share(F32, 16, 2, 1, True)
    LANES, BLOCK_Q, HEAD_DIM = (
        problem.head_dim // CHUNK,
        block_q(problem.head_dim),
        problem.head_dim,
    )

    @cuda.jit
    def prepare(  # type: ignore[no-untyped-def]
        dout,
        dout_strides,
        out,
        out_strides,
        lse,
        scaled,
        delta,
        sums,
        turns,
        parts,
        queries,
        heads,
        q_tiles,
    ):
        place = cuda.blockIdx.x * (THREADS // LANES) + cuda.threadIdx.x // LANES
        lane = cuda.threadIdx.x % LANES
        padded = q_tiles * BLOCK_Q
        head, row = place // padded, place % padded
        sequence, one = head // heads, head % heads
        present = 1 if row < queries else 0
        at = dout + sequence * dout_strides[0] + row * dout_strides[1] + one * dout_strides[2]
        grads = to_float(ELEMENTS, load_global(ELEMENTS, at + 16 * lane, 0, present))
        at = out + sequence * out_strides[0] + row * out_strides[1] + one * out_strides[2]
        values = to_float(ELEMENTS, load_global(ELEMENTS, at + 16 * lane, 0, present))
        product = total(grads * values)
        distance = 1
        while distance < LANES:
            product += ptx.shfl_sync_bfly_f32(product, distance)
            distance *= 2
        store_sums(CLEARED, sums + 4 * (place * HEAD_DIM + lane * CHUNK), 0, 2, zeros(CLEARED))
        if lane == 0:
            number = lse + 4 * (head * queries + row)
            known = to_float(NUMBER, load_global(NUMBER, number, 0, present))[0]
            shift = known * LOG2_E
            if present == 0 or known == -INFINITY:
                shift = INFINITY
            ptx.st_global_f32(scaled + 4 * place, shift)
            ptx.st_global_f32(delta + 4 * place, product)
            if place < parts:  # fewer than rows
                ptx.st_global_f32(turns + 4 * place, ZERO)

    return prepare


@functools.cache
def finish_kernel(dtype: DType, head_dim: int) -> Kernel:
    """Return the kernel that rounds sums to dQ. A thread has 8 columns of rows r and r + 8."""
    SUMS, OUT = Share(F32, 16, 4, 1, True), Share(dtype, 8, 1, 1, False)
    BLOCK_Q, SIZE = block_q(head_dim), dtype.itemsize
    HALVES_COLUMNS = BLOCK_Q == ROWS

    @cuda.jit
    def finish(sums, dq, strides, queries, heads, q_tiles, scale):  # type: ignore[no-untyped-def]
        part, thread = cuda.blockIdx.x, cuda.threadIdx.x
        tile, mine = part // WARPGROUPS, part % WARPGROUPS
        head, row = tile // q_tiles, tile % q_tiles * BLOCK_Q
        column = 0
        if HALVES_COLUMNS:
            column = 64 * mine
        else:
            row += 64 * mine
        chunk, pair = thread % 8, thread // 8
        warp, quad = pair // 8, pair % 8
        at = sums + 16384 * part + 16 * (128 * chunk + 32 * warp + 4 * quad)
        values = to_float(SUMS, load_global(SUMS, at, 0, 4)) * scale
        row += 16 * warp + quad
        out = dq + head // heads * strides[0] + head % heads * strides[2]
        out += row * strides[1] + (column + 8 * chunk) * SIZE
        upper, lower = 1 if row < queries else 0, 1 if row + 8 < queries else 0
        left = four(values[0], values[1], values[4], values[5])
        right = four(values[8], values[9], values[12], values[13])
        store_global(OUT, out, 0, upper, from_float(OUT, left))
        store_global(OUT, out + 4 * SIZE, 0, upper, from_float(OUT, right))
        out += 8 * strides[1]
        left = four(values[2], values[3], values[6], values[7])
        right = four(values[10], values[11], values[14], values[15])
        store_global(OUT, out, 0, lower, from_float(OUT, left))
        store_global(OUT, out + 4 * SIZE, 0, lower, from_float(OUT, right))

    return finish


@functools.cache
def add_splits_kernel(dtype: DType, head_dim: int) -> Kernel:
    """Return the kernel that adds the splits of dK and of dV, in their order.

    Splits are float32 (batch, kv_heads, splits, keys, head dim). A thread has `CHUNK` elements of
    one of the `rows` (batch, kv_heads, keys).
    """
    SPLIT, OUT = Share(F32, 16, CHUNK // 4, 1, True), Share(dtype, 16, 1, 1, True)
    LANES = head_dim // CHUNK

    @cuda.jit
    def add_splits(  # type: ignore[no-untyped-def]
        split_dk,
        split_dv,
        dk,
        dk_strides,
        dv,
        dv_strides,
        rows,
        keys,
        kv_heads,
        splits,
    ):
        place = cuda.blockIdx.x * (THREADS // LANES) + cuda.threadIdx.x // LANES
        lane = cuda.threadIdx.x % LANES
        head, row = place // keys, place % keys
        sequence, one = head // kv_heads, head % kv_heads
        ptx.griddepcontrol_wait()  # its blocks start while the last of dQ is rounded
        if place < rows:
            sums_k, sums_v = zeros(SPLIT), zeros(SPLIT)
            for split in range(splits):
                number = (head * splits + split) * keys + row
                at = 4 * (number * head_dim + lane * CHUNK)
                sums_k += to_float(SPLIT, load_global(SPLIT, split_dk + at, 0, 2))
                sums_v += to_float(SPLIT, load_global(SPLIT, split_dv + at, 0, 2))
            at = dk + sequence * dk_strides[0] + row * dk_strides[1] + one * dk_strides[2]
            store_global(OUT, at + 16 * lane, 0, 1, from_float(OUT, sums_k))
            at = dv + sequence * dv_strides[0] + row * dv_strides[1] + one * dv_strides[2]
            store_global(OUT, at + 16 * lane, 0, 1, from_float(OUT, sums_v))

    return add_splits
