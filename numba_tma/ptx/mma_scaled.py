"""mma.sync of 8-, 6- and 4-bit floats, with and without block scale factors: sm_120 and sm_121.

A warp multiplies A, 16 rows, and B, 8 columns. In lane l, g is l // 4 and t is l mod 4. Register r
of A holds row g + 8 (r mod 2), and register r of B holds column g. Elements of a byte are four
along K, from 4 t + 16 (r // 2) of A and 4 t + 16 r of B on. Packed 4-bit elements are eight, from
8 t + 32 (r // 2) and 8 t + 32 r on. C and the result have columns 2 t and 2 t + 1 of row g, then of
row g + 8.

`scale_a` has four bytes of scale factors. Lane 2 `thread_a` of the quad, with 0 or 1, gives those
of row g, and the lane after it those of row g + 8. Lane `thread_b` of the quad, 0 to 3, gives those
of column g. All threads of the warp execute a row, converged, with the same bytes and threads.
The rows have been assembled and simulated, and have run on no GPU.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from numba_tma import simulator
from numba_tma.host.architectures import MMA_SCALED_120, MMA_SPARSE_NVF4_120
from numba_tma.ptx._instruction import (
    f32x4,
    instruction,
    u16,
    u32,
    u32x2,
    u32x4,
)

__all__ = [
    "mma_m16n8k32_f8f6f4", "mma_m16n8k32_f8f6f4_f16", "mma_m16n8k32_mxf8f6f4",
    "mma_m16n8k64_mxf4", "mma_m16n8k64_mxf4nvf4_2x", "mma_m16n8k64_mxf4nvf4_4x",
    "mma_sp_m16n8k64_f8f6f4", "mma_sp_m16n8k64_f8f6f4_f16", "mma_sp_m16n8k64_mxf8f6f4",
    "mma_sp_m16n8k128_mxf4", "mma_sp_m16n8k128_mxf4nvf4_2x", "mma_sp_m16n8k128_mxf4nvf4_4x",
]  # fmt: skip

NarrowType: TypeAlias = Literal["e2m1", "e2m3", "e3m2", "e4m3", "e5m2"]
ScaleType: TypeAlias = Literal["ue4m3", "ue8m0"]

_UE8M0 = {"ue8m0": ((9, 1), MMA_SCALED_120)}
_UE8M0_SPARSE = {"ue8m0": ((9, 1), MMA_SPARSE_NVF4_120)}


@instruction(
    "mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4"
    ".f32.{a_type}.{b_type}.f32"
    " {result}, {a}, {b}, {c};",
    isa=(8, 7),
    sm=MMA_SCALED_120,
    pure=True,
    convergent=True,
)
def mma_m16n8k32_f8f6f4(
    a: u32x4,
    b: u32x2,
    c: f32x4,
    a_type: NarrowType,
    b_type: NarrowType,
) -> f32x4:
    """Return A B + C of 16 x 32 and 32 x 8 elements of 8, 6 or 4 bits, in float32.

    An element has a byte: 6-bit elements in bits 0 to 5, 4-bit elements in bits 2 to 5. Executed by
    a warp.
    """
    return simulator.mma_sync("mma_m16n8k32_f8f6f4", 32, a_type, b_type, a, b, c)


@instruction(
    "mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4"
    ".f16.{a_type}.{b_type}.f16"
    " {result}, {a}, {b}, {c};",
    isa=(8, 7),
    sm=MMA_SCALED_120,
    pure=True,
    convergent=True,
)
def mma_m16n8k32_f8f6f4_f16(
    a: u32x4,
    b: u32x2,
    c: u32x2,
    a_type: NarrowType,
    b_type: NarrowType,
) -> u32x2:
    """Return A B + C of 16 x 32 and 32 x 8 elements, in float16, two in a register.

    All else is as for `mma_m16n8k32_f8f6f4`.
    """
    return simulator.mma_sync("mma_m16n8k32_f8f6f4_f16", 32, a_type, b_type, a, b, c)


@instruction(
    "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4"
    ".block_scale.scale_vec::1X.f32.{a_type}.{b_type}.f32.ue8m0"
    " {result}, {a}, {b}, {c}"
    ", {scale_a}, {{byte_a}, {thread_a}}, {scale_b}, {{byte_b}, {thread_b}};",
    isa=(8, 7),
    sm=MMA_SCALED_120,
    pure=True,
    convergent=True,
)
def mma_m16n8k32_mxf8f6f4(
    a: u32x4,
    b: u32x2,
    c: f32x4,
    scale_a: u32,
    byte_a: u16,
    thread_a: u16,
    scale_b: u32,
    byte_b: u16,
    thread_b: u16,
    a_type: NarrowType,
    b_type: NarrowType,
) -> f32x4:
    """Return A B + C with a scale factor for 32 elements of a row of A, and of a column of B.

    `byte_a` and `byte_b` are 0 to 3. All else is as for `mma_m16n8k32_f8f6f4`.
    """
    return simulator.mma_sync(
        "mma_m16n8k32_mxf8f6f4",
        32,
        a_type,
        b_type,
        a,
        b,
        c,
        "ue8m0",
        1,
        (scale_a, byte_a, thread_a),
        (scale_b, byte_b, thread_b),
    )


@instruction(
    "mma.sync.aligned.m16n8k64.row.col.kind::mxf4"
    ".block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0"
    " {result}, {a}, {b}, {c}"
    ", {scale_a}, {{byte_a}, {thread_a}}, {scale_b}, {{byte_b}, {thread_b}};",
    isa=(8, 7),
    sm=MMA_SCALED_120,
    pure=True,
    convergent=True,
)
def mma_m16n8k64_mxf4(
    a: u32x4,
    b: u32x2,
    c: f32x4,
    scale_a: u32,
    byte_a: u16,
    thread_a: u16,
    scale_b: u32,
    byte_b: u16,
    thread_b: u16,
) -> f32x4:
    """Return A B + C of 16 x 64 and 64 x 8 packed e2m1, with a ue8m0 for 32 elements.

    A row of A and a column of B have two scale factors: the bytes `byte_a` and `byte_a` + 1, where
    `byte_a` is 0 or 2. Executed by a warp.
    """
    return simulator.mma_sync(
        "mma_m16n8k64_mxf4",
        64,
        "e2m1",
        "e2m1",
        a,
        b,
        c,
        "ue8m0",
        2,
        (scale_a, byte_a, thread_a),
        (scale_b, byte_b, thread_b),
    )


@instruction(
    "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4"
    ".block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0"
    " {result}, {a}, {b}, {c}"
    ", {scale_a}, {{byte_a}, {thread_a}}, {scale_b}, {{byte_b}, {thread_b}};",
    isa=(8, 7),
    sm=MMA_SCALED_120,
    pure=True,
    convergent=True,
)
def mma_m16n8k64_mxf4nvf4_2x(
    a: u32x4,
    b: u32x2,
    c: f32x4,
    scale_a: u32,
    byte_a: u16,
    thread_a: u16,
    scale_b: u32,
    byte_b: u16,
    thread_b: u16,
) -> f32x4:
    """Return the same as `mma_m16n8k64_mxf4`, with the other name of its kind."""
    return simulator.mma_sync(
        "mma_m16n8k64_mxf4nvf4_2x",
        64,
        "e2m1",
        "e2m1",
        a,
        b,
        c,
        "ue8m0",
        2,
        (scale_a, byte_a, thread_a),
        (scale_b, byte_b, thread_b),
    )


@instruction(
    "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4"
    ".block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.{scale_type}"
    " {result}, {a}, {b}, {c}"
    ", {scale_a}, {{byte_a}, {thread_a}}, {scale_b}, {{byte_b}, {thread_b}};",
    isa=(8, 7),
    sm=MMA_SCALED_120,
    since=_UE8M0,
    pure=True,
    convergent=True,
)
def mma_m16n8k64_mxf4nvf4_4x(
    a: u32x4,
    b: u32x2,
    c: f32x4,
    scale_a: u32,
    byte_a: u16,
    thread_a: u16,
    scale_b: u32,
    byte_b: u16,
    thread_b: u16,
    scale_type: ScaleType,
) -> f32x4:
    """Return A B + C of 16 x 64 and 64 x 8 packed e2m1, with a scale factor for 16 elements.

    A row of A and a column of B have four scale factors, all bytes: `byte_a` and `byte_b` are 0.
    Executed by a warp.
    """
    return simulator.mma_sync(
        "mma_m16n8k64_mxf4nvf4_4x",
        64,
        "e2m1",
        "e2m1",
        a,
        b,
        c,
        scale_type,
        4,
        (scale_a, byte_a, thread_a),
        (scale_b, byte_b, thread_b),
    )


@instruction(
    "mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.kind::f8f6f4"
    ".f32.{a_type}.{b_type}.f32"
    " {result}, {a}, {b}, {c}, {metadata}, 0;",
    isa=(8, 7),
    sm=MMA_SCALED_120,
    pure=True,
    convergent=True,
)
def mma_sp_m16n8k64_f8f6f4(
    a: u32x4,
    b: u32x4,
    c: f32x4,
    metadata: u32,
    a_type: NarrowType,
    b_type: NarrowType,
) -> f32x4:
    """Return A B + C with a sparse A of 16 x 64, of which 2 of 4 elements are stored.

    `metadata` says which: 8 codes of 4 bits, each for 4 elements, with the places of the two stored
    ones in order, the first in the low bits. Lane 4 i of A's row i has its first 32 elements, lane
    4 i + 2 the other ones, and the lanes after these have row i + 8. All else is as for
    `mma_m16n8k32_f8f6f4`.
    """
    return simulator.mma_sync(
        "mma_sp_m16n8k64_f8f6f4", 64, a_type, b_type, a, b, c, metadata=metadata
    )


@instruction(
    "mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.kind::f8f6f4"
    ".f16.{a_type}.{b_type}.f16"
    " {result}, {a}, {b}, {c}, {metadata}, 0;",
    isa=(8, 7),
    sm=MMA_SCALED_120,
    pure=True,
    convergent=True,
)
def mma_sp_m16n8k64_f8f6f4_f16(
    a: u32x4,
    b: u32x4,
    c: u32x2,
    metadata: u32,
    a_type: NarrowType,
    b_type: NarrowType,
) -> u32x2:
    """Return the same as `mma_sp_m16n8k64_f8f6f4` in float16, two in a register."""
    return simulator.mma_sync(
        "mma_sp_m16n8k64_f8f6f4_f16", 64, a_type, b_type, a, b, c, metadata=metadata
    )


@instruction(
    "mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.kind::mxf8f6f4"
    ".block_scale.scale_vec::1X.f32.{a_type}.{b_type}.f32.ue8m0"
    " {result}, {a}, {b}, {c}, {metadata}, 0"
    ", {scale_a}, {{byte_a}, {thread_a}}, {scale_b}, {{byte_b}, {thread_b}};",
    isa=(8, 7),
    sm=MMA_SCALED_120,
    pure=True,
    convergent=True,
)
def mma_sp_m16n8k64_mxf8f6f4(
    a: u32x4,
    b: u32x4,
    c: f32x4,
    metadata: u32,
    scale_a: u32,
    byte_a: u16,
    thread_a: u16,
    scale_b: u32,
    byte_b: u16,
    thread_b: u16,
    a_type: NarrowType,
    b_type: NarrowType,
) -> f32x4:
    """Return A B + C with a sparse A of 16 x 64 and scale factors of `mma_m16n8k32_mxf8f6f4`.

    `metadata` is as for `mma_sp_m16n8k64_f8f6f4`. A factor is for all 64 elements.
    """
    return simulator.mma_sync(
        "mma_sp_m16n8k64_mxf8f6f4", 64, a_type, b_type, a, b, c, "ue8m0", 1,
        (scale_a, byte_a, thread_a), (scale_b, byte_b, thread_b), metadata,
    )  # fmt: skip


@instruction(
    "mma.sp::ordered_metadata.sync.aligned.m16n8k128.row.col.kind::mxf4"
    ".block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0"
    " {result}, {a}, {b}, {c}, {metadata}, 0"
    ", {scale_a}, {{byte_a}, {thread_a}}, {scale_b}, {{byte_b}, {thread_b}};",
    isa=(8, 7),
    sm=MMA_SPARSE_NVF4_120,
    pure=True,
    convergent=True,
)
def mma_sp_m16n8k128_mxf4(
    a: u32x4,
    b: u32x4,
    c: f32x4,
    metadata: u32,
    scale_a: u32,
    byte_a: u16,
    thread_a: u16,
    scale_b: u32,
    byte_b: u16,
    thread_b: u16,
) -> f32x4:
    """Return A B + C with a sparse A of 16 x 128 packed e2m1: 2 of 4 pairs are stored.

    `metadata` is as for `mma_sp_m16n8k64_f8f6f4`, with a code for 4 pairs. Scale factors are as for
    `mma_m16n8k64_mxf4`, each for 64 elements.
    """
    return simulator.mma_sync(
        "mma_sp_m16n8k128_mxf4", 128, "e2m1", "e2m1", a, b, c, "ue8m0", 2,
        (scale_a, byte_a, thread_a), (scale_b, byte_b, thread_b), metadata,
    )  # fmt: skip


@instruction(
    "mma.sp::ordered_metadata.sync.aligned.m16n8k128.row.col.kind::mxf4nvf4"
    ".block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0"
    " {result}, {a}, {b}, {c}, {metadata}, 0"
    ", {scale_a}, {{byte_a}, {thread_a}}, {scale_b}, {{byte_b}, {thread_b}};",
    isa=(8, 7),
    sm=MMA_SPARSE_NVF4_120,
    pure=True,
    convergent=True,
)
def mma_sp_m16n8k128_mxf4nvf4_2x(
    a: u32x4,
    b: u32x4,
    c: f32x4,
    metadata: u32,
    scale_a: u32,
    byte_a: u16,
    thread_a: u16,
    scale_b: u32,
    byte_b: u16,
    thread_b: u16,
) -> f32x4:
    """Return the same as `mma_sp_m16n8k128_mxf4`, of the other kind."""
    return simulator.mma_sync(
        "mma_sp_m16n8k128_mxf4nvf4_2x", 128, "e2m1", "e2m1", a, b, c, "ue8m0", 2,
        (scale_a, byte_a, thread_a), (scale_b, byte_b, thread_b), metadata,
    )  # fmt: skip


@instruction(
    "mma.sp::ordered_metadata.sync.aligned.m16n8k128.row.col.kind::mxf4nvf4"
    ".block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.{scale_type}"
    " {result}, {a}, {b}, {c}, {metadata}, 0"
    ", {scale_a}, {{byte_a}, {thread_a}}, {scale_b}, {{byte_b}, {thread_b}};",
    isa=(8, 7),
    sm=MMA_SPARSE_NVF4_120,
    since=_UE8M0_SPARSE,
    pure=True,
    convergent=True,
)
def mma_sp_m16n8k128_mxf4nvf4_4x(
    a: u32x4,
    b: u32x4,
    c: f32x4,
    metadata: u32,
    scale_a: u32,
    byte_a: u16,
    thread_a: u16,
    scale_b: u32,
    byte_b: u16,
    thread_b: u16,
    scale_type: ScaleType,
) -> f32x4:
    """Return A B + C with a sparse A of 16 x 128 packed e2m1, with a factor for 32 elements.

    `metadata` is as for `mma_sp_m16n8k128_mxf4`.
    """
    return simulator.mma_sync(
        "mma_sp_m16n8k128_mxf4nvf4_4x", 128, "e2m1", "e2m1", a, b, c, scale_type, 4,
        (scale_a, byte_a, thread_a), (scale_b, byte_b, thread_b), metadata,
    )  # fmt: skip
