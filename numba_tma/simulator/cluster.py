"""Shared memory across the blocks of a cluster: whose memory an address means."""

from __future__ import annotations

from .block import Cta
from .errors import BadOperand
from .thread import current

#: Above these bits an address holds the block's rank plus 1; 0 is the block that uses it.
RANK_SHIFT = 24


def mapa(address: int, rank: int) -> int:
    """Return the address by which the cluster knows shared `address` of the block `rank`."""
    cluster = current().cta.cluster
    if not 0 <= int(rank) < len(cluster):
        raise BadOperand(f"mapa: the cluster has the blocks 0 to {len(cluster) - 1}, not {rank}")
    return (int(rank) + 1) << RANK_SHIFT | int(address) & (1 << RANK_SHIFT) - 1


def resolve(address: int) -> tuple[Cta, int]:
    """Return the block that an address of the cluster lies in, and the address there."""
    cta = current().cta
    rank = int(address) >> RANK_SHIFT
    owner = cta.cluster[rank - 1] if rank else cta
    return owner, int(address) & (1 << RANK_SHIFT) - 1
