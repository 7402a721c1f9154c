"""L2 cache policies by name."""

from enum import IntEnum


class CachePolicy(IntEnum):
    """L2 policies by name: the 64-bit values that createpolicy.fractional returns for 1.0.

    Tests on a GPU hold them equal to the results of the `createpolicy` rows.
    """

    EVICT_NORMAL = 0x16F0000000000000
    EVICT_FIRST = 0x12F0000000000000
    EVICT_LAST = 0x14F0000000000000
