"""What equal tensor maps share: their checked fields and the encoded bytes, cached."""

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from numba_tma.host.array_interface import contiguous_strides
from numba_tma.host.boxes import (
    Copies,
    copies_of,
    copies_violations,
    fold_violations,
    padding_store,
)
from numba_tma.host.driver import (
    INTERLEAVE,
    L2_PROMOTION,
    OOB_FILL,
    SWIZZLE,
    compute_capability,
    encode_tiled,
    replace_address,
)
from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.layout import MAX_BOX, MAX_RANK, Swizzle, Tile, as_shape, box_violations
from numba_tma.host.pixel_box import PixelBox
from numba_tma.host.tensor_map_rules import (
    address_violations,
    element_stride_violations,
    interleave_violations,
    legal_strides,
    tensor_violations,
)

if TYPE_CHECKING:
    from cuda.core._tensor_map import TensorMapDescriptor

L2Promotion = Literal[64, 128, 256] | None
OobFill = Literal["zeros", "nan"]
Interleave = Literal[16, 32] | None

SIMULATED = -2  # stands for the device's ordinal; nothing is encoded


@dataclass(slots=True, eq=False)
class Encoding:
    """The fields of a `TensorMap` but its array, to whose memory this holds no reference."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    box: tuple[int, ...]
    tile: Tile
    l2_promotion: L2Promotion
    oob_fill: OobFill
    element_strides: tuple[int, ...]
    interleave: Interleave
    copies: Copies
    partial_rows: str
    value: "TensorMapDescriptor | None"
    numba_type: Any = None
    mode: str = "tiled"  #: which of the copy instructions take the map
    pixel_box: PixelBox | None = None  #: of the im2col modes


# The device is part of the key since an address may belong to another device later, and nobody
# promises that devices agree on the encoding.
@functools.lru_cache(maxsize=4096)
def encode(
    device: int,
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    stored: Any,
    strides_in_elements: bool,
    tile_or_box: Tile | tuple[int, ...],
    swizzle: Swizzle | None,
    l2_promotion: L2Promotion,
    oob_fill: OobFill,
    element_strides: tuple[int, ...] | None,
    interleave: Interleave,
    dtype: DType | None,
    overwrite_padding: bool,
    fold: bool = False,
    what: str = "tensor_map",
) -> Encoding:
    """Check every rule and encode; the parameters are `tensor_map`'s and a reading of its array.

    `stored` is the array's own element type, as its library calls it.
    """
    if not isinstance(tile_or_box, Tile):
        tile_or_box = as_box(tile_or_box)  # (8.0, 16) equals (8, 16) as a key, but is no box
    given: tuple[Any, ...] = (
        *(shape, strides, stored, strides_in_elements, tile_or_box, swizzle),
        *(l2_promotion, oob_fill, element_strides, interleave, dtype, fold, what),
    )
    checked = _check_once(*given) if address and address % _COMMON_ALIGNMENT == 0 else None
    if checked is None:
        checked = _check(address, *given)
    shape, strides, dtype, box, copies, steps, padding = checked
    tile, value = copies.tile, None
    if wrong := atom_violations(tile.swizzle, device):
        raise ValueError(say_broken(what, wrong))
    if device != SIMULATED:
        layout = (shape, strides, box, steps)
        if copies.interleaved:
            layout = (shape[:-1], strides[:-1], box[:-1], steps[:-1])
        if copies.fold:
            layout = (
                copies.fold_shape(shape),
                copies.fold_strides(strides),
                copies.fold_shape(box),
                copies.encoded_steps(steps),
            )
        value = encode_tiled(
            *(dtype, address, *layout, interleave, tile.swizzle, l2_promotion, oob_fill)
        )
    partial = padding or ("" if overwrite_padding else partial_rows(shape, dtype, what))
    return Encoding(
        *(address, shape, strides, dtype, box, tile, l2_promotion, oob_fill, steps, interleave),
        *(copies, partial, value),
    )


def with_address(
    encoding: Encoding,
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    stored: Any,
    strides_in_elements: bool,
) -> Encoding:
    """Return `encoding` for an array that differs in its address alone, or say what else does."""
    shape = tuple(shape)
    itemsize = getattr(stored, "itemsize", encoding.dtype.itemsize)
    if strides is None:
        strides = contiguous_strides(shape, itemsize)
    else:
        scale = itemsize if strides_in_elements else 1
        strides = tuple(stride * scale for stride in strides)
    if strides != encoding.strides:
        strides = legal_strides(shape, strides, itemsize, encoding.interleave)
    mine = encoding.shape, encoding.strides, encoding.dtype.itemsize
    if (shape, strides, itemsize) != mine:
        raise ValueError(
            f"replace_address: the array has shape {shape}, strides {strides} B and {itemsize} B "
            f"per element, the map's array shape {mine[0]}, strides {mine[1]} B and {mine[2]} B; "
            "only the address can be replaced: make a new map with tensor_map"
        )
    if violations := address_violations(address, itemsize, encoding.interleave):
        raise ValueError(f"replace_address: {violations[0]}")
    value = None if encoding.value is None else replace_address(encoding.value, address)
    return replace(encoding, address=address, value=value)


def partial_rows(shape: tuple[int, ...], dtype: DType, what: str) -> str:
    """Say what a store through a map would overwrite beside the tensor; "" if nothing."""
    nbytes = shape[-1] * dtype.itemsize
    past = -nbytes % 16
    if not past:
        return ""
    whole = (nbytes + past) // dtype.itemsize
    return (
        f"a row of the tensor is {shape[-1]} {dtype} = {nbytes:,} B, and TMA stores whole chunks "
        f"of 16 B: the {past} B past each row would be overwritten; pad the rows to {whole} "
        "columns and store all of them, or, if those bytes are free to overwrite, make the map "
        f"with {what}(..., overwrite_padding=True)"
    )


# An address on this boundary breaks no rule unless it is 0, so that the next tensor like this one
# needs no check.
_COMMON_ALIGNMENT = 256

Checked = tuple[
    tuple[int, ...], tuple[int, ...], DType, tuple[int, ...], Copies, tuple[int, ...], str
]


@functools.lru_cache(maxsize=1024)
def _check_once(*given: Any) -> Checked | None:
    """Check what does not depend on the address; None if something is wrong."""
    try:
        return _check(_COMMON_ALIGNMENT, *given)
    except (TypeError, ValueError):
        return None  # to be said by _check, with the address


def _check(
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    stored: Any,
    strides_in_elements: bool,
    tile_or_box: Tile | tuple[int, ...],
    swizzle: Swizzle | None,
    l2_promotion: L2Promotion,
    oob_fill: OobFill,
    element_strides: tuple[int, ...] | None,
    interleave: Interleave,
    dtype: DType | None,
    fold: bool,
    what: str,
) -> Checked:
    """Return shape, strides, dtype, box, copies, element strides, what a store would overwrite.

    Or say what is wrong.
    """
    tile = tile_or_box if isinstance(tile_or_box, Tile) else None
    dtype, itemsize, violations = resolve_dtype(stored, dtype, tile, what)

    shape = tuple(int(extent) for extent in shape)
    rank = len(shape)
    if strides is None:
        strides = contiguous_strides(shape, itemsize)
    else:
        scale = itemsize if strides_in_elements else 1
        strides = tuple(int(stride) * scale for stride in strides)
    strides = legal_strides(shape, strides, itemsize, interleave)

    steps = (1,) * rank if element_strides is None else as_box(element_strides)
    wrong_steps = element_stride_violations(steps, rank, interleave)
    swizzle, wrong_options = check_options(swizzle, tile, l2_promotion, oob_fill, interleave, dtype)
    if tile is None:
        box = extents = as_box(tile_or_box)
        copies = None
        wrong_box = box_violations(box, dtype, swizzle, interleave, what == "tensor_map")
        if fold:
            wrong_box.append(f"fold=True needs a Tile; the box {box} is one copy: leave fold out")
    else:
        known = steps if not wrong_steps and tile.ndim == rank else (1,) * tile.ndim
        copies, box, wrong_box = _check_copies(tile, known, shape, interleave, fold)
        extents = _times(tile.shape, known)
    violations += tensor_violations(address, shape, strides, itemsize, extents, interleave)
    if interleave in (16, 32) and rank <= MAX_RANK:
        violations += interleave_violations(shape, strides, itemsize, extents, steps, interleave)
    violations += wrong_box + wrong_steps + wrong_options
    if violations:
        raise ValueError(
            say_broken(what, violations)
            + f"\nGiven: array of shape {shape}, strides {strides} B, {dtype}, at {address:#x}; "
            f"box {box}, swizzle {swizzle.name}, element_strides {steps}, "
            f"l2_promotion {l2_promotion}, oob_fill {oob_fill!r}, interleave {interleave}"
        )

    if copies is None:
        lands = tuple(-(-extent // step) for extent, step in zip(box, steps, strict=True))
        copies = copies_of(Tile(lands, dtype, swizzle))
    if interleave:
        copies = replace(copies, interleaved=True)
    return shape, strides, dtype, box, copies, steps, padding_store(copies.tile, shape)


def _check_copies(
    tile: Tile,
    steps: tuple[int, ...],
    shape: tuple[int, ...],
    interleave: Interleave,
    fold: bool,
) -> tuple[Copies, tuple[int, ...], list[str]]:
    """Find the copies that move a tile, what one of them covers in the array, and what is wrong."""
    copies = Copies(tile, steps)
    violations = copies_violations(copies, interleave)
    one_box = copies.count == 1 and not violations
    if fold and not one_box and len(shape) == tile.ndim:
        whole = (*tile.shape[:-1], tile.num_slabs * tile.slab)
        violations = fold_violations(copies, shape, interleave)
        return Copies(tile, steps, fold=True), _times(whole, steps), violations
    box = _times(copies.box.shape, steps)
    if violations:
        box = tuple(min(extent, MAX_BOX) for extent in box)
    violations += box_violations(box, tile.dtype, tile.swizzle, interleave)
    return copies_of(tile, steps), box, violations


def _times(extents: tuple[int, ...], steps: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(extent * step for extent, step in zip(extents, steps, strict=True))


def as_box(box: Any, what: str = "tensor_map") -> tuple[int, ...]:
    """Normalise a box, or name the argument."""
    try:
        return as_shape(box)
    except TypeError:
        raise TypeError(
            f"{what}: {box!r} is no box; give a Tile, or one int per axis of its shape"
        ) from None


def resolve_dtype(
    stored: Any, asked: DType | None, tile: Tile | None, what: str = "tensor_map"
) -> tuple[DType, int, list[str]]:
    """Find the map's element type, the array's bytes per element, and what disagrees."""
    if asked is None:
        try:
            return _dtype_of_tile(as_dtype(stored), tile)
        except TypeError as error:
            raise TypeError(f"{what}: array {error}") from None
    itemsize = getattr(stored, "itemsize", asked.itemsize)
    violations = []
    if asked.itemsize != itemsize:
        violations.append(
            f"dtype {asked} has {asked.itemsize} B per element, the array's {stored} {itemsize} B; "
            "dtype renames bits of the same size: view or convert the array first"
        )
    if tile and tile.dtype is not asked:
        violations.append(
            f"dtype is {asked} but the tile {tile!r}: make it Tile({tile.shape}, {asked}) or leave "
            "dtype out"
        )
    return asked, itemsize, violations


def _dtype_of_tile(own: DType, tile: Tile | None) -> tuple[DType, int, list[str]]:
    if tile is None or tile.dtype is own:
        return own, own.itemsize, []
    if tile.dtype.numpy == own.numpy:  # tf32 and the like: float32 in memory, converted by a load
        return tile.dtype, own.itemsize, []
    repair = f"make the tile Tile({tile.shape}, {own})"
    if tile.itemsize == own.itemsize:
        repair += f', or pass dtype="{tile.dtype}" if that is what the bits are'
    return own, own.itemsize, [f"tile {tile!r} holds {tile.dtype}, the array {own}: {repair}"]


_SWIZZLE_OF = {16: Swizzle.NONE, 32: Swizzle.B32}


def check_options(
    swizzle: Swizzle | None,
    tile: Tile | None,
    l2_promotion: L2Promotion,
    oob_fill: OobFill,
    interleave: Interleave,
    dtype: DType,
) -> tuple[Swizzle, list[str]]:
    """Find the swizzle, and what is wrong with the options."""
    chosen, violations = tile.swizzle if tile else Swizzle.NONE, []
    if swizzle is not None and swizzle not in SWIZZLE:
        violations.append(
            f"swizzle is {swizzle!r}; TMA has Swizzle.NONE, B32, B64 and B128, and from compute "
            "capability 10.0 on B128_ATOM_32B and B128_ATOM_64B"
        )
    elif swizzle is not None and tile and swizzle != chosen:
        violations.append(
            f"swizzle is {Swizzle(swizzle).name} but the tile {tile!r}: leave swizzle out"
        )
    elif swizzle is not None:
        chosen = Swizzle(swizzle)
    if l2_promotion not in L2_PROMOTION:
        violations.append(f"l2_promotion is {l2_promotion!r}; TMA has None, 64, 128 and 256 bytes")
    if oob_fill not in OOB_FILL:
        violations.append(f'oob_fill is {oob_fill!r}; TMA has "zeros" and "nan"')
    elif oob_fill == "nan" and not dtype.is_float:
        violations.append(
            f'oob_fill is "nan", but {dtype} is copied as {dtype.tensor_map}, which has no NaN: '
            'use "zeros"'
        )
    if interleave not in INTERLEAVE:
        violations.append(f"interleave is {interleave!r}; TMA has None, 16 and 32 bytes")
    elif interleave and chosen is not (needed := _SWIZZLE_OF[interleave]):
        violations.append(
            f"interleave={interleave} needs swizzle {needed.name}, not {chosen.name}: use "
            f"Swizzle.{needed.name}"
        )
    return chosen, violations


def atom_violations(swizzle: Swizzle, device: int) -> list[str]:
    """List why this GPU does not have a swizzle."""
    if swizzle.atom == 16 or device < 0 or (capability := compute_capability(device)) >= (10, 0):
        return []
    return [
        f"swizzle is {swizzle.name}, which begins with compute capability 10.0; this GPU has "
        f"{capability[0]}.{capability[1]}, where chunks have 16 B: use Swizzle.B128"
    ]


def say_broken(what: str, violations: list[str]) -> str:
    """Say which rules a call of `what` breaks."""
    count = "1 rule is" if len(violations) == 1 else f"{len(violations)} rules are"
    numbered = "".join(f"\n  {n}. {text}" for n, text in enumerate(violations, 1))
    return f"{what}: {count} broken:{numbered}"
