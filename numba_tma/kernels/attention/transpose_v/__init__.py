"""V' for e4m3, from the host: tiles, memory and launch. `transpose_v_kernel` has the reason."""

from __future__ import annotations

import numpy as np

from numba_tma.host.annotations import DeviceArray, StreamLike
from numba_tma.host.arrays import Array
from numba_tma.host.cached_kernel import shipped
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.layout import Tile
from numba_tma.kernels._host.launch import launch
from numba_tma.kernels._host.workspace import device_memory
from numba_tma.kernels.attention.arrays import map_of
from numba_tma.kernels.attention.plan import widest_swizzle

BITS = as_dtype("u8")
KEYS = 128  # of a tile
THREADS = 64
transpose_v_kernel = shipped(
    "numba_tma.kernels.attention.transpose_v.kernel", "transpose_v_kernel"
)


def transpose_tiles(head_dim: int) -> tuple[Tile, Tile]:
    """Return the tiles of V, (batch, key, head, column), and of V', (batch, column, head, key)."""
    source = Tile((1, KEYS, 1, head_dim), BITS, widest_swizzle(head_dim))
    return source, Tile((1, head_dim, 1, KEYS), BITS, widest_swizzle(KEYS))


def transposed_v(v: Array, stream: StreamLike, workspace: list[DeviceArray]) -> Array:
    """Launch the kernel; return V', (batch, head dim, head, key), whose memory `workspace` gets.

    Keys are padded with zeros to whole tiles, and so to whole spans of any swizzle.
    """
    batch, keys, heads, head_dim = v.shape
    blocks = -(-keys // KEYS)
    memory = device_memory((batch, heads, head_dim, blocks * KEYS), np.uint8)
    workspace.append(memory)
    result = Array.read(v.function, "v", memory).transposed(0, 2, 1, 3)
    source, target = transpose_tiles(head_dim)
    maps = map_of(v, source), map_of(result, target)
    kernel = transpose_v_kernel(head_dim)
    launch(kernel, batch * heads * blocks, THREADS, stream, *maps, heads, blocks)
    return result
