"""The tcgen05 instructions, executed for the calling simulated thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from numba_tma.simulator.async_copies import AsyncWait
from numba_tma.simulator.block import FULL_MASK
from numba_tma.simulator.cluster import home_of, mapa, ranks_of
from numba_tma.simulator.column_accesses import ColumnAccesses
from numba_tma.simulator.copies import call_site
from numba_tma.simulator.errors import (
    BadOperand,
    BarrierMisuse,
    EarlyOverwrite,
    UnfinishedCopy,
    UninitializedRead,
)
from numba_tma.simulator.mbarrier_instructions import change
from numba_tma.simulator.protocol import CommitProducts
from numba_tma.simulator.tcgen05_queue import MatrixQueue, queue_of, queues_of
from numba_tma.simulator.tensor_memory import (
    SHAPES,
    Cells,
    CtaTensorMemory,
    Reduction,
    Register,
    TensorLoad,
    TensorStore,
    fragment,
)
from numba_tma.simulator.thread import WARP_SIZE, SimulatedThread, current
from numba_tma.simulator.thread_instructions import exchange, write_to

if TYPE_CHECKING:
    from numba_tma.simulator.barriers import TrackedBarrier
    from numba_tma.simulator.clocks import Clock


class Commit:
    """The arrivals of a tcgen05.commit, which the hardware makes later."""

    def __init__(
        self,
        thread: SimulatedThread,
        queue: MatrixQueue,
        barriers: list[TrackedBarrier],
        told: Clock,
        previous: Commit | None,
    ) -> None:
        self.thread = thread
        # The thread's operations up to this number must be complete before the arrival.
        self._queue = queue
        self._number = queue.commit(told)
        #: The thread's previous commit, if it has not arrived: this commit arrives after it.
        self._previous = previous
        self.site = call_site()
        #: By barrier: the phase of the arrival, once it has been made.
        self.phases: dict[TrackedBarrier, int | None] = dict.fromkeys(barriers)
        self.told = told

    def advance(self) -> bool:
        """Arrive on one barrier; return whether it was the last."""
        if self._previous is not None and None in self._previous.phases.values():
            return False
        if self._queue.done < self._number:
            return False
        self._previous = None
        waiting = [barrier for barrier, phase in self.phases.items() if phase is None]
        barrier = waiting[0]
        self.phases[barrier] = barrier.model.phase
        if barrier.cta.barriers.get(barrier.address) is not barrier:
            raise BarrierMisuse(
                f"{barrier.name}: mbarrier_inval before the arrival of tcgen05_commit was made; "
                "wait for its phase first"
            )
        barrier.publish(self.told)
        change(self.thread, barrier.cta, barrier, barrier.model.arrive)
        return len(waiting) == 1

    def check_known(self, table: NDArray[np.int32]) -> None:
        """Raise unless a thread has waited for the arrivals."""
        for barrier, phase in self.phases.items():
            if phase is None or table[:, barrier.column].max() <= phase:
                raise UnfinishedCopy(
                    f"block {self.thread.block} ended, and no thread has waited for the arrival of "
                    f"the last tcgen05_commit of {self.thread.description} on {barrier.name} "
                    f"(issued at {self.site}): wait for its phase before the end"
                )


def tcgen05_alloc(destination: int, columns: int, cta_group: int) -> None:
    """Allocate columns; write their address to shared memory."""
    name = f"tcgen05.alloc of {int(columns)} columns"
    thread, memory = _by_warp(name, int(destination))
    memory.check_group("tcgen05_alloc", cta_group)
    allocation = None
    if thread.lane == 0:
        _meet_pair(thread, name, cta_group)
        allocation = memory.allocate(thread, int(columns))
        write_to(thread.cta, "tcgen05_alloc", int(destination), np.uint32(allocation.first))
    # The warp executes one instruction, so that all its lanes come after the write.
    done: Any = thread.cta.warp_meeting(
        thread, f"{name}, done", FULL_MASK, allocation, orders_memory=True
    )
    memory.learn(thread, done[0])


def tcgen05_dealloc(taddr: int, columns: int, cta_group: int) -> None:
    """Free columns."""
    name = f"tcgen05.dealloc of {int(columns)} columns"
    thread, memory = _by_warp(name, int(taddr))
    memory.check_group("tcgen05_dealloc", cta_group)
    if thread.lane == 0:
        _meet_pair(thread, name, cta_group)
        warp = [other for other in thread.cta.threads if other.warp == thread.warp]
        memory.deallocate(warp, int(taddr), int(columns))
    exchange(f"{name}, done", FULL_MASK, None)


def tcgen05_relinquish_alloc_permit(cta_group: int) -> None:
    """Allocate nothing more in this block."""
    _, memory = _by_warp("tcgen05.relinquish_alloc_permit")
    memory.check_group("tcgen05_relinquish_alloc_permit", cta_group)
    memory.relinquish()


def tcgen05_ld(
    shape: str, taddr: int, num: int, *, pack: bool = False, offset: int = 0
) -> tuple[Any, ...]:
    """Start to load; return registers that can be read after the wait.

    With `pack`, a register has the low halves of two columns. `offset` is the immediate of shape
    16x32bx2: the column of lanes 16 to 31, from that of the others.
    """
    what = f"tcgen05_ld_{shape}"
    thread, memory = _by_warp(f"{what} of x{num}", int(taddr))
    columns = SHAPES[shape][1] * num * (1 + pack)
    regions = memory.regions(thread, what, shape, int(taddr), columns, int(offset))
    cells = _cells(thread, shape, int(taddr), num, pack, int(offset))
    for region in regions:
        memory.check_load(thread, region)
    if not memory.written[cells].all():
        raise UninitializedRead(
            f"{regions[0].describe()}: loaded before all of it was written. If another warp "
            "stores it, wait for that warp first"
        )
    number = memory.loads.of[thread].issue()
    for region in regions:
        memory.loads.record(thread, region, number)
    load = TensorLoad(thread, number, cells, memory)
    _start(thread, load)
    return tuple(Register(load, i) for i in range(SHAPES[shape][2] * num))


def tcgen05_ld_red(
    shape: str,
    taddr: int,
    num: int,
    operation: str,
    dtype: str,
    *,
    absolute: bool = False,
    nan: bool = False,
    offset: int = 0,
) -> tuple[Any, ...]:
    """Start to load, as `tcgen05_ld`; return the registers, and after them their min or max.

    `dtype` is f32, u32 or s32. With `absolute` the absolute values are compared; with `nan` the
    result is NaN if one of the values is.
    """
    registers = tcgen05_ld(shape, taddr, num, offset=offset)
    load = registers[0].load
    load.reduction = Reduction(operation, dtype, absolute, nan)
    return (*registers, Register(load, len(registers)))


def tcgen05_st(
    shape: str,
    taddr: int,
    values: Sequence[Any],
    num: int,
    *,
    unpack: bool = False,
    offset: int = 0,
) -> None:
    """Start to store registers.

    With `unpack`, the halves of a register go to two columns. `offset` is that of `tcgen05_ld`.
    """
    what = f"tcgen05_st_{shape}"
    thread, memory = _by_warp(f"{what} of x{num}", int(taddr))
    count = SHAPES[shape][2] * num
    if len(values) != count:
        raise BadOperand(f"{what}(values=...) takes a tuple of {count} numbers, not {len(values)}")
    columns = SHAPES[shape][1] * num * (1 + unpack)
    regions = memory.regions(thread, what, shape, int(taddr), columns, int(offset))
    number = memory.stores.of[thread].issue()
    for region in regions:
        memory.loads.check(thread, region, EarlyOverwrite, "overwritten")
        memory.stores.check(thread, region, EarlyOverwrite, "overwritten", but=number)
        memory.matrix.check(thread, region, EarlyOverwrite, "overwritten")
        memory.stores.record(thread, region, number)
    cells = _cells(thread, shape, int(taddr), num, unpack, int(offset))
    memory.written[cells] = True
    image = np.array([int(value) & 0xFFFFFFFF for value in values], np.uint32)
    if unpack:
        image = np.stack([image & 0xFFFF, image >> 16], axis=-1)
    _start(thread, TensorStore(thread, number, cells, memory, image))


def _cells(
    thread: SimulatedThread, shape: str, taddr: int, num: int, packed: bool, offset: int
) -> Cells:
    """Return the cells of the thread's registers; two columns of each if they are packed."""
    lanes, columns = fragment(shape, num, thread.lane, offset)
    if packed:
        first = columns if shape != "16x32bx2" else columns - columns[0]
        base = 0 if shape != "16x32bx2" else columns[0]
        columns = base + 2 * first[:, None] + np.arange(2)
        lanes = np.broadcast_to(lanes[:, None], columns.shape)
    return lanes + (taddr >> 16), columns + (taddr & 0xFFFF)


def tcgen05_wait_ld() -> None:
    """Wait for the warp's loads."""
    thread, memory = _by_warp("tcgen05.wait::ld")
    _wait(thread, "tcgen05_wait_ld()", memory.loads)


def tcgen05_wait_st() -> None:
    """Wait for the warp's stores."""
    thread, memory = _by_warp("tcgen05.wait::st")
    _wait(thread, "tcgen05_wait_st()", memory.stores)


def tcgen05_commit(addr: int, cta_group: int, multicast: int | None) -> None:
    """Arrive once, when the thread's products, copies and shifts so far are complete.

    A commit does not wait for loads and stores. Its arrival publishes what the thread has waited
    for by then: loads that have landed, other threads' arrivals, and its own waits for tensor
    memory. It does not publish the thread's own accesses to shared memory.
    """
    thread = current()
    memory = thread.cta.tensor_memory
    memory.check_group("tcgen05_commit", cta_group)
    owner, offset = home_of(int(addr))
    places = [(owner, offset)]
    if multicast is not None:
        ranks = ranks_of("tcgen05_commit", multicast)
        places = [home_of(mapa(offset, rank)) for rank in ranks]
    barriers = [cta.barrier_at(thread, place) for cta, place in places]
    own = queue_of(thread)  # before the copy of the clock, which it may widen
    told = thread.cta.tracked_clocks().waited_for(thread.row)
    for other in thread.cta.tensor_memories:
        other.loads.tell(thread, told)
        other.stores.tell(thread, told)
    for queue in queues_of(thread.cta):
        queue.tell(thread, told)
    commit = Commit(thread, own, barriers, told, memory.commits.get(thread))
    memory.commits[thread] = commit
    places_too = tuple(barrier.place for barrier in barriers)
    thread.note(CommitProducts, own.commits, places_too)
    _start(thread, commit)


def tcgen05_fence_before_thread_sync() -> None:
    """Publish, with the thread's later arrivals, the accesses that it has waited for."""
    thread = current()
    for memory in thread.cta.tensor_memories:
        memory.fence_before(thread)
    for queue in queues_of(thread.cta):
        queue.fence_before(thread)
    thread.cta.scheduler.point()


def tcgen05_fence_after_thread_sync() -> None:
    """Order other threads' accesses, after synchronisation, before this thread's later ones."""
    thread = current()
    for memory in thread.cta.tensor_memories:
        memory.fence_after(thread)
    for queue in queues_of(thread.cta):
        queue.fence_after(thread)
    thread.cta.scheduler.point()


def _by_warp(name: str, operand: int | None = None) -> tuple[SimulatedThread, CtaTensorMemory]:
    """Meet the other threads of the warp: all of them, with the same operand."""
    thread = current()
    operands = exchange(name, FULL_MASK, operand)
    if len(operands) < WARP_SIZE:
        raise BadOperand(
            f"{name}: {len(operands)} threads of the warp execute it; it takes all {WARP_SIZE}"
        )
    if len(set(operands.values())) > 1:
        other = min(lane for lane, value in operands.items() if value != operands[0])
        raise BadOperand(
            f"{name}: lane 0 gives address {operands[0]} and lane {other} gives {operands[other]}; "
            "all threads of the warp must give the same"
        )
    return thread, thread.cta.tensor_memory


def _meet_pair(thread: SimulatedThread, name: str, cta_group: int) -> None:
    """With cta_group 2, meet a warp of the other block of the pair."""
    if cta_group == 2:
        thread.cta.pair_meeting(thread, name)


def _start(thread: SimulatedThread, access: TensorLoad | TensorStore | Commit) -> None:
    scheduler = thread.cta.scheduler
    scheduler.start_copy(access)
    scheduler.point()


def _wait(thread: SimulatedThread, what: str, accesses: ColumnAccesses) -> None:
    copies = accesses.of[thread]
    number = copies.issued
    if not copies.complete(number):
        thread.cta.scheduler.park(AsyncWait(copies, what, number))
    # The accesses are the warp's: they are over when all of its threads have reached this.
    exchange(f"{what}, done", FULL_MASK, None)
    accesses.waited(thread, number)
