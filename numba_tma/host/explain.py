"""The text of `TensorMap.explain`."""

from numba_tma.host.encoding import Encoding
from numba_tma.host.layout import MAX_BOX, Swizzle
from numba_tma.host.tensor_map_rules import stride_unit


def explain(encoding: Encoding) -> str:
    """Return the copies, their shared memory, and the rules that the array meets, axis by axis."""
    e = encoding
    rows = [
        ("tile", f"{e.tile}: a load brings {e.tile.nbytes:,} B to its barrier"),
        ("shared", _shared(e)),
        ("copies", _copies(e)),
        ("swizzle", _swizzle(e)),
        ("outside", f"a load reads {e.oob_fill}; a store writes nothing"),
        ("stores", f"not compiled: {e.partial_rows}" if e.partial_rows else "allowed"),
        ("L2", f"fetches at least {e.l2_promotion} B" if e.l2_promotion else "no promotion"),
    ]
    if e.interleave:
        slices = "the last axis is a slice, and a copy takes one along axis 1"
        rows.append(("interleave", f"{e.interleave} B: {slices}"))
    unit = stride_unit(e.interleave)
    rules = [(f"axis {axis}", _axis(e, axis)) for axis in range(len(e.shape))]
    rules.append(("address", f"{e.address:#x}, a multiple of {unit} B"))
    head = f"TensorMap of {e.dtype}, shape {e.shape}, strides {e.strides} B"
    return "\n".join([head, *_table(rows), "rules met", *_table(rules)])


def _table(rows: list[tuple[str, str]]) -> list[str]:
    return [f"  {name:<10} {text}" for name, text in rows]


def _shared(e: Encoding) -> str:
    tile = e.tile
    text = f"{tile.shared_nbytes:,} B, aligned to {tile.alignment:,} B"
    if tile.num_slabs > 1:
        text += (
            f"; {tile.num_slabs} slabs of {tile.slab} columns, {tile.slab_nbytes:,} B from one to "
            "the next"
        )
    elif tile.shared_nbytes > tile.nbytes:
        text += f"; rows of {tile.nbytes // (tile.size // tile.shape[-1])} B, {tile.pitch} B apart"
    return text


def _copies(e: Encoding) -> str:
    copies = e.copies
    if e.pixel_box is not None:
        pixels, channels = e.tile.shape
        return f"1 of {pixels} base pixels, along the inner axes first, {channels} channels each"
    box = copies.box
    words = f", encoded in words of {box.dtype}" if copies.words > 1 else ""
    if copies.fold:
        return (
            f"1, folded: the box {box.shape} of an array of shape "
            f"{copies.in_words(copies.fold_shape(e.shape))}, {box.nbytes:,} B{words}"
        )
    count = copies.count
    if e.mode == "gather":
        rows, columns = box.shape
        return (
            f"{count} of {rows} rows of {columns} columns each, by the rows' numbers; on GPUs "
            f"without gather4 {count * rows} of one row"
        )
    if count == 1:
        return f"1 of the box {e.box}, {box.nbytes:,} B{words}"
    offsets = ", ".join(f"{offset:,}" for offset, _ in copies.starts[:4]) + ", ..." * (count > 4)
    return (
        f"{count} of the box {e.box}, {box.nbytes:,} B each, to {offsets} B in shared memory{words}"
    )


def _swizzle(e: Encoding) -> str:
    swizzle = e.tile.swizzle
    if swizzle is Swizzle.NONE:
        return "NONE: rows lie as they are"
    chunks = swizzle.span // swizzle.atom
    return (
        f"{swizzle.name}: chunk c of {swizzle.atom} B in line r of 128 B lies at c ^ (r % {chunks})"
    )


def _axis(e: Encoding, axis: int) -> str:
    inner, dtype = axis == len(e.shape) - 1, e.dtype
    terms = [f"{e.shape[axis]:,} elements (1 to 2**32)"]
    if inner:
        size = f"{dtype.bits} bits" if dtype.is_packed else f"{dtype.itemsize} B"
        terms.append(f"contiguous ({size})")
    else:
        unit = stride_unit(e.interleave)
        terms.append(f"stride {e.strides[axis]:,} B (a multiple of {unit}, below 2**40)")
    if e.pixel_box is not None:
        return ", ".join(terms + _pixels(e, axis))
    step, box, copies = e.element_strides[axis], e.box[axis], e.copies
    if step > 1:
        terms.append(f"element stride {step} (1 to 8)")
    if inner and copies.fold:
        terms.append(f"{box // copies.part} parts of {copies.part} (1 to {MAX_BOX} each)")
        box = copies.part
    else:
        terms.append(f"box {box} (1 to {MAX_BOX // copies.words if inner else MAX_BOX})")
    if inner and e.interleave is None:
        nbytes, swizzle = dtype.shared_nbytes(box), e.tile.swizzle
        span = "" if swizzle is Swizzle.NONE else f", at most {swizzle.span}"
        terms.append(f"{nbytes} B (a multiple of 16{span})")
        unit = copies.part if copies.fold else dtype.coordinate_unit
        terms.append(f"coordinates in multiples of {unit}")
    return ", ".join(terms)


def _pixels(e: Encoding, axis: int) -> list[str]:
    """Say what a copy of columns of pixels takes along an axis."""
    assert e.pixel_box is not None
    if axis == 0:
        return []
    if axis == len(e.shape) - 1:
        channels = e.tile.shape[1]
        return [
            f"{channels} channels (1 to 256)",
            f"{channels * e.tile.itemsize} B (a multiple of 16)",
            f"coordinates in multiples of {16 // e.tile.itemsize}",
        ]
    lower, upper = e.pixel_box.lower[axis - 1], e.pixel_box.upper[axis - 1]
    step = e.pixel_box.stride[axis - 1]
    return [f"base pixels from {lower} to {e.shape[axis] + upper - 1} in steps of {step}"]
