"""`grouped_copy`: copies of many matrices of different sizes in one launch.

Cost model: that of `copy`, plus one edit of two maps each time a block goes on to another matrix:
two warp-wide copies of 128 B and two fences, about as long as the copy of a small tile.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from numba_tma.host.annotations import DeviceArray, StreamLike
from numba_tma.host.array_interface import class_name
from numba_tma.host.arrays import Array, check_same
from numba_tma.host.cached_kernel import shipped
from numba_tma.host.device_memory import copied_to_device
from numba_tma.host.environment import simulated
from numba_tma.host.layout import Tile
from numba_tma.host.tensor_map import tensor_map
from numba_tma.host.tensor_map_array import TensorMapArray
from numba_tma.host.tensor_map_rules import legal_strides, tensor_violations
from numba_tma.kernels._host.device import sm_count
from numba_tma.kernels._host.launch import check_stream, launch
from numba_tma.kernels._host.outputs import check_outputs, tile_for

BLOCKS_PER_SM = 8

grouped_copy_kernel = shipped("numba_tma.kernels.copy.grouped.kernel", "grouped_copy_kernel")


def grouped_copy(
    sources: Sequence[DeviceArray], outs: Sequence[DeviceArray], *, stream: StreamLike = None
) -> None:
    """Copy each of `sources` to its counterpart in `outs` on the GPU, in one launch.

    Parameters
    ----------
    sources, outs
        As many device arrays each, of any shapes and row strides. The two arrays of a pair have the
        same shape, and all arrays have one type. Rows are a multiple of 16 B long.
    stream
        A numba, torch or CuPy stream; the default stream if None.

    Raises
    ------
    TypeError
        If an element is no array in GPU memory.
    ValueError
        If the numbers of arrays, shapes or types differ, or TMA cannot address an array.
    """
    for name, given in (("sources", sources), ("outs", outs)):
        if not isinstance(given, list | tuple):
            raise TypeError(
                f"grouped_copy(): {name} is a {class_name(given)}; it is a list of arrays: pass "
                f"[{name}] for one"
            )
    check_stream("grouped_copy", stream)
    if len(sources) != len(outs):
        raise ValueError(f"grouped_copy(): {len(sources)} sources, but {len(outs)} outs")
    pairs, read, written = list[tuple[Array, Array]](), list[Array](), list[Array]()
    for i, given in enumerate(zip(sources, outs)):
        x, y = (
            Array.read("grouped_copy", f"{name}[{i}]", array)
            for name, array in zip(("sources", "outs"), given)
        )
        check_same(x, y)
        read.append(x)
        written.append(y)
        if x.nbytes:
            pair = x.as_rows(), y.as_rows()
            pairs.append(pair)
            for array in pair:
                _check(array, pairs[0][0])
    _check_apart(written, read)
    if not pairs:
        return
    pairs = [(x.as_words(), y.as_words()) for x, y in pairs]  # maps are edited in words
    widest = max((x for x, _ in pairs), key=lambda x: x.shape[1])
    tile = tile_for(widest.shape[1], widest.dtype, 8192)
    table = np.array([_row(x, y, tile) for x, y in pairs], np.int64)
    # Any matrix serves as the template: a kernel replaces all that differs between matrices.
    template = tensor_map(widest, tile)
    blocks = min(BLOCKS_PER_SM * sm_count(), int(table[:, 0].sum()))
    on = 0 if stream is None else stream
    maps = TensorMapArray([template] * (2 * blocks), stream=on)
    on_device = table if simulated() else copied_to_device(table, on)
    launch(grouped_copy_kernel(tile), blocks, 32, stream, template, maps, on_device)


def _check_apart(outs: list[Array], sources: list[Array]) -> None:
    """Raise unless all of `outs` can be written while all of `sources` are read.

    Arrays are compared with those alone whose memory begins before they end: in a list sorted by
    address, these follow each other.
    """
    check_outputs(outs[:1], sources[:1])
    arrays = sorted([*outs, *sources], key=lambda array: array.extent)
    behind: list[Array] = []  # arrays that the memory of the next one may belong to
    for array in arrays:
        behind = [other for other in behind if other.extent[1] > array.extent[0]]
        for other in behind:
            if array in outs or other in outs:
                check_outputs(*(([array], [other]) if array in outs else ([other], [array])))
        behind.append(array)


def _check(array: Array, first: Array) -> None:
    """Raise the errors that `tensor_map` would: maps edited on the device are not checked."""
    size = array.itemsize
    if array.dtype is not first.dtype:
        raise array.error(
            f"holds {array.dtype}, the first array {first.dtype}; one launch copies one type: "
            "call it for each"
        )
    if (nbytes := array.shape[1] * size) % 16:
        raise array.error(
            f"has rows of {array.shape[1]} {array.dtype} = {nbytes} B; TMA stores whole chunks of "
            "16 B and would overwrite the bytes behind them: pad the rows to a multiple of 16 B"
        )
    strides = legal_strides(array.shape, array.strides, size, None)
    if broken := tensor_violations(array.address, array.shape, strides, size, (1, 1), None):
        raise ValueError(f"{array.function}(): {array.name}: {broken[0]}")


def _row(x: Array, y: Array, tile: Tile) -> tuple[int, ...]:
    """Return the row of the table for a pair of matrices."""
    tiles = -(-x.shape[0] // tile.shape[0]) * -(-x.shape[1] // tile.shape[1])
    # A single row may have any stride; the kernel takes one that TMA takes.
    packed = x.shape[1] * x.itemsize
    source_stride, out_stride = (m.strides[0] if m.shape[0] > 1 else packed for m in (x, y))
    return tiles, *x.shape, x.address, source_stride, y.address, out_stride
