"""Every row of Mojo's tile_pipeline, in the words of numba_tma: for those who come from there.

A test bears the name of the struct, trait or method whose use it writes down. Mojo's pipeline feeds
a tcgen05 MMA; here the consumers are warps. The accumulators' half (Output...) is tested elsewhere.
"""

from typing import NamedTuple

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma import simulator as sim

A, B = tma.Tile((4, 8), "u32"), tma.Tile((4, 16), "u32")
SF = tma.Tile((1, 16), "u8")
ROLES = tma.Roles(mma=tma.Warps(1), load=tma.Warps(1))
STAGES, k_group_size = 2, 3


@pytest.fixture(autouse=True, params=[0, pytest.param(1, marks=pytest.mark.slow)])
def seeded(request):
    sim.seed(request.param)


def numbers(rows, columns, seed=0, dtype=np.uint32):
    return np.random.default_rng(seed).integers(0, 200, (rows, columns)).astype(dtype)


def launch(kernel, *args):
    kernel[1, ROLES.threads](*args)


def ring(stages=STAGES, payload=None, **options):
    """Return a pipeline from ROLES.load to ROLES.mma, of one tile a if nothing else is said."""
    tiles = {} if payload is not None else {"a": A}
    return tma.TilePipeline(
        stages, payload, producer=ROLES.load, consumer=ROLES.mma, **tiles, **options
    )


def passed_on(kernel, n_tiles=5):
    """Check that a kernel(a, out, n_tiles) wrote all its tiles a to `out`."""
    a, out = numbers(4 * n_tiles, 8), np.zeros((4 * n_tiles, 8), np.uint32)
    launch(kernel, tma.tensor_map(a, A), out, n_tiles)
    np.testing.assert_array_equal(out, a)


@cuda.jit(device=True)
def write(out, t, tile):
    """Write a tile a to its rows of `out`, by one warp."""
    thread = cuda.threadIdx.x % 32
    out[4 * t + thread // 8, thread % 8] = tile[thread // 8, thread % 8]


# ------------------------------------------------------------------------- the usage block

tile_pipeline_of = ring(payload=tma.StandardTilePayload(A, B), k_group=k_group_size)
expected_bytes = k_group_size * (A.nbytes + B.nbytes)


@cuda.jit
@tma.scopes
def usage(a, b, out, k_groups):
    tile_pipeline = tile_pipeline_of.start()
    if ROLES.load.is_member():
        # Producer (TMA Load warp):
        with tile_pipeline.producer() as producer:
            for k in range(k_groups):
                with producer.acquire() as tiles:
                    tiles.expect_bytes(expected_bytes)
                    for j in range(k_group_size):
                        a_tile, b_tile = tiles.get_tile(j)
                        # TMA load into a_tile, b_tile
                        row = 4 * (k * k_group_size + j)
                        a.load(a_tile, (row, 0), tiles.barrier)
                        b.load(b_tile, (row, 0), tiles.barrier)
    if ROLES.mma.is_member():
        # Consumer (MMA warp):
        with tile_pipeline.consumer() as consumer:
            for k in range(k_groups):
                with consumer.acquire() as tiles:
                    for j in range(k_group_size):
                        a_tile, b_tile = tiles.get_tile(j)
                        # MMA using a_tile, b_tile
                        row, column = ROLES.mma.thread() // 8, ROLES.mma.thread() % 8
                        total = 0
                        for i in range(16):
                            total += b_tile[row, i]
                        out[4 * (k * k_group_size + j) + row, column] = a_tile[row, column] * total


@cuda.jit
@tma.scopes
def usage_once(a, b, out):
    """The block of the seed as it stands there, around one group of tiles."""
    tile_pipeline = tile_pipeline_of.start()
    if ROLES.load.is_member():
        with tile_pipeline.producer() as producer:
            with producer.acquire() as tiles:
                tiles.expect_bytes(expected_bytes)
                for j in range(k_group_size):
                    a_tile, b_tile = tiles.get_tile(j)
                    # TMA load into a_tile, b_tile
                    a.load(a_tile, (4 * j, 0), tiles.barrier)
                    b.load(b_tile, (4 * j, 0), tiles.barrier)
    else:
        with tile_pipeline.consumer() as consumer:
            with consumer.acquire() as tiles:
                for j in range(k_group_size):
                    a_tile, b_tile = tiles.get_tile(j)
                    # MMA using a_tile, b_tile
                    row, column = ROLES.mma.thread() // 8, ROLES.mma.thread() % 8
                    total = 0
                    for i in range(16):
                        total += b_tile[row, i]
                    out[4 * j + row, column] = a_tile[row, column] * total


@pytest.mark.parametrize("groups", [0, 1, STAGES, 2 * STAGES + 1])
def test_TilePipeline(groups):
    tiles = groups * k_group_size
    a, b = numbers(4 * tiles + 4, 8), numbers(4 * tiles + 4, 16, 1)
    out = np.zeros((4 * tiles, 8), np.uint32)
    launch(usage, tma.tensor_map(a, A), tma.tensor_map(b, B), out, groups)
    np.testing.assert_array_equal(out, (a * b.sum(1, keepdims=True))[: 4 * tiles])


def test_the_seeds_usage_block():
    a, b = numbers(4 * k_group_size, 8), numbers(4 * k_group_size, 16, 1)
    out = np.zeros((4 * k_group_size, 8), np.uint32)
    launch(usage_once, tma.tensor_map(a, A), tma.tensor_map(b, B), out)
    np.testing.assert_array_equal(out, a * b.sum(1, keepdims=True))


def test_InputTilePipeline():
    """It takes its storage and its barriers from the caller, as Mojo's constructor does."""
    PIPE = ring(3)
    SPACE = tma.Tile((PIPE.storage_nbytes // 16, 16), "u8")

    @cuda.jit
    def kernel(a, out, n_tiles):
        space, barriers = tma.shared_tile(SPACE), tma.shared_barriers(PIPE.num_barriers)
        pipe = PIPE.start(tiles=space, barriers=barriers)
        if pipe.is_producer():
            for t, stage in pipe.produce(0, n_tiles):
                a.load(stage.a, (4 * t, 0), stage.barrier)
        else:
            for t, stage in pipe.consume(0, n_tiles):
                write(out, t, stage.a)

    passed_on(kernel)


# ------------------------------------------------------------------------------- payloads


class Pair(NamedTuple):
    a: tma.Tile
    b: tma.Tile


@pytest.mark.parametrize("payload", [Pair(A, B), tma.StandardTilePayload(A, B)])
def test_TilePayload(payload):
    """The trait is any dataclass or NamedTuple of tiles; so many bytes a stage receives."""
    PIPE = ring(payload=payload, k_group=2)
    assert PIPE.tx_bytes == 2 * (A.nbytes + B.nbytes)

    @cuda.jit
    def kernel(a, out, n_tiles):
        pipe = PIPE.start()
        if pipe.is_producer():
            for t, stage in pipe.produce(0, n_tiles // 2):
                for j in range(2):
                    tile, (same, other) = stage.tile(j), stage.get_tile(j)
                    assert tile.a == same and tile.b == other
                    a.load(same, (4 * (2 * t + j), 0), stage.barrier)
                    stage.barrier.complete_tx(B.nbytes)  # b is not used here
        else:
            for t, stage in pipe.consume(0, n_tiles // 2):
                for j in range(2):
                    write(out, 2 * t + j, stage.tile(j).a)

    passed_on(kernel, 6)


def test_StandardTilePayload():
    PIPE = ring(payload=tma.StandardTilePayload(A, B))

    @cuda.jit
    def kernel(a, b, out):
        pipe = PIPE.start()
        if pipe.is_producer():
            for _, stage in pipe.produce(0, 1):
                a_tile, b_tile = stage.get_tile()
                a.load(a_tile, (0, 0), stage.barrier)
                b.load(b_tile, (0, 0), stage.barrier)
        else:
            for _, stage in pipe.consume(0, 1):
                row, column = cuda.threadIdx.x // 8, cuda.threadIdx.x % 8
                out[row, column] = stage.a[row, column] + stage.b[row, column + 8]

    a, b, out = numbers(4, 8), numbers(4, 16, 1), np.zeros((4, 8), np.uint32)
    launch(kernel, tma.tensor_map(a, A), tma.tensor_map(b, B), out)
    np.testing.assert_array_equal(out, a + b[:, 8:])


def test_BlockScaledTilePayload():
    PIPE = ring(payload=tma.BlockScaledTilePayload(A, B, SF, SF))
    assert PIPE.tx_bytes == A.nbytes + B.nbytes + 2 * SF.nbytes

    @cuda.jit
    def kernel(a, b, sfa, sfb, out):
        pipe = PIPE.start()
        if pipe.is_producer():
            for _, stage in pipe.produce(0, 1):
                a_tile, b_tile, sfa_tile, sfb_tile = stage.get_tile(0)
                a.load(a_tile, (0, 0), stage.barrier)
                b.load(b_tile, (0, 0), stage.barrier)
                sfa.load(sfa_tile, (0, 0), stage.barrier)
                sfb.load(sfb_tile, (0, 0), stage.barrier)
        else:
            for _, stage in pipe.consume(0, 1):
                row, column = cuda.threadIdx.x // 8, cuda.threadIdx.x % 8
                scaled_a = stage.a[row, column] * int(stage.sfa[0, row])
                scaled_b = stage.b[row, column] * int(stage.sfb[0, row])
                out[row, column] = scaled_a + scaled_b

    a, b = numbers(4, 8), numbers(4, 16, 1)
    sfa, sfb = numbers(1, 16, 2, np.uint8), numbers(1, 16, 3, np.uint8)
    out = np.zeros((4, 8), np.uint32)
    maps = [tma.tensor_map(x, t) for x, t in ((a, A), (b, B), (sfa, SF), (sfb, SF))]
    launch(kernel, *maps, out)
    scales = [s[0, :4, None].astype(np.uint32) for s in (sfa, sfb)]
    np.testing.assert_array_equal(out, a * scales[0] + b[:, :8] * scales[1])


# ------------------------------------------------------------------ the two views and stages


def test_MbarPtr():
    """A barrier in shared memory: an object, or its address wherever an instruction takes one."""

    @cuda.jit
    def kernel(out):
        barrier = tma.shared_barriers(2)[1]
        if cuda.threadIdx.x == 0:
            barrier.init(1)
            tma.fence_mbarrier_init()
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            ptx.mbarrier_arrive(barrier.address)
        tma.Barrier(barrier.address).wait(0)
        out[cuda.threadIdx.x] = 1

    out = np.zeros(32, np.int64)
    kernel[1, 32](out)
    assert out.all()


def test_TileProducer():
    """The explicit form: acquire, fill, commit; enters() elects the thread that does it."""
    PIPE = ring()

    @cuda.jit
    def kernel(a, out, n_tiles):
        pipe = PIPE.start()
        if pipe.is_producer():
            producer = pipe.producer()
            if producer.enters():
                for t in range(n_tiles):
                    stage = producer.acquire()
                    a.load(stage.a, (4 * t, 0), stage.barrier)
                    producer.commit()
            producer.close()
        else:
            for t, stage in pipe.consume(0, n_tiles):
                write(out, t, stage.a)

    passed_on(kernel)


def test_InputProducer():
    """As a scope, whose block one elected thread of the role executes."""
    PIPE = ring(payload=tma.StandardTilePayload(A, B))

    @cuda.jit
    @tma.scopes
    def kernel(a, b, out, entered):
        pipe = PIPE.start()
        if pipe.is_producer():
            with pipe.producer() as producer:
                entered[ROLES.load.thread()] = 1
                with producer.acquire() as stage:
                    a.load(stage.a, (0, 0), stage.barrier)
                    b.load(stage.b, (0, 0), stage.barrier)
        else:
            for _, stage in pipe.consume(0, 1):
                row, column = cuda.threadIdx.x // 8, cuda.threadIdx.x % 8
                out[row, column] = stage.a[row, column] - stage.b[row, column]

    a, b, out = numbers(4, 8) + 200, numbers(4, 16, 1), np.zeros((4, 8), np.uint32)
    entered = np.zeros(32, np.int64)
    launch(kernel, tma.tensor_map(a, A), tma.tensor_map(b, B), out, entered)
    np.testing.assert_array_equal(out, a - b[:, :8])
    assert entered.sum() == 1


def test_TileConsumer():
    """The explicit form: wait, work, release, which arrives."""
    PIPE = ring()

    @cuda.jit
    def kernel(a, out, n_tiles):
        pipe = PIPE.start()
        if pipe.is_producer():
            for t, stage in pipe.produce(0, n_tiles):
                a.load(stage.a, (4 * t, 0), stage.barrier)
        else:
            consumer = pipe.consumer()
            for t in range(n_tiles):
                stage = consumer.wait()
                write(out, t, stage.a)
                consumer.release()

    passed_on(kernel)


def test_InputConsumer():
    """As a scope, whose block all threads of the role execute; `continue` releases, too."""
    PIPE = ring()

    @cuda.jit
    @tma.scopes
    def kernel(a, out, n_tiles):
        pipe = PIPE.start()
        if pipe.is_producer():
            for t, stage in pipe.produce(0, 2 * n_tiles):
                a.load(stage.a, (4 * (t // 2), 0), stage.barrier)
        else:
            with pipe.consumer() as consumer:
                for t in range(2 * n_tiles):
                    with consumer.acquire() as stage:
                        if t % 2:
                            continue
                        write(out, t // 2, stage.a)

    passed_on(kernel)


def test_ProducerStage():
    """get_tile, barrier, stage (here index), expect_bytes; committed at its scope's end."""
    PIPE = ring(3)

    @cuda.jit
    @tma.scopes
    def kernel(a, out, n_tiles):
        pipe = PIPE.start()
        if pipe.is_producer():
            with pipe.producer() as producer:
                for t in range(n_tiles):
                    with producer.acquire() as stage:
                        assert stage.index == t % 3
                        (tile,) = stage.get_tile()
                        assert tile == stage.a
                        stage.expect_bytes(A.nbytes)
                        a.load(tile, (4 * t, 0), stage.barrier)
        else:
            for t, stage in pipe.consume(0, n_tiles):
                write(out, t, stage.a)

    passed_on(kernel, 7)


def grouped(by_scope):
    """Return a kernel over stages of two tiles: `by_scope` says which side has scopes."""
    PIPE = ring(k_group=2)
    producer_scope = by_scope == "producer"

    @cuda.jit
    @tma.scopes
    def kernel(a, out, n_tiles):
        pipe = PIPE.start()
        if pipe.is_producer():
            if producer_scope:
                with pipe.producer() as producer:
                    for t in range(n_tiles // 2):
                        with producer.acquire() as stage:
                            for j in range(2):
                                assert stage.tile(j).a == stage.get_tile(j)[0]
                                a.load(stage.tile(j).a, (4 * (2 * t + j), 0), stage.barrier)
            else:
                for t, stage in pipe.produce(0, n_tiles // 2):
                    for j in range(2):
                        a.load(stage.tile(j).a, (4 * (2 * t + j), 0), stage.barrier)
        elif producer_scope:
            for t, stage in pipe.consume(0, n_tiles // 2):
                for j in range(2):
                    write(out, 2 * t + j, stage.tile(j).a)
        else:
            with pipe.consumer() as consumer:
                for t in range(n_tiles // 2):
                    with consumer.acquire() as stage:
                        for j in range(2):
                            write(out, 2 * t + j, stage.tile(j).a)  # get_a_tile(j)

    return kernel


def test_InputProducerStage():
    """payload: the tiles of a group by name and by number."""
    passed_on(grouped("producer"), 6)


def test_InputConsumerStage():
    """get_a_tile, get_b_tile: the tiles of a group by name and by number."""
    passed_on(grouped("consumer"), 6)


def test_ConsumerStage():
    """get_tile, stage (here index); released at its scope's end. mbar is not handed out."""
    PIPE = ring(3)

    @cuda.jit
    @tma.scopes
    def kernel(a, out, n_tiles):
        pipe = PIPE.start()
        if pipe.is_producer():
            for t, stage in pipe.produce(0, n_tiles):
                a.load(stage.a, (4 * t, 0), stage.barrier)
        else:
            with pipe.consumer() as consumer:
                for t in range(n_tiles):
                    with consumer.acquire() as stage:
                        assert stage.index == t % 3
                        (tile,) = stage.get_tile()
                        assert tile == stage.a
                        write(out, t, tile)

    passed_on(kernel, 7)


# -------------------------------------------------------------------------------- methods


@pytest.mark.parametrize("given", [expected_bytes - 4, 0, A.nbytes + B.nbytes])
def test_expect_bytes_of_a_wrong_number_shows_the_sum(given):
    @cuda.jit
    @tma.scopes
    def kernel():
        pipe = tile_pipeline_of.start()
        if pipe.is_producer():
            with pipe.producer() as producer:
                with producer.acquire() as tiles:
                    tiles.expect_bytes(given)

    with pytest.raises(sim.BadOperand) as caught:
        launch(kernel)
    assert f"expect_bytes({given:,}): a stage of " in str(caught.value)
    assert "receives 3 x (128 (a) + 256 (b)) = 1,152 B, which it expects by itself" in str(
        caught.value
    )


def test_get_tile_beyond_the_group():
    @cuda.jit
    def kernel():
        pipe = tile_pipeline_of.start()
        if pipe.is_producer():
            for _, tiles in pipe.produce(0, 1):
                tiles.get_tile(3)

    with pytest.raises(sim.BadOperand, match="the stage holds the tiles 0 to 2"):
        launch(kernel)


def test_drain():
    """`tail`: the consumers have released all, so that the ring may be used for something else."""
    PIPE = ring(3)
    SPACE = tma.Tile((PIPE.storage_nbytes // 16, 16), "u8")

    @cuda.jit
    def kernel(a, out, n_tiles):
        space = tma.shared_tile(SPACE)
        pipe = PIPE.start(tiles=space)
        for first in range(0, n_tiles, 2):
            if pipe.is_producer():
                producer = pipe.producer()
                if producer.enters():
                    for t in range(first, min(first + 2, n_tiles)):
                        stage = producer.acquire()
                        a.load(stage.a, (4 * t, 0), stage.barrier)
                    producer.tail()
                    space[0, 0] = 7  # nobody reads or fills it now
                    tma.fence_proxy_async()
            else:
                for t, stage in pipe.consume(first, min(first + 2, n_tiles)):
                    write(out, t, stage.a)
                pipe.release_pending()
        pipe.close()

    passed_on(kernel, 7)


@pytest.mark.parametrize("producer_asks", [True, False])
@pytest.mark.parametrize("consumer_asks", [True, False])
def test_try_acquire_and_acquire_if_needed(producer_asks, consumer_asks):
    """Also try_wait and wait_if_needed: the same of the consumer."""
    PIPE = ring()

    @cuda.jit
    def kernel(a, out, n_tiles):
        pipe = PIPE.start()
        if pipe.is_producer():
            producer = pipe.producer()
            if producer.enters():
                for t in range(n_tiles):
                    empty = producer.try_acquire() if producer_asks else False
                    stage = producer.acquire_if_needed(empty)
                    a.load(stage.a, (4 * t, 0), stage.barrier)
        else:
            consumer = pipe.consumer()
            for t in range(n_tiles):
                full = consumer.try_wait() if consumer_asks else False
                stage = consumer.wait_if_needed(full)
                write(out, t, stage.a)
                consumer.release()

    passed_on(kernel)


def test_producer_step_and_consumer_step():
    """The ring by hand: two states, two arrays of barriers, and who waits for which parity."""
    TILES = tma.Tile((STAGES * 4, 8), "u32")

    @cuda.jit
    def kernel(a, out, n_tiles):
        storage = tma.shared_tile(TILES)
        full, empty = tma.shared_barriers(STAGES), tma.shared_barriers(STAGES)
        if cuda.threadIdx.x == 0:  # init_mbars
            full.init(1)
            empty.init(32)
            tma.fence_mbarrier_init()
        cuda.syncthreads()
        if ROLES.load.is_member():
            if tma.elect_sync():
                state = tma.PipelineState(STAGES, 0, 1)
                for t in range(n_tiles):
                    empty[state.index].wait(state.phase)  # wait_consumer
                    full[state.index].arrive_expect_tx(A.nbytes)
                    address = storage.address + state.index * A.nbytes
                    ptx.cp_async_bulk_tensor_load(address, a, (4 * t, 0), full[state.index])
                    state.step()  # producer_step
        else:
            state = tma.PipelineState(STAGES, 0, 0)
            thread = ROLES.mma.thread()
            row, column = thread // 8, thread % 8
            for t in range(n_tiles):
                full[state.index].wait(state.phase)  # wait_producer
                out[4 * t + row, column] = storage[4 * state.index + row, column]
                empty[state.index].arrive()  # consumer_signal_and_step
                state.step()

    passed_on(kernel)


def test_ProducerConsumerPipeline():
    """Data that threads produce: `producer_signal_and_step` is the commit, which arrives."""
    PIPE = ring(filled_by="threads")

    @cuda.jit
    @tma.scopes
    def kernel(out, n_tiles):
        pipe = PIPE.start()
        if pipe.is_producer():
            with pipe.producer() as producer:
                for t in range(n_tiles):
                    with producer.acquire() as stage:
                        thread = ROLES.load.thread()
                        stage.a[thread // 8, thread % 8] = 32 * t + thread
        else:
            with pipe.consumer() as consumer:
                for t in range(n_tiles):
                    with consumer.acquire() as stage:
                        write(out, t, stage.a)

    out = np.zeros((20, 8), np.uint32)
    launch(kernel, out, 5)
    np.testing.assert_array_equal(out, np.arange(160).reshape(20, 8))


def test_produce_consume_and_consume_explicit():
    PIPE = ring(3)

    @cuda.jit
    def kernel(a, out, n_tiles):
        pipe = PIPE.start()
        half = n_tiles // 2
        if pipe.is_producer():
            for t, stage in pipe.produce(0, n_tiles):
                a.load(stage.a, (4 * t, 0), stage.barrier)
        else:
            for t, stage in pipe.consume(0, half):  # released as the loop goes on
                write(out, t, stage.a)
            pipe.release_pending()
            consumer = pipe.consumer()
            for t in range(half, n_tiles):  # released by hand
                stage = consumer.wait()
                write(out, t, stage.a)
                consumer.release()

    passed_on(kernel, 7)
