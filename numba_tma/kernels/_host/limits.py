"""What kernels' plans assume of a GPU of compute capability 9.0."""

from __future__ import annotations

from numba_tma.host.cache_policy import CachePolicy

#: Shared memory for a block's tiles, in bytes: 227 KiB less barriers, alignment and reductions.
SHARED_BYTES = 225 << 10
#: L2 cache for data that blocks read again and again, in bytes; the rest serves streamed data.
CACHED_BYTES = 32 << 20
#: L2 policy of loads that read data once. Loaded lines are evicted last, so written lines are
#: evicted first, in long runs; that was measured to be faster on an H200.
STREAMED = int(CachePolicy.EVICT_LAST)
#: Bytes that are read and written, below which threads copy faster than TMA does (measured on an
#: H100): they need neither a barrier nor a map, and no thread waits for another.
BY_THREADS = 128 << 20
