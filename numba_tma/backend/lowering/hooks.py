"""The points at which debug mode hears of what a lowering emits, beside the rows' own hooks.

Nothing is in these lists outside of races mode.
"""

from __future__ import annotations

from collections.abc import Callable

from numba_tma.backend.compiler import Builder, Context, Value

#: Called with (context, builder, writes, address, nbytes) before a generic access of a thread.
ACCESSES: list[Callable[..., None]] = []
#: Called with (context, builder, runs, start) before a wgmma reads an operand: its byte runs from
#: the start, and the low word of its descriptor.
OPERANDS: list[Callable[..., None]] = []
#: Called with (context, builder) before a wait for wgmma groups, which whole warps execute.
BEFORE_WAITS: list[Callable[..., None]] = []
#: Called with (context, builder, pending) after a wgmma commit (None), and after a wait.
GROUPS: list[Callable[..., None]] = []


def accessed(context: Context, builder: Builder, writes: bool, address: Value, nbytes: int) -> None:
    """Tell of a generic access to `nbytes` of shared memory."""
    for hook in ACCESSES:
        hook(context, builder, writes, address, nbytes)
