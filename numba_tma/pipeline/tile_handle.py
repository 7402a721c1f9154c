"""`TilePipelineHandle`: a started `TilePipeline`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numba_tma.backend.interface import (
    Constant,
    Unknown,
    class_of,
    compile_time,
    device_class,
    i64,
    u32,
)
from numba_tma.backend.primitives import sub32
from numba_tma.device.copy_rules import require_tiled_map
from numba_tma.device.shared import SharedTile, check_elements, check_vectors
from numba_tma.device.tile_indices import TileIndices, vector_width
from numba_tma.host.annotations import Integer
from numba_tma.host.layout import Tile
from numba_tma.pipeline.consumer import TileConsumer
from numba_tma.pipeline.loops import (
    Consume,
    ConsumeFrom,
    Produce,
    ProduceFrom,
    TileQueue,
    check_consumes,
    check_loop,
)
from numba_tma.pipeline.multicast import MulticastGroup, blocks_along, is_shared_along_x
from numba_tma.pipeline.producer import NO_TILE, TileProducer, check_queue
from numba_tma.pipeline.ranges import goes_backwards, is_before
from numba_tma.pipeline.windows import Windows, check_window, moves_backwards, tiles_beside
from numba_tma.simulator import BadOperand

if TYPE_CHECKING:
    from numba_tma.pipeline.tile import TilePipeline


@device_class(local=True)
@dataclass
class TilePipelineHandle:
    """A started `TilePipeline`.

    The block is one-dimensional. Without roles it has at least two whole warps: the last warp
    produces, and all others consume.
    """

    _producer: TileProducer
    _consumer: TileConsumer
    _num_producers: u32

    def enters(self) -> bool:
        """Return True: every thread of the block executes the pipeline's scope."""
        return True

    def producer(self) -> TileProducer:
        """Return the producer, for the explicit form or a scope."""
        return self._producer

    def consumer(self) -> TileConsumer:
        """Return the consumer, for the explicit form or a scope."""
        return self._consumer

    def is_producer(self) -> bool:
        """Return True in every thread of the producer."""
        if self._producer.pipeline.block == 0:
            return not self.is_consumer()
        return self._producer.thread < self._num_producers

    def is_consumer(self) -> bool:
        """Return True in every thread of the consumers.

        Without roles these are the threads 0 to blockDim.x - 33.
        """
        return self._consumer.thread < self._consumer.num_threads

    def num_consumers(self) -> int:
        """Return the number of threads of the caller's consumer role."""
        return self._consumer.num_threads

    def consumer_thread(self) -> int:
        """Return the index of the calling thread in its consumer role, from 0."""
        return self._consumer.thread

    def indices(self, tile: SharedTile | Tile) -> TileIndices:
        """Iterate over the indices of this thread's elements of `tile`; see `SharedTile.indices`.

        ``for i, j in pipe.indices(stage.x): stage.x[i, j] *= 2``: the threads of the caller's
        consumer role share the elements. A `Tile` stands for its shape: the results of a stencil
        are fewer than the elements that it reads.
        """
        shared = tile_to_share("indices", self._consumer.pipeline, tile)
        check_consumes("indices", self._consumer.pipeline, self.is_consumer())
        consumer = self._consumer
        before = sub32(consumer.thread, consumer.num_threads)
        return TileIndices(shared, 1, before, consumer.num_threads)

    def vectors(self, tile: SharedTile | Tile) -> TileIndices:
        """Iterate over this thread's 16-byte vectors of `tile`; see `SharedTile.vectors`."""
        shared = tile_to_share("vectors", self._consumer.pipeline, tile)
        check_consumes("vectors", self._consumer.pipeline, self.is_consumer())
        consumer = self._consumer
        before = sub32(consumer.thread, consumer.num_threads)
        return TileIndices(shared, vector_width(shared), before, consumer.num_threads)

    def produce(self, first: Any, stop: Any, step: Constant[int] = 1) -> Produce:
        """Iterate over range(first, stop, step), each tile with an acquired stage to fill.

        Yields (tile, stage): ``stage.x`` is the stage's tile x, and ``stage.barrier`` is the
        barrier to pass to its load. Every thread of the producer enters the loop.

        - The body loads every tile of the stage once. One elected thread executes the body. With
          ``filled_by="cp_async"`` or ``"threads"`` all threads of the producer execute it.
        - `step` is positive, or a negative literal: then the tiles are those above `stop`.
        - Issue the loads of an acquired stage before you leave the loop early: consumers wait for
          the stage.
        - Loops of two pipelines must not be nested. Load the tiles of both in the body of one loop.
        """
        check_loop("produce", self, "producer")
        producer, backwards = self._producer, goes_backwards("produce", first, stop, step)
        before = i64(first) - i64(step)
        return Produce(backwards, producer, before, stop, step, producer.enters())

    def produce_windows(
        self,
        first: Integer,
        stop: Integer,
        step: Constant[int] = 1,
        radius: Constant[int] = 1,
        before: Constant[int | None] = None,
        after: Constant[int | None] = None,
    ) -> Produce:
        """Iterate over the tiles of `windows` with the same arguments, as `produce` does.

        These are range(first - radius, stop + radius), and none if range(first, stop) is empty.
        Their numbers may lie outside of the array: a load fills such tiles with zeros.
        """
        check_loop("produce_windows", self, "producer")
        backwards = moves_backwards("produce_windows", first, stop, step)
        below = tiles_beside("produce_windows", "before", before, radius)
        above = tiles_beside("produce_windows", "after", after, radius)
        check_window(self._producer.pipeline, below, above)
        if backwards:
            begin, end = i64(first) + above, i64(stop) - below
        else:
            begin, end = i64(first) - below, i64(stop) + above
        if not is_before(i64(first), i64(stop), backwards):
            end = begin
        elected = self._producer.enters()
        return Produce(backwards, self._producer, begin - step, end, step, elected)

    def produce_from(self, queue: TileQueue) -> ProduceFrom:
        """Iterate over the tiles that `queue` hands to this block, as `produce` does.

        The consumers of the block use `consume_from`. The copy engine has to fill the stages.
        """
        check_queue("produce_from", "produce(first, stop, step)", self._producer.pipeline)
        check_loop("produce_from", self, "producer")
        elected = self._producer.enters()
        tile = u32(NO_TILE)
        if elected:
            tile = queue.draw()
        return ProduceFrom(self._producer, queue, tile, elected)

    def consume(
        self, first: Any, stop: Any, step: Constant[int] = 1, in_flight: Constant[int] = 0
    ) -> Consume:
        """Iterate over range(first, stop, step), each tile with its full stage.

        Yields (tile, stage): ``stage.x`` is the stage's tile x, to read and to write. Every
        consumer warp enters the loop. With ``released_by="tcgen05"`` one elected thread executes
        the body, which starts the products that read the stage.

        - A stage is released when the loop goes on to the next tile, or `in_flight` tiles later for
          work that reads the stage asynchronously. `in_flight` is a literal below the number of
          stages.
        - `release_pending` releases the stages that are in flight when the loop ends.
        - After a ``break`` the next loop, `release_pending` or `close` releases the held stages.
          Without one of them the producer waits for ever.
        - A kernel that stores with `in_flight` above 0 ends with `release_pending`, which waits
          until the stores have read shared memory.
        """
        check_in_flight(self._consumer.pipeline, in_flight)
        check_loop("consume", self, "consumer")
        backwards = goes_backwards("consume", first, stop, step)
        before = i64(first) - i64(step)
        if self._consumer.pipeline.by_commit:
            entered = self._consumer.enters()
            tiles = Consume(backwards, in_flight, self._consumer, before, stop, step, entered)
        else:
            tiles = Consume(backwards, in_flight, self._consumer, before, stop, step)
        self._consumer._release_until(in_flight)
        return tiles

    def windows(
        self,
        first: Integer,
        stop: Integer,
        step: Constant[int] = 1,
        radius: Constant[int] = 1,
        before: Constant[int | None] = None,
        after: Constant[int | None] = None,
    ) -> Windows:
        """Iterate over range(first, stop), each tile with the tiles around it.

        Yields (tile, window): ``window[0].x`` is the tile x of `tile`, ``window[-1].x`` that of the
        tile before it, ``window[1].x`` that of the next. The producer enters `produce_windows` with
        the same arguments. Every consumer warp enters the loop.

        - A window holds 2 * radius + 1 stages. When the loop goes on it releases the oldest and
          waits for one more. At the end it releases all.
        - `radius` is a literal; `before` and `after` are those of the two sides, if they differ.
        - `step` is 1 or the literal -1: then the tiles are those above `stop`, and ``window[-1]``
          is still the tile with the smaller number.
        - After a ``break`` the next loop, `release_pending` or `close` releases the held stages.
        """
        check_loop("windows", self, "consumer")
        backwards = moves_backwards("windows", first, stop, step)
        below = tiles_beside("windows", "before", before, radius)
        above = tiles_beside("windows", "after", after, radius)
        consumer = self._consumer
        check_window(consumer.pipeline, below, above)
        begin, end = i64(first) - i64(step), i64(stop)
        if consumer.pipeline.by_commit:
            entered = consumer.enters()
            tiles = Windows(backwards, below, above, consumer, begin, end, step, entered)
        else:
            tiles = Windows(backwards, below, above, consumer, begin, end, step)
        consumer._release_until(0)
        return tiles

    def consume_from(self, in_flight: Constant[int] = 0) -> ConsumeFrom:
        """Iterate over the tiles of this block's `produce_from`, as `consume` does."""
        check_loop("consume_from", self, "consumer")
        check_in_flight(self._consumer.pipeline, in_flight)
        tiles = ConsumeFrom(in_flight, self._consumer)
        self._consumer._release_until(in_flight)
        return tiles

    def store(self, tensor_map: Any, tile: SharedTile, coords: Any, written: bool = True) -> None:
        """Store a tile of a stage through `tensor_map`. Executed by every thread of the consumer.

        The method fences the threads' writes, synchronises the consumers and lets one thread start
        the store.

        - `tile` belongs to the newest stage. The stage is released only when the store has read it.
        - ``written=False`` is for a tile that no thread wrote to: the method then neither fences
          nor synchronises.
        - `tile` may also be a `shared_tile`, which belongs to no stage. With ``in_flight=0`` it may
          be written again after another `sync_consumers`.
        """
        require_tiled_map(
            "Pipeline.store",
            tensor_map,
            "after fence_proxy_async() and sync_consumers(), have one thread call "
            "store_im2col(tile, coords), commit the bulk group and wait for it",
        )
        self._consumer.store(tensor_map, tile, coords, written)

    def sync_consumers(self) -> None:
        """Synchronise the caller's consumer role, as cuda.syncthreads synchronises a block."""
        self._consumer.sync()

    def release_pending(self) -> None:
        """Release every held stage. Executed by every consumer warp."""
        self._consumer._release_until(0)

    def close(self) -> None:
        """End the pipeline's use: commit the open stage, or release the held ones.

        Executed by every thread of the producer and the consumers. In a cluster the call is
        required: the producer waits until all stages are released, so that the block does not exit
        before its peers have arrived on its barriers. With ``released_by="tcgen05"`` the producer
        waits, too: the
        block must not exit before its commits have arrived.
        """
        if self.is_producer():
            self._producer.close()
            self._producer._await_commits()
        elif self.is_consumer():
            self._consumer.close()

    def multicast_group(self, name: Constant[str]) -> MulticastGroup:
        """Return the blocks that share the tile `name`, for `load_partitioned`.

        ``group = pipe.multicast_group("a")``, then ``load_partitioned(map, stage.a, coords,
        stage.barrier, group.rank, multicast=group.mask)``.
        """
        pipeline = self._producer.pipeline
        return blocks_along(pipeline, is_shared_along_x(pipeline, name))


@compile_time
def tile_to_share(called: str, pipeline: TilePipeline, tile: object) -> Tile:
    """Return the tile whose elements the threads of a role share, or raise."""
    if pipeline.by_commit:
        raise BadOperand(
            f"{called}: of {pipeline} one thread consumes, so that it alone would have elements: "
            f"use tile.{called}(thread, threads) where several threads share the tile"
        )
    if not isinstance(tile, Tile) and class_of(tile) is not SharedTile:
        given = tile if isinstance(tile, Unknown) else repr(tile)
        raise BadOperand(
            f"{called}(tile=...) takes a tile of a stage, such as stage.x, a shared_tile or a "
            f"Tile, not {given}"
        )
    shared: Tile = tile if isinstance(tile, Tile) else tile.tile  # type: ignore[attr-defined]
    check = check_vectors if called == "vectors" else check_elements
    check(shared)
    return shared


@compile_time
def check_in_flight(pipeline: TilePipeline, in_flight: int) -> None:
    """Raise unless `in_flight` stages can be held while the next one is filled."""
    if isinstance(in_flight, Unknown) or not isinstance(in_flight, int):
        raise BadOperand(
            f"consume(in_flight=...) must be a compile-time constant, an integer, not {in_flight}"
        )
    stages = pipeline.num_stages
    if not 0 <= in_flight < stages:
        raise BadOperand(
            f"consume(in_flight={in_flight}): with {stages} stages at most {stages - 1} can be "
            "held back while the next is filled; lower in_flight or add stages"
        )
    if pipeline.alternate:
        raise BadOperand(
            f"consume: the consumers of {pipeline} take turns, which loops do not support: use the "
            "explicit form, pipe.consumer() with skip, wait and release"
        )
