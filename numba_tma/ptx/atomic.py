"""The atomic that schedules tiles."""

from __future__ import annotations

from numba_tma import simulator
from numba_tma.ptx._instruction import GlobalAddress, global_bytes, instruction, u32


@instruction("atom.global.inc.u32 {result}, [{counter}], {limit};", isa=(2, 0), sm=80)
def atom_inc(counter: GlobalAddress, limit: u32) -> u32:
    """Add 1 to a 32-bit counter, back to 0 after `limit`; return the old value.

    Executed by any thread; relaxed, at device scope.
    """
    return simulator.atomic_inc(global_bytes(counter, 4), limit)
