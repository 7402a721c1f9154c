"""The rules for operands of copies: global bytes, shared addresses, sizes and coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.tensor_map import wrong_mode
from numba_tma.simulator.checks import require_integers
from numba_tma.simulator.copies import Bytes
from numba_tma.simulator.errors import BadCoordinate, BadOperand
from numba_tma.simulator.tensormap import check_acquired

if TYPE_CHECKING:
    from numba_tma.host.gather import GatherMap
    from numba_tma.host.tensor_map import TensorMap

_BULK_ALIGNMENT = 16
_TENSOR_ALIGNMENT = 128

#: PTX types with other names in this library; bits are combined as unsigned numbers.
_PTX_TYPES = {"s32": "i32", "s64": "i64", "b32": "u32", "b64": "u64"}


def parse_reduction(operation: str) -> tuple[str, DType]:
    """Split ``"add.noftz.f16"`` into the operation and the type."""
    name, *_, element = operation.split(".")
    return name, as_dtype(_PTX_TYPES.get(element, element))


def check_inside(what: str, origin: tuple[int, ...]) -> None:
    """Raise if a tensor store or reduction starts before the tensor."""
    if min(origin) < 0:
        kind = "reduction" if "reduce" in what else "store"
        raise BadCoordinate(
            f"{what}: the coordinates are {origin}; a {kind} starts inside or past the tensor, "
            "never before it. On a GPU this is an illegal instruction that loses the context"
        )


def bulk_view(what: str, name: str, array: Any) -> Bytes:
    """Return the global operand of a bulk copy as plain bytes."""
    return global_view(what, name, array, _BULK_ALIGNMENT)


def global_view(what: str, name: str, array: Any, alignment: int) -> Bytes:
    """Return `array` as plain bytes; it must be a contiguous view that starts at `alignment`."""
    if hasattr(array, "_item"):  # numba's simulated device array, as kernels see it
        array = array._item
    if hasattr(array, "_ary"):
        array = array._ary
    if not isinstance(array, np.ndarray) or not array.flags.c_contiguous or array.ndim == 0:
        raise BadOperand(f"{what}: {name} must be a contiguous array, not {type(array).__name__}")
    flat: Bytes = array.reshape(-1).view(np.uint8)
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    offset = _pointer(flat) - _pointer(root)
    if offset % alignment:
        raise BadOperand(
            f"{what}: {name} starts {offset} bytes into its allocation; global addresses must be "
            f"multiples of {alignment}"
        )
    return flat


def _pointer(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


def check_bulk(what: str, address: int, name: str, nbytes: int) -> None:
    """Raise unless a bulk copy of `nbytes` at a shared address would run on a GPU."""
    if nbytes % _BULK_ALIGNMENT or nbytes == 0:
        raise BadOperand(
            f"{what}: the size is {nbytes} bytes; it must be a positive multiple of "
            f"{_BULK_ALIGNMENT}"
        )
    if address % _BULK_ALIGNMENT:
        raise BadOperand(
            f"{what}: {name} is shared address {address}; it must be a multiple of "
            f"{_BULK_ALIGNMENT}"
        )


def check_tensor(
    what: str,
    tensor_map: TensorMap,
    coords: Sequence[int],
    address: int,
    name: str,
    mode: str = "tiled",
) -> tuple[int, ...]:
    """Raise unless a tensor copy would run on a GPU; return the coordinates as plain integers."""
    if tensor_map.mode != mode:
        raise BadOperand(f"{what}: {wrong_mode(str(tensor_map), tensor_map.mode)}")
    check_acquired(what, tensor_map)
    tile = tensor_map.copies.box if mode == "tiled" else tensor_map.tile
    _check_alignment(what, address, name)
    if address % tile.alignment:
        raise BadOperand(
            f"{what}: {name} is shared address {address}, not a multiple of {tile.alignment}: "
            f"swizzle {tile.swizzle.name} follows address bits, so that {tile} has another image "
            "here than it has at its alignment"
        )
    require_integers(f"{what}(coordinates=...)", coords)
    origin = tuple(int(c) for c in coords)
    of, rank = (tile, tile.ndim) if mode == "tiled" else (tensor_map, tensor_map.rank)
    if mode == "tiled" and tensor_map.copies.interleaved:
        origin = (*origin, 0)  # inside a slice, which is no axis of the encoded map
    if len(origin) != rank:
        raise BadCoordinate(f"{what}: {len(origin)} coordinates for {of}, which has {rank} axes")
    for axis, coordinate in enumerate(origin):
        _check_width(what, f"the coordinate of axis {axis}", coordinate)
    name = f"the innermost coordinate (axis {len(origin) - 1})"
    _check_chunk(what, name, origin[-1], tile.dtype)
    return origin


def check_rows(
    what: str,
    tensor_map: GatherMap,
    rows: Sequence[int],
    column: int,
    address: int,
    name: str,
) -> tuple[int, ...]:
    """Raise unless a copy of rows by number would run on a GPU; return the rows and the column."""
    if tensor_map.mode != "gather":
        raise BadOperand(
            f"{what}: {wrong_mode(str(tensor_map), tensor_map.mode)}; maps of gather_map are "
            "copied by row numbers"
        )
    check_acquired(what, tensor_map)
    _check_alignment(what, address, name)
    numbers = tuple(int(row) for row in rows)
    for place, row in enumerate(numbers):
        _check_width(what, f"the number of row {place}", row)
    _check_width(what, "the column", int(column))
    _check_chunk(what, "the column", int(column), tensor_map.tile.dtype.word)
    return *numbers, int(column)


def _check_alignment(what: str, address: int, name: str) -> None:
    if address % _TENSOR_ALIGNMENT:
        raise BadOperand(
            f"{what}: {name} is shared address {address}; a tensor copy needs a multiple of "
            f"{_TENSOR_ALIGNMENT}"
        )


def _check_width(what: str, name: str, value: int) -> None:
    if not -(2**31) <= value < 2**31:
        raise BadCoordinate(f"{what}: {name} is {value}; the hardware takes 32 bits")


def _check_chunk(what: str, name: str, value: int, dtype: DType) -> None:
    if value % (step := dtype.coordinate_unit):
        raise BadCoordinate(
            f"{what}: {name} is {value}, which is {dtype.nbytes(value)} bytes; it must be a "
            f"multiple of {step} ({dtype.nbytes(step)} bytes). On a GPU this is an illegal "
            "instruction that loses the context"
        )
