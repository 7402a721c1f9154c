"""The pixels of a convolution's input that an im2col copy moves, in the order of its output.

Pure NumPy. Tensors are (image, spatial axes..., channel), that is NWC, NHWC or NDHWC.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numba_tma.host.host_only import host_only
from numba_tma.host.layout import Tile
from numba_tma.host.reference import convert_bits, fill_bits, slots


@dataclass(frozen=True, slots=True)
class PixelBox:
    """Positions of base pixels: those of the first element of a convolution's filter.

    Along a spatial axis of extent n the positions are ``lower, lower + stride, ...`` below
    ``n + upper``. A convolution of a filter of f elements, d apart, over an input padded by p
    before and q after it has ``lower = -p`` and ``upper = q - (f - 1) * d``.
    """

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    stride: tuple[int, ...]

    @staticmethod
    def of_filter(
        filter: Sequence[int],
        padding: Sequence[tuple[int, int]],
        stride: Sequence[int],
        dilation: Sequence[int],
    ) -> "PixelBox":
        """Return the box of a convolution; everything is per spatial axis, padding (before, after).

        Examples
        --------
        >>> PixelBox.of_filter((3, 3), ((1, 1), (1, 1)), (2, 2), (1, 1))
        PixelBox(lower=(-1, -1), upper=(-1, -1), stride=(2, 2))
        """
        reach = [(f - 1) * d for f, d in zip(filter, dilation, strict=True)]
        return PixelBox(
            tuple(-before for before, _ in padding),
            tuple(after - r for (_, after), r in zip(padding, reach, strict=True)),
            tuple(stride),
        )

    def output_shape(self, extents: Sequence[int]) -> tuple[int, ...]:
        """Return the number of base pixels along each axis, the convolution's output extents.

        Parameters
        ----------
        extents
            Those of the tensor's spatial axes.
        """
        corners = zip(extents, self.lower, self.upper, self.stride, strict=True)
        return tuple((n + hi - lo - 1) // step + 1 for n, lo, hi, step in corners)

    def holds(self, extents: Sequence[int], place: Sequence[int]) -> bool:
        """Return whether a copy may start at `place`."""
        corners = zip(extents, self.lower, self.upper, place, strict=True)
        return all(lo <= p < n + hi for n, lo, hi, p in corners)

    def at_row(self, extents: Sequence[int], place: Sequence[int]) -> "PixelBox":
        """Return the box that a wide copy walks from `place` on: one row, as the last axis says."""
        *still, _ = place
        upper = tuple(p + 1 - n for p, n in zip(still, extents[:-1], strict=True))
        ones = (1,) * len(still)
        return PixelBox(
            (*still, self.lower[-1]), (*upper, self.upper[-1]), (*ones, self.stride[-1])
        )

    def ends_after(self, extents: Sequence[int], place: Sequence[int]) -> bool:
        """Return whether a wide copy may start at `place`: not past the box along the last axis."""
        return place[-1] < extents[-1] + self.upper[-1]

    def walk(
        self, extents: Sequence[int], first: Sequence[int], count: int
    ) -> Iterator[tuple[int, ...]]:
        """Yield (image, place...) of `count` base pixels from `first` on.

        The last axis steps first. One that leaves the box goes back to its lower corner, and the
        axis before it steps; past the first spatial axis begins the next image, whether there is
        one or not.
        """
        at = list(first)
        for _ in range(count):
            yield tuple(at)
            for axis in reversed(range(len(extents))):
                at[axis + 1] += self.stride[axis]
                if at[axis + 1] < extents[axis] + self.upper[axis]:
                    break
                at[axis + 1] = self.lower[axis]
            else:
                at[0] += 1


@host_only
def reference_im2col(
    array: NDArray[Any],
    tile: Tile,
    coords: Sequence[int],
    offsets: Sequence[int],
    box: PixelBox,
    *,
    oob_fill: str = "zeros",
    along_w: bool = False,
) -> NDArray[np.uint8]:
    """Compute the bytes that an im2col load puts into shared memory.

    Parameters
    ----------
    array
        The tensor in global memory, any strides, with elements of ``tile.itemsize`` bytes.
    tile
        The tile in shared memory, (pixels, channels).
    coords
        The first base pixel and its first channel, one coordinate per axis of `array`.
    offsets
        Distance from each base pixel to the copied one, for each spatial axis.
    box
        Positions of the base pixels.
    oob_fill
        ``"zeros"`` or ``"nan"``: the value of elements outside of `array`.
    along_w
        The wide modes: the copy steps along the last spatial axis and from image to image, at the
        place of `coords` along the other axes. `offsets` has one value, and the first pixel may lie
        to the left of the box.

    Returns
    -------
    numpy.ndarray
        ``tile.shared_nbytes`` bytes, swizzled, as `reference_tile` returns them.
    """
    if along_w:
        still, place = array.ndim - 3, tuple(int(c) for c in coords[1:-1])
        offsets, box = (0,) * still + tuple(offsets), box.at_row(array.shape[1:-1], place)
    bits, pixels, channels, inside = _footprint(array, tile, coords, offsets, box, along_w)
    values = np.full(tile.shape, fill_bits(tile.dtype, oob_fill), bits.dtype)
    values[inside] = convert_bits(bits[(*pixels, channels)], tile.dtype)
    image = np.zeros(tile.shared_nbytes, np.uint8)
    image.view(bits.dtype)[slots(tile)] = values
    return image


@host_only
def reference_im2col_store(
    array: NDArray[Any],
    image: NDArray[np.uint8],
    tile: Tile,
    coords: Sequence[int],
    box: PixelBox,
) -> None:
    """Write into `array` what an im2col store of the swizzled bytes `image` writes.

    Parameters are those of `reference_im2col`; stores have no offsets.
    """
    positions, values = im2col_store_values(array, image, tile, coords, box)
    bits = array.view(f"u{tile.itemsize}")
    bits[positions] = values


def im2col_store_values(
    array: NDArray[Any],
    image: NDArray[np.uint8],
    tile: Tile,
    coords: Sequence[int],
    box: PixelBox,
) -> tuple[tuple[NDArray[np.intp], ...], NDArray[Any]]:
    """Return the positions in `array` that a store or a reduction writes, and the stored bits.

    Parameters are those of `reference_im2col_store`.
    """
    offsets = (0,) * len(box.lower)
    bits, pixels, channels, inside = _footprint(array, tile, coords, offsets, box)
    if image.shape != (tile.shared_nbytes,):
        raise ValueError(
            f"image has shape {image.shape}; {tile!r} takes {tile.shared_nbytes} bytes"
        )
    values = np.ascontiguousarray(image, np.uint8).view(bits.dtype)[slots(tile)]
    return (*pixels, channels), values[inside]


_Inside = tuple[NDArray[np.intp], ...]


def _footprint(
    array: NDArray[Any],
    tile: Tile,
    coords: Sequence[int],
    offsets: Sequence[int],
    box: PixelBox,
    along_w: bool = False,
) -> tuple[NDArray[Any], list[NDArray[np.intp]], NDArray[np.intp], _Inside]:
    """Return the tensor's bits, and the positions of in-bounds elements in it and in the tile.

    The positions index the tensor as ``bits[(*pixels, channels)]``, the tile as ``values[inside]``.
    """
    spatial = array.ndim - 2
    given = (len(coords), len(offsets) + 2, len(box.lower) + 2)
    if tile.ndim != 2 or spatial < 1 or given != (array.ndim,) * 3:
        raise ValueError(
            f"{tile!r} has {tile.ndim} axes, which must be (pixels, channels); the array has "
            f"{array.ndim} axes, of which all but two are spatial, and there are {len(coords)} "
            f"coordinates, {len(offsets)} offsets and a box of {len(box.lower)} axes"
        )
    if array.dtype.itemsize != tile.itemsize:
        raise TypeError(
            f"the array's {array.dtype} has {array.dtype.itemsize} B, {tile!r} {tile.itemsize} B"
        )
    extents = array.shape[1:-1]
    first = tuple(int(c) for c in coords[:-1])
    if not (box.ends_after if along_w else box.holds)(extents, first[1:]):
        raise ValueError(outside(box, extents, first[1:]))
    walked = np.array(list(box.walk(extents, first, tile.shape[0])), np.intp)
    walked[:, 1:] += np.asarray(offsets, np.intp)
    channel = int(coords[-1]) + np.arange(tile.shape[1])
    pixels = np.flatnonzero(((walked >= 0) & (walked < array.shape[:-1])).all(axis=1))
    channels = np.flatnonzero((channel >= 0) & (channel < array.shape[-1]))
    places = [column[:, None] for column in walked[pixels].T]
    bits = array.view(f"u{tile.itemsize}")
    return bits, places, channel[channels], np.ix_(pixels, channels)


def outside(box: PixelBox, extents: Sequence[int], place: Sequence[int]) -> str:
    """Return the error text for a copy that may not start at `place`."""
    corners = zip(extents, box.lower, box.upper, strict=True)
    ranges = ", ".join(f"{lo} to {n + hi - 1}" for n, lo, hi in corners)
    return (
        f"the first pixel is {tuple(place)}, outside of the box of base pixels, which is {ranges} "
        "per spatial axis: coordinates are those of the tensor, so output pixel (p, q) starts at "
        "lower + stride * (p, q)"
    )
