"""Loads and stores of words and vectors of words in shared memory, by address.

An address is a multiple of the size of the access. `offset`, a literal number of bytes, is added to
the address. `condition` predicates the load: if it is false, memory is not accessed, and the result
is 0. The accesses are not ordered among each other.
"""

from __future__ import annotations

import numpy as np

from numba_tma import simulator
from numba_tma.ptx._instruction import (
    Immediate,
    Predicate,
    f32,
    f32x4,
    instruction,
    u16,
    u32,
    u32x2,
    u32x4,
    u64,
)

__all__ = [
    "ld_shared_u16", "ld_shared_u32", "ld_shared_u64", "ld_shared_f32", "ld_shared_v2_u32",
    "ld_shared_v4_u32", "ld_shared_v4_f32", "st_shared_u16", "st_shared_u32", "st_shared_u64",
    "st_shared_f32", "st_shared_v2_u32", "st_shared_v4_u32", "st_shared_v4_f32",
]  # fmt: skip

_IF = "<condition:@{condition} >"


@instruction(_IF + "ld.shared.u16 {result}, [{location}<offset:+{offset}>];", isa=(1, 0), sm=80)
def ld_shared_u16(
    location: u32, offset: Immediate | None = None, condition: Predicate | None = None
) -> u16:
    """Return the 16-bit word at a shared-memory address. Executed by any thread."""
    if condition is not None and not condition:
        return 0
    return int(simulator.shared_read(location + (offset or 0), np.dtype(np.uint16)))


@instruction(_IF + "ld.shared.u32 {result}, [{location}<offset:+{offset}>];", isa=(1, 0), sm=80)
def ld_shared_u32(
    location: u32, offset: Immediate | None = None, condition: Predicate | None = None
) -> u32:
    """Return the 32-bit word at a shared-memory address. Executed by any thread."""
    if condition is not None and not condition:
        return 0
    return int(simulator.shared_read(location + (offset or 0), np.dtype(np.uint32)))


@instruction("ld.shared.u64 {result}, [{location}];", isa=(1, 0), sm=80)
def ld_shared_u64(location: u32) -> u64:
    """Return the 64-bit word at a shared-memory address. Executed by any thread."""
    return int(simulator.shared_read(location, np.dtype(np.uint64)))


@instruction("ld.shared.f32 {result}, [{location}];", isa=(1, 0), sm=80)
def ld_shared_f32(location: u32) -> f32:
    """Return the float32 at a shared-memory address. Executed by any thread."""
    return simulator.shared_read(location, np.dtype(np.float32))


@instruction(_IF + "ld.shared.v2.u32 {result}, [{location}<offset:+{offset}>];", isa=(1, 0), sm=80)
def ld_shared_v2_u32(
    location: u32, offset: Immediate | None = None, condition: Predicate | None = None
) -> u32x2:
    """Return the two 32-bit words at a multiple of 8 B. Executed by any thread."""
    if condition is not None and not condition:
        return (0, 0)
    return simulator.shared_read_vector(location + (offset or 0), np.dtype(np.uint32), 2)


@instruction(_IF + "ld.shared.v4.u32 {result}, [{location}<offset:+{offset}>];", isa=(1, 0), sm=80)
def ld_shared_v4_u32(
    location: u32, offset: Immediate | None = None, condition: Predicate | None = None
) -> u32x4:
    """Return the four 32-bit words at a multiple of 16 B. Executed by any thread."""
    if condition is not None and not condition:
        return (0, 0, 0, 0)
    return simulator.shared_read_vector(location + (offset or 0), np.dtype(np.uint32), 4)


@instruction("ld.shared.v4.f32 {result}, [{location}];", isa=(1, 0), sm=80)
def ld_shared_v4_f32(location: u32) -> f32x4:
    """Return the four float32 at a multiple of 16 B. Executed by any thread."""
    return simulator.shared_read_vector(location, np.dtype(np.float32), 4)


@instruction("st.shared.u16 [{location}], {value};", isa=(1, 0), sm=80)
def st_shared_u16(location: u32, value: u16) -> None:
    """Write a 16-bit word at a shared-memory address. Executed by any thread."""
    simulator.shared_write(location, np.uint16(value))


@instruction("st.shared.u32 [{location}], {value};", isa=(1, 0), sm=80)
def st_shared_u32(location: u32, value: u32) -> None:
    """Write a 32-bit word at a shared-memory address. Executed by any thread."""
    simulator.shared_write(location, np.uint32(value))


@instruction("st.shared.u64 [{location}], {value};", isa=(1, 0), sm=80)
def st_shared_u64(location: u32, value: u64) -> None:
    """Write a 64-bit word at a shared-memory address. Executed by any thread."""
    simulator.shared_write(location, np.uint64(value))


@instruction("st.shared.f32 [{location}], {value};", isa=(1, 0), sm=80)
def st_shared_f32(location: u32, value: f32) -> None:
    """Write a float32 at a shared-memory address. Executed by any thread."""
    simulator.shared_write(location, np.float32(value))


@instruction("st.shared.v2.u32 [{location}], {values};", isa=(1, 0), sm=80)
def st_shared_v2_u32(location: u32, values: u32x2) -> None:
    """Write two 32-bit words at a multiple of 8 B. Executed by any thread."""
    simulator.shared_write_vector(location, np.array(values, np.uint32))


@instruction("st.shared.v4.u32 [{location}], {values};", isa=(1, 0), sm=80)
def st_shared_v4_u32(location: u32, values: u32x4) -> None:
    """Write four 32-bit words at a multiple of 16 B. Executed by any thread."""
    simulator.shared_write_vector(location, np.array(values, np.uint32))


@instruction("st.shared.v4.f32 [{location}], {values};", isa=(1, 0), sm=80)
def st_shared_v4_f32(location: u32, values: f32x4) -> None:
    """Write four float32 at a multiple of 16 B. Executed by any thread."""
    simulator.shared_write_vector(location, np.array(values, np.float32))
