"""Sparse operands A of tcgen05.mma: which elements are stored, and the metadata that say so.

A sparse A stores half of its elements: 2 of each 4 along K, 1 of each 2 of 32 bits. For each such
group a code of 4 bits has the places of the stored elements. The codes lie in tensor memory where
CUTLASS puts them; PTX shows the places in figures.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from numba_tma.host.annotations import DTypeLike
from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.host_only import host_only
from numba_tma.host.layout import Tile

#: Types of a sparse A. The bits of an element in shared memory decide where codes lie.
SPARSE_TYPES = (
    "f16", "bf16", "f32", "tf32", "i8", "u8", "e4m3", "e5m2", "e3m2", "e2m3", "e2m1_unpacked",
)  # fmt: skip
#: Bits of a row of A that one instruction reads.
STORED_BITS = 256
#: Lanes of tensor memory, and columns that one copy of 128x128b fills.
LANES, COPIED_COLUMNS = 128, 4
#: The shape of that copy, as PTX has it.
COPY_SHAPE = "128x128b"

Cells = NDArray[np.intp]


class Metadata(NamedTuple):
    """The place of each code of one instruction, of shape (rows, codes of a row)."""

    lane: Cells
    column: Cells  #: from the address on
    shift: Cells  #: of the code's bits in the cell


def group_of(bits: int) -> int:
    """Return the elements of a group, of which half are stored."""
    return 2 if bits == 32 else 4


def step_columns(bits: int) -> int:
    """Return the columns that the codes of one instruction take: 2 of 8 bits and fewer, else 1."""
    return 2 if bits <= 8 else 1


def metadata_cells(bits: int, rows: int, selector: int = 0) -> Metadata:
    """Return where the codes of one instruction lie, of `rows` rows of elements of `bits` bits.

    Of 8 bits and fewer, each row has its codes in its lane. Otherwise 16 rows share 16 lanes, of
    which each has 16 bits of two rows, in the column that the sparsity selector picks.
    """
    wide = bits > 8
    row, code = np.indices((rows, 8 if wide else 16))
    if not wide:
        return Metadata(row, code // 8, code % 8 * 4)
    lane = row // 16 * 16 + row % 8 + 8 * (code // 4)
    return Metadata(lane, np.full_like(row, selector), 16 * (row // 8 % 2) + 4 * (code % 4))


def check_stored(method: str, k: int, dtype: DTypeLike) -> DType:
    """Return the type of a sparse A of `k` elements along K, or raise a ValueError."""
    try:
        found = as_dtype(dtype)
    except TypeError:
        found = None
    if found is None or found.name not in SPARSE_TYPES:
        raise ValueError(
            f"{method}: dtype is {dtype!r}; a sparse operand is one of {', '.join(SPARSE_TYPES)}"
        )
    step = 2 * STORED_BITS // found.shared_bits
    if k % step or k < step:
        raise ValueError(
            f"{method}: k is {k}; one sparse instruction has {step} elements of {found} along K, "
            f"half of them stored: use a multiple of {step}"
        )
    return found


def metadata_columns(k: int, dtype: DType) -> int:
    """Return the columns of the metadata of `k` elements along K: whole copies of 4."""
    steps = k * dtype.shared_bits // (2 * STORED_BITS)
    used = steps * step_columns(dtype.shared_bits)
    return -(-used // COPIED_COLUMNS) * COPIED_COLUMNS


@host_only
def metadata_tile(k: int, dtype: DTypeLike) -> Tile:
    """Return the tile of a block's metadata in shared memory: of ``uint32``, for `tcgen05_copy`.

    Its shape is (copies along K, 128 lanes, 4 words). `sparse_compress` returns an array of such
    tiles.

    Parameters
    ----------
    k
        Elements of A along K, those that are not stored included.
    dtype
        Element type of A.

    Examples
    --------
    >>> metadata_tile(128, "bf16").shape
    (1, 128, 4)
    """
    columns = metadata_columns(k, check_stored("metadata_tile", k, dtype))
    return Tile((columns // COPIED_COLUMNS, LANES, COPIED_COLUMNS), np.uint32)


@host_only
def sparse_compress(
    matrix: NDArray[Any], *, dtype: DTypeLike | None = None, m: int = LANES
) -> tuple[NDArray[Any], NDArray[np.uint32]]:
    """Return what a sparse A stores, and its metadata, both as arrays for tensor maps.

    Parameters
    ----------
    matrix
        A of shape (rows, K), with at most 2 elements of each 4 along K that are not zero; of 32
        bits at most 1 of each 2. `rows` is a multiple of `m`.
    dtype
        Element type, if it is another than the array's: ``"tf32"``, or ``"e2m1_unpacked"``.
    m
        Rows of A in a block: 128, or 64 or 32 of a weight-stationary product.

    Returns
    -------
    stored
        Shape (rows, K / 2), of the type of `matrix`. Tiles of A are those of this array.
    metadata
        ``uint32`` of shape (copies along K, 128 rows / m, 4), for tiles of `metadata_tile`: that of
        rows ``i * m`` and K from ``k`` on begins at ``(copy, 128 * i, 0)``, where a copy has 128
        elements along K, 64 of those of 32 bits.

    Raises
    ------
    ValueError
        When a group has too many elements that are not zero, or the shape does not fit.

    Examples
    --------
    >>> a = np.zeros((128, 32), np.float16)
    >>> a[:, 1], a[:, 3] = 2, 5
    >>> stored, metadata = sparse_compress(a)
    >>> stored[0, :2], hex(metadata[0, 0, 0] & 0xF)
    (array([2., 5.], dtype=float16), '0xd')
    """
    array = np.asarray(matrix)
    if array.ndim != 2 or array.shape[0] % m or m not in (32, 64, LANES):
        raise ValueError(
            f"sparse_compress: the matrix has shape {array.shape} and m is {m}; use (rows, K) with "
            "rows a multiple of m, and m 32, 64 or 128"
        )
    rows, k = array.shape
    found = check_stored("sparse_compress", k, array.dtype if dtype is None else dtype)
    bits = found.shared_bits
    places = _stored_places(array, group_of(bits))
    groups = array.reshape(rows, -1, group_of(bits))
    stored = np.take_along_axis(groups, places, axis=-1).reshape(rows, -1)
    # Of 32 bits, an element's place is that of two halves.
    codes = np.where(places[..., 0], 0xE, 0x4) if bits == 32 else places @ np.array([1, 4])
    return stored, _image(codes, bits, rows, m, metadata_columns(k, found))


def _stored_places(array: NDArray[Any], size: int) -> Cells:
    """Return the places of each group's stored elements, in order: (rows, groups, size / 2)."""
    rows = array.shape[0]
    kept = (array != 0).reshape(rows, -1, size)
    counts = kept.sum(axis=-1)
    if (counts > size // 2).any():
        row, group = np.argwhere(counts > size // 2)[0]
        raise ValueError(
            f"sparse_compress: row {row} has {counts[row, group]} elements that are not zero from "
            f"K {group * size} on; a sparse operand has at most {size // 2} of each {size}"
        )
    first = np.argsort(~kept, axis=-1, kind="stable")[..., : size // 2]
    places: Cells = np.sort(first, axis=-1)
    return places


def _image(codes: Cells, bits: int, rows: int, m: int, columns: int) -> NDArray[np.uint32]:
    """Return the words of tensor memory of each block of rows, copies of 4 columns outermost."""
    blocks, each = rows // m, 8 if bits > 8 else 16
    words = np.zeros((blocks, LANES, columns), np.uint32)
    steps = codes.reshape(blocks, m, -1, each)
    for step in range(steps.shape[2]):
        first = step // 2 * 2 if bits > 8 else 2 * step
        at = metadata_cells(bits, m, step % 2)
        values = (steps[:, :, step] << at.shift).astype(np.uint32)
        for lane in range(0, LANES, m):
            for block in range(blocks):
                np.bitwise_or.at(words[block], (at.lane + lane, at.column + first), values[block])
    copies = words.reshape(blocks * LANES, -1, COPIED_COLUMNS).transpose(1, 0, 2)
    return np.ascontiguousarray(copies)
