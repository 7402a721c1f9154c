"""The instruction descriptor of tcgen05.mma: 32 bits that say types, shape and majors of a product.

The fields depend on the kind. `InstructionDescriptor` names them, `instruction_descriptor` encodes
one, and `decode_instruction_descriptor` reads it bit by bit, as the hardware does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

#: Codes of the types of A and B, by kind. 4-bit elements have one code, packed or not.
OPERAND_CODES: Mapping[str, Mapping[str, int]] = {
    "f16": {"f16": 0, "bf16": 1},
    "tf32": {"tf32": 2},
    "f8f6f4": {"e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5},
    "i8": {"u8": 0, "i8": 1},
    "mxf8f6f4": {"e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5},
    "mxf4": {"e2m1": 1},
    "mxf4nvf4": {"e2m1": 1},
}
#: Kinds whose operands have scale factors. Their accumulators are f32, which no field says.
SCALED = ("mxf8f6f4", "mxf4", "mxf4nvf4")

_ACCUMULATOR_CODES = {"f16": 0, "f32": 1, "i32": 2}
_MAJOR_CODES = {"K": 0, "MN": 1}
_SCALE_CODES = {"ue4m3": 0, "ue8m0": 1}
_SHIFT_CODES = {0: 0, 8: 1, 16: 2, 32: 3}

# First bit and number of bits of each field.
_COMMON = {"sparse": (2, 1), "a": (7, 3), "n": (17, 6)}
_SIGNS = {"negate_a": (13, 1), "negate_b": (14, 1)}
_MAJORS = {"a_major": (15, 1), "b_major": (16, 1)}
_SCALES = {"scale_b_id": (4, 2), "scale_type": (23, 1), "m": (27, 2), "scale_a_id": (29, 2)}
_PLAIN_FIELDS = {
    **_COMMON,
    **_MAJORS,
    "selector": (0, 2),
    "d": (4, 2),
    "b": (10, 3),
    "m": (24, 5),
    "max_shift": (30, 2),
}
_MXF4_FIELDS = {**_COMMON, **_SIGNS, **_SCALES, "b": (10, 2), "k96": (31, 1)}
_FIELDS = {
    "f16": {**_PLAIN_FIELDS, **_SIGNS},
    "tf32": {**_PLAIN_FIELDS, **_SIGNS},
    "f8f6f4": {**_PLAIN_FIELDS, **_SIGNS},
    "i8": {**_PLAIN_FIELDS, "saturate": (3, 1)},
    "mxf8f6f4": {**_COMMON, **_MAJORS, **_SIGNS, **_SCALES, "b": (10, 3)},
    "mxf4": _MXF4_FIELDS,
    "mxf4nvf4": _MXF4_FIELDS,
}


@dataclass(frozen=True)
class InstructionDescriptor:
    """What an instruction descriptor says.

    Parameters
    ----------
    kind
        ``"f16"``, ``"tf32"``, ``"f8f6f4"``, ``"i8"``, ``"mxf8f6f4"``, ``"mxf4"``, ``"mxf4nvf4"``.
    m, n
        Extents of the product, of both blocks of a pair.
    a, b, d
        Element types by name; ``d`` is f16, f32 or i32.
    a_major, b_major
        ``"K"`` or ``"MN"``.
    negate_a, negate_b
        Whether elements change their sign.
    sparse, selector
        Whether half of A is left out; which part of the metadata says what.
    saturate
        Whether sums of integers stop at the ends of i32, where they wrap otherwise.
    scale_type, scale_a_id, scale_b_id
        Of a scaled kind: the type of scale factors, and the first byte of each cell that is used.
    k96
        Whether K of mxf4 and mxf4nvf4 is 96, and not 64.
    max_shift
        Of ``.ws``: the most columns by which a zero-column mask moves B: 0, 8, 16 or 32.
    """

    kind: str
    m: int
    n: int
    a: str
    b: str
    d: str = "f32"
    a_major: str = "K"
    b_major: str = "K"
    negate_a: bool = False
    negate_b: bool = False
    sparse: bool = False
    selector: int = 0
    saturate: bool = False
    scale_type: str | None = None
    scale_a_id: int = 0
    scale_b_id: int = 0
    k96: bool = False
    max_shift: int = 0


def instruction_descriptor(description: InstructionDescriptor) -> int:
    """Return the 32 bits of a description.

    Raises
    ------
    ValueError
        When the kind has no field or no code for a value; the message says which it has.
    """
    places = _places(description.kind)
    bits = 0
    for field in fields(description):
        if field.name == "kind":
            continue
        value = getattr(description, field.name)
        if field.name in places:
            first, width = places[field.name]
            bits |= _encoded(description.kind, field.name, value, width) << first
        elif value != _implied(description.kind, field.name):
            raise ValueError(
                f"{field.name} is {value!r}: the instruction descriptor of kind "
                f"{description.kind} does not have it; leave it out"
            )
    return bits


def decode_instruction_descriptor(idesc: int, kind: str) -> InstructionDescriptor:
    """Return what 32 bits say to a kind of product.

    Raises
    ------
    ValueError
        When bits are set that the kind does not have, or a field has no meaning.
    """
    places = _places(kind)
    known = sum((1 << width) - 1 << first for first, width in places.values())
    if idesc & ~known or idesc < 0:
        unknown = [bit for bit in range(64) if idesc & ~known & (1 << bit)]
        raise ValueError(
            f"idesc is {idesc:#010x}: bits {', '.join(map(str, unknown))} are reserved in the "
            f"descriptor of kind {kind} and must be 0"
        )
    values: dict[str, Any] = {
        name: _decoded(idesc, kind, name, idesc >> first & ((1 << width) - 1))
        for name, (first, width) in places.items()
    }
    return InstructionDescriptor(kind=kind, **values)


def _places(kind: str) -> dict[str, tuple[int, int]]:
    if kind not in OPERAND_CODES:
        raise ValueError(f"kind is {kind!r}: use one of {', '.join(OPERAND_CODES)}")
    return _FIELDS[kind]


def _implied(kind: str, name: str) -> object:
    """Return the value of a field that a kind does not have."""
    if name == "d":
        return "f32"
    defaults = {field.name: field.default for field in fields(InstructionDescriptor)}
    return defaults[name]


def _codes(kind: str, name: str) -> dict[Any, int] | None:
    """Return the codes of a field's values; None for a field that is a number."""
    tables: dict[str, Mapping[Any, int]] = {
        "a": OPERAND_CODES[kind],
        "b": OPERAND_CODES[kind],
        "d": _ACCUMULATOR_CODES,
        "a_major": _MAJOR_CODES,
        "b_major": _MAJOR_CODES,
        "scale_type": _SCALE_CODES,
        "max_shift": _SHIFT_CODES,
    }
    return dict(tables[name]) if name in tables else None


def _unit(kind: str, name: str) -> int:
    """Return the number of rows or columns that a field counts."""
    if name == "m":
        return 128 if kind in SCALED else 16
    return 8 if name == "n" else 1


def _encoded(kind: str, name: str, value: object, width: int) -> int:
    codes = _codes(kind, name)
    if codes is not None:
        if value not in codes:
            raise ValueError(
                f"{name} is {value!r}: the instruction descriptor of kind {kind} has a code for "
                f"{', '.join(map(repr, codes))}"
            )
        return codes[value]
    unit = _unit(kind, name)
    count, rest = divmod(int(value), unit)  # type: ignore[call-overload]
    if rest or not 0 <= count < 1 << width:
        raise ValueError(
            f"{name} is {value!r}: its field in the instruction descriptor of kind {kind} holds "
            f"multiples of {unit} up to {((1 << width) - 1) * unit}"
        )
    return int(count)


def _decoded(idesc: int, kind: str, name: str, bits: int) -> object:
    codes = _codes(kind, name)
    if codes is not None:
        found = [value for value, code in codes.items() if code == bits]
        if not found:
            raise ValueError(
                f"idesc is {idesc:#010x}: its field {name} is {bits}, and kind {kind} has "
                + ", ".join(f"{code} ({value})" for value, code in codes.items())
            )
        return found[0]
    value = bits * _unit(kind, name)
    default = {field.name: field.default for field in fields(InstructionDescriptor)}[name]
    return bool(value) if isinstance(default, bool) else value
