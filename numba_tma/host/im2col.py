"""Tensor maps of convolutions: the copy engine gathers the rows of the im2col matrix."""

import functools
from collections.abc import Sequence
from typing import Any

from numba_tma.host.annotations import (
    BarrierLike,
    CacheHint,
    DeviceArray,
    DTypeLike,
    SharedMemory,
)
from numba_tma.host.array_interface import Place, byte_strides, reading_of
from numba_tma.host.backend import in_kernels
from numba_tma.host.boxes import Column
from numba_tma.host.driver import (
    compute_capability,
    current_device,
    encode_im2col,
    encode_im2col_wide,
)
from numba_tma.host.dtypes import as_dtype, words_violation
from numba_tma.host.encoding import (
    SIMULATED,
    Encoding,
    Interleave,
    L2Promotion,
    MapOptions,
    OobFill,
    as_box,
    atom_violations,
    check_kinds,
    check_options,
    memory_violations,
    option_dtype,
    partial_rows,
    resolve_dtype,
    say_broken,
)
from numba_tma.host.environment import simulated
from numba_tma.host.host_only import host_only
from numba_tma.host.im2col_rules import (
    RANKS,
    column_violations,
    filter_violations,
    is_sequence,
    padding_per_axis,
    per_axis,
    pixel_box_violations,
    rank_violations,
    wide_violations,
)
from numba_tma.host.layout import Swizzle, Tile
from numba_tma.host.pixel_box import PixelBox
from numba_tma.host.tensor_map import TensorMap
from numba_tma.host.tensor_map_rules import legal_strides, tensor_violations


@host_only
def im2col_map(
    array: DeviceArray,
    tile_or_column: Tile | Sequence[int],
    *,
    filter: int | Sequence[int] | None = None,
    padding: int | Sequence[int | Sequence[int]] = 0,
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
    lower_corner: int | Sequence[int] | None = None,
    upper_corner: int | Sequence[int] | None = None,
    swizzle: Swizzle | None = None,
    l2_promotion: L2Promotion = 128,
    oob_fill: OobFill = "zeros",
    interleave: Interleave = None,
    dtype: DTypeLike | None = None,
    overwrite_padding: bool = False,
) -> "Im2colMap":
    """Describe to the copy engine how a convolution reads `array`.

    A convolution is a product of matrices: of the im2col matrix, which has a row for each output
    pixel and a column for each filter position and channel, and of the filter. One copy brings a
    tile of it, (pixels, channels), for one filter position; see `Im2colMap.load_im2col`.

    `filter`, `padding`, `stride` and `dilation` are the convolution's, each one integer for all
    spatial axes or one per spatial axis in the array's order. Where base pixels lie follows from
    them: ``lower = -padding`` and ``upper = padding - (filter - 1) * dilation`` (`PixelBox`).

    Parameters
    ----------
    array
        The input, channels last: NWC, NHWC or NDHWC. As for `tensor_map`.
    tile_or_column
        A `Tile` of (pixels, channels), which is what lands in shared memory; or those two numbers.
        1 to 1024 pixels, 1 to 256 channels.
    filter
        Extent of the filter. Without it, that of one pixel.
    padding
        Pixels of fill around the input; a pair stands for (before, after).
    stride, dilation
        Steps between output pixels, 1 to 8, and between the filter's elements.
    lower_corner, upper_corner
        Where base pixels lie, instead of `filter`, `padding` and `dilation`: per spatial axis the
        first one, and where they end, counted from the array's end and excluded.
    swizzle, l2_promotion, oob_fill, dtype
        As for `tensor_map`.
    interleave
        None, or 16 or 32 for tensors in NC/8HWC8 or NC/16HWC16 order. Encoded as given, by the
        driver's rules; what such copies look like in shared memory is not modelled.
    overwrite_padding
        Allow stores although a pixel's channels are no multiple of 16 B, as for `tensor_map`.

    Raises
    ------
    ValueError
        With all the rules that the arguments break, and the repairs.
    TypeError
        When `array` is not in GPU memory, or its element type is none that TMA copies.
    """
    return _map(
        array,
        tile_or_column,
        ("im2col", _frozen(filter), _frozen(padding), _frozen(stride), _frozen(dilation))
        + (_frozen(lower_corner), _frozen(upper_corner)),
        *(swizzle, l2_promotion, oob_fill, interleave, dtype, overwrite_padding),
    )


@host_only
def im2col_wide_map(
    array: DeviceArray,
    tile_or_column: Tile | Sequence[int],
    *,
    mode: str = "w",
    stride: int = 1,
    lower_corner: int = 0,
    upper_corner: int = 0,
    swizzle: Swizzle | None = None,
    l2_promotion: L2Promotion = 128,
    oob_fill: OobFill = "zeros",
    dtype: DTypeLike | None = None,
) -> "Im2colMap":
    """Describe a convolution's input whose pixels are copied along W alone.

    For compute capability 10.0 and newer; mode ``"w128"`` for GPUs with tensor memory.
    `Im2colMap.load_im2col` takes maps of both modes. Halos are operands of the instructions
    `ptx.cp_async_bulk_tensor_im2col_w_load` and `..._w_128_load`; the simulator refuses halos.

    Parameters
    ----------
    array, l2_promotion, oob_fill, dtype
        As for `im2col_map`.
    tile_or_column
        A `Tile` of (pixels, channels), halos not counted, with swizzle B64 or B128.
    mode
        ``"w"``, or ``"w128"`` for copies of always 128 pixels.
    stride, lower_corner, upper_corner
        As for `im2col_map`, along W.
    swizzle
        B64 or B128, unless the tile has it.
    """
    return _map(
        array,
        tile_or_column,
        (mode, None, 0, stride, 1, lower_corner, upper_corner),
        *(swizzle, l2_promotion, oob_fill, None, dtype, True),
    )


class Im2colMap(TensorMap):
    """A convolution's input in global memory, and the column of pixels that one copy takes."""

    __slots__ = ()

    @property
    def pixel_box(self) -> PixelBox:
        """Positions of the base pixels along each spatial axis."""
        box = self._encoding.pixel_box
        assert box is not None
        return box

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Base pixels along each spatial axis: the extents of the convolution's output, (P, Q)."""
        return self.pixel_box.output_shape(self.shape[1:-1])

    def load_im2col(
        self,
        tile: SharedMemory,
        coords: tuple[int, ...],
        offsets: tuple[int, ...],
        barrier: BarrierLike,
        cache_hint: CacheHint = None,
        multicast: int | None = None,
        cta_group: int = 1,
    ) -> None:
        """Start the copy of one column of pixels from the tensor into shared memory.

        For kernels. Executed by one thread: each thread that executes it starts its own copy. The
        call returns at once. A thread sees the bytes after it has waited for the phase of `barrier`
        in which they were expected. The copy counts ``tile.nbytes`` on `barrier`.

        Output pixel (n, p, q) of a convolution with filter position (r, s) is loaded with
        coords ``(n, p * stride - padding, q * stride - padding, channel)`` and offsets
        ``(r * dilation, s * dilation)``. The pixels after the first are those of the next output
        pixels, in the order (n, p, q); past the last image they are filled.

        A map of `im2col_wide_map` walks along W and from image to image, in the one row of pixels
        at which `coords` lie along the other axes. The first pixel may lie before the box along W.

        Parameters
        ----------
        tile
            Where in shared memory, of the map's own tile type: (pixels, channels).
        coords
            The first base pixel, which lies in the map's `pixel_box`, and its first channel, one
            coordinate per axis in the array's order. The channel times the element size must be a
            multiple of 16 bytes.
        offsets
            How far from the base pixels the copied ones lie, one per spatial axis in the array's
            order: 0 to 65535, 255 or 31 for one, two or three of them. With a map of
            `im2col_wide_map` a tuple of one, along W: 0 to 31.
        barrier
            The barrier that gets the bytes; it must expect them in its current phase.
        cache_hint
            How long the data should stay in the L2 cache, if it matters.
        multicast
            A bit per block of the cluster: the tile arrives in each of them, at the same address,
            and its bytes on the barrier at the same address there.
        cta_group
            2 if the bytes count on the barrier of the even block of a CTA pair, as for
            `TensorMap.load`.

        Notes
        -----
        PTX ``cp.async.bulk.tensor.Nd.shared::cluster.global.im2col.mbarrier::complete_tx::bytes``,
        or ``.im2col::w``, to ``.shared::cta`` without `multicast`, or ``.im2col::w::128``.
        """
        in_kernels("load_im2col")(
            self, tile, coords, offsets, barrier, cache_hint, multicast, cta_group
        )

    def store_im2col(
        self, tile: SharedMemory, coords: tuple[int, ...], cache_hint: CacheHint = None
    ) -> None:
        """Start the copy of one column of pixels from shared memory into the tensor.

        For kernels. Under the rules of `TensorMap.store`; the pixels are those that `load_im2col`
        would read with offsets of 0. The map's `pixel_box` must lie inside the tensor: no lower
        corner below 0, no upper corner above.

        Notes
        -----
        PTX ``cp.async.bulk.tensor.Nd.global.shared::cta.im2col_no_offs.bulk_group``.
        """
        in_kernels("store_im2col")(self, tile, coords, cache_hint)

    def __repr__(self) -> str:
        return (
            f"Im2colMap({self._encoding.mode}, {self.dtype}, shape {self.shape}, strides "
            f"{self.strides} B, address {self.address:#x}, tile {self.tile}, {self.pixel_box}, "
            f"l2_promotion {self.l2_promotion}, oob_fill {self.oob_fill!r}, "
            f"interleave {self.interleave})"
        )


def _frozen(value: Any) -> Any:
    """Return nested lists as tuples, which can be keys of a cache."""
    if value is None or type(value) is int:
        return value
    # The exact types come first, because an instance check against Sequence is slow.
    nested = type(value) in (tuple, list) or is_sequence(value)
    return tuple(map(_frozen, value)) if nested else value


def _map(
    array: DeviceArray,
    tile_or_column: Tile | Sequence[int],
    geometry: tuple[Any, ...],
    *options: Any,
) -> Im2colMap:
    """Return the map; `options` are fields of `MapOptions`, from `swizzle` on."""
    function = _name(geometry[0])
    if not isinstance(tile_or_column, Tile):
        tile_or_column = as_box(tile_or_column, function)
    swizzle, l2_promotion, oob_fill, interleave, dtype, overwrite_padding = options
    view, array, owner = reading_of(array, f"{function}: array")
    address, shape, strides, *rest = view[:5]
    given = MapOptions(
        tile_or_column,
        swizzle,
        l2_promotion,
        oob_fill,
        element_strides=None,
        interleave=interleave,
        dtype=option_dtype(function, dtype),
        overwrite_padding=overwrite_padding,
        function=function,
    )
    check_kinds(given)
    device = SIMULATED if simulated() else current_device()
    place = address, tuple(shape), strides and tuple(strides), *rest
    encoding = _encode(device, place, geometry, given)
    return Im2colMap(array, owner, encoding)


def _name(mode: str) -> str:
    """Return the name of the function that makes maps of a mode."""
    return "im2col_map" if mode == "im2col" else "im2col_wide_map"


@functools.lru_cache(maxsize=4096)
def _encode(device: int, place: Place, geometry: tuple[Any, ...], options: MapOptions) -> Encoding:
    """Check every rule and encode a map of the array at `place`."""
    address, shape, strides, stored, in_elements = place
    l2_promotion, oob_fill, interleave = (
        options.l2_promotion,
        options.oob_fill,
        options.interleave,
    )
    mode, what, tile = geometry[0], options.function, options.tile
    column = tile.shape if tile else as_box(options.tile_or_box, what)

    dtype, itemsize, violations = resolve_dtype(stored, options)
    if dtype.is_packed:
        violations.append(f"dtype {dtype} is not modelled in {what}: use tensor_map, or u8")
        dtype = as_dtype("u8")
    if wrong := words_violation(dtype, what):
        violations.append(wrong)
    strides = byte_strides(shape, strides, in_elements, itemsize)
    strides = legal_strides(shape, strides, itemsize, interleave)
    swizzle, wrong_options = check_options(options, dtype)

    violations += rank_violations(len(shape))
    if len(shape) in RANKS:
        violations += tensor_violations(address, shape, strides, itemsize, None, interleave)
        box, wrong_box = _pixel_box(shape, geometry)
        violations += wrong_box
    violations += column_violations(column, dtype, swizzle, interleave)
    if mode != "im2col":
        capability = compute_capability(device) if device >= 0 else None
        violations += wide_violations(column, mode, swizzle, capability)
    violations += wrong_options + atom_violations(swizzle, device)
    violations += memory_violations(address)
    if violations:
        raise ValueError(
            say_broken(what, violations)
            + f"\nGiven: array of shape {shape}, strides {strides} B, {dtype}, at {address:#x}; "
            f"(pixels, channels) {column}, {_describe(geometry)}, swizzle {swizzle.name}, "
            f"l2_promotion {l2_promotion}, oob_fill {oob_fill!r}, interleave {interleave}"
        )

    tile = tile or Tile(column, dtype, swizzle)
    tensor = (dtype, address, shape, strides, column, box)
    value = None
    if device == SIMULATED:
        if interleave is not None:
            raise NotImplementedError(
                f"{what}: interleave={interleave} is not simulated; use a GPU, or leave it out"
            )
    elif mode == "im2col":
        value = encode_im2col(*tensor, interleave, swizzle, l2_promotion, oob_fill)
    else:
        value = encode_im2col_wide(*tensor, mode, swizzle, l2_promotion, oob_fill)
    return Encoding(
        *(address, shape, strides, dtype, column, tile, l2_promotion, oob_fill),
        *((1, *box.stride, 1), interleave, Column(tile, (1, 1))),
        _no_stores(box) or ("" if options.overwrite_padding else partial_rows(shape, dtype, what)),
        value,
        mode=mode if mode == "im2col" else f"im2col_{mode}",
        pixel_box=box,
    )


def _no_stores(box: PixelBox) -> str:
    """Say why nothing can be stored through a map; "" if something can."""
    if min(box.lower) >= 0 and max(box.upper) <= 0:
        return ""
    return (
        f"the map's pixel box has the corners {box.lower} and {box.upper}; a store stays inside "
        "the tensor: no lower corner is negative, no upper corner positive: store through a map "
        "without padding"
    )


def _pixel_box(shape: tuple[int, ...], geometry: tuple[Any, ...]) -> tuple[PixelBox, list[str]]:
    """Return the positions of the base pixels, and the rules that they break."""
    mode, filter, padding, stride, dilation, lower, upper = geometry
    axes = len(shape) - 2
    if mode != "im2col":
        return _wide_box(shape, stride, lower, upper)
    if lower is not None or upper is not None:
        low, wrong = per_axis("lower_corner", lower, axes, 0)
        high, more = per_axis("upper_corner", upper, axes, 0)
        steps, still = per_axis("stride", stride, axes)
        wrong += more + still
        if (filter, padding, dilation) != (None, 0, 1):
            wrong.append(
                "lower_corner and upper_corner stand for filter, padding and dilation: give "
                "either the corners or those"
            )
        box = PixelBox(low, high, steps)
        return box, wrong or pixel_box_violations(shape, box, from_filter=False)
    extents, wrong = per_axis("filter", filter, axes, 1)
    pads, more = padding_per_axis(padding, axes)
    steps, still = per_axis("stride", stride, axes)
    gaps, yet = per_axis("dilation", dilation, axes)
    wrong += more + still + yet
    box = PixelBox.of_filter(extents, pads, steps, gaps)
    if not wrong:
        wrong = filter_violations(extents, pads, gaps)
        wrong += pixel_box_violations(shape, box, from_filter=True)
    return box, wrong


def _wide_box(
    shape: tuple[int, ...], stride: Any, lower: Any, upper: Any
) -> tuple[PixelBox, list[str]]:
    numbers, wrong = [], []
    for name, given in (("lower_corner", lower), ("upper_corner", upper), ("stride", stride)):
        (number,), more = per_axis(name, given, 1)
        numbers.append(number)
        wrong += more
    still = len(shape) - 3
    low, high, step = numbers
    box = PixelBox((0,) * still + (low,), (0,) * still + (high,), (1,) * still + (step,))
    if not wrong:  # only along W, whose corners have 16 bits at every rank
        row = PixelBox((low,), (high,), (step,))
        wrong = pixel_box_violations((1, shape[-2], 1), row, from_filter=False)
        wrong = [text.replace("axis 1:", f"axis {len(shape) - 2}:") for text in wrong]
    return box, wrong


def _describe(geometry: tuple[Any, ...]) -> str:
    mode, filter, padding, stride, dilation, lower, upper = geometry
    if mode != "im2col":
        return f"mode {mode!r}, corners {lower} and {upper}, stride {stride}"
    if lower is not None or upper is not None:
        return f"corners {lower} and {upper}, stride {stride}"
    return f"filter {filter}, padding {padding}, stride {stride}, dilation {dilation}"
