"""Single words of shared memory, by address."""

from __future__ import annotations

import numpy as np

from numba_tma import simulator
from numba_tma.ptx._instruction import instruction, u32


@instruction("ld.shared.u32 {result}, [{location}];", isa=(1, 0), sm=80)
def ld_shared_u32(location: u32) -> u32:
    """Return the 32-bit word at a shared-memory address. Executed by any thread."""
    return int(simulator.shared_read(location, np.dtype(np.uint32)))


@instruction("st.shared.u32 [{location}], {value};", isa=(1, 0), sm=80)
def st_shared_u32(location: u32, value: u32) -> None:
    """Write a 32-bit word at a shared-memory address. Executed by any thread."""
    simulator.shared_write(location, np.uint32(value))
