"""Rows at any address, in units of 16 bytes.

A unit is 16 bytes of memory at a multiple of 16 B. A thread computes one unit of an output row. The
bytes for it begin anywhere in an input, so that it loads the two units around them, both whole, and
shifts one against the other; neighbouring threads share units, which come from L1. Where rows of
the input have as many bytes before them in their first unit as those of the output, they are alike,
and one unit is all. What a row has of its first and its last unit is stored in parts, unless all
rows are whole units. The host says which form a call has.

Units that an input has in part are loaded element by element, so that no byte outside of the input
is read. They are its first and its last unit; between two rows all bytes are its own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from numba_tma import ptx
from numba_tma.backend.interface import device_function, i32, i64, native, u32, u64
from numba_tma.host.annotations import Address, Integer, Registers
from numba_tma.host.layout import Tile
from numba_tma.host.rows import ALIKE, ANY, WHOLE, Divisor, PlacedRows
from numba_tma.ptx._instruction import global_bytes

UNIT = 16


class UnitPlace(NamedTuple):
    """A unit of an output row."""

    row: Integer
    byte: Integer  #: Of the row, at which the unit begins; negative if the row begins within it.
    first: Integer  #: Bytes of the unit from `first` to `last` belong to the row.
    last: Integer


class Loaded(NamedTuple):
    """The 16 bytes of an input at a place: those that begin at byte `shift` of two units."""

    near: Registers
    far: Registers
    shift: Integer


# The bodies below are what the simulator runs. `lowering.units` is what a compiler emits.


@native
def load_part(tile: Tile, address: Address, first: Integer, last: Integer) -> Registers:
    """Load the elements at bytes `first` to `last` of the 16 B at `address`; the others are 0.

    `tile` is one element of 1, 2 or 4 bytes. Returns four words.
    """
    unit, nbytes = np.zeros(UNIT, np.uint8), tile.nbytes
    for n in range(0, UNIT, nbytes):
        if first <= n and n + nbytes <= last:
            unit[n : n + nbytes] = global_bytes(int(address) + n, nbytes)
    return tuple(unit.view(np.uint32).tolist())


@native
def store_part(
    tile: Tile, address: Address, words: Registers, first: Integer, last: Integer
) -> None:
    """Store the elements at bytes `first` to `last` of four words; parameters as in `load_part`.

    Neighbours go together, as 2, 4 or 8 B where they are aligned: fewer writes reach L2. The unit
    is not whole.
    """
    unit, nbytes = np.array(words, np.uint32).view(np.uint8), tile.nbytes
    for n in range(0, UNIT, nbytes):
        if first <= n and n + nbytes <= last:
            global_bytes(int(address) + n, nbytes)[:] = unit[n : n + nbytes]


@native
def shifted(near: Registers, far: Registers, shift: Integer) -> Registers:
    """Return the four words that begin `shift` bytes, 0 to 15, after the first of eight."""
    both = np.array([*near, *far], np.uint32).view(np.uint8)
    return tuple(both[int(shift) : int(shift) + UNIT].view(np.uint32).tolist())


@native
def lanes_of(words: Registers, tile: Tile) -> Registers:
    """Return the vector of the elements of `tile`, 16 B or fewer, that four words begin with."""
    values: Registers = np.array(words, np.uint32).view(tile.dtype.numpy).astype(np.float32)
    return values[: tile.size]


@native
def words_of(values: Registers, tile: Tile) -> Registers:
    """Return the four words of a vector, rounded to the elements of `tile`."""
    with np.errstate(all="ignore"):
        return tuple(values.astype(tile.dtype.numpy).view(np.uint32).tolist())


@device_function
def place_in_row(
    number: Integer, out: PlacedRows, rows: Integer, nbytes: Integer, units: Divisor
) -> UnitPlace:
    """Return unit `number` of an output of one row; see `place_in_rows`."""
    byte = number * UNIT - (out.address & 15)
    return UnitPlace(0, byte, i32(max(-byte, 0)), i32(min(nbytes - byte, UNIT)))


@device_function
def place_in_rows(
    number: Integer, out: PlacedRows, rows: Integer, nbytes: Integer, units: Divisor
) -> UnitPlace:
    """Return unit `number`, below 2**31, of an output of `rows` rows of `nbytes`.

    `units` are those that a row may touch. A place behind the last row has no bytes.
    """
    row = u32(u64(u32(number)) * u64(units.multiplier) >> u64(units.shift))
    unit = i32(number - row * units.value)
    byte = unit * UNIT - ((out.address + row * out.stride) & 15)
    last = min(nbytes - byte, UNIT) if row < rows else 0
    return UnitPlace(row, byte, i32(max(-byte, 0)), i32(last))


@device_function
def load_unit(tile: Tile, x: PlacedRows, place: UnitPlace) -> Loaded:
    """Load the bytes of an input at a place of the output; `tile` is one element."""
    address = i64(x.address + place.row * x.stride + place.byte)
    shift = address & 15
    near = address - shift
    is_whole = near >= i64(x.address) and near + (2 * UNIT if shift else UNIT) <= i64(x.end)
    first = ptx.ld_global_v4_u32(near, condition=is_whole)
    second = ptx.ld_global_v4_u32(near, offset=UNIT, condition=is_whole and shift != 0)
    if not is_whole:
        first, shift = load_part(tile, address, place.first, place.last), 0
    return Loaded(first, second, u32(shift))


@device_function
def load_alike(tile: Tile, x: PlacedRows, place: UnitPlace) -> Registers:
    """Load the bytes of an input whose rows are like those of the output; see `load_unit`."""
    address = i64(x.address + place.row * x.stride + place.byte)
    is_whole = address >= i64(x.address) and address + UNIT <= i64(x.end)
    words = ptx.ld_global_v4_u32(address, condition=is_whole)
    if not is_whole:
        words = load_part(tile, address, place.first, place.last)
    return words


@device_function
def load_whole(tile: Tile, x: PlacedRows, place: UnitPlace) -> Registers:
    """Load a unit of an input whose rows, like those of the output, are whole units."""
    address = i64(x.address + place.row * x.stride + place.byte)
    return ptx.ld_global_v4_u32(address, condition=i32(place.last) > 0)


@device_function
def words_loaded(loaded: Loaded) -> Registers:
    """Return the four words of what `load_unit` has loaded."""
    return shifted(loaded.near, loaded.far, loaded.shift)


@device_function
def words_alike(loaded: Registers) -> Registers:
    """Return the four words of what `load_alike` or `load_whole` has loaded."""
    return loaded


@device_function
def load_element(tile: Tile, x: PlacedRows, place: UnitPlace) -> Registers:
    """Return a vector of the one element that an input has for the row of a place."""
    row = place.row if place.last > 0 else 0
    words = load_part(tile, x.address + row * x.stride, 0, tile.nbytes)
    return lanes_of(words, tile)


@device_function
def store_unit(tile: Tile, out: PlacedRows, place: UnitPlace, words: Registers) -> None:
    """Store a unit of a row of the output, or what the row has of it; `tile` is one element."""
    address = out.address + place.row * out.stride + place.byte
    is_whole = place.first == 0 and place.last == UNIT
    ptx.st_global_v4_u32(address, words, condition=is_whole)
    if not is_whole:
        store_part(tile, address, words, place.first, place.last)


@device_function
def store_whole(tile: Tile, out: PlacedRows, place: UnitPlace, words: Registers) -> None:
    """Store a unit of an output whose rows are whole units."""
    address = out.address + place.row * out.stride + place.byte
    ptx.st_global_v4_u32(address, words, condition=i32(place.last) > 0)


#: Of each form: how an input is loaded, what words were loaded, and how the output is stored.
STEPS = {
    WHOLE: (load_whole, words_alike, store_whole),
    ALIKE: (load_alike, words_alike, store_unit),
    ANY: (load_unit, words_loaded, store_unit),
}
