"""`Ring`: what a kernel holds of a `CircularBuffer`, and the steps of its loops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numba_tma.backend.interface import (
    Constant,
    compile_time,
    device_class,
    device_function,
    i64,
    u32,
)
from numba_tma.device.barrier import Barrier
from numba_tma.device.shared import TileAccesses
from numba_tma.device.waiting import meet, wait_for
from numba_tma.host.debug import Site
from numba_tma.pipeline.circular_stages import Loads, LoadStage, Tiles
from numba_tma.pipeline.roles import WARP
from numba_tma.pipeline.state import PipelineState
from numba_tma.ptx import (
    bar_warp_sync,
    barrier_sync,
    elect_sync,
    fence_mbarrier_init,
    fence_proxy_async,
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_init,
    mbarrier_inval,
    st_shared_u64,
)

if TYPE_CHECKING:
    from numba_tma.pipeline.circular import CircularBuffer


@device_class(static=("pipeline",), mutable=True)
@dataclass
class CircularBufferHandle:
    """A started `CircularBuffer`. All its methods are executed by every thread of its role."""

    pipeline: CircularBuffer
    base: u32
    barriers: u32
    _thread: u32
    _num_threads: u32
    state: PipelineState  # of the work
    loading: PipelineState
    accesses: TileAccesses
    waited: u32  # bit b: full barrier b of the current stage has been waited for
    held: u32 = 0  # stages that are worked on: the current one and those in flight
    due: u32 = 0  # loads that the current iteration has not started yet
    tile: i64 = 0  # the current one
    ahead: i64 = 0  # the next to load, as the thread that loads knows it
    stop: i64 = 0
    step: i64 = 1
    open: bool = False  # a loop over tiles is under way

    def thread(self) -> int:
        """Return the index of the calling thread among those that share the work, from 0."""
        return self._thread

    def num_threads(self) -> int:
        """Return the number of threads that share the work."""
        return self._num_threads

    def sync(self) -> None:
        """Synchronise its threads, as cuda.syncthreads does a block."""
        meet(self.pipeline.sync_id, self._num_threads, self._meeting(), self.pipeline.sync_site)

    def tiles(self, first: Any, stop: Any, step: Any = 1, in_flight: Constant[int] = 0) -> Tiles:
        """Iterate over range(first, stop, step), each tile with the stage that it comes in.

        Yields (tile, stage). `stage.wait` returns the tiles in shared memory. The body runs
        ``for ahead, slot in ring.loads():`` first. A stage may be written to, and is handed back
        when the loop goes on, or with ``war="mbarrier"`` `in_flight` iterations later, for work
        that reads it asynchronously: a literal up to `CircularBuffer.in_flight`. With
        ``war="sync"`` so many stages stay untouched as it is. `step` is positive. After a
        ``break``, which all threads take, the next loop or `close` waits for what was loaded ahead
        and drops it.
        """
        self._drain()
        self._release_until(in_flight)
        self.tile = i64(first) - i64(step)
        self.ahead, self.stop, self.step = first, stop, step
        self.due = u32(self.pipeline.prefetch)
        return Tiles(in_flight, self)

    def loads(self) -> Loads:
        """Iterate, in one elected thread, over the tiles to load now, each with its empty stage.

        Yields (tile, slot): load every tile of the slot once, as ``x.load(slot.x, coords,
        slot.barrier)``; with ``barriers="each"`` on ``slot.barrier_of("x")``. In the other threads
        the loop is empty. Executed by whole warps. With ``war="mbarrier"`` the warp reconverges at
        the loop's end (bar.warp.sync), so the loop has no ``break``.
        """
        # Anew each time and in each warp: ptxas then sees that one thread is left to copy.
        elected = elect_sync() & (self._thread < WARP)
        due = self.due
        self.due = u32(0)
        return Loads(self, due, elected)

    def release_pending(self) -> None:
        """Hand back the stages that a loop with `in_flight` has left. After their work is done."""
        self._release_until(0)

    def close(self) -> None:
        """Hand back what is held, synchronise, and end the barriers' life (mbarrier.inval).

        The memory of the tiles can then be used otherwise, and that of the barriers after the
        threads have synchronised once more.
        """
        self._drain()
        self.sync()
        if self.pipeline.debug:  # what they meet at ends only when all of them have left it
            if self._thread == 0:
                self.sync()
            else:
                mbarrier_arrive(self._meeting())
        if self._thread == 0:
            for index in range(self.pipeline.num_live):
                mbarrier_inval(self.barriers + 8 * index)

    # -------------------------------------------------------------------------- its steps

    def _meeting(self) -> Barrier:
        """Return what its threads meet at in debug mode."""
        return Barrier(self.barriers + self.pipeline.sync_offset)

    def _await_full(self, barrier: Any) -> None:
        """Wait until the loads that complete on a full barrier of the current stage have come."""
        state = self.state
        offset = u32(8 * self.pipeline.num_stages * barrier)
        full = Barrier(self.barriers + offset + 8 * state.index, self.pipeline.ledger_offset)
        await_full(self.pipeline, barrier, full, state.phase, state.index, u32(state.count - 1))
        self.waited |= 1 << barrier

    def _await_stage(self) -> None:
        """Wait until all of the current stage has come."""
        for barrier in range(self.pipeline.num_full):
            if not self.waited >> barrier & 1:
                self._await_full(barrier)

    def _await_empty(self) -> None:
        """Wait until all warps have handed back the stage that is loaded next."""
        state = self.loading
        empty = Barrier(self.barriers + self.pipeline.empty_offset + 8 * state.index)
        wait_for(empty, state.phase, self.pipeline.empty_site, state.index, u32(state.count - 1))

    def _acquire(self) -> LoadStage:
        """Return the next stage to load, which expects its bytes."""
        self.loading.step()
        if self.pipeline.by_mbarrier:
            self._await_empty()
        first = u32(self.barriers + 8 * self.loading.index)
        for barrier in range(self.pipeline.num_full):
            nbytes = self.pipeline.full_bytes[barrier]
            mbarrier_arrive_expect_tx(first + 8 * self.pipeline.num_stages * barrier, nbytes)
        return LoadStage(self, self.loading.index)

    def _release_beyond(self, in_flight: Any) -> None:
        """Hand back the oldest stage if more than `in_flight`, a literal, are held."""
        # Only the arrival depends on that: a branch round all of it would cost each iteration more.
        self._fence()
        if self.pipeline.by_mbarrier:
            index = self.state.index
            if in_flight > 0:
                index = self._oldest()
            self._release(index, self.held > in_flight)
        else:
            self.sync()
        # Set where it is so already, too: the compiler then knows, and drops later tests.
        if in_flight == 0 or not self.pipeline.by_mbarrier:
            self.held = 0
        elif self.held > in_flight:
            self.held -= 1

    def _release_until(self, in_flight: Any) -> None:
        """Hand back the oldest stages until at most `in_flight` are held."""
        while self.held > in_flight:
            self._fence()
            if self.pipeline.by_mbarrier:
                self._release(self._oldest(), True)
                self.held -= 1
            else:
                self.sync()
                self.held = 0

    def _oldest(self) -> int:
        """Return the stage that is held longest."""
        index = u32(self.state.index + self.pipeline.num_stages + 1 - self.held)
        if index >= self.pipeline.num_stages:
            index = u32(index - self.pipeline.num_stages)
        return index

    def _release(self, index: Any, held: Any) -> None:
        """Arrive on the empty barrier of a stage, if it is held: once per warp."""
        bar_warp_sync()
        if elect_sync() & held:
            mbarrier_arrive(self.barriers + self.pipeline.empty_offset + 8 * index)

    def _fence(self) -> None:
        """Let the copy engine overwrite what the thread has read and written of the stages."""
        if self.accesses.unfenced:
            fence_proxy_async()
            self.accesses.unfenced = False

    def _next_tile(self, in_flight: Any) -> bool:
        """End an iteration, if there was one; return whether a tile is left."""
        self._settle()
        self._release_beyond(in_flight)
        self.tile += self.step
        self.open = self.tile < self.stop
        return self.open

    def _take(self) -> None:
        """Begin an iteration."""
        self.state.step()
        self.held += 1
        self.waited = u32(0)
        self.due += 1

    def _settle(self) -> None:
        """Make up for what an iteration left out: a stage is not handed back before it is full."""
        if self.due > self.pipeline.prefetch:  # nothing is on its way to this stage
            self._unstep()
        self._await_stage()

    def _unstep(self) -> None:
        """Take back the current stage, into which nothing was loaded."""
        turns = u32(2 * self.pipeline.num_stages)
        self.state.advance(turns - 1)
        self.state.count -= turns
        self.held -= 1
        self.waited = u32((1 << self.pipeline.num_full) - 1)
        self.due -= 1
        self.ahead += self.step

    def _drain(self) -> None:
        """Hand back what is held; wait for what a loop that was left has loaded ahead."""
        if self.open:
            self._settle()
            self._release_until(0)
            for _ in range(self.pipeline.prefetch - self.due):
                self.tile += self.step
                if self.tile < self.stop:
                    self._take()
                    self._await_stage()
                    self._release_until(0)
            self.open = False


@device_function
def await_full(
    pipeline: CircularBuffer, number: int, barrier: Barrier, parity: int, stage: int, iteration: int
) -> None:
    """Wait for a stage's full barrier, the `number`-th of several."""
    if pipeline.debug and pipeline.num_full > 1:  # each has bytes of its own, which its site says
        _await_site(pipeline, 0, number, barrier, parity, stage, iteration)
    else:
        wait_for(barrier, parity, full_site(pipeline, 0), stage, iteration)


@device_function
def _await_site(
    pipeline: CircularBuffer,
    site: Constant[int],
    number: int,
    barrier: Barrier,
    parity: int,
    stage: int,
    iteration: int,
) -> None:
    if number == site:
        wait_for(barrier, parity, full_site(pipeline, site), stage, iteration)
    elif has_site_after(pipeline, site):
        _await_site(
            pipeline, _site_after(pipeline, site), number, barrier, parity, stage, iteration
        )


@compile_time
def full_site(pipeline: CircularBuffer, number: int) -> Site:
    """Return what debug mode calls a wait for the `number`-th full barrier of a stage."""
    return pipeline.full_sites[number]


@compile_time
def has_site_after(pipeline: CircularBuffer, number: int) -> bool:
    """Return whether a stage has a full barrier after the `number`-th."""
    return number + 1 < pipeline.num_full


@compile_time
def _site_after(pipeline: CircularBuffer, number: int) -> int:
    if number + 1 >= pipeline.num_full:
        raise ValueError(f"a stage has {pipeline.num_full} full barriers")
    return number + 1


@device_function
def initialise_circular(
    pipeline: CircularBuffer, barriers: int, thread: int, num_threads: int, sync: bool
) -> None:
    """Initialise the barriers and make them visible to the block and its copies."""
    if thread == 0:
        for index in range(pipeline.num_stages * pipeline.num_full):
            mbarrier_init(barriers + 8 * index, 1)
        if pipeline.by_mbarrier:
            releases = u32(pipeline.empty_arrivals)
            if releases == 0:
                releases = u32(num_threads) // u32(WARP)
            for stage in range(pipeline.num_stages):
                mbarrier_init(barriers + pipeline.empty_offset + 8 * stage, releases)
        if pipeline.debug:
            mbarrier_init(barriers + pipeline.sync_offset, pipeline.sync_threads or num_threads)
            for index in range(pipeline.num_stages * pipeline.num_full):
                st_shared_u64(barriers + pipeline.ledger_offset + 8 * index, 0)
        fence_mbarrier_init()
    if sync:
        barrier_sync(0, num_threads)
