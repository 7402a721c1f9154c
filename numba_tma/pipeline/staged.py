"""`StagedPipeline`: the barriers of a ring whose stages have sub-stages, and a walk round the ring.

Barrier `num_qk_stages * index + qk_stage` is the full barrier of a sub-stage. Its empty barrier
lies `num_kv_stages * num_qk_stages` barriers further. Waits do not step. The release of the last
sub-stage steps, and so does `step`, which leaves a stage to be released later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numba_tma.backend.interface import (
    Constant,
    Unknown,
    compile_time,
    device_class,
    device_function,
    u32,
)
from numba_tma.device.barrier import Barrier
from numba_tma.device.waiting import wait_for
from numba_tma.host.debug import Site
from numba_tma.pipeline.state import PipelineState
from numba_tma.ptx import (
    bar_warp_sync,
    elect_sync,
    mbarrier_arrive,
    mbarrier_init,
    tcgen05_commit,
)
from numba_tma.simulator import BadOperand

# The names of a ring's waits in debug mode, if the caller gives no others.
EMPTY, FULL = Site("'stage.empty'", "producer"), Site("'stage.full'", "consumer")


@device_class(static=("num_kv_stages", "num_qk_stages", "ledger", "commits"), mutable=True)
@dataclass
class StagedPipeline:
    """The barriers of a ring with `num_qk_stages` sub-stages in a stage, and a walk round the ring.

    The state of a producer starts as ``PipelineState(num_kv_stages, 0, 1)``, that of a consumer
    with phase 0. `KVPipeline.start` makes both. Kernels with rings of another kind construct the
    class themselves, over `num_mbars` barriers. Sub-stages are numbered 0 to `num_qk_stages` - 1; a
    literal number is checked when the kernel is compiled.
    """

    num_kv_stages: int
    num_qk_stages: int
    barriers: u32
    state: PipelineState
    #: Offset of the ledger from its full barrier in debug mode; 0 if bytes are not counted.
    ledger: int = 0
    #: Whether a release is a tcgen05.commit of one thread, in place of an arrival of each warp.
    commits: bool = False

    def __post_init__(self) -> None:
        for name in ("num_kv_stages", "num_qk_stages"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"StagedPipeline({name}={value!r}): an integer of at least 1")

    @property
    def num_mbars(self) -> int:
        """Barriers of the ring: one full and one empty barrier for each sub-stage."""
        return 2 * self.num_qk_stages * self.num_kv_stages

    def init(self, empty_arrivals: Any) -> None:
        """Initialise the barriers. Executed by one thread, then `fence_mbarrier_init`.

        `empty_arrivals` is the number of releases that complete an empty barrier.
        """
        for i in range(self.num_kv_stages * self.num_qk_stages):
            full = u32(self.barriers + 8 * i)
            mbarrier_init(full, 1)
            mbarrier_init(full + 8 * self.num_kv_stages * self.num_qk_stages, empty_arrivals)

    def full(self, qk_stage: int = 0) -> Barrier:
        """Return the full barrier of a sub-stage of the current stage."""
        return Barrier(self._at(self.state.index, qk_stage), self.ledger)

    def producer_acquire(self, qk_stage: Constant[int] = 0) -> None:
        """Wait until the sub-stage is empty. Executed by the threads that fill it."""
        check_sub_stage("producer_acquire", self, qk_stage)
        self._producer_acquire(u32(qk_stage))

    def consumer_wait(self, qk_stage: Constant[int] = 0) -> None:
        """Wait until the sub-stage is full."""
        check_sub_stage("consumer_wait", self, qk_stage)
        self._consumer_wait(u32(qk_stage))

    def consumer_release(self, qk_stage: Constant[int] = 0, e: Any = None) -> None:
        """Release the sub-stage, and step if it is the last of its stage.

        Executed by whole warps, whose asynchronous reads of the sub-stage are complete. A release
        is one arrival per warp, by the lane for which `e` is true. By default the warp elects one.
        With `commits` a release is a tcgen05.commit, and by default one thread executes the method.
        """
        check_sub_stage("consumer_release", self, qk_stage)
        check_number("consumer_release", "e", e)
        self._consumer_release(u32(qk_stage), elected(self, e))

    def consumer_release_at(
        self, index: int, qk_stage: Constant[int | None] = None, e: Any = None
    ) -> None:
        """Release stage `index`, or one sub-stage of it, which `step` left. Does not step."""
        check_number("consumer_release_at", "index", index)
        first, stop = sub_stages("consumer_release_at", self, qk_stage)
        self._release_at(u32(index), first, stop, elected(self, e))

    def step(self) -> int:
        """Step to the next stage; return the index of the stage left, for `consumer_release_at`."""
        left = self.state.index
        self.state.step()
        return left

    def _at(self, index: Any, qk_stage: Any) -> int:
        return u32(self.barriers + 8 * u32(self.num_qk_stages * index + qk_stage))

    def _empty_at(self, index: Any, qk_stage: Any) -> int:
        return u32(self._at(index, qk_stage) + 8 * self.num_kv_stages * self.num_qk_stages)

    def _producer_acquire(self, qk_stage: Any) -> None:
        self._await_empty(qk_stage, EMPTY, self.state.index)

    def _consumer_wait(self, qk_stage: Any) -> None:
        self._await_full(qk_stage, self.state.phase, FULL, self.state.index)

    def _await_empty(self, qk_stage: Any, site: Any, stage: Any) -> None:
        """Wait until a sub-stage is empty. All waits for empty sub-stages go through this method.

        `site` and the number `stage` name the wait in debug mode.
        """
        state = self.state
        barrier = Barrier(self._empty_at(state.index, qk_stage))
        wait_for(barrier, state.phase, site, stage, state.count)

    def _await_full(self, qk_stage: Any, phase: Any, site: Any, stage: Any) -> None:
        """Wait until a sub-stage is full. All waits for full sub-stages go through this method."""
        wait_for(self.full(qk_stage), phase, site, stage, self.state.count)

    def _consumer_release(self, qk_stage: Any, e: Any) -> None:
        self._release_at(self.state.index, qk_stage, qk_stage + 1, e)
        if qk_stage == self.num_qk_stages - 1:
            self.state.step()

    def _release_at(self, index: Any, first: Any, stop: Any, e: Any) -> None:
        """Arrive on the empty barriers of the sub-stages first to stop - 1."""
        if self.commits:
            if e:
                for qk_stage in range(first, stop):
                    tcgen05_commit(self._empty_at(index, qk_stage), 1)
        else:
            bar_warp_sync()
            if e:
                for qk_stage in range(first, stop):
                    mbarrier_arrive(self._empty_at(index, qk_stage))


@device_function
def elected(pipeline: StagedPipeline, e: Any) -> Any:
    """Return whether the lane arrives: `e`, or without `e` the result of an election.

    A release by a commit is executed by one thread without `e`, and by the whole warp with `e`. The
    warp meets before the commit: a lane two phases behind would wait for a phase that is over.
    """
    if e is None:
        if pipeline.commits:
            return True
        return elect_sync()
    if pipeline.commits:
        bar_warp_sync()
    return e


@device_function
def sub_stages(
    method: Constant[str], pipeline: StagedPipeline, qk_stage: Constant[int | None]
) -> tuple[int, int]:
    """Return the range of the sub-stage `qk_stage`; None stands for all sub-stages."""
    if qk_stage is None:
        return u32(0), u32(pipeline.num_qk_stages)
    check_sub_stage(method, pipeline, qk_stage)
    return u32(qk_stage), u32(qk_stage + 1)


@compile_time
def check_sub_stage(method: str, pipeline: StagedPipeline, qk_stage: int) -> None:
    """Raise unless the ring has the sub-stage. A variable passes."""
    check_number(method, "qk_stage", qk_stage)
    parts = pipeline.num_qk_stages
    if not isinstance(qk_stage, Unknown) and not 0 <= qk_stage < parts:
        raise BadOperand(
            f"{method}(qk_stage={qk_stage}): the ring has num_qk_stages = {parts} sub-stage(s) to "
            f"a stage, numbered 0 to {parts - 1}"
        )


@compile_time
def check_number(method: str, name: str, given: Any) -> None:
    """Raise unless an argument is a number or None."""
    if isinstance(given, str) or (isinstance(given, Unknown) and not given.is_number):
        raise BadOperand(f"{method}({name}=...) takes a number, not {given}")
