"""Data races on shared memory: every pair of unordered accesses, and the pairs that are right."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma import simulator as sim
from numba_tma.pipeline import loops
from numba_tma.pipeline.producer import TileProducer
from tests.tiers import seeds

U32 = tma.Tile((64,), "u32")
ROW = tma.Tile((1, 32), "f32")
FULL = 0xFFFFFFFF
SYNCS = {
    "nothing": lambda: None,
    "a shuffle": lambda: cuda.shfl_sync(FULL, 1, 0),
    "a vote": lambda: cuda.all_sync(FULL, True),
    "syncwarp": lambda: cuda.syncwarp(),
    "syncthreads": lambda: cuda.syncthreads(),
    "a named barrier": lambda: ptx.barrier_sync(8, 64),
}
ORDERS = {"syncthreads", "a named barrier"}


def launch(body, threads=64, *args):
    cuda.jit(body)[1, threads](*args)


def write_then_read(array, sync, distance):
    t = cuda.threadIdx.x
    array[t] = np.uint32(0)
    cuda.syncthreads()
    array[t] = np.uint32(t)
    sync()
    return array[t ^ distance]


def in_tile():
    return tma.shared_tile(U32)


def in_array():
    return cuda.shared.array(64, np.uint32)


@seeds(1, 4)
@pytest.mark.parametrize("memory", [in_tile, in_array])
@pytest.mark.parametrize("how", SYNCS)
def test_plain_races_between_warps(how, memory, seeds):
    for seed in seeds:
        sim.seed(seed)

        def body():
            write_then_read(memory(), SYNCS[how], 32)

        if how in ORDERS:
            launch(body)
            continue
        with pytest.raises(sim.DataRace) as caught:
            launch(body)
        text = str(caught.value)
        assert "written" in text and "read" in text and text.count("test_races.py:") == 2
        assert "nothing orders the two" in text and "syncwarp within one" in text


@pytest.mark.parametrize("how", SYNCS)
def test_plain_races_between_lanes(how):
    def body():
        write_then_read(tma.shared_tile(U32), SYNCS[how], 1)

    if how in ORDERS | {"syncwarp"}:
        launch(body)
        return
    with pytest.raises(sim.DataRace):
        launch(body)


@seeds(1, 4)
def test_a_write_after_an_unordered_read(seeds):
    for seed in seeds:
        sim.seed(seed)

        def body(synced):
            tile, t = tma.shared_tile(U32), cuda.threadIdx.x
            tile[t] = np.uint32(t)
            cuda.syncthreads()
            tile[(t + 1) % 64]
            if synced:
                cuda.syncthreads()
            tile[t] = np.uint32(t + 1)

        launch(body, 64, True)
        with pytest.raises(sim.DataRace):
            launch(body, 64, False)


def test_parts_of_one_word_belong_to_different_threads():
    def body(tile):
        held, t = tma.shared_tile(tile), cuda.threadIdx.x
        held[t] = 1
        held[t] += 1

    for dtype in ("u8", "f16"):
        launch(body, 64, tma.Tile((64,), dtype))


def test_threads_may_write_the_same_value():
    def body(differ):
        tile = tma.shared_tile(U32)
        tile[0] = np.uint32(cuda.threadIdx.x if differ else 7)

    launch(body, 64, False)
    with pytest.raises(sim.DataRace, match="written at .* and written by"):
        launch(body, 64, True)


@pytest.mark.parametrize("index", [1, slice(1, 3)])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint32, np.complex128])
def test_threads_may_write_the_same_value_to_an_array(dtype, index):
    def body(differ):
        array = cuda.shared.array(4, dtype)
        array[index] = dtype(cuda.threadIdx.x if differ else 7)

    launch(body, 64, False)
    with pytest.raises(sim.DataRace, match="written at .* and written by"):
        launch(body, 64, True)


def test_a_write_of_the_same_value_replaces_those_it_covers():
    def body(covers):
        words = sim.allocate_shared("words", 8, 8)
        written = sim.allocate_shared("written", 8, 8)
        t = cuda.threadIdx.x
        if t == 0:
            sim.mbarrier_init(written, 1)
        cuda.syncthreads()
        if t < 2:
            sim.shared_write(words + 4 * t, np.uint32(7))
        if t < 32:
            cuda.shfl_sync(FULL, 1, 0)  # orders the lanes, and no memory
        if t == 1:
            if covers:
                sim.shared_write(words, np.array([7, 7], np.uint32).view(np.uint64)[0])
            sim.mbarrier_arrive(written)
        if t == 32:
            while not sim.mbarrier_try_wait_parity(written, 0):
                pass
            sim.shared_read(words, np.dtype(np.uint32))

    launch(body, 64, True)
    with pytest.raises(sim.DataRace):
        launch(body, 64, False)


@seeds(12, 60)
def test_a_plain_write_and_the_atomic_additions_of_other_warps(seeds):
    """In every order, also where the writer's own addition comes between the two."""

    def body():
        total = cuda.shared.array(1, np.int32)
        if cuda.threadIdx.x == 0:
            total[0] = 0
        if cuda.threadIdx.x % 32 == 0:
            cuda.atomic.add(total, 0, 5)

    for seed in seeds:
        sim.seed(seed)
        with pytest.raises(sim.DataRace, match="total|shared"):
            launch(body)


def test_atomic_operations_meet_each_other_but_no_plain_access():
    def body(out, synced):
        total = cuda.shared.array(1, np.int32)
        if cuda.threadIdx.x == 0:
            total[0] = 0
        if synced:
            cuda.syncthreads()
        cuda.atomic.add(total, 0, 1)
        cuda.syncthreads()
        out[cuda.threadIdx.x] = total[0]

    out = np.zeros(64, np.int32)
    launch(body, 64, out, True)
    assert (out == 64).all()
    with pytest.raises(sim.DataRace):
        launch(body, 64, out, False)


@pytest.mark.parametrize("fenced", [True, False])
def test_an_atomic_flag_orders_what_fences_order(fenced):
    def body():
        values, flag = cuda.shared.array(1, np.int32), cuda.shared.array(1, np.int32)
        if cuda.threadIdx.x == 0:
            flag[0] = 0
        cuda.syncthreads()
        if cuda.threadIdx.x == 32:
            values[0] = 5
            if fenced:
                cuda.threadfence_block()
            cuda.atomic.exch(flag, 0, 1)
        elif cuda.threadIdx.x == 0:
            while cuda.atomic.cas(flag, 0, 1, 1) == 0:
                pass
            cuda.threadfence_block()
            assert values[0] == 5

    if fenced:
        launch(body)
        return
    with pytest.raises(sim.DataRace):
        launch(body)


# ------------------------------------------------------------------ arrays of cuda.shared.array


@seeds(2, 8)
@pytest.mark.parametrize("waits", [True, False])
def test_an_array_that_a_copy_fills_is_read_before_its_wait(waits, seeds):
    def body(x):
        target, barrier = cuda.shared.array(32, np.float32), tma.shared_barrier()
        if cuda.threadIdx.x == 0:
            barrier.init(1)
            tma.fence_mbarrier_init()
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            barrier.arrive_expect_tx(128)
            ptx.cp_async_bulk_load(target, x, 128, barrier)
        cuda.syncthreads()
        if waits:
            barrier.wait(0)
        assert target[cuda.threadIdx.x] == cuda.threadIdx.x
        barrier.wait(0)

    for seed in seeds:
        sim.seed(seed)
        x = np.arange(32, dtype=np.float32)
        if waits:
            launch(body, 32, x)
            continue
        with pytest.raises(sim.EarlyRead, match="cuda.shared.array at line .*, bytes .* wait for"):
            launch(body, 32, x)


# ------------------------------------------------------------------ stores over a live mbarrier

OVER = {
    "tile": lambda tile, array, x, bar: ptx.st_shared_u32(bar.address, 0),
    "vector": lambda tile, array, x, bar: sim.shared_write(bar.address - 8, np.zeros(4, "u4")),
    "array": lambda tile, array, x, bar: array.__setitem__(0, 0),
    "cp.async": lambda tile, array, x, bar: ptx.cp_async_ca(bar.address, x, 4),
    "bulk": lambda tile, array, x, bar: ptx.cp_async_bulk_load(bar.address - 8, x, 16, bar),
}


@pytest.mark.parametrize("how", OVER)
@pytest.mark.parametrize("live", [True, False])
def test_a_store_over_a_live_mbarrier(how, live):
    def body(x):
        array = cuda.shared.array(16, np.uint32)
        first, other = (tma.Barrier(sim.shared_address(array) + 8 * i) for i in (0, 4))
        bar = first if how == "array" else tma.Barrier(first.address + 8)
        for barrier in (bar, other):
            barrier.init(1)
        tma.fence_mbarrier_init()
        if not live:
            ptx.mbarrier_inval(bar)
        if how == "bulk":
            other.arrive_expect_tx(16)
            ptx.cp_async_bulk_load(first.address, x, 16, other)
            other.wait(0)
        else:
            OVER[how](None, array, x, bar)
        if how == "cp.async":
            ptx.cp_async_wait_all()

    x = np.zeros(16, np.uint32)
    if not live:
        launch(body, 1, x)
        return
    with pytest.raises(sim.BarrierMisuse, match="a live mbarrier at .* mbarrier_inval it before"):
        launch(body, 1, x)


# ------------------------------------------------------------------ tickets

PIPE = tma.TilePipeline(2, x=ROW)


def take_late(self):
    """Publish the number of the tile after the arrival that announces it."""
    loops.enter_body(self)
    producer, tile = self.producer, self.tile
    producer._await_next()
    stage = producer._expect()
    cuda.nanosleep(1)
    producer._publish_tile(tile)
    self.tile = self.queue.draw()
    return tile, stage


def end_late(self):
    self._await_next()
    ptx.mbarrier_arrive(self._full_barrier(self.state.index))
    self._publish_tile(loops.NO_TILE)


@seeds(2, 8)
@pytest.mark.parametrize("late", ["no ticket", "tiles", "the end"])
def test_a_ticket_published_after_the_arrival_that_announces_it(late, seeds, monkeypatch):
    def body(x, counter, seen):
        pipe = PIPE.start()
        queue = tma.TileQueue(counter, 6)
        if pipe.is_producer():
            for tile, stage in pipe.produce_from(queue):
                x.load(stage.x, (tile, 0), stage.barrier)
        else:
            for tile, _ in pipe.consume_from():
                seen[tile] += 1

    if late == "tiles":
        monkeypatch.setattr(loops.ProduceFrom, "take", take_late)
    elif late == "the end":
        monkeypatch.setattr(TileProducer, "publish_end", end_late)
    x = tma.tensor_map(np.zeros((6, 32), np.float32), ROW)
    for seed in seeds:
        sim.seed(seed)
        counter, seen = np.zeros(1, np.uint32), np.zeros(6)
        if late == "no ticket":
            launch(body, 64, x, counter, seen)
            assert (seen == 32).all()
            continue
        with pytest.raises((sim.DataRace, sim.UninitializedRead)):
            launch(body, 64, x, counter, seen)


# ------------------------------------------------------------------ arrivals between blocks

SEMANTICS = {
    "release.cluster": None,
    None: "releases at block scope, which other blocks of the cluster do not see",
    "release.cta": "releases at block scope, which other blocks of the cluster do not see",
    "relaxed.cluster": "nothing orders the two",
}


RING_ROLES = tma.Roles(load=tma.Warps(1), use=tma.Warps(1))
RING = tma.TilePipeline(
    2,
    x=tma.Tile((16, 16), "f32"),
    producer=RING_ROLES.load,
    consumer=RING_ROLES.use,
    cluster=(2, 1),
    multicast={"x": "x"},
)


@seeds(2, 8)
@pytest.mark.parametrize(("other", "synchronised"), [(0, False), (1, False), (1, True)])
def test_the_start_of_a_ring_orders_the_memory_of_its_block(other, synchronised, seeds):
    """Not that of other blocks, of which it shows the barriers alone."""

    @cuda.jit
    @tma.cluster((2, 1))
    def kernel(out):
        words, rank = tma.shared_tile(U32), ptx.cluster_ctarank()
        if cuda.threadIdx.x == 0:
            words[0] = np.uint32(7 + rank)
        pipe = RING.start()
        if synchronised:
            tma.cluster_sync()
        if cuda.threadIdx.x == 32:
            out[rank] = ptx.ld_shared_cluster_u32(ptx.mapa(words, rank ^ other))
        pipe.close()
        tma.cluster_sync()

    for seed in seeds:
        sim.seed(seed)
        out = np.zeros(2, np.uint32)
        if synchronised or not other:
            kernel[2, 64](out)
            np.testing.assert_array_equal(out, [7 + other, 8 - other])
            continue
        with pytest.raises(sim.DataRace):
            kernel[2, 64](out)


@seeds(2, 8)
@pytest.mark.parametrize("fenced", [False, True])
@pytest.mark.parametrize("semantics", SEMANTICS)
def test_a_remote_arrival_with_generic_data_behind_it(semantics, fenced, seeds):
    @cuda.jit
    @tma.cluster(2)
    def kernel(out):
        tile, arrived, rank = tma.shared_tile(U32), tma.shared_barrier(), ptx.cluster_ctarank()
        if cuda.threadIdx.x == 0:
            tile[0] = np.uint32(0)
            arrived.init(1)
            tma.fence_mbarrier_init()
        tma.cluster_sync()
        if rank == 1 and cuda.threadIdx.x == 0:
            ptx.st_shared_cluster_u32(ptx.mapa(tile, 0), 7)
            if fenced:
                sim.fence_acq_rel()
            ptx.mbarrier_arrive_remote(ptx.mapa(arrived, 0), None, semantics)
        if rank == 0 and cuda.threadIdx.x == 0:
            while not ptx.mbarrier_try_wait_parity(arrived, 0, semantics="acquire.cluster"):
                pass
            out[0] = tile[0]
        tma.cluster_sync()

    for seed in seeds:
        sim.seed(seed)
        out = np.zeros(1, np.uint32)
        if SEMANTICS[semantics] is None or fenced:
            kernel[2, 32](out)
            assert out[0] == 7
            continue
        with pytest.raises(sim.DataRace, match=SEMANTICS[semantics]):
            kernel[2, 32](out)
