"""Loads and stores of words and vectors of words in global memory, by address.

An address is a multiple of the size of the access. `offset`, a literal number of bytes, is added to
the address. `condition` predicates the instruction: if it is false, memory is not accessed, and a
load returns 0. The accesses are not ordered among each other.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, TypeAlias

import numpy as np

from numba_tma import simulator
from numba_tma.ptx._instruction import (
    CacheHint,
    GlobalAddress,
    Immediate,
    Predicate,
    f32,
    f32x2,
    f32x4,
    global_bytes,
    instruction,
    u16,
    u32,
    u32x2,
    u32x4,
    u64,
)

__all__ = [
    "ld_global_u16", "ld_global_u32", "ld_global_v2_u32", "ld_global_v4_u32", "st_global_u16",
    "st_global_u32", "st_global_u64", "st_global_f32", "st_global_v2_u32", "st_global_v4_u32",
    "st_global_v2_f32", "st_global_v4_f32",
]  # fmt: skip

L1Priority: TypeAlias = Literal["no_allocate"]

_IF = "<condition:@{condition} >"
_LOADED = "<l1:.L1::{l1}><cache_hint:.L2::cache_hint>"
_FROM = " {result}, [{source}<offset:+{offset}>]<cache_hint:, {cache_hint}>;"
_SINCE = {"no_allocate": ((7, 4), 80), "cache_hint": ((7, 4), 80)}


@instruction(_IF + "ld.global" + _LOADED + ".u16" + _FROM, isa=(1, 0), sm=80, since=_SINCE)
def ld_global_u16(
    source: GlobalAddress,
    offset: Immediate | None = None,
    l1: L1Priority | None = None,
    cache_hint: CacheHint = None,
    condition: Predicate | None = None,
) -> u16:
    """Return the 16-bit word at a multiple of 2 B.

    "no_allocate" leaves L1 unchanged. `cache_hint` is a policy for L2. Executed by any thread.
    """
    return int(_read("ld_global_u16", source, offset, "u2", 1, condition)[0])


@instruction(_IF + "ld.global" + _LOADED + ".u32" + _FROM, isa=(1, 0), sm=80, since=_SINCE)
def ld_global_u32(
    source: GlobalAddress,
    offset: Immediate | None = None,
    l1: L1Priority | None = None,
    cache_hint: CacheHint = None,
    condition: Predicate | None = None,
) -> u32:
    """Return the 32-bit word at a multiple of 4 B.

    `l1` and `cache_hint` are those of `ld_global_u16`. Executed by any thread.
    """
    return int(_read("ld_global_u32", source, offset, "u4", 1, condition)[0])


@instruction(_IF + "ld.global" + _LOADED + ".v2.u32" + _FROM, isa=(1, 0), sm=80, since=_SINCE)
def ld_global_v2_u32(
    source: GlobalAddress,
    offset: Immediate | None = None,
    l1: L1Priority | None = None,
    cache_hint: CacheHint = None,
    condition: Predicate | None = None,
) -> u32x2:
    """Return the two 32-bit words at a multiple of 8 B.

    `l1` and `cache_hint` are those of `ld_global_u16`. Executed by any thread.
    """
    return tuple(_read("ld_global_v2_u32", source, offset, "u4", 2, condition).tolist())


@instruction(_IF + "ld.global" + _LOADED + ".v4.u32" + _FROM, isa=(1, 0), sm=80, since=_SINCE)
def ld_global_v4_u32(
    source: GlobalAddress,
    offset: Immediate | None = None,
    l1: L1Priority | None = None,
    cache_hint: CacheHint = None,
    condition: Predicate | None = None,
) -> u32x4:
    """Return the four 32-bit words at a multiple of 16 B.

    `l1` and `cache_hint` are those of `ld_global_u16`. Executed by any thread.
    """
    return tuple(_read("ld_global_v4_u32", source, offset, "u4", 4, condition).tolist())


@instruction(_IF + "st.global.u16 [{destination}<offset:+{offset}>], {value};", isa=(1, 0), sm=80)
def st_global_u16(
    destination: GlobalAddress,
    value: u16,
    offset: Immediate | None = None,
    condition: Predicate | None = None,
) -> None:
    """Write a 16-bit word at a multiple of 2 B. Executed by any thread."""
    _write("st_global_u16", destination, offset, np.array([value], np.uint16), condition)


@instruction(_IF + "st.global.u32 [{destination}<offset:+{offset}>], {value};", isa=(1, 0), sm=80)
def st_global_u32(
    destination: GlobalAddress,
    value: u32,
    offset: Immediate | None = None,
    condition: Predicate | None = None,
) -> None:
    """Write a 32-bit word at a multiple of 4 B. Executed by any thread."""
    _write("st_global_u32", destination, offset, np.array([value], np.uint32), condition)


@instruction(_IF + "st.global.u64 [{destination}<offset:+{offset}>], {value};", isa=(1, 0), sm=80)
def st_global_u64(
    destination: GlobalAddress,
    value: u64,
    offset: Immediate | None = None,
    condition: Predicate | None = None,
) -> None:
    """Write a 64-bit word at a multiple of 8 B. Executed by any thread."""
    _write("st_global_u64", destination, offset, np.array([value], np.uint64), condition)


@instruction(_IF + "st.global.f32 [{destination}<offset:+{offset}>], {value};", isa=(1, 0), sm=80)
def st_global_f32(
    destination: GlobalAddress,
    value: f32,
    offset: Immediate | None = None,
    condition: Predicate | None = None,
) -> None:
    """Write a float32 at a multiple of 4 B. Executed by any thread."""
    _write("st_global_f32", destination, offset, np.array([value], np.float32), condition)


@instruction(
    _IF + "st.global.v2.u32 [{destination}<offset:+{offset}>], {values};", isa=(1, 0), sm=80
)
def st_global_v2_u32(
    destination: GlobalAddress,
    values: u32x2,
    offset: Immediate | None = None,
    condition: Predicate | None = None,
) -> None:
    """Write two 32-bit words at a multiple of 8 B. Executed by any thread."""
    _write("st_global_v2_u32", destination, offset, np.array(values, np.uint32), condition)


@instruction(
    _IF + "st.global.v4.u32 [{destination}<offset:+{offset}>], {values};", isa=(1, 0), sm=80
)
def st_global_v4_u32(
    destination: GlobalAddress,
    values: u32x4,
    offset: Immediate | None = None,
    condition: Predicate | None = None,
) -> None:
    """Write four 32-bit words at a multiple of 16 B. Executed by any thread."""
    _write("st_global_v4_u32", destination, offset, np.array(values, np.uint32), condition)


@instruction(
    _IF + "st.global.v2.f32 [{destination}<offset:+{offset}>], {values};", isa=(1, 0), sm=80
)
def st_global_v2_f32(
    destination: GlobalAddress,
    values: f32x2,
    offset: Immediate | None = None,
    condition: Predicate | None = None,
) -> None:
    """Write two float32 at a multiple of 8 B. Executed by any thread."""
    _write("st_global_v2_f32", destination, offset, np.array(values, np.float32), condition)


@instruction(
    _IF + "st.global.v4.f32 [{destination}<offset:+{offset}>], {values};", isa=(1, 0), sm=80
)
def st_global_v4_f32(
    destination: GlobalAddress,
    values: f32x4,
    offset: Immediate | None = None,
    condition: Predicate | None = None,
) -> None:
    """Write four float32 at a multiple of 16 B. Executed by any thread."""
    _write("st_global_v4_f32", destination, offset, np.array(values, np.float32), condition)


# ----------------------------------------------------- helpers of simulator bodies


def _read(
    what: str,
    source: GlobalAddress,
    offset: int | None,
    kind: str,
    count: int,
    condition: Predicate | None,
) -> Any:
    """Return `count` words at a global address, or zeros if the condition is false."""
    simulator.current()  # raises on the host
    dtype = np.dtype(kind)
    if condition is not None and not condition:
        return np.zeros(count, dtype)
    words = _words(what, source, offset or 0, dtype, count)
    simulator.accessed(words, writes=False)
    return words.copy()


def _write(
    what: str,
    destination: GlobalAddress,
    offset: int | None,
    values: np.ndarray[Any, Any],
    condition: Predicate | None,
) -> None:
    """Write words to a global address, unless the condition is false."""
    simulator.current()  # raises on the host
    if condition is None or condition:
        words = _words(what, destination, offset or 0, values.dtype, values.size)
        simulator.accessed(words, writes=True)
        words[:] = values


def _words(what: str, place: GlobalAddress, offset: int, dtype: np.dtype[Any], count: int) -> Any:
    """Return a writable view of `count` words at a global address."""
    nbytes = dtype.itemsize * count
    if isinstance(place, (int, np.integer)):
        address = int(place) + offset
        memory = _page(address // _PAGE)[address % _PAGE :][:nbytes]
    else:
        memory = global_bytes(place, offset + nbytes)[offset:]
        address = memory.ctypes.data
    if address % nbytes:
        raise simulator.BadOperand(
            f"{what}: global address {address:#x} is not a multiple of the {nbytes} bytes of the "
            "access"
        )
    return memory.view(dtype)


_PAGE = 4096  # bytes, a multiple of those of an access


@functools.lru_cache(maxsize=1 << 16)
def _page(number: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the bytes of a page, always as the same array, by which races are found."""
    return global_bytes(number * _PAGE, _PAGE)
