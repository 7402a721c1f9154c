"""tcgen05.ld.red: loads from tensor memory, with the minimum or maximum of what each thread loads.

The result is the thread's registers, then their minimum or maximum. sm_100 does not have these
rows. They have been assembled and simulated, and have run on no GPU.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from numba_tma import simulator
from numba_tma.host.architectures import TCGEN05_LD_RED
from numba_tma.ptx._instruction import (
    Immediate,
    TensorMemoryAddress,
    f32xnumand1,
    instruction,
    u32xnumand1,
)

__all__ = [
    "tcgen05_ld_red_32x32b_f32", "tcgen05_ld_red_32x32b_int", "tcgen05_ld_red_16x32bx2_f32",
    "tcgen05_ld_red_16x32bx2_int",
]  # fmt: skip

#: Repetitions along the columns.
RepeatsFrom2: TypeAlias = Literal[2, 4, 8, 16, 32, 64, 128]
Extremum: TypeAlias = Literal["min", "max"]
IntegerType: TypeAlias = Literal["u32", "s32"]
#: Of absolute values.
Absolute: TypeAlias = Literal["abs"]
#: A NaN among the values makes the result NaN; it is left out otherwise.
PropagateNaN: TypeAlias = Literal["NaN"]


@instruction(
    "tcgen05.ld.red.sync.aligned.32x32b.x{num}.{extremum}<absolute:.{absolute}><nan:.{nan}>.f32"
    " {result}, {apart}, [{taddr}];",
    isa=(8, 8),
    sm=TCGEN05_LD_RED,
    convergent=True,
)
def tcgen05_ld_red_32x32b_f32(
    taddr: TensorMemoryAddress,
    num: RepeatsFrom2,
    extremum: Extremum,
    absolute: Absolute | None = None,
    nan: PropagateNaN | None = None,
) -> f32xnumand1:
    """Start to load `num` columns of float32, with their minimum or maximum by thread.

    All else is as for `tcgen05_ld_32x32b`; `tcgen05_wait_ld` completes all registers.
    """
    return simulator.tcgen05_ld_red(
        "32x32b", taddr, num, extremum, "f32", absolute=absolute is not None, nan=nan is not None
    )


@instruction(
    "tcgen05.ld.red.sync.aligned.32x32b.x{num}.{extremum}.{integer} {result}, {apart}, [{taddr}];",
    isa=(8, 8),
    sm=TCGEN05_LD_RED,
    convergent=True,
)
def tcgen05_ld_red_32x32b_int(
    taddr: TensorMemoryAddress, num: RepeatsFrom2, extremum: Extremum, integer: IntegerType
) -> u32xnumand1:
    """Start to load `num` columns of integers, with their minimum or maximum by thread.

    All else is as for `tcgen05_ld_red_32x32b_f32`.
    """
    return simulator.tcgen05_ld_red("32x32b", taddr, num, extremum, integer)


@instruction(
    "tcgen05.ld.red.sync.aligned.16x32bx2.x{num}.{extremum}<absolute:.{absolute}><nan:.{nan}>.f32"
    " {result}, {apart}, [{taddr}], {offset};",
    isa=(8, 8),
    sm=TCGEN05_LD_RED,
    convergent=True,
)
def tcgen05_ld_red_16x32bx2_f32(
    taddr: TensorMemoryAddress,
    offset: Immediate,
    num: RepeatsFrom2,
    extremum: Extremum,
    absolute: Absolute | None = None,
    nan: PropagateNaN | None = None,
) -> f32xnumand1:
    """Start to load `num` columns of float32 at two places, with their extremum by thread.

    The places are those of `tcgen05_ld_16x32bx2`.
    """
    return simulator.tcgen05_ld_red(
        "16x32bx2",
        taddr,
        num,
        extremum,
        "f32",
        absolute=absolute is not None,
        nan=nan is not None,
        offset=offset,
    )


@instruction(
    "tcgen05.ld.red.sync.aligned.16x32bx2.x{num}.{extremum}.{integer}"
    " {result}, {apart}, [{taddr}], {offset};",
    isa=(8, 8),
    sm=TCGEN05_LD_RED,
    convergent=True,
)
def tcgen05_ld_red_16x32bx2_int(
    taddr: TensorMemoryAddress,
    offset: Immediate,
    num: RepeatsFrom2,
    extremum: Extremum,
    integer: IntegerType,
) -> u32xnumand1:
    """Start to load `num` columns of integers at two places, with their extremum by thread.

    The places are those of `tcgen05_ld_16x32bx2`.
    """
    return simulator.tcgen05_ld_red("16x32bx2", taddr, num, extremum, integer, offset=offset)
