"""The side of a pipeline that fills stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numba_tma.backend.interface import device_class, u32
from numba_tma.device.barrier import Barrier
from numba_tma.device.shared import TileAccesses
from numba_tma.device.waiting import try_wait_for, wait_for
from numba_tma.pipeline.roles import WARP
from numba_tma.pipeline.stages import ProducerStage
from numba_tma.pipeline.state import PipelineState
from numba_tma.ptx import (
    bar_warp_sync,
    cp_async_mbarrier_arrive_noinc,
    elect_sync,
    fence_proxy_async,
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    red_shared_cluster_add_u32,
    st_shared_u32,
)

if TYPE_CHECKING:
    from numba_tma.pipeline.tile import TilePipeline

NO_TILE = 0xFFFFFFFF  # what a TileQueue's producer passes on when the queue is empty


@device_class(static=("pipeline",), mutable=True)
@dataclass
class TileProducer:
    """The side that fills stages.

    Where the copy engine fills them, one thread: `Pipeline.produce` and a scope elect it, the
    explicit form leaves it to you. Otherwise every thread of the producer role.
    """

    pipeline: TilePipeline
    base: u32
    barriers: u32
    thread: u32  # in the role
    state: PipelineState
    accesses: TileAccesses
    current: u32  # the stage that threads fill and have not committed, num_stages if there is none
    asked: bool = False  # `try_acquire` has gone on to the next stage
    undrained: bool = False  # this thread has acquired since the last `tail`

    def enters(self) -> bool:
        """Return whether this thread fills stages. Executed by every thread of the role."""
        if not self.pipeline.by_tma:
            return True
        if self.pipeline.each_thread_commits and self.thread >= WARP:
            return False  # the role's last warp may not be whole, and then cannot elect
        elected = elect_sync()
        if not self.pipeline.one_warp_produces:
            elected &= self.thread < WARP  # without a branch ptxas still knows it is one thread
        return elected

    def close(self) -> None:
        """End the producer's use: commit what is open; in a cluster, wait until all is released.

        Executed by every thread of the role. A block of a cluster must outlive the arrivals that
        its peers owe it.
        """
        if not self.pipeline.by_tma:
            self._commit_open()
        # The thread that fills stages, even if it leaves a scope early and the others do not.
        if self.pipeline.in_cluster and self.undrained:
            self.tail()

    # ------------------------------------------------------------------ explicit form

    def acquire(self) -> ProducerStage:
        """Wait until the next stage is empty and return it to be filled.

        The bytes of its tiles are expected then; every one of them must be loaded exactly once, on
        ``stage.barrier``. Executed by the thread, or the threads, that fill it.
        """
        self._commit_open()
        self._await_next()
        return self._expect()

    def try_acquire(self) -> bool:
        """Return whether the next stage is empty, after waiting a limited time.

        For `acquire_if_needed`, which takes the answer; work that needs no stage goes between.
        """
        self._step()
        self.asked = True
        return self._try_empty()

    def acquire_if_needed(self, acquired: bool) -> ProducerStage:
        """Return the next stage as `acquire` does, without a wait if `try_acquire` returned True.

        Nothing was acquired between the two.
        """
        self._commit_open()
        self._step()
        if not acquired:
            self._await_empty()
        return self._expect()

    def commit(self) -> None:
        """Say that the stage is filled.

        A stage that the copy engine fills says so itself by the bytes that arrive, and nothing is
        done. After cp.async each thread leaves its arrival to the copies that it has started.
        Threads that have written fence their writes and arrive.
        """
        if self.pipeline.by_cp_async:
            cp_async_mbarrier_arrive_noinc(self._full_barrier(self.current))
        elif not self.pipeline.by_tma:
            fence_proxy_async()
            self.accesses.unfenced = False
            if self.pipeline.each_thread_commits:
                mbarrier_arrive(self._full_barrier(self.current))
            else:
                bar_warp_sync()
                if elect_sync():
                    mbarrier_arrive(self._full_barrier(self.current))
        self.current = u32(self.pipeline.num_stages)

    def tail(self) -> None:
        """Wait until the consumers have released every stage that was filled.

        Executed by the threads that acquired. Not needed before a block's end, unless it is in a
        cluster: a block's shared memory outlives its last thread. Needed before the ring is used
        for something else.
        """
        self._commit_open()
        last = u32(min(self.state.index, u32(self.pipeline.num_stages - 1)))
        while True:  # not a range over the stages, which LLVM would unroll
            self._await_next()
            if self.state.index == last:
                break
        self.undrained = False
        self.state.phase ^= 1  # a turn in which nothing was filled
        self.state.count -= self.pipeline.num_stages

    # -------------------------------------------------------------------- its steps

    def _full_barrier(self, index: Any) -> Barrier:
        """Return the barrier that completes when the stage has been filled."""
        return Barrier(self.barriers + 8 * index)

    def _empty_barrier(self) -> Barrier:
        """Return the barrier that completes when the consumers have released the stage."""
        return Barrier(self.barriers + self.pipeline.empty_offset + 8 * self.state.index)

    def _try_empty(self) -> bool:
        return try_wait_for(self._empty_barrier(), self.state.phase, self.pipeline.empty_site)

    def _await_empty(self) -> None:
        """Wait until the consumers have released the stage."""
        state = self.state
        site, iteration = self.pipeline.empty_site, u32(state.count - 1)
        wait_for(self._empty_barrier(), state.phase, site, state.index, iteration)

    def _step(self) -> None:
        """Go on to the next stage, unless `try_acquire` has."""
        if not self.asked:
            self.state.step()
        self.asked = False

    def _await_next(self) -> None:
        """Go on to the next stage and wait until the consumers have released it."""
        self._step()
        self._await_empty()

    def _expect(self) -> ProducerStage:
        """Expect the bytes of the stage, which is empty; return it to be filled."""
        self.undrained = True
        if self.pipeline.by_tma:
            mbarrier_arrive_expect_tx(self._full_barrier(self.state.index), self.pipeline.tx_bytes)
        else:
            self.current = self.state.index
        return ProducerStage(self, self.state.index)

    def _commit_open(self) -> None:
        """Commit the stage that a loop has left, if threads fill it."""
        if not self.pipeline.by_tma:
            if self.current < self.pipeline.num_stages:
                self.commit()

    def _publish_tile(self, tile: Any) -> None:
        """Leave the number of the stage's tile to the consumers; the next arrival releases it."""
        st_shared_u32(self.barriers + self.pipeline.ticket_offset + 4 * self.state.index, tile)

    def _publish_end(self) -> None:
        """Tell the consumers that the queue has no more tiles, with a stage that holds none."""
        self._await_next()
        self._publish_tile(NO_TILE)
        full = self._full_barrier(self.state.index)
        if self.pipeline.debug:  # the stage becomes full without its copies
            ledger = full.address + self.pipeline.ledger_offset
            red_shared_cluster_add_u32(ledger, self.pipeline.tx_bytes)
        mbarrier_arrive(full)
