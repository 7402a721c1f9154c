"""The consumer of a `TilePipeline`: it waits for full stages and releases them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numba_tma.backend.interface import compile_time, device_class, u32
from numba_tma.device.barrier import Barrier
from numba_tma.device.shared import SharedTile, TileAccesses
from numba_tma.device.waiting import meet, wait_for
from numba_tma.pipeline.multicast import is_leader, released_blocks
from numba_tma.pipeline.roles import WARP, check_member
from numba_tma.pipeline.stages import ConsumerStage
from numba_tma.pipeline.state import PipelineState
from numba_tma.ptx import (
    bar_warp_sync,
    cp_async_bulk_commit_group,
    cp_async_bulk_wait_group_read,
    elect_sync,
    fence_proxy_async,
    laneid,
    ld_shared_u32,
    mapa,
    mbarrier_arrive,
    mbarrier_arrive_remote,
    tcgen05_commit,
    tcgen05_fence_after_thread_sync,
)
from numba_tma.simulator import BadOperand

if TYPE_CHECKING:
    from numba_tma.pipeline.tile import TilePipeline


@device_class(static=("pipeline",), mutable=True)
@dataclass
class TileConsumer:
    """The consumer of a started `TilePipeline`. Whole warps execute its methods.

    Stages are released in the order in which they were waited for. A release is one arrival per
    warp. In a cluster each warp arrives at every block that loads into the stage.

    With ``released_by="tcgen05"`` one thread executes the methods, and starts the products that
    read the stages. `Pipeline.consume` and a scope elect the thread; in the explicit form the
    kernel does, by `enters`. A release is then a tcgen05.commit: it arrives when the products that
    the thread has started are complete, so the thread releases a stage right after the products.
    """

    pipeline: TilePipeline
    base: u32
    barriers: u32
    thread: u32  # in the role
    num_threads: u32  # of the role
    sync_id: u32  # named barrier of the role
    is_sender: bool  # the lane's number is the rank of a block that loads into this block's stages
    state: PipelineState
    accesses: TileAccesses
    current: u32  # newest held stage; num_stages if none is held
    previous: u32  # held stage before `current`; num_stages if none is held
    asked: bool = False  # `try_wait` or `skip` has stepped to the next stage
    older: u32 = 0  # number of held stages before `previous`
    in_flight: u32 = 0
    storing: bool = False  # the consumer has stored tiles
    owes_group: bool = False  # ... but no tile of the newest stage

    def enters(self) -> bool:
        """Return True: every thread of the role works on stages.

        With ``released_by="tcgen05"`` return whether this thread multiplies: one elected thread of
        the role's first warp, in a CTA pair that of the even block. Executed by every thread of the
        role, not inside another elected thread's loop or scope.
        """
        if not self.pipeline.by_commit:
            return True
        elected = elect_sync()
        if not self.pipeline.one_warp_consumes:
            elected &= self.thread < WARP  # no branch: ptxas still knows that it is one thread
        if self.pipeline.in_pair:
            elected &= is_leader()
        return elected

    def close(self) -> None:
        """End the consumer's use: release every held stage."""
        self._release_until(0)

    # ------------------------------------------------------------------ explicit form

    def wait(self) -> ConsumerStage:
        """Wait until the next stage is full and return it."""
        check_member("consumer.wait()", self.pipeline, "consumer", self.thread, self.num_threads)
        self._step()
        self._await_full()
        return self._hold()

    def wait_for_tile(self) -> tuple[int, ConsumerStage]:
        """Do what `wait` does, and return the number that `acquire_for` was given, and the stage.

        The number is 0xffffffff where the producer has published the end: the stage holds no tile,
        and is to be released.
        """
        stage = self.wait()
        number = self.barriers + self.pipeline.ticket_offset + 4 * stage.index
        return ld_shared_u32(number), stage

    def acquire(self) -> ConsumerStage:
        """Do what `wait` does. Scopes use this name."""
        return self.wait()

    def try_wait(self) -> bool:
        """Return whether the next stage is full, after waiting a limited time.

        `wait_if_needed` takes the result. Work that needs no stage stands between the two calls.
        """
        self._step()
        self.asked = True
        return self._full_barrier().try_wait(self.state.phase)

    def wait_if_needed(self, full: bool) -> ConsumerStage:
        """Return the next stage as `wait` does, without a wait if `try_wait` returned True.

        No other stage may be waited for between the two calls.
        """
        self._step()
        if not full:
            self._await_full()
        return self._hold()

    def skip(self, stages: int = 1) -> None:
        """Pass over the next `stages` stages, which other consumers work on (`alternate`).

        A parity wait cannot distinguish phases two apart. The previous phase of the stage must
        therefore have completed before this consumer waits for the stage. Two cases ensure it:

        - This consumer waited for that phase itself. With n consumers and `num_stages` a multiple
          of n, call ``skip(rank)`` at first and ``skip(n - 1)`` after each stage.
        - Another consumer waited for that phase and then signalled this one. Consumers with longer
          turns do so with an `OrderedSequenceBarrier`.
        """
        steps = u32(stages)
        if not self.asked:
            steps = u32(steps + 1)  # includes the step of the next wait: one computation for both
        self.state.advance(steps)
        self.asked = True

    def sync(self) -> None:
        """Synchronise the role's warps, as cuda.syncthreads synchronises a block."""
        barrier = Barrier(self.barriers + self.pipeline.sync_offset + 8 * self.sync_id)
        meet(self.sync_id, self.num_threads, barrier, self.pipeline.sync_site)

    def _await_full(self) -> None:
        """Wait until the stage is full."""
        state = self.state
        site, iteration = self.pipeline.full_site, u32(state.count - 1)
        wait_for(self._full_barrier(), state.phase, site, state.index, iteration)

    def _full_barrier(self) -> Barrier:
        """Return the full barrier of the stage."""
        return Barrier(self.barriers + 8 * self.state.index, self.pipeline.ledger_offset)

    def _step(self) -> None:
        """Step to the next stage, unless `try_wait` or `skip` has done so."""
        if not self.asked:
            self.state.step()
        self.asked = False

    def _hold(self) -> ConsumerStage:
        """Hold the stage, which is full, and return it."""
        if self.pipeline.by_commit:
            tcgen05_fence_after_thread_sync()
        stage = ConsumerStage(self, self.state.index)
        if self.previous < self.pipeline.num_stages:
            self.older += 1
        self.previous = self.current
        self.current = self.state.index
        self.owes_group = self.storing
        return stage

    def release(self) -> None:
        """Release the oldest held stage.

        Before the arrival, the warp's accesses to tiles are fenced (`fence_proxy_async`) and stores
        from the stage have read it. With ``released_by="tcgen05"`` the arrival is a commit's.
        """
        self._finish_stage()
        self._release(self._pop_oldest())

    def release_older(self) -> None:
        """Release all held stages but the newest.

        This form serves asynchronous work, such as a product that still reads the newest stage
        while the consumer waits for the next one.
        """
        self._finish_stage()
        self._release_beyond(1)

    def _release_stage(self, stage: Any) -> None:
        """Release `stage`, whose scope ends: the newest held stage if scopes are nested."""
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
            cp_async_bulk_wait_group_read(0)  # a loop may have left stores from the stage in flight

    def _release(self, stage: Any) -> None:
        """Arrive on the empty barrier of `stage`: once per warp or thread, and once per peer."""
        if self.pipeline.by_tma and self.accesses.unfenced:
            fence_proxy_async()
            self.accesses.unfenced = False
        empty = u32(self.barriers + self.pipeline.empty_offset + 8 * stage)
        if self.pipeline.by_commit and self.pipeline.in_pair:
            tcgen05_commit(empty, 2, released_blocks(self.pipeline))
        elif self.pipeline.by_commit and self.pipeline.in_cluster:
            tcgen05_commit(empty, 1, released_blocks(self.pipeline))
        elif self.pipeline.by_commit:
            tcgen05_commit(empty, 1)
        elif self.pipeline.each_thread_releases:
            mbarrier_arrive(empty)
        elif self.pipeline.in_cluster:
            bar_warp_sync()
            if self.is_sender:
                # Reads of the stage are complete: threads' reads are fenced above, wgmma's were
                # waited for. A release at cluster scope, which is a membar of the whole GPU, is
                # therefore not needed.
                if self.pipeline.in_pair:  # of accumulators, which fences of tcgen05 order
                    mbarrier_arrive_remote(mapa(empty, laneid()), None, "release.cluster")
                else:
                    mbarrier_arrive_remote(mapa(empty, laneid()))
        else:
            bar_warp_sync()
            if elect_sync():
                mbarrier_arrive(empty)

    def _pop_oldest(self) -> int:
        """Drop the oldest held stage from the record and return it."""
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

    def _pop_older(self) -> int:
        """Drop the oldest of the held stages before `previous` from the record and return it."""
        none = u32(self.pipeline.num_stages)
        stage = u32(self.previous + none - self.older)
        if stage >= none:
            stage = u32(stage - none)
        self.older -= 1
        return stage

    def _pop_newest(self) -> None:
        """Drop the newest held stage from the record."""
        none = u32(self.pipeline.num_stages)
        self.current = self.previous
        self.previous = none
        if self.older > 0:
            self.previous = u32(self.current + none - 1)
            if self.previous >= none:
                self.previous = u32(self.previous - none)
            self.older -= 1

    def _holds_more_than(self, number: Any) -> bool:
        """Return whether more than `number` stages are held. `number` is a literal."""
        if number == 0:
            return self.current < self.pipeline.num_stages
        if number == 1:
            return self.previous < self.pipeline.num_stages
        return self.older > 0 and self.older + 2 > number

    def _release_beyond(self, number: Any) -> None:
        """Release the oldest stages until at most `number` are held. `number` is a literal."""
        none = u32(self.pipeline.num_stages)
        while self.older > 0 and self.older + 2 > number:
            self._release(self._pop_oldest())
        # Assigned even if the value is `none` already: the compiler then drops later tests.
        if number <= 1:
            if self.previous < none:
                self._release(self.previous)
            self.previous = none
        if number == 0:
            if self.current < none:
                self._release(self.current)
            self.current = none

    def _release_behind(self, number: int) -> None:
        """Do what `_release_beyond` does for a window, which holds `number` stages or one more."""
        self._close_stage()
        if number > 1:
            while self._holds_more_than(number):
                self._release(self._pop_older())
        else:
            self._release_beyond(number)

    def _release_beyond_flight(self) -> None:
        """Release the oldest stages if more than `in_flight` are held."""
        self._close_stage()
        self._release_beyond(self.in_flight)

    def _release_until(self, in_flight: Any) -> None:
        """Set `in_flight`, and release the oldest stages until at most so many are held."""
        self._close_stage()
        self.in_flight = in_flight
        if not self.pipeline.by_commit and self._holds_more_than(in_flight) and self.thread == 0:
            self._await_stores()  # returns at once if nothing was stored
        self._release_beyond(in_flight)

    def _close_stage(self) -> None:
        """Commit an empty bulk group for the newest stage, if only earlier stages stored tiles.

        Each stage then has one bulk group. Waiting for all but the `in_flight` newest groups
        ensures that stores have read the stage that is released next.
        """
        if self.owes_group:
            if self.thread == 0:
                cp_async_bulk_commit_group()
                self._await_stores()
            self.owes_group = False

    def _await_stores(self) -> None:
        """Wait until all bulk groups but the `in_flight` newest have read shared memory."""
        # The instruction takes a literal; `in_flight` is one once this method has been inlined.
        if self.in_flight == 0:
            cp_async_bulk_wait_group_read(0)
        elif self.in_flight == 1:
            cp_async_bulk_wait_group_read(1)
        elif self.in_flight == 2:
            cp_async_bulk_wait_group_read(2)
        else:
            cp_async_bulk_wait_group_read(3)  # beyond 3 in flight: a longer wait than needed

    def store(self, tensor_map: Any, tile: SharedTile, coords: Any, written: bool = True) -> None:
        """Do what `Pipeline.store` does."""
        check_stored(self.pipeline)
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


@compile_time
def check_stored(pipeline: TilePipeline) -> None:
    """Raise for a store from a stage that a commit releases: the commit waits for no store."""
    if pipeline.by_commit:
        raise BadOperand(
            f"Pipeline.store: a commit releases the stages of {pipeline}, and waits for products "
            "alone: store results from a shared_tile or from an OutputTilePipeline's consumer"
        )
