"""Transposition of matrices, one or a batch: tiles come and go by TMA, and turn in registers.

Cost model: every byte is read once and written once, in runs of at least 128 B on both sides. A
tile lies in shared memory with 128-byte swizzle. A thread takes square blocks of 16-byte rows (8 x
8 elements of 2 bytes): it reads the rows of a block, and writes its columns as rows of the other
tile. The blocks of eight neighbouring threads lie on a diagonal, so that each of these reads and
writes touches all banks once.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda

from numba_tma import ptx
from numba_tma.device.shared import shared_barrier, shared_tile
from numba_tma.device.vectors import read_block, store_vector, write_transposed
from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.layout import Swizzle, Tile
from numba_tma.host.tensor_map import tensor_map
from numba_tma.kernels._host.launching import STREAMED, Stack, empty, launch, launched_again

LINE = 128  # bytes of a swizzled row


@dataclass(frozen=True)
class Plan:
    """How a matrix is cut up: tiles, in squares as wide as a line of 128 B, and their order."""

    rows: int = 2  #: squares of a tile from top to bottom
    columns: int = 2  #: and from left to right
    threads: int = 128
    group: int = 256  #: tiles from top to bottom that blocks take before they move to the right
    store: str = "tma"  #: "registers": threads store the rows of the turned tile


#: Of each element size, in bytes.
PLANS = {1: Plan(1, 1, 64), 2: Plan(2, 2), 4: Plan(4, 2, 256, store="registers"), 8: Plan(2, 2)}


@functools.cache
def transpose_kernel(dtype: DType, plan: Plan) -> Any:
    """Return the kernel in which each block turns one tile."""
    lanes, side = 16 // dtype.itemsize, LINE // dtype.itemsize
    height, width = plan.rows * side, plan.columns * side
    SOURCE = Tile((1, height, width), dtype, Swizzle.B128)
    TURNED = Tile((1, width, height), dtype, Swizzle.B128)
    FLAT_SOURCE = Tile((height, width), dtype, Swizzle.B128)
    FLAT_TURNED = Tile((width, height), dtype, Swizzle.B128)
    threads, group = plan.threads, np.uint32(plan.group)
    blocks = plan.rows * plan.columns * 64  # 8 x 8 in each square
    VECTOR, ITEM = Tile(lanes, dtype), dtype.itemsize
    through_tma, of_a_row = plan.store == "tma", height // lanes
    if blocks % threads:
        raise ValueError(
            f"{plan} has {blocks} blocks of 16-byte rows, which {threads} threads cannot share "
            f"equally: use a divisor of {blocks}"
        )
    rounds, squares = blocks // threads, np.uint32(plan.columns)
    in_place = rounds == 1 and SOURCE == TURNED  # its threads hold the whole tile in between

    @cuda.jit
    def transpose_tiles(source, target, row_tiles, column_tiles, rows, columns, each, pitch):  # type: ignore[no-untyped-def]
        tile = shared_tile(SOURCE)
        turned = tile if in_place else shared_tile(TURNED)
        full = shared_barrier()
        thread = cuda.threadIdx.x
        # In 32 bits: a division of 64 is a call of some hundred instructions.
        t, down, across = np.uint32(cuda.blockIdx.x), np.uint32(row_tiles), np.uint32(column_tiles)
        batch, t = np.uint32(t // (down * across)), np.uint32(t % (down * across))
        # Groups of rows of tiles, so that what is written lies together as well as what is read.
        first = np.uint32(t // (group * across) * group)
        height_of_group = np.uint32(min(group, down - first))
        t = np.uint32(t - first * across)
        row = (first + t % height_of_group) * height
        column = np.uint32(t // height_of_group) * width
        if thread == 0:
            full.init(1)
            ptx.fence_mbarrier_init()
            full.arrive_expect_tx(SOURCE.nbytes)
            source.load(tile, (batch, row, column), full, STREAMED)
        cuda.syncthreads()
        full.wait(0)
        x, y = tile.view(FLAT_SOURCE), turned.view(FLAT_TURNED)
        for k in range(rounds):
            block = np.uint32(thread + k * threads)
            square, diagonal, line = block // 64, block // 8 % 8, block % 8
            i = (square // squares * 8 + line) * lanes
            j = (square % squares * 8 + (line ^ diagonal)) * lanes
            values = read_block(x, (i, j))
            if in_place:
                cuda.syncthreads()
            write_transposed(y, (j, i), values)
        if through_tma:
            ptx.fence_proxy_async("shared::cta")
        cuda.syncthreads()
        if not through_tma:
            for vector in range(thread, width * of_a_row, threads):
                of_tile, at = vector // of_a_row, vector % of_a_row * lanes
                if column + of_tile < columns and row + at < rows:
                    start = batch * each + (column + of_tile) * pitch + (row + at) * ITEM
                    store_vector(target, start, y.read_vector((of_tile, at)), VECTOR)
        elif thread == 0:
            target.store(turned, (batch, column, row))
            ptx.cp_async_bulk_commit_group()
            ptx.cp_async_bulk_wait_group_read(0)

    return transpose_tiles


PATCH, PATCH_ROWS = 32, 8


@functools.cache
def patch_kernel(dtype: DType) -> Any:
    """Return the kernel for what TMA cannot address: patches of 32 x 32 through shared memory."""
    element, shape = dtype.numpy, (PATCH, PATCH + 1)  # so that a column has 32 banks

    @cuda.jit
    def transpose_patches(source, target, row_patches, column_patches):  # type: ignore[no-untyped-def]
        patch = cuda.shared.array(shape, element)
        x, y = cuda.threadIdx.x % PATCH, cuda.threadIdx.x // PATCH
        _, rows, columns = source.shape
        p = cuda.blockIdx.x
        batch, p = p // (row_patches * column_patches), p % (row_patches * column_patches)
        row, column = p // column_patches * PATCH, p % column_patches * PATCH
        for k in range(y, PATCH, PATCH_ROWS):
            if row + k < rows and column + x < columns:
                patch[k, x] = source[batch, row + k, column + x]
        cuda.syncthreads()
        for k in range(y, PATCH, PATCH_ROWS):
            if column + k < columns and row + x < rows:
                target[batch, column + k, row + x] = patch[x, k]

    return transpose_patches


def transpose(x: Any, *, out: Any = None, stream: Any = None, plan: Plan | None = None) -> Any:
    """Write the transpose of the last two axes of `x`.

    Parameters
    ----------
    x
        Device array (..., rows, columns) of elements of 1, 2, 4 or 8 bytes: torch, CuPy, numba, or
        anything with ``__cuda_array_interface__`` or ``__dlpack__``. Its rows are contiguous and
        may lie apart.
    out
        Device array (..., columns, rows) of the same type, no part of `x`; a new one if None.
    stream
        A numba, torch or CuPy stream; the default stream if None.
    plan
        How the matrix is cut up; that in `PLANS` if None.

    Returns
    -------
    Any
        `out`. Where both arrays start at a multiple of 16 B and have rows of whole multiples, tiles
        move by TMA; otherwise threads load and store element by element.

    Raises
    ------
    ValueError
        If the arrays do not fit each other, or their last axis is not contiguous.
    """
    if out is None:
        Stack("x", x)  # for its errors, since there may be no such output
        out = empty(x, (*x.shape[:-2], x.shape[-1], x.shape[-2]))
    _transpose((x, out), stream, (), plan)
    return out


@launched_again
def _transpose(arrays: tuple[Any, Any], stream: Any, numbers: tuple[()], plan: Plan | None) -> None:
    source, target = Stack("x", arrays[0]), Stack("out", arrays[1])
    if target.shape != (*source.shape[:-2], source.columns, source.rows):
        raise ValueError(
            f"transpose(): out has shape {target.shape}, but the transpose of {source.shape} has "
            f"shape {(*source.shape[:-2], source.columns, source.rows)}"
        )
    if target.stored != source.stored:
        raise ValueError(
            f"transpose(): out is {target.stored}, but x is {source.stored}; they must agree"
        )
    rows, columns = source.rows, source.columns
    if source.batch * rows * columns == 0:
        return
    bits = as_dtype(f"u{8 * source.itemsize}")
    if source.addressable() and target.addressable():
        p = PLANS[bits.itemsize] if plan is None else plan
        side = LINE // bits.itemsize
        height, width = p.rows * side, p.columns * side
        row_tiles, column_tiles = -(-rows // height), -(-columns // width)
        tile, turned = (
            Tile((1, *shape), bits, Swizzle.B128) for shape in ((height, width), (width, height))
        )
        launch(
            transpose_kernel(bits, p),
            source.batch * row_tiles * column_tiles,
            p.threads,
            stream,
            tensor_map(source.view(bits), tile, dtype=bits),
            tensor_map(target.view(bits), turned, dtype=bits)
            if p.store == "tma"
            else target.span(),
            row_tiles,
            column_tiles,
            rows,
            columns,
            *target.steps[:2],
        )
    else:
        patches = -(-rows // PATCH), -(-columns // PATCH)
        views = [s.array_of(bits) for s in (source, target)]
        blocks = source.batch * patches[0] * patches[1]
        launch(patch_kernel(bits), blocks, PATCH * PATCH_ROWS, stream, *views, *patches)
