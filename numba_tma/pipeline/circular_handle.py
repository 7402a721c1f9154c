"""`CircularBufferHandle`: a started `CircularBuffer`, and the steps of its loops."""

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
from numba_tma.pipeline.ranges import check_forwards
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
    """A started `CircularBuffer`. Every thread of the role executes its methods."""

    pipeline: CircularBuffer
    base: u32
    barriers: u32
    _thread: u32
    _num_threads: u32
    state: PipelineState  # of the work
    loading: PipelineState
    accesses: TileAccesses
    waited: u32  # bit b: full barrier b of the current stage has been waited for
    held: u32 = 0  # held stages: the current one and those in flight
    due: u32 = 0  # loads that the current iteration has not started yet
    tile: i64 = 0  # current tile
    ahead: i64 = 0  # next tile to load; valid in the loading thread
    stop: i64 = 0
    step: i64 = 1
    open: bool = False  # a loop over tiles has begun and not ended

    def enters(self) -> bool:
        """Return True: every thread of the block executes the buffer's scope.

        With a role the threads of others pass through: the buffer's loops are the role's alone.
        """
        return True

    def thread(self) -> int:
        """Return the index of the calling thread in the role, from 0."""
        return self._thread

    def num_threads(self) -> int:
        """Return the number of threads of the role."""
        return self._num_threads

    def sync(self) -> None:
        """Synchronise the role's threads, as cuda.syncthreads synchronises a block."""
        meet(self.pipeline.sync_id, self._num_threads, self._meeting(), self.pipeline.sync_site)

    def tiles(
        self, first: Any, stop: Any, step: Constant[int] = 1, in_flight: Constant[int] = 0
    ) -> Tiles:
        """Iterate over range(first, stop, step), each tile with its stage.

        Yields (tile, stage); ``stage.wait()`` returns the tiles in shared memory. The body begins
        with ``for ahead, slot in ring.loads():``. Threads may write to the stage.

        - A stage is released when the loop goes on, or with ``war="mbarrier"`` `in_flight`
          iterations later for work that reads the stage asynchronously. `in_flight` is a literal up
          to `CircularBuffer.in_flight`. With ``war="sync"`` a stage stays untouched for so many
          iterations in any case.
        - `step` is positive.
        - All threads take a ``break`` together. The next loop or `close` then waits for the tiles
          that were loaded ahead and drops them.
        """
        check_forwards("tiles", first, stop, step)
        self._drain()
        self._release_until(in_flight)
        self.tile = i64(first) - i64(step)
        self.ahead, self.stop, self.step = first, stop, step
        self.due = u32(self.pipeline.prefetch)
        return Tiles(in_flight, self)

    def loads(self) -> Loads:
        """Iterate, in one elected thread, over the tiles to load now, each with its empty stage.

        Yields (tile, slot) in the elected thread and nothing in the others. Load every tile of the
        slot once, as in ``x.load(slot.x, coords, slot.barrier)``. With ``barriers="each"`` the
        barrier is ``slot.barrier_of("x")``. Executed by whole warps. With ``war="mbarrier"`` the
        warp reconverges at the loop's end (bar.warp.sync), so the loop has no ``break``.
        """
        # An election at each call and in each warp: ptxas then sees that one thread copies.
        elected = elect_sync() & (self._thread < WARP)
        due = self.due
        self.due = u32(0)
        return Loads(self, due, elected)

    def release_pending(self) -> None:
        """Release the stages that a loop with `in_flight` left held. Call it after their work."""
        self._release_until(0)

    def close(self) -> None:
        """Release the held stages, synchronise, and invalidate the barriers (mbarrier.inval).

        After `close` the memory of the tiles may be used for another purpose. The memory of the
        barriers may be used after one more synchronisation of the threads. With a role, `close`
        does nothing in the threads of others.
        """
        if self.pipeline.role is None:
            self._end()
        elif self._thread < self._num_threads:
            self._end()

    # -------------------------------------------------------------------------- its steps

    def _end(self) -> None:
        self._drain()
        self.sync()
        if self.pipeline.debug:  # all threads must have left `sync` before its mbarrier is invalid
            if self._thread == 0:
                self.sync()
            else:
                mbarrier_arrive(self._meeting())
        if self._thread == 0:
            for index in range(self.pipeline.num_live):
                mbarrier_inval(self.barriers + 8 * index)

    def _meeting(self) -> Barrier:
        """Return the mbarrier of `sync` in debug mode."""
        return Barrier(self.barriers + self.pipeline.sync_offset)

    def _await_full(self, barrier: Any) -> None:
        """Wait for one full barrier of the current stage."""
        state = self.state
        offset = u32(8 * self.pipeline.num_stages * barrier)
        full = Barrier(self.barriers + offset + 8 * state.index, self.pipeline.ledger_offset)
        await_full(self.pipeline, barrier, full, state.phase, state.index, u32(state.count - 1))
        self.waited |= 1 << barrier

    def _await_stage(self) -> None:
        """Wait for the full barriers of the current stage that were not waited for yet."""
        for barrier in range(self.pipeline.num_full):
            if not self.waited >> barrier & 1:
                self._await_full(barrier)

    def _await_empty(self) -> None:
        """Wait until all warps have released the stage that is loaded next."""
        state = self.loading
        empty = Barrier(self.barriers + self.pipeline.empty_offset + 8 * state.index)
        wait_for(empty, state.phase, self.pipeline.empty_site, state.index, u32(state.count - 1))

    def _acquire(self) -> LoadStage:
        """Wait until the next stage to load is empty, expect its bytes, and return the stage."""
        self.loading.step()
        if self.pipeline.by_mbarrier:
            self._await_empty()
        first = u32(self.barriers + 8 * self.loading.index)
        for barrier in range(self.pipeline.num_full):
            nbytes = self.pipeline.full_bytes[barrier]
            mbarrier_arrive_expect_tx(first + 8 * self.pipeline.num_stages * barrier, nbytes)
        return LoadStage(self, self.loading.index)

    def _release_beyond(self, in_flight: Any) -> None:
        """Release the oldest stage if more than `in_flight` are held. `in_flight` is a literal."""
        # Only the arrival is conditional: a branch round the whole body would cost each iteration.
        self._fence()
        if self.pipeline.by_mbarrier:
            index = self.state.index
            if in_flight > 0:
                index = self._oldest()
            self._release(index, self.held > in_flight)
        else:
            self.sync()
        # Assigned even if the value is 0 already: the compiler then drops later tests.
        if in_flight == 0 or not self.pipeline.by_mbarrier:
            self.held = 0
        elif self.held > in_flight:
            self.held -= 1

    def _release_until(self, in_flight: Any) -> None:
        """Release the oldest stages until at most `in_flight` are held."""
        while self.held > in_flight:
            self._fence()
            if self.pipeline.by_mbarrier:
                self._release(self._oldest(), True)
                self.held -= 1
            else:
                self.sync()
                self.held = 0

    def _oldest(self) -> int:
        """Return the oldest held stage."""
        index = u32(self.state.index + self.pipeline.num_stages + 1 - self.held)
        if index >= self.pipeline.num_stages:
            index = u32(index - self.pipeline.num_stages)
        return index

    def _release(self, index: Any, held: Any) -> None:
        """Arrive once per warp on the empty barrier of a stage, if `held` is true."""
        bar_warp_sync()
        if elect_sync() & held:
            mbarrier_arrive(self.barriers + self.pipeline.empty_offset + 8 * index)

    def _fence(self) -> None:
        """Fence the thread's accesses to tiles before the copy engine's next writes."""
        if self.accesses.unfenced:
            fence_proxy_async()
            self.accesses.unfenced = False

    def _next_tile(self, in_flight: Any) -> bool:
        """End the current iteration, if there is one; return whether a tile is left."""
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
        """Wait for the current stage if the iteration did not: only full stages are released."""
        if self.due > self.pipeline.prefetch:  # no load into this stage was started
            self._unstep()
        self._await_stage()

    def _unstep(self) -> None:
        """Take back the step to the current stage, into which no tile was loaded."""
        turns = u32(2 * self.pipeline.num_stages)
        self.state.advance(turns - 1)
        self.state.count -= turns
        self.held -= 1
        self.waited = u32((1 << self.pipeline.num_full) - 1)
        self.due -= 1
        self.ahead += self.step

    def _drain(self) -> None:
        """Release the held stages; wait for the tiles that an interrupted loop loaded ahead."""
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
    """Wait for the `number`-th full barrier of a stage."""
    if pipeline.debug and pipeline.num_full > 1:  # the site of each barrier has its own bytes
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
    """Return debug mode's name of a wait for the `number`-th full barrier of a stage."""
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
