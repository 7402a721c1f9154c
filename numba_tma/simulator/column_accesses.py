"""Loads from tensor memory and stores to it: the newest of each warp, and those known to be over.

They are numbered by warp. A thread may rely on its own warp's accesses after a wait for them. It
may rely on another warp's accesses if that warp has waited for them, fenced, and arrived on a
barrier, and if the thread has waited for the barrier and fenced. Records are kept by 16 lanes and
column.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from numba_tma.host.tensor_memory_layout import COLUMNS, LANES
from numba_tma.simulator.async_copies import AsyncCopies
from numba_tma.simulator.clocks import Clocks
from numba_tma.simulator.errors import MissingFence, SimulatorError, TensorMemoryMisuse

if TYPE_CHECKING:
    from numba_tma.simulator.clocks import Clock
    from numba_tma.simulator.thread import SimulatedThread

#: Lanes per record, the fewest that a load or store covers.
HALF_WARP = 16


@dataclass(frozen=True)
class Region:
    """The lanes and columns of a warp's access."""

    lanes: slice
    columns: slice

    def describe(self) -> str:
        """Return the region's text for messages."""
        lanes, columns = self.lanes, self.columns
        return (
            f"tensor memory, lanes {lanes.start} to {lanes.stop - 1}, columns {columns.start} to "
            f"{columns.stop - 1}"
        )


def halves(region: Region) -> slice:
    """Return the records of a region's lanes."""
    return slice(region.lanes.start // HALF_WARP, -(-region.lanes.stop // HALF_WARP))


class ColumnAccesses:
    """The loads of a block, or its stores: the newest per record, and the ones known to be over."""

    def __init__(self, name: str, clocks: Clocks, warps: int) -> None:
        self.name = name  #: "ld" or "st"
        self.of: defaultdict[SimulatedThread, AsyncCopies] = defaultdict(AsyncCopies)
        self._clocks = clocks
        self._last = np.zeros((warps, LANES // HALF_WARP, COLUMNS), np.int32)
        #: The last access that each warp has waited for, by number.
        self._waited = np.zeros(warps, np.int32)
        # The accesses that each thread may rely on; the clocks have those that it publishes.
        self._relied: defaultdict[SimulatedThread, NDArray[np.int32]] = defaultdict(
            lambda: np.zeros(warps, np.int32)
        )
        # By warp: the accesses known to have been waited for, and of these the fenced ones.
        first = clocks.new_columns(2 * warps)
        self._known = slice(first, first + warps)
        self._told = slice(first + warps, first + 2 * warps)

    def record(self, thread: SimulatedThread, region: Region, number: int) -> None:
        """Record the region of the access `number` of the thread's warp."""
        self._last[thread.warp, halves(region), region.columns] = number

    def waited(self, thread: SimulatedThread, number: int) -> None:
        """Let the thread rely on the accesses of its warp up to `number`."""
        self._waited[thread.warp] = self._relied[thread][thread.warp] = number
        self._clocks.table[thread.row, self._known.start + thread.warp] = number

    def is_over(self, thread: SimulatedThread, number: int) -> bool:
        """Return whether the thread has waited for the access `number` of its warp."""
        return int(self._relied[thread][thread.warp]) >= number

    def fence_before(self, thread: SimulatedThread) -> None:
        """Publish with the thread's later arrivals the accesses that it relies on."""
        told = self._clocks.table[thread.row, self._told]
        np.maximum(told, self._relied[thread], out=told)

    def fence_after(self, thread: SimulatedThread) -> None:
        """Order the accesses that the thread has synchronised with before its later ones."""
        relied = self._relied[thread]
        np.maximum(relied, self._clocks.table[thread.row, self._told], out=relied)

    def tell(self, thread: SimulatedThread, clock: Clock) -> None:
        """Put the accesses that the thread relies on into a clock."""
        for part in (self._known, self._told):
            np.maximum(clock[part], self._relied[thread], out=clock[part])

    def check(
        self,
        thread: SimulatedThread,
        region: Region,
        kind: type[SimulatorError],
        done: str,
        but: int | None = None,
    ) -> None:
        """Raise unless the thread may rely on the accesses to a region, except its own `but`."""
        newest = self._last[:, halves(region), region.columns].max(axis=(1, 2))
        late = newest > self._relied[thread]
        if but is not None:
            late[thread.warp] &= newest[thread.warp] != but
        if late.any():
            warp = int(np.argmax(late))
            raise self._error(thread, region, warp, int(newest[warp]), kind, done)

    def check_told(self, threads: list[SimulatedThread], region: Region, done: str) -> None:
        """Raise unless `threads` together know that all accesses to a region are over."""
        newest = self._last[:, halves(region), region.columns].max(axis=(1, 2))
        known = np.max(
            [self._relied[t] for t in threads]
            + [self._clocks.table[t.row, self._told] for t in threads],
            axis=0,
        )
        if (newest > known).any():
            warp = int(np.argmax(newest > known))
            raise self._error(threads[0], region, warp, int(newest[warp]), TensorMemoryMisuse, done)

    def forget(self, region: Region) -> None:
        """Drop the records of columns that are free now."""
        self._last[:, halves(region), region.columns] = 0

    def _error(
        self,
        thread: SimulatedThread,
        region: Region,
        warp: int,
        number: int,
        kind: type[SimulatorError],
        done: str,
    ) -> SimulatorError:
        """Return the error that names the missing step between an access and that of `thread`."""
        wait, fence = f"tcgen05_wait_{self.name}()", "tcgen05_fence_{}_thread_sync()"
        known = self._clocks.table[thread.row, self._known.start + warp]
        told = self._clocks.table[thread.row, self._told.start + warp]
        if number > self._waited[warp]:
            repair = f"execute {wait} before"
            if warp != thread.warp:
                repair = (
                    f"it must execute {wait}, then {fence.format('before')}, and then arrive on "
                    "the barrier that this thread waits for"
                )
        elif known < number:
            repair = (
                f"nothing orders its {wait} before this: let it arrive after that on an mbarrier "
                "that this thread waits for, or synchronise"
            )
        elif told < number:
            kind = MissingFence
            repair = (
                f"it has executed {wait}, and must execute {fence.format('before')} between that "
                "and the arrival"
            )
        else:
            kind = MissingFence
            repair = (
                f"this thread has waited for it, and must execute {fence.format('after')} after "
                "the wait"
            )
        return kind(
            f"{region.describe()}: {done} before the tcgen05_{self.name} of warp {warp} there is "
            f"known to be over: {repair}"
        )
