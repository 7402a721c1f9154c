"""What a GPU of compute capability 9.0 has room for, as the plans of kernels count on it."""

from __future__ import annotations

#: Of shared memory, for a block's tiles: 227 KiB less barriers, alignment and where threads meet.
SHARED_BYTES = 225 << 10
#: Of the L2 cache, for what blocks read again and again, beside all that passes through it.
CACHED_BYTES = 32 << 20
