"""The rules for the arguments of a `TilePipeline`, and their errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba_tma.host.cluster_rules import cluster_size
from numba_tma.pipeline.roles import Role

if TYPE_CHECKING:
    from numba_tma.pipeline.tile import TilePipeline


def plane(cluster: Any) -> tuple[int, int]:
    """Return the blocks of a cluster along x and y."""
    x, y, z = cluster_size(cluster)
    if z > 1:
        raise ValueError(
            f"TilePipeline(cluster={cluster!r}): blocks share tiles along x and y, so a cluster "
            "has two extents, as in cluster=(2, 1)"
        )
    return x, y


def shared_tiles(multicast: Any) -> tuple[tuple[str, str], ...]:
    """Return the shared tiles, each with its axis."""
    if not isinstance(multicast, dict | None):
        raise TypeError(
            f"TilePipeline(multicast={multicast!r}): give a dict of shared tiles and their axes, "
            "as in multicast={'a': 'x'}"
        )
    return tuple(sorted((multicast or {}).items()))


def check_roles(producer: Any, consumer: Any, alternate: bool) -> tuple[Role, ...]:
    """Return the consumers; raise unless they and the producer are roles of one block."""
    consumers = consumer if isinstance(consumer, tuple) and consumer else (consumer,)
    if producer is None and consumer is None:
        if alternate:
            raise ValueError("TilePipeline(alternate=True): name the consumers that take turns")
        return ()
    for name, role in (("producer", producer), *(("consumer", c) for c in consumers)):
        if not isinstance(role, Role):
            raise TypeError(
                f"TilePipeline({name}=...) takes a role, as ROLES.load with ROLES = "
                f"Roles(compute=Warps(4), load=Warps(1)), not {role!r}; name both sides or none"
            )
    roles = (producer, *consumers)
    spans = sorted((role.first, role.first + role.sync_threads) for role in roles)
    overlap = any(stop > first for (_, stop), (first, _) in zip(spans, spans[1:]))
    indices, blocks = ({getattr(role, what) for role in roles} for what in ("index", "block"))
    if len(blocks) > 1 or len(indices) < len(roles) or overlap:
        raise ValueError(
            f"TilePipeline: producer {producer} and consumers {list(consumers)} must be different "
            "roles of the same Roles"
        )
    if len({role.group.unit == 1 for role in consumers}) > 1:
        raise ValueError(
            f"TilePipeline: consumers {list(consumers)} arrive partly by thread and partly by "
            "warp: use Threads for all of them or for none"
        )
    if alternate and len({role.arrivals for role in consumers}) > 1:
        counts = ", ".join(f"{role.arrivals} ({role.name})" for role in consumers)
        raise ValueError(
            f"TilePipeline(alternate=True): consumers that take turns must have equal arrivals, "
            f"but these have {counts}"
        )
    return consumers


def check_multicast(pipeline: TilePipeline) -> None:
    """Raise unless blocks of the cluster can share the named tiles."""
    names, shared = dict(pipeline.tiles), dict(pipeline.multicast)
    for name, axis in shared.items():
        if name not in names or axis not in ("x", "y"):
            raise ValueError(
                f"TilePipeline(multicast={shared}): a key is the name of a tile "
                f"({', '.join(names)}), its value the axis of the cluster along which blocks share "
                "the tile, 'x' or 'y'"
            )
    if shared and not pipeline.in_cluster:
        raise ValueError(
            f"TilePipeline(cluster={pipeline.cluster}, multicast={shared}): the cluster has only "
            "one block along the axis; give the kernel's cluster"
        )
    if pipeline.in_cluster and not pipeline.by_tma:
        raise ValueError(
            f"TilePipeline(filled_by={pipeline.filled_by!r}, multicast={shared}): only copies of "
            "the copy engine can be multicast"
        )
    if pipeline.in_cluster and pipeline.each_thread_releases:
        raise ValueError(
            f"TilePipeline(multicast={shared}): consumers in a cluster arrive by warp; use Warps "
            "or Warpgroups instead of Threads"
        )
    if pipeline.in_cluster and not pipeline.consumers:
        raise ValueError(
            f"TilePipeline(multicast={shared}): the barriers count arrivals of other blocks' "
            "roles, so name producer and consumer roles"
        )
