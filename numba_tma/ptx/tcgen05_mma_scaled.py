"""tcgen05.mma with block scale factors: products of 8-, 6- and 4-bit floats.

Every 32 or 16 elements of a row of A, and of a column of B, have a scale factor. The factors lie in
tensor memory, where `tcgen05_cp` brings them: at `scale_a` and `scale_b`, in atoms of 128 rows and
4 columns. `idesc` selects the byte of each cell. All else is as for `tcgen05_mma`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from numba_tma import simulator
from numba_tma.host.architectures import TCGEN05, TCGEN05_A
from numba_tma.ptx._instruction import (
    Predicate,
    TensorMemoryAddress,
    instruction,
    u32,
    u64,
)
from numba_tma.ptx.tcgen05 import CtaGroup
from numba_tma.ptx.tcgen05_mma import CollectorA

__all__ = [
    "tcgen05_mma_block_scaled", "tcgen05_mma_block_scaled_tmem", "tcgen05_mma_block_scaled_sp",
    "tcgen05_mma_block_scaled_sp_tmem",
]  # fmt: skip

#: Kind and block of the scale factors, as PTX writes them. ``block16`` and ``block32`` are names of
#: ``scale_vec`` that families of architectures have, too: 32 elements are 1X of 8-bit and 2X of
#: 4-bit types, 16 elements are 4X. Kinds without a block mean 32 elements.
ScaledKind: TypeAlias = Literal[
    "mxf8f6f4.block_scale.block32", "mxf4.block_scale.block32", "mxf4nvf4.block_scale.block16",
    "mxf4nvf4.block_scale.block32", "mxf8f6f4.block_scale", "mxf4.block_scale",
    "mxf8f6f4.block_scale.scale_vec::1X", "mxf4.block_scale.scale_vec::2X",
    "mxf4nvf4.block_scale.scale_vec::2X", "mxf4nvf4.block_scale.scale_vec::4X",
]  # fmt: skip

_SINCE = {
    "mxf8f6f4.block_scale.block32": ((8, 8), TCGEN05),
    "mxf4.block_scale.block32": ((8, 8), TCGEN05),
    "mxf4nvf4.block_scale.block16": ((8, 8), TCGEN05),
    "mxf4nvf4.block_scale.block32": ((8, 8), TCGEN05),
    "mxf8f6f4.block_scale.scale_vec::1X": ((8, 6), TCGEN05_A),
    "mxf4.block_scale.scale_vec::2X": ((8, 6), TCGEN05_A),
    "mxf4nvf4.block_scale.scale_vec::2X": ((8, 7), TCGEN05_A),
    "mxf4nvf4.block_scale.scale_vec::4X": ((8, 7), TCGEN05_A),
}
_SPARSE_SINCE = _SINCE | {
    kind: (_SINCE.get(kind, ((8, 6), TCGEN05))[0], TCGEN05_A)
    for kind in get_args(ScaledKind)
    if kind.startswith("mxf4")
}


def _kind_and_block(kind: str) -> tuple[str, str | None]:
    """Return the kind and the block of its scale factors, apart."""
    name, _, block = kind.partition(".block_scale")
    return name, block.removeprefix(".") or None


@instruction(
    "tcgen05.mma.cta_group::{cta_group}.kind::{kind}<collector:.collector::a::{collector}>"
    " [{d}], {a}, {b}, {idesc}, [{scale_a}], [{scale_b}], {enable_input_d};",
    isa=(8, 6),
    sm=TCGEN05,
    since=_SINCE,
)
def tcgen05_mma_block_scaled(
    d: TensorMemoryAddress,
    a: u64,
    b: u64,
    idesc: u32,
    scale_a: TensorMemoryAddress,
    scale_b: TensorMemoryAddress,
    enable_input_d: Predicate,
    kind: ScaledKind,
    cta_group: CtaGroup,
    collector: CollectorA | None = None,
) -> None:
    """Start to multiply scaled A and B from shared memory.

    D = A B, or D += A B if `enable_input_d`, with D at `d`. Executed by one thread. A `tcgen05_cp`
    of the same thread before it is complete when the product reads the scale factors.
    """
    name, block = _kind_and_block(kind)
    simulator.tcgen05_mma(
        name, d, a, b, idesc, enable_input_d, a_in_tmem=False, cta_group=cta_group, block=block,
        scale_a=scale_a, scale_b=scale_b, collector=collector,
    )  # fmt: skip


@instruction(
    "tcgen05.mma.cta_group::{cta_group}.kind::{kind}<collector:.collector::a::{collector}>"
    " [{d}], [{a}], {b}, {idesc}, [{scale_a}], [{scale_b}], {enable_input_d};",
    isa=(8, 6),
    sm=TCGEN05,
    since=_SINCE,
)
def tcgen05_mma_block_scaled_tmem(
    d: TensorMemoryAddress,
    a: TensorMemoryAddress,
    b: u64,
    idesc: u32,
    scale_a: TensorMemoryAddress,
    scale_b: TensorMemoryAddress,
    enable_input_d: Predicate,
    kind: ScaledKind,
    cta_group: CtaGroup,
    collector: CollectorA | None = None,
) -> None:
    """Start to multiply a scaled A from tensor memory and B from shared memory.

    All else is as for `tcgen05_mma_block_scaled`.
    """
    name, block = _kind_and_block(kind)
    simulator.tcgen05_mma(
        name, d, a, b, idesc, enable_input_d, a_in_tmem=True, cta_group=cta_group, block=block,
        scale_a=scale_a, scale_b=scale_b, collector=collector,
    )  # fmt: skip


@instruction(
    "tcgen05.mma.sp.cta_group::{cta_group}.kind::{kind}<collector:.collector::a::{collector}>"
    " [{d}], {a}, {b}, [{sparse_metadata}], {idesc}, [{scale_a}], [{scale_b}], {enable_input_d};",
    isa=(8, 6),
    sm=TCGEN05,
    since=_SPARSE_SINCE,
)
def tcgen05_mma_block_scaled_sp(
    d: TensorMemoryAddress,
    a: u64,
    b: u64,
    sparse_metadata: TensorMemoryAddress,
    idesc: u32,
    scale_a: TensorMemoryAddress,
    scale_b: TensorMemoryAddress,
    enable_input_d: Predicate,
    kind: ScaledKind,
    cta_group: CtaGroup,
    collector: CollectorA | None = None,
) -> None:
    """Start to multiply a scaled and sparse A and B from shared memory.

    A factor is for twice as many elements of a row as in a dense product, of A and of B.
    `sparse_metadata` is as for `tcgen05_mma_sp`; packed 4-bit elements have a code for 4 pairs. All
    else is as for `tcgen05_mma_block_scaled`.
    """
    name, block = _kind_and_block(kind)
    simulator.tcgen05_mma(
        name, d, a, b, idesc, enable_input_d, a_in_tmem=False, cta_group=cta_group, block=block,
        scale_a=scale_a, scale_b=scale_b, sparse_metadata=sparse_metadata, collector=collector,
    )  # fmt: skip


@instruction(
    "tcgen05.mma.sp.cta_group::{cta_group}.kind::{kind}<collector:.collector::a::{collector}>"
    " [{d}], [{a}], {b}, [{sparse_metadata}], {idesc}, [{scale_a}], [{scale_b}], {enable_input_d};",
    isa=(8, 6),
    sm=TCGEN05,
    since=_SPARSE_SINCE,
)
def tcgen05_mma_block_scaled_sp_tmem(
    d: TensorMemoryAddress,
    a: TensorMemoryAddress,
    b: u64,
    sparse_metadata: TensorMemoryAddress,
    idesc: u32,
    scale_a: TensorMemoryAddress,
    scale_b: TensorMemoryAddress,
    enable_input_d: Predicate,
    kind: ScaledKind,
    cta_group: CtaGroup,
    collector: CollectorA | None = None,
) -> None:
    """Start to multiply a scaled and sparse A from tensor memory and B from shared memory.

    `sparse_metadata` is as for `tcgen05_mma_sp`. All else is as for `tcgen05_mma_block_scaled`.
    """
    name, block = _kind_and_block(kind)
    simulator.tcgen05_mma(
        name, d, a, b, idesc, enable_input_d, a_in_tmem=True, cta_group=cta_group, block=block,
        scale_a=scale_a, scale_b=scale_b, sparse_metadata=sparse_metadata, collector=collector,
    )  # fmt: skip
