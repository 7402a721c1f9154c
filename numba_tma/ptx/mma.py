"""mma.sync: products of a warp with operands and sums in registers, on every GPU since sm_80.

A warp multiplies A, 16 rows, and B, 8 columns, along 32 bytes of K. In lane l, g is l // 4 and t is
l mod 4. Register r of A holds row g + 8 (r mod 2), and register r of B holds column g. A register
has the elements of 4 bytes along K: those from byte 4 t + 16 (r // 2) of A's row on, and from byte
4 t + 16 r of B's column on. So `ldmatrix_x4` of a K-major tile gives the registers of 16 rows of A,
or of 16 columns of B, whatever the type. C and the result have columns 2 t and 2 t + 1 of row g,
then of row g + 8. All threads of the warp execute a row, converged.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from numba_tma import simulator
from numba_tma.ptx._instruction import f32x4, i32x4, instruction, u32x2, u32x4

__all__ = ["mma_m16n8k8_tf32", "mma_m16n8k16", "mma_m16n8k32_f8", "mma_m16n8k32_i8"]

HalfType: TypeAlias = Literal["f16", "bf16"]
EightBitFloat: TypeAlias = Literal["e4m3", "e5m2"]
EightBitInteger: TypeAlias = Literal["s8", "u8"]


@instruction(
    "mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 {result}, {a}, {b}, {c};",
    isa=(7, 0),
    sm=80,
    pure=True,
    convergent=True,
)
def mma_m16n8k16(a: u32x4, b: u32x2, c: f32x4, kind: HalfType) -> f32x4:
    """Return A B + C of 16 x 16 and 16 x 8 elements of f16 or bf16, in float32.

    The lower half of a register has the element before. Executed by a warp.
    """
    return simulator.mma_sync("mma_m16n8k16", 16, kind, kind, a, b, c)


@instruction(
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {result}, {a}, {b}, {c};",
    isa=(7, 0),
    sm=80,
    pure=True,
    convergent=True,
)
def mma_m16n8k8_tf32(a: u32x4, b: u32x2, c: f32x4) -> f32x4:
    """Return A B + C of 16 x 8 and 8 x 8 elements of tf32, in float32.

    An element is a float32 whose lowest 13 bits are not used. Executed by a warp.
    """
    return simulator.mma_sync("mma_m16n8k8_tf32", 8, "tf32", "tf32", a, b, c)


@instruction(
    "mma.sync.aligned.m16n8k32.row.col.f32.{a_type}.{b_type}.f32 {result}, {a}, {b}, {c};",
    isa=(8, 4),
    sm=89,
    pure=True,
    convergent=True,
)
def mma_m16n8k32_f8(
    a: u32x4, b: u32x2, c: f32x4, a_type: EightBitFloat, b_type: EightBitFloat
) -> f32x4:
    """Return A B + C of 16 x 32 and 32 x 8 elements of e4m3 or e5m2, in float32.

    Executed by a warp.
    """
    return simulator.mma_sync("mma_m16n8k32_f8", 32, a_type, b_type, a, b, c)


@instruction(
    "mma.sync.aligned.m16n8k32.row.col.s32.{a_type}.{b_type}.s32 {result}, {a}, {b}, {c};",
    isa=(7, 0),
    sm=80,
    pure=True,
    convergent=True,
)
def mma_m16n8k32_i8(
    a: u32x4, b: u32x2, c: i32x4, a_type: EightBitInteger, b_type: EightBitInteger
) -> i32x4:
    """Return A B + C of 16 x 32 and 32 x 8 integers of 8 bits, in int32, which wraps around.

    Executed by a warp.
    """
    return simulator.mma_sync("mma_m16n8k32_i8", 32, a_type, b_type, a, b, c)
