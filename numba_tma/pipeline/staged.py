"""`StagedPipeline` and the two sides of a started `KVPipeline`.

Barrier `num_qk_stages * index + qk_stage` is the full one of a sub-stage, and the empty one lies
`num_kv_stages * num_qk_stages` barriers further. Waits do not step; a side steps when it is done
with the last sub-stage, or when it leaves a stage to be released later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numba_tma import simulator
from numba_tma._device import device_class, u32
from numba_tma.barrier import Barrier
from numba_tma.matrix_descriptor import MatrixDescriptor
from numba_tma.pipeline.kv import HOLDS, KVPipeline, Sites
from numba_tma.pipeline.roles import WARP
from numba_tma.pipeline.started import block_rule, given_address
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
    ntid_x,
    tid_x,
)
from numba_tma.shared import SharedTile, Writes
from numba_tma.waiting import wait_for

#: Members of a `KVPipeline` that both its sides have as well, at compile time.
MEMBERS = (
    *("BK", "BMN", "full_kv_bytes", "staged_k_bytes", "num_qk_stages_effective", "is_k"),
    *("is_k_major", "num_kv_stages"),
)


@device_class(static=("num_kv_stages", "num_qk_stages", "sites"), mutable=True)
@dataclass
class StagedPipeline:
    """The barriers of a ring whose stages come in `num_qk_stages` parts, and a walk round it.

    A producer's starts as ``PipelineState(num_kv_stages, 0, 1)``, a consumer's with phase 0.
    `KVPipeline.start` makes both; by itself it is for rings of another kind, over `num_mbars`
    barriers. A sub-stage is 0 to `num_qk_stages` - 1; a literal is checked when the kernel is
    compiled.
    """

    num_kv_stages: int
    num_qk_stages: int
    barriers: u32
    state: PipelineState
    sites: Sites = Sites()

    @property
    def num_mbars(self) -> int:
        """Barriers of the ring: a full and an empty one for each sub-stage."""
        return 2 * self.num_qk_stages * self.num_kv_stages

    def init(self, empty_arrivals: Any) -> None:
        """Initialise the barriers: by one thread, then `fence_mbarrier_init`."""
        for i in range(self.num_kv_stages * self.num_qk_stages):
            full = u32(self.barriers + 8 * i)
            mbarrier_init(full, 1)
            mbarrier_init(full + 8 * self.num_kv_stages * self.num_qk_stages, empty_arrivals)

    def full(self, qk_stage: int = 0) -> Barrier:
        """Return the barrier that completes when the sub-stage has been filled."""
        return Barrier(self._at(self.state.index, qk_stage))

    def producer_acquire(self, qk_stage: int = 0) -> None:
        """Wait until the sub-stage is empty. Executed by the threads that fill it."""
        check_sub_stage("producer_acquire", self, qk_stage)
        self._producer_acquire(qk_stage)

    def consumer_wait(self, qk_stage: int = 0) -> None:
        """Wait until the sub-stage is full."""
        check_sub_stage("consumer_wait", self, qk_stage)
        self._consumer_wait(qk_stage)

    def consumer_release(self, qk_stage: int = 0, e: Any = None) -> None:
        """Hand the sub-stage back, and step if it is the last.

        One arrival per warp, made by the lane for which `e` is true; left out, the warp elects one.
        Executed by whole warps, which have waited for what reads the sub-stage asynchronously.
        """
        check_sub_stage("consumer_release", self, qk_stage)
        self._consumer_release(qk_stage, elected(e))

    def consumer_release_at(self, index: Any, qk_stage: Any = None, e: Any = None) -> None:
        """Hand back stage `index`, or one sub-stage of it, which was left before. Does not step."""
        first, stop = sub_stages("consumer_release_at", self, qk_stage)
        self._release_at(index, first, stop, elected(e))

    def step(self) -> int:
        """Go to the next stage; return the index of the one left, which `release_at` takes."""
        left = self.state.index
        self.state.step()
        return left

    def _at(self, index: Any, qk_stage: Any) -> int:
        return u32(self.barriers + 8 * u32(self.num_qk_stages * index + qk_stage))

    def _empty_at(self, index: Any, qk_stage: Any) -> int:
        return u32(self._at(index, qk_stage) + 8 * self.num_kv_stages * self.num_qk_stages)

    def _producer_acquire(self, qk_stage: Any) -> None:
        """Wait for a sub-stage of the ring to be empty: here and nowhere else."""
        state = self.state
        barrier = Barrier(self._empty_at(state.index, qk_stage))
        wait_for(barrier, state.phase, self.sites.empty, state.index, state.count)

    def _consumer_wait(self, qk_stage: Any) -> None:
        """Wait for a sub-stage of the ring to be full: here and nowhere else."""
        state = self.state
        barrier = Barrier(self._at(state.index, qk_stage))
        wait_for(barrier, state.phase, self.sites.full, state.index, state.count)

    def _consumer_release(self, qk_stage: Any, e: Any) -> None:
        self._release_at(self.state.index, qk_stage, qk_stage + 1, e)
        if qk_stage == self.num_qk_stages - 1:
            self.state.step()

    def _release_at(self, index: Any, first: Any, stop: Any, e: Any) -> None:
        """Arrive on the empty barriers of the sub-stages first to stop - 1."""
        bar_warp_sync()
        if e:
            for qk_stage in range(first, stop):
                mbarrier_arrive(self._empty_at(index, qk_stage))


class _Side:
    """What both sides have, for the simulator."""

    kv: KVPipeline
    pipeline: StagedPipeline
    base: int
    writes: Writes

    def __getattr__(self, name: str) -> Any:
        if name in MEMBERS:
            return getattr(self.kv, name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def _stage(self, index: Any) -> int:
        index = self.pipeline.state.index if index is None else index
        return self.base + index * self.kv.full_kv_bytes

    def _k_tile(self, qk_stage: int, index: Any = None) -> SharedTile:
        address = self._stage(index) + qk_stage * self.kv.staged_k_bytes
        return SharedTile(self.kv.k_tile, address, self.writes)

    def _v_tile(self, index: Any = None) -> SharedTile:
        return SharedTile(self.kv.v_tile, self._stage(index), self.writes)


@device_class(static=("kv",), mutable=True)
@dataclass
class TMAProducerPipeline(_Side):
    """The side of a `KVPipeline` that loads.

    For each tile: `acquire_k` and `get_k` for every sub-stage, or `acquire_v` and `get_v`, then
    `commit_step`. Executed by the one thread that `enters` elects; or by a whole warp that elects
    once (``e = tma.elect_sync()``) and hands `e` to what only that lane does.
    """

    kv: KVPipeline
    pipeline: StagedPipeline
    base: u32
    thread: u32  # in the role
    writes: Writes

    def enters(self) -> bool:
        """Return whether this thread loads. Executed by every thread of the role."""
        if self.thread >= WARP:
            return False
        return elect_sync()

    def close(self) -> None:
        """End the producer's use: nothing is left open."""

    def acquire(self, qk_stage: int = 0) -> None:
        """Wait until the sub-stage is empty: of K, or V where it is alone."""
        self.pipeline.producer_acquire(qk_stage)

    def acquire_k(self, qk_stage: int = 0) -> None:
        """Wait until the sub-stage is empty, to load K into it."""
        check_holds("acquire_k", self.kv, "k")
        self.pipeline.producer_acquire(qk_stage)

    def acquire_v(self) -> None:
        """Wait until the stage is empty, to load V into it."""
        check_holds("acquire_v", self.kv, "v")
        self._acquire_v()

    def get_tile(self, qk_stage: int = 0, e: Any = True) -> tuple[Barrier, SharedTile]:
        """Do what `get_k` does, or `get_v` where V is alone."""
        if self.kv.is_k:
            return self.get_k(qk_stage, e)
        check_sub_stage("get_tile", self.pipeline, qk_stage)
        return self.get_v(e)

    def get_k(self, qk_stage: int = 0, e: Any = True) -> tuple[Barrier, SharedTile]:
        """Expect the bytes of a sub-stage of K; return its barrier and tile, for its load.

        They are expected, once, by the thread for which `e` is true.
        """
        check_holds("get_k", self.kv, "k")
        check_sub_stage("get_k", self.pipeline, qk_stage)
        self._expect_k(qk_stage, e)
        return self.pipeline.full(qk_stage), self._k_tile(qk_stage)

    def get_v(self, e: Any = True) -> tuple[Barrier, SharedTile]:
        """Expect the bytes of V; return its barrier and tile, for its load."""
        check_holds("get_v", self.kv, "v")
        self._expect_v(e)
        return self.pipeline.full(0), self._v_tile()

    def commit_step(self) -> None:
        """Go to the next stage. The bytes that come say by themselves that this one is filled."""
        self.pipeline.state.step()

    def tail(self) -> None:
        """Wait until the consumers have released every stage that was filled.

        Needed only before the ring's memory is used for something else.
        """
        for _ in range(self.pipeline.num_kv_stages):
            self._acquire_v()
            self.pipeline.state.step()

    def _acquire_v(self) -> None:
        for qk_stage in range(self.pipeline.num_qk_stages):
            self.pipeline._producer_acquire(qk_stage)

    def _expect_k(self, qk_stage: Any, e: Any) -> None:
        if e:
            mbarrier_arrive_expect_tx(self.pipeline.full(qk_stage), self.kv.staged_k_bytes)

    def _expect_v(self, e: Any) -> None:
        """Expect V on the first barrier; the others of a shared ring complete without bytes."""
        if e:
            mbarrier_arrive_expect_tx(self.pipeline.full(0), self.kv.full_kv_bytes)
            for qk_stage in range(1, self.pipeline.num_qk_stages):
                # With no bytes, and not as a plain arrival, after which synccheck wants a wait.
                mbarrier_arrive_expect_tx(self.pipeline.full(qk_stage), 0)


@device_class(static=("kv",), mutable=True)
@dataclass
class TMAConsumerPipeline(_Side):
    """The side of a `KVPipeline` that multiplies. All its methods are executed by whole warps.

    A release is one arrival per warp, made when the products that read the tile are known to be
    done (``wgmma.wait_group``). `e` is true in the one lane that arrives; left out, the warp
    elects it.
    """

    kv: KVPipeline
    pipeline: StagedPipeline
    base: u32
    writes: Writes

    def get(self, index: Any = None) -> MatrixDescriptor:
        """Return the matrix descriptor of the stage: that of `get_k`, or where V is alone `get_v`.

        Of a ring that holds both it is the one of K. `index` is a stage that `step` left, as in
        all methods that have it.
        """
        return self.get_k(None, index) if self.kv.is_k else self.get_v(index)

    def wait(self, qk_stage: int = 0) -> None:
        """Wait until the sub-stage is full."""
        self.pipeline.consumer_wait(qk_stage)

    def release(self, qk_stage: int = 0, e: Any = None) -> None:
        """Hand the sub-stage back, and step if it is the last."""
        check_sub_stage("release", self.pipeline, qk_stage)
        self._release(qk_stage, elected(e))

    def release_at(self, index: Any, qk_stage: Any = None, e: Any = None) -> None:
        """Hand back stage `index`, which `step` left, or one sub-stage of it. Does not step."""
        first, stop = sub_stages("release_at", self.pipeline, qk_stage)
        self._release_at(index, first, stop, elected(e))

    def step(self) -> int:
        """Go to the next stage and keep this one; return its index, for `release_at`."""
        return self.pipeline.step()

    def get_k(self, qk_stage: Any = None, index: Any = None) -> MatrixDescriptor:
        """Return the K-major descriptor of K: of one sub-stage, or of the whole depth."""
        if qk_stage is not None:
            check_sub_stage("get_k", self.pipeline, qk_stage)
        check_holds("get_k", self.kv, "k")
        tile = self._k_tile(qk_stage or 0, index)
        whole = SharedTile(self.kv.k_stage, tile.address, tile.writes)
        return (whole if qk_stage is None else tile).matrix_descriptor("K")

    def wait_k(self, qk_stage: Any = None) -> None:
        """Wait until a sub-stage of K, by default the last, is full. Each is waited for itself."""
        check_holds("wait_k", self.kv, "k")
        self.pipeline.consumer_wait(self._last if qk_stage is None else qk_stage)

    def release_k(self, qk_stage: Any = None, e: Any = None) -> None:
        """Hand back a sub-stage of K, by default the last, which steps. Each goes by itself."""
        check_holds("release_k", self.kv, "k")
        self.release(self._last if qk_stage is None else qk_stage, e)

    def get_v(self, index: Any = None) -> MatrixDescriptor:
        """Return the MN-major descriptor of V."""
        check_holds("get_v", self.kv, "v")
        return self._v_tile(index).matrix_descriptor("MN")

    def wait_v(self) -> None:
        """Wait until V is there."""
        check_holds("wait_v", self.kv, "v")
        self.pipeline.consumer_wait(0)
        # The other barriers of a ring that K shares got an arrival for V, too.
        for qk_stage in range(1, self.pipeline.num_qk_stages):
            self.pipeline._consumer_wait(qk_stage)

    def release_v(self, e: Any = None) -> None:
        """Hand V back and step."""
        check_holds("release_v", self.kv, "v")
        self._release_v(elected(e))

    def get_tile(self, qk_stage: int = 0, index: Any = None) -> SharedTile:
        """Return the tile itself: of a sub-stage of K, or where V is alone that of V."""
        check_sub_stage("get_tile", self.pipeline, qk_stage)
        return self._k_tile(qk_stage, index) if self.kv.is_k else self._v_tile(index)

    def get_k_tile(self, qk_stage: int = 0, index: Any = None) -> SharedTile:
        """Return the tile of a sub-stage of K."""
        check_holds("get_k_tile", self.kv, "k")
        return self.get_tile(qk_stage, index)

    def get_v_tile(self, index: Any = None) -> SharedTile:
        """Return the tile of V."""
        check_holds("get_v_tile", self.kv, "v")
        return self._v_tile(index)

    @property
    def _last(self) -> int:
        return self.pipeline.num_qk_stages - 1

    def _fence(self) -> None:
        if self.writes.unfenced:
            fence_proxy_async()
            self.writes.unfenced = False

    def _release(self, qk_stage: Any, e: Any) -> None:
        self._fence()
        self.pipeline._consumer_release(qk_stage, e)

    def _release_v(self, e: Any) -> None:
        self._release_at(self.pipeline.state.index, 0, self.pipeline.num_qk_stages, e)
        self.pipeline.state.step()

    def _release_at(self, index: Any, first: Any, stop: Any, e: Any) -> None:
        self._fence()
        self.pipeline._release_at(index, first, stop, e)


# ------------------------------------------------------------------------------- start


def start(
    kv: KVPipeline, tiles: Any = None, barriers: Any = None, sync: bool = True
) -> tuple[TMAProducerPipeline, TMAConsumerPipeline]:
    """Do what `KVPipeline.start` says."""
    if ntid_x() != kv.block:
        raise simulator.BadOperand(block_rule(kv.block, ntid_x()))
    base, first = _allocate(kv, tiles, barriers)
    stages, parts = kv.num_kv_stages, kv.num_qk_stages_effective
    loading = StagedPipeline(stages, parts, first, PipelineState(stages, 0, 1))
    working = StagedPipeline(stages, parts, first, PipelineState(stages))
    thread = tid_x() - kv.producer.first & 0xFFFFFFFF
    initialise(loading, tid_x(), kv.empty_arrivals, kv.block, sync)
    return (
        TMAProducerPipeline(kv, loading, base, thread, Writes()),
        TMAConsumerPipeline(kv, working, base, Writes()),
    )


def initialise(
    pipeline: StagedPipeline, thread: int, arrivals: int, num_threads: int, sync: bool
) -> None:
    """Initialise the barriers of a ring and make them visible to the block and its copies."""
    if thread == 0:
        pipeline.init(u32(arrivals))
        fence_mbarrier_init()
    if sync:
        barrier_sync(0, num_threads)


def _allocate(kv: KVPipeline, tiles: Any, barriers: Any) -> tuple[int, int]:
    """Return the addresses of a ring's tiles and barriers, with names for the simulator."""
    if tiles is None:
        nbytes = kv.nbytes if barriers is None else kv.storage_nbytes
        base = simulator.allocate_shared(kv, nbytes, kv.alignment)
    else:
        base = given_address("tiles", tiles, kv.storage_nbytes, kv.alignment)
    if barriers is not None:
        first = given_address("barriers", barriers, 8 * kv.num_barriers, 8)
    elif tiles is None:
        first = base + kv.storage_nbytes
    else:
        first = simulator.allocate_shared((kv, "barriers"), 8 * kv.num_barriers, 8)
    parts = kv.num_qk_stages_effective
    for i in range(kv.num_kv_stages * parts):
        stage, part = divmod(i, parts)
        where = f"[{stage}] of {f'sub-stage {part} of ' if parts > 1 else ''}{kv}"
        simulator.label(first + 8 * i, f"full{where}")
        simulator.label(first + 4 * kv.num_barriers + 8 * i, f"empty{where}")
        address = base + stage * kv.full_kv_bytes + part * kv.staged_k_bytes
        simulator.label(address, f"{kv.holds}{where}")
    return base, first


# ------------------------------------------------------------------------------- rules


def elected(e: Any) -> Any:
    """Return which lane arrives: the one that the caller says, or one that is elected here."""
    return elect_sync() if e is None else e


def check_sub_stage(method: str, pipeline: Any, qk_stage: Any) -> None:
    """Raise unless the ring has the sub-stage."""
    if not 0 <= qk_stage < pipeline.num_qk_stages:
        raise simulator.BadOperand(sub_stage_rule(method, pipeline.num_qk_stages, qk_stage))


def sub_stages(method: str, pipeline: Any, qk_stage: Any) -> tuple[int, int]:
    """Return the range of sub-stages that is meant: one of them, or by None all."""
    if qk_stage is None:
        return 0, pipeline.num_qk_stages
    check_sub_stage(method, pipeline, qk_stage)
    return qk_stage, qk_stage + 1


def sub_stage_rule(method: str, parts: int, qk_stage: Any) -> str:
    """Return what is wrong with a sub-stage that is not there."""
    return (
        f"{method}(qk_stage={qk_stage}): the ring has num_qk_stages = {parts} sub-stage(s) to a "
        f"stage, numbered 0 to {parts - 1}"
    )


def check_holds(method: str, kv: KVPipeline, what: str) -> None:
    """Raise unless the ring holds K (or V)."""
    if what not in kv.holds:
        raise simulator.BadOperand(holds_rule(method, kv, what))


def holds_rule(method: str, kv: KVPipeline, what: str) -> str:
    """Return what is wrong with a method for K on a ring of V, or the other way round."""
    has, wants = ("K-major", "MN-major") if what == "v" else ("MN-major", "K-major")
    return (
        f"{method}: {kv} holds {HOLDS[kv.holds]}, whose tiles are {has}, but {method} is for "
        f"{wants} tiles of {what.upper()}: use the ring of {what.upper()}, or one with holds='kv'"
    )
