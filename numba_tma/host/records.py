"""Structured types as elements: their names, the words in which they are copied, their fields."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

MOST_WORDS = 256  # along the innermost axis of a box
_SIZES = (8, 4, 2, 1)


def word_nbytes(itemsize: int) -> int:
    """Return the bytes of the words in which elements of a size are copied: as many as fit."""
    return next(size for size in _SIZES if itemsize % size == 0)


def record_problem(dtype: np.dtype) -> str:
    """Say why a structured type is none of a tile's elements; "" if it is one."""
    if not dtype.itemsize or not dtype.names:
        return f"{dtype} has no bytes: give it fields"
    size, chunk = dtype.itemsize, 16 // math.gcd(16, dtype.itemsize)
    if (words := chunk * size // word_nbytes(size)) > MOST_WORDS:
        return (
            f"{chunk} of its records, of {size} B each, fill whole chunks of 16 B, and are {words} "
            f"words of {word_nbytes(size)} B, where a box has {MOST_WORDS} at most: pad the record "
            "to a multiple of 8 B (align=True), or split it"
        )
    return next(filter(None, (_field_problem(dtype, name) for name in dtype.names)), "")


def _field_problem(record: np.dtype, name: str) -> str:
    kept: np.dtype = record[name]
    if name.startswith("_"):
        return f"the field {name!r} begins with an underscore: rename it"
    if kept.subdtype is not None:
        return (
            f"the field {name!r} is an array of shape {kept.shape}; fields of a tile's records are "
            "numbers and records: give each of its elements a field"
        )
    if kept.names:
        return record_problem(kept)
    most = {"b": 1, "i": 8, "u": 8, "f": 8, "c": 16}.get(kept.kind, 0)
    if kept.itemsize > most or not kept.isnative:
        return (
            f"the field {name!r} is {kept}; kernels read fields of bool, integers, float16 to "
            "float64, complex64 and complex128, in the machine's byte order"
        )
    return ""


def record_name(dtype: np.dtype) -> str:
    """Return a name that tells a structured type from all others, with its fields."""
    assert dtype.fields is not None
    shown, end = [], 0
    for name in dtype.names or ():
        kept, offset = dtype.fields[name][:2]
        gap = "" if offset == end else f"@{offset} "
        shown.append(f"{gap}{name}: {record_name(kept) if kept.names else kept.str[1:]}")
        end = offset + kept.itemsize
    tail = "" if end == dtype.itemsize else f", {dtype.itemsize} B"
    return "{" + ", ".join(shown) + tail + "}"


@dataclass(frozen=True)
class RecordField:
    """A field of a record: its type, and the bytes from the record's first to its own."""

    dtype: np.dtype
    offset: int

    def aligned(self, record: int) -> int:
        """Return the bytes of which its address is a multiple, given those of its record."""
        return min(record, (self.offset & -self.offset) or record)

    @property
    def natural(self) -> int:
        """Bytes to which compilers align its type."""
        if self.dtype.names:
            return natural_alignment(self.dtype)
        return self.dtype.itemsize // (2 if self.dtype.kind == "c" else 1)


def field_of(record: np.dtype, name: str) -> RecordField:
    """Return a field of a record, or raise an AttributeError."""
    assert record.fields is not None
    if name not in record.fields:
        names = ", ".join(record.names or ())
        raise AttributeError(
            f"a record {record_name(record)} has no field {name!r}: its fields are {names}"
        )
    return RecordField(*record.fields[name][:2])


def natural_alignment(record: np.dtype) -> int:
    """Return the bytes to which compilers align a record; 1 if they do not align its fields."""
    fields = [field_of(record, name) for name in record.names or ()]
    most = max(field.natural for field in fields)
    kept = all(field.offset % field.natural == 0 for field in fields)
    return most if kept and record.itemsize % most == 0 else 1


def alignment_in_rows(record: np.dtype) -> int:
    """Return the bytes of which the addresses of adjacent records are multiples, up to 16."""
    return min(16, record.itemsize & -record.itemsize)
