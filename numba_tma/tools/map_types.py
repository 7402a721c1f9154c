"""`map_type`: the type of a tensor map, for the signature of a kernel, without a map."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

import numba_tma
from numba_tma.host.annotations import DeviceArray
from numba_tma.host.array_interface import reading_of
from numba_tma.host.encoding import (
    SIMULATED,
    MapOptions,
    as_box,
    as_element_strides,
    check_kinds,
    encode,
    option_dtype,
)
from numba_tma.host.environment import simulated
from numba_tma.host.layout import Tile
from numba_tma.host.tensor_map import TensorMap, tensor_map
from numba_tma.simulator.signatures import type_of

_OPTIONS = {
    name: parameter.default
    for name, parameter in inspect.signature(tensor_map).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
}
_ALIGNED = 1 << 20  #: stands for the address of an array on the host, which decides no type


def map_type(
    tile_or_array: Tile | TensorMap | DeviceArray,
    tile_or_box: Tile | tuple[int, ...] | int | None = None,
    **options: object,
) -> Any:
    """Return the type of a map, for the signature of a kernel that is compiled without a GPU.

    ::

        signature = tma.map_type(TILE), types.float32[:, ::1]
        ptx = tma.testing.compile_ptx(kernel, signature)

    Parameters
    ----------
    tile_or_array
        A `Tile`, for `tensor_map` of a large enough array with as many axes, contiguous and with
        rows of a multiple of 16 B; a map, whatever has made it; or an array, which may be NumPy's.
    tile_or_box, **options
        For an array: the arguments of `tensor_map` behind it. They and the array's shape and
        strides are checked; its address is not.

    Returns
    -------
    TensorMapType
        Numba's type; in the simulator, what stands for it in the signature of a kernel.

    Raises
    ------
    ValueError, TypeError
        Those of `tensor_map`.
    """
    if isinstance(tile_or_array, Tile | TensorMap):
        if tile_or_box is not None or options:
            raise TypeError(
                f"map_type: a {type(tile_or_array).__name__} has a type of its own: leave out "
                f"{', '.join(['tile_or_box'] * (tile_or_box is not None) + [*options])}, or give "
                "an array"
            )
    if isinstance(tile_or_array, Tile):
        return numba_tma.TensorMapType(len(tile_or_array.shape), tile_or_array)
    if not isinstance(tile_or_array, TensorMap):
        tile_or_array = _planned(tile_or_array, tile_or_box, options)
    if simulated():
        return type_of(tile_or_array)
    from numba import typeof

    return typeof(tile_or_array)


def _planned(array: DeviceArray, tile_or_box: Any, options: dict[str, object]) -> TensorMap:
    """Return a map of an array that no kernel can be launched with."""
    if tile_or_box is None:
        raise TypeError("map_type: an array has a type with a tile: map_type(array, tile)")
    if unknown := options.keys() - _OPTIONS.keys():
        raise TypeError(f"map_type: tensor_map has no option {sorted(unknown)[0]!r}")
    given = {**_OPTIONS, **options}
    if given["element_strides"] is not None:
        given["element_strides"] = as_element_strides(given["element_strides"])
    if given["dtype"] is not None:
        given["dtype"] = option_dtype("map_type", given["dtype"])
    box = tile_or_box if isinstance(tile_or_box, Tile) else as_box(tile_or_box)
    if isinstance(array, np.ndarray):
        place: Any = (_ALIGNED, array.shape, array.strides, array.dtype, False)
    else:
        place = reading_of(array, "map_type: tile_or_array")[0][:5]
    chosen = MapOptions(box, **given, function="map_type")
    try:
        return TensorMap(array, None, encode(SIMULATED, *place, *chosen))
    except TypeError:  # perhaps of an option without a hash
        check_kinds(chosen)
        raise
