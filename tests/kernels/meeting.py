"""A kernel in which the threads of a block or cluster add up their parts, row after row."""

from numba import cuda

import numba_tma as tma
from numba_tma.device.combine import Exchange, combine_in_turns, exchange_tiles
from numba_tma.device.vectors import four
from numba_tma.kernels.rows.rmsnorm.operation import add_lanes

ROWS = 3  # the last uses the first one's places again


def meeting(threads, blocks):
    """Return the kernel, of (given, got), and the tile that the other blocks write into."""
    SCRATCH, PEERS = exchange_tiles(threads, blocks, turns=2)
    start_exchange, combine_all = combine_in_turns(add_lanes, threads, blocks)

    def kernel(given, got):
        scratch, peers = tma.shared_tile(SCRATCH), tma.shared_tile(PEERS)
        exchange = Exchange(scratch, peers, tma.shared_barriers(2))
        start_exchange(exchange, cuda.threadIdx.x)
        at = cuda.blockIdx.x * threads + cuda.threadIdx.x
        for k in range(ROWS):
            part = four(given[k, at], 0, 0, 0)
            got[k, at] = combine_all(part, exchange, k % 2, k // 2, 0)[0]

    return cuda.jit(tma.cluster(blocks)(kernel) if blocks > 1 else kernel), PEERS
