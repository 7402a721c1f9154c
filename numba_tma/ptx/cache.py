"""L2 cache policies for the copies' ``cache_hint``."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from numba_tma import simulator
from numba_tma.host.cache_policy import CachePolicy
from numba_tma.ptx._instruction import GlobalAddress, f32, instruction, u32, u64

__all__ = [
    "CachePolicy", "createpolicy_evict_first", "createpolicy_evict_normal",
    "createpolicy_evict_last", "createpolicy_fractional", "createpolicy_range", "createpolicy_cvt",
]  # fmt: skip

Priority: TypeAlias = Literal["evict_last", "evict_normal", "evict_first", "evict_unchanged"]
OtherPriority: TypeAlias = Literal["evict_first", "evict_unchanged"]
#: Bits of the primary priority in a policy. The secondary priority is one bit beside them.
_PRIORITIES = {"evict_unchanged": 0x0, "evict_first": 0x2, "evict_last": 0x4, "evict_normal": 0x6}


@instruction(
    "createpolicy.fractional.L2::evict_first.b64 {result}, 1.0;", isa=(7, 4), sm=80, pure=True
)
def createpolicy_evict_first() -> u64:
    """Return the policy for data that is not used again: evicted first."""
    return CachePolicy.EVICT_FIRST


@instruction(
    "createpolicy.fractional.L2::evict_normal.b64 {result}, 1.0;", isa=(7, 4), sm=80, pure=True
)
def createpolicy_evict_normal() -> u64:
    """Return the default policy."""
    return CachePolicy.EVICT_NORMAL


@instruction(
    "createpolicy.fractional.L2::evict_last.b64 {result}, 1.0;", isa=(7, 4), sm=80, pure=True
)
def createpolicy_evict_last() -> u64:
    """Return the policy for data that many blocks use: evicted last."""
    return CachePolicy.EVICT_LAST


@instruction(
    "createpolicy.fractional.L2::{primary}<secondary:.L2::{secondary}>.b64 {result}, {fraction};",
    isa=(7, 4),
    sm=80,
    pure=True,
)
def createpolicy_fractional(
    fraction: f32, primary: Priority, secondary: OtherPriority | None = None
) -> u64:
    """Return a policy with one priority for `fraction` of the accesses, another for the rest.

    `fraction` is above 0 and at most 1, truncated to sixteenths. The hardware chooses the accesses
    that have the primary priority. Without `secondary` the rest is "evict_unchanged".
    """
    if not 0 < fraction <= 1:
        raise simulator.BadOperand(
            f"createpolicy_fractional(fraction=...) is {fraction}; it is above 0 and at most 1"
        )
    return _policy(primary, secondary) | int(np.float32(fraction) * np.float32(15.99)) << 52


@instruction(
    "createpolicy.range.global.L2::{primary}<secondary:.L2::{secondary}>.b64"
    " {result}, [{window}], {primary_nbytes}, {total_nbytes};",
    isa=(7, 4),
    sm=80,
    pure=True,
)
def createpolicy_range(
    window: GlobalAddress,
    primary_nbytes: u32,
    total_nbytes: u32,
    primary: Priority,
    secondary: OtherPriority | None = None,
) -> u64:
    """Return a policy by address: one priority for the window's first bytes, another for the rest.

    The first `primary_nbytes` from `window` on have the primary priority. The bytes after them, up
    to `total_nbytes`, have the secondary priority ("evict_unchanged" by default). Addresses outside
    the window have an unspecified priority. The hardware rounds the limits to blocks. In the
    simulator every address has the primary priority.
    """
    return _policy(primary, secondary) | 0xF << 52


def _policy(primary: str, secondary: str | None) -> int:
    return (0x10 | _PRIORITIES[primary] | (secondary == "evict_first")) << 56


@instruction("createpolicy.cvt.L2.b64 {result}, {access_property};", isa=(7, 4), sm=80, pure=True)
def createpolicy_cvt(access_property: u64) -> u64:
    """Return the policy of a CUDA C++ access property (``cuda::access_property``)."""
    return access_property
