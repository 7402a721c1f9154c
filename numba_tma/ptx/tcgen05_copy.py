"""tcgen05.cp and tcgen05.shift: copies from shared to tensor memory, and lanes that move down.

One thread executes them; with `cta_group` 2 one thread of the pair, for both blocks, each with its
own shared and tensor memory. They are asynchronous. A later product of the same thread finds them
complete; other threads wait for a `tcgen05_commit`. The rows have been assembled and simulated, and
have run on no GPU.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from numba_tma import simulator
from numba_tma.host.architectures import TCGEN05, TCGEN05_A
from numba_tma.ptx._instruction import TensorMemoryAddress, instruction, u64
from numba_tma.ptx.tcgen05 import CtaGroup

__all__ = ["tcgen05_cp", "tcgen05_shift"]

#: Rows and bits of each, and the warps whose lanes get the same rows.
CopyShape: TypeAlias = Literal[
    "128x256b", "4x256b", "128x128b", "64x128b.warpx2::02_13", "64x128b.warpx2::01_23",
    "32x128b.warpx4",
]  # fmt: skip
#: 16 elements of 6 or 4 bits, with a gap after them, become 16 of 8 bits.
Decompression: TypeAlias = Literal["b8x16.b6x16_p32", "b8x16.b4x16_p64"]


@instruction(
    "tcgen05.cp.cta_group::{cta_group}.{shape}<decompression:.{decompression}>"
    " [{taddr}], {source};",
    isa=(8, 6),
    sm=TCGEN05,
)
def tcgen05_cp(
    taddr: TensorMemoryAddress,
    source: u64,
    shape: CopyShape,
    cta_group: CtaGroup,
    decompression: Decompression | None = None,
) -> None:
    """Start to copy a matrix from shared memory to the lanes and columns from `taddr` on.

    `source` is a descriptor of core matrices of 8 rows of 16 B. Row r goes to lane r; 256 bits fill
    8 columns, and 128 bits fill 4. 4x256b puts its rows in lanes 0, 32, 64 and 96 from that of
    `taddr` on. "warpx4" puts 32 rows in the lanes of all four warps. "warpx2::02_13" puts rows 0 to
    63 in lanes 0 to 63 and 64 to 127; "warpx2::01_23" rows 0 to 31 in lanes 0 to 31 and 32 to 63,
    rows 32 to 63 in lanes 64 to 95 and 96 to 127. Scale factors take "32x128b.warpx4".

    With `decompression` 16 B of the source hold 16 elements in their first 12 or 8 B, and each
    element gets a byte: 6 bits in bits 0 to 5, 4 bits in bits 2 to 5.

    Executed by one thread. Reads shared memory by the async proxy: `fence_proxy_async` orders a
    thread's own writes before it.
    """
    simulator.tcgen05_cp(shape, taddr, source, cta_group, decompression)


@instruction("tcgen05.shift.cta_group::{cta_group}.down [{taddr}];", isa=(8, 6), sm=TCGEN05_A)
def tcgen05_shift(taddr: TensorMemoryAddress, cta_group: CtaGroup) -> None:
    """Start to move 32 B of columns of each lane to the lane below it.

    Lane l takes what lane l + 1 had; the last of each 32 lanes keeps its own. The lane of `taddr`
    is a multiple of 32. Executed by one thread.
    """
    simulator.tcgen05_shift(taddr, cta_group)
