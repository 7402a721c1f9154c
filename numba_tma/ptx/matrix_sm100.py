"""ldmatrix and stmatrix of 8-bit elements, which Blackwell added: assembled and simulated, not run.

"b8" moves bytes unchanged. The other two formats widen elements of 6 or 4 bits to bytes: 16
elements, packed in the first 12 or 8 bytes of a 16-byte row, become the low bits of 16 bytes.
`mma_m16n8k32_f8f6f4` takes 4-bit elements two bits further up. Lane l has l // 4 and l mod 4 of
what the rows say; PTX shows the fragments in figures, and the simulator has CUTLASS's.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from numba_tma import simulator
from numba_tma.host.architectures import FAMILY
from numba_tma.ptx._instruction import instruction, u32, u32x2, u32x4

__all__ = [
    "ldmatrix_m16n16_x1", "ldmatrix_m16n16_x2", "ldmatrix_m8n16_x1", "ldmatrix_m8n16_x2",
    "ldmatrix_m8n16_x4", "stmatrix_m16n8_x1", "stmatrix_m16n8_x2", "stmatrix_m16n8_x4",
]  # fmt: skip

Elements: TypeAlias = Literal["b8", "b8x16.b6x16_p32", "b8x16.b4x16_p64"]
PackedElements: TypeAlias = Literal["b8x16.b6x16_p32", "b8x16.b4x16_p64"]


@instruction(
    "ldmatrix.sync.aligned.m16n16.x1.trans.shared.{elements} {result}, [{row}];",
    isa=(8, 6),
    sm=FAMILY,
    convergent=True,
)
def ldmatrix_m16n16_x1(row: u32, elements: Elements) -> u32x2:
    """Return the lane's part of one transposed 16x16 matrix; lanes 0 to 15 pass its row addresses.

    A register has bytes l // 4 and l // 4 + 8 of two rows: the first those of rows 4 (l mod 4) and
    the next, the second those of the two after them. The row changes first from byte to byte. `row`
    is a multiple of 16 B. Executed by all threads of the warp, converged. Orders nothing.
    """
    return simulator.ldmatrix_m16n16(row, 1, elements)


@instruction(
    "ldmatrix.sync.aligned.m16n16.x2.trans.shared.{elements} {result}, [{row}];",
    isa=(8, 6),
    sm=FAMILY,
    convergent=True,
)
def ldmatrix_m16n16_x2(row: u32, elements: Elements) -> u32x4:
    """Return the lane's parts of two transposed 16x16 matrices; all lanes pass row addresses.

    `row` is a multiple of 16 B. Executed by all threads of the warp, converged. Orders nothing.
    """
    return simulator.ldmatrix_m16n16(row, 2, elements)


@instruction(
    "ldmatrix.sync.aligned.m8n16.x1.shared.{elements} {{result}}, [{row}];",
    isa=(8, 6),
    sm=FAMILY,
    convergent=True,
)
def ldmatrix_m8n16_x1(row: u32, elements: PackedElements) -> u32:
    """Return the lane's part of one 8x16 matrix; lanes 0 to 7 pass its row addresses.

    It is bytes 4 (l mod 4) to 4 (l mod 4) + 3 of row l // 4. `row` is a multiple of 16 B. Executed
    by all threads of the warp, converged. Orders nothing.
    """
    return simulator.ldmatrix_m8n16(row, 1, elements)[0]


@instruction(
    "ldmatrix.sync.aligned.m8n16.x2.shared.{elements} {result}, [{row}];",
    isa=(8, 6),
    sm=FAMILY,
    convergent=True,
)
def ldmatrix_m8n16_x2(row: u32, elements: PackedElements) -> u32x2:
    """Return the lane's parts of two 8x16 matrices; lanes 0 to 15 pass their row addresses.

    `row` is a multiple of 16 B. Executed by all threads of the warp, converged. Orders nothing.
    """
    return simulator.ldmatrix_m8n16(row, 2, elements)


@instruction(
    "ldmatrix.sync.aligned.m8n16.x4.shared.{elements} {result}, [{row}];",
    isa=(8, 6),
    sm=FAMILY,
    convergent=True,
)
def ldmatrix_m8n16_x4(row: u32, elements: PackedElements) -> u32x4:
    """Return the lane's parts of four 8x16 matrices; lanes 0 to 31 pass their row addresses.

    `row` is a multiple of 16 B. Executed by all threads of the warp, converged. Orders nothing.
    """
    return simulator.ldmatrix_m8n16(row, 4, elements)


@instruction(
    "stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [{row}], {{fragment}};",
    isa=(8, 6),
    sm=FAMILY,
    convergent=True,
)
def stmatrix_m16n8_x1(row: u32, fragment: u32) -> None:
    """Write one 16x8 matrix of bytes, transposed; lanes 0 to 7 pass its row addresses.

    `fragment` has bytes l // 4 and l // 4 + 8 of rows 2 (l mod 4) and 2 (l mod 4) + 1: the row
    changes first from byte to byte. A row has 16 B. Executed by all threads of the warp, converged.
    The writes are ordinary ones.
    """
    simulator.stmatrix_m16n8(row, (fragment,))


@instruction(
    "stmatrix.sync.aligned.m16n8.x2.trans.shared.b8 [{row}], {fragment};",
    isa=(8, 6),
    sm=FAMILY,
    convergent=True,
)
def stmatrix_m16n8_x2(row: u32, fragment: u32x2) -> None:
    """Write two 16x8 matrices of bytes, transposed; lanes 0 to 15 pass their row addresses.

    A row has 16 B. Executed by all threads of the warp, converged. The writes are ordinary ones.
    """
    simulator.stmatrix_m16n8(row, fragment)


@instruction(
    "stmatrix.sync.aligned.m16n8.x4.trans.shared.b8 [{row}], {fragment};",
    isa=(8, 6),
    sm=FAMILY,
    convergent=True,
)
def stmatrix_m16n8_x4(row: u32, fragment: u32x4) -> None:
    """Write four 16x8 matrices of bytes, transposed; lanes 0 to 31 pass their row addresses.

    A row has 16 B. Executed by all threads of the warp, converged. The writes are ordinary ones.
    """
    simulator.stmatrix_m16n8(row, fragment)
