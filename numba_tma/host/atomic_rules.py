"""The operations of ``cuda.atomic`` that elements of a tile have."""

from __future__ import annotations

from numba_tma.host.dtypes import DType
from numba_tma.host.layout import Tile

_UNSIGNED = ("u32", "u64")
_INTEGERS = ("i32", "u32", "i64", "u64")
_ALL = ("f32", "f64", *_INTEGERS)
_TAKES = {
    **dict.fromkeys(("add", "sub", "min", "max", "nanmin", "nanmax"), _ALL),
    **dict.fromkeys(("and_", "or_", "xor", "exch", "cas"), _INTEGERS),
    **dict.fromkeys(("inc", "dec"), _UNSIGNED),
}


def atomic_violation(name: str, tile: Tile) -> str:
    """Say why an operation does not take elements of a tile; "" if it does."""
    if name not in _TAKES:
        return (
            f"cuda.atomic.{name} takes the first element of an array of one axis, and {tile} is a "
            "tile: use cuda.atomic.cas(tile, index, old, value)"
        )
    if _kept(tile.dtype) in _TAKES[name]:
        return ""
    repair = "view a tile of integers of their size" if name in ("exch", "cas") else ""
    takes = ", ".join(_TAKES[name])
    return (
        f"cuda.atomic.{name} takes elements of {takes}, and {tile} has {tile.dtype}: "
        + (repair or "change them in a tile of one of these types")
    )


def no_array(name: str, given: object) -> str:
    """Return the error of an operation on an object that is neither an array nor a tile."""
    return f"cuda.atomic.{name} takes an array or a shared tile, not {given}"


def _kept(dtype: DType) -> str:
    """Return the name of the type that an element is in shared memory: f32 of tf32."""
    return "f32" if dtype.compute == "float32" and dtype.itemsize == 4 else dtype.name
