"""The shape of a tcgen05 product: its instruction descriptor decoded, and what follows from it."""

from __future__ import annotations

import functools
from typing import NamedTuple

from numba_tma.host.tcgen05_descriptor import (
    InstructionDescriptor,
    decode_instruction_descriptor,
)
from numba_tma.host.tcgen05_rules import FORMS, ProductForm, legal_m, legal_n
from numba_tma.simulator.errors import BadOperand

#: Blocks of a scaled kind by PTX's older name: elements of a scale factor.
_VECTORS = {
    "mxf8f6f4": {"1X": "block32"},
    "mxf4": {"2X": "block32"},
    "mxf4nvf4": {"2X": "block32", "4X": "block16"},
}


class ProductShape(NamedTuple):
    """A product that the hardware has: what its descriptor says, its K, and its scale factors."""

    says: InstructionDescriptor
    k: int
    scales: int  #: factors of a row; 0 for kinds without


@functools.lru_cache(maxsize=256)
def product_shape(
    kind: str, idesc: int, cta_group: int, *, ws: bool, block: str | None
) -> ProductShape:
    """Decode an instruction descriptor; raise BadOperand if there is no such product."""
    what = f"tcgen05_mma kind::{kind}"
    try:
        says = decode_instruction_descriptor(idesc, kind)
    except ValueError as error:
        raise BadOperand(f"{what}: {error}") from None
    form = _form(what, says)
    rows = legal_m(form, cta_group, ws, says.sparse)
    if says.m not in rows:
        raise BadOperand(
            f"{what}: idesc {idesc:#010x} says M {says.m}; with cta_group {cta_group}"
            f"{' and .ws' if ws else ''} it is {' or '.join(map(str, rows)) or 'none'}"
        )
    columns = legal_n(form, says.m, cta_group, ws, says.sparse)
    if says.n not in columns:
        raise BadOperand(
            f"{what}: idesc {idesc:#010x} says N {says.n}; with cta_group {cta_group}"
            f"{' and .ws' if ws else ''} and M {says.m} it is {', '.join(map(str, columns))}"
        )
    if says.k96:
        raise NotImplementedError(
            f"{what}: a K of 96 (sm_103a) is not simulated: the places of its scale factors and "
            "of its rows of 48 B are documented in figures alone"
        )
    if says.max_shift and not ws:
        raise BadOperand(
            f"{what}: idesc {idesc:#010x} says max_shift {says.max_shift}; only the .ws form "
            "shifts columns of B"
        )
    return ProductShape(says, form.k, _scales(what, says, form, block))


def _form(what: str, says: InstructionDescriptor) -> ProductForm:
    """Return the row of the table of legal products."""
    for form in FORMS:
        names = {name.removesuffix("_unpacked") for name in form.operands}
        if form.kind == says.kind and {says.a, says.b} <= names and says.d in form.accumulators:
            return form
    raise BadOperand(
        f"{what}: there is no {says.a} x {says.b} -> {says.d}; the kind multiplies "
        + "; ".join(str(form) for form in FORMS if form.kind == says.kind)
    )


def _scales(what: str, says: InstructionDescriptor, form: ProductForm, block: str | None) -> int:
    """Return the number of scale factors of a row."""
    if not form.scales:
        if block is not None:
            raise BadOperand(f"{what}: {block} is for kinds with scale factors")
        return 0
    vectors = _VECTORS[says.kind]
    if block is None and says.kind != "mxf4nvf4":
        block = "block32"
    name = vectors.get(str(block).removeprefix("scale_vec::"), block)
    if name not in vectors.values():
        legal = [*vectors.values(), *(f"scale_vec::{vector}" for vector in vectors)]
        raise BadOperand(f"{what}: the block of its scale factors is {block}: use one of {legal}")
    if name == "block32" and says.scale_type != "ue8m0":
        raise BadOperand(
            f"{what}: idesc says scale factors of {says.scale_type}; those of 32 elements are ue8m0"
        )
    scales = form.k // (16 if name == "block16" else 32)
    for operand, first in (("A", says.scale_a_id), ("B", says.scale_b_id)):
        if first % scales or first + scales > 4:
            raise BadOperand(
                f"{what}: idesc says that the scale factors of {operand} begin at byte {first}; of "
                f"{scales} a row, that is a multiple of {scales} below 4"
            )
    return scales
