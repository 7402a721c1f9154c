"""Clusters: how one is formed, and the block of a shared address."""

from __future__ import annotations

from numba_tma.simulator.block import Cta, Dim3
from numba_tma.simulator.clocks import Clocks
from numba_tma.simulator.errors import BadOperand
from numba_tma.simulator.thread import SimulatedThread, current

#: Above these bits an address holds the block's rank plus 1; 0 is the block that uses it.
RANK_SHIFT = 24


def form_cluster(blocks: list[Cta], dim: Dim3) -> list[SimulatedThread]:
    """Make one cluster of `blocks`, in order of rank; return their threads."""
    threads = [thread for block in blocks for thread in block.threads]
    for row, thread in enumerate(threads):
        thread.row = row
    clocks = None
    if len(blocks) > 1:
        # Clocks run from the start: a block's start must be ordered before accesses of its peers.
        clocks = Clocks(len(threads))
        clocks.track_releases()
        for row in range(len(threads)):
            clocks.publish(row)
    for rank, block in enumerate(blocks):
        block.cluster, block.rank, block.clocks = blocks, rank, clocks
        block.cluster_dim, block.explicit_cluster = dim, True
    return threads


def mapa(address: int, rank: int) -> int:
    """Return the cluster's address of shared `address` in the block `rank`."""
    cluster = current().cta.cluster
    if not 0 <= int(rank) < len(cluster):
        raise BadOperand(f"mapa: the cluster has the blocks 0 to {len(cluster) - 1}, not {rank}")
    return (int(rank) + 1) << RANK_SHIFT | int(address) & (1 << RANK_SHIFT) - 1


def ranks_of(what: str, multicast: int) -> list[int]:
    """Return the ranks in a mask of the cluster's blocks, of which it names at least one."""
    mask, blocks = int(multicast), len(current().cta.cluster)
    if not 0 < mask < 1 << blocks:
        raise BadOperand(
            f"{what}: multicast is {mask:#b}; its bits are ranks of the cluster, which has the "
            f"blocks 0 to {blocks - 1}, and at least one is set"
        )
    return [rank for rank in range(blocks) if mask >> rank & 1]


def getctarank(address: int) -> int:
    """Return the rank of the block of a cluster's address."""
    return _owner(current(), address).rank


def resolve(address: int) -> tuple[Cta, int]:
    """Return the block whose memory the calling thread is about to access, and the address there.

    The start of another block must be ordered before this access, and this access before the exit
    of its threads.
    """
    thread = current()
    owner = _owner(thread, address)
    if owner is not thread.cta:
        owner.visit(thread)
    return owner, int(address) & (1 << RANK_SHIFT) - 1


def home_of(address: int) -> tuple[Cta, int]:
    """Return the block of a cluster's address and the address there, without an access.

    For an arrival that the hardware makes later: who waits for the arrival knows that it is over.
    """
    return _owner(current(), address), int(address) & (1 << RANK_SHIFT) - 1


def _owner(thread: SimulatedThread, address: int) -> Cta:
    cluster, rank = thread.cta.cluster, int(address) >> RANK_SHIFT
    if rank > len(cluster):
        raise BadOperand(
            f"{int(address)} is not a shared address of this cluster, as mapa gives it"
        )
    return cluster[rank - 1] if rank else thread.cta
