"""Every rule of cuTensorMapEncodeTiled for the tensor, each with the repair.

`layout.box_violations` has the rules for the box.
"""

import math

from numba_tma.host.dtypes import DType
from numba_tma.host.layout import MAX_RANK

MAX_EXTENT = 1 << 32
STRIDE_LIMIT = 1 << 40
MAX_ELEMENT_STRIDE = 8


def stride_unit(interleave: int | None) -> int:
    """Return the bytes of which the base address and every outer stride must be a multiple."""
    return 32 if interleave == 32 else 16


def legal_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, interleave: int | None
) -> tuple[int, ...]:
    """Return the strides with legal ones for axes of extent 1, where libraries leave any number."""
    unit = stride_unit(interleave)
    legal, packed = list(strides), itemsize
    for axis in reversed(range(len(shape))):
        if shape[axis] == 1:
            if axis == len(shape) - 1:
                legal[axis] = itemsize
            elif not 0 <= strides[axis] < STRIDE_LIMIT or strides[axis] % unit:
                legal[axis] = min(-(-packed // unit) * unit, STRIDE_LIMIT - unit)
        packed = legal[axis] * shape[axis]
    return tuple(legal)


def tensor_violations(
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    itemsize: int,
    box: tuple[int, ...] | None,
    interleave: int | None,
) -> list[str]:
    """List the broken rules of a tensor whose strides are those of `legal_strides`.

    `box` is None if the map has no box with the tensor's axes.
    """
    rank = len(shape)
    if not 1 <= rank <= MAX_RANK:
        repair = "array.reshape(1)" if rank == 0 else "merge axes with array.reshape or index some"
        return [f"array has rank {rank}; TMA takes 1 to {MAX_RANK}: {repair}"]
    violations = []
    if box is not None and len(box) != rank:
        repair = (
            f"e.g. {(1,) * (rank - len(box)) + box}"
            if len(box) < rank
            else f"e.g. {box[len(box) - rank :]}, or array[None]"
        )
        violations.append(
            f"box {box} has rank {len(box)}, the array {rank}; give one extent per axis of the "
            f"array: {repair}"
        )
    for axis, extent in enumerate(shape):
        if extent < 1:
            violations.append(
                f"axis {axis} has {extent} elements; TMA needs 1 to 2**32: skip empty arrays"
            )
        elif extent > MAX_EXTENT:
            violations.append(
                f"axis {axis} has {extent} elements; TMA takes 1 to 2**32: make "
                f"{-(-extent // MAX_EXTENT)} maps of parts of the array"
            )
    if 0 not in shape:  # empty arrays have no memory, and any strides
        violations += address_violations(address, itemsize, interleave)
        violations += _stride_violations(shape, strides, itemsize, box or (), interleave)
    return violations


def interleave_violations(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    itemsize: int,
    box: tuple[int, ...],
    element_strides: tuple[int, ...],
    interleave: int,
) -> list[str]:
    """List the broken rules of a tensor of slices, (images, slices, ..., pixels, slice).

    The elements of the encoded map are the slices, so it lacks the last axis. An H200 copies one
    slice of the channels, whatever the box says.
    """
    rank, slice_extent = len(shape), interleave // itemsize
    if not 4 <= rank <= MAX_RANK:
        return [
            f"array has rank {rank}; interleave={interleave} takes slices of {interleave} B, "
            f"(images, slices, pixels, {slice_extent}) or (images, slices, rows, pixels, "
            f"{slice_extent}): cut the channels into slices with reshape and transpose"
        ]
    last, pixels, unit = rank - 1, rank - 2, 16 // itemsize
    violations = []
    if shape[last] != slice_extent:
        violations.append(
            f"axis {last} has {shape[last]} elements = {shape[last] * itemsize} B; "
            f"interleave={interleave} takes slices of {interleave} B there: {slice_extent} elements"
        )
    if strides[pixels] != interleave:
        violations.append(
            f"axis {pixels} stride is {strides[pixels]} B; interleave={interleave} needs slices "
            f"that follow each other, {interleave} B apart"
        )
    if len(box) != rank or len(element_strides) != rank:
        return violations
    if box[last] != slice_extent:
        violations.append(
            f"box axis {last} is {box[last]}; interleaved copies take whole slices: use "
            f"{slice_extent}"
        )
    if box[1] != 1:
        violations.append(
            f"box axis 1 is {box[1]}; an interleaved copy takes one slice of the channels: use 1, "
            "and a copy for each"
        )
    if box[pixels] % unit:
        violations.append(
            f"box axis {pixels} is {box[pixels]} slices; TMA needs a multiple of {unit}: use "
            f"{-(-box[pixels] // unit) * unit}"
        )
    if element_strides[last] != 1:
        violations.append(f"axis {last} element stride is {element_strides[last]}; use 1")
    return violations


def words_violations(shape: tuple[int, ...], dtype: DType, interleave: int | None) -> list[str]:
    """List the broken rules of a tensor whose elements have several words."""
    violations, words = [], dtype.words
    if shape and MAX_EXTENT < shape[-1] * words <= MAX_EXTENT * words:
        inner = len(shape) - 1
        violations.append(
            f"axis {inner} has {shape[inner]} {dtype} of {words} words; TMA takes 1 to 2**32 "
            f"words: make {-(-shape[inner] * words // MAX_EXTENT)} maps of parts of the array"
        )
    if interleave is not None:
        violations.append(
            f"interleave={interleave} is not modelled for {dtype}: leave interleave out, or view "
            f"the array as {dtype.word.numpy}"
        )
    return violations


def element_stride_violations(
    element_strides: tuple[int, ...], rank: int, interleave: int | None
) -> list[str]:
    """List the broken rules of the element strides, one for each axis."""
    if len(element_strides) != rank:
        return [
            f"element_strides {element_strides} has length {len(element_strides)}, the array "
            f"rank {rank}; give one per axis, 1 where nothing is skipped"
        ]
    violations = []
    for axis, step in enumerate(element_strides):
        if not 1 <= step <= MAX_ELEMENT_STRIDE:
            violations.append(
                f"axis {axis} element stride is {step}; TMA takes 1 to {MAX_ELEMENT_STRIDE}: "
                + ("use 1" if step < 1 else f"view the array with every {step}th element, step 1")
            )
        elif axis == rank - 1 and step != 1 and interleave is None:
            violations.append(
                f"axis {axis} element stride is {step}; TMA ignores it along the innermost axis: "
                f"use 1, and skip elements when the kernel reads the tile"
            )
    return violations


def address_violations(address: int, itemsize: int, interleave: int | None) -> list[str]:
    """List the broken rules of the base address."""
    if address == 0:
        return [
            "array address is 0; its memory was freed or never allocated: make the map while the "
            "array is alive"
        ]
    unit = stride_unit(interleave)
    past = address % unit
    if not past:
        return []
    repair = "copy the array to memory of its own"
    if past % itemsize == 0:
        repair = (
            f"start the view earlier by {past // itemsize} or later by "
            f"{(unit - past) // itemsize} elements, or {repair}"
        )
    return [
        f"array address is {address:#x}, {past} B past a multiple of {unit} B; TMA needs the "
        f"multiple: {repair}"
    ]


def _stride_violations(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    itemsize: int,
    box: tuple[int, ...],
    interleave: int | None,
) -> list[str]:
    inner, unit = len(shape) - 1, stride_unit(interleave)
    violations = []
    outer = list(range(inner))
    if strides[inner] != itemsize and strides[inner] >= 0:
        contiguous = [axis for axis in outer if strides[axis] == itemsize]
        if contiguous:
            # After the repair this axis is the innermost, and the present innermost an outer one.
            outer = [axis for axis in range(inner + 1) if axis != contiguous[-1]]
        violations.append(
            f"axis {inner} stride is {strides[inner]} B, its elements have {itemsize} B; TMA needs "
            f"a contiguous innermost axis: {_transpose_repair(contiguous, strides, box)}"
        )
    for axis in range(inner + 1):
        stride = strides[axis]
        if stride < 0:
            flip = ", ".join(":" if i != axis else "::-1" for i in range(inner + 1))
            violations.append(
                f"axis {axis} stride is {stride} B; TMA only walks forward: pass array[{flip}] and "
                "count the coordinate from the other end"
            )
        elif axis not in outer:
            continue
        elif stride >= STRIDE_LIMIT:
            violations.append(
                f"axis {axis} stride is {stride} B; TMA needs less than 2**40: make one map per "
                f"index of axis {axis}"
            )
        elif stride % unit:
            violations.append(
                f"axis {axis} stride is {stride} B; TMA needs a multiple of {unit} B: "
                + _padding_repair(axis, shape, strides, itemsize, unit, outer)
            )
    return violations


def _transpose_repair(contiguous: list[int], strides: tuple[int, ...], box: tuple[int, ...]) -> str:
    rank = len(strides)
    if not contiguous:
        return "copy the array, e.g. with ascontiguousarray"
    axis = contiguous[-1]
    order = [i for i in range(rank) if i != axis] + [axis]
    if list(strides) == sorted(strides):
        order = list(reversed(range(rank)))
    view = f"array.transpose({', '.join(map(str, order))}), in torch array.permute,"
    repair = f"axis {axis} is the contiguous one, so pass {'array.T' if rank == 2 else view}"
    if len(box) == rank:
        repair += f" with the box {tuple(box[i] for i in order)} and coordinates in that order"
    return repair


def _padding_repair(
    axis: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    itemsize: int,
    unit: int,
    outer: list[int],
) -> str:
    inner = len(strides) - 1
    padded = -(-strides[axis] // unit) * unit
    if inner in outer:
        return f"after the transposition, pad it to {padded} B"
    row = min((i for i in outer if strides[i] > 0), key=lambda i: strides[i])
    if strides[row] < shape[inner] * itemsize:
        return "its rows overlap, so copy them apart, e.g. with ascontiguousarray"
    if axis == row:
        whole = math.lcm(unit, itemsize)
        return f"pad axis {inner} to {-(-strides[axis] // whole) * whole // itemsize} columns"
    if strides[row] % unit:
        return f"padding axis {inner} as for axis {row} repairs this too"
    return f"lay the array out with {padded} B there"
