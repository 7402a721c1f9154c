"""Elements of 4 and 6 bits in memory: packed in arrays, with gaps in tiles of unpacked types.

Pure NumPy. The first of packed elements is in the lowest bits of the first byte.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from numba_tma.host.annotations import DTypeLike
from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.host_only import host_only

GROUP = 16  #: elements that an unpacked type copies to 16 bytes of shared memory


@host_only
def pack(array: NDArray[Any], dtype: DTypeLike | None = None) -> NDArray[np.uint8]:
    """Pack elements of 4 or 6 bits, as tensor maps read them.

    Parameters
    ----------
    array
        One element a byte: of the ml_dtypes type ``float4_e2m1fn``, ``float6_e2m3fn`` or
        ``float6_e3m2fn``; or of uint8, the codes of `dtype`. Whole bytes along the last axis: a
        multiple of 2 elements of 4 bits, of 4 elements of 6 bits.
    dtype
        Element type of codes.

    Returns
    -------
    numpy.ndarray
        uint8, contiguous. The last axis has 1/2 or 3/4 of the extent.

    Raises
    ------
    TypeError
        When the elements have no 4 or 6 bits.
    ValueError
        When a row is no whole number of bytes, or a code has more bits.

    Examples
    --------
    >>> import ml_dtypes
    >>> pack(np.array([0.5, 6.0], ml_dtypes.float4_e2m1fn))
    array([113], dtype=uint8)
    """
    found = _packed_type("pack", array.dtype if dtype is None else dtype)
    codes = np.ascontiguousarray(array).view(np.uint8)
    if array.dtype.itemsize != 1:
        raise TypeError(
            f"pack(array=...) has elements of {array.dtype}: give uint8 codes, or convert with "
            f"array.astype(ml_dtypes.{found.numpy.name})"
        )
    if codes.ndim == 0 or codes.shape[-1] * found.bits % 8:
        unit = 8 // np.gcd(8, found.bits)
        raise ValueError(
            f"pack(array=...) has shape {array.shape}; {found} fills bytes in multiples of "
            f"{unit} elements: pad the last axis"
        )
    if codes.size and int(codes.max()) >> found.bits:
        raise ValueError(
            f"pack(array=...) has the code {int(codes.max())}; codes of {found} have {found.bits} "
            "bits: mask the others"
        )
    bits = np.unpackbits(codes[..., None], axis=-1, count=found.bits, bitorder="little")
    rows = bits.reshape(*codes.shape[:-1], codes.shape[-1] * found.bits)
    return np.packbits(rows, axis=-1, bitorder="little")


@host_only
def unpack(array: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    """Return packed elements as an ml_dtypes array of one element a byte; the reverse of `pack`.

    Parameters
    ----------
    array
        Bytes. With 6 bits an element, a multiple of 3 along the last axis.
    dtype
        Element type of 4 or 6 bits.

    Raises
    ------
    TypeError, ValueError
        As for `pack`.
    """
    found = _packed_type("unpack", dtype)
    if array.ndim == 0 or array.shape[-1] * 8 % found.bits or array.dtype.itemsize != 1:
        raise ValueError(
            f"unpack(array=...) has shape {array.shape} of {array.dtype}; {found} has "
            f"{found.bits} bits: give bytes"
            + (", a multiple of 3 along the last axis" if found.bits == 6 else "")
        )
    packed = np.ascontiguousarray(array).view(np.uint8)
    bits = np.unpackbits(packed, axis=-1, bitorder="little")
    bits = bits.reshape(*found.element_shape(array.shape), found.bits)
    codes: NDArray[Any] = np.packbits(bits, axis=-1, bitorder="little")[..., 0]
    return codes.view(found.numpy)


def _packed_type(function: str, dtype: object) -> DType:
    found = as_dtype(dtype)
    if not found.is_packed:
        raise TypeError(
            f"{function}(dtype=...) is {found}, which has {found.bits} bits; elements of 4 and 6 "
            "bits are packed: give e2m1, e2m3 or e3m2"
        )
    return found


def with_gaps(packed: NDArray[np.uint8], dtype: DType) -> NDArray[np.uint8]:
    """Return rows of packed elements as they lie in shared memory; gaps are 0.

    The last axis is in bytes, of whole groups of 16 elements.
    """
    if not dtype.is_unpacked:
        return packed
    data = dtype.nbytes(GROUP)
    groups = packed.reshape(*packed.shape[:-1], packed.shape[-1] // data, data)
    padded = np.pad(groups, [(0, 0)] * (groups.ndim - 1) + [(0, GROUP - data)])
    return padded.reshape(*packed.shape[:-1], padded.shape[-2] * GROUP)


def gap_columns(dtype: DType, nbytes: int) -> NDArray[np.intp]:
    """Return the bytes of a row of `nbytes` in shared memory that no load writes."""
    columns = np.arange(nbytes)
    if not dtype.is_unpacked:
        return columns[:0]
    return columns[columns % GROUP >= dtype.nbytes(GROUP)]
