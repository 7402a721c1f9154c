"""`OutputPipeline`: what a kernel holds of an `OutputTilePipeline`; its sides and its stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numba_tma.backend.interface import (
    Constant,
    Unknown,
    class_of,
    compile_time,
    compute_capability,
    device_class,
    device_function,
    i64,
    u32,
)
from numba_tma.backend.primitives import add32
from numba_tma.device.clusters import cluster_sync
from numba_tma.device.shared import SharedTile
from numba_tma.pipeline.columns import load_columns, store_columns
from numba_tma.pipeline.consumer import TileConsumer
from numba_tma.pipeline.loops import Iteration
from numba_tma.pipeline.producer import TileProducer
from numba_tma.pipeline.roles import WARP
from numba_tma.pipeline.stages import slot_tile
from numba_tma.ptx import bar_warp_sync, cluster_ctarank, elect_sync, tid_x
from numba_tma.simulator import BadOperand

if TYPE_CHECKING:
    from numba_tma.pipeline.output import OutputTilePipeline

#: What `OutputStage.load` and `OutputStage.store` can move at once, in columns.
NUMS = (1, 2, 4, 8, 16, 32, 64, 128)


@device_class()
@dataclass
class OutputStage:
    """An acquired accumulator: the stage `index` of its pipeline.

    In shared memory ``stage.acc`` is its `SharedTile`. In tensor memory ``stage.address`` is where
    it begins, for tcgen05 instructions, and `load` and `store` move columns of it.
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

    def load(self, column: Constant[int], num: Constant[int]) -> Any:
        """Return `num` columns of the accumulator from `column` on, of the thread's lane.

        A tuple of `num` elements of the accumulator's dtype: 1, 2, 4, ... or 128 of them, a
        literal. Executed by whole warps: thread l of warp w gets lane 32 (w mod 4) + l. Waits for
        the load (tcgen05.ld of shape 32x32b, tcgen05.wait::ld).
        """
        pipeline = self.owner.pipeline
        require_memory(pipeline, "stage.load()", True)
        check_columns(pipeline, "load", column, num)
        return load_columns(pipeline.acc, self._of_warp(column), num)

    def store(self, column: Constant[int], values: Any) -> None:
        """Store a tuple of 1, 2, 4, ... or 128 columns from `column` on; the reverse of `load`.

        For accumulators that threads compute or initialise. Executed by whole warps. Waits for the
        store (tcgen05.st of shape 32x32b, tcgen05.wait::st).
        """
        pipeline = self.owner.pipeline
        require_memory(pipeline, "stage.store()", True)
        check_columns(pipeline, "store", column, check_values(values))
        store_columns(pipeline.acc, self._of_warp(column), values)
        pipeline._fence_before()

    def _of_warp(self, column: int) -> int:
        """Return the address of `column` in the first of the warp's lanes."""
        lanes = u32((tid_x() & 96) << 16)  # 32 (warp mod 4) << 16
        return add32(add32(self.address, lanes), column)

    def enters(self) -> bool:
        """Return True: every thread that has acquired the stage executes its scope."""
        return True

    def close(self) -> None:
        """Commit the stage, or release it: what the side that acquired it does."""
        self.owner._hand_over()


@device_class(static=("pipeline",), local=True)
@dataclass
class OutputProducer:
    """The side that multiplies. All its methods are executed by every warp of the role `mma`."""

    pipeline: OutputTilePipeline
    ring: TileProducer
    address: u32  # of the columns in tensor memory

    def enters(self) -> bool:
        """Return True; of a CTA pair, in the block that multiplies."""
        if self.pipeline.cta_group == 2:
            return cluster_ctarank() % 2 == 0
        return True

    def close(self) -> None:
        """End the producer's use: commit what is open."""
        self._commit_open()

    def acquire(self) -> OutputStage:
        """Wait until the epilogue has released the next stage, and return it to be filled.

        A stage that is open is committed before.
        """
        self._commit_open()
        self.ring._await_next()
        self.pipeline._fence_after()
        if self.pipeline.in_tensor_memory:
            self.ring.current = u32(0)  # open: a constant, which the compiler follows
        else:
            self.ring.current = self.ring.state.index
        return OutputStage(self, self.ring.state.index)

    def commit(self) -> None:
        """Say that the stage is filled.

        In shared memory every warp has written its part, fences it and arrives. In tensor memory
        one elected thread of each warp lets the tensor cores arrive when its multiplications so far
        are complete, so it is the thread that `elect_sync` elects that starts them.
        """
        if self.pipeline.in_tensor_memory:
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
    """The side that works on accumulators. Its methods are executed by every `epilogue` warp.

    Stages are released in the order in which they were acquired.
    """

    pipeline: OutputTilePipeline
    ring: TileConsumer
    address: u32  # of the columns in tensor memory

    def enters(self) -> bool:
        """Return True: every thread of the role works on stages."""
        return True

    def close(self) -> None:
        """End the consumer's use: release every stage that is still held."""
        self.pipeline._fence_before()
        self.ring.close()

    def acquire(self) -> OutputStage:
        """Wait until the next stage is full and return it."""
        self.ring.wait()
        self.pipeline._fence_after()
        return OutputStage(self, self.ring.state.index)

    def release(self) -> None:
        """Hand the oldest stage that is held back to the warps that multiply."""
        self.pipeline._fence_before()
        self.ring.release()

    def sync(self) -> None:
        """Synchronise the role's warps, as cuda.syncthreads does a block."""
        self.ring.sync()

    def store(self, tensor_map: Any, tile: SharedTile, coords: Any, written: bool = True) -> None:
        """Store ``stage.acc``, or a `shared_tile`, as `Pipeline.store` does. By every thread."""
        self.ring.store(tensor_map, tile, coords, written)

    def _release_held(self) -> None:
        """Release what is held, at most the stage of the loop's last turn."""
        self.pipeline._fence_before()
        self.ring._close_stage()
        self.ring._release_beyond(0)

    def _hand_over(self) -> None:
        self.release()


@device_class()
@dataclass
class OutputProduce(Iteration):
    """The tiles first, first + step, ... below stop, each with the stage to fill."""

    producer: OutputProducer
    tile: i64
    stop: i64
    step: i64
    entered: bool

    def has_next(self) -> bool:
        """Commit the stage before; return whether a tile is left."""
        self.producer._commit_open()
        self.tile += self.step
        if not self.entered:
            return False
        return self.tile < self.stop

    def take(self) -> tuple[int, OutputStage]:
        """Return the next tile and its acquired stage."""
        return self.tile, self.producer.acquire()


@device_class()
@dataclass
class OutputConsume(Iteration):
    """The tiles first, first + step, ... below stop, each with its full stage."""

    consumer: OutputConsumer
    tile: i64
    stop: i64
    step: i64

    def has_next(self) -> bool:
        """Release the stage before; return whether a tile is left."""
        self.consumer._release_held()
        self.tile += self.step
        return self.tile < self.stop

    def take(self) -> tuple[int, OutputStage]:
        """Return the next tile and its stage, once that is full."""
        return self.tile, self.consumer.acquire()


@device_class(static=("pipeline",), local=True)
@dataclass
class OutputTilePipelineHandle:
    """A started `OutputTilePipeline`.

    The explicit form has a name for each step of either side: `acquire_for_mma`,
    `release_from_mma`, `acquire_for_epilogue` and `release_from_epilogue`.
    """

    pipeline: OutputTilePipeline
    _producer: OutputProducer
    _consumer: OutputConsumer

    def enters(self) -> bool:
        """Return True: the scope of the pipeline is executed by every thread of the block."""
        return True

    def producer(self) -> OutputProducer:
        """Return the side of the role `mma`."""
        return self._producer

    def consumer(self) -> OutputConsumer:
        """Return the side of the role `epilogue`."""
        return self._consumer

    def acquire_for_mma(self) -> OutputStage:
        """Do what `OutputProducer.acquire` does."""
        return self._producer.acquire()

    def release_from_mma(self, stage: OutputStage) -> None:
        """Commit `stage`, which `acquire_for_mma` returned, as `OutputProducer.commit` does."""
        check_filled(stage)
        stage.owner.commit()

    def acquire_for_epilogue(self) -> OutputStage:
        """Do what `OutputConsumer.acquire` does."""
        return self._consumer.acquire()

    def release_from_epilogue(self) -> None:
        """Do what `OutputConsumer.release` does."""
        self._consumer.release()

    def produce(self, first: Any, stop: Any, step: Any = 1) -> OutputProduce:
        """Iterate over range(first, stop, step), each tile with an acquired stage to fill.

        Entered by every warp of the role `mma`. A stage is committed when the loop goes on or ends;
        after a ``break``, by the next `acquire` or `close`.
        """
        producer = self._producer
        return OutputProduce(producer, i64(first) - i64(step), stop, step, producer.enters())

    def consume(self, first: Any, stop: Any, step: Any = 1) -> OutputConsume:
        """Iterate over range(first, stop, step), each tile with its full stage.

        Entered by every warp of the role `epilogue`. A stage is released when the loop goes on or
        ends; after a ``break``, by `close`.
        """
        return OutputConsume(self._consumer, i64(first) - i64(step), stop, step)

    def close(self) -> None:
        """End the pipeline's use: hand over what is open, and free the columns.

        Executed once by every thread of the two roles, after the last stage. In tensor memory it
        cannot be left out, and the epilogue has acquired every stage that was committed. With
        `cta_group` 2 it is executed by every thread of the cluster, which it synchronises.
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
                if allocates(self.pipeline):
                    self.pipeline._free(self._consumer.address)


@device_function
def allocates(pipeline: OutputTilePipeline) -> bool:
    """Return whether the thread belongs to the warp that allocates columns: epilogue's first."""
    return tid_x() // u32(WARP) == pipeline.epilogue.first // WARP


@device_function
def allocate(pipeline: OutputTilePipeline, destination: int) -> None:
    """Allocate the columns, and leave their address at `destination`."""
    if allocates(pipeline):
        pipeline._allocate(destination)


# ------------------------------------------------------------------- when a kernel is compiled


@compile_time
def require_memory(pipeline: OutputTilePipeline, what: str, tensor: bool) -> None:
    """Raise where `what` is for the other memory."""
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
def check_columns(pipeline: OutputTilePipeline, what: str, column: int, num: int) -> None:
    """Raise unless the accumulator has the columns, as far as they are known."""
    if isinstance(num, Unknown):
        raise BadOperand(f"stage.{what}(num=...) must be a compile-time constant, not {num}")
    if isinstance(column, Unknown) and not column.is_integer:
        raise BadOperand(f"stage.{what}(column=...) takes an integer, not {column}")
    if num not in NUMS:
        raise BadOperand(
            f"stage.{what} moves {', '.join(map(str, NUMS))} columns at once, not {num}"
        )
    columns, known = pipeline.acc.shape[1], not isinstance(column, Unknown)
    if num > columns or (known and not 0 <= column <= columns - num):
        of = f" {column} to {column + num - 1}" if known else f" of x{num}"
        raise BadOperand(f"stage.{what}: columns{of} of an accumulator that has {columns}")


@compile_time
def check_values(values: Any) -> int:
    """Return how many values there are; raise unless they are a tuple of numbers."""
    count = values.num_numbers if isinstance(values, Unknown) else len(values)
    if count is None:
        raise BadOperand(f"stage.store(values=...) takes a tuple of numbers, not {values}")
    return count


@compile_time
def check_filled(stage: Any) -> None:
    """Raise unless a stage is one that the role `mma` fills."""
    owner = getattr(stage, "owner", None)
    if class_of(owner) is not OutputProducer:
        raise BadOperand(
            f"release_from_mma(stage={stage}): it takes the stage that acquire_for_mma returned; "
            "the epilogue's are released with release_from_epilogue()"
        )


@compile_time
def check_target(pipeline: OutputTilePipeline) -> None:
    """Raise where the GPU has no tensor memory."""
    target = compute_capability()
    if pipeline.in_tensor_memory and target not in (None, (10, 0)):
        raise BadOperand(
            f"{pipeline}: tensor memory exists on sm_100a alone, and this kernel is compiled for "
            f"compute capability {target[0]}.{target[1]}: give memory='shared', or let the warps "
            "that multiply keep their accumulators in registers and run the epilogue themselves"
        )
