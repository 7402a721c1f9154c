"""`OutputPipeline`: what a kernel holds of an `OutputTilePipeline`; its sides and its stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from numba_tma import simulator
from numba_tma.backend.interface import device_class, i64, u32
from numba_tma.device.clusters import cluster_sync
from numba_tma.device.shared import SharedTile
from numba_tma.pipeline.consumer import Consumer
from numba_tma.pipeline.loops import Iteration
from numba_tma.pipeline.output import OutputTilePipeline
from numba_tma.pipeline.producer import Producer
from numba_tma.pipeline.roles import WARP
from numba_tma.pipeline.stages import slot_tile
from numba_tma.ptx import (
    bar_warp_sync,
    cluster_ctarank,
    elect_sync,
    laneid,
    ld_shared_u32,
    tcgen05_ld_32x32b,
    tcgen05_st_32x32b,
    tcgen05_wait_ld,
    tcgen05_wait_st,
    tid_x,
)

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

    def __getattr__(self, name: str) -> Any:
        if name not in ("acc", "address"):
            raise AttributeError(f"OutputStage has no attribute {name!r}")
        pipeline = self.owner.pipeline
        if problem := memory_rule(pipeline, f"stage.{name}", "acc" if name == "acc" else ""):
            raise simulator.BadOperand(problem)
        if name == "acc":
            return slot_tile(self.owner.ring, self.index, "acc")
        return self.owner.address + self.index * pipeline.stage_stride_cols

    def load(self, column: int, num: int) -> Any:
        """Return `num` columns of the accumulator from `column` on, of the thread's lane.

        A tuple of `num` elements of the accumulator's dtype: 1, 2, 4, ... or 128 of them, a
        literal. Executed by whole warps: thread l of warp w gets lane 32 (w mod 4) + l. Waits for
        the load (tcgen05.ld of shape 32x32b, tcgen05.wait::ld).
        """
        taddr = self._lanes("load", column, num)
        registers = tcgen05_ld_32x32b(taddr, num)  # type: ignore[arg-type]
        tcgen05_wait_ld()
        bits = np.array([int(register) for register in registers], np.uint32)
        return tuple(bits.view(self.owner.pipeline.acc.dtype.numpy))

    def store(self, column: int, values: Any) -> None:
        """Store a tuple of 1, 2, 4, ... or 128 columns from `column` on; the reverse of `load`.

        For accumulators that threads compute or initialise. Executed by whole warps. Waits for the
        store (tcgen05.st of shape 32x32b, tcgen05.wait::st).
        """
        taddr = self._lanes("store", column, len(values))
        bits = np.array(values, self.owner.pipeline.acc.dtype.numpy).view(np.uint32)
        tcgen05_st_32x32b(taddr, tuple(bits), len(bits))  # type: ignore[arg-type]
        tcgen05_wait_st()
        self.owner.pipeline._fence_before()

    def _lanes(self, what: str, column: int, num: int) -> int:
        """Return the address of the first of the warp's lanes."""
        pipeline = self.owner.pipeline
        problem = memory_rule(pipeline, f"stage.{what}()", "") or column_rule(
            pipeline, what, column, num
        )
        if problem:
            raise simulator.BadOperand(problem)
        return int(self.address) + int(column) + (tid_x() // WARP % 4 << 21)

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
    ring: Producer
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
    ring: Consumer
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
class OutputPipeline:
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


def allocates(pipeline: OutputTilePipeline) -> bool:
    """Return whether the thread belongs to the warp that allocates columns: epilogue's first."""
    return tid_x() // u32(WARP) == pipeline.epilogue.first // WARP


def allocate(pipeline: OutputTilePipeline, destination: int) -> None:
    """Allocate the columns, and leave their address at `destination`."""
    if allocates(pipeline):
        pipeline._allocate(destination)


def start(pipeline: OutputTilePipeline) -> OutputPipeline:
    """Do what `OutputTilePipeline.start` says."""
    destination = address = 0
    if pipeline.in_tensor_memory:
        destination = simulator.allocate_shared((pipeline, "address"), 4, 4)
        allocate(pipeline, destination)
    pipe = pipeline.ring.start()
    if pipeline.in_tensor_memory:
        address = ld_shared_u32(destination)
    if pipeline.cta_group == 2:
        pipe._consumer.is_sender = laneid() == cluster_ctarank() & ~1
    return OutputPipeline(
        pipeline,
        OutputProducer(pipeline, pipe._producer, address),
        OutputConsumer(pipeline, pipe._consumer, address),
    )


# ------------------------------------------------------------------------------- rules


def memory_rule(pipeline: OutputTilePipeline, what: str, wanted: str) -> str:
    """Return what is wrong with `what`, which is for the other memory; "acc" is shared memory's."""
    if wanted == "acc" and pipeline.in_tensor_memory:
        return (
            f"{what}: the stages of {pipeline} are columns of tensor memory: load them with "
            "stage.load(column, num), or give tcgen05 instructions stage.address"
        )
    if wanted != "acc" and not pipeline.in_tensor_memory:
        return (
            f"{what}: the stages of {pipeline} are in shared memory: read and write stage.acc, or "
            "give memory='tensor' on sm_100a"
        )
    return ""


def column_rule(pipeline: OutputTilePipeline, what: str, column: Any, num: Any) -> str:
    """Return what is wrong with columns to load or to store; `column` None is not known yet."""
    if num not in NUMS:
        return f"stage.{what} moves {', '.join(map(str, NUMS))} columns at once, not {num}"
    columns = pipeline.acc.shape[1]
    if num > columns or (column is not None and not 0 <= column <= columns - num):
        of = "" if column is None else f" {column} to {column + num - 1}"
        return f"stage.{what}: columns{of or f' of x{num}'} of an accumulator that has {columns}"
    return ""
