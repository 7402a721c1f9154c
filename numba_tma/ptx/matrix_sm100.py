"""ldmatrix and stmatrix with 8-bit elements, which sm_100a alone has: assembled, not run.

"b8" moves bytes as they are. The other two formats widen on the way: 16 elements of 6 or 4 bits,
packed in the first 12 or 8 bytes of a row of 16, become 16 bytes.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from numba_tma.ptx._instruction import instruction, u32, u32x2, u32x4

Elements: TypeAlias = Literal["b8", "b8x16.b6x16_p32", "b8x16.b4x16_p64"]
PackedElements: TypeAlias = Literal["b8x16.b6x16_p32", "b8x16.b4x16_p64"]

_UNKNOWN = "the simulator does what Hopper can, and only sm_100a has this form"


@instruction(
    "ldmatrix.sync.aligned.m16n16.x1.trans.shared.{elements} {result}, [{row}];",
    isa=(8, 6),
    sm="100a",
    convergent=True,
)
def ldmatrix_m16n16_x1(row: u32, elements: Elements) -> u32x2:
    """Return the lane's part of one transposed 16x16 matrix; lanes 0 to 15 give its rows.

    Executed by all threads of the warp, converged; `row` is a multiple of 16 B. Orders nothing.
    """
    raise NotImplementedError(f"ldmatrix_m16n16_x1: {_UNKNOWN}")


@instruction(
    "ldmatrix.sync.aligned.m16n16.x2.trans.shared.{elements} {result}, [{row}];",
    isa=(8, 6),
    sm="100a",
    convergent=True,
)
def ldmatrix_m16n16_x2(row: u32, elements: Elements) -> u32x4:
    """Return the lane's parts of two transposed 16x16 matrices; lanes 0 to 31 give their rows.

    Executed by all threads of the warp, converged; `row` is a multiple of 16 B. Orders nothing.
    """
    raise NotImplementedError(f"ldmatrix_m16n16_x2: {_UNKNOWN}")


@instruction(
    "ldmatrix.sync.aligned.m8n16.x1.shared.{elements} {{result}}, [{row}];",
    isa=(8, 6),
    sm="100a",
    convergent=True,
)
def ldmatrix_m8n16_x1(row: u32, elements: PackedElements) -> u32:
    """Return the lane's part of one 8x16 matrix; lanes 0 to 7 give its rows.

    Executed by all threads of the warp, converged; `row` is a multiple of 16 B. Orders nothing.
    """
    raise NotImplementedError(f"ldmatrix_m8n16_x1: {_UNKNOWN}")


@instruction(
    "ldmatrix.sync.aligned.m8n16.x2.shared.{elements} {result}, [{row}];",
    isa=(8, 6),
    sm="100a",
    convergent=True,
)
def ldmatrix_m8n16_x2(row: u32, elements: PackedElements) -> u32x2:
    """Return the lane's parts of two 8x16 matrices; lanes 0 to 15 give their rows.

    Executed by all threads of the warp, converged; `row` is a multiple of 16 B. Orders nothing.
    """
    raise NotImplementedError(f"ldmatrix_m8n16_x2: {_UNKNOWN}")


@instruction(
    "ldmatrix.sync.aligned.m8n16.x4.shared.{elements} {result}, [{row}];",
    isa=(8, 6),
    sm="100a",
    convergent=True,
)
def ldmatrix_m8n16_x4(row: u32, elements: PackedElements) -> u32x4:
    """Return the lane's parts of four 8x16 matrices; lanes 0 to 31 give their rows.

    Executed by all threads of the warp, converged; `row` is a multiple of 16 B. Orders nothing.
    """
    raise NotImplementedError(f"ldmatrix_m8n16_x4: {_UNKNOWN}")


@instruction(
    "stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [{row}], {{fragment}};",
    isa=(8, 6),
    sm="100a",
    convergent=True,
)
def stmatrix_m16n8_x1(row: u32, fragment: u32) -> None:
    """Write one 16x8 matrix of bytes, transposed; lanes 0 to 7 give its rows of 16 B.

    Executed by all threads of the warp, converged. The writes are ordinary ones.
    """
    raise NotImplementedError(f"stmatrix_m16n8_x1: {_UNKNOWN}")


@instruction(
    "stmatrix.sync.aligned.m16n8.x2.trans.shared.b8 [{row}], {fragment};",
    isa=(8, 6),
    sm="100a",
    convergent=True,
)
def stmatrix_m16n8_x2(row: u32, fragment: u32x2) -> None:
    """Write two 16x8 matrices of bytes, transposed; lanes 0 to 15 give their rows of 16 B.

    Executed by all threads of the warp, converged. The writes are ordinary ones.
    """
    raise NotImplementedError(f"stmatrix_m16n8_x2: {_UNKNOWN}")


@instruction(
    "stmatrix.sync.aligned.m16n8.x4.trans.shared.b8 [{row}], {fragment};",
    isa=(8, 6),
    sm="100a",
    convergent=True,
)
def stmatrix_m16n8_x4(row: u32, fragment: u32x4) -> None:
    """Write four 16x8 matrices of bytes, transposed; lanes 0 to 31 give their rows of 16 B.

    Executed by all threads of the warp, converged. The writes are ordinary ones.
    """
    raise NotImplementedError(f"stmatrix_m16n8_x4: {_UNKNOWN}")
