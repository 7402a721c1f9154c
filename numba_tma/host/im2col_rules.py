"""Every rule of im2col maps beside the tensor's own, each with the repair."""

from collections.abc import Sequence
from typing import Any

from numba_tma.host.architectures import BLACKWELL
from numba_tma.host.dtypes import DType
from numba_tma.host.layout import Swizzle, box_violations
from numba_tma.host.pixel_box import PixelBox
from numba_tma.host.tensor_map_rules import MAX_ELEMENT_STRIDE

RANKS = {3: "NWC", 4: "NHWC", 5: "NDHWC"}
WIDE_MODES = ("w", "w128")
#: The largest halo of a wide copy, by the map's mode, and its largest offset.
MAX_HALO = {"im2col_w": 511, "im2col_w128": 31}
MAX_W_OFFSET = 31
MAX_PIXELS = 1024
MAX_CHANNELS = 256
# Bits of each corner and offset in the encoded map and the instruction, by rank.
_BITS = {3: 16, 4: 8, 5: 5}


def corner_range(rank: int) -> tuple[int, int]:
    """Return the smallest and the largest corner of a pixel box."""
    half = 1 << _BITS[rank] - 1
    return -half, half - 1


def offset_limit(rank: int) -> int:
    """Return the largest offset of an im2col copy."""
    return (1 << _BITS[rank]) - 1


def rank_violations(rank: int) -> list[str]:
    """List the broken rules of the rank of an im2col map's tensor."""
    if rank in RANKS:
        return []
    repair = (
        "index or merge some axes"
        if rank > 5
        else f"add axes of extent 1, array[{'None, ' * (3 - rank)}...]"
    )
    return [
        f"array has rank {rank}; im2col takes 3 (NWC), 4 (NHWC) or 5 (NDHWC), channels last: "
        f"{repair}"
    ]


def is_sequence(given: object) -> bool:
    """Return whether something is a sequence that may hold numbers, which a string may not."""
    return isinstance(given, Sequence) and not isinstance(given, str | bytes)


def per_axis(
    name: str, given: Any, axes: int, default: int | None = None
) -> tuple[tuple[int, ...], list[str]]:
    """Return one number for each spatial axis, and the broken rules; one stands for all axes."""
    if given is None and default is not None:
        given = default
    numbers = given if is_sequence(given) else (given,) * axes
    wrong = _length_violation(name, given, len(numbers), axes)
    if not all(_is_integer(n) for n in numbers):
        wrong = [f"{name} is {given!r}; give an integer, or one per spatial axis"]
    return tuple(int(n) for n in numbers) if not wrong else (default or 0,) * axes, wrong


def padding_per_axis(given: Any, axes: int) -> tuple[tuple[tuple[int, int], ...], list[str]]:
    """Return (before, after) for each spatial axis, and the broken rules."""
    each = given if is_sequence(given) else (given,) * axes
    wrong = _length_violation("padding", given, len(each), axes)
    pairs = [tuple(p) if is_sequence(p) else (p, p) for p in each]
    if not all(len(pair) == 2 and all(_is_integer(n) for n in pair) for pair in pairs):
        wrong = [
            f"padding is {given!r}; give an integer, or per spatial axis an integer or (before, "
            "after)"
        ]
    return tuple((int(b), int(a)) for b, a in pairs) if not wrong else ((0, 0),) * axes, wrong


def _is_integer(n: object) -> bool:
    return hasattr(n, "__index__") and not isinstance(n, bool)


def _length_violation(name: str, given: Any, length: int, axes: int) -> list[str]:
    if length == axes:
        return []
    return [
        f"{name} is {given!r}, of length {length}; the array has {axes} spatial "
        f"{'axis' if axes == 1 else 'axes'}: give one each, or one number for all"
    ]


def filter_violations(
    filter: tuple[int, ...], padding: tuple[tuple[int, int], ...], dilation: tuple[int, ...]
) -> list[str]:
    """List the broken rules of a convolution's filter."""
    violations = []
    limit = offset_limit(len(filter) + 2)
    for axis, (f, (before, after), d) in enumerate(zip(filter, padding, dilation), 1):
        if f < 1:
            violations.append(f"axis {axis}: filter is {f}; a filter has at least 1 element")
        if d < 1:
            violations.append(f"axis {axis}: dilation is {d}; 1 means no gaps: use at least 1")
        if before < 0 or after < 0:
            violations.append(
                f"axis {axis}: padding is {(before, after)}; it adds pixels and is never negative: "
                "to leave some out, slice the array"
            )
        if min(f, d) > 0 and (f - 1) * d > limit:
            violations.append(
                f"axis {axis}: the last filter element has the offset (filter - 1) * dilation = "
                f"{(f - 1) * d}; im2col of rank {len(filter) + 2} takes 0 to {limit}: split the "
                "filter, with one map each"
            )
    return violations


def pixel_box_violations(shape: tuple[int, ...], box: PixelBox, from_filter: bool) -> list[str]:
    """List the broken rules of a pixel box."""
    violations = []
    rank = len(shape)
    low, high = corner_range(rank)
    formulas = {"lower": "-padding", "upper": "padding - (filter - 1) * dilation"}
    for axis, (extent, lower, upper, step) in enumerate(
        zip(shape[1:-1], box.lower, box.upper, box.stride), 1
    ):
        for which, corner in (("lower", lower), ("upper", upper)):
            if not low <= corner <= high:
                formula = f" = {formulas[which]}" if from_filter else ""
                violations.append(
                    f"axis {axis}: the {which} corner is {corner}{formula}; im2col of rank {rank} "
                    f"takes {low} to {high}: "
                    + (
                        "pad the array itself, and shift the coordinates"
                        if (which == "lower") == (corner < low)
                        else "slice the array, or make maps of parts of it"
                    )
                )
        if not 1 <= step <= MAX_ELEMENT_STRIDE:
            violations.append(
                f"axis {axis}: stride is {step}; TMA takes 1 to {MAX_ELEMENT_STRIDE}: "
                + ("use 1" if step < 1 else f"view the array with every {step}th pixel, stride 1")
            )
        if extent > 0 and extent + upper - lower < 1:
            why = (
                "the filter is longer than the padded axis: pad more"
                if from_filter
                else "raise the upper corner or lower the lower one"
            )
            violations.append(
                f"axis {axis}: no pixel lies in the box, from {lower} to extent {extent} + upper "
                f"corner {upper}, that end excluded: {why}"
            )
    return violations


def column_violations(
    column: tuple[int, ...], dtype: DType, swizzle: Swizzle, interleave: int | None
) -> list[str]:
    """List the broken rules of the tile of an im2col copy, (pixels, channels)."""
    if len(column) != 2:
        return [
            f"the tile {column} has rank {len(column)}; an im2col copy fills (pixels, channels), "
            "e.g. Tile((64, 64), ...)"
        ]
    pixels, channels = column
    violations = []
    if not 1 <= pixels <= MAX_PIXELS:
        parts = -(-pixels // MAX_PIXELS)
        violations.append(
            f"pixels is {pixels}; a copy takes 1 to {MAX_PIXELS}: "
            + (f"use {parts} copies" if pixels > 0 else "use at least 1")
        )
    if not 1 <= channels <= MAX_CHANNELS:
        parts = -(-channels // MAX_CHANNELS)
        violations.append(
            f"channels is {channels}; a copy takes 1 to {MAX_CHANNELS}: "
            + (f"use {parts} copies" if channels > 0 else "use at least 1")
        )
    elif interleave is not None and channels * dtype.itemsize != interleave:
        violations.append(
            f"channels is {channels} {dtype} = {channels * dtype.itemsize} B; with "
            f"interleave={interleave} a copy brings one slice of {interleave} B per pixel: use "
            f"{interleave // dtype.itemsize}"
        )
    elif interleave is None:
        for text in box_violations((1, channels), dtype, swizzle, splits=False):
            violations.append(text.replace("box axis 1 is", "channels is"))
    return violations


def wide_violations(
    column: tuple[int, ...], mode: str, swizzle: Swizzle, capability: tuple[int, int] | None
) -> list[str]:
    """List the broken rules that only the wide modes have."""
    violations = []
    if mode not in WIDE_MODES:
        violations.append(f'mode is {mode!r}; TMA has "w" and "w128"')
    elif mode == "w128" and len(column) == 2 and column[0] != 128:
        violations.append(f'pixels is {column[0]}; mode "w128" copies 128: use 128, or mode "w"')
    if swizzle not in (Swizzle.B64, Swizzle.B128, Swizzle.B128_ATOM_32B):
        violations.append(
            f"swizzle is {swizzle.name}; the wide modes have only B64, B128 and B128_ATOM_32B: use "
            "one of them"
        )
    if capability is not None and not BLACKWELL.on(capability):
        violations.append(
            f"this GPU has compute capability {capability[0]}.{capability[1]}; the wide modes "
            "begin with 10.0: use im2col_map, which walks over whole images"
        )
    return violations
