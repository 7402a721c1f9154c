"""How a tile is moved: by one copy for each box, or by one folded copy through an extra axis."""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from numba_tma.host.layout import MAX_BOX, MAX_RANK, Tile, cut

WITHOUT_SLICE = ", but for the last: copies take whole slices"
MAX_COPIES = 64  # a load is unrolled into its copies


@dataclass(frozen=True)
class Copies:
    """The copies that move one tile. A folded map moves the tile in one copy.

    The folded form of a matrix of D columns is a tensor of rank 3: (D / part, rows, part). A box
    of it that is `count` deep lands as `count` slabs one after the other. Where rows lie whole in
    shared memory the extra axis stands next to the innermost one instead.

    The encoded map of an element type of several words counts words along its innermost axis.
    """

    tile: Tile
    element_strides: tuple[int, ...]
    fold: bool = False
    interleaved: bool = False  #: the last axis is one element of the encoded map, a slice

    @cached_property
    def box(self) -> Tile:
        """What one copy moves, in the axes and words of the encoded map."""
        shape = self.fold_shape(self.tile.shape) if self.fold else self.cut
        return Tile(self.in_words(shape), self.tile.dtype.word, self.tile.swizzle)

    @cached_property
    def cut(self) -> tuple[int, ...]:
        """Extents of one copy's part of the tile, unless it is folded."""
        return cut(self.tile, self.element_strides)

    @cached_property
    def starts(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Each copy's byte offset in shared memory, and the offset of its coordinates."""
        if self.fold:
            return ((0, (0,) * self.tile.ndim),)
        return tuple(
            (offset, tuple(i * step for i, step in zip(start, self.element_strides, strict=True)))
            for offset, start in self.tile.boxes(self.element_strides)
        )

    @property
    def count(self) -> int:
        """Number of copies. `starts` lists them, which takes long for a huge tile."""
        if self.fold:
            return 1
        return math.prod(-(-e // b) for e, b in zip(self.tile.shape, self.cut, strict=True))

    @property
    def is_one_box(self) -> bool:
        """Whether one copy moves the tile, at the array's own coordinates."""
        return self.count == 1 and not self.fold and self.words == 1

    @property
    def words(self) -> int:
        """Words of an element."""
        return self.tile.dtype.words

    @property
    def axis(self) -> int:
        """The axis that a fold inserts; it counts the parts of the innermost axis."""
        return 0 if self.tile.num_slabs > 1 else self.tile.ndim - 1

    @property
    def part(self) -> int:
        """Elements of a part of the innermost axis in a fold, a power of two."""
        if self.tile.num_slabs > 1:
            return self.tile.slab
        most = self.tile.dtype.max_inner_box
        return math.gcd(self.tile.slab, 1 << most.bit_length() - 1)

    def with_axis(self, values: Sequence[int], extra: int) -> tuple[int, ...]:
        """Return one value for each axis, with the value of the extra axis inserted."""
        return (*values[: self.axis], extra, *values[self.axis :])

    def in_words(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return a shape, or coordinates, with the words of the innermost axis counted."""
        return (*shape[:-1], shape[-1] * self.words)

    def fold_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return a shape with the innermost axis cut into parts."""
        return self.with_axis((*shape[:-1], self.part), -(-shape[-1] // self.part))

    def fold_strides(self, strides: Sequence[int]) -> tuple[int, ...]:
        """Return the strides of a tensor with the innermost axis cut into parts."""
        return self.with_axis(strides, self.part * strides[-1])

    def encoded_steps(self, element_strides: Sequence[int]) -> tuple[int, ...]:
        """Return the element strides of the encoded map."""
        return self.with_axis(element_strides, 1) if self.fold else tuple(element_strides)

    def view(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return an array in the axes and words of the encoded map."""
        if self.fold:
            array = as_strided(
                array, self.fold_shape(array.shape), self.fold_strides(array.strides)
            )
        return array if self.words == 1 else array.view(self.tile.dtype.word.numpy)

    def each(self, coords: Sequence[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield each copy's offset in shared memory, and its coordinates in the encoded map."""
        if self.interleaved:  # always one copy
            yield 0, tuple(coords)
            return
        for offset, start in self.starts:
            moved = tuple(int(c) + i for c, i in zip(coords, start, strict=True))
            if self.fold:
                part, column = divmod(moved[-1], self.part)
                moved = self.with_axis((*moved[:-1], column), part)
            yield offset, self.in_words(moved)

    @property
    def summary(self) -> str:
        """The copies in a map's repr; empty if there is one box."""
        if self.fold:
            return "folded, "
        return f"{self.count} copies, " if self.count > 1 else ""


class Column(Copies):
    """The one copy of an im2col map: it has pixels and channels, and no box of the tensor."""

    @cached_property
    def cut(self) -> tuple[int, ...]:
        """Extents of the whole tile, which the copy moves."""
        return self.tile.shape

    @cached_property
    def starts(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Offset 0: there is one copy, whatever the limits of a box are."""
        return ((0, (0,) * self.tile.ndim),)


@functools.lru_cache(maxsize=1024)  # called once for each map
def copies_of(tile: Tile, element_strides: tuple[int, ...] | None = None) -> Copies:
    """Return the copies, box by box, that move a tile."""
    ones = (1,) * tile.ndim
    copies = Copies(tile, element_strides or ones)
    # Kernels need the element strides only to compute the coordinates of further boxes.
    return copies if copies.count > 1 else Copies(tile, ones)


def copies_violations(copies: Copies, interleave: int | None) -> list[str]:
    """List why a tile cannot be moved box by box."""
    tile, steps = copies.tile, copies.element_strides
    for axis in reversed(
        range(tile.ndim)
    ):  # the first axis that is not divided, in the order of `cut`
        extent, limit = copies.cut[axis], _limit(tile, axis)
        if extent * steps[axis] > limit:
            larger = range(extent + 1, extent + MAX_BOX + 1)
            whole = next((str(n) for n in larger if _is_cut(copies, axis, n)), "")
            if not whole:  # records, of which no box is aligned
                unit = tile.dtype.chunk
                whole = f"at most {limit // steps[axis] // unit * unit} there, and several tiles"
            return [
                f"tile axis {axis} is {extent}; TMA copies 1 to {limit} elements along an axis, "
                f"and no box of {limit // steps[axis]} or fewer divides {tile} into parts "
                f"aligned to {tile.alignment} B: use {whole}"
            ]
    count = copies.count
    if count > 1 and interleave is not None:
        return [
            f"tile {tile} takes {count} copies, but with interleave={interleave} a load is one: "
            f"use tiles like {Tile(copies.cut, tile.dtype, tile.swizzle)}, and several"
        ]
    if count > MAX_COPIES:
        return [
            f"tile {tile} takes {count} copies of the box {copies.cut}; a load is unrolled "
            f"into at most {MAX_COPIES}: use a smaller tile, a swizzle, or fold=True"
        ]
    return []


def _limit(tile: Tile, axis: int) -> int:
    """Return the most elements of a copy along an axis."""
    return MAX_BOX // tile.dtype.words if axis == tile.ndim - 1 else MAX_BOX


def _is_cut(copies: Copies, axis: int, extent: int) -> bool:
    tile = copies.tile
    shape = (*tile.shape[:axis], extent, *tile.shape[axis + 1 :])
    box = cut(Tile(shape, tile.dtype, tile.swizzle), copies.element_strides)
    return box[axis] * copies.element_strides[axis] <= _limit(tile, axis)


def fold_violations(copies: Copies, shape: tuple[int, ...], interleave: int | None) -> list[str]:
    """List why a tile cannot be moved from a tensor of `shape` in one folded copy."""
    tile, part = copies.tile, copies.part
    inner, rows = tile.ndim - 1, math.prod(tile.shape[:-1])
    reasons = []
    if interleave is not None:
        reasons.append(f"is not modelled for interleave={interleave}")
    if tile.ndim == MAX_RANK:
        reasons.append(f"adds an axis to the {MAX_RANK} of the array, and TMA takes {MAX_RANK}")
    for axis, (extent, step) in enumerate(zip(tile.shape, copies.element_strides, strict=True)):
        if axis < inner and extent * step > MAX_BOX:
            reasons.append(
                f"moves the {extent * step} elements along axis {axis} at once, and TMA copies 1 "
                f"to {MAX_BOX}: use a tile of {MAX_BOX // step} or fewer there"
            )
    if part * tile.itemsize % 16:
        reasons.append(
            f"takes axis {inner} of {tile} in parts of {part} = {part * tile.itemsize} B, and TMA "
            "needs a multiple of 16 B"
        )
    elif -(-tile.shape[-1] // part) > MAX_BOX:
        reasons.append(
            f"takes axis {inner} of {tile} in {-(-tile.shape[-1] // part)} parts of {part}, and "
            f"TMA copies 1 to {MAX_BOX}"
        )
    if shape[-1] % part:
        reasons.append(
            f"takes axis {inner} in parts of {part} elements, and the array has {shape[-1]} there: "
            f"the last part would read on into the next row; pad the rows to "
            f"{-(-shape[-1] // part) * part} columns"
        )
    if tile.num_slabs > 1 and tile.slab_nbytes != rows * tile.pitch:
        reasons.append(
            f"puts slabs side by side, and slabs of {rows} rows are not aligned to "
            f"{tile.alignment} B: use a multiple of {tile.alignment // tile.pitch} rows"
        )
    return [f"fold=True {reason}; or leave fold out for one copy per box" for reason in reasons]


def padding_store(tile: Tile, shape: tuple[int, ...]) -> str:
    """Say what a store of a tile with a padded last slab would overwrite; "" if nothing."""
    width = tile.num_slabs * tile.slab
    if shape[-1] <= tile.shape[-1] or width == tile.shape[-1]:
        return ""
    return (
        f"{tile} lies in slabs of {tile.slab} columns, and TMA stores whole slabs: columns "
        f"{tile.shape[-1]} to {width - 1} past the tile's start would be overwritten, of an array "
        f"that has {shape[-1]}; use a tile of {width} or {width - tile.slab} columns, or one map "
        f"of array[..., start:start + {tile.shape[-1]}] per column of tiles"
    )
