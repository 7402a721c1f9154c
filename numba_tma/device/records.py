"""Records in shared tiles: ``tile[i, j].x`` reads a field, and ``tile[i, j].x = v`` writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from numba_tma import simulator
from numba_tma.backend.interface import Constant, device_class, native, u32
from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.records import field_of


@native
@device_class(static=("_dtype", "_alignment"))
@dataclass(eq=False)
class SharedRecord:
    """A record in a shared tile, which ``tile[i, j]`` returns: its address, and no copy of it.

    A field that is a record has this type, too. Assigned to an element of an array, or of a tile,
    the record is copied. Each access to a field is one of the tile: it is fenced as those to its
    elements are.
    """

    _dtype: DType
    _alignment: int  #: bytes of which the address is a multiple
    _address: u32
    _accesses: Any
    shared_kind = "record"

    def __getattr__(self, name: Constant[str]) -> Any:
        return read_field(self, name)

    def __setattr__(self, name: Constant[str], value: object) -> None:
        write_field(self, name, value)

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return read_record(self)


@native
def read_field(record: SharedRecord, name: Constant[str]) -> Any:
    """Return a field of a record: its value, or a `SharedRecord`."""
    field = field_of(record._dtype.numpy, name)
    address = record._address + field.offset
    if field.dtype.names:
        return SharedRecord(
            as_dtype(field.dtype), field.aligned(record._alignment), address, record._accesses
        )
    record._accesses.unfenced = True
    return _read(address, field.dtype)


@native
def write_field(record: SharedRecord, name: Constant[str], value: object) -> None:
    """Write a field of a record, whose type the value becomes."""
    if name in SharedRecord.__dataclass_fields__:  # by `__init__`, in the simulator
        object.__setattr__(record, name, value)
        return
    field = field_of(record._dtype.numpy, name)
    if field.dtype.names:
        raise TypeError(record_refusal(f"{record._dtype}.{name}"))
    given = np.asarray(value)
    if given.dtype.kind == "c" and field.dtype.kind != "c":
        raise TypeError(f"the field {name!r} is {field.dtype}, and the value is complex")
    write_bytes(record._address + field.offset, given.astype(field.dtype))
    record._accesses.unfenced = True


def read_record(record: SharedRecord) -> np.ndarray[Any, Any]:
    """Return a copy of a whole record (simulator)."""
    record._accesses.unfenced = True
    return np.asarray(_read(record._address, record._dtype.numpy))


def write_bytes(address: int, value: np.ndarray[Any, Any]) -> None:
    """Write a value whose address need not be a multiple of its size (simulator)."""
    simulator.shared_write(address, np.frombuffer(value.tobytes(), np.uint8))


def record_refusal(what: object) -> str:
    """Return the error of a value that is written to a record and is none of its type."""
    return f"{what} takes records of its own type: write the fields one by one"


def _read(address: int, dtype: np.dtype[Any]) -> Any:
    return simulator.shared_read(address, np.dtype("u1"), dtype.itemsize).view(dtype)[0]
