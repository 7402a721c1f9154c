"""The side of a pipeline that works on full stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numba_tma.backend.interface import device_class, u32
from numba_tma.device.barrier import Barrier
from numba_tma.device.shared import SharedTile, TileAccesses
from numba_tma.device.waiting import meet, wait_for
from numba_tma.pipeline.stages import ConsumerStage
from numba_tma.pipeline.state import PipelineState
from numba_tma.ptx import (
    bar_warp_sync,
    cp_async_bulk_commit_group,
    cp_async_bulk_wait_group_read,
    elect_sync,
    fence_proxy_async,
    laneid,
    mapa,
    mbarrier_arrive,
    mbarrier_arrive_remote,
)

if TYPE_CHECKING:
    from numba_tma.pipeline.tile import TilePipeline


@device_class(static=("pipeline",), mutable=True)
@dataclass
class TileConsumer:
    """The side that works on full stages. All its methods are executed by whole warps.

    Stages are released in the order in which they were waited for. A release is one arrival per
    warp, and in a cluster one for each block that loads into the stage.
    """

    pipeline: TilePipeline
    base: u32
    barriers: u32
    thread: u32  # in the role
    num_threads: u32  # of the role
    sync_id: u32  # its named barrier
    is_sender: bool  # its lane has the rank of a block that loads into this one's stages
    state: PipelineState
    accesses: TileAccesses
    current: u32  # the newest stage that is held, num_stages if there is none
    previous: u32  # the one before it, if that is held too
    asked: bool = False  # `try_wait` or `skip` has gone on to the next stage
    older: u32 = 0  # how many are held that come before these two
    in_flight: u32 = 0
    storing: bool = False  # tiles of this pipeline have been stored
    owes_group: bool = False  # ... but none of the newest stage

    def enters(self) -> bool:
        """Return True: every thread of the role works on stages."""
        return True

    def close(self) -> None:
        """End the consumer's use: hand back every stage that is still held."""
        self._release_until(0)

    # ------------------------------------------------------------------ explicit form

    def wait(self) -> ConsumerStage:
        """Wait until the next stage is full and return it."""
        self._step()
        self._await_full()
        return self._hold()

    def acquire(self) -> ConsumerStage:
        """Do what `wait` does: the name that a scope has for it."""
        return self.wait()

    def try_wait(self) -> bool:
        """Return whether the next stage is full, after waiting a limited time.

        For `wait_if_needed`, which takes the answer; work that needs no stage goes between.
        """
        self._step()
        self.asked = True
        return self._full_barrier().try_wait(self.state.phase)

    def wait_if_needed(self, full: bool) -> ConsumerStage:
        """Return the next stage as `wait` does, without a wait if `try_wait` returned True.

        Nothing was waited for between the two.
        """
        self._step()
        if not full:
            self._await_full()
        return self._hold()

    def skip(self, stages: int = 1) -> None:
        """Pass over the next `stages` stages, which other consumers work on (`alternate`).

        A wait tells a stage's turn from the one before it and from no other, so the turn before
        the next one that is waited for must be over. It is, if this consumer worked on it, as in
        ``skip(rank)`` at first and ``skip(n - 1)`` after each of the stages that n consumers are
        dealt, with `num_stages` a multiple of n; or if another consumer says so once it has
        waited, as those that take longer turns tell each other by an `OrderedSequenceBarrier`.
        """
        steps = u32(stages)
        if not self.asked:
            steps = u32(steps + 1)  # the step of the next wait too: one walk, computed once
        self.state.advance(steps)
        self.asked = True

    def sync(self) -> None:
        """Synchronise the role's warps, as cuda.syncthreads does a block."""
        barrier = Barrier(self.barriers + self.pipeline.sync_offset + 8 * self.sync_id)
        meet(self.sync_id, self.num_threads, barrier, self.pipeline.sync_site)

    def _await_full(self) -> None:
        """Wait until the stage is full."""
        state = self.state
        site, iteration = self.pipeline.full_site, u32(state.count - 1)
        wait_for(self._full_barrier(), state.phase, site, state.index, iteration)

    def _full_barrier(self) -> Barrier:
        """Return the barrier that completes when the stage has been filled."""
        return Barrier(self.barriers + 8 * self.state.index, self.pipeline.ledger_offset)

    def _step(self) -> None:
        """Go on to the next stage, unless `try_wait` or `skip` has."""
        if not self.asked:
            self.state.step()
        self.asked = False

    def _hold(self) -> ConsumerStage:
        """Return the stage, which is full, and note that it is held."""
        stage = ConsumerStage(self, self.state.index)
        if self.previous < self.pipeline.num_stages:
            self.older += 1
        self.previous = self.current
        self.current = self.state.index
        self.owes_group = self.storing
        return stage

    def release(self) -> None:
        """Hand the oldest stage that is held back to the producer.

        What the warp wrote to its tiles is fenced before; a store that reads from the stage has
        read it.
        """
        self._finish_stage()
        self._release(self._pop_oldest())

    def release_older(self) -> None:
        """Hand back the stages that are held, but for the newest.

        For work that goes on in the next stage before it is done with this one, as where a product
        is still under way.
        """
        self._finish_stage()
        self._release_beyond(1)

    def _release_stage(self, stage: Any) -> None:
        """Hand back `stage`, whose scope ends: the newest that is held, as scopes are nested."""
        self._finish_stage()
        if stage == self.current:
            self._pop_newest()
        else:
            self._pop_oldest()
        self._release(stage)

    def _finish_stage(self) -> None:
        """End the stores from the newest stage."""
        self._close_stage()
        if self.in_flight > 0 and self.thread == 0:
            cp_async_bulk_wait_group_read(0)  # the stage may be one that a loop left in flight

    def _release(self, stage: Any) -> None:
        """Arrive on the empty barrier of `stage`: once per warp, or per thread, and per peer."""
        if self.pipeline.by_tma and self.accesses.unfenced:
            fence_proxy_async()
            self.accesses.unfenced = False
        empty = u32(self.barriers + self.pipeline.empty_offset + 8 * stage)
        if self.pipeline.each_thread_releases:
            mbarrier_arrive(empty)
        elif self.pipeline.in_cluster:
            bar_warp_sync()
            if self.is_sender:
                # What was read of the stage is complete: fenced above, or waited for (wgmma). A
                # release at cluster scope is a membar of the whole GPU.
                mbarrier_arrive_remote(mapa(empty, laneid()))
        else:
            bar_warp_sync()
            if elect_sync():
                mbarrier_arrive(empty)

    def _pop_oldest(self) -> int:
        """Return the oldest stage that is held and hold it no longer."""
        stage, none = self.current, u32(self.pipeline.num_stages)
        if self.older > 0:
            stage = u32(self.previous + none - self.older)
            if stage >= none:
                stage = u32(stage - none)
            self.older -= 1
        elif self.previous < none:
            stage = self.previous
            self.previous = none
        else:
            self.current = none
        return stage

    def _pop_newest(self) -> None:
        """Hold the newest stage no longer."""
        none = u32(self.pipeline.num_stages)
        self.current = self.previous
        self.previous = none
        if self.older > 0:
            self.previous = u32(self.current + none - 1)
            if self.previous >= none:
                self.previous = u32(self.previous - none)
            self.older -= 1

    def _holds_more_than(self, number: Any) -> bool:
        """Return whether more than `number` stages, a literal, are held."""
        if number == 0:
            return self.current < self.pipeline.num_stages
        if number == 1:
            return self.previous < self.pipeline.num_stages
        return self.older > 0 and self.older + 2 > number

    def _release_beyond(self, number: Any) -> None:
        """Hand back the oldest stages until at most `number`, a literal, are held."""
        none = u32(self.pipeline.num_stages)
        while self.older > 0 and self.older + 2 > number:
            self._release(self._pop_oldest())
        # Set where it is none already, too: the compiler then knows, and drops later tests.
        if number <= 1:
            if self.previous < none:
                self._release(self.previous)
            self.previous = none
        if number == 0:
            if self.current < none:
                self._release(self.current)
            self.current = none

    def _release_beyond_flight(self) -> None:
        """Hand back the oldest stage if more than `in_flight` are held."""
        self._close_stage()
        self._release_beyond(self.in_flight)

    def _release_until(self, in_flight: Any) -> None:
        """Hand back the oldest stages until at most `in_flight` are held, and keep to that."""
        self._close_stage()
        self.in_flight = in_flight
        if self._holds_more_than(in_flight) and self.thread == 0:
            self._await_stores()  # returns at once if nothing was stored
        self._release_beyond(in_flight)

    def _close_stage(self) -> None:
        """End the work on the newest stage as a store does, if others stored and it did not.

        With one bulk group for each stage, waiting for all but the `in_flight` newest makes sure
        that the stage which is handed back next has been read.
        """
        if self.owes_group:
            if self.thread == 0:
                cp_async_bulk_commit_group()
                self._await_stores()
            self.owes_group = False

    def _await_stores(self) -> None:
        """Wait until all bulk groups but the `in_flight` newest have read shared memory."""
        # The instruction wants a literal; `in_flight` is known once this has been inlined.
        if self.in_flight == 0:
            cp_async_bulk_wait_group_read(0)
        elif self.in_flight == 1:
            cp_async_bulk_wait_group_read(1)
        elif self.in_flight == 2:
            cp_async_bulk_wait_group_read(2)
        else:
            cp_async_bulk_wait_group_read(3)  # waits for more than it must beyond 3

    def store(self, tensor_map: Any, tile: SharedTile, coords: Any, written: bool = True) -> None:
        """Do what `Pipeline.store` says."""
        if written:
            fence_proxy_async()
            self.accesses.unfenced = False
            self.sync()
        if self.thread == 0:
            tensor_map.store(tile, coords)
            cp_async_bulk_commit_group()
            self._await_stores()
        self.storing = True
        self.owes_group = False
