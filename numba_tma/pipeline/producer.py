"""The producer of a `TilePipeline`: it acquires empty stages, fills them and commits them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numba_tma.backend.interface import compile_time, device_class, u32
from numba_tma.device.barrier import Barrier
from numba_tma.device.shared import TileAccesses
from numba_tma.device.waiting import try_wait_for, wait_for
from numba_tma.host.annotations import Integer
from numba_tma.pipeline.multicast import is_leader
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
from numba_tma.simulator import BadOperand

if TYPE_CHECKING:
    from numba_tma.pipeline.tile import TilePipeline

NO_TILE = 0xFFFFFFFF  # tile number that a TileQueue's producer publishes when the queue is empty


@compile_time
def check_queue(called: str, repair: str, pipeline: TilePipeline) -> None:
    """Raise unless one thread of the block starts all copies into its stages."""
    if pipeline.by_commit:
        raise BadOperand(
            f"{called}: every consumer thread reads the number of a TileQueue's tile, but of "
            f"{pipeline} one thread consumes: use {repair}"
        )
    if not pipeline.by_tma or pipeline.in_cluster:
        raise BadOperand(
            f"{called}: one thread, which starts all copies for its own block, draws a "
            f"TileQueue's tiles; {pipeline} has another producer: use {repair}"
        )


@device_class(static=("pipeline",), mutable=True)
@dataclass
class TileProducer:
    """The producer of a started `TilePipeline`.

    If the copy engine fills the stages, one thread executes the methods. `Pipeline.produce` and a
    scope elect the thread; in the explicit form the kernel does. Otherwise every thread of the
    producer role executes them.
    """

    pipeline: TilePipeline
    base: u32
    barriers: u32
    thread: u32  # in the role
    state: PipelineState
    accesses: TileAccesses
    current: u32  # stage that threads fill and have not committed; num_stages if there is none
    asked: bool = False  # `try_acquire` has stepped to the next stage
    undrained: bool = False  # this thread has acquired since the last `tail`

    def enters(self) -> bool:
        """Return whether this thread fills stages. Executed by every thread of the role."""
        if not self.pipeline.by_tma:
            return True
        if self.pipeline.each_thread_commits and self.thread >= WARP:
            return False  # the role's last warp may be partial: elect.sync needs a whole warp
        elected = elect_sync()
        if not self.pipeline.one_warp_produces:
            elected &= self.thread < WARP  # no branch: ptxas still knows that it is one thread
        return elected

    def close(self) -> None:
        """End the producer's use: commit an open stage; in a cluster, wait for all releases.

        Executed by every thread of the role. A block of a cluster must not exit before its peers
        have arrived on its barriers.
        """
        if not self.pipeline.by_tma:
            self._commit_open()
        # `undrained` singles out the thread that fills stages, even if it alone left a scope early.
        if self.pipeline.in_cluster and self.undrained:
            self.tail()

    # ------------------------------------------------------------------ explicit form

    def acquire(self) -> ProducerStage:
        """Wait until the next stage is empty, expect its bytes, and return the stage.

        Every tile of the stage must be loaded exactly once, on ``stage.barrier``. Executed by the
        thread or the threads that fill the stage.
        """
        self._commit_open()
        self._await_next()
        return self._expect()

    def acquire_for(self, tile: Integer) -> ProducerStage:
        """Do what `acquire` does for a tile that a `TileQueue` handed out.

        The consumers learn its number by `wait_for_tile`. `publish_end` follows the last tile. The
        copy engine has to fill the stages.
        """
        check_queue("acquire_for", "acquire()", self.pipeline)
        self._await_next()
        self._publish_tile(tile)
        return self._expect()

    def publish_end(self) -> None:
        """Pass a stage without a tile: the sign that the queue is empty."""
        self._await_next()
        self._publish_tile(NO_TILE)
        full = self._full_barrier(self.state.index)
        if self.pipeline.debug:  # the ledger counts bytes, but this stage has no copies
            ledger = full.address + self.pipeline.ledger_offset
            red_shared_cluster_add_u32(ledger, self.pipeline.tx_bytes)
        mbarrier_arrive(full)

    def try_acquire(self) -> bool:
        """Return whether the next stage is empty, after waiting a limited time.

        `acquire_if_needed` takes the result. Work that needs no stage stands between the two calls.
        """
        self._step()
        self.asked = True
        return self._try_empty()

    def acquire_if_needed(self, acquired: bool) -> ProducerStage:
        """Return the next stage as `acquire` does, without a wait if `try_acquire` returned True.

        No other stage may be acquired between the two calls.
        """
        self._commit_open()
        self._step()
        if not acquired:
            self._await_empty()
        return self._expect()

    def commit(self) -> None:
        """Commit the stage: its full barrier gets the producer's arrivals.

        - ``filled_by="tma"``: the method does nothing, since the arriving bytes complete the
          barrier.
        - ``filled_by="cp_async"``: each thread's arrival follows when the copies that it has
          started are complete (cp.async.mbarrier.arrive.noinc).
        - ``filled_by="threads"``: the threads fence their writes and arrive.
        """
        if self.pipeline.by_cp_async:
            cp_async_mbarrier_arrive_noinc(self._full_barrier(self.current))
        elif not self.pipeline.by_tma:
            fence_proxy_async()
            if self.pipeline.each_thread_commits:
                mbarrier_arrive(self._full_barrier(self.current))
            else:
                bar_warp_sync()
                if elect_sync():
                    mbarrier_arrive(self._full_barrier(self.current))
        self.current = u32(self.pipeline.num_stages)

    def tail(self) -> None:
        """Wait until the consumers have released every filled stage.

        Executed by the threads that acquired the stages. The call is needed before the ring's
        memory is used for another purpose, and before a block of a cluster exits. Other blocks may
        exit without it: shared memory lives until the block's last thread has exited.
        """
        self._commit_open()
        last = u32(min(self.state.index, u32(self.pipeline.num_stages - 1)))
        while True:  # LLVM would unroll a range over the stages
            self._await_next()
            if self.state.index == last:
                break
        self.undrained = False
        self.state.phase ^= 1  # takes the turn back: no stage of it was filled
        self.state.count -= self.pipeline.num_stages

    # -------------------------------------------------------------------- its steps

    def _await_commits(self) -> None:
        """Wait for all commits that release stages, if commits do."""
        if self.pipeline.by_commit and not self.pipeline.in_cluster:  # else `close` has waited
            if self.undrained:
                self.tail()

    def _full_barrier(self, index: Any) -> Barrier:
        """Return the full barrier of a stage."""
        return Barrier(self.barriers + 8 * index)

    def _empty_barrier(self) -> Barrier:
        """Return the empty barrier of the stage."""
        return Barrier(self.barriers + self.pipeline.empty_offset + 8 * self.state.index)

    def _try_empty(self) -> bool:
        return try_wait_for(self._empty_barrier(), self.state.phase, self.pipeline.empty_site)

    def _await_empty(self) -> None:
        """Wait until the consumers have released the stage."""
        state = self.state
        site, iteration = self.pipeline.empty_site, u32(state.count - 1)
        wait_for(self._empty_barrier(), state.phase, site, state.index, iteration)

    def _step(self) -> None:
        """Step to the next stage, unless `try_acquire` has done so."""
        if not self.asked:
            self.state.step()
        self.asked = False

    def _await_next(self) -> None:
        """Step to the next stage and wait until the consumers have released it."""
        self._step()
        self._await_empty()

    def _expect(self) -> ProducerStage:
        """Expect the bytes of the stage, which is empty, and return the stage."""
        self.undrained = True
        if self.pipeline.in_pair:
            if is_leader():  # which expects the bytes of both blocks
                full = self._full_barrier(self.state.index)
                mbarrier_arrive_expect_tx(full, self.pipeline.expected_bytes)
        elif self.pipeline.by_tma:
            mbarrier_arrive_expect_tx(self._full_barrier(self.state.index), self.pipeline.tx_bytes)
        else:
            self.current = self.state.index
        return ProducerStage(self, self.state.index)

    def _commit_open(self) -> None:
        """Commit the stage of a loop's last iteration, if threads fill it."""
        if not self.pipeline.by_tma:
            if self.current < self.pipeline.num_stages:
                self.commit()

    def _publish_tile(self, tile: Any) -> None:
        """Store the number of the stage's tile for the consumers; the next arrival publishes it."""
        st_shared_u32(self.barriers + self.pipeline.ticket_offset + 4 * self.state.index, tile)
