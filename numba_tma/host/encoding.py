"""What equal tensor maps share: their checked fields and the encoded bytes, cached."""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from numba_tma.host.annotations import DTypeLike, Shape
from numba_tma.host.architectures import BLACKWELL
from numba_tma.host.array_interface import Place, byte_strides
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
    Encoded,
    compute_capability,
    descriptor_of,
    encode_tiled,
    misplaced,
    replace_address,
)
from numba_tma.host.dtypes import (
    DType,
    as_dtype,
    contradicts,
    storage_itemsize,
    stored_dtype,
    wrong_storage,
)
from numba_tma.host.layout import MAX_BOX, MAX_RANK, Swizzle, Tile, as_shape, box_violations
from numba_tma.host.packed_rules import (
    option_violations,
    packed_violations,
    unpacked_address_violations,
    unpacked_store,
)
from numba_tma.host.tensor_map_rules import (
    address_violations,
    element_stride_violations,
    interleave_violations,
    legal_strides,
    tensor_violations,
    words_violations,
)
from numba_tma.host.values import FLAG, Rule, checked, is_whole

if TYPE_CHECKING:
    from cuda.core._tensor_map import TensorMapDescriptor

    from numba_tma.host.pixel_box import PixelBox

L2Promotion = Literal[64, 128, 256] | None
OobFill = Literal["zeros", "nan"]
Interleave = Literal[16, 32] | None

SIMULATED = -2  # stands for the device's ordinal; nothing is encoded


class MapOptions(NamedTuple):
    """The arguments of `tensor_map` beside its array; see there.

    Options are part of the cache's key and must be hashable. Calls of `encode` pass the fields one
    by one, in this order: a flat key is the cheapest to make and to hash, and only a call that is
    not in the cache needs the names.
    """

    tile_or_box: Tile | tuple[int, ...]
    swizzle: Swizzle | None
    l2_promotion: L2Promotion
    oob_fill: OobFill
    element_strides: tuple[int, ...] | None
    interleave: Interleave
    dtype: DType | None
    overwrite_padding: bool
    fold: bool = False
    function: str = "tensor_map"  #: the public function, which its errors name

    @property
    def tile(self) -> Tile | None:
        """The tile, if one was given and not a box."""
        return self.tile_or_box if isinstance(self.tile_or_box, Tile) else None


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
    value: "Encoded | None"  #: None in the simulator
    numba_type: Any = None
    mode: str = "tiled"  #: which copy instructions take the map
    pixel_box: "PixelBox | None" = None  #: of the im2col modes

    @property
    def descriptor(self) -> "TensorMapDescriptor | None":
        """The encoded map as numba-cuda launches with it; made once, since it imports cuda.core."""
        if type(self.value) is bytes:
            self.value = descriptor_of(self.value)
        return self.value


# The device is part of the key: an address may later belong to another device, and encodings of
# different devices need not agree.
@functools.lru_cache(maxsize=4096)
def encode(
    device: int,
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    stored: Any,
    strides_in_elements: bool,
    tile_or_box: Tile | tuple[int, ...],
    *others: Any,
) -> Encoding:
    """Check every rule and encode a map.

    `address` to `strides_in_elements` are the array's `Place`, the rest the fields of `MapOptions`.
    """
    if not isinstance(tile_or_box, Tile):
        tile_or_box = as_box(tile_or_box)  # (8.0, 16) equals (8, 16) as a key, but is no box
    given = shape, strides, stored, strides_in_elements, tile_or_box, *others
    checked = None
    if address and address % _COMMON_ALIGNMENT == 0:
        checked = _checked_once(*given)
    if checked is None:
        checked = _checked(address, *given)
    shape, strides, dtype, box, copies, steps, padding, options = checked
    _, _, l2_promotion, oob_fill, _, interleave, _, overwrite_padding, _, function = options
    tile, value = copies.tile, None
    wrong = atom_violations(tile.swizzle, device) + packed_type_violations(dtype, device)
    if wrong := wrong + memory_violations(address):
        raise ValueError(say_broken(function, wrong))
    if device != SIMULATED:
        layout: tuple[Any, Any, Any, Any] = shape, strides, box, steps
        if copies.fold or copies.interleaved or copies.words > 1:
            layout = _encoded_layout(checked)
        value = encode_tiled(
            dtype.word, address, *layout, interleave, tile.swizzle, l2_promotion, oob_fill
        )
    partial = padding or ("" if overwrite_padding else partial_rows(shape, dtype, function))
    return Encoding(
        *(address, shape, strides, dtype, box, tile, l2_promotion, oob_fill, steps, interleave),
        *(copies, partial, value),
    )


def with_address(encoding: Encoding, place: Place) -> Encoding:
    """Return `encoding` for an array that differs in its address alone, or raise."""
    address, shape, strides, stored, in_elements = place
    shape, own = tuple(shape), encoding.dtype.storage.itemsize
    itemsize = storage_itemsize(stored, own)
    strides = byte_strides(shape, strides, in_elements, itemsize)
    if strides != encoding.strides:
        strides = legal_strides(shape, strides, itemsize, encoding.interleave)
    mine = encoding.dtype.storage_shape(encoding.shape), encoding.strides, own
    if (shape, strides, itemsize) != mine:
        raise ValueError(
            f"replace_address: the array has shape {shape}, strides {strides} B and {itemsize} B "
            f"per element, the map's array shape {mine[0]}, strides {mine[1]} B and {mine[2]} B; "
            "only the address can be replaced: make a new map with tensor_map"
        )
    violations = address_violations(address, itemsize, encoding.interleave)
    violations = violations or unpacked_address_violations(address, encoding.dtype)
    if violations := violations or memory_violations(address):
        raise ValueError(f"replace_address: {violations[0]}")
    value = None if encoding.value is None else replace_address(encoding.value, address)
    return replace(encoding, address=address, value=value)


def partial_rows(shape: tuple[int, ...], dtype: DType, what: str) -> str:
    """Say what a store through a map would overwrite beside the tensor; "" if nothing."""
    nbytes = dtype.nbytes(shape[-1])
    past = -nbytes % 16
    if not past:
        return ""
    whole = (nbytes + past) * 8 // dtype.bits
    if dtype.is_record:
        whole = -(-shape[-1] // dtype.chunk) * dtype.chunk
    return (
        f"a row of the tensor is {shape[-1]} {dtype} = {nbytes:,} B, and TMA stores whole chunks "
        f"of 16 B: the {past} B past each row would be overwritten; pad the rows to {whole} "
        "columns and store all of them, or, if those bytes are free to overwrite, make the map "
        f"with {what}(..., overwrite_padding=True)"
    )


# A multiple of this breaks no rule of addresses, so the next tensor like this one needs no check.
_COMMON_ALIGNMENT = 256


class _Checked(NamedTuple):
    """What `_checked` found of a map that breaks no rule."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    box: tuple[int, ...]
    copies: Copies
    element_strides: tuple[int, ...]
    padding: str  #: what a store would overwrite through the padding of the tile's slabs
    options: MapOptions


@functools.lru_cache(maxsize=1024)
def _checked_once(*given: Any) -> _Checked | None:
    """Check what does not depend on the address; None if a rule is broken."""
    try:
        return _checked(_COMMON_ALIGNMENT, *given)
    except (TypeError, ValueError):
        return None  # `_checked` raises it again, with the address


def _checked(
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    stored: Any,
    in_elements: bool,
    *others: Any,
) -> _Checked:
    """Return what the map of an array needs, or raise an error with all broken rules."""
    options = MapOptions(*others)
    check_kinds(options)
    tile, interleave = options.tile, options.interleave
    dtype, itemsize, violations = resolve_dtype(stored, options)

    stored_shape = tuple(int(extent) for extent in shape)
    rank, shape = len(stored_shape), dtype.element_shape(stored_shape)
    strides = tuple(map(int, byte_strides(stored_shape, strides, in_elements, itemsize)))
    strides = legal_strides(stored_shape, strides, itemsize, interleave)

    given = options.element_strides
    steps = (1,) * rank if given is None else as_box(given)
    wrong_steps = element_stride_violations(steps, rank, interleave)
    swizzle, wrong_options = check_options(options, dtype)
    if tile is None:
        box = extents = as_box(options.tile_or_box)
        copies = None
        what = options.function == "tensor_map"
        wrong_box = box_violations(box, dtype, swizzle, interleave, what)
        if options.fold:
            wrong_box.append(f"fold=True needs a Tile; the box {box} is one copy: leave fold out")
    else:
        known = steps if not wrong_steps and tile.ndim == rank else (1,) * tile.ndim
        fold = options.fold and not dtype.is_packed
        copies, box, wrong_box = _check_copies(tile, known, shape, interleave, fold)
        extents = _times(tile.shape, known)
    violations += tensor_violations(address, stored_shape, strides, itemsize, extents, interleave)
    if dtype.is_packed:
        violations += packed_violations(dtype, address, stored_shape, strides, swizzle)
        violations += option_violations(dtype, interleave, options.fold)
    elif dtype.words > 1:
        violations += words_violations(shape, dtype, interleave)
    elif interleave in (16, 32) and rank <= MAX_RANK:
        violations += interleave_violations(shape, strides, itemsize, extents, steps, interleave)
    violations += wrong_box + wrong_steps + wrong_options
    if violations:
        raise ValueError(
            say_broken(options.function, violations)
            + f"\nGiven: array of shape {shape}, strides {strides} B, {dtype}, at {address:#x}; "
            f"box {box}, swizzle {swizzle.name}, element_strides {steps}, l2_promotion "
            f"{options.l2_promotion}, oob_fill {options.oob_fill!r}, interleave {interleave}"
        )

    if copies is None:
        lands = tuple(-(-extent // step) for extent, step in zip(box, steps, strict=True))
        copies = copies_of(Tile(lands, dtype, swizzle))
    if interleave:
        copies = replace(copies, interleaved=True)
    padding = unpacked_store(dtype) or padding_store(copies.tile, shape)
    return _Checked(shape, strides, dtype, box, copies, steps, padding, options)


_SIZE = Rule("None or a number of bytes", lambda value: value is None or is_whole(value))
_KINDS = {
    "swizzle": Rule("None or a Swizzle", lambda value: value is None or is_whole(value)),
    "l2_promotion": _SIZE,
    "oob_fill": Rule("'zeros' or 'nan'", lambda value: not isinstance(value, list | dict | tuple)),
    "interleave": _SIZE,
    "overwrite_padding": FLAG,
    "fold": FLAG,
}


def check_kinds(options: MapOptions) -> None:
    """Raise a TypeError for an option whose value has a type that none of its values has.

    Such a value may have no hash: it is checked before it is a part of a cache's key. The values
    themselves are checked with the array.
    """
    for name, rule in _KINDS.items():
        checked(options.function, name, getattr(options, name), rule)


def option_dtype(function: str, dtype: DTypeLike | None) -> DType | None:
    """Return the element type that a map is to have; None for None."""
    try:
        return None if dtype is None else as_dtype(dtype)
    except TypeError as error:
        raise TypeError(f"{function}: {error}") from None


def as_element_strides(given: Sequence[int]) -> tuple[int, ...]:
    """Return the argument of `tensor_map` as a tuple, or raise a TypeError."""
    steps = tuple(given) if isinstance(given, Iterable) else ()
    if steps and all(map(is_whole, steps)):
        return tuple(map(int, steps))
    raise TypeError(
        f"tensor_map: element_strides is {given!r}; it is a tuple of integers, one for each axis "
        "of the array, 1 where nothing is skipped"
    )


def _encoded_layout(checked: _Checked) -> tuple[Any, Any, Any, Any]:
    """Return the shape, strides, box and element strides that the driver encodes."""
    shape, strides, _, box, copies, steps, _, _ = checked
    if copies.fold:
        shape, strides, box = (
            copies.fold_shape(shape),
            copies.fold_strides(strides),
            copies.fold_shape(box),
        )
    if not copies.interleaved:
        steps = copies.encoded_steps(steps)
        return copies.in_words(shape), strides, copies.in_words(box), steps
    # The elements of an interleaved map are the slices.
    return shape[:-1], strides[:-1], box[:-1], steps[:-1]


def _check_copies(
    tile: Tile,
    steps: tuple[int, ...],
    shape: tuple[int, ...],
    interleave: Interleave,
    fold: bool,
) -> tuple[Copies, tuple[int, ...], list[str]]:
    """Return the copies that move a tile, the box of one in the array, and the broken rules."""
    copies = Copies(tile, steps)
    violations = copies_violations(copies, interleave)
    one_box = copies.count == 1 and not violations
    if fold and not one_box and len(shape) == tile.ndim:
        whole = (*tile.shape[:-1], tile.num_slabs * tile.slab)
        violations = fold_violations(copies, shape, interleave)
        return Copies(tile, steps, fold=True), _times(whole, steps), violations
    box = _times(copies.cut, steps)
    if violations:
        box = tuple(min(extent, MAX_BOX) for extent in box)
        box = (*box[:-1], min(box[-1], MAX_BOX // tile.dtype.words))
    violations += box_violations(box, tile.dtype, tile.swizzle, interleave)
    return copies_of(tile, steps), box, violations


def _times(extents: tuple[int, ...], steps: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(extent * step for extent, step in zip(extents, steps, strict=True))


def as_box(box: Tile | Shape | int, what: str = "tensor_map") -> tuple[int, ...]:
    """Normalise a box, or name the argument."""
    try:
        return as_shape(box)  # type: ignore[arg-type]  # a Tile has no length, and raises
    except TypeError:
        raise TypeError(
            f"{what}: {box!r} is no box; give a Tile, or one int per axis of its shape"
        ) from None


def resolve_dtype(stored: object, options: MapOptions) -> tuple[DType, int, list[str]]:
    """Find the map's element type, the array's bytes per element, and what disagrees.

    `stored` is the array's element type as its library calls it.
    """
    asked, tile = options.dtype, options.tile
    if asked is None:
        try:
            return _dtype_of_tile(stored_dtype(stored), tile)
        except TypeError as error:
            raise TypeError(f"{options.function}: array {error}") from None
    own = asked.storage.itemsize
    itemsize = storage_itemsize(stored, own)
    violations = []
    if own != itemsize:
        violations.append(
            f"dtype {asked} has {own} B per element, the array's {stored} {itemsize} B; "
            "dtype renames bits of the same size: view or convert the array first"
        )
    elif asked.numpy.kind not in "iu" and contradicts(stored, asked):
        violations.append(
            f"dtype is {asked}, but the array says that it holds {stored_dtype(stored)}; dtype "
            "says what the bits of integers mean: convert the array, or leave dtype out"
        )
    if wrong := wrong_storage(stored):
        violations.append(f"array {wrong}")
    if tile and tile.dtype is not asked:
        violations.append(
            f"dtype is {asked} but the tile {tile!r}: make it Tile({tile.shape}, {asked}) or leave "
            "dtype out"
        )
    return asked, itemsize, violations


def _dtype_of_tile(own: DType, tile: Tile | None) -> tuple[DType, int, list[str]]:
    if tile is None or tile.dtype is own:
        return own, own.storage.itemsize, []
    # tf32 and the like: float32 in memory, converted by a load; unpacked types.
    if tile.dtype.numpy == own.numpy:
        return tile.dtype, own.storage.itemsize, []
    repair = f"make the tile Tile({tile.shape}, {own})"
    size = own.storage.itemsize
    if tile.dtype.storage.itemsize == size:
        repair += f', or pass dtype="{tile.dtype}" if that is what the bits are'
    return own, size, [f"tile {tile!r} holds {tile.dtype}, the array {own}: {repair}"]


_SWIZZLE_OF = {16: Swizzle.NONE, 32: Swizzle.B32}


def check_options(options: MapOptions, dtype: DType) -> tuple[Swizzle, list[str]]:
    """Find the swizzle, and what is wrong with the options for elements of `dtype`."""
    swizzle, tile, interleave = options.swizzle, options.tile, options.interleave
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
    if options.l2_promotion not in L2_PROMOTION:
        violations.append(
            f"l2_promotion is {options.l2_promotion!r}; TMA has None, 64, 128 and 256 bytes"
        )
    if options.oob_fill not in OOB_FILL:
        violations.append(f'oob_fill is {options.oob_fill!r}; TMA has "zeros" and "nan"')
    elif options.oob_fill == "nan" and not dtype.is_float:
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
    """List why the device does not have a swizzle."""
    if swizzle.atom == 16 or device < 0 or BLACKWELL.on(capability := compute_capability(device)):
        return []
    return [
        f"swizzle is {swizzle.name}, which begins with compute capability 10.0; this GPU has "
        f"{capability[0]}.{capability[1]}, where chunks have 16 B: use Swizzle.B128"
    ]


def packed_type_violations(dtype: DType, device: int) -> list[str]:
    """List why the device does not copy elements of a type."""
    if not dtype.is_packed or device < 0 or BLACKWELL.on(capability := compute_capability(device)):
        return []
    return [
        f"dtype is {dtype}, whose copies begin with compute capability 10.0; this GPU has "
        f"{capability[0]}.{capability[1]}: copy the bytes, as a map of u8"
    ]


def memory_violations(address: int) -> list[str]:
    """List why kernels on the current GPU cannot access an array."""
    return [f"array {problem}"] if (problem := misplaced(address)) else []


def say_broken(what: str, violations: list[str]) -> str:
    """Say which rules a call of `what` breaks."""
    count = "1 rule is" if len(violations) == 1 else f"{len(violations)} rules are"
    numbered = "".join(f"\n  {n}. {text}" for n, text in enumerate(violations, 1))
    return f"{what}: {count} broken:{numbered}"
