"""V turned round for products of 8 bits, which sum along what lies together in memory.

A tile is read as (keys, depth) and written as (depth, keys). Keys are written in the order in which
threads hold weights of 8 bits without having exchanged any (`packed_e4m3`): a sum over keys may go
in any order, and another one costs nothing here.

Cost model: every byte is read once and written once, both in runs of at least 64 B.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import cuda

from numba_tma import ptx
from numba_tma.device.shared import shared_barrier, shared_tile
from numba_tma.device.vectors import read_block, write_transposed
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.environment import simulated
from numba_tma.host.layout import Tile
from numba_tma.kernels._host.launching import launch
from numba_tma.kernels.attention.arrays import Heads
from numba_tma.kernels.attention.plan import widest_swizzle

BITS = as_dtype("u8")
CHUNK = 16  # sides of a block of bytes that a thread turns
KEYS = 128  # of a tile
THREADS = 64


@functools.cache
def turning_kernel(depth: int) -> Any:
    """Return the kernel in which each block of threads turns one tile."""
    SOURCE, TARGET = tiles(depth)
    FLAT_SOURCE = Tile((KEYS, depth), BITS, SOURCE.swizzle)
    FLAT_TARGET = Tile((depth, KEYS), BITS, TARGET.swizzle)
    DOWN, ACROSS = KEYS // CHUNK, depth // CHUNK  # blocks of a tile

    @cuda.jit
    def turn(source, target, heads, tiles):  # type: ignore[no-untyped-def]
        tile, turned, full = shared_tile(SOURCE), shared_tile(TARGET), shared_barrier()
        thread, block = cuda.threadIdx.x, np.uint32(cuda.blockIdx.x)
        key, head = block % np.uint32(tiles) * KEYS, block // np.uint32(tiles)
        batch, head = head // np.uint32(heads), head % np.uint32(heads)
        if thread == 0:
            full.init(1)
            ptx.fence_mbarrier_init()
            full.arrive_expect_tx(SOURCE.nbytes)
            source.load(tile, (batch, key, head, 0), full)
        cuda.syncthreads()
        full.wait(0)
        x, y = tile.view(FLAT_SOURCE), turned.view(FLAT_TARGET)
        for i in range(thread, DOWN * ACROSS, THREADS):
            # Along diagonals, so that neighbouring threads meet in no bank.
            down, across = i % DOWN, (i % DOWN + i // DOWN) % ACROSS
            row, column = np.uint32(down * CHUNK), np.uint32(across * CHUNK)
            b = read_block(x, (row, column))
            # Rows as `packed_e4m3` has its columns.
            left = (b[0], b[1], b[8], b[9], b[2], b[3], b[10], b[11])
            right = (b[4], b[5], b[12], b[13], b[6], b[7], b[14], b[15])
            write_transposed(y, (column, row), left + right)
        ptx.fence_proxy_async("shared::cta")
        cuda.syncthreads()
        if thread == 0:
            target.store(turned, (batch, 0, head, key))
            ptx.cp_async_bulk_commit_group()
            ptx.cp_async_bulk_wait_group_read(0)

    return turn


def tiles(depth: int) -> tuple[Tile, Tile]:
    """Return the tile of V, (batch, key, head, depth), and that of V turned round."""
    source = Tile((1, KEYS, 1, depth), BITS, widest_swizzle(depth))
    return source, Tile((1, depth, 1, KEYS), BITS, widest_swizzle(KEYS))


def turned(v: Heads, stream: Any, kept: list[Any]) -> Heads:
    """Return `v` turned round, (batch, depth, head, key), in new memory, which `kept` gets.

    Keys go on to whole tiles, so to whole spans of any swizzle; what lies behind the last is 0.
    """
    batch, keys, heads, depth = v.shape
    blocks = -(-keys // KEYS)
    make = np.empty if simulated() else cuda.device_array
    memory = make((batch, heads, depth, blocks * KEYS), np.uint8)
    kept.append(memory)
    result = Heads("v", memory, None, v.function).swapped()
    source, target = tiles(depth)
    maps = v.map(source), result.map(target)
    launch(turning_kernel(depth), batch * heads * blocks, THREADS, stream, *maps, heads, blocks)
    return result
