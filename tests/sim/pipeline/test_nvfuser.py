"""Every name of nvFuser's issue 2197, and its equivalent here: one test per name."""

import re
from pathlib import Path

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import simulator as sim
from numba_tma.host.layout import Tile

ROWS, COLUMNS = 4, 16
TILE = Tile((ROWS, COLUMNS), "f32")


def array(tiles):
    values = np.random.default_rng(tiles).integers(1, 1000, (tiles * ROWS, COLUMNS))
    return values.astype(np.float32)


def by_one_thread(body):
    """Run body(barrier, tile, map, out) in thread 0, and return `out`."""

    @cuda.jit
    def kernel(x, out):
        barrier, tile = tma.shared_barrier(), tma.shared_tile(TILE)
        if cuda.threadIdx.x == 0:
            body(barrier, tile, x, out)

    out = np.zeros(4)
    kernel[1, 32](tma.tensor_map(array(2), TILE), out)
    return out.tolist()


def load(barrier, tile, x):
    barrier.init(1)
    tma.fence_mbarrier_init()
    state = barrier.arrive_expect_tx(TILE.nbytes)
    x.load(tile, (ROWS, 0), barrier)
    return state


def test_mbarrier_init():
    def body(barrier, tile, x, out):
        barrier.init(2)
        out[0] = barrier.pending_count(barrier.arrive())
        out[1] = barrier.test_wait(0)
        barrier.arrive()
        out[2] = barrier.test_wait(0)

    assert by_one_thread(body) == [2, False, True, 0]


def test_mbarrier_arriveExpectTX():
    def body(barrier, tile, x, out):
        state = load(barrier, tile, x)
        out[0] = barrier.pending_count(state)  # the count before it: it arrives once
        barrier.wait(0)  # ... and waits for the bytes
        out[1] = tile[0, 0]

    assert by_one_thread(body)[:2] == [1, array(2)[ROWS, 0]]


def test_mbarrier_wait():
    def body(barrier, tile, x, out):
        state = load(barrier, tile, x)
        while not tma.ptx.mbarrier_try_wait(barrier, state):  # by state, as nvFuser
            pass
        out[0] = tile[1, 2]
        barrier.arrive_expect_tx(TILE.nbytes)
        x.load(tile, (0, 0), barrier)
        barrier.wait(1)  # by parity
        out[1] = tile[1, 2]

    x = array(2)
    assert by_one_thread(body)[:2] == [x[ROWS + 1, 2], x[1, 2]]


def test_mbarrier_inval():
    def body(barrier, tile, x, out):
        for _ in range(2):  # only an invalid barrier may be initialised again
            load(barrier, tile, x)
            barrier.wait(0)
            barrier.inval()
        barrier.arrive()

    with pytest.raises(sim.BarrierMisuse, match="used after its mbarrier_inval"):
        by_one_thread(body)


def test_cpAsyncBulkTensorTileG2S():
    def body(barrier, tile, x, out):
        load(barrier, tile, x)
        barrier.wait(0)
        for i in range(4):
            out[i] = tile[i, i]

    assert by_one_thread(body) == array(2)[ROWS:].diagonal()[:4].tolist()


def test_CpAsyncBulkTensorTileG2SIndex():
    """Its three parts are arguments: map, coordinates (in array order) and barrier."""

    def body(barrier, tile, x, out):
        barrier.init(1)
        tma.fence_mbarrier_init()
        barrier.arrive_expect_tx(TILE.nbytes)
        x.load(tile, coords=(2, 4), barrier=barrier)
        barrier.wait(0)
        out[0] = tile[0, 0]

    assert by_one_thread(body)[0] == array(2)[2, 4]


def test_toSmem():
    """Barriers and tiles are passed as they are; their shared addresses are attributes."""

    def body(barrier, tile, x, out):
        barrier.init(1)
        tma.fence_mbarrier_init()
        tma.ptx.mbarrier_arrive_expect_tx(barrier.address, TILE.nbytes)
        tma.ptx.cp_async_bulk_tensor_load(tile.address, x, (0, 0), barrier.address)
        tma.Barrier(barrier.address).wait(0)
        out[0] = tma.ptx.ld_shared_f32(tile.address)

    assert by_one_thread(body)[0] == array(2)[0, 0]


def test_syncthreads():
    """After a barrier is initialised; without it, the others use what is not there yet."""

    def kernel_of(synchronised):
        @cuda.jit
        def kernel(x, out):
            barrier, tile = tma.shared_barrier(), tma.shared_tile(TILE)
            if cuda.threadIdx.x == 0:
                barrier.init(1)
                tma.fence_mbarrier_init()
            if synchronised:
                cuda.syncthreads()
            if cuda.threadIdx.x == 0:
                barrier.arrive_expect_tx(TILE.nbytes)
                x.load(tile, (0, 0), barrier)
            barrier.wait(0)
            out[cuda.threadIdx.x] = tile[0, cuda.threadIdx.x % COLUMNS]

        return kernel

    x, out = array(1), np.zeros(64, np.float32)
    kernel_of(True)[1, 64](tma.tensor_map(x, TILE), out)
    np.testing.assert_array_equal(out, np.tile(x[0], 4))
    caught = 0
    for seed in range(4):
        sim.seed(seed)
        try:
            kernel_of(False)[1, 64](tma.tensor_map(x, TILE), out)
        except sim.BarrierMisuse:
            caught += 1
    assert caught == 4


def test_NVFUSER_UPDATE_MAGIC_ZERO():
    """It keeps nvcc from hoisting address arithmetic; nothing here has it, nor a need for it."""
    assert not [name for name in dir(tma) if "magic" in name.lower()]


# ------------------------------------------------------------------ the two loops of the issue


def stage_by_stage(x, out, n, war):
    """Launch all loads of a buffer, then work on each stage when it has come: one turn a loop."""
    buffer = tma.CircularBuffer(4, war=war, x=TILE)
    events = []

    @cuda.jit
    def kernel(x, out):
        ring = buffer.start()
        for tile, stage in ring.tiles(0, n):
            for ahead, slot in ring.loads():
                x.load(slot.x, (ahead * ROWS, 0), slot.barrier)
                events.append(("load", ahead))
            full = stage.wait()
            if ring.thread() == 0:
                events.append(("work", tile))
            for i in range(ring.thread(), TILE.size, ring.num_threads()):
                out[tile * ROWS + i // COLUMNS, i % COLUMNS] = full.x[i // COLUMNS, i % COLUMNS]
        ring.close()

    kernel[1, 32](tma.tensor_map(x, TILE), out)
    return events


@pytest.mark.parametrize("war", ["sync", "mbarrier"])
def test_for_each_stage_of_producer_TV(war):
    x = array(6)
    events = stage_by_stage(x, np.zeros_like(x), 6, war)
    loads = [i for i, (kind, _) in enumerate(events) if kind == "load"]
    assert [events[i][1] for i in loads] == list(range(6))  # each once, in order
    assert events.index(("work", 0)) == 4  # all four stages are launched first
    for i in range(4, 6):  # and one more when one has been worked on
        assert events.index(("load", i)) > events.index(("work", i - 4))


@pytest.mark.parametrize("war", ["sync", "mbarrier"])
def test_for_each_stage_of_consumer(war):
    x = array(6)
    out = np.zeros_like(x)
    events = stage_by_stage(x, out, 6, war)
    assert [tile for kind, tile in events if kind == "work"] == list(range(6))
    np.testing.assert_array_equal(out, x)


def test_multiple_mbarriers_per_TensorView():
    """A barrier for each stage: what has come is worked on while the others are under way."""
    behind = 0
    for seed in range(6):
        sim.seed(seed)
        with sim.record() as trace:
            x = array(6)
            stage_by_stage(x, np.zeros_like(x), 6, "sync")
        full = waited = 0
        for event in trace.events:
            full += event.kind == "full"
            if event.kind == "wait" and event.thread == (0, 0, 0) and "full[" in event.label:
                waited += 1
                assert full >= waited
                behind += full < min(6, waited + 3)
    assert behind, "no wait was over while a later stage was under way"


# ------------------------------------------------------------------------ the example of the issue


def test_synchronous_TMA():
    """init, sync, arrive.expect_tx, load, wait, sync, inval: for one tensor after the other."""

    @cuda.jit
    def kernel(x, y, out):
        x_tile, y_tile = tma.shared_tile(TILE), tma.shared_tile(TILE)
        for tensor, tile in ((x, x_tile), (y, y_tile)):
            barrier = tma.shared_barrier()
            if cuda.threadIdx.x == 0:
                barrier.init(1)
                tma.fence_mbarrier_init()
            cuda.syncthreads()
            if cuda.threadIdx.x == 0:
                state = barrier.arrive_expect_tx(TILE.nbytes)
                tensor.load(tile, (0, 0), barrier)
                while not tma.ptx.mbarrier_try_wait(barrier, state):
                    pass
            cuda.syncthreads()
            if cuda.threadIdx.x == 0:
                barrier.inval()
        i, j = cuda.threadIdx.x // COLUMNS, cuda.threadIdx.x % COLUMNS
        out[i, j] = x_tile[i, j] + y_tile[i, j]

    x, y = array(1), array(2)[ROWS:]
    out = np.zeros_like(x)
    kernel[1, TILE.size](tma.tensor_map(x, TILE), tma.tensor_map(y, TILE), out)
    np.testing.assert_array_equal(out, x + y)


@pytest.mark.parametrize("barriers", ["one", "each"])
@pytest.mark.parametrize("war", ["sync", "mbarrier"])
def test_synchronous_single_stage_form(war, barriers):
    """A buffer of one stage takes the same steps, tile by tile; all barriers are invalid then."""
    buffer = tma.CircularBuffer(1, 0, war=war, barriers=barriers, x=TILE, y=TILE)

    @cuda.jit
    def kernel(x, y, out):
        ring = buffer.start()
        for tile, stage in ring.tiles(0, 3):
            for ahead, slot in ring.loads():
                x.load(slot.x, (ahead * ROWS, 0), slot.barrier_of("x"))
                y.load(slot.y, (ahead * ROWS, 0), slot.barrier_of("y"))
            full = stage.wait()
            i, j = ring.thread() // COLUMNS, ring.thread() % COLUMNS
            out[tile * ROWS + i, j] = full.x[i, j] + full.y[i, j]
        ring.close()
        cuda.syncthreads()
        if ring.thread() == 0:
            for barrier in range(buffer.num_barriers):
                tma.Barrier(ring.barriers + 8 * barrier).init(1)  # possible after inval alone

    x, y = array(3), array(3)[::-1].copy()
    out = np.zeros_like(x)
    with sim.record() as trace:
        kernel[1, TILE.size](tma.tensor_map(x, TILE), tma.tensor_map(y, TILE), out)
    np.testing.assert_array_equal(out, x + y)
    order = [e.kind for e in trace.events if e.kind in ("issue", "full")]
    kinds = ["full"] * buffer.num_full + ["issue"] * 2
    tiles = [order[i : i + len(kinds)] for i in range(0, len(order), len(kinds))]
    assert [sorted(tile) for tile in tiles] == [kinds] * 3  # none is loaded ahead


# ------------------------------------------------------------------------ the warp-specialised form


def test_warp_specialised_with_two_load_warps_and_no_sync_after_the_split():
    """Independent load warps: a pipeline and a role for each tensor; the load warps return."""
    roles = tma.Roles(compute=tma.Warps(2), load_x=tma.Warps(1), load_y=tma.Warps(1))
    X = tma.TilePipeline(3, x=TILE, producer=roles.load_x, consumer=roles.compute)
    Y = tma.TilePipeline(2, y=TILE, producer=roles.load_y, consumer=roles.compute)

    @cuda.jit
    def kernel(x, y, out, n):
        x_pipe, y_pipe = X.start(), Y.start()
        if x_pipe.is_producer():
            for tile, stage in x_pipe.produce(0, n):
                x.load(stage.x, (tile * ROWS, 0), stage.barrier)
            return
        if y_pipe.is_producer():
            for tile, stage in y_pipe.produce(0, n):
                y.load(stage.y, (tile * ROWS, 0), stage.barrier)
            return
        xs, ys, thread = x_pipe.consumer(), y_pipe.consumer(), roles.compute.thread()
        for tile in range(n):
            x_stage, y_stage = xs.wait(), ys.wait()
            i, j = thread // COLUMNS, thread % COLUMNS
            x_stage.x[i, j] += y_stage.y[i, j]
            roles.compute.sync()  # of the role: the load warps may be gone
            out[tile * ROWS + i, j] = x_stage.x[ROWS - 1 - i, j]
            roles.compute.sync()
            xs.release()
            ys.release()

    x, y = array(7), array(7)[::-1].copy()
    for seed in range(2):
        sim.seed(seed)
        out = np.zeros_like(x)
        kernel[1, roles.threads](tma.tensor_map(x, TILE), tma.tensor_map(y, TILE), out, 7)
        total = (x + y).reshape(7, ROWS, COLUMNS)[:, ::-1].reshape(x.shape)
        np.testing.assert_array_equal(out, total)


def test_independent_compute_groups():
    """Compute groups that take turns: each stage is worked on by one of them (`alternate`)."""
    roles = tma.Roles(even=tma.Warps(2), odd=tma.Warps(2), load=tma.Warps(1))
    PIPE = tma.TilePipeline(
        4, x=TILE, producer=roles.load, consumer=(roles.even, roles.odd), alternate=True
    )

    @cuda.jit
    def kernel(x, out, n):
        pipe = PIPE.start()
        if pipe.is_producer():
            for tile, stage in pipe.produce(0, n):
                x.load(stage.x, (tile * ROWS, 0), stage.barrier)
            return
        mine, thread = pipe.consumer(), cuda.threadIdx.x % TILE.size
        first = 1 if roles.odd.is_member() else 0
        mine.skip(first)
        for tile in range(first, n, 2):
            stage = mine.wait()
            i, j = thread // COLUMNS, thread % COLUMNS
            out[tile * ROWS + i, j] = stage.x[i, j] * (1 + first)
            mine.release()
            mine.skip(1)

    x = array(9)
    for seed in range(2):
        sim.seed(seed)
        out = np.zeros_like(x)
        kernel[1, roles.threads](tma.tensor_map(x, TILE), out, 9)
        factor = np.repeat(1 + np.arange(9) % 2, ROWS)[:, None]
        np.testing.assert_array_equal(out, x * factor)


# ---------------------------------------------------------------------------------- its page


def test_the_code_of_the_page_computes():
    page = Path(__file__).parents[3] / "docs" / "guide" / "circular_buffering.md"
    names = {"__name__": "page"}
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, page.name, "exec"), names)
    assert (names["out"].copy_to_host() == 3).all()
    assert names["PIPE"].producer.registers == 40
