"""The arrays of a stencil: what they must be, and how its kernel sees them."""

from __future__ import annotations

from collections.abc import Sequence

from numba_tma.host.annotations import DeviceArray, StreamLike
from numba_tma.host.arrays import Array
from numba_tma.kernels.matmul.operands import Workspace, as_loadable, map_source

TYPES = ("f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8")


def check_inputs(arrays: Sequence[Array], axes: int, radii: Sequence[tuple[int, ...]]) -> None:
    """Raise unless a stencil of so many axes can read such arrays."""
    first = arrays[0]
    if first.dtype.name not in TYPES:
        raise first.error(f"is {first.dtype}; a stencil works on {', '.join(TYPES)}: convert it")
    if len(first.shape) < axes:
        raise first.error(
            f"has shape {first.shape}, and the function has {axes} indices; an array has an axis "
            "for each, and those of a batch before them: add axes with [None]"
        )
    for other in arrays[1:]:
        if other.dtype is not first.dtype:
            raise other.error(
                f"is {other.dtype}, but {first.name} is {first.dtype}; they must agree: convert one"
            )
        if other.shape != first.shape:
            raise other.error(
                f"has shape {other.shape}, but {first.name} has {first.shape}; all arrays of a "
                "stencil have one shape: expand the array and copy it"
            )
    if not first.size:
        raise first.error(
            f"has shape {first.shape} and no elements; a stencil needs one or more: leave out the "
            "call"
        )
    for axis, extent in enumerate(first.shape[-axes:]):
        if extent == 1 and any(radius[axis] for radius in radii):
            raise first.error(
                f"has shape {first.shape}: axis {axis - axes} has one element, and the function "
                "reads its neighbours along it, of which there is none: leave the axis out of the "
                "function's indices"
            )


def check_output(target: Array, like: Array) -> None:
    """Raise unless results of an input's shape and type can be written to an array."""
    if target.shape != like.shape or target.dtype is not like.dtype:
        raise target.error(
            f"has shape {target.shape} of {target.dtype}, but the result has shape {like.shape} of "
            f"{like.dtype}; they must agree"
        )


def as_planes(array: Array, axes: int) -> Array:
    """Return (planes, rows, columns): the batch is in the planes, of 1 axis in the rows.

    Raises
    ------
    ValueError
        If no single stride leads through the axes that become one.
    """
    if axes > 1:
        return array.as_matrices()
    matrix = array.view((1, *array.shape), (0, *array.strides))
    if len(array.shape) > 1:
        matrix = array.as_matrices()
        planes, rows, columns = matrix.shape
        each, pitch, step = matrix.strides
        if planes > 1 and rows > 1 and each != rows * pitch:
            raise array.error(
                f"has shape {array.shape} and strides {array.strides} B, which is no single "
                "sequence of rows: pass a contiguous copy"
            )
        pitch = each if rows == 1 else pitch
        return matrix.view((1, planes * rows, columns), (planes * rows * pitch, pitch, step))
    return matrix.view((1, 1, *array.shape), (0, 0, *array.strides))


def as_source(planes: Array, stream: StreamLike, workspace: Workspace) -> Array:
    """Return planes as TMA loads them: as they are, or copied to padded rows."""
    strides = f"has shape {planes.shape} and strides {planes.strides} B as planes of rows"
    if not planes.has_contiguous_rows:
        raise planes.error(f"{strides}: its last axis must be contiguous; pass a contiguous copy")
    if planes.is_reversed or planes.repeats:
        raise planes.error(
            f"{strides}: TMA walks forward, to elements that share no memory; pass a contiguous "
            "copy"
        )
    return map_source(as_loadable(planes, stream, workspace))


def bits(array: Array) -> DeviceArray:
    """Return an array as kernels move its elements."""
    return array.as_bits().as_argument()


def stored(array: Array) -> DeviceArray:
    """Return an output as kernels write it: 16-bit floats as bits."""
    return (array.as_bits() if array.dtype.name in ("f16", "bf16") else array).as_argument()
