"""`TMAConsumerPipeline`: the consumer of a `KVPipeline`, which multiplies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numba_tma.backend.interface import Constant, device_class, u32
from numba_tma.device.matrix_descriptor import MatrixDescriptor
from numba_tma.device.shared import SharedTile, TileAccesses
from numba_tma.pipeline.kv_rules import check_holds
from numba_tma.pipeline.kv_side import KVSide
from numba_tma.pipeline.staged import (
    StagedPipeline,
    check_number,
    check_sub_stage,
    elected,
    sub_stages,
)
from numba_tma.ptx import elect_sync, fence_proxy_async, tcgen05_fence_after_thread_sync

if TYPE_CHECKING:
    from numba_tma.pipeline.kv import KVPipeline


@device_class(static=("kv",), mutable=True)
@dataclass
class TMAConsumerPipeline(KVSide):
    """The consumer of a started `KVPipeline`. Whole warps execute its methods.

    A release is one arrival per warp. Release a tile only after the products that read it are
    complete (``wgmma.wait_group``). `e` is true in the one lane that arrives; by default the warp
    elects the lane.

    With ``released_by="tcgen05"`` a release is a tcgen05.commit, which arrives when the products
    that its thread has started are complete: release a tile right after its products. The thread
    that `enters` elects executes the methods. Alternatively the whole warp does: it elects once
    (``e = tma.elect_sync()``), starts products where `e` is true, and passes `e` to each release.
    A release with `e` synchronises the warp, so all lanes execute it.
    """

    kv: KVPipeline
    pipeline: StagedPipeline
    base: u32
    accesses: TileAccesses
    # V uses only the first barrier of a stage. A stage's bit in `k_phases` is the phase that the
    # next K tile completes on the other barriers. `of_v`: the current stage was waited for as V.
    k_phases: u32 = 0
    of_v: bool = False

    def enters(self) -> bool:
        """Return True: every thread works on tiles; with commits, return whether this one does.

        With ``released_by="tcgen05"`` the thread is elected. Executed by every thread of the role.
        """
        if self.pipeline.commits:
            return elect_sync()
        return True

    def close(self) -> None:
        """End the consumer's use. The method has nothing to release."""

    def get(self, index: Any = None) -> MatrixDescriptor:
        """Return the descriptor of the stage: that of `get_k`, or of `get_v` if V is alone.

        `index` is a stage that `step` left. By default the method refers to the current stage.
        """
        if self.kv.is_k:
            return self.get_k(None, index)
        return self.get_v(index)

    def wait(self, qk_stage: Constant[int] = 0) -> None:
        """Wait until the sub-stage of K is full. In a ring of V alone, wait for V."""
        check_sub_stage("wait", self.pipeline, qk_stage)
        if self.kv.is_k:
            self._wait_k(u32(qk_stage))
        else:
            self._wait_v()

    def release(self, qk_stage: Constant[int] = 0, e: Any = None) -> None:
        """Release the sub-stage, and step if it is the last."""
        check_sub_stage("release", self.pipeline, qk_stage)
        check_number("release", "e", e)
        self._release(u32(qk_stage), elected(self.pipeline, e))

    def release_at(self, index: int, qk_stage: Constant[int | None] = None, e: Any = None) -> None:
        """Release stage `index`, which `step` left, or one sub-stage of it. Does not step."""
        check_number("release_at", "index", index)
        first, stop = sub_stages("release_at", self.pipeline, qk_stage)
        self._release_at(u32(index), first, stop, elected(self.pipeline, e))

    def step(self) -> int:
        """Step to the next stage without a release; return the stage's index for `release_at`.

        If V shares the ring with K in several sub-stages, call `wait_v` before you leave a stage of
        V: the call records that only the first barrier of the stage completes a phase.
        """
        left = self.pipeline.state.index
        self._step()
        return left

    def get_k(self, qk_stage: Constant[int | None] = None, index: Any = None) -> MatrixDescriptor:
        """Return the K-major descriptor of K: of one sub-stage, or of the whole depth."""
        check_holds("get_k", self.kv, "k")
        if qk_stage is None:
            whole = SharedTile(self.kv.k_stage, self._stage(index), self.accesses)
            return whole.matrix_descriptor("K")
        check_sub_stage("get_k", self.pipeline, qk_stage)
        return self._k_tile(u32(qk_stage), index).matrix_descriptor("K")

    def wait_k(self, qk_stage: Constant[int | None] = None) -> None:
        """Wait until a sub-stage of K, by default the last, is full. Each has its own wait."""
        check_holds("wait_k", self.kv, "k")
        if qk_stage is None:
            self._wait_k(u32(self._last))
        else:
            check_sub_stage("wait_k", self.pipeline, qk_stage)
            self._wait_k(u32(qk_stage))

    def release_k(self, qk_stage: Constant[int | None] = None, e: Any = None) -> None:
        """Release a sub-stage of K, by default the last. The release of the last one steps."""
        check_holds("release_k", self.kv, "k")
        check_number("release_k", "e", e)
        if qk_stage is None:
            self._release(u32(self._last), elected(self.pipeline, e))
        else:
            check_sub_stage("release_k", self.pipeline, qk_stage)
            self._release(u32(qk_stage), elected(self.pipeline, e))

    def get_v(self, index: Any = None) -> MatrixDescriptor:
        """Return the MN-major descriptor of V."""
        check_holds("get_v", self.kv, "v")
        return self._v_tile(index).matrix_descriptor("MN")

    def wait_v(self) -> None:
        """Wait until V is full."""
        check_holds("wait_v", self.kv, "v")
        self._wait_v()

    def release_v(self, e: Any = None) -> None:
        """Release V and step."""
        check_holds("release_v", self.kv, "v")
        check_number("release_v", "e", e)
        self._release_v(elected(self.pipeline, e))

    def get_tile(self, qk_stage: Constant[int] = 0, index: Any = None) -> SharedTile:
        """Return the tile of a sub-stage of K, or of V if V is alone."""
        check_sub_stage("get_tile", self.pipeline, qk_stage)
        if self.kv.is_k:
            return self._k_tile(u32(qk_stage), index)
        return self._v_tile(index)

    def get_k_tile(self, qk_stage: Constant[int] = 0, index: Any = None) -> SharedTile:
        """Return the tile of a sub-stage of K."""
        check_holds("get_k_tile", self.kv, "k")
        check_sub_stage("get_k_tile", self.pipeline, qk_stage)
        return self._k_tile(u32(qk_stage), index)

    def get_v_tile(self, index: Any = None) -> SharedTile:
        """Return the tile of V."""
        check_holds("get_v_tile", self.kv, "v")
        return self._v_tile(index)

    @property
    def _last(self) -> int:
        return self.pipeline.num_qk_stages - 1

    def _wait_k(self, qk_stage: Any) -> None:
        state = self.pipeline.state
        phase = state.phase
        if self.kv.v_skips_barriers and qk_stage > 0:
            phase = u32(self.k_phases >> state.index & 1)
        part = u32(self.pipeline.num_qk_stages * state.index + qk_stage)
        self.pipeline._await_full(qk_stage, phase, self.kv.k_site, part)
        self._fence_after()

    def _wait_v(self) -> None:
        state = self.pipeline.state
        self.pipeline._await_full(0, state.phase, self.kv.v_site, state.index)
        self._fence_after()
        self.of_v = True

    def _step(self) -> None:
        if self.kv.v_skips_barriers and not self.of_v:
            self.k_phases ^= u32(1 << self.pipeline.state.index)
        self.of_v = False
        self.pipeline.state.step()

    def _fence_after(self) -> None:
        if self.pipeline.commits:
            tcgen05_fence_after_thread_sync()

    def _fence(self) -> None:
        if self.accesses.unfenced:
            fence_proxy_async()
            self.accesses.unfenced = False

    def _release(self, qk_stage: Any, e: Any) -> None:
        self._release_at(self.pipeline.state.index, qk_stage, qk_stage + 1, e)
        if qk_stage == self.pipeline.num_qk_stages - 1:
            self._step()

    def _release_v(self, e: Any) -> None:
        self._release_at(self.pipeline.state.index, 0, self.pipeline.num_qk_stages, e)
        self.of_v = True
        self._step()

    def _release_at(self, index: Any, first: Any, stop: Any, e: Any) -> None:
        self._fence()
        self.pipeline._release_at(index, first, stop, e)
