"""Copies of many matrices of different sizes in one launch: each block edits maps as it goes.

Cost model: that of `copy`, plus one edit of two maps (two warp-wide copies of 128 B and two fences,
about as long as a small tile's copy) each time a block goes on to another matrix.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import cuda

from numba_tma import ptx
from numba_tma.device.edit_map import DESCRIPTOR, edit_map
from numba_tma.device.shared import shared_barrier, shared_tile
from numba_tma.host.environment import simulated
from numba_tma.host.layout import Tile
from numba_tma.host.tensor_map import TensorMap, tensor_map
from numba_tma.host.tensor_map_array import TensorMapArray
from numba_tma.host.tensor_map_rules import legal_strides, tensor_violations
from numba_tma.kernels._host.launching import (
    Matrix,
    as_stream,
    check_same,
    multiprocessors,
    tile_for,
)

# The columns of the table of matrices, one row for each.
TILES, ROWS, COLUMNS, SOURCE, SOURCE_STRIDE, OUT, OUT_STRIDE = range(7)


@functools.cache
def grouped_copy_kernel(tile: Tile) -> Any:
    """Return the copy of matrices by tiles of shape `tile`; one warp to a block."""
    tile_rows, tile_columns = tile.shape

    @cuda.jit
    def grouped_copy_tiles(template, maps, table):  # type: ignore[no-untyped-def]
        """Copy the matrices of `table`; ``maps`` has two elements for each block."""
        buffer, full = shared_tile(tile), shared_barrier()
        scratch = shared_tile(DESCRIPTOR)
        source, out = maps[2 * cuda.blockIdx.x], maps[2 * cuda.blockIdx.x + 1]
        issues = cuda.threadIdx.x == 0
        if issues:
            full.init(1)
            ptx.fence_mbarrier_init()
        cuda.syncwarp()
        # Tiles are counted through all matrices: those of matrix g are first to first + its tiles.
        g = first = parity = 0
        t = cuda.blockIdx.x
        edited = False
        while g < table.shape[0]:
            if t >= first + table[g, TILES]:
                first += table[g, TILES]
                g += 1
                edited = False
                continue
            rows, columns = table[g, ROWS], table[g, COLUMNS]
            if not edited:
                if issues:
                    ptx.cp_async_bulk_wait_group(0)  # the last store through the old map is done
                shape = (rows, columns)
                edit_map(
                    source, template, scratch, table[g, SOURCE], shape, (table[g, SOURCE_STRIDE],)
                )
                edit_map(out, template, scratch, table[g, OUT], shape, (table[g, OUT_STRIDE],))
                source.fence_acquire()
                out.fence_acquire()
                edited = True
            if issues:
                across = (columns + tile_columns - 1) // tile_columns
                row, column = (t - first) // across, (t - first) % across
                at = (row * tile_rows, column * tile_columns)
                ptx.cp_async_bulk_wait_group_read(0)  # the last store has read the buffer
                full.arrive_expect_tx(tile.nbytes)
                source.load(buffer, at, full)
                full.wait(parity)
                out.store(buffer, at)
                ptx.cp_async_bulk_commit_group()
            parity ^= 1
            t += cuda.gridDim.x
        if issues:
            ptx.cp_async_bulk_wait_group_read(0)

    return grouped_copy_tiles


def grouped_copy(sources: Sequence[Any], outs: Sequence[Any], *, stream: Any = None) -> None:
    """Copy each of `sources` to its counterpart in `outs` on the GPU, in one launch.

    Parameters
    ----------
    sources, outs
        As many device arrays each, of any shapes and row strides; pairs have the same shape, and
        all arrays one type. Rows are a multiple of 16 B long.
    stream
        A numba, torch or CuPy stream; the default stream if None.

    Raises
    ------
    ValueError
        If shapes or types differ, or TMA cannot address an array.
    """
    if len(sources) != len(outs):
        raise ValueError(f"grouped_copy(): {len(sources)} sources, but {len(outs)} outs")
    pairs = []
    for i, (source, out) in enumerate(zip(sources, outs)):
        names = f"sources[{i}]", f"outs[{i}]"
        x, y = Matrix(names[0], source), Matrix(names[1], out)
        check_same("grouped_copy", **{names[0]: x, names[1]: y})
        if x.nbytes:
            pairs.append((x, y))
            _check(names[0], x, pairs[0][0])
            _check(names[1], y, pairs[0][0])
    if not pairs:
        return
    widest = max((x for x, _ in pairs), key=lambda x: x.columns)
    tile = tile_for(widest.columns, widest.dtype, 8192)
    table = np.array([_row(x, y, tile) for x, y in pairs], np.int64)
    # Any matrix would do for a template: all that tells it from the others is replaced.
    template: TensorMap = tensor_map(widest.view(widest.columns), tile, dtype=widest.dtype)
    blocks = min(8 * multiprocessors(), int(table[:, TILES].sum()))
    on = as_stream(stream)
    maps = TensorMapArray([template] * (2 * blocks), stream=on)
    on_device = table if simulated() else cuda.to_device(table, stream=on)
    grouped_copy_kernel(tile)[blocks, 32, on](template, maps, on_device)


def _check(name: str, matrix: Matrix, first: Matrix) -> None:
    """Raise for what a map of the matrix would be refused for: the device checks nothing."""
    size = matrix.dtype.itemsize
    if matrix.dtype is not first.dtype:
        raise ValueError(
            f"grouped_copy(): {name} holds {matrix.dtype}, the first array {first.dtype}; one "
            "launch copies one type: call it for each"
        )
    matrix.require_whole_chunks(f"grouped_copy(): {name}")
    shape = matrix.rows, matrix.columns
    strides = legal_strides(shape, (matrix.row_stride, size), size, None)
    if broken := tensor_violations(matrix.address, shape, strides, size, (1, 1), None):
        raise ValueError(f"grouped_copy(): {name}: {broken[0]}")


def _row(x: Matrix, y: Matrix, tile: Tile) -> tuple[int, ...]:
    tiles = -(-x.rows // tile.shape[0]) * -(-x.columns // tile.shape[1])
    size = x.columns * x.dtype.itemsize  # which any stride may stand for if there is one row
    source_stride, out_stride = (m.row_stride if m.rows > 1 else size for m in (x, y))
    return tiles, x.rows, x.columns, x.address, source_stride, y.address, out_stride
