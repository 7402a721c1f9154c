"""The bytes that a TMA copy of a tile moves: the model that the simulator and the tests share.

Pure NumPy. Everything here is in NumPy axis order, innermost axis last.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numba_tma.host.dtypes import DType, reduction_violation, wrong_storage
from numba_tma.host.host_only import host_only
from numba_tma.host.layout import Tile, swizzle_index
from numba_tma.host.packed import GROUP, gap_columns, with_gaps
from numba_tma.host.packed_rules import unpacked_store


@host_only
def reference_tile(
    array: NDArray[Any],
    tile: Tile,
    coords: Sequence[int],
    *,
    oob_fill: str = "zeros",
    element_strides: Sequence[int] | None = None,
) -> NDArray[np.uint8]:
    """Compute the bytes that a TMA load puts into shared memory.

    Parameters
    ----------
    array
        The tensor in global memory, any strides, with elements of ``tile.itemsize`` bytes. If
        elements have 4 or 6 bits, the bytes in which they are packed (`pack`).
    tile
        The tile in shared memory.
    coords
        First index of the tile in `array`; elements outside of it are filled.
    oob_fill
        ``"zeros"`` or ``"nan"``: the value of elements outside of `array`.
    element_strides
        Take every n-th element along an axis (default 1); the innermost must be 1.

    Returns
    -------
    numpy.ndarray
        ``tile.shared_nbytes`` bytes, swizzled. Where rows of one slab are padded to the swizzle's
        span the padding is 0 here; the copy engine leaves it as it was. The last of several slabs
        is whole: past the tile it holds what follows in `array`. The gaps behind the data of 16
        unpacked elements are not initialised; here their bytes are `GAP`.
    """
    if tile.dtype.is_packed:
        fill_bits(tile.dtype, oob_fill)  # raises
        return _packed_tile(array, tile, coords, element_strides)
    image = np.zeros(tile.shared_nbytes, np.uint8)
    for part, slab, start in _slabs(image, tile, coords):
        bits, positions, inside = _footprint(array, slab, start, element_strides)
        values = filled(slab.shape, slab.dtype, oob_fill)
        values[inside] = convert_bits(bits[positions], slab.dtype)
        part.view(bits.dtype)[slots(slab)] = values
    return image


#: The byte of an image that no load writes: not 0, so that a product of gaps shows.
GAP = 0xA5


def _packed_tile(
    array: NDArray[Any],
    tile: Tile,
    coords: Sequence[int],
    element_strides: Sequence[int] | None,
) -> NDArray[np.uint8]:
    """Return the image of packed elements: that of the bytes, in shared memory's proportions."""
    spread = with_gaps(_packed_bytes(array, tile), tile.dtype)
    of_bytes, start = _as_bytes(tile, coords)
    image = reference_tile(spread, of_bytes, start, element_strides=element_strides)
    gaps = gap_columns(tile.dtype, of_bytes.num_slabs * of_bytes.slab)
    if gaps.size:
        whole = Tile((*of_bytes.shape[:-1], of_bytes.num_slabs * of_bytes.slab), "u8", tile.swizzle)
        index = np.ix_(*map(np.arange, whole.shape[:-1]), gaps)
        image[whole.offset(*index)] = GAP
    return image


def _as_bytes(tile: Tile, coords: Sequence[int]) -> tuple[Tile, Sequence[int]]:
    """Return the tile of the same bytes of shared memory, and its first index."""
    count = tile.dtype.shared_nbytes
    shape = (*tile.shape[:-1], count(tile.shape[-1]))
    return Tile(shape, "u8", tile.swizzle), (*coords[:-1], count(int(coords[-1])))


def _packed_bytes(array: NDArray[Any], tile: Tile) -> NDArray[np.uint8]:
    if array.dtype.itemsize != 1 or wrong_storage(array.dtype):
        raise TypeError(
            f"the array has elements of {array.dtype}; {tile!r} takes the bytes of packed "
            "elements: use pack(array)"
        )
    packed = array.view(np.uint8)
    if tile.dtype.is_unpacked and packed.shape[-1] % tile.dtype.nbytes(GROUP):
        raise ValueError(
            f"the array has rows of {packed.shape[-1]} B; {tile!r} takes whole groups of {GROUP} "
            f"elements: pad the rows to a multiple of {tile.dtype.nbytes(GROUP)} B"
        )
    return packed


@host_only
def reference_store(
    array: NDArray[Any],
    image: NDArray[np.uint8],
    tile: Tile,
    coords: Sequence[int],
    element_strides: Sequence[int] | None = None,
) -> None:
    """Write the in-bounds elements of the swizzled bytes `image` into `array`, as a TMA store does.

    Parameters are those of `reference_tile`. The last of several slabs is stored whole. Where
    strides make elements of `array` overlap, the copy engine's order, and so the value, is
    undefined.
    """
    image = _checked_image(image, tile)
    if tile.dtype.is_packed:
        if wrong := unpacked_store(tile.dtype):
            raise TypeError(wrong)
        of_bytes, start = _as_bytes(tile, coords)
        reference_store(_packed_bytes(array, tile), image, of_bytes, start, element_strides)
        return
    for part, slab, start in _slabs(image, tile, coords):
        bits, positions, inside = _footprint(array, slab, start, element_strides)
        bits[positions] = part.view(bits.dtype)[slots(slab)][inside]


@host_only
def reference_reduce(
    array: NDArray[Any],
    image: NDArray[np.uint8],
    tile: Tile,
    coords: Sequence[int],
    operation: str,
    element_strides: Sequence[int] | None = None,
) -> None:
    """Combine `array` with the in-bounds elements of `image`, as a TMA reduction does.

    Parameters
    ----------
    array, image, tile, coords, element_strides
        Those of `reference_store`. No two elements of `array` may share memory.
    operation
        One of ``tile.dtype.reductions``; see `reduce_elements`.
    """
    if violation := reduction_violation(tile.dtype, operation):
        raise ValueError(violation)
    numpy, image = tile.dtype.numpy, _checked_image(image, tile)
    for part, slab, start in _slabs(image, tile, coords):
        bits, positions, inside = _footprint(array, slab, start, element_strides)
        values = part.view(bits.dtype)[slots(slab)][inside]
        result = reduce_elements(operation, bits[positions].view(numpy), values.view(numpy))
        bits[positions] = result.view(bits.dtype)


@host_only
def reference_gather(
    array: NDArray[Any],
    tile: Tile,
    rows: Sequence[int],
    column: int,
    *,
    oob_fill: str = "zeros",
) -> NDArray[np.uint8]:
    """Compute the bytes that a gather of rows by number puts into shared memory.

    Parameters
    ----------
    array
        The matrix in global memory, any strides, with elements of ``tile.itemsize`` bytes.
    tile
        The tile in shared memory, (rows, columns).
    rows
        The number in `array` of each row of the tile; one outside of it is filled.
    column
        First column of the tile; columns outside of `array` are filled.
    oob_fill
        ``"zeros"`` or ``"nan"``: the value of elements outside of `array`.

    Returns
    -------
    numpy.ndarray
        ``tile.shared_nbytes`` bytes, swizzled, as `reference_tile` returns them.
    """
    image = np.zeros(tile.shared_nbytes, np.uint8)
    for part, slab, (_, first) in _slabs(image, tile, (0, column)):
        part.view(_bits(tile))[slots(slab)] = gathered(array, slab, rows, first, oob_fill)
    return image


@host_only
def reference_scatter(
    array: NDArray[Any],
    image: NDArray[np.uint8],
    tile: Tile,
    rows: Sequence[int],
    column: int,
) -> None:
    """Write the rows of the swizzled bytes `image` into those rows of `array`, as a scatter does.

    Parameters are those of `reference_gather`. Elements outside of `array` are not written. If two
    rows have one number, the later one of the tile is written; the copy engine's order is
    undefined.
    """
    image = _checked_image(image, tile)
    for part, slab, (_, first) in _slabs(image, tile, (0, column)):
        scatter_values(array, part.view(_bits(tile))[slots(slab)], slab, rows, first)


def gathered(
    array: NDArray[Any], box: Tile, rows: Sequence[int], column: int, oob_fill: str
) -> NDArray[Any]:
    """Return the bits of `rows` of a matrix, in the columns of a box from `column` on."""
    bits, at, inside = _numbered(array, box, rows, column)
    values = filled(box.shape, box.dtype, oob_fill)
    values[inside] = convert_bits(bits[at], box.dtype)
    return values


def scatter_values(
    array: NDArray[Any], values: NDArray[Any], box: Tile, rows: Sequence[int], column: int
) -> None:
    """Write the bits of a box to `rows` of a matrix, from `column` on."""
    bits, at, inside = _numbered(array, box, rows, column)
    bits[at] = values[inside]


def _numbered(
    array: NDArray[Any], box: Tile, rows: Sequence[int], column: int
) -> tuple[NDArray[Any], "_Axes", "_Axes"]:
    """Return a matrix's bits, and the positions of in-bounds elements in it and in the box."""
    numbers, columns = np.asarray(rows, np.int64), int(column) + np.arange(box.shape[1])
    if array.ndim != 2 or numbers.shape != box.shape[:1]:
        raise ValueError(
            f"{box!r} takes {box.shape[0]} rows of a matrix; the array has {array.ndim} axes, and "
            f"{len(numbers)} rows are named"
        )
    kept = np.flatnonzero((numbers >= 0) & (numbers < array.shape[0]))
    within = np.flatnonzero((columns >= 0) & (columns < array.shape[1]))
    at = np.ix_(numbers[kept], columns[within])
    return array.view(_bits(box)), at, np.ix_(kept, within)


def _checked_image(image: NDArray[np.uint8], tile: Tile) -> NDArray[np.uint8]:
    if image.shape != (tile.shared_nbytes,):
        raise ValueError(
            f"image has shape {image.shape}; {tile!r} takes {tile.shared_nbytes} bytes"
        )
    return np.ascontiguousarray(image, np.uint8)


def reduce_elements(operation: str, old: NDArray[Any], operand: NDArray[Any]) -> NDArray[Any]:
    """Return the elements that a reduction of the copy engine writes in place of `old`.

    Integers wrap round. ``inc`` counts up and starts again at 0 after `operand`, ``dec`` counts
    down and starts again at `operand` after 0. Subnormal numbers are kept.
    """
    with np.errstate(all="ignore"):
        if operation == "inc":
            result = np.where(old >= operand, 0, old + 1)
        elif operation == "dec":
            result = np.where((old == 0) | (old > operand), operand, old - 1)
        else:
            result = _UFUNCS[operation](old, operand)
    return np.ascontiguousarray(result.astype(old.dtype, copy=False))


_UFUNCS: dict[str, Callable[..., NDArray[Any]]] = {
    "add": np.add,
    "min": np.fmin,
    "max": np.fmax,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def _slabs(
    image: NDArray[np.uint8], tile: Tile, coords: Sequence[int]
) -> Iterator[tuple[NDArray[np.uint8], Tile, Sequence[int]]]:
    """Yield each slab of a tile: its part of the image, its tile, and the tile's first index."""
    if tile.num_slabs == 1:
        yield image, tile, coords
        return
    slab = Tile((*tile.shape[:-1], tile.slab), tile.dtype, tile.swizzle)
    for number, part in enumerate(np.split(image, tile.num_slabs)):
        yield part[: slab.shared_nbytes], slab, (*coords[:-1], coords[-1] + number * tile.slab)


_Axes = tuple[NDArray[np.intp], ...]


def _footprint(
    array: NDArray[Any],
    tile: Tile,
    coords: Sequence[int],
    element_strides: Sequence[int] | None,
) -> tuple[NDArray[Any], _Axes, _Axes]:
    """Return the tensor's bits, and the positions of in-bounds elements in it and in the tile."""
    steps = (1,) * tile.ndim if element_strides is None else tuple(element_strides)
    if not array.ndim == len(coords) == len(steps) == tile.ndim:
        raise ValueError(
            f"{tile!r} has {tile.ndim} axes, the array {array.ndim}, the coordinates "
            f"{len(coords)}, the element strides {len(steps)}; they must agree"
        )
    if array.dtype.itemsize != tile.itemsize:
        raise TypeError(
            f"the array's {array.dtype} has {array.dtype.itemsize} B, {tile!r} {tile.itemsize} B"
        )
    if steps[-1] != 1:
        raise ValueError(f"innermost element stride is {steps[-1]}; TMA has only 1 there")
    positions, inside = [], []
    for start, step, count, extent in zip(coords, steps, tile.shape, array.shape, strict=True):
        position = int(start) + step * np.arange(count)
        kept = np.flatnonzero((position >= 0) & (position < extent))
        positions.append(position[kept])
        inside.append(kept)
    return array.view(_bits(tile)), np.ix_(*positions), np.ix_(*inside)


def slots(tile: Tile, address: int = 0) -> NDArray[np.intp]:
    """Return the position of each element of the tile in its image, in elements.

    The swizzle follows the bits of the shared-memory `address` at which the image begins.
    """
    rows = np.arange(tile.size // tile.shape[-1]) * tile.pitch
    row_major = (rows[:, None] + np.arange(tile.shape[-1]) * tile.itemsize).reshape(tile.shape)
    offsets = swizzle_index(tile.swizzle, row_major + address) - address
    return (offsets // tile.itemsize).astype(np.intp, copy=False)


# The NaN that an H200's copy engine fills in, 16 bits repeated.
_NAN_BITS = {2: 0x7FF7, 4: 0x7FF7_7FF7, 8: 0x7FF7_7FF7_7FF7_7FF7}


def fill_bits(dtype: DType, oob_fill: str) -> int:
    """Return the value of elements outside of the tensor."""
    if oob_fill == "zeros":
        return 0
    if oob_fill == "nan" and dtype.is_float:
        return _NAN_BITS[dtype.itemsize]
    allowed = '"zeros" or "nan"' if dtype.is_float else '"zeros", as an integer copy'
    raise ValueError(f"oob_fill is {oob_fill!r}; {dtype} takes {allowed}")


def filled(shape: Sequence[int], dtype: DType, oob_fill: str) -> NDArray[Any]:
    """Return the bits of elements outside of the tensor; each word of an element is filled."""
    word = dtype.word
    words = np.full((*shape, dtype.words), fill_bits(word, oob_fill), f"u{word.itemsize}")
    return words.view(_bits(dtype))[..., 0]


def _bits(stored: DType | Tile) -> str:
    """Return the NumPy type of elements as bits, which any memory layout can be viewed as."""
    itemsize = stored.itemsize
    return f"u{itemsize}" if itemsize <= 8 else f"V{itemsize}"


def convert_bits(values: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """Change bits as a load of `dtype` does on an H200. Stores change none.

    ``tf32`` and ``tf32_ftz`` round to 10 mantissa bits, to nearest, ties to even, denormals too;
    every NaN becomes 0x7fffe000. Despite their names, neither ``f32_ftz`` nor ``tf32_ftz`` flushes
    denormals.
    """
    if not dtype.name.startswith("tf32"):
        return values
    half = np.uint32(0x0FFF) + ((values >> np.uint32(13)) & np.uint32(1))
    rounded = (values + half) & np.uint32(0xFFFF_E000)
    infinite = (values & np.uint32(0x7FFF_FFFF)) == 0x7F80_0000
    nan = (values & np.uint32(0x7FFF_FFFF)) > 0x7F80_0000
    return np.where(nan, np.uint32(0x7FFF_E000), np.where(infinite, values, rounded))
