"""Copies through maps that a kernel edits: no copy may use a map while a thread edits it.

The records are those of one block or cluster; others are not ordered with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from numba_tma.simulator.errors import EarlyOverwrite, MissingFence

if TYPE_CHECKING:
    from numba_tma.simulator.barriers import TrackedBarrier
    from numba_tma.simulator.thread import SimulatedThread


class MapUses:
    """The copies through one map in global memory, and its last edit."""

    def __init__(self) -> None:
        #: By barrier of a load: the number of phases to be known. By thread: its last store.
        self._loads: dict[TrackedBarrier, int] = {}
        self._stores: dict[SimulatedThread, int] = {}
        self._editor: SimulatedThread | None = None
        self._edited_at = 0
        #: Whether the last edit was in place, and no fence of its thread has released it.
        self._unreleased = False

    def loads(self, barrier: TrackedBarrier) -> None:
        """Record a load that completes on the current phase of a barrier."""
        self._loads[barrier] = barrier.model.phase + 1

    def stores(self, thread: SimulatedThread) -> None:
        """Record the last store of a thread."""
        self._stores[thread] = thread.groups.stores

    def edit(self, thread: SimulatedThread, what: str, *, in_place: bool) -> None:
        """Record an edit; raise if a copy through the map is not known to be complete."""
        clocks = thread.cta.tracked_clocks()
        known, stores = clocks.table[thread.row], clocks.stores(thread.row)
        for barrier, phase in self._loads.items():
            if known[barrier.column] < phase:
                raise EarlyOverwrite(
                    f"{what}: the map is edited while a load through it may still use it. It "
                    f"completes phase {phase - 1} of {barrier.name}: wait for that first, in this "
                    "thread or in one that synchronises with it afterwards"
                )
        for storer, number in self._stores.items():
            if min(stores[storer.row], storer.groups.known_written) < number:
                raise EarlyOverwrite(
                    f"{what}: the map is edited while a store through it by {storer.description} "
                    "may still use it. That thread must pass cp_async_bulk_wait_group(0), not its "
                    "_read form, and synchronise with this one"
                )
        self._editor, self._edited_at = thread, clocks.epoch(thread.row)
        self._unreleased = in_place

    def release(self, thread: SimulatedThread) -> None:
        """Publish the edits in place of a thread."""
        if self._editor is thread:
            self._unreleased = False

    def check_acquire(self, thread: SimulatedThread) -> None:
        """Raise unless the last edit is released, and ordered before an acquire of a thread."""
        editor = self._editor
        if editor is None:
            return
        known = thread.cta.tracked_clocks().epochs(thread.row)[editor.row]
        if editor is not thread and known < self._edited_at:
            raise MissingFence(
                f"fence_acquire: {editor.description} has edited the map, and nothing orders the "
                "edit before this acquire: let the two threads synchronise in between (syncwarp, "
                "syncthreads or a barrier)"
            )
        if self._unreleased:
            raise MissingFence(
                f"fence_acquire: {editor.description} has edited the map in place, and has not "
                "published the edit: it must execute ptx.fence_proxy_tensormap_release() after "
                'it, before the synchronisation ("gpu" or wider), or edit a copy by tma.edit_map'
            )


def uses_of(thread: SimulatedThread, tensor_map: object) -> MapUses | None:
    """Return the record of a map that kernels may edit, in the thread's cluster; else None."""
    if getattr(tensor_map, "edits", None) is None:
        return None
    return thread.cta.cluster[0].map_uses.setdefault(id(tensor_map), MapUses())
