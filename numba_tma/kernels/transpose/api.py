"""`transpose`: the last two axes of an array exchanged."""

from __future__ import annotations

from numba_tma.host.annotations import DeviceArray, StreamLike
from numba_tma.host.arrays import Array
from numba_tma.host.cached_kernel import shipped
from numba_tma.host.layout import Swizzle, Tile
from numba_tma.host.tensor_map import tensor_map
from numba_tma.host.values import checked, instance, optional
from numba_tma.kernels._host.launch import launch
from numba_tma.kernels._host.memo import launched_again
from numba_tma.kernels._host.outputs import check_outputs, empty
from numba_tma.kernels.transpose.plan import (
    LINE,
    PATCH,
    PATCH_THREADS,
    PLANS,
    SECTOR,
    TransposePlan,
)

transpose_kernel = shipped("numba_tma.kernels.transpose.kernel", "transpose_kernel")
patch_kernel = shipped("numba_tma.kernels.transpose.kernel", "patch_kernel")

Plan = TransposePlan  #: its name before 0.1.0


def transpose(
    x: DeviceArray,
    *,
    out: DeviceArray | None = None,
    stream: StreamLike = None,
    plan: TransposePlan | None = None,
) -> DeviceArray:
    """Write the transpose of the last two axes of `x`.

    Tiles move by TMA where both arrays start at a multiple of 16 B and have rows of whole
    multiples. Otherwise threads load and store element by element, and write whole sectors.

    Parameters
    ----------
    x
        Device array (..., rows, columns) of elements of 1, 2, 4 or 8 bytes: torch, CuPy, numba, or
        anything with ``__cuda_array_interface__`` or ``__dlpack__``. The last axis is contiguous;
        rows may have gaps between them.
    out
        Device array (..., columns, rows) of the same type that does not overlap `x`; a new one if
        None.
    stream
        A numba, torch or CuPy stream; the default stream if None.
    plan
        How the matrix is cut into tiles; that in `PLANS` if None.

    Returns
    -------
    DeviceArray
        `out`.

    Raises
    ------
    TypeError
        If an argument is no array in GPU memory.
    ValueError
        If the arrays do not fit each other, or their last axis is not contiguous.
    """
    if out is None:
        given = Array.read("transpose", "x", x)
        given.as_matrices()  # raises for an array that has no transpose
        out = empty("transpose", "x", x, given.transposed().shape)
    _transpose((x, out), stream, (), plan)
    return out


@launched_again("transpose", "x", "out")
def _transpose(
    arrays: tuple[DeviceArray, DeviceArray],
    stream: StreamLike,
    numbers: tuple[()],
    plan: TransposePlan | None,
) -> None:
    x = Array.read("transpose", "x", arrays[0])
    out = Array.read("transpose", "out", arrays[1])
    source, target = (_as_matrices(array) for array in (x, out))
    if out.shape != x.transposed().shape:
        raise out.error(
            f"has shape {out.shape}, but the transpose of {x.shape} has shape "
            f"{x.transposed().shape}"
        )
    if out.dtype is not x.dtype:
        raise out.error(f"is {out.dtype}, but x is {x.dtype}; they must agree")
    checked("transpose", "plan", plan, optional(instance(TransposePlan)))
    check_outputs([out], [x])
    if source.size == 0:
        return
    if source.is_storable and target.is_storable:
        _transpose_tiles(source, target, plan or PLANS[source.itemsize], stream)
    else:
        _transpose_patches(source, target, stream)


def _as_matrices(array: Array) -> Array:
    """Return (batch, rows, columns) of unsigned integers, with contiguous rows."""
    if not array.has_contiguous_rows:
        array.as_rows()  # raises
    return array.as_matrices().as_bits()


def _transpose_tiles(source: Array, target: Array, plan: TransposePlan, stream: StreamLike) -> None:
    """Transpose by TMA."""
    batch, rows, columns = source.shape
    side = LINE // source.itemsize
    height, width = plan.rows * side, plan.columns * side
    row_tiles, column_tiles = -(-rows // height), -(-columns // width)
    tile = Tile((1, height, width), source.dtype, Swizzle.B128)
    turned = Tile((1, width, height), source.dtype, Swizzle.B128)
    launch(
        transpose_kernel(source.dtype, plan),
        batch * row_tiles * column_tiles,
        plan.threads,
        stream,
        tensor_map(source, tile),
        tensor_map(target, turned) if plan.store == "tma" else target.as_bytes(),
        row_tiles,
        column_tiles,
        rows,
        columns,
        *target.strides[:2],
    )


def _transpose_patches(source: Array, target: Array, stream: StreamLike) -> None:
    """Transpose by ordinary loads and stores."""
    batch, rows, columns = source.shape
    of_sector = SECTOR // target.itemsize
    # Numbers of elements, of which only the place in a sector counts.
    origin, each, pitch = (
        number // target.itemsize % of_sector for number in (target.address, *target.strides[:2])
    )
    aligned = not (origin or each or pitch)
    halo = 0 if aligned else of_sector
    patches = -(-(rows + halo) // PATCH), -(-columns // PATCH)
    launch(
        patch_kernel(source.dtype, aligned),
        batch * patches[0] * patches[1],
        PATCH_THREADS,
        stream,
        source.as_argument(),
        target.as_argument(),
        *patches,
        origin,
        each,
        pitch,
    )
