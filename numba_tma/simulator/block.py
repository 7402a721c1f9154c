"""A thread block: its shared memory, its mbarriers, its threads and their synchronisation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from functools import cached_property
from itertools import product

from numba_tma.host.source_lines import line_in_words
from numba_tma.simulator import trace
from numba_tma.simulator.barriers import MbarrierWait, TrackedBarrier
from numba_tma.simulator.clocks import Clock, Clocks, join
from numba_tma.simulator.copies import call_lines, call_places, call_site
from numba_tma.simulator.elected_loops import check_whole_warp
from numba_tma.simulator.errors import BadOperand, BarrierMisuse, MissingClusterSync, UnfinishedCopy
from numba_tma.simulator.hazards import Hazards
from numba_tma.simulator.launch_queue import LaunchQueue
from numba_tma.simulator.map_uses import MapUses
from numba_tma.simulator.memory import SharedMemory
from numba_tma.simulator.named_barriers import NamedBarriers
from numba_tma.simulator.protocol import AwaitMeeting, Meet
from numba_tma.simulator.registers import Registers
from numba_tma.simulator.rendezvous import Rendezvous, title_in_warp
from numba_tma.simulator.scheduler import Scheduler
from numba_tma.simulator.tcgen05_queue import MatrixQueue
from numba_tma.simulator.tensor_memory import CtaTensorMemory
from numba_tma.simulator.thread import WARP_SIZE, SimulatedThread
from numba_tma.simulator.turns import check_turns, lines_of_turns

Dim3 = tuple[int, int, int]

FULL_MASK = 0xFFFFFFFF


class Cta:
    """One block. The blocks of a cluster share a scheduler and clocks."""

    def __init__(
        self,
        scheduler: Scheduler,
        kernel: Callable[[], None],
        index: Dim3,
        grid_dim: Dim3,
        block_dim: Dim3,
        debug: bool,
    ) -> None:
        self.scheduler = scheduler
        self.index = index
        #: The blocks of the cluster, by rank; without a cluster, the block alone.
        self.cluster: list[Cta] = [self]
        #: The blocks of the launch that have not begun.
        self.launch_queue: LaunchQueue | None = None
        #: Whether the launch may begin before the one in front of it is over, and which threads
        #: have waited for that, at which of their epochs.
        self.dependent = False
        self._primary_over: dict[int, int] = {}
        self.rank = 0
        self.cluster_dim: Dim3 = (1, 1, 1)
        self.explicit_cluster = False
        #: By thread of another block: when it last used this block's shared memory, and where.
        self._visits: dict[SimulatedThread, tuple[int, str]] = {}
        self.grid_dim = grid_dim
        self.block_dim = block_dim
        self.memory = SharedMemory()
        self.registers = Registers(block_dim[0] * block_dim[1] * block_dim[2])
        self.barriers: dict[int, TrackedBarrier] = {}
        self.retired_barriers: list[TrackedBarrier] = []
        #: Addresses of barriers on which all readers of an answer arrive; see `check_readers`.
        self.read_by_all: set[int] = set()
        self._named_barriers = NamedBarriers()
        #: By id of a map that kernels may edit: its uses. The first block has those of all.
        self.map_uses: dict[int, MapUses] = {}
        #: By warp: the name of its role, if the kernel has named one.
        self.role_names: dict[int, str] = {}
        self.clocks: Clocks | None = None
        #: By shared address: the clock that fences before atomic operations there have published.
        self.atomic_clocks: dict[int, Clock] = {}
        self._tensor_memory: CtaTensorMemory | None = None
        #: By thread of the cluster: its tcgen05 operations. The first block has those of all.
        self.matrix_queues: dict[SimulatedThread, MatrixQueue] = {}
        self._meetings: dict[Hashable, Rendezvous] = {}
        self._turns: Counter[Hashable] = Counter()
        self._trace = trace.active()
        self._run = 0 if self._trace is None else self._trace.begin_run(self.role_names)
        self.threads = [
            SimulatedThread(kernel, self, index, (x, y, z), debug)
            for z, y, x in product(*map(range, reversed(block_dim)))
        ]
        for row, thread in enumerate(self.threads):
            thread.row = row
        self.live_lanes: dict[int, int] = {}
        for thread in self.threads:
            self.live_lanes[thread.warp] = self.live_lanes.get(thread.warp, 0) | 1 << thread.lane

    # Memory and hazards.

    @cached_property
    def hazards(self) -> Hazards:
        """The access records, made at the first access that is checked."""
        clocks = self.tracked_clocks()
        return Hazards(self.memory, clocks, self.scheduler.threads.__getitem__)

    @property
    def tensor_memory(self) -> CtaTensorMemory:
        """Return the tensor memory, made at its first use."""
        if self._tensor_memory is None:
            self._tensor_memory = CtaTensorMemory(self)
        return self._tensor_memory

    def tracked_clocks(self) -> Clocks:
        """Return the vector clocks; events before the first call need no ordering."""
        if self.clocks is None:
            self.clocks = Clocks(len(self.scheduler.threads))
        return self.clocks

    def await_primary(self, thread: SimulatedThread) -> None:
        """Record that a thread has waited for the launch in front of this one."""
        self._primary_over.setdefault(thread.row, self.tracked_clocks().epoch(thread.row))

    def primary_is_over(self, thread: SimulatedThread) -> bool:
        """Return whether a thread knows that the launch in front of this one is over."""
        known = self.tracked_clocks().epochs(thread.row)
        return any(known[row] >= epoch for row, epoch in self._primary_over.items())

    def visit(self, thread: SimulatedThread) -> None:
        """Record that `thread`, of another block of the cluster, uses this block's memory."""
        clocks = self.tracked_clocks()
        self.check_started(thread)
        self._visits[thread] = clocks.epoch(thread.row), call_site()

    def check_started(self, thread: SimulatedThread) -> None:
        """Raise unless the start of this block is ordered before the current step of `thread`."""
        if not self.tracked_clocks().epochs(thread.row)[self.rows].any():
            raise MissingClusterSync(
                f"block {self.index}: its shared memory is used from another block of the cluster, "
                "which has not synchronised with its start. Let all threads of the cluster "
                "execute cluster_sync() before the first such access"
            )

    @property
    def tensor_memories(self) -> list[CtaTensorMemory]:
        """Return the tensor memories of the cluster that have been used."""
        return [b._tensor_memory for b in self.cluster if b._tensor_memory is not None]

    @property
    def rows(self) -> slice:
        """The rows of the block's threads in the vector clocks."""
        return slice(self.threads[0].row, self.threads[-1].row + 1)

    @property
    def traced(self) -> bool:
        """Whether a trace is recorded."""
        return self._trace is not None

    def emit(
        self, thread: SimulatedThread, kind: str, label: str, nbytes: int = 0, begun: int = -1
    ) -> None:
        """Put an event into the trace, if one is recorded."""
        if self._trace is not None:
            self._trace.events.append(
                trace.Event(
                    self._run,
                    self.scheduler.step,
                    thread.block,
                    thread.index,
                    thread.warp,
                    kind,
                    label,
                    nbytes,
                    begun,
                )
            )

    # Mbarriers.

    def barrier_at(self, thread: SimulatedThread, address: int) -> TrackedBarrier:
        """Return the live mbarrier at `address`, which `thread` is about to use."""
        barrier = self.barriers.get(address)
        if barrier is None:
            name = self.memory.label(address) or f"shared address {address}"
            if address % 8:
                raise BarrierMisuse(f"{name}: an mbarrier address is a multiple of 8")
            if any(old.address == address for old in self.retired_barriers):
                raise BarrierMisuse(f"{name}: used after its mbarrier_inval")
            raise BarrierMisuse(
                f"{name}: there is no mbarrier here yet; mbarrier_init it, and put a "
                f"{'syncthreads' if thread.cta is self else 'cluster_sync()'} between that and the "
                "first use by another thread"
            )
        barrier.check_visible(thread)
        return barrier

    def barrier_changed(
        self, thread: SimulatedThread, barrier: TrackedBarrier, completed: bool
    ) -> None:
        """Trace a barrier's change by an operation; wake its waiters if a phase completed."""
        self.scheduler.event()
        if not completed:
            return
        self.emit(thread, trace.role(barrier.name) or "complete", barrier.name)
        for waiter in self.scheduler.threads:
            if isinstance(waiter.wait, MbarrierWait) and waiter.wait.barrier is barrier:
                self.scheduler.wake(waiter)

    # Meetings.

    def syncthreads(self, thread: SimulatedThread, value: object) -> list[object]:
        """Wait for all live threads; return the values they brought."""
        if thread.elected:
            check_whole_warp("syncthreads", thread)
        return list(self._meet_at_barrier(thread, 0, None, value).values.values())

    def named_barrier(
        self, thread: SimulatedThread, number: int, threads: int, *, wait: bool
    ) -> None:
        """Arrive on named barrier `number`, and wait for `threads` threads to have done so."""
        if not 0 <= number <= 15:
            raise BadOperand(f"named barrier {number} does not exist; there are 0 to 15")
        if threads % WARP_SIZE or not 0 < threads <= len(self.threads):
            raise BadOperand(
                f"named barrier {number} for {threads} threads: the count must be a multiple of "
                f"{WARP_SIZE} and at most the {len(self.threads)} threads of the block"
            )
        self._meet_at_barrier(thread, number, threads, None, wait=wait)

    def _meet_at_barrier(
        self,
        thread: SimulatedThread,
        number: int,
        threads: int | None,
        value: object,
        *,
        wait: bool = True,
    ) -> Rendezvous:
        key = ("barrier", number)
        if threads is None or (number == 0 and threads == len(self.threads)):
            meeting = self._meeting(key, "syncthreads", self._live)
            self._check_converged(meeting, "syncthreads", thread, exchanges=False)
            return self._meet(thread, meeting, "syncthreads", value, orders=True, wait=wait)
        count = threads
        name = f"named barrier {number} for {count} threads"
        meeting = self._meeting(key, name, lambda: count)
        self._check_converged(meeting, name, thread, exchanges=False)
        self._named_barriers.arrive(thread, name, number, count, self.tracked_clocks())
        return self._meet(thread, meeting, name, value, orders=True, wait=wait, threads=count)

    def cluster_arrive(self, thread: SimulatedThread, *, release: bool) -> None:
        """Arrive at the cluster's barrier."""
        if thread.cluster_arrival is not None:
            raise BarrierMisuse(
                "barrier_cluster_arrive: the thread arrives twice; it must execute "
                "barrier_cluster_wait between"
            )
        if release and self.clocks is not None:
            self.clocks.release_to_cluster(thread.row)
        known = self._publish(thread)
        if not release and self.clocks is not None:
            known = self.clocks.started(thread.row)
            if thread.fenced is not None:
                known = join(known, thread.fenced)
        first, last = self.cluster[0], self.cluster[-1]
        name = f"barrier.cluster of blocks {first.index} to {last.index}"
        meeting = first._meeting(
            "cluster", name, lambda: sum(block._live() for block in self.cluster)
        )
        meeting.learn_of(known)
        thread.cluster_arrival = first._meet(thread, meeting, name, None, orders=False, wait=False)

    def cluster_wait(self, thread: SimulatedThread) -> None:
        """Wait for the threads that have not arrived at the cluster's barrier since this one."""
        meeting, thread.cluster_arrival = thread.cluster_arrival, None
        if meeting is None:
            raise BarrierMisuse(
                "barrier_cluster_wait: the thread has not arrived; it must execute "
                "barrier_cluster_arrive before"
            )
        thread.note(AwaitMeeting, (0, "cluster"), meeting.turn)
        if self.cluster[0]._meetings.get("cluster") is meeting:
            meeting.waiting.append(thread)
            self.scheduler.park(meeting)
        else:
            self.scheduler.point()
        meeting.learn(thread)

    def warp_meeting(
        self, thread: SimulatedThread, name: str, mask: int, value: object, *, orders_memory: bool
    ) -> dict[int, object]:
        """Wait for the live lanes of `mask`; return their values by lane, in order, for all."""
        mask = int(mask) & FULL_MASK
        if thread.elected and mask != 1 << thread.lane:
            check_whole_warp(name, thread)
        if not mask >> thread.lane & 1:
            raise BadOperand(
                f"{name} with mask {mask:#010x} is executed by lane {thread.lane}, which is not "
                "in the mask"
            )
        warp = thread.warp

        def needed() -> int:
            return (self.live_lanes[warp] & mask).bit_count()

        title = title_in_warp(name, warp, mask)
        meeting = self._meeting(("warp", warp, mask), title, needed)
        self._check_converged(meeting, title, thread, exchanges=not orders_memory)
        self._meet(thread, meeting, title, value, orders=orders_memory, wait=True)
        by_lane: dict[int, object] = meeting.once(
            lambda: dict(sorted((other.lane, given) for other, given in meeting.values.items()))
        )
        return by_lane

    def _check_converged(
        self, meeting: Rendezvous, name: str, thread: SimulatedThread, *, exchanges: bool
    ) -> None:
        """Raise if other lanes of the warp have come to the meeting from another line."""
        places = call_places()
        its_places = meeting.places.setdefault(thread.warp, places)
        if its_places == places or meeting.name != name:
            return
        here, there = call_lines(places), call_lines(its_places)
        if there != here:
            differing = ((a, b) for a, b in zip(here, there) if a != b)
            pair = next(differing, (here[0], there[0]))
            mine, other = (line_in_words(code.co_filename, line) for code, line in pair)
            lost = "exchange values" if exchanges else "meet there"
            repair = (
                "where all lanes of the mask are together, or give each branch the mask of its own "
                "lanes"
                if meeting.key[0] == "warp"
                else "after the branches: a barrier of the block takes whole warps"
            )
            raise BarrierMisuse(
                f"{name}: lane {thread.lane} executes it at {mine} while other lanes execute it at "
                f"{other}: the warp has diverged, and on a GPU the lanes do not {lost}. Execute it "
                f"once, {repair}"
            )

    def warpgroup_meeting(
        self, thread: SimulatedThread, name: str, value: object = None
    ) -> Rendezvous:
        """Wait for the live threads of the thread's warpgroup, four warps. Orders no memory."""
        group = thread.warp // 4

        def needed() -> int:
            return sum(n.bit_count() for w, n in self.live_lanes.items() if w // 4 == group)

        title = f"{name} of warpgroup {group}"
        meeting = self._meeting(("warpgroup", group), title, needed)
        return self._meet(thread, meeting, title, value, orders=False, wait=True)

    def pair_meeting(self, thread: SimulatedThread, name: str) -> None:
        """Wait for a thread of the other block of the CTA pair, which executes the same."""
        pair = self.rank // 2
        if len(self.cluster) % 2:
            raise BadOperand(
                f"{name} with cta_group 2 is for pairs of blocks, and the cluster has "
                f"{len(self.cluster)}: use @tma.cluster with an even number"
            )
        first, second = self.cluster[2 * pair : 2 * pair + 2]
        title = f"{name} of blocks {first.index} and {second.index}"
        leader = self.cluster[0]
        meeting = leader._meeting(("pair", pair), title, lambda: 2)
        leader._meet(thread, meeting, title, None, orders=False, wait=True)

    def _meeting(self, key: Hashable, name: str, needed: Callable[[], int]) -> Rendezvous:
        """Return the meeting at `key` that is not complete, or begin one."""
        meeting = self._meetings.get(key)
        if meeting is None:
            meeting = self._meetings[key] = Rendezvous(key, name, needed, self._turns[key])
            self._turns[key] += 1
        return meeting

    def _meet(
        self,
        thread: SimulatedThread,
        meeting: Rendezvous,
        name: str,
        value: object,
        *,
        orders: bool,
        wait: bool,
        threads: int | None = None,
    ) -> Rendezvous:
        """Arrive at a meeting, which orders memory or not, and perhaps wait for its end."""
        scheduler = self.scheduler
        scheduler.check_not_stopping()
        if meeting.name != name:
            raise BarrierMisuse(
                f"{name} meets {meeting.name}, where other threads already wait: all that meet "
                "must execute the same operation"
            )
        if thread in meeting.values:
            raise BarrierMisuse(f"{name}: the thread arrives twice before the others have come")
        meeting.values[thread] = value
        if orders and wait:
            meeting.rows.append(thread.row)
        elif orders:
            meeting.learn_of(self._publish(thread))
        if thread.log is not None:
            thread.note(Meet, (self.rank, meeting.key), meeting.turn, wait, name, threads)
        scheduler.event()
        if meeting.complete:
            self._release(meeting)
            scheduler.point()
        elif wait:
            meeting.waiting.append(thread)
            scheduler.park(meeting)
        else:
            scheduler.point()
        return meeting

    def _release(self, meeting: Rendezvous) -> None:
        """End a meeting: all that wait know what is ordered before the arrivals, and go on."""
        del self._meetings[meeting.key]
        if meeting.rows and self.clocks is not None:
            self.clocks.meet(meeting.rows, meeting.clock)
        for thread in meeting.waiting:
            self.scheduler.wake(thread)

    def _publish(self, thread: SimulatedThread) -> Clock | None:
        return self.clocks.publish(thread.row) if self.clocks is not None else None

    def _live(self) -> int:
        return sum(lanes.bit_count() for lanes in self.live_lanes.values())

    def thread_exited(self, thread: SimulatedThread) -> None:
        """Wake the threads that waited for `thread` alone."""
        self.live_lanes[thread.warp] &= ~(1 << thread.lane)
        self.emit(thread, "exit", "")
        leader = self.cluster[0]
        if arrival := leader._meetings.get("cluster"):
            arrival.values.pop(thread, None)  # only live threads are counted
        for block in (self, leader):
            for meeting in [m for m in block._meetings.values() if m.count_again()]:
                block._release(meeting)

    def check_end(self) -> None:
        """Raise if the block ended before its loads, or other blocks' accesses, were known done."""
        for visitor, (epoch, site) in self._visits.items():
            if self.tracked_clocks().table[self.rows, visitor.row].max() < epoch:
                raise MissingClusterSync(
                    f"block {self.index} ended without waiting for {visitor.description}, which "
                    f"uses its shared memory (at {site}): the memory may be gone by then. Let all "
                    "threads of the cluster execute cluster_sync() after the last such access, or "
                    "wait for what the access completes"
                )
        for thread in self.threads:
            self._check_copies(thread)
        for address in self.read_by_all:
            check_readers(self.barriers[address])
        check_turns(self)
        if self._tensor_memory is not None:
            self._tensor_memory.check_end()
        for barrier in [*self.barriers.values(), *self.retired_barriers]:
            if barrier.unobserved:
                load = barrier.unobserved[0]
                turns = [f".\n{line}" for line in lines_of_turns([barrier])]
                raise UnfinishedCopy(
                    f"block {self.index} ended, and no thread has waited for "
                    f"{len(barrier.unobserved)} load(s) that complete phase {load.phase} of "
                    f"{barrier.name} (issued at {load.site} into "
                    f"{load.into.memory.describe(load.address, load.nbytes)}): the copy engine may "
                    "write into the shared memory of the next block. Wait for every load before "
                    f"the end, or do not issue it{''.join(turns)}"
                )

    def forget(self) -> None:
        """Drop the access records: most of the memory, which an error's traceback would keep."""
        vars(self).pop("hazards", None)

    def _check_copies(self, thread: SimulatedThread) -> None:
        copies = thread.async_copies
        if not copies.issued:
            return
        clocks = self.tracked_clocks()
        known = int(clocks.table[:, clocks.copies + thread.row].max())
        if known < copies.issued:
            raise UnfinishedCopy(
                f"block {self.index} ended, and no thread has waited for {copies.issued - known} "
                f"cp.async of {thread.description} (the last one issued at {copies.site}): call "
                "cp_async_wait_all() before the end, or wait for the mbarrier that they arrive on"
            )


def check_readers(barrier: TrackedBarrier) -> None:
    """Raise if only a part of the readers of launch control's last answer in a slot arrived."""
    model = barrier.model
    if model.pending < model.count:
        raise BarrierMisuse(
            f"{barrier.name}: block {barrier.cta.index} ended, and {model.pending} of "
            f"{model.count} arrivals are pending, so some threads have not read an answer that "
            "others have read: every role walks work.tiles() to its end, in a cluster in every "
            "block, without break or return"
        )
