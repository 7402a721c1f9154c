"""tcgen05.mma.ws: products whose B stays in the tensor cores (weight stationary).

Four buffers of B, b0 to b3, keep B for following products with the same B. Shapes are M 32, 64 or
128 and N 64, 128 or 256. A block acts alone. All else is as for `tcgen05_mma`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from numba_tma import simulator
from numba_tma.host.architectures import TCGEN05, TCGEN05_I8
from numba_tma.ptx._instruction import (
    Predicate,
    TensorMemoryAddress,
    instruction,
    u32,
    u64,
)
from numba_tma.ptx.tcgen05_mma import PlainKind

__all__ = [
    "tcgen05_mma_ws", "tcgen05_mma_ws_tmem", "tcgen05_mma_ws_sp", "tcgen05_mma_ws_sp_tmem",
]  # fmt: skip

#: A buffer of B.
BufferB: TypeAlias = Literal["b0", "b1", "b2", "b3"]
#: What the buffer does: a hint that a following product with the same B reuses.
CollectorB: TypeAlias = Literal["discard", "fill", "use", "lastuse"]

_SINCE = {"i8": ((8, 6), TCGEN05_I8)}


@instruction(
    "tcgen05.mma.ws.cta_group::1.kind::{kind}.collector::{buffer}::{collector}"
    " [{d}], {a}, {b}, {idesc}, {enable_input_d}"
    "<zero_column_mask:, {zero_column_mask}>;",
    isa=(8, 6),
    sm=TCGEN05,
    since=_SINCE,
)
def tcgen05_mma_ws(
    d: TensorMemoryAddress,
    a: u64,
    b: u64,
    idesc: u32,
    enable_input_d: Predicate,
    kind: PlainKind,
    buffer: BufferB,
    collector: CollectorB,
    zero_column_mask: u64 | None = None,
) -> None:
    """Start to multiply A and B from shared memory, with B in a buffer.

    `zero_column_mask` is a 64-bit descriptor that makes columns of B zero. All else is as for
    `tcgen05_mma`.
    """
    simulator.tcgen05_mma(
        kind, d, a, b, idesc, enable_input_d, a_in_tmem=False, cta_group=1, ws=True,
        zero_mask=zero_column_mask, collector=f"{buffer}::{collector}",
    )  # fmt: skip


@instruction(
    "tcgen05.mma.ws.cta_group::1.kind::{kind}.collector::{buffer}::{collector}"
    " [{d}], [{a}], {b}, {idesc}, {enable_input_d}"
    "<zero_column_mask:, {zero_column_mask}>;",
    isa=(8, 6),
    sm=TCGEN05,
    since=_SINCE,
)
def tcgen05_mma_ws_tmem(
    d: TensorMemoryAddress,
    a: TensorMemoryAddress,
    b: u64,
    idesc: u32,
    enable_input_d: Predicate,
    kind: PlainKind,
    buffer: BufferB,
    collector: CollectorB,
    zero_column_mask: u64 | None = None,
) -> None:
    """Start to multiply A from tensor memory and B from shared memory, with B in a buffer.

    All else is as for `tcgen05_mma_ws`.
    """
    simulator.tcgen05_mma(
        kind, d, a, b, idesc, enable_input_d, a_in_tmem=True, cta_group=1, ws=True,
        zero_mask=zero_column_mask, collector=f"{buffer}::{collector}",
    )  # fmt: skip


@instruction(
    "tcgen05.mma.ws.sp.cta_group::1.kind::{kind}.collector::{buffer}::{collector}"
    " [{d}], {a}, {b}, [{sparse_metadata}], {idesc}, {enable_input_d}"
    "<zero_column_mask:, {zero_column_mask}>;",
    isa=(8, 6),
    sm=TCGEN05,
    since=_SINCE,
)
def tcgen05_mma_ws_sp(
    d: TensorMemoryAddress,
    a: u64,
    b: u64,
    sparse_metadata: TensorMemoryAddress,
    idesc: u32,
    enable_input_d: Predicate,
    kind: PlainKind,
    buffer: BufferB,
    collector: CollectorB,
    zero_column_mask: u64 | None = None,
) -> None:
    """Start to multiply a sparse A and B from shared memory, with B in a buffer.

    N is 64 or 128. `sparse_metadata` is as for `tcgen05_mma_sp`. All else is as for
    `tcgen05_mma_ws`.
    """
    simulator.tcgen05_mma(
        kind, d, a, b, idesc, enable_input_d, a_in_tmem=False, cta_group=1, ws=True,
        zero_mask=zero_column_mask, sparse_metadata=sparse_metadata,
        collector=f"{buffer}::{collector}",
    )  # fmt: skip


@instruction(
    "tcgen05.mma.ws.sp.cta_group::1.kind::{kind}.collector::{buffer}::{collector}"
    " [{d}], [{a}], {b}, [{sparse_metadata}], {idesc}, {enable_input_d}"
    "<zero_column_mask:, {zero_column_mask}>;",
    isa=(8, 6),
    sm=TCGEN05,
    since=_SINCE,
)
def tcgen05_mma_ws_sp_tmem(
    d: TensorMemoryAddress,
    a: TensorMemoryAddress,
    b: u64,
    sparse_metadata: TensorMemoryAddress,
    idesc: u32,
    enable_input_d: Predicate,
    kind: PlainKind,
    buffer: BufferB,
    collector: CollectorB,
    zero_column_mask: u64 | None = None,
) -> None:
    """Start to multiply a sparse A from tensor memory and B, with B in a buffer.

    All else is as for `tcgen05_mma_ws_sp`.
    """
    simulator.tcgen05_mma(
        kind, d, a, b, idesc, enable_input_d, a_in_tmem=True, cta_group=1, ws=True,
        zero_mask=zero_column_mask, sparse_metadata=sparse_metadata,
        collector=f"{buffer}::{collector}",
    )  # fmt: skip
