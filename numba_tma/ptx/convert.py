"""cvt: pairs of floats between float32, the 16-bit and the 8-bit formats, and float32 to TF32.

A pair is one register. `high` is its upper half; the lower half is the element that comes first in
memory. Pairs round to nearest, ties to even. A NaN becomes the one NaN of the format (0x7fff,
0x7f), without sign and payload. With "relu" a negative value becomes +0, and a NaN stays a NaN.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from numba_tma.ptx._instruction import f32, instruction, u16, u32
from numba_tma.simulator import conversions as _convert

__all__ = [
    "cvt_f16x2_f32", "cvt_bf16x2_f32", "cvt_e4m3x2_f32", "cvt_e5m2x2_f32", "cvt_e4m3x2_f16x2",
    "cvt_e5m2x2_f16x2", "cvt_f16x2_e4m3x2", "cvt_f16x2_e5m2x2", "cvt_tf32_f32",
]  # fmt: skip

Relu: TypeAlias = Literal["relu"]
TF32Rounding: TypeAlias = Literal["rna", "rn"]


@instruction(
    "cvt.rn<relu:.{relu}>.f16x2.f32 {result}, {high}, {low};", isa=(7, 0), sm=80, pure=True
)
def cvt_f16x2_f32(high: f32, low: f32, relu: Relu | None = None) -> u32:
    """Return two float16; a value out of range becomes infinity. Executed by any thread."""
    return _convert.to_pair("f16", (low, high), relu)


@instruction(
    "cvt.rn<relu:.{relu}>.bf16x2.f32 {result}, {high}, {low};", isa=(7, 0), sm=80, pure=True
)
def cvt_bf16x2_f32(high: f32, low: f32, relu: Relu | None = None) -> u32:
    """Return two bfloat16. Executed by any thread."""
    return _convert.to_pair("bf16", (low, high), relu)


@instruction(
    "cvt.rn.satfinite<relu:.{relu}>.e4m3x2.f32 {result}, {high}, {low};",
    isa=(8, 1),
    sm=89,
    pure=True,
)
def cvt_e4m3x2_f32(high: f32, low: f32, relu: Relu | None = None) -> u16:
    """Return two e4m3; a value out of range, infinity too, becomes 448. Executed by any thread."""
    return _convert.to_pair("e4m3", (low, high), relu)


@instruction(
    "cvt.rn.satfinite<relu:.{relu}>.e5m2x2.f32 {result}, {high}, {low};",
    isa=(8, 1),
    sm=89,
    pure=True,
)
def cvt_e5m2x2_f32(high: f32, low: f32, relu: Relu | None = None) -> u16:
    """Return two e5m2; a value out of range, infinity too, becomes 57344.

    Executed by any thread.
    """
    return _convert.to_pair("e5m2", (low, high), relu)


@instruction(
    "cvt.rn.satfinite<relu:.{relu}>.e4m3x2.f16x2 {result}, {pair};", isa=(8, 1), sm=89, pure=True
)
def cvt_e4m3x2_f16x2(pair: u32, relu: Relu | None = None) -> u16:
    """Return two float16 as e4m3; a value out of range becomes 448. Executed by any thread."""
    return _convert.to_pair("e4m3", _convert.from_pair("f16", pair), relu)


@instruction(
    "cvt.rn.satfinite<relu:.{relu}>.e5m2x2.f16x2 {result}, {pair};", isa=(8, 1), sm=89, pure=True
)
def cvt_e5m2x2_f16x2(pair: u32, relu: Relu | None = None) -> u16:
    """Return two float16 as e5m2; a value out of range becomes 57344. Executed by any thread."""
    return _convert.to_pair("e5m2", _convert.from_pair("f16", pair), relu)


@instruction("cvt.rn<relu:.{relu}>.f16x2.e4m3x2 {result}, {pair};", isa=(8, 1), sm=89, pure=True)
def cvt_f16x2_e4m3x2(pair: u16, relu: Relu | None = None) -> u32:
    """Return two e4m3 as float16, exactly. Executed by any thread."""
    return _convert.to_pair("f16", _convert.from_pair("e4m3", pair), relu)


@instruction("cvt.rn<relu:.{relu}>.f16x2.e5m2x2 {result}, {pair};", isa=(8, 1), sm=89, pure=True)
def cvt_f16x2_e5m2x2(pair: u16, relu: Relu | None = None) -> u32:
    """Return two e5m2 as float16, exactly. Executed by any thread."""
    return _convert.to_pair("f16", _convert.from_pair("e5m2", pair), relu)


@instruction(
    "cvt.{rounding}.tf32.f32 {result}, {value};",
    isa=(7, 0),
    sm=80,
    since={"rn": ((7, 8), 90)},
    pure=True,
)
def cvt_tf32_f32(value: f32, rounding: TF32Rounding = "rna") -> u32:
    """Return a float32 rounded to TF32, the 10 mantissa bits that tensor cores read.

    "rna" rounds ties away from zero, "rn" to even. The result is the 32 bits of the float; the
    lowest 13 have no meaning. Executed by any thread.
    """
    return _convert.to_tf32(value, rounding)
