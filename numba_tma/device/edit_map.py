"""Tensor maps edited by kernels, for tensors whose address or shape only the device knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from numba_tma import simulator
from numba_tma.backend.interface import device_function, native
from numba_tma.device import shared as shared  # kernels know a map's methods once it is imported
from numba_tma.host.annotations import Address, Shape
from numba_tma.host.dtypes import words_violation
from numba_tma.host.layout import Tile
from numba_tma.host.tensor_map import describe_kind
from numba_tma.ptx import (
    bar_warp_sync,
    laneid,
    tensormap_cp_fenceproxy,
    tensormap_replace_global_address,
    tensormap_replace_global_dim,
    tensormap_replace_global_stride,
)

if TYPE_CHECKING:
    from numba_tma.device.shared import SharedTile
    from numba_tma.host.tensor_map import TensorMap

#: 128 bytes of shared memory in which `edit_map` builds a map: ``shared_tile(DESCRIPTOR)``.
DESCRIPTOR = Tile((128,), "u8")


@device_function
def edit_map(
    destination: TensorMap,
    template: TensorMap,
    scratch: SharedTile,
    address: Address | None = None,
    shape: Shape | None = None,
    strides: Shape | None = None,
) -> None:
    """Make `destination` a map like `template`, of another tensor.

    Executed by all threads of one warp together. Every copy through the old `destination` must be
    complete: wait for its loads on their barriers, and for its stores with
    ``cp_async_bulk_wait_group(0)`` (not its ``_read`` form). Afterwards every thread that uses the
    new map, those of this warp too, synchronises with this warp and calls
    ``destination.fence_acquire()``. The same warp can reuse `scratch` at once.

    The device checks nothing. A copy through the map fails if the address or a stride is not a
    multiple of 16 B, or if the memory is not allocated.

    Parameters
    ----------
    destination
        An element of a `TensorMapArray`: ``maps[i]``.
    template
        A map of the same type, from which every field that is not given is taken.
    scratch
        A ``shared_tile(DESCRIPTOR)`` that no other warp uses meanwhile.
    address
        Address of the first element: an integer, or an array.
    shape
        Extents in the array's axis order, one per axis.
    strides
        Strides in bytes, in the array's axis order. The innermost is implied and may be left out.

    Notes
    -----
    PTX ``tensormap.replace.tile`` on a copy in shared memory, then
    ``tensormap.cp_fenceproxy...release.gpu``. Needs an architecture-specific target, such as
    sm_90a; numba-cuda chooses it by itself.
    """
    bar_warp_sync()  # every lane is done with the previous contents of the scratch
    if laneid() == 0:
        build_map(scratch, template, destination, address, shape, strides)
    bar_warp_sync()
    tensormap_cp_fenceproxy(destination, scratch, "gpu")
    bar_warp_sync()  # each thread of the warp copies a part


@native
def build_map(
    scratch: SharedTile,
    template: TensorMap,
    destination: TensorMap,
    address: Address | None,
    shape: Shape | None,
    strides: Shape | None,
) -> None:
    """Copy the template to the scratch and replace fields there. Executed by one thread."""
    if wrong := wrong_template(destination, template):
        raise simulator.BadOperand(wrong)
    simulator.copy_template(scratch.address, template)
    if address is not None:
        host = getattr(address, "_ary", address)
        host = host.ctypes.data if isinstance(host, np.ndarray) else int(host)
        tensormap_replace_global_address(scratch, "shared::cta", host)
    inner: Any = template.rank - 1  # ordinals of axes are literals in a kernel
    if wrong := wrong_length(template.rank, shape, strides):
        raise simulator.BadOperand(wrong)
    for axis, extent in enumerate(shape or ()):
        tensormap_replace_global_dim(scratch, "shared::cta", inner - axis, extent)
    for axis, stride in enumerate((strides or ())[:inner]):
        tensormap_replace_global_stride(scratch, "shared::cta", inner - 1 - axis, stride)


def wrong_template(destination: TensorMap, template: TensorMap) -> str:
    """Say why a map, or a type of maps, cannot be made from a template; "" if it can."""
    if template.mode != "tiled":
        return (
            f"edit_map: the template is {describe_kind(template)}; only maps of tensor_map can be "
            "edited: make the others before the launch, in a TensorMapArray"
        )
    if template.copies is not None and template.copies.fold:
        return (
            "edit_map: the template is folded, so that its axes are not the array's; make it "
            "without fold=True"
        )
    if template.interleave:
        return (
            "edit_map: the template is interleaved, so that its axes are not the array's; make the "
            "others before the launch, in a TensorMapArray"
        )
    if template.tile is not None and template.tile.dtype.words > 1:
        return words_violation(template.tile.dtype, "edit_map")
    if destination.kind == template.kind:
        return ""
    return (
        f"edit_map: the destination's maps are {describe_kind(destination)}, the template "
        f"{describe_kind(template)}; make the TensorMapArray of maps like the template"
    )


def wrong_length(rank: int, shape: Shape | None, strides: Shape | None) -> str:
    """Say what is wrong with the number of extents or strides; "" if nothing."""
    if shape is not None and len(shape) != rank:
        return f"edit_map: {len(shape)} extents for a template of rank {rank}; give one per axis"
    if strides is not None and len(strides) not in (rank - 1, rank):
        return (
            f"edit_map: {len(strides)} strides for a template of rank {rank}; give one per axis, "
            "in bytes, with or without the innermost"
        )
    return ""
