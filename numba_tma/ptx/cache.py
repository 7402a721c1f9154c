"""L2 cache policies for the copies' ``cache_hint``."""

from __future__ import annotations

from enum import IntEnum

from numba_tma.ptx._instruction import instruction, u64


class CachePolicy(IntEnum):
    """Named L2 policies, as the 64-bit values that createpolicy.fractional yields for 1.0.

    Tests on a GPU hold them equal to what the `createpolicy` rows return.
    """

    EVICT_NORMAL = 0x16F0000000000000
    EVICT_FIRST = 0x12F0000000000000
    EVICT_LAST = 0x14F0000000000000


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
