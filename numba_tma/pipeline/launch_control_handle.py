"""`LaunchControlHandle`: a started `LaunchControl`, its requests and its answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numba_tma.backend.interface import device_class, u32
from numba_tma.backend.primitives import quotient
from numba_tma.device.barrier import Barrier
from numba_tma.device.marks import begin_tile
from numba_tma.device.waiting import wait_for
from numba_tma.pipeline.loops import Iteration
from numba_tma.pipeline.state import PipelineState
from numba_tma.ptx import (
    bar_warp_sync,
    cluster_ctarank,
    clusterlaunchcontrol_query_cancel_get_first_ctaid,
    clusterlaunchcontrol_query_cancel_is_canceled,
    clusterlaunchcontrol_try_cancel,
    elect_sync,
    fence_proxy_async,
    ld_shared_u64,
    mapa,
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_arrive_remote,
)

if TYPE_CHECKING:
    from numba_tma.pipeline.launch_control import LaunchControl

ANSWER_BYTES = 16


@device_class(static=("control",), mutable=True)
@dataclass
class LaunchControlHandle:
    """A started `LaunchControl`. The answer of a request is read before the next request."""

    control: LaunchControl
    base: u32
    asking: bool  # this thread requests
    step: u32  # the grid's blocks along x, or clusters
    number: u32  # of the tile
    state: PipelineState  # of the answer that has been requested; its phase is that of `full`
    going: bool = True  # no answer has said that nothing is left

    def tiles(self, schedule: Any) -> LaunchedTiles:
        """Iterate over this block's tiles of a `Schedule`, until no block of the grid is left.

        The number of a tile is that of its block, or of its cluster, in a 1-dimensional grid with a
        block or cluster for each tile. Another grid gives the same result: blocks beyond the last
        tile have none, and of fewer blocks each has several tiles.

        Executed by all threads of all roles, in a cluster of every block. Each walks the loop to
        its end, without ``break`` or ``return``: a request waits until all have read the answers
        before.
        """
        if self.state.count == 0:
            self._request()
        return LaunchedTiles(self, schedule)

    def _advance(self, num_tiles: Any) -> bool:
        """Go to the next tile; return whether there is one."""
        self.number += self.step
        while self.going and self.number >= num_tiles:
            self._read_answer()
        return self.going

    def _request(self) -> None:
        """Step to the next slot; one thread requests its answer, and each block expects it."""
        self.state.step()
        if self.asking:
            slot, full = self._answer(), self._full_barrier()
            mbarrier_arrive_expect_tx(full, ANSWER_BYTES)
            if self._is_leader():
                self._await_readers()
                if self.control.in_cluster:
                    clusterlaunchcontrol_try_cancel(slot, full, "all")
                else:
                    clusterlaunchcontrol_try_cancel(slot, full)

    def _read_answer(self) -> None:
        """Wait for the answer and read it. Request the next one, unless nothing is left."""
        if not self.control.each_thread_reads:
            bar_warp_sync()  # so that no lane runs ahead of the one that loads or multiplies
        state = self.state
        wait_for(
            self._full_barrier(), state.phase, self.control.full_site, state.index, state.count - 1
        )
        slot = self._answer()
        answer = (ld_shared_u64(slot), ld_shared_u64(slot + 8))
        self.going = clusterlaunchcontrol_query_cancel_is_canceled(answer)
        if self.going:
            block = clusterlaunchcontrol_query_cancel_get_first_ctaid(answer, "x")
            self.number = quotient(block, u32(self.control.width))[0]
        self._release()
        if self.going:
            self._request()
        elif self.control.in_cluster:
            self._drain()

    def _release(self) -> None:
        """Arrive on the empty barrier of the block that requests: the answer has been read."""
        fence_proxy_async()  # the async proxy writes the next answer here
        if self.control.each_thread_reads:
            self._arrive()
        else:
            bar_warp_sync()
            if elect_sync():
                self._arrive()

    def _arrive(self) -> None:
        empty = self._empty_barrier()
        if self.control.in_cluster:
            mbarrier_arrive_remote(mapa(empty, u32(0)), None, "release.cluster")
        else:
            mbarrier_arrive(empty)

    def _drain(self) -> None:
        """Wait until all blocks have read all answers: they arrive in this block's memory."""
        if self.asking and self._is_leader():
            for _ in range(self.control.slots):
                self.state.step()
                self._await_readers()

    def _await_readers(self) -> None:
        """Wait until all threads have read the answer that was in the slot before."""
        state, site = self.state, self.control.empty_site
        wait_for(self._empty_barrier(), state.phase ^ 1, site, state.index, state.count - 1)

    def _is_leader(self) -> bool:
        """Return whether this block requests: the first of its cluster."""
        if self.control.in_cluster:
            return cluster_ctarank() == 0
        return True

    def _answer(self) -> int:
        return u32(self.base + ANSWER_BYTES * self.state.index)

    def _full_barrier(self) -> Barrier:
        return Barrier(self.base + self.control.full_offset + 8 * self.state.index)

    def _empty_barrier(self) -> Barrier:
        return Barrier(self.base + self.control.empty_offset + 8 * self.state.index)


@device_class()
@dataclass
class LaunchedTiles(Iteration):
    """The tiles of a schedule that this block computes, as launch control hands them out."""

    work: LaunchControlHandle
    schedule: Any

    def has_next(self) -> bool:
        """Go to the next tile; return whether there is one."""
        return self.work._advance(u32(self.schedule.num_tiles))

    def take(self) -> Any:
        """Return the tile."""
        begin_tile(self.work.number)
        return self.schedule.tile(self.work.number)
