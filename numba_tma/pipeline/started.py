"""`Pipeline`: what a kernel holds of a ring once its barriers are initialised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numba_tma import simulator
from numba_tma.backend.interface import device_class, i64, u32
from numba_tma.device.clusters import cluster_sync
from numba_tma.device.shared import SharedTile, TileAccesses
from numba_tma.pipeline.consumer import Consumer
from numba_tma.pipeline.loops import Consume, ConsumeFrom, Produce, ProduceFrom, TileQueue
from numba_tma.pipeline.multicast_group import MulticastGroup, axis_mask, multicast_rule
from numba_tma.pipeline.producer import NO_TILE, Producer
from numba_tma.pipeline.ring import TilePipeline
from numba_tma.pipeline.roles import MAX_ROLES, WARP
from numba_tma.pipeline.stage_layout import tile_stride
from numba_tma.pipeline.state import PipelineState
from numba_tma.ptx import (
    barrier_sync,
    cluster_ctaid_x,
    cluster_ctaid_y,
    fence_mbarrier_init,
    laneid,
    mbarrier_init,
    ntid_x,
    st_shared_u64,
    tid_x,
)

CONSUMER_BARRIER = 1  # named barrier of the consumers where no roles are named


@device_class(local=True)
@dataclass
class Pipeline:
    """A started `TilePipeline`.

    The block is one-dimensional. Where no roles are named, it has at least two whole warps: the
    last one produces, all others consume.
    """

    _producer: Producer
    _consumer: Consumer
    _num_producers: u32

    def producer(self) -> Producer:
        """Return the producer, for its explicit form or a scope."""
        return self._producer

    def consumer(self) -> Consumer:
        """Return the consumer, for its explicit form or a scope."""
        return self._consumer

    def is_producer(self) -> bool:
        """Return True in every thread of the producer."""
        if self._producer.pipeline.block == 0:
            return not self.is_consumer()
        return self._producer.thread < self._num_producers

    def is_consumer(self) -> bool:
        """Return True in every thread of the consumers.

        Where no roles are named, these are the warps 0 to blockDim.x - 33.
        """
        return self._consumer.thread < self._consumer.num_threads

    def num_consumers(self) -> int:
        """Return the number of threads of the caller's consumer role."""
        return self._consumer.num_threads

    def consumer_thread(self) -> int:
        """Return the index of the calling thread in its consumer role, from 0."""
        return self._consumer.thread

    def produce(self, first: Any, stop: Any, step: Any = 1) -> Produce:
        """Iterate over range(first, stop, step), each tile with an acquired stage to fill.

        Yields (tile, stage): ``stage.x`` is the stage's tile x, ``stage.barrier`` the barrier to
        pass to its load. Entered by every thread of the producer. The loop's body is executed by
        one elected thread, and loads every tile of the stage once; where cp.async or the threads
        themselves fill stages, by all of them. `step` is positive. The consumers wait for a stage
        whose loads are not issued: leave the loop early only after them. Loops of two pipelines are
        not nested; load both from the body of one.
        """
        producer = self._producer
        return Produce(producer, i64(first) - i64(step), stop, step, producer.enters())

    def produce_from(self, queue: TileQueue) -> ProduceFrom:
        """Iterate over the tiles that `queue` hands to this block, as `produce` does.

        The consumers of the block use `consume_from`. For stages that the copy engine fills.
        """
        elected = self._producer.enters()
        tile = u32(NO_TILE)
        if elected:
            tile = queue.draw()
        return ProduceFrom(self._producer, queue, tile, elected)

    def consume(self, first: Any, stop: Any, step: Any = 1, in_flight: int = 0) -> Consume:
        """Iterate over range(first, stop, step), each tile with its full stage.

        Yields (tile, stage), with ``stage.x`` to read and to write. Entered by every consumer warp.
        A stage is handed back when the loop goes on to the next
        tile, or `in_flight` tiles later, for work that reads it asynchronously; what is in flight
        at the end is handed back by `release_pending`. After a ``break`` the next loop,
        `release_pending` or `close` hands back what is held; a producer that goes on without that
        waits for ever. A kernel that stores with `in_flight` above 0 ends with `release_pending`,
        which waits for the stores to read shared memory. `in_flight` is a literal below the number
        of stages.
        """
        tiles = Consume(in_flight, self._consumer, i64(first) - i64(step), stop, step)
        self._consumer._release_until(in_flight)
        return tiles

    def consume_from(self, in_flight: int = 0) -> ConsumeFrom:
        """Iterate over the tiles that this block's `produce_from` drew, as `consume` does."""
        tiles = ConsumeFrom(in_flight, self._consumer)
        self._consumer._release_until(in_flight)
        return tiles

    def store(self, tensor_map: Any, tile: SharedTile, coords: Any, written: bool = True) -> None:
        """Store a tile of a stage through `tensor_map`. Executed by every thread of the consumer.

        `tile` belongs to the stage that was waited for last. Fences the threads' writes,
        synchronises the consumers and has one thread start the store. The stage is handed back
        only when the store has read it. With ``written=False`` the tile goes out as it came in:
        nobody wrote to it, so nothing is fenced or synchronised. A `shared_tile` can be stored as
        well; it belongs to no stage, so that with ``in_flight=0`` it may be written again after
        another `sync_consumers`.
        """
        self._consumer.store(tensor_map, tile, coords, written)

    def sync_consumers(self) -> None:
        """Synchronise the caller's consumer role, as cuda.syncthreads does a block."""
        self._consumer.sync()

    def release_pending(self) -> None:
        """Hand back every stage that is still held. Executed by every consumer warp."""
        self._consumer._release_until(0)

    def close(self) -> None:
        """End the pipeline's use: commit or hand back what is open.

        Executed by every thread of the producer and the consumers. In a cluster it is needed: the
        producer waits there until all stages are released, so that the block outlives what its
        peers send it.
        """
        if self.is_producer():
            self._producer.close()
        elif self.is_consumer():
            self._consumer.close()

    def multicast_group(self, name: str) -> MulticastGroup:
        """Return the blocks that share the tile `name`, for `load_partitioned`.

        ``group = pipe.multicast_group("a")``, then ``load_partitioned(map, stage.a, coords,
        stage.barrier, group.rank, multicast=group.mask)``.
        """
        pipeline = self._producer.pipeline
        axis = dict(pipeline.multicast).get(name)
        if axis is None:
            raise simulator.BadOperand(multicast_rule(pipeline, name))
        x, y = cluster_ctaid_x(), cluster_ctaid_y()
        return MulticastGroup(x if axis == "x" else y, axis_mask(pipeline.cluster, axis, x, y))


def start(pipeline: TilePipeline, tiles: Any, barriers: Any, sync: bool) -> Pipeline:
    """Do what `TilePipeline.start` says."""
    check_block(pipeline)
    base, barriers = allocate_pipeline(pipeline, tiles, barriers)
    thread, num_threads = tid_x(), ntid_x()
    peers = 0
    for _, axis in pipeline.multicast:
        peers |= axis_mask(pipeline.cluster, axis, cluster_ctaid_x(), cluster_ctaid_y())
    first, num_producers, mine = num_threads - WARP, WARP, (0, num_threads - WARP, CONSUMER_BARRIER)
    if pipeline.producer:
        first, num_producers = pipeline.producer.first, pipeline.producer.members
        others = [r for r in pipeline.consumers[1:] if 0 <= thread - r.first < r.members]
        role = (others or pipeline.consumers)[0]
        mine = (role.first, role.members, role.barrier_id)
    stages = pipeline.num_stages
    state = PipelineState(stages, stages, 0)
    # Threads before a role have a number beyond its last, as unsigned numbers have it.
    mine_thread = thread - mine[0] & 0xFFFFFFFF
    producer = Producer(
        pipeline, base, barriers, thread - first & 0xFFFFFFFF, state, TileAccesses(), stages
    )
    # Consumers that take turns skip first, and so stand on the first stage from the start.
    turns = pipeline.alternate
    state = PipelineState(stages, 0, 0, 1) if turns else PipelineState(stages, stages, 1)
    consumer = Consumer(
        pipeline,
        base,
        barriers,
        mine_thread,
        mine[1],
        mine[2],
        bool(peers >> laneid() & 1),
        state,
        TileAccesses(),
        stages,
        stages,
        asked=turns,
    )
    initialise(pipeline, barriers, thread, num_threads, sync)
    return Pipeline(producer, consumer, num_producers)


def initialise(
    pipeline: TilePipeline, barriers: int, thread: int, num_threads: int, sync: bool
) -> None:
    """Initialise the barriers of a ring and make them visible to the block and its copies."""
    if thread == 0:
        releases = u32(pipeline.empty_arrivals)
        if releases == 0:
            releases = u32(num_threads) // u32(WARP) - u32(1)
        for stage in range(pipeline.num_stages):
            mbarrier_init(barriers + 8 * stage, pipeline.full_arrivals)
            mbarrier_init(barriers + pipeline.empty_offset + 8 * stage, releases)
            if pipeline.debug:
                st_shared_u64(barriers + pipeline.ledger_offset + 8 * stage, 0)
        if pipeline.debug:
            if pipeline.block == 0:
                meeting = barriers + pipeline.sync_offset + 8 * CONSUMER_BARRIER
                mbarrier_init(meeting, num_threads - WARP)
            for number in range(MAX_ROLES + 1):
                if pipeline.sync_arrivals[number] > 0:
                    meeting = barriers + pipeline.sync_offset + 8 * number
                    mbarrier_init(meeting, pipeline.sync_arrivals[number])
        fence_mbarrier_init()
    if sync and pipeline.in_cluster:
        cluster_sync()
    elif sync:
        barrier_sync(0, num_threads)


def check_block(pipeline: TilePipeline) -> None:
    """Raise, in the simulator, unless the block and its cluster are those of the roles."""
    simulator.check_block("TilePipeline", minimum=2 * WARP if not pipeline.block else WARP)
    if pipeline.block and ntid_x() != pipeline.block:
        raise simulator.BadOperand(block_rule(pipeline.block, ntid_x()))
    if pipeline.in_cluster and simulator.cluster_dim()[:2] != pipeline.cluster:
        raise simulator.BadOperand(cluster_rule(pipeline, simulator.cluster_dim()))


def block_rule(expected: int, given: Any) -> str:
    """Return what is wrong with a block of another size than the roles have."""
    return (
        f"block {given}: the roles of the kernel's pipeline have {expected} threads in all, in one "
        f"dimension: launch blocks of {expected}, which Roles.threads says"
    )


def cluster_rule(pipeline: TilePipeline, given: Any) -> str:
    """Return what is wrong with a kernel in clusters of another size than the pipeline's."""
    return (
        f"{pipeline} is for clusters of {pipeline.cluster}, but the kernel runs in clusters of "
        f"{given}: put @tma.cluster({pipeline.cluster}) below @cuda.jit"
    )


def allocate_pipeline(pipeline: TilePipeline, tiles: Any, barriers: Any) -> tuple[int, int]:
    """Return the addresses of a ring's tiles and barriers, with names for the simulator."""
    if tiles is None:
        nbytes = pipeline.nbytes if barriers is None else pipeline.storage_nbytes
        base = simulator.allocate_shared(pipeline, nbytes, pipeline.alignment)
    else:
        base = given_address("tiles", tiles, pipeline.storage_nbytes, pipeline.alignment)
    if barriers is not None:
        first = given_address("barriers", barriers, 8 * pipeline.num_barriers, 8)
    elif tiles is None:
        first = base + pipeline.barriers_offset
    else:
        first = simulator.allocate_shared((pipeline, "barriers"), 8 * pipeline.num_barriers, 8)
    for stage in range(pipeline.num_stages):
        simulator.label(first + 8 * stage, f"full[{stage}] of {pipeline}")
        simulator.label(first + pipeline.empty_offset + 8 * stage, f"empty[{stage}] of {pipeline}")
        for name, tile in pipeline.tiles:
            for j in range(pipeline.k_group):
                slot = stage * pipeline.k_group + j
                address = base + pipeline.tile_offset(name) + slot * tile_stride(tile)
                part = f"[{stage}][{j}]" if pipeline.k_group > 1 else f"[{stage}]"
                simulator.label(address, f"{name}{part} of {pipeline}")
    return base, first


def given_address(name: str, memory: Any, nbytes: int, alignment: int) -> int:
    """Return the address of memory that was handed in, if it is enough."""
    if isinstance(memory, int):
        if memory % alignment:
            raise simulator.BadOperand(address_rule(name, memory, alignment))
        return memory
    problem = storage_problem(name, memory, nbytes, alignment)
    if problem:
        raise simulator.BadOperand(problem)
    return int(memory.address)


def address_rule(name: str, address: int, alignment: int) -> str:
    """Return what is wrong with an address that a ring's parts cannot begin at."""
    return f"start({name}={address:#x}): the address must be a multiple of {alignment}"


def storage_problem(name: str, memory: Any, nbytes: int, alignment: int) -> str:
    """Return what is wrong with a tile or a barrier array that is to hold a ring's parts."""
    tile = getattr(memory, "tile", None)
    if tile is None and not hasattr(memory, "num_barriers"):
        return f"start({name}=...) takes an address, a SharedTile or a BarrierArray, not {memory!r}"
    has = tile.shared_nbytes if tile is not None else 8 * memory.num_barriers
    aligned = tile.alignment if tile is not None else 8
    if has < nbytes or aligned % alignment:
        return (
            f"start({name}={memory!r}): it has {has:,} B at a multiple of {aligned}, but the "
            f"pipeline needs {nbytes:,} B at a multiple of {alignment}"
        )
    return ""
