"""Blocks of a cluster: how a cluster is formed, and which block's memory an address is in."""

from __future__ import annotations

from numba_tma.simulator.block import Cta, Dim3
from numba_tma.simulator.clocks import Clocks
from numba_tma.simulator.errors import BadOperand
from numba_tma.simulator.thread import SimulatedThread, current

#: Above these bits an address holds the block's rank plus 1; 0 is the block that uses it.
RANK_SHIFT = 24


def form_cluster(blocks: list[Cta], dim: Dim3) -> list[SimulatedThread]:
    """Make one cluster of `blocks`, which stand by rank; return their threads."""
    threads = [thread for block in blocks for thread in block.threads]
    for row, thread in enumerate(threads):
        thread.row = row
    clocks = None
    if len(blocks) > 1:
        # From the start on: that a block has started is something that its peers have to learn.
        clocks = Clocks(len(threads))
        for row in range(len(threads)):
            clocks.publish(row)
    for rank, block in enumerate(blocks):
        block.cluster, block.rank, block.clocks = blocks, rank, clocks
        block.cluster_dim, block.explicit_cluster = dim, True
    return threads


def mapa(address: int, rank: int) -> int:
    """Return the address by which the cluster knows shared `address` of the block `rank`."""
    cluster = current().cta.cluster
    if not 0 <= int(rank) < len(cluster):
        raise BadOperand(f"mapa: the cluster has the blocks 0 to {len(cluster) - 1}, not {rank}")
    return (int(rank) + 1) << RANK_SHIFT | int(address) & (1 << RANK_SHIFT) - 1


def getctarank(address: int) -> int:
    """Return the rank of the block that an address of the cluster lies in."""
    return _owner(current(), address).rank


def resolve(address: int) -> tuple[Cta, int]:
    """Return the block whose memory the calling thread is about to touch, and the address there.

    Another block must be known to have started, and to be there still: what its threads know when
    they exit has to take in this access.
    """
    thread = current()
    owner = _owner(thread, address)
    if owner is not thread.cta:
        owner.visit(thread)
    return owner, int(address) & (1 << RANK_SHIFT) - 1


def _owner(thread: SimulatedThread, address: int) -> Cta:
    cluster, rank = thread.cta.cluster, int(address) >> RANK_SHIFT
    if rank > len(cluster):
        raise BadOperand(
            f"{int(address)} is not a shared address of this cluster, as mapa gives it"
        )
    return cluster[rank - 1] if rank else thread.cta
