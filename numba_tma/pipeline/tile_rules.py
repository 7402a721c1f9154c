"""The rules for the arguments of a `TilePipeline`, and their errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba_tma.backend.interface import compile_target, compile_time
from numba_tma.host.architectures import TCGEN05, refusal
from numba_tma.host.cluster_rules import cluster_size
from numba_tma.pipeline.roles import Role
from numba_tma.simulator import BadOperand

if TYPE_CHECKING:
    from numba_tma.pipeline.tile import TilePipeline


def one_of(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raise unless an argument is one of its choices."""
    if value not in choices or isinstance(value, bool):
        raise ValueError(f"TilePipeline({name}={value!r}): one of {', '.join(map(repr, choices))}")


def plane(cluster: Any) -> tuple[int, int]:
    """Return the blocks of a cluster along x and y."""
    x, y, z = cluster_size(cluster, "TilePipeline")
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
    if shared and pipeline.num_peers == 1:
        what = "CTA pair" if pipeline.in_pair else "block"
        raise ValueError(
            f"TilePipeline(cluster={pipeline.cluster}, multicast={shared}): the cluster has only "
            f"one {what} along the axis; give the kernel's cluster"
        )
    if not pipeline.in_cluster:
        return
    given = pipeline.cluster_feature
    if not pipeline.by_tma:
        raise ValueError(
            f"TilePipeline(filled_by={pipeline.filled_by!r}, {given}): only copies of the copy "
            f"engine can {'signal the pair' if pipeline.in_pair else 'be multicast'}"
        )
    if pipeline.each_thread_releases:
        raise ValueError(
            f"TilePipeline({given}): consumers in a cluster arrive by warp; use Warps or "
            "Warpgroups instead of Threads"
        )
    if not pipeline.consumers:
        raise ValueError(
            f"TilePipeline({given}): the barriers count arrivals of other blocks' roles, so name "
            "producer and consumer roles"
        )


def check_commits(pipeline: TilePipeline) -> None:
    """Raise unless one thread of whole warps can release the stages by a commit."""
    if pipeline.in_pair and not pipeline.by_commit:
        raise ValueError(
            f"TilePipeline(cta_group=2, released_by={pipeline.released_by!r}): a CTA pair "
            "multiplies with tcgen05, whose commits release the stages of both blocks: give "
            "released_by='tcgen05'"
        )
    if pipeline.in_pair and pipeline.cluster[0] % 2:
        raise ValueError(
            f"TilePipeline(cta_group=2, cluster={pipeline.cluster}): the two blocks of a CTA pair "
            "lie along x, so the cluster has an even number there: give cluster=(2, 1), and "
            "@tma.cluster((2, 1)) below @cuda.jit"
        )
    if not pipeline.by_commit:
        return
    if pipeline.by_cp_async:
        raise ValueError(
            "TilePipeline(filled_by='cp_async', released_by='tcgen05'): tcgen05 products read "
            "through the async proxy, and an arrival of cp.async copies fences nothing: fill the "
            "stages with filled_by='tma', or with 'threads', whose commit fences"
        )
    if pipeline.each_thread_releases:
        raise ValueError(
            f"TilePipeline(consumer={list(pipeline.consumers)}, released_by='tcgen05'): a whole "
            "warp elects the thread that multiplies; use Warps or Warpgroups instead of Threads"
        )


@compile_time
def check_products(pipeline: TilePipeline) -> None:
    """Raise if the pipeline needs products that the target does not have."""
    target = compile_target()
    if pipeline.by_commit and target and not TCGEN05.allow(target):
        raise BadOperand(
            f"{refusal(f'{pipeline}: a release by tcgen05.commit', TCGEN05, target)}; or give "
            "released_by='threads', and release a stage after the wgmma_wait of its products"
        )
