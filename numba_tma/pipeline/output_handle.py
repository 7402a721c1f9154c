"""`OutputTilePipelineHandle`: a started `OutputTilePipeline`, its sides, stages and loops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numba_tma.backend.interface import (
    Constant,
    class_of,
    compile_target,
    compile_time,
    device_class,
    i64,
    u32,
)
from numba_tma.device.clusters import cluster_sync
from numba_tma.device.shared import SharedTile
from numba_tma.device.tensor_memory import TensorMemoryHandle, free
from numba_tma.device.tensor_tile import TensorTile
from numba_tma.host.annotations import Registers
from numba_tma.host.architectures import TCGEN05, refusal
from numba_tma.pipeline.consumer import TileConsumer
from numba_tma.pipeline.loops import Iteration
from numba_tma.pipeline.producer import TileProducer
from numba_tma.pipeline.ranges import goes_backwards, is_before
from numba_tma.pipeline.stages import slot_tile
from numba_tma.ptx import bar_warp_sync, cluster_ctarank, elect_sync
from numba_tma.simulator import BadOperand

if TYPE_CHECKING:
    from numba_tma.pipeline.output import OutputTilePipeline


@device_class()
@dataclass
class OutputStage:
    """An acquired accumulator: the stage `index` of its pipeline.

    In shared memory ``stage.acc`` is the accumulator's `SharedTile`. In tensor memory
    ``stage.address`` is the accumulator's address for tcgen05 instructions, and `load` and `store`
    move columns.
    """

    owner: Any
    index: u32

    @property
    def acc(self) -> SharedTile:
        """The accumulator in shared memory."""
        require_memory(self.owner.pipeline, "stage.acc", False)
        return slot_tile(self.owner.ring, self.index, "acc")

    @property
    def address(self) -> int:
        """The address of the accumulator in tensor memory."""
        require_memory(self.owner.pipeline, "stage.address", True)
        return u32(self.owner.address + self.index * self.owner.pipeline.stage_stride_cols)

    @property
    def accumulator(self) -> TensorTile:
        """The accumulator in tensor memory, for `tcgen05_mma`, loads and stores."""
        require_memory(self.owner.pipeline, "stage.accumulator", True)
        return TensorTile(self.owner.pipeline.accumulator_layout, self.address)

    def load(self, column: Constant[int], num: Constant[int]) -> Registers:
        """Return `num` columns from `column` on, of the thread's lane, as `TensorTile.load` does.

        Executed by whole warps: thread l of warp w gets lane 32 (w mod 4) + l.
        """
        require_memory(self.owner.pipeline, "stage.load()", True)
        return self.accumulator._load("stage.load", column, num)

    def store(self, column: Constant[int], values: Registers) -> None:
        """Store a tuple of 1, 2, 4, ... or 128 columns from `column` on; the reverse of `load`.

        Threads initialise or compute accumulators with it, as with `TensorTile.store`.
        """
        require_memory(self.owner.pipeline, "stage.store()", True)
        self.accumulator._store("stage.store", column, values)
        self.owner.pipeline._fence_before()

    def enters(self) -> bool:
        """Return True: every thread that has acquired the stage executes its scope."""
        return True

    def close(self) -> None:
        """Commit the stage if the producer acquired it, or release it if the consumer did."""
        self.owner._hand_over()


@device_class(static=("pipeline",), local=True)
@dataclass
class OutputProducer:
    """The producer, which multiplies. Every warp of the role `mma` executes its methods."""

    pipeline: OutputTilePipeline
    ring: TileProducer
    address: u32  # of the columns in tensor memory

    def enters(self) -> bool:
        """Return True; in a CTA pair, return True in the even block, which multiplies."""
        if self.pipeline.cta_group == 2:
            return cluster_ctarank() % 2 == 0
        return True

    def close(self) -> None:
        """End the producer's use: commit an open stage."""
        self._commit_open()

    def acquire(self) -> OutputStage:
        """Wait until the epilogue has released the next stage, and return the stage.

        The call first commits an open stage.
        """
        self._commit_open()
        self.ring._await_next()
        self.pipeline._fence_after()
        if self.pipeline.in_tensor_memory:
            self.ring.current = u32(0)  # open; a constant, which the compiler propagates
        else:
            self.ring.current = self.ring.state.index
        return OutputStage(self, self.ring.state.index)

    def commit(self, e: Any = None) -> None:
        """Commit the stage to the epilogue.

        In shared memory every warp fences the part that it has written and arrives. In tensor
        memory one elected thread of each warp executes tcgen05.commit: the tensor cores arrive when
        the products that this thread has started are complete. The thread that `elect_sync` elects
        therefore has to start the products. With `e` the method elects no thread: the thread for
        which `e` is true commits, and may be the only one that executes the producer's methods.
        """
        if e is not None:
            check_own_election(self.pipeline)
            if e:
                self.pipeline._commit(self.ring._full_barrier(self.ring.state.index))
            self.ring.current = u32(self.pipeline.num_stages)
        elif self.pipeline.in_tensor_memory:
            bar_warp_sync()
            if elect_sync():
                self.pipeline._commit(self.ring._full_barrier(self.ring.state.index))
            self.ring.current = u32(self.pipeline.num_stages)
        else:
            self.ring.commit()

    def _commit_open(self) -> None:
        if self.ring.current < self.pipeline.num_stages:
            self.commit()

    def _hand_over(self) -> None:
        self.commit()


@device_class(static=("pipeline",), local=True)
@dataclass
class OutputConsumer:
    """The consumer of accumulators. Every warp of the role `epilogue` executes its methods.

    Stages are released in the order in which they were acquired.
    """

    pipeline: OutputTilePipeline
    ring: TileConsumer
    address: u32  # of the columns in tensor memory

    def enters(self) -> bool:
        """Return True: every thread of the role works on stages."""
        return True

    def close(self) -> None:
        """End the consumer's use: release every held stage."""
        self.pipeline._fence_before()
        self.ring.close()

    def acquire(self) -> OutputStage:
        """Wait until the next stage is full and return it."""
        self.ring.wait()
        self.pipeline._fence_after()
        return OutputStage(self, self.ring.state.index)

    def release(self) -> None:
        """Release the oldest held stage."""
        self.pipeline._fence_before()
        self.ring.release()

    def sync(self) -> None:
        """Synchronise the role's warps, as cuda.syncthreads synchronises a block."""
        self.ring.sync()

    def store(self, tensor_map: Any, tile: SharedTile, coords: Any, written: bool = True) -> None:
        """Store ``stage.acc`` or a `shared_tile`, as `Pipeline.store` does.

        Executed by every thread of the role.
        """
        self.ring.store(tensor_map, tile, coords, written)

    def _release_held(self) -> None:
        """Release the stage of the loop's previous iteration, if it is held."""
        self.pipeline._fence_before()
        self.ring._close_stage()
        self.ring._release_beyond(0)

    def _hand_over(self) -> None:
        self.release()


@device_class(static=("backwards",))
@dataclass
class OutputProduce(Iteration):
    """The tiles first, first + step, ... below stop, each with the stage to fill."""

    backwards: bool
    producer: OutputProducer
    tile: i64
    stop: i64
    step: i64
    entered: bool

    def has_next(self) -> bool:
        """Commit the previous stage; return whether a tile is left."""
        self.producer._commit_open()
        self.tile += self.step
        if not self.entered:
            return False
        return is_before(self.tile, self.stop, self.backwards)

    def take(self) -> tuple[int, OutputStage]:
        """Return the next tile and its acquired stage."""
        return self.tile, self.producer.acquire()


@device_class(static=("backwards",))
@dataclass
class OutputConsume(Iteration):
    """The tiles first, first + step, ... below stop, each with its full stage."""

    backwards: bool
    consumer: OutputConsumer
    tile: i64
    stop: i64
    step: i64

    def has_next(self) -> bool:
        """Release the previous stage; return whether a tile is left."""
        self.consumer._release_held()
        self.tile += self.step
        return is_before(self.tile, self.stop, self.backwards)

    def take(self) -> tuple[int, OutputStage]:
        """Wait until the next stage is full; return its tile and the stage."""
        return self.tile, self.consumer.acquire()


@device_class(static=("pipeline",), local=True)
@dataclass
class OutputTilePipelineHandle:
    """A started `OutputTilePipeline`.

    The explicit form has one method for each step: `acquire_for_mma`, `release_from_mma`,
    `acquire_for_epilogue` and `release_from_epilogue`.
    """

    pipeline: OutputTilePipeline
    _producer: OutputProducer
    _consumer: OutputConsumer

    def enters(self) -> bool:
        """Return True: every thread of the block executes the pipeline's scope."""
        return True

    @property
    def tensor_memory(self) -> TensorMemoryHandle:
        """The allocation, for matrices in the columns behind the stages (`extra_columns`)."""
        require_memory(self.pipeline, "pipe.tensor_memory", True)
        return TensorMemoryHandle(self.pipeline.tensor_memory, self._consumer.address)

    def producer(self) -> OutputProducer:
        """Return the producer, which is the side of the role `mma`."""
        return self._producer

    def consumer(self) -> OutputConsumer:
        """Return the consumer, which is the side of the role `epilogue`."""
        return self._consumer

    def acquire_for_mma(self) -> OutputStage:
        """Do what `OutputProducer.acquire` does."""
        return self._producer.acquire()

    def release_from_mma(self, stage: OutputStage, e: Any = None) -> None:
        """Commit `stage`, which `acquire_for_mma` returned, as `OutputProducer.commit` does."""
        check_filled(stage)
        stage.owner.commit(e)

    def acquire_for_epilogue(self) -> OutputStage:
        """Do what `OutputConsumer.acquire` does."""
        return self._consumer.acquire()

    def release_from_epilogue(self) -> None:
        """Do what `OutputConsumer.release` does."""
        self._consumer.release()

    def produce(self, first: Any, stop: Any, step: Constant[int] = 1) -> OutputProduce:
        """Iterate over range(first, stop, step), each tile with an acquired stage to fill.

        Every warp of the role `mma` enters the loop. A stage is committed when the loop goes on or
        ends. After a ``break`` the next `acquire` or `close` commits it.
        """
        producer, backwards = self._producer, goes_backwards("produce", first, stop, step)
        before = i64(first) - i64(step)
        return OutputProduce(backwards, producer, before, stop, step, producer.enters())

    def consume(self, first: Any, stop: Any, step: Constant[int] = 1) -> OutputConsume:
        """Iterate over range(first, stop, step), each tile with its full stage.

        Every warp of the role `epilogue` enters the loop. A stage is released when the loop goes on
        or ends. After a ``break`` `close` releases it.
        """
        backwards = goes_backwards("consume", first, stop, step)
        return OutputConsume(backwards, self._consumer, i64(first) - i64(step), stop, step)

    def close(self) -> None:
        """End the pipeline's use: commit or release open stages, and free the columns.

        Executed once by every thread of the two roles, after the last stage. In tensor memory the
        call is required, and the epilogue must have acquired every committed stage. With
        `cta_group` 2 every thread of the cluster executes `close`, which synchronises the cluster.
        """
        if self.pipeline.mma.is_member():
            self._producer.close()
        elif self.pipeline.epilogue.is_member():
            self._consumer.close()
        if self.pipeline.cta_group == 2:
            cluster_sync()
        if self.pipeline.in_tensor_memory:
            if self.pipeline.epilogue.is_member():
                self._consumer.sync()
                self.pipeline._fence_after()
                free(self.pipeline.tensor_memory, self._consumer.address)


# ------------------------------------------------------------------- when a kernel is compiled


@compile_time
def require_memory(pipeline: OutputTilePipeline, what: str, tensor: bool) -> None:
    """Raise if `what` is an operation on the other memory."""
    if not tensor and pipeline.in_tensor_memory:
        raise BadOperand(
            f"{what}: the stages of {pipeline} are columns of tensor memory: load them with "
            "stage.load(column, num), or give tcgen05 instructions stage.address"
        )
    if tensor and not pipeline.in_tensor_memory:
        raise BadOperand(
            f"{what}: the stages of {pipeline} are in shared memory: read and write stage.acc, or "
            "give memory='tensor' on sm_100a"
        )


@compile_time
def check_own_election(pipeline: OutputTilePipeline) -> None:
    """Raise if every warp commits, since the stages are in shared memory."""
    if not pipeline.in_tensor_memory:
        raise BadOperand(
            f"commit(e=...): every warp fences and commits its part of a stage of {pipeline} in "
            "shared memory: leave e out"
        )


@compile_time
def check_filled(stage: Any) -> None:
    """Raise unless the producer acquired the stage."""
    owner = getattr(stage, "owner", None)
    if class_of(owner) is not OutputProducer:
        raise BadOperand(
            f"release_from_mma(stage={stage}): acquire_for_mma() has to return the stage; the "
            "epilogue releases its stages with release_from_epilogue()"
        )


@compile_time
def check_target(pipeline: OutputTilePipeline) -> None:
    """Raise if the pipeline needs tensor memory that the target does not have."""
    target = compile_target()
    if pipeline.in_tensor_memory and target and not TCGEN05.allow(target):
        raise BadOperand(
            f"{refusal(f'{pipeline}: tensor memory', TCGEN05, target)}; or give memory='shared', "
            "or let the warps that multiply keep their accumulators in registers and run the "
            "epilogue"
        )
