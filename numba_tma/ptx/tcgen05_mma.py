"""tcgen05.mma without scale factors: D = A B or D += A B, with D in tensor memory.

One thread issues a product; with `cta_group` 2 one thread of the pair, for both blocks. `idesc`
says types, shape and majors (`numba_tma.host.tcgen05_rules` derives it), `b` and a shared `a` are
descriptors (`MatrixLayout`). Products of one thread with the same accumulator, shape and kind are
executed in the order of issue. They are asynchronous: `tcgen05_commit` arrives when they are
complete. Until then the operands must not be modified. The rows have been assembled, and have run
on no GPU. The simulator executes them, except `ashift`, and sparse products of 64 rows or of a pair
with 128.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from numba_tma import simulator
from numba_tma.host.architectures import TCGEN05, TCGEN05_I8, TCGEN05_SCALE_D
from numba_tma.ptx._instruction import (
    Predicate,
    ScaleExponent,
    TensorMemoryAddress,
    assembled_only,
    instruction,
    u32,
    u32x4group,
    u64,
)
from numba_tma.ptx.tcgen05 import CtaGroup

__all__ = [
    "tcgen05_mma", "tcgen05_mma_tmem", "tcgen05_mma_sp", "tcgen05_mma_sp_tmem",
]  # fmt: skip

#: Types of A and B, which `idesc` narrows down.
PlainKind: TypeAlias = Literal["f16", "tf32", "f8f6f4", "i8"]
#: What the buffer of A does: a hint that a following product with the same A reuses.
CollectorA: TypeAlias = Literal["fill", "use", "lastuse", "discard"]
#: With the rows of A one down.
Shift: TypeAlias = Literal["ashift"]

_SINCE = {"i8": ((8, 6), TCGEN05_I8), "scale_input_d": ((8, 6), TCGEN05_SCALE_D)}
_APART = (("scale_input_d", "f8f6f4"), ("scale_input_d", "i8"))
_SHIFTED = (*_APART, ("ashift", "fill"), ("ashift", "use"))


@instruction(
    "tcgen05.mma.cta_group::{cta_group}.kind::{kind}"
    "<collector:.collector::a::{collector}>"
    " [{d}], {a}, {b}, {idesc}"
    "<disable_output_lane:, {disable_output_lane}>, {enable_input_d}"
    "<scale_input_d:, {scale_input_d}>;",
    isa=(8, 6),
    sm=TCGEN05,
    since=_SINCE,
    apart=_APART,
)
def tcgen05_mma(
    d: TensorMemoryAddress,
    a: u64,
    b: u64,
    idesc: u32,
    enable_input_d: Predicate,
    kind: PlainKind,
    cta_group: CtaGroup,
    collector: CollectorA | None = None,
    disable_output_lane: u32x4group | None = None,
    scale_input_d: ScaleExponent | None = None,
) -> None:
    """Start to multiply A and B from shared memory into tensor memory.

    D = A B, or D += A B if `enable_input_d`, with D at `d`. A set bit i mod 32 of word i / 32 of
    `disable_output_lane` leaves lane i of D as it is; the lanes of both blocks count with
    `cta_group` 2. `scale_input_d`, a literal, divides D by 2 to its power before the sum; kinds f16
    and tf32 have it. Executed by one thread. Reads shared memory by the async proxy:
    `fence_proxy_async` orders a thread's own writes before it.
    """
    simulator.tcgen05_mma(
        kind, d, a, b, idesc, enable_input_d, a_in_tmem=False, cta_group=cta_group,
        mask=disable_output_lane, scale_d=scale_input_d, collector=collector,
    )  # fmt: skip


@instruction(
    "tcgen05.mma.cta_group::{cta_group}.kind::{kind}<ashift:.{ashift}>"
    "<collector:.collector::a::{collector}>"
    " [{d}], [{a}], {b}, {idesc}"
    "<disable_output_lane:, {disable_output_lane}>, {enable_input_d}"
    "<scale_input_d:, {scale_input_d}>;",
    isa=(8, 6),
    sm=TCGEN05,
    since=_SINCE,
    apart=_SHIFTED,
)
def tcgen05_mma_tmem(
    d: TensorMemoryAddress,
    a: TensorMemoryAddress,
    b: u64,
    idesc: u32,
    enable_input_d: Predicate,
    kind: PlainKind,
    cta_group: CtaGroup,
    collector: CollectorA | None = None,
    ashift: Shift | None = None,
    disable_output_lane: u32x4group | None = None,
    scale_input_d: ScaleExponent | None = None,
) -> None:
    """Start to multiply A from tensor memory and B from shared memory.

    A lies K-major in the lanes of its rows of D, in cells of 32 bits. `ashift` shifts the rows of A
    down by one, with M 128 or 256. All else is as for `tcgen05_mma`.
    """
    if ashift is not None:
        assembled_only("tcgen05_mma_tmem", " or leave ashift out")
    simulator.tcgen05_mma(
        kind, d, a, b, idesc, enable_input_d, a_in_tmem=True, cta_group=cta_group,
        mask=disable_output_lane, scale_d=scale_input_d, collector=collector,
    )  # fmt: skip


@instruction(
    "tcgen05.mma.sp.cta_group::{cta_group}.kind::{kind}"
    "<collector:.collector::a::{collector}>"
    " [{d}], {a}, {b}, [{sparse_metadata}], {idesc}"
    "<disable_output_lane:, {disable_output_lane}>, {enable_input_d}"
    "<scale_input_d:, {scale_input_d}>;",
    isa=(8, 6),
    sm=TCGEN05,
    since=_SINCE,
    apart=_APART,
)
def tcgen05_mma_sp(
    d: TensorMemoryAddress,
    a: u64,
    b: u64,
    sparse_metadata: TensorMemoryAddress,
    idesc: u32,
    enable_input_d: Predicate,
    kind: PlainKind,
    cta_group: CtaGroup,
    collector: CollectorA | None = None,
    disable_output_lane: u32x4group | None = None,
    scale_input_d: ScaleExponent | None = None,
) -> None:
    """Start to multiply a sparse A and B, both from shared memory.

    A has the stored half of its elements: K of the instruction is twice as long. `sparse_metadata`
    is the address of tensor memory that says which half: 4 bits for each 4 elements of a row (2 of
    tf32), the places of the two stored ones, lower bits first. For types of 8 bits and fewer a row
    has 64 bits in its lane. For the others 16 rows have two halves of 16 bits in their lanes, and
    `idesc` selects the first or second column. All else is as for `tcgen05_mma`.
    """
    simulator.tcgen05_mma(
        kind, d, a, b, idesc, enable_input_d, a_in_tmem=False, cta_group=cta_group,
        mask=disable_output_lane, scale_d=scale_input_d,
        sparse_metadata=sparse_metadata, collector=collector,
    )  # fmt: skip


@instruction(
    "tcgen05.mma.sp.cta_group::{cta_group}.kind::{kind}<ashift:.{ashift}>"
    "<collector:.collector::a::{collector}>"
    " [{d}], [{a}], {b}, [{sparse_metadata}], {idesc}"
    "<disable_output_lane:, {disable_output_lane}>, {enable_input_d}"
    "<scale_input_d:, {scale_input_d}>;",
    isa=(8, 6),
    sm=TCGEN05,
    since=_SINCE,
    apart=_SHIFTED,
)
def tcgen05_mma_sp_tmem(
    d: TensorMemoryAddress,
    a: TensorMemoryAddress,
    b: u64,
    sparse_metadata: TensorMemoryAddress,
    idesc: u32,
    enable_input_d: Predicate,
    kind: PlainKind,
    cta_group: CtaGroup,
    collector: CollectorA | None = None,
    ashift: Shift | None = None,
    disable_output_lane: u32x4group | None = None,
    scale_input_d: ScaleExponent | None = None,
) -> None:
    """Start to multiply a sparse A from tensor memory and B from shared memory.

    `sparse_metadata` is as for `tcgen05_mma_sp`, `ashift` as for `tcgen05_mma_tmem`. All else is as
    for `tcgen05_mma`.
    """
    if ashift is not None:
        assembled_only("tcgen05_mma_sp_tmem", " or leave ashift out")
    simulator.tcgen05_mma(
        kind, d, a, b, idesc, enable_input_d, a_in_tmem=True, cta_group=cta_group,
        mask=disable_output_lane, scale_d=scale_input_d,
        sparse_metadata=sparse_metadata, collector=collector,
    )  # fmt: skip
