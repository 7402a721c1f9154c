"""The tensor memory of one block: allocations of columns, and hazards of their cells.

The rules by which a thread may rely on an access are in `column_accesses` (loads and stores) and in
`tcgen05_queue` (products, copies and shifts).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from numba_tma.host.tensor_memory_layout import COLUMNS, LANES
from numba_tma.simulator.collectors import Collectors
from numba_tma.simulator.column_accesses import HALF_WARP, ColumnAccesses, Region
from numba_tma.simulator.copies import call_site
from numba_tma.simulator.errors import EarlyRead, TensorMemoryMisuse
from numba_tma.simulator.tcgen05_queue import MatrixAccesses
from numba_tma.simulator.thread import WARP_SIZE

if TYPE_CHECKING:
    from numba_tma.simulator.block import Cta
    from numba_tma.simulator.tcgen05_queue import MatrixQueue
    from numba_tma.simulator.tensor_memory_instructions import Commit
    from numba_tma.simulator.thread import SimulatedThread

#: By shape of a load or store: its lanes, and its columns and registers per thread for each repeat.
SHAPES = {
    "32x32b": (32, 1, 1),
    "16x64b": (16, 2, 1),
    "16x128b": (16, 4, 2),
    "16x256b": (16, 8, 4),
    "16x32bx2": (32, 1, 1),
}

Cells = tuple[NDArray[np.int64], NDArray[np.int64]]


@functools.cache
def fragment(shape: str, num: int, thread: int, offset: int = 0) -> Cells:
    """Return the lanes and the columns of a thread's registers, from the first cell on.

    The second half of the lanes of shape 16x32bx2 begins at column `offset`.
    """
    r = np.arange(SHAPES[shape][2] * num)
    if shape == "32x32b":
        return np.full_like(r, thread), r
    if shape == "16x32bx2":
        return np.full_like(r, thread), r + (offset if thread >= HALF_WARP else 0)
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
class Reduction:
    """The min or max of a thread's registers, which tcgen05.ld.red gives with them."""

    operation: str
    dtype: str  #: f32, u32 or s32
    absolute: bool
    nan: bool

    def of(self, registers: NDArray[np.uint32]) -> int:
        """Return the bits of the result."""
        types = {"f32": np.float32, "u32": np.uint32, "s32": np.int32}
        values: NDArray[Any] = registers.view(types[self.dtype])
        if self.absolute:
            values = np.abs(values)
        if self.dtype != "f32":
            found = values.min() if self.operation == "min" else values.max()
        elif self.nan:
            found = np.minimum.reduce(values) if self.operation == "min" else np.max(values)
        elif np.isnan(values).all():
            found = np.float32(np.nan)
        else:
            found = np.nanmin(values) if self.operation == "min" else np.nanmax(values)
        if self.dtype == "f32" and np.isnan(found):
            return 0x7FFFFFFF
        return int(np.asarray(found).view(np.uint32))


@dataclass(eq=False)
class TensorLoad:
    """A thread's part of a tcgen05.ld: it reads at one moment, later."""

    thread: SimulatedThread
    number: int
    cells: Cells
    memory: CtaTensorMemory
    site: str = field(default_factory=call_site)
    values: list[int] = field(default_factory=list)
    reduction: Reduction | None = None

    def advance(self) -> bool:
        """Read the current values."""
        data = self.memory.data[self.cells]
        if data.ndim == 2:  # two columns a register
            data = np.bitwise_or(data[:, 0] & 0xFFFF, data[:, 1] << 16, dtype=np.uint32)
        self.values = data.tolist()
        if self.reduction is not None:
            self.values.append(self.reduction.of(data))
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
    memory: CtaTensorMemory
    values: NDArray[np.uint32]

    def advance(self) -> bool:
        """Write the registers."""
        self.memory.data[self.cells] = self.values
        self.memory.stores.of[self.thread].land(self.thread, self.number)
        return True


class Register:
    """A register that a tcgen05.ld fills: an integer, once the thread has waited for the load."""

    def __init__(self, load: TensorLoad, number: int) -> None:
        self.load = load
        self._number = number

    def __int__(self) -> int:
        return self.load.value(self._number)

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

    def __init__(self, memory: CtaTensorMemory, columns: int) -> None:
        self._memory = memory
        self._columns = columns

    def headline(self) -> str:
        """Return the wait's line of a deadlock report."""
        taken = ", ".join(a.describe() for a in self._memory.live)
        return f"tcgen05.alloc of {self._columns} columns, with {taken} not deallocated; waiting"


class CtaTensorMemory:
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
        self.matrix = MatrixAccesses(self._clocks)
        self.collectors = Collectors()
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
        everything = (self.loads, self.stores, self.matrix)
        for accesses in everything:
            accesses.check_told(warp, region, "deallocated")
        for accesses in everything:
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

    def regions(
        self,
        thread: SimulatedThread,
        what: str,
        shape: str,
        address: int,
        width: int,
        offset: int,
    ) -> list[Region]:
        """Return the regions of a load or store of the thread's warp, all of them allocated."""
        lane, column = address >> 16, address & 0xFFFF
        lanes = SHAPES[shape][0]
        own = WARP_SIZE * (thread.warp % 4)
        if not own <= lane < own + WARP_SIZE or lane % lanes:
            starts = " or ".join(map(str, range(own, own + WARP_SIZE, lanes)))
            raise TensorMemoryMisuse(
                f"{what}: the address begins at lane {lane}; warp {thread.warp} reaches lanes "
                f"{own} to {own + WARP_SIZE - 1} alone, and this access of {lanes} lanes begins at "
                f"{starts}: add (lane << 16) to the address of the allocation"
            )
        columns = slice(column, column + width)
        regions = [Region(slice(lane, lane + lanes), columns)]
        if shape == "16x32bx2":
            second = slice(column + offset, columns.stop + offset)
            regions = [
                Region(slice(lane, lane + HALF_WARP), columns),
                Region(slice(lane + HALF_WARP, lane + lanes), second),
            ]
        for region in regions:
            self.check_allocated(thread, what, region)
        return regions

    def check_allocated(self, thread: SimulatedThread, what: str, region: Region) -> None:
        """Raise unless the thread knows allocations of all columns of a region."""
        column = region.columns.start
        while column < region.columns.stop:
            allocation = self._at(self.live, column)
            if allocation is None:
                raise self._unallocated(what, region, column)
            self._check_known(thread, allocation)
            column = allocation.first + allocation.count

    def check_load(
        self,
        thread: SimulatedThread,
        region: Region,
        done: str = "loaded",
        but: MatrixQueue | None = None,
    ) -> None:
        """Raise unless the stores and products into a region are over for the thread."""
        self.stores.check(thread, region, EarlyRead, done)
        self.matrix.check(thread, region, EarlyRead, done, but)

    # Fences.

    def fence_before(self, thread: SimulatedThread) -> None:
        """Publish, with the thread's later arrivals, the loads and stores that it relies on."""
        self.loads.fence_before(thread)
        self.stores.fence_before(thread)

    def fence_after(self, thread: SimulatedThread) -> None:
        """Order the loads and stores that the thread has synchronised with before later ones."""
        self.loads.fence_after(thread)
        self.stores.fence_after(thread)

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
        self.matrix.check_end(self.cta, self.cta.rows)
