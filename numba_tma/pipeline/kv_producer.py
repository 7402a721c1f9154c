"""`TMAProducerPipeline`: the producer of a `KVPipeline`, which loads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numba_tma.backend.interface import Constant, device_class, u32
from numba_tma.device.barrier import Barrier
from numba_tma.device.shared import SharedTile, TileAccesses
from numba_tma.pipeline.kv_rules import check_holds
from numba_tma.pipeline.kv_side import KVSide
from numba_tma.pipeline.roles import WARP
from numba_tma.pipeline.staged import StagedPipeline, check_number, check_sub_stage
from numba_tma.ptx import elect_sync, mbarrier_arrive_expect_tx, st_shared_u32

if TYPE_CHECKING:
    from numba_tma.pipeline.kv import KVPipeline


@device_class(static=("kv",), mutable=True)
@dataclass
class TMAProducerPipeline(KVSide):
    """The producer of a started `KVPipeline`.

    For each K tile call `acquire_k` and `get_k` for every sub-stage, then `commit_step`. For each V
    tile call `acquire_v`, `get_v` and `commit_step`. The thread that `enters` elects executes the
    methods. Alternatively a whole warp does: the warp elects once (``e = tma.elect_sync()``) and
    passes `e` to the methods that take it.
    """

    kv: KVPipeline
    pipeline: StagedPipeline
    base: u32
    thread: u32  # in the role
    accesses: TileAccesses

    def enters(self) -> bool:
        """Return whether this thread loads. Executed by every thread of the role."""
        if self.thread >= WARP:
            return False
        return elect_sync()

    def close(self) -> None:
        """End the producer's use. The method has nothing to commit."""

    def acquire(self, qk_stage: Constant[int] = 0) -> None:
        """Wait until the sub-stage of K, or the stage of V if V is alone, is empty."""
        check_sub_stage("acquire", self.pipeline, qk_stage)
        self._acquire(u32(qk_stage))

    def acquire_k(self, qk_stage: Constant[int] = 0) -> None:
        """Wait until the sub-stage is empty, to load K into it."""
        check_holds("acquire_k", self.kv, "k")
        check_sub_stage("acquire_k", self.pipeline, qk_stage)
        self._acquire(u32(qk_stage))

    def acquire_v(self) -> None:
        """Wait until the stage is empty, to load V into it."""
        check_holds("acquire_v", self.kv, "v")
        self._acquire_all()

    def get_tile(self, qk_stage: Constant[int] = 0, e: Any = True) -> tuple[Barrier, SharedTile]:
        """Do what `get_k` does, or what `get_v` does if V is alone."""
        check_sub_stage("get_tile", self.pipeline, qk_stage)
        if self.kv.is_k:
            return self.get_k(qk_stage, e)
        return self.get_v(e)

    def get_k(self, qk_stage: Constant[int] = 0, e: Any = True) -> tuple[Barrier, SharedTile]:
        """Expect the bytes of a sub-stage of K; return its barrier and its tile for the load.

        The thread for which `e` is true expects the bytes (mbarrier.arrive.expect_tx).
        """
        check_holds("get_k", self.kv, "k")
        check_sub_stage("get_k", self.pipeline, qk_stage)
        check_number("get_k", "e", e)
        self._expect(u32(qk_stage), self.kv.staged_k_bytes, e)
        return self.pipeline.full(u32(qk_stage)), self._k_tile(u32(qk_stage))

    def get_v(self, e: Any = True) -> tuple[Barrier, SharedTile]:
        """Expect the bytes of V; return its barrier and its tile for the load.

        All bytes of V complete on the stage's first barrier. Arrivals without bytes on the other
        barriers would keep their phases in step, but compute-sanitizer reports such arrivals.
        """
        check_holds("get_v", self.kv, "v")
        check_number("get_v", "e", e)
        self._expect(u32(0), self.kv.full_kv_bytes, e)
        return self.pipeline.full(u32(0)), self._v_tile()

    def commit_step(self) -> None:
        """Step to the next stage. The arriving bytes make the current stage full."""
        self.pipeline.state.step()

    def tail(self) -> None:
        """Wait until the consumers have released every filled stage.

        The call is needed only before the ring's memory is used for another purpose.
        """
        for _ in range(self.pipeline.num_kv_stages):
            self._acquire_all()
            self.pipeline.state.step()

    def _acquire(self, qk_stage: Any) -> None:
        part = u32(self.pipeline.num_qk_stages * self.pipeline.state.index + qk_stage)
        self.pipeline._await_empty(qk_stage, self.kv.empty_site, part)

    def _acquire_all(self) -> None:
        for qk_stage in range(self.pipeline.num_qk_stages):
            self._acquire(u32(qk_stage))

    def _expect(self, qk_stage: Any, tx_bytes: Any, e: Any) -> None:
        if e:
            full = self.pipeline.full(qk_stage)
            if self.pipeline.ledger > 0:
                # Issued bytes and number of this turn: K and V have different numbers of bytes.
                st_shared_u32(full.address + self.pipeline.ledger, 0)
                st_shared_u32(full.address + self.pipeline.ledger + 4, self.pipeline.state.count)
            mbarrier_arrive_expect_tx(full, tx_bytes)
