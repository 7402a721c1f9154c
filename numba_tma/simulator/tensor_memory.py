"""The tensor memory of one block: allocations of columns, and hazards of their cells.

Loads and stores are numbered by warp. A thread may rely on its own warp's accesses after a wait for
them. It may rely on another warp's accesses if that warp has waited for them, fenced, and arrived
on a barrier, and if the thread has waited for the barrier and fenced. Records are kept by 16 lanes
and column.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from numba_tma.simulator.async_copies import AsyncCopies
from numba_tma.simulator.clocks import Clocks
from numba_tma.simulator.copies import call_site
from numba_tma.simulator.errors import EarlyRead, MissingFence, SimulatorError, TensorMemoryMisuse
from numba_tma.simulator.thread import WARP_SIZE

if TYPE_CHECKING:
    from numba_tma.simulator.block import Cta
    from numba_tma.simulator.clocks import Clock
    from numba_tma.simulator.tensor_memory_instructions import Commit
    from numba_tma.simulator.thread import SimulatedThread

LANES = 128
COLUMNS = 512
#: Lanes per record, the fewest that an access covers.
HALF_WARP = 16
#: By shape of a load or store: its lanes, and its columns and registers per thread for each repeat.
SHAPES = {"32x32b": (32, 1, 1), "16x64b": (16, 2, 1), "16x128b": (16, 4, 2), "16x256b": (16, 8, 4)}

Cells = tuple[NDArray[np.int64], NDArray[np.int64]]


@functools.cache
def fragment(shape: str, num: int, thread: int) -> Cells:
    """Return the lanes and the columns of a thread's registers, from the first cell on."""
    r = np.arange(SHAPES[shape][2] * num)
    if shape == "32x32b":
        return np.full_like(r, thread), r
    if shape == "16x64b":
        return np.full_like(r, thread // 4 + 8 * (thread % 2)), thread // 2 % 2 + 2 * r
    if shape == "16x128b":
        return thread // 4 + 8 * (r % 2), thread % 4 + 4 * (r // 2)
    return thread // 4 + 8 * (r // 2 % 2), r % 2 + 2 * (thread % 4) + 8 * (r // 4)


@dataclass(eq=False)
class ColumnAllocation:
    """Columns of a block; `known` is the clock component of their allocation."""

    first: int
    count: int
    site: str
    known: int

    def describe(self) -> str:
        """Return the allocation's text for messages."""
        return f"columns {self.first} to {self.first + self.count - 1} of tensor memory"


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
        self._last[thread.warp, self._halves(region), region.columns] = number

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
        newest = self._last[:, self._halves(region), region.columns].max(axis=(1, 2))
        late = newest > self._relied[thread]
        late[thread.warp] &= newest[thread.warp] != but
        if late.any():
            warp = int(np.argmax(late))
            raise self._error(thread, region, warp, int(newest[warp]), kind, done)

    def check_told(self, threads: list[SimulatedThread], region: Region, done: str) -> None:
        """Raise unless `threads` together know that all accesses to a region are over."""
        newest = self._last[:, self._halves(region), region.columns].max(axis=(1, 2))
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
        self._last[:, self._halves(region), region.columns] = 0

    @staticmethod
    def _halves(region: Region) -> slice:
        return slice(region.lanes.start // HALF_WARP, region.lanes.stop // HALF_WARP)

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


@dataclass(eq=False)
class TensorLoad:
    """A thread's part of a tcgen05.ld: it reads at one moment, later."""

    thread: SimulatedThread
    number: int
    cells: Cells
    memory: TensorMemory
    site: str = field(default_factory=call_site)
    values: list[int] = field(default_factory=list)

    def advance(self) -> bool:
        """Read the current values."""
        self.values = self.memory.data[self.cells].tolist()
        self.memory.loads.of[self.thread].land(self.thread, self.number)
        return True

    def value(self, register: int) -> int:
        """Return the value of a register, once the thread has waited."""
        if not self.memory.loads.is_over(self.thread, self.number):
            raise EarlyRead(
                f"register {register} of the tcgen05_ld issued at {self.site} is used before the "
                "load is known to be over: execute tcgen05_wait_ld() first"
            )
        return self.values[register]


@dataclass(eq=False)
class TensorStore:
    """A thread's part of a tcgen05.st: it writes at one moment, later."""

    thread: SimulatedThread
    number: int
    cells: Cells
    memory: TensorMemory
    values: NDArray[np.uint32]

    def advance(self) -> bool:
        """Write the registers."""
        self.memory.data[self.cells] = self.values
        self.memory.stores.of[self.thread].land(self.thread, self.number)
        return True


class Register:
    """A register that a tcgen05.ld fills: an integer, once the thread has waited for the load."""

    def __init__(self, load: TensorLoad, number: int) -> None:
        self._load = load
        self._number = number

    def __int__(self) -> int:
        return self._load.value(self._number)

    __index__ = __int__

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(int(self), np.uint32).astype(dtype or np.uint32)


def _forwarded(name: str) -> Any:
    def method(self: Register, *others: Any) -> Any:
        plain = [int(other) if isinstance(other, Register) else other for other in others]
        return getattr(int(self), name)(*plain)

    return method


for _name in (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift"),
    *("radd", "rsub", "rmul", "rtruediv", "rfloordiv", "rmod", "rand", "ror", "rxor", "rlshift"),
    *("rrshift", "eq", "ne", "lt", "le", "gt", "ge", "hash", "neg", "pos", "abs", "invert"),
    *("bool", "float", "repr"),
):
    setattr(Register, f"__{_name}__", _forwarded(f"__{_name}__"))


class AllocationWait:
    """A warp waits for free columns."""

    def __init__(self, memory: TensorMemory, columns: int) -> None:
        self._memory = memory
        self._columns = columns

    def headline(self) -> str:
        """Return the wait's line of a deadlock report."""
        taken = ", ".join(a.describe() for a in self._memory.live)
        return f"tcgen05.alloc of {self._columns} columns, with {taken} not deallocated; waiting"


class TensorMemory:
    """The cells and the allocations of a block."""

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self.data = np.full((LANES, COLUMNS), 0xFFFFFFFF, np.uint32)
        self.written = np.zeros((LANES, COLUMNS), np.bool_)
        self.live: list[ColumnAllocation] = []
        self.commits: dict[SimulatedThread, Commit] = {}
        self._freed: list[ColumnAllocation] = []
        self._limit = COLUMNS
        self._relinquished = False
        self._group: int | None = None
        self._waiting: list[SimulatedThread] = []
        self._clocks = cta.tracked_clocks()
        warps = -(-len(cta.threads) // WARP_SIZE)
        self.loads = ColumnAccesses("ld", self._clocks, warps)
        self.stores = ColumnAccesses("st", self._clocks, warps)

    def check_group(self, what: str, group: int) -> None:
        """Raise unless all instructions of the kernel have this cta_group."""
        if self._group not in (None, group):
            raise TensorMemoryMisuse(
                f"{what}: cta_group is {group}, and was {self._group} before; all tcgen05 "
                "instructions of a kernel must have the same"
            )
        self._group = group

    # Allocation.

    def allocate(self, thread: SimulatedThread, columns: int) -> ColumnAllocation:
        """Allocate `columns` columns; wait until they are free."""
        if columns not in (32, 64, 128, 256, 512):
            raise TensorMemoryMisuse(
                f"tcgen05_alloc of {columns} columns; it must be a power of two from 32 to 512"
            )
        if self._relinquished:
            raise TensorMemoryMisuse(
                "tcgen05_alloc after the block has executed tcgen05_relinquish_alloc_permit: "
                "allocate everything before"
            )
        if columns > self._limit:
            raise TensorMemoryMisuse(
                f"tcgen05_alloc of {columns} columns after one of {self._limit}: allocate the "
                "largest first, then never more"
            )
        self._limit = columns
        while (first := self._free(columns)) is None:
            self._waiting.append(thread)
            self.cta.scheduler.park(AllocationWait(self, columns))
        allocation = ColumnAllocation(first, columns, call_site(), self._clocks.new_columns(1))
        self.live.append(allocation)
        return allocation

    def learn(self, thread: SimulatedThread, allocation: ColumnAllocation) -> None:
        """Order an allocation before the thread."""
        self._clocks.table[thread.row, allocation.known] = 1

    def deallocate(self, warp: list[SimulatedThread], address: int, columns: int) -> None:
        """Free an allocation whose accesses are all ordered before `warp`."""
        allocation = next((a for a in self.live if (a.first, a.count) == (address, columns)), None)
        if allocation is None:
            live = ", ".join(f"{a.count} at {a.first}" for a in self.live) or "nothing"
            raise TensorMemoryMisuse(
                f"tcgen05_dealloc of {columns} columns at address {address}, which is no "
                f"allocation; there is {live}. Give address and size of the tcgen05_alloc, once"
            )
        self._check_known(warp[0], allocation)
        region = Region(slice(0, LANES), slice(address, address + columns))
        for accesses in (self.loads, self.stores):
            accesses.check_told(warp, region, "deallocated")
        for accesses in (self.loads, self.stores):
            accesses.forget(region)
        self.written[:, region.columns] = False
        self.data[:, region.columns] = 0xFFFFFFFF
        self.live.remove(allocation)
        self._freed.append(allocation)
        for thread in self._waiting:
            self.cta.scheduler.wake(thread)
        self._waiting.clear()

    def relinquish(self) -> None:
        """Allow no allocation from now on."""
        self._relinquished = True

    def _free(self, columns: int) -> int | None:
        """Return the first of `columns` free columns, from the end: on a GPU, 0 may be taken."""
        for first in range(COLUMNS - columns, -1, -columns):
            if all(first + columns <= a.first or a.first + a.count <= first for a in self.live):
                return first
        return None

    # Access.

    def region(
        self, thread: SimulatedThread, what: str, shape: str, address: int, num: int
    ) -> Region:
        """Return the region of a load or store of the thread's warp, all of it allocated."""
        lane, column = address >> 16, address & 0xFFFF
        lanes, width, _ = SHAPES[shape]
        own = WARP_SIZE * (thread.warp % 4)
        if not own <= lane < own + WARP_SIZE or lane % lanes:
            starts = " or ".join(map(str, range(own, own + WARP_SIZE, lanes)))
            raise TensorMemoryMisuse(
                f"{what}: the address begins at lane {lane}; warp {thread.warp} reaches lanes "
                f"{own} to {own + WARP_SIZE - 1} alone, and this access of {lanes} lanes begins at "
                f"{starts}: add (lane << 16) to the address of the allocation"
            )
        region = Region(slice(lane, lane + lanes), slice(column, column + width * num))
        while column < region.columns.stop:
            allocation = self._at(self.live, column)
            if allocation is None:
                raise self._unallocated(what, region, column)
            self._check_known(thread, allocation)
            column = allocation.first + allocation.count
        return region

    @staticmethod
    def _at(allocations: list[ColumnAllocation], column: int) -> ColumnAllocation | None:
        return next((a for a in allocations if a.first <= column < a.first + a.count), None)

    def _unallocated(self, what: str, region: Region, column: int) -> TensorMemoryMisuse:
        freed = self._at(self._freed, column)
        live = ", ".join(a.describe() for a in self.live) or "nothing"
        why = f"column {column} is not allocated (there is {live})"
        if freed is not None:
            why = f"{freed.describe()} have been deallocated; do that after the last access"
        return TensorMemoryMisuse(f"{region.describe()}: {what}, but {why}")

    def _check_known(self, thread: SimulatedThread, allocation: ColumnAllocation) -> None:
        if not self._clocks.table[thread.row, allocation.known]:
            raise TensorMemoryMisuse(
                f"{allocation.describe()} are used by a thread that has not synchronised with "
                f"their tcgen05_alloc (at {allocation.site}): put a syncthreads between"
            )

    # The end of the block.

    def check_end(self) -> None:
        """Raise if the block ended with allocated columns, or with pending arrivals of commits."""
        if self.live:
            leaks = "; ".join(f"{a.describe()}, allocated at {a.site}" for a in self.live)
            raise TensorMemoryMisuse(
                f"block {self.cta.index} ended without tcgen05_dealloc of {leaks}: on a GPU no "
                "other block gets them. Let one warp execute tcgen05_dealloc after the last access"
            )
        for commit in self.commits.values():
            commit.check_known(self._clocks.table)
