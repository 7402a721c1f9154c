"""ldmatrix and stmatrix: 8x8 matrices between shared memory and the fragments of a warp.

A matrix has 8 rows of 8 elements of 16 bits. Each row has an address of its own: lanes 8 m to 8 m +
7 pass the addresses of matrix m's rows. In a fragment, lane l holds elements 2 (l mod 4) and 2 (l
mod 4) + 1 of row l // 4, the first in the low half of its register. With "trans" they are elements
of column l // 4.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from numba_tma import simulator
from numba_tma.ptx._instruction import instruction, u32, u32x2, u32x4

__all__ = ["ldmatrix_x1", "ldmatrix_x2", "ldmatrix_x4", "stmatrix_x1", "stmatrix_x2", "stmatrix_x4"]

Transposed: TypeAlias = Literal["trans"]


@instruction(
    "ldmatrix.sync.aligned.m8n8.x1<trans:.{trans}>.shared.b16 {{result}}, [{row}];",
    isa=(6, 5),
    sm=80,
    convergent=True,
)
def ldmatrix_x1(row: u32, trans: Transposed | None = None) -> u32:
    """Return the lane's part of one matrix; lanes 0 to 7 pass its row addresses.

    `row` is a multiple of 16 B. "trans" returns columns in place of rows. Executed by all threads
    of the warp, converged. Orders nothing: the warp has waited for the data before.
    """
    return simulator.ldmatrix(row, 1, trans is not None)[0]


@instruction(
    "ldmatrix.sync.aligned.m8n8.x2<trans:.{trans}>.shared.b16 {result}, [{row}];",
    isa=(6, 5),
    sm=80,
    convergent=True,
)
def ldmatrix_x2(row: u32, trans: Transposed | None = None) -> u32x2:
    """Return the lane's parts of two matrices; lanes 0 to 15 pass their row addresses.

    All else is as for `ldmatrix_x1`. Executed by all threads of the warp, converged.
    """
    return simulator.ldmatrix(row, 2, trans is not None)


@instruction(
    "ldmatrix.sync.aligned.m8n8.x4<trans:.{trans}>.shared.b16 {result}, [{row}];",
    isa=(6, 5),
    sm=80,
    convergent=True,
)
def ldmatrix_x4(row: u32, trans: Transposed | None = None) -> u32x4:
    """Return the lane's parts of four matrices; lanes 0 to 31 pass their row addresses.

    All else is as for `ldmatrix_x1`. Executed by all threads of the warp, converged.
    """
    return simulator.ldmatrix(row, 4, trans is not None)


@instruction(
    "stmatrix.sync.aligned.m8n8.x1<trans:.{trans}>.shared.b16 [{row}], {{fragment}};",
    isa=(7, 8),
    sm=90,
    convergent=True,
)
def stmatrix_x1(row: u32, fragment: u32, trans: Transposed | None = None) -> None:
    """Write one matrix from the lanes' parts; lanes 0 to 7 pass its row addresses.

    `row` is a multiple of 16 B. "trans" writes columns in place of rows. Executed by all threads of
    the warp, converged. The writes are ordinary ones of all 32 threads: each thread executes
    `fence_proxy_async` before a copy reads them.
    """
    simulator.stmatrix(row, (fragment,), trans is not None)


@instruction(
    "stmatrix.sync.aligned.m8n8.x2<trans:.{trans}>.shared.b16 [{row}], {fragment};",
    isa=(7, 8),
    sm=90,
    convergent=True,
)
def stmatrix_x2(row: u32, fragment: u32x2, trans: Transposed | None = None) -> None:
    """Write two matrices from the lanes' parts; lanes 0 to 15 pass their row addresses.

    All else is as for `stmatrix_x1`. Executed by all threads of the warp, converged.
    """
    simulator.stmatrix(row, fragment, trans is not None)


@instruction(
    "stmatrix.sync.aligned.m8n8.x4<trans:.{trans}>.shared.b16 [{row}], {fragment};",
    isa=(7, 8),
    sm=90,
    convergent=True,
)
def stmatrix_x4(row: u32, fragment: u32x4, trans: Transposed | None = None) -> None:
    """Write four matrices from the lanes' parts; lanes 0 to 31 pass their row addresses.

    All else is as for `stmatrix_x1`. Executed by all threads of the warp, converged.
    """
    simulator.stmatrix(row, fragment, trans is not None)
