"""Tiles with a halo: a tile's own elements, and the neighbours that a stencil reads.

The copy engine fills what lies beyond an array with zeros or NaN. Every other boundary of
`numpy.pad` is one rule, `padded_index`: the element that stands for one outside. A producer uses it
along an axis that it streams (a tile of one plane), `HaloTile.fill` along the axes of a tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from numba_tma.backend.interface import (
    Constant,
    Unknown,
    class_of,
    compile_time,
    constant_class,
    device_class,
    device_function,
    i32,
)
from numba_tma.backend.primitives import sub32
from numba_tma.device.shared import Index, SharedTile
from numba_tma.device.tile_indices import TileIndices, check_share
from numba_tma.host.annotations import Coordinates, DeviceArray, Integer, Real
from numba_tma.host.boundaries import BOUNDARIES
from numba_tma.host.dtypes import DType
from numba_tma.host.layout import Tile
from numba_tma.host.values import is_whole
from numba_tma.simulator import BadOperand


@constant_class
@dataclass(frozen=True)
class Boundaries:
    """A boundary for each axis of a tile, for `HaloTile.fill`.

    Made on the host, used from a kernel's globals. Along an axis with None the halo keeps what the
    copy engine has written beyond the edge.

    Parameters
    ----------
    modes
        ``"edge"``, ``"reflect"``, ``"symmetric"``, ``"wrap"`` or None, outermost axis first.
    """

    modes: tuple[str | None, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.modes, tuple) or not {*self.modes} <= {*BOUNDARIES, None}:
            raise ValueError(
                f"Boundaries(modes={self.modes!r}): modes is a tuple with one of "
                f"{', '.join(map(repr, BOUNDARIES))} or None for each axis"
            )


@constant_class
@dataclass(frozen=True)
class Halo:
    """A tile and the neighbours that a stencil reads: `radius` elements on both sides of an axis.

    `tile` is the box that a pipeline has in its stages and a tensor map copies. `inner` gives the
    view of it whose indices start at 0 with the tile's own elements, and go from ``-radius`` to
    ``extent + radius - 1``.

    Along the innermost axis the box begins and ends at multiples of 16 bytes from the tile's own
    elements, so that vectors of them are aligned.

    Parameters
    ----------
    shape
        The tile's own elements per axis, innermost last.
    dtype
        Anything that `as_dtype` takes.
    radius
        Neighbours on each side: a number for all axes, or one for each axis.

    Examples
    --------
    >>> Halo((16, 64), "f32", 1).tile
    Tile((18, 72), f32)
    >>> Halo((1, 16, 64), "f32", (0, 2, 2)).origin
    (0, 2, 4)
    """

    shape: tuple[int, ...]
    dtype: DType
    radius: tuple[int, ...]
    device_methods: ClassVar[tuple[str, ...]] = ("box_at", "inner")

    def __init__(
        self, shape: int | Sequence[int], dtype: object, radius: int | Sequence[int]
    ) -> None:
        inner = Tile(shape, dtype)
        given = radius if isinstance(radius, Sequence) else (radius,) * inner.ndim
        if not all(is_whole(r) and r >= 0 for r in given):
            raise ValueError(
                f"Halo(radius={radius!r}): a radius is a number of elements, 0 or more, for all "
                "axes or a tuple of one for each"
            )
        if len(given) != inner.ndim:
            raise ValueError(
                f"Halo(radius={radius!r}): {len(given)} radii for a tile of {inner.ndim} axes, "
                f"{inner.shape}"
            )
        if inner.dtype.is_packed:
            raise ValueError(
                f"Halo(dtype={inner.dtype}): kernels read neighbours one by one, and no elements "
                f"of {inner.dtype.bits} bits"
            )
        object.__setattr__(self, "shape", inner.shape)
        object.__setattr__(self, "dtype", inner.dtype)
        object.__setattr__(self, "radius", tuple(int(r) for r in given))

    @property
    def interior(self) -> Tile:
        """The tile of the own elements alone."""
        return Tile(self.shape, self.dtype)

    @property
    def origin(self) -> tuple[int, ...]:
        """The index in `tile` of the first own element."""
        return (*self.radius[:-1], self._padded(self.radius[-1]))

    @property
    def tile(self) -> Tile:
        """The box: own elements and halo."""
        *outer, columns = self.shape
        rows = [n + 2 * r for n, r in zip(outer, self.radius)]
        behind = self._padded(columns + self.radius[-1])
        return Tile((*rows, self.origin[-1] + behind), self.dtype)

    def _padded(self, elements: int) -> int:
        """Return a number of elements, rounded up to a multiple of 16 bytes."""
        chunk = self.dtype.chunk
        return -(-elements // chunk) * chunk

    def __repr__(self) -> str:
        return f"Halo({self.shape}, {self.dtype}, {self.radius})"

    def box_at(self, at: Coordinates) -> tuple[int, ...]:
        """Return the coordinates of the box, for a load, from those of the tile's first element.

        Executed by any thread. It accesses and orders nothing.
        """
        return shifted(self, at, -1, 0)

    def inner(self, tile: SharedTile) -> HaloTile:
        """Return the view of a loaded box whose indices are those of the tile's own elements.

        `tile` is a shared tile of `Halo.tile`. Executed by any thread.
        """
        check_box(self, tile)
        return HaloTile(self, tile)


@device_class(static=("halo",))
@dataclass(frozen=True)
class HaloTile:
    """A tile in shared memory with its halo: ``s[i - 1, j]`` is a neighbour of ``s[i, j]``.

    Along an axis indices go from ``-radius`` to ``extent + radius - 1``. In all else an element is
    one of the `SharedTile`.
    """

    halo: Halo
    tile: SharedTile

    def __getitem__(self, index: Constant[Index]) -> Any:
        return self.tile[placed(self.halo, index)]

    def __setitem__(self, index: Constant[Index], value: Real) -> None:
        self.tile[placed(self.halo, index)] = value

    def read_vector(self, index: Index) -> Any:
        """Do what `SharedTile.read_vector` does; the last index is a multiple of 16 bytes."""
        return self.tile.read_vector(placed(self.halo, index))

    def indices(self, thread: Constant[int], threads: Constant[int]) -> TileIndices:
        """Iterate over the tile's own elements, as `SharedTile.indices` does over all."""
        check_share("indices", thread, threads)
        return TileIndices(self.halo.interior, 1, sub32(thread, threads), threads)

    def fill(
        self,
        boundary: Constant[str | Boundaries],
        at: Coordinates,
        extents: Coordinates,
        thread: Constant[int],
        threads: Constant[int],
        source: DeviceArray | None = None,
    ) -> bool:
        """Write what lies beyond the array's edges into the halo, and return whether any does.

        Executed by `threads` threads, whose numbers `thread` are 0 to `threads` - 1, once the box
        is loaded. The result is the same for all of them; if it is True, they synchronise before
        they read the halo: ``if s.fill(...): pipe.sync_consumers()``.

        Along an axis without a halo nothing lies beyond the edge: a producer that streams planes
        loads the plane of `padded_index`.

        Parameters
        ----------
        boundary
            ``"edge"``, ``"reflect"``, ``"symmetric"`` or ``"wrap"``, as `numpy.pad` names them,
            for all axes, or `Boundaries` with one for each. For zeros and NaN no fill is needed:
            the copy engine writes them (``oob_fill=`` of `tensor_map`).
        at
            The array's coordinates of the tile's first element.
        extents
            The array's extents.
        thread, threads
            ``pipe.consumer_thread()`` and ``pipe.num_consumers()``.
        source
            The array itself, for ``"wrap"``, whose elements lie at the array's other side.
        """
        check_boundary(self.halo, boundary, source)
        if not reaches_out(self.halo, boundary, at, extents, 0):
            return False
        first = self.halo.box_at(at)
        for index in self.tile.indices(thread, threads):
            inside = replaced(self.halo, boundary, index, first, extents, 0)
            # Beyond the edge of an axis without a boundary lies what the copy engine has written.
            if inside != index and is_kept(self.halo, boundary, source, index, first, extents, 0):
                if source is None:
                    self.tile[index] = self.tile[inside]
                else:
                    self.tile[index] = source[summed(self.halo, inside, first, 0)]
        return True


@device_function
def padded_index(boundary: Constant[str], index: Integer, extent: Integer) -> int:
    """Return the index, 0 to `extent` - 1, of the element that stands for the one at `index`.

    `boundary` is a mode of `numpy.pad`: ``"edge"`` repeats the last element, ``"symmetric"``
    mirrors at the edge and repeats it, ``"reflect"`` mirrors at the last element, ``"wrap"`` goes
    on at the other side. An index inside of the array is returned as it is. Executed by any thread.
    """
    check_mode(boundary)
    i, n = i32(index), i32(extent)
    if boundary == "edge":
        return min(max(i, 0), n - 1)
    if boundary == "wrap":
        return i % n
    if boundary == "symmetric":
        around = i % (2 * n)
        return min(around, 2 * n - 1 - around)
    around = i % max(2 * n - 2, 1)  # of one element, itself
    return min(around, 2 * n - 2 - around)


# ---------------------------------------------------------------- tuples, axis by axis


@device_function
def placed(halo: Halo, index: Index) -> tuple[int, ...]:
    """Return the index in the box of an element of the tile."""
    if is_number(index):
        return (i32(index) + i32(origin_along(halo, 1, 0)),)
    return shifted(halo, index, 1, 0)


@device_function
def shifted(
    halo: Halo, index: tuple[int, ...], sign: Constant[int], axis: Constant[int]
) -> tuple[int, ...]:
    """Return `index`, from `axis` on, moved by the origin of the tile in its box."""
    moved = (i32(index[0]) + i32(origin_along(halo, sign, axis)),)
    if is_last(halo, axis):
        return moved
    return moved + shifted(halo, index[1:], sign, next_axis(halo, axis))


@device_function
def summed(
    halo: Halo, index: tuple[int, ...], other: tuple[int, ...], axis: Constant[int]
) -> tuple[int, ...]:
    """Return the sums of coordinates, from `axis` on."""
    total = (i32(index[0]) + i32(other[0]),)
    if is_last(halo, axis):
        return total
    return total + summed(halo, index[1:], other[1:], next_axis(halo, axis))


@device_function
def reaches_out(
    halo: Halo,
    boundary: Constant[str | Boundaries],
    at: tuple[int, ...],
    extents: tuple[int, ...],
    axis: Constant[int],
) -> bool:
    """Return whether the halo reaches beyond the array along an axis to fill, from `axis` on."""
    reaches = False
    if mode_along(halo, boundary, axis) is not None:
        radius = i32(radius_along(halo, axis))
        first, end = i32(at[0]) - radius, i32(at[0]) + i32(extent_along(halo, axis)) + radius
        reaches = first < 0 or end > i32(extents[0])
    if is_last(halo, axis):
        return reaches
    return reaches or reaches_out(halo, boundary, at[1:], extents[1:], next_axis(halo, axis))


@device_function
def is_kept(
    halo: Halo,
    boundary: Constant[str | Boundaries],
    source: DeviceArray | None,
    index: tuple[int, ...],
    first: tuple[int, ...],
    extents: tuple[int, ...],
    axis: Constant[int],
) -> bool:
    """Return whether an element lies within the array along all axes that are not filled."""
    kept = True
    if must_be_inside(halo, boundary, source, axis):
        place = i32(index[0]) + i32(first[0])
        kept = 0 <= place and place < i32(extents[0])
    if is_last(halo, axis):
        return kept
    beyond = next_axis(halo, axis)
    return kept and is_kept(halo, boundary, source, index[1:], first[1:], extents[1:], beyond)


@device_function
def replaced(
    halo: Halo,
    boundary: Constant[str | Boundaries],
    index: tuple[int, ...],
    first: tuple[int, ...],
    extents: tuple[int, ...],
    axis: Constant[int],
) -> tuple[int, ...]:
    """Return the index in the box, from `axis` on, of the element that stands for another."""
    found = (i32(index[0]),)
    if mode_along(halo, boundary, axis) is not None:
        # Boxes reach further than the radius: what stands for such elements is not in the box.
        radius = i32(radius_along(halo, axis))
        place = max(i32(index[0]) + i32(first[0]), -radius)
        place = min(place, i32(extents[0]) - 1 + radius)
        mode = mode_along(halo, boundary, axis)
        found = (padded_index(mode, place, extents[0]) - i32(first[0]),)
    if is_last(halo, axis):
        return found
    beyond = next_axis(halo, axis)
    return found + replaced(halo, boundary, index[1:], first[1:], extents[1:], beyond)


@compile_time
def is_number(index: object) -> bool:
    """Return whether an index is one integer, of a tile with one axis."""
    return index.is_integer if isinstance(index, Unknown) else hasattr(index, "__index__")


@compile_time
def is_last(halo: Halo, axis: int) -> bool:
    """Return whether an axis is the innermost."""
    return axis == len(halo.shape) - 1


@compile_time
def next_axis(halo: Halo, axis: int) -> int:
    """Return the next inner axis. Raise behind the last one: typing reaches it too."""
    if axis == len(halo.shape) - 1:
        raise ValueError("the last axis has none behind it")
    return axis + 1


@compile_time
def origin_along(halo: Halo, sign: int, axis: int) -> int:
    """Return the elements of the box before the tile's own, times `sign`."""
    return sign * halo.origin[axis]


@compile_time
def extent_along(halo: Halo, axis: int) -> int:
    """Return the tile's own elements along an axis."""
    return halo.shape[axis]


@compile_time
def radius_along(halo: Halo, axis: int) -> int:
    """Return the neighbours on each side along an axis."""
    return halo.radius[axis]


@compile_time
def must_be_inside(halo: Halo, boundary: object, source: object, axis: int) -> bool:
    """Return whether elements beyond the edge of an axis are left as they are.

    Without a halo they are the ends of tiles that are not whole. What stands for them is in the
    box, but not in the array.
    """
    unfilled = mode_along(halo, boundary, axis) is None
    return unfilled and (halo.radius[axis] > 0 or source is not None)


@compile_time
def check_box(halo: Halo, tile: object) -> None:
    """Raise a ValueError unless a shared tile is the box of a halo."""
    if class_of(tile) is not SharedTile or getattr(tile, "tile", None) != halo.tile:
        raise BadOperand(
            f"{halo}.inner(tile=...) takes a shared tile of {halo.tile}, its box, not "
            f"{getattr(tile, 'tile', tile)}: give the pipeline Halo.tile as the stage's tile"
        )


@compile_time
def check_mode(boundary: object) -> None:
    """Raise unless a boundary is one of `BOUNDARIES`, known when the kernel is compiled."""
    if boundary not in BOUNDARIES:
        raise BadOperand(
            f"boundary={boundary!r}: use one of {', '.join(map(repr, BOUNDARIES))}, as a literal; "
            "zeros and NaN are filled by the copy engine (oob_fill= of tensor_map)"
        )


@compile_time
def mode_along(halo: Halo, boundary: object, axis: int) -> Any:
    """Return the boundary along an axis; None without a halo, and if the copy engine fills it."""
    if not halo.radius[axis]:
        return None
    return boundary.modes[axis] if isinstance(boundary, Boundaries) else boundary


@compile_time
def check_boundary(halo: Halo, boundary: object, source: object) -> None:
    """Raise if the elements beyond an edge are not in the box."""
    modes = boundary.modes if isinstance(boundary, Boundaries) else (boundary,)
    if isinstance(boundary, Boundaries) and len(modes) != len(halo.shape):
        raise BadOperand(
            f"HaloTile.fill(boundary={boundary}): {len(modes)} boundaries for the "
            f"{len(halo.shape)} axes of {halo}: give one for each, or None"
        )
    if "wrap" in modes and source is None:
        raise BadOperand(
            "HaloTile.fill(boundary='wrap'): the elements lie at the other side of the array: "
            "give the array as source="
        )
