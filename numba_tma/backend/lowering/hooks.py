"""The points at which races mode and traces hear of what a lowering emits, beside the rows' hooks.

Nothing is in these lists outside of the two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from numba_tma.backend.compiler import Builder, Context, Value

Access: TypeAlias = Literal["read", "write", "atomic"]
#: Called with (context, builder, access, address, nbytes) before a generic access of a thread.
ACCESSES: list[Callable[..., None]] = []
#: Called with (context, builder, runs, start) before a wgmma reads an operand: its byte runs from
#: the start, and the low word of its descriptor.
OPERANDS: list[Callable[..., None]] = []
#: Pairs: the first is called with (context, builder) before a wait for an mbarrier's phase, the
#: second after it, with (builder, result of the first, type of the barrier, its value, site).
AROUND_WAITS: list[tuple[Callable[..., Any], Callable[..., None]]] = []
#: Called with (context, builder) before a wait for wgmma groups, which whole warps execute.
BEFORE_WAITS: list[Callable[..., None]] = []
#: Called with (context, builder, pending) after a wgmma commit (None), and after a wait.
GROUPS: list[Callable[..., None]] = []


def accessed(
    context: Context, builder: Builder, access: Access, address: Value, nbytes: int
) -> None:
    """Tell of a generic access to `nbytes` of shared memory."""
    for hook in ACCESSES:
        hook(context, builder, access, address, nbytes)
