"""Turns: how many stages of a pipeline each warp has filled, waited for and released.

All warps of a role take the same tiles, and the producer fills as many stages as the consumers
take. If a warp skips a tile or stops early, an empty barrier is left with a part of its arrivals.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from numba_tma.simulator.errors import UnequalTurns

if TYPE_CHECKING:
    from numba_tma.simulator.barriers import TrackedBarrier
    from numba_tma.simulator.block import Cta
    from numba_tma.simulator.thread import SimulatedThread

_STAGE = re.compile(r"(full|empty)\[\d+\](?: of \S+| of sub-stage \d+)? of (\w+\(.*)")

REPAIR = (
    "Every warp of a role takes every tile: compute first, stop and step of the loop from values "
    "that all warps of both sides share, and leave no turn out by `continue`, `break` or `return`"
)


def check_turns(cta: Cta) -> None:
    """Raise if some warps of a role have released or committed a stage, and others have not."""
    for barrier in cta.barriers.values():
        match, model = _STAGE.fullmatch(barrier.name), barrier.model
        if match is None or model.pending in (0, model.count):
            continue
        come = model.count - model.pending
        raise UnequalTurns(
            f"block {cta.index} ended, and {barrier.name} has {come} of the {model.count} arrivals "
            f"of its last phase. {turns_in_words(cta, match[2])}. {REPAIR}"
        )


def lines_of_turns(barriers: Iterable[TrackedBarrier]) -> list[str]:
    """Return the turns of the pipelines of some barriers, as lines of a deadlock report."""
    found: dict[tuple[Cta, str], None] = {}
    for barrier in barriers:
        if match := _STAGE.fullmatch(barrier.name):
            found[barrier.cta, match[2]] = None
    return [f"  {turns_in_words(cta, pipeline)}" for cta, pipeline in found]


def turns_in_words(cta: Cta, pipeline: str) -> str:
    """Return how many stages of a pipeline in a block each warp has filled and released."""
    filled: Counter[tuple[str, int]] = Counter()
    released: Counter[tuple[str, int]] = Counter()
    waited: Counter[tuple[str, int]] = Counter()
    for barrier in cta.barriers.values():
        match = _STAGE.fullmatch(barrier.name)
        if match is None or match[2] != pipeline:
            continue
        counts = [(filled, barrier.arrived), (waited, barrier.waited)]
        for total, by_thread in counts if match[1] == "full" else [(released, barrier.arrived)]:
            total.update(_by_warp(cta, by_thread))
    parts = [
        f"{verb} by {_in_words(total)}"
        for verb, total in (("filled", filled), ("waited for", waited), ("released", released))
        if total
    ]
    return f"Stages of {pipeline.partition('(')[0]}: {', '.join(parts) or 'none was used'}"


def _by_warp(cta: Cta, by_thread: Counter[SimulatedThread]) -> Counter[tuple[str, int]]:
    """Return the turns of each warp: those of its lane that has most."""
    most: Counter[tuple[str, int]] = Counter()
    for thread, turns in by_thread.items():
        block = f" of block {thread.block}" if len(cta.cluster) > 1 else ""
        name = thread.cta.role_names.get(thread.warp, "")
        warp = f"{f' ({name})' if name else ''}{block}", thread.warp
        most[warp] = max(most[warp], turns)
    return most


def _in_words(total: Counter[tuple[str, int]]) -> str:
    """Return the turns of warps; warps of a role with the same number are listed together."""
    alike: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for (role, warp), turns in sorted(total.items(), key=lambda item: item[0][1]):
        alike[role, turns].append(warp)
    return " and ".join(
        f"warp{'s' * (len(warps) > 1)} {', '.join(map(str, warps))}{role}: {turns}"
        for (role, turns), warps in alike.items()
    )
