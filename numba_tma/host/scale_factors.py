"""Scale factors of block-scaled products: formats, quantisation, and the layout in atoms.

A matrix (rows, K) of narrow elements has a scale for each block of 16 or 32 elements along K. The
tensor cores read scales from atoms of 128 rows x 4 scales, 512 bytes: what cuBLAS calls the layout
of scaling factors, and torchao blocked. Byte ``16 * (r % 32) + 4 * (r // 32) + k`` of an atom
belongs to row r and scale k. Atoms follow each other along K first, then along the rows.

Pure NumPy. The functions are for hosts, tests and small data: a GPU quantises faster.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from numba_tma.host.annotations import DTypeLike
from numba_tma.host.dtypes import DType, Index, as_dtype
from numba_tma.host.host_only import host_only
from numba_tma.host.layout import Tile

ATOM_ROWS = 128
ATOM_SCALES = 4
ATOM_BYTES = ATOM_ROWS * ATOM_SCALES
#: The axes of an atom's bytes in tiles and arrays: TMA copies up to 256 elements along an axis.
ATOM_SHAPE = (2, 256)


class BlockScaled(NamedTuple):
    """A matrix in a block-scaled format: element (r, c) is ``values[r, c] * scales[r, c // n]``."""

    values: NDArray[Any]  #: (rows, K), of the format's element type, one element a byte
    scales: NDArray[Any]  #: (rows, K / n), of the format's scale type; n is the block's size


@dataclass(frozen=True)
class BlockFormat:
    """A block-scaled format: the types of elements and scales, and the elements of a block."""

    element: DType
    scale: DType
    block: int


def _format(element: str, scale: str, block: int) -> BlockFormat:
    return BlockFormat(as_dtype(element), as_dtype(scale), block)


#: The formats by name: those of OCP's MX specification, whose scales are powers of two, and nvfp4.
FORMATS = {
    "mxfp8": _format("e4m3", "ue8m0", 32),
    "mxfp8_e5m2": _format("e5m2", "ue8m0", 32),
    "mxfp6_e2m3": _format("e2m3", "ue8m0", 32),
    "mxfp6_e3m2": _format("e3m2", "ue8m0", 32),
    "mxfp4": _format("e2m1", "ue8m0", 32),
    "nvfp4": _format("e2m1", "ue4m3", 16),
}


def block_format(name: str) -> BlockFormat:
    """Return the format of a name in `FORMATS`, or raise a ValueError that lists them."""
    if name not in FORMATS:
        raise ValueError(f"format is {name!r}; block-scaled formats are {', '.join(FORMATS)}")
    return FORMATS[name]


# ----------------------------------------------------------------------------- quantisation


@host_only
def quantize(x: NDArray[Any], format: str) -> BlockScaled:
    """Quantise a matrix to a block-scaled format.

    Scales of the MX formats are ``2**(floor(log2(amax)) - emax)``, as OCP's specification 1.0 says:
    `amax` is the largest magnitude of a block, `emax` the exponent of the format's largest value.
    Values that are then too large become the largest. Scales of nvfp4 are ``amax / 6``, rounded to
    e4m3. Larger scales than 448 become 448, and small ones lose bits: divide `x` by `tensor_scale`
    first. Values are rounded to nearest, ties to even.

    Parameters
    ----------
    x
        (..., K) finite numbers; K is a multiple of the format's block.
    format
        ``"mxfp8"`` (e4m3), ``"mxfp8_e5m2"``, ``"mxfp6_e2m3"``, ``"mxfp6_e3m2"``, ``"mxfp4"`` or
        ``"nvfp4"``.

    Returns
    -------
    BlockScaled
        Values (..., K) and scales (..., K / block). `pack` packs values of 4 and 6 bits,
        `to_blocked` puts scales into atoms.

    Raises
    ------
    ValueError
        When the format is unknown, K is no multiple of the block, or a number is not finite.
    """
    kind = block_format(format)
    x = np.asarray(x).astype(np.float64)
    if x.ndim == 0 or x.shape[-1] % kind.block:
        raise ValueError(
            f"quantize(x=...) has shape {x.shape}; {format} takes a multiple of {kind.block} along "
            "the last axis: pad it with zeros"
        )
    if not np.isfinite(x).all():
        raise ValueError(
            f"quantize(x=...) has values that are not finite, which {format} cannot scale"
        )
    blocks = x.reshape(*x.shape[:-1], x.shape[-1] // kind.block, kind.block)
    largest = np.abs(blocks).max(-1, initial=0)
    scales = _power_scales(largest, kind) if kind.scale.name == "ue8m0" else _e4m3_scales(largest)
    factors = decode_scales(scales, kind.scale)[..., None]
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = np.where(factors > 0, blocks / factors, 0)
    limit = _limit(kind.element)
    # Rounded once: a float64 value that lies between two of float32 could round twice.
    values = _rounded(np.clip(scaled, -limit, limit), kind.element)
    return BlockScaled(values.reshape(x.shape), scales)


@host_only
def dequantize(values: NDArray[Any], scales: NDArray[Any]) -> NDArray[np.float32]:
    """Return the matrix of float32 that values and scales of `quantize` stand for.

    Parameters
    ----------
    values
        (..., K), of an ml_dtypes type.
    scales
        (..., K / block), of float8_e8m0fnu or float8_e4m3fn; the sign of e4m3 is ignored.
    """
    if not scales.shape or values.shape[-1] % max(1, scales.shape[-1]):
        raise ValueError(
            f"dequantize: values of shape {values.shape} do not divide into scales of shape "
            f"{scales.shape}: give the arrays of quantize"
        )
    block = values.shape[-1] // max(1, scales.shape[-1])
    factors = np.repeat(decode_scales(scales, scales.dtype), block, -1)
    return (values.astype(np.float64) * factors).astype(np.float32)


@host_only
def tensor_scale(x: NDArray[Any]) -> float:
    """Return the scale of a whole tensor for nvfp4: ``amax / (448 * 6)``; 1 for zeros.

    ``quantize(x / s, "nvfp4")`` uses all of the range of its scales. The product of two such
    matrices is multiplied by both tensors' scales, in float32.
    """
    largest = float(np.abs(np.asarray(x, np.float64)).max(initial=0))
    return largest / (448 * 6) if largest else 1.0


def decode_scales(scales: NDArray[Any], dtype: DTypeLike) -> NDArray[np.float64]:
    """Return the values of scales, which are bytes or of an ml_dtypes type.

    Parameters
    ----------
    scales
        Any shape.
    dtype
        ``"ue8m0"`` or ``"ue4m3"`` (also ``"e4m3"``), whose bit 7 is ignored.
    """
    kind = as_dtype(dtype)
    codes = scales.view(np.uint8)
    if kind.name == "ue8m0":
        return np.where(codes == 255, np.nan, np.ldexp(1.0, codes.astype(np.int64) - 127))
    if kind.name not in ("e4m3", "ue4m3"):
        raise TypeError(f"decode_scales(dtype=...) is {kind}; scales are of ue8m0 or ue4m3")
    values: NDArray[np.float64] = (codes & 0x7F).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    return values


def _limit(dtype: DType) -> float:
    return float(ml_dtypes.finfo(dtype.numpy).max)  # type: ignore[no-untyped-call]


def _power_scales(largest: NDArray[np.float64], kind: BlockFormat) -> NDArray[Any]:
    _, exponent = np.frexp(largest)  # largest = m * 2**exponent, 0.5 <= m < 1
    biased = exponent - 1 - int(np.log2(_limit(kind.element))) + 127
    # Of a block of zeros every scale is right; OCP's smallest one is 2**-127.
    codes = np.where(largest > 0, np.clip(biased, 0, 254), 0).astype(np.uint8)
    return codes.view(kind.scale.numpy)


def _e4m3_scales(largest: NDArray[np.float64]) -> NDArray[Any]:
    return _rounded(np.minimum(largest / 6, 448), as_dtype("e4m3"))


def _rounded(x: NDArray[np.float64], dtype: DType) -> NDArray[Any]:
    """Round finite numbers within the range of a type to it: to nearest, ties to even."""
    codes = np.arange(1 << dtype.bits, dtype=np.uint8)
    values = codes.view(dtype.numpy).astype(np.float64)
    known = np.isfinite(values) & ~np.signbit(values)
    codes, values = codes[known], values[known]  # ascending, as IEEE's codes are
    above = np.searchsorted(values, np.abs(x))
    below = np.maximum(above - 1, 0)
    middle = (values[below] + values[above]) / 2
    down = (np.abs(x) < middle) | ((np.abs(x) == middle) & (codes[below] % 2 == 0))
    chosen = np.where(down, codes[below], codes[above])
    sign = np.signbit(x).astype(np.uint8) << np.uint8(dtype.bits - 1)
    rounded: NDArray[np.uint8] = (chosen | sign).astype(np.uint8)
    return rounded.view(dtype.numpy)


# -------------------------------------------------------------------------------- the atoms


@host_only
def scale_tile(
    rows: int, k: int, format: str | None = None, *, dtype: DTypeLike = "ue8m0", block: int = 32
) -> Tile:
    """Return the tile of the scales of a (rows, K) tile, which one copy loads.

    Its shape is (atoms of 128 rows, atoms of 4 scales, 2, 256), which lie contiguous in shared
    memory, as ``tcgen05.cp`` copies them. A map of it is a map of `to_blocked`'s array. The scales
    of the tile at (row, column) of the matrix begin at the coordinates
    ``(row // 128, column // (4 * block), 0, 0)``. `BlockScaledTilePayload` takes it as `sfa` or
    `sfb`.

    Parameters
    ----------
    rows
        Rows of A, or columns of B (N). Part of an atom takes a whole one: 192 rows take 256.
    k
        Elements along K, a multiple of 4 blocks.
    format
        A name of `FORMATS`, in place of `dtype` and `block`.
    dtype
        ``"ue8m0"`` or ``"ue4m3"``.
    block
        Elements of a scale: 16 or 32.

    Raises
    ------
    ValueError
        When K is no multiple of an atom's, or no copy is so large.

    Examples
    --------
    >>> scale_tile(128, 256, "nvfp4")
    Tile((1, 4, 2, 256), ue4m3, NONE)
    """
    kind = _block_type(format, dtype, block)
    atoms = blocked_shape(rows, k // kind.block)
    step = kind.block * ATOM_SCALES
    if rows < 1 or k < 1 or k % step:
        raise ValueError(
            f"scale_tile({rows}, {k}): an atom has the scales of 128 rows x {step} elements: use a "
            f"positive number of rows, and a K that is a multiple of {step}"
        )
    tile = Tile(atoms, kind.scale)
    if tile.box != tile.shape:
        raise ValueError(
            f"scale_tile({rows}, {k}) has {atoms[0]} x {atoms[1]} atoms; a copy takes up to 256 "
            "along an axis: use a smaller tile"
        )
    return tile


def _block_type(format: str | None, dtype: DTypeLike, block: int) -> BlockFormat:
    if format is not None:
        return block_format(format)
    kind = as_dtype(dtype)
    if kind.name not in ("ue8m0", "ue4m3"):
        raise ValueError(f"dtype is {kind}; scales are of ue8m0 or ue4m3")
    if block not in (16, 32):
        raise ValueError(f"block is {block}; a scale is that of 16 or 32 elements")
    return BlockFormat(kind, kind, block)


def blocked_shape(rows: int, scales: int) -> tuple[int, int, int, int]:
    """Return the shape of the blocked array of (rows, scales), padded to whole atoms."""
    return (-(-rows // ATOM_ROWS), -(-scales // ATOM_SCALES), *ATOM_SHAPE)


@host_only
def to_blocked(scales: NDArray[Any]) -> NDArray[Any]:
    """Put scales into atoms, as the tensor cores and `scale_tile` take them.

    Parameters
    ----------
    scales
        (..., rows, scales along K), one byte each.

    Returns
    -------
    numpy.ndarray
        (..., atoms of rows, atoms of scales, 2, 256) of the same type, contiguous. Rows are padded
        to a multiple of 128 and scales to one of 4, with bytes 0: of ue8m0 2**-127, of ue4m3 0.

    Raises
    ------
    ValueError
        When `scales` has no two axes, or its elements have more than a byte.
    """
    if scales.ndim < 2 or scales.dtype.itemsize != 1:
        raise ValueError(
            f"to_blocked(scales=...) has shape {scales.shape} of {scales.dtype}: give (rows, "
            "scales along K), one byte each"
        )
    *outer, rows, columns = scales.shape
    high, wide = blocked_shape(rows, columns)[:2]
    codes = np.zeros((*outer, high * ATOM_ROWS, wide * ATOM_SCALES), np.uint8)
    codes[..., :rows, :columns] = scales.view(np.uint8)
    # r = 128 i + 32 j + l, k = 4 m + n: to (i, m, l, j, n).
    parts = codes.reshape(*outer, high, 4, 32, wide, ATOM_SCALES)
    atoms = np.moveaxis(parts, (-2, -3, -4), (-4, -3, -2))
    return np.ascontiguousarray(atoms).reshape(*outer, high, wide, *ATOM_SHAPE).view(scales.dtype)


@host_only
def from_blocked(blocked: NDArray[Any], rows: int, scales: int) -> NDArray[Any]:
    """Return the (..., rows, scales) matrix of scales in atoms; the reverse of `to_blocked`.

    Parameters
    ----------
    blocked
        (..., atoms of rows, atoms of scales, 2, 256), or the same bytes in another shape if there
        are no axes before them.
    rows, scales
        Shape of the matrix, without padding.
    """
    shape = blocked_shape(rows, scales)
    outer = blocked.shape[:-4] if blocked.shape[-4:] == shape else ()
    if blocked.dtype.itemsize != 1 or blocked.size != int(np.prod((*outer, *shape))):
        raise ValueError(
            f"from_blocked(blocked=...) has shape {blocked.shape} of {blocked.dtype}; ({rows}, "
            f"{scales}) scales take {shape}, one byte each"
        )
    high, wide = shape[:2]
    codes = np.ascontiguousarray(blocked).view(np.uint8).reshape(*outer, high, wide, 32, 4, 4)
    rows_first = np.moveaxis(codes, (-4, -3, -2), (-2, -3, -4))
    matrix = rows_first.reshape(*outer, high * ATOM_ROWS, wide * ATOM_SCALES)
    return np.ascontiguousarray(matrix[..., :rows, :scales]).view(blocked.dtype)


def scale_offset(row: Index, scale: Index, scales_per_row: int) -> Any:
    """Return the byte of a scale among contiguous atoms; ints, or integer arrays that broadcast.

    Parameters
    ----------
    row, scale
        Row, and number of the scale along K.
    scales_per_row
        Scales along K of the whole, padded to a multiple of 4.
    """
    atom = row // ATOM_ROWS * (-(-scales_per_row // ATOM_SCALES)) + scale // ATOM_SCALES
    return atom * ATOM_BYTES + row % 32 * 16 + row % ATOM_ROWS // 32 * 4 + scale % ATOM_SCALES
