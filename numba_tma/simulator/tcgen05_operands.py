"""Operands of tcgen05.mma: their bytes in shared or tensor memory, decoded to float64."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from numba_tma.host.dtypes import as_dtype
from numba_tma.host.matrix_layout import CHUNK_BYTES, decode_descriptor, matrix_addresses
from numba_tma.simulator.errors import BadOperand

if TYPE_CHECKING:
    from numba_tma.simulator.block import Cta

Values = NDArray[np.float64]
Addresses = NDArray[np.intp]
Words = NDArray[np.uint8]

_NAMES = ("f16", "bf16", "tf32", "e4m3", "e5m2", "u8", "i8", "e2m3", "e3m2", "e2m1")
#: Bits of an element of each type.
BITS = {name: as_dtype(name).bits for name in _NAMES}
_STORED = {name: as_dtype(name).numpy for name in _NAMES}


class Place(NamedTuple):
    """An operand in shared memory: the address of each byte, and all bytes as few runs."""

    addresses: Addresses  #: of shape (rows, bytes of a row)
    runs: tuple[tuple[int, int], ...]


def in_shared(
    what: str,
    descriptor: int,
    rows: int,
    type_name: str,
    major: str,
    first: int = 0,
    steps: int = 1,
) -> Place:
    """Return the bytes that one product reads of `rows` rows, from row `first` on.

    A product reads 32 bytes of each row, of B of a sparse product 64: `steps` is 2.
    """
    try:
        return _in_shared(descriptor, rows, BITS[type_name], major, first, steps)
    except ValueError as error:
        raise BadOperand(f"{what}: {error}") from None


def check_swizzle(what: str, cta: Cta, place: Place, descriptor: int) -> None:
    """Raise if a tensor map with another swizzle than the descriptor's has loaded the operand."""
    swizzle = decode_descriptor(descriptor).swizzle
    other = cta.memory.other_swizzle(place.addresses[:, ::CHUNK_BYTES], swizzle)
    if other is not None:
        address, loaded = other
        raise BadOperand(
            f"{what}: the descriptor {descriptor:#018x} has swizzle {swizzle.name}, but "
            f"{cta.memory.describe(address, CHUNK_BYTES)} was loaded by a tensor map with "
            f"swizzle {loaded.name}: make the descriptor of the tile that the map was made for"
        )


@functools.lru_cache(maxsize=1024)
def _in_shared(
    descriptor: int, rows: int, bits: int, major: str, skipped: int, steps: int
) -> Place:
    if decode_descriptor(descriptor).instruction != "tcgen05":
        raise ValueError(
            f"{descriptor:#018x} is a descriptor for wgmma: bits 46 to 48 of one for tcgen05 are 1"
        )
    if descriptor >> 52 & 1:
        raise ValueError(
            f"{descriptor:#018x}: bit 52, an absolute second address for rows of 48 B (K = 96, "
            "sm_103a), is not simulated"
        )
    if major == "MN" and bits < 8:
        raise ValueError(
            f"an operand of {bits} bits is K-major: no source agrees on another layout"
        )
    itemsize = max(1, bits // 8)
    first = matrix_addresses(descriptor, skipped + rows, itemsize, major, steps)
    first = first[skipped : skipped + rows]
    addresses = (first[..., None] + np.arange(itemsize)).reshape(rows, -1)
    granules = np.unique(addresses // CHUNK_BYTES)
    cuts = np.flatnonzero(np.diff(granules) > 1) + 1
    runs = [(int(run[0]) * CHUNK_BYTES, len(run) * CHUNK_BYTES) for run in np.split(granules, cuts)]
    return Place(addresses, tuple(runs))


def has_gaps(type_name: str, kind: str) -> bool:
    """Return whether 16 elements take 16 bytes, of which only the first ones hold data."""
    return BITS[type_name] < 8 and not kind.startswith("mxf4")


def decoded(row_bytes: Words, type_name: str, kind: str) -> Values:
    """Return the elements of rows of bytes, of shape (rows, K).

    Rows of mxf4 kinds are packed, two elements a byte, the first in the low bits. In the f8f6f4
    kinds, 16 elements of 4 or 6 bits take the first 8 or 12 of 16 bytes.
    """
    rows, bits = len(row_bytes), BITS[type_name]
    if type_name == "tf32":
        words = np.ascontiguousarray(row_bytes).view(np.uint32) & ~np.uint32(0x1FFF)
        return _exact(words.view(np.float32))
    if bits >= 8:
        elements = np.ascontiguousarray(row_bytes).view(_STORED[type_name])
        return _exact(elements)
    if has_gaps(type_name, kind):
        row_bytes = row_bytes.reshape(rows, -1, CHUNK_BYTES)[..., : 2 * bits]
    stream = np.unpackbits(np.ascontiguousarray(row_bytes), axis=-1, bitorder="little")
    codes = np.packbits(stream.reshape(rows, -1, bits), axis=-1, bitorder="little")
    return _exact(codes[..., 0].view(_STORED[type_name]))


def in_bytes(row_bytes: Words, type_name: str) -> Values:
    """Return the elements of rows in which each element of 4 or 6 bits has a byte: (rows, K).

    An element of 6 bits has the low bits of its byte, one of 4 bits has bits 2 to 5.
    """
    codes = row_bytes & 0x3F if BITS[type_name] == 6 else row_bytes >> 2 & 0xF
    return _exact(codes.astype(np.uint8).view(_STORED[type_name]))


def decompressed(row_bytes: Words, bits: int) -> Words:
    """Give each element of `bits` bits a byte, as tcgen05.cp does; rows keep their length.

    An element of 4 bits has bits 2 to 5 of its byte, one of 6 bits has bits 0 to 5.
    """
    return (unpacked_codes(row_bytes, bits) << (6 - bits)).astype(np.uint8)


def unpacked_codes(row_bytes: Words, bits: int) -> Words:
    """Give each element of `bits` bits the low bits of a byte; rows keep their length.

    Of 16 bytes of a row the first 2 `bits` hold 16 elements.
    """
    packed = np.ascontiguousarray(row_bytes.reshape(-1, CHUNK_BYTES)[:, : 2 * bits])
    stream = np.unpackbits(packed, axis=-1, bitorder="little").reshape(-1, CHUNK_BYTES, bits)
    codes = np.packbits(stream, axis=-1, bitorder="little")
    return codes[..., 0].reshape(row_bytes.shape)


def decoded_scales(codes: Words, scale_type: str | None) -> Values:
    """Return scale factors: ue8m0 as powers of two, ue4m3 as e4m3 without a sign."""
    if scale_type == "ue8m0":
        return _exact(codes.view(ml_dtypes.float8_e8m0fnu))
    return _exact((codes & 0x7F).view(ml_dtypes.float8_e4m3fn))


def _exact(elements: NDArray[Any]) -> Values:
    values: Values = elements.astype(np.float64)
    return values
