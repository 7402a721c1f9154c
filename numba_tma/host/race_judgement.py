"""The races in the log of a launch: the events of each cluster are replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numba_tma.host.debug import Site
from numba_tma.host.race_records import MOST
from numba_tma.host.race_replay import Replay
from numba_tma.host.races import BY_LANE, EVENT, Kind, Race


def without_repeats(events: NDArray[Any]) -> NDArray[Any]:
    """Return which events of a cluster do not repeat their warp's last event.

    Each lane of a warp logs its fence and the end of its wait, as it goes on without the others.
    """
    order = np.lexsort((np.arange(len(events)), events["warp"], events["slot"]))
    sorted_ = events[order]
    repeats = np.zeros(len(events), np.bool_)
    repeats[order[1:]] = (sorted_[1:] == sorted_[:-1]) & np.isin(sorted_["kind"][1:], BY_LANE)
    return ~repeats


def clusters_of(events: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield the numbers of the events of each cluster, without repeats."""
    clusters = events["slot"] // np.maximum(events["blocks"], 1)
    order = np.argsort(clusters, kind="stable")
    bounds = np.flatnonzero(np.diff(clusters[order])) + 1
    for part in np.split(order, bounds) if len(order) else ():
        yield part[without_repeats(events[part])]


def races_of(
    events: NDArray[Any],
    grid: Sequence[int],
    sites: Sequence[Site],
    names_of: Callable[[int, int, int], tuple[list[tuple[int, str]], int]],
    *,
    ended: bool,
) -> list[Race]:
    """Return the races in a launch's events. `ended`: no warp was stuck and no event is missing.

    `names_of` returns what a label event gives: the names as (address, text) pairs, and the bytes
    from the first address that are the pipeline's stages.
    """
    assert events.dtype == EVENT

    def block_of(linear: int) -> tuple[int, int, int]:
        x, y = grid[0], grid[1]
        return linear % x, linear // x % y, linear // (x * y)

    races: list[Race] = []
    for numbers in clusters_of(events):
        own = events[numbers]
        blocks, warps = int(own["blocks"].max()), int(own["warps"].max())
        names: dict[tuple[int, int], str] = {}
        extents: list[tuple[int, int, int]] = []
        for label in own[own["kind"] == Kind.LABEL]:
            rank = int(label["slot"]) % blocks
            base = int(label["address"])
            places, nbytes = names_of(int(label["other"]), base, int(label["size"]))
            names |= {(rank, address): text for address, text in places}
            extents.append((rank, base, base + nbytes))
        replay = Replay(blocks, warps, sites, names, extents)
        replay.run(own, numbers.tolist(), block_of)
        if ended and not replay.races:
            replay.finish()
        races += replay.races
        if len(races) >= MOST:
            break
    return races
