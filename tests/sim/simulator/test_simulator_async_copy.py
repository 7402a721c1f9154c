"""cp.async: values, groups, arrivals on mbarriers, and errors."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma import simulator as sim

SEEDS = range(20)
TILE = tma.Tile(64, "u32")


@cuda.jit
def copy_by_word(source, out):
    """Each thread copies and reads a word of its own; its neighbours' are still under way."""
    tile, thread = tma.shared_tile(TILE), cuda.threadIdx.x
    ptx.cp_async_ca(tile.address + 4 * thread, source[thread:], 4)
    ptx.cp_async_wait_all()
    out[thread] = tile[thread]


@cuda.jit
def forms(source, out):
    tile, thread = tma.shared_tile(TILE), cuda.threadIdx.x
    for i in range(4):
        tile[4 * thread + i] = 7
    to, of = tile.address + 16 * thread, source[4 * thread :]
    if thread == 0:
        ptx.cp_async_cg(to, of)
    elif thread == 1:
        ptx.cp_async_ca(to, of, 8)
    elif thread == 2:
        ptx.cp_async_cg(to, of, 6)
    elif thread == 3:
        ptx.cp_async_ca(to, of, 8, 0)
    elif thread == 4:
        ptx.cp_async_ca_ignore_src(to, of, 4, True)
    elif thread == 5:
        ptx.cp_async_cg_ignore_src(to, of, False)
    elif thread == 6:
        ptx.cp_async_cg_conditional(to, of, False)
    else:
        ptx.cp_async_ca_conditional(to, of, 16, True, 12)
    ptx.cp_async_wait_all()
    for i in range(4):
        out[4 * thread + i] = tile[4 * thread + i]


def test_values():
    source = np.random.default_rng(0).integers(0, 2**32, 64, np.uint32)
    expected = source[:32].reshape(8, 4).copy()
    expected[1, 2:] = 7
    expected[2, 1] &= 0xFFFF
    expected[2, 2:] = 0
    expected[3] = 0, 0, 7, 7
    expected[4] = 0, 7, 7, 7
    expected[6] = 7
    expected[7, 3] = 0
    for seed in SEEDS:
        sim.seed(seed)
        out = np.zeros(64, np.uint32)
        copy_by_word[1, 64](source, out)
        np.testing.assert_array_equal(out, source)
        out = np.zeros(32, np.uint32)
        forms[1, 8](source, out)
        np.testing.assert_array_equal(out.reshape(8, 4), expected)


def test_groups_are_counted_from_the_newest():
    @cuda.jit
    def kernel(source, out):
        tile = tma.shared_tile(TILE)
        for k in range(16):
            ptx.cp_async_cg(tile.address + 16 * k, source[4 * k :])
            ptx.cp_async_commit_group()
            ptx.cp_async_wait_group(2)
            if k >= 2:
                out[k - 2] = tile[4 * (k - 2)]
        ptx.cp_async_wait_group(0)
        out[14], out[15] = tile[56], tile[60]

    source = np.arange(64, dtype=np.uint32)
    for seed in SEEDS:
        sim.seed(seed)
        out = np.zeros(16, np.uint32)
        kernel[1, 1](source, out)
        np.testing.assert_array_equal(out, source[::4])


def test_copies_land_late_and_in_any_order():
    seen = set()

    @cuda.jit
    def kernel(source):
        space = cuda.shared.array(64, np.uint32, 16)
        for i in range(4):
            space[4 * i] = 99
            ptx.cp_async_ca(space[4 * i :], source[i:], 4)
        cuda.nanosleep(1)
        seen.add(tuple(int(v) for v in space.view(np.ndarray)[:16:4]))  # a kernel may not look
        ptx.cp_async_wait_all()
        assert list(space[:16:4]) == [0, 1, 2, 3]

    for seed in range(60):
        sim.seed(seed)
        kernel[1, 1](np.arange(4, dtype=np.uint32))
    assert (99, 99, 99, 99) in seen
    arrived = [{i for i in range(4) if state[i] == i} for state in seen]
    assert any(0 not in a and a for a in arrived) and any(3 not in a and a for a in arrived)


@cuda.jit
def hand_over(source, out, noinc):
    """Half of the threads copy, the others read."""
    tile, barrier = tma.shared_tile(TILE), tma.shared_barrier()
    thread = cuda.threadIdx.x
    if thread == 0:
        barrier.init(16)
    cuda.syncthreads()
    if thread < 16:
        ptx.cp_async_cg(tile.address + 16 * thread, source[4 * thread :])
        if noinc:
            ptx.cp_async_mbarrier_arrive_noinc(barrier)
        else:
            ptx.cp_async_mbarrier_arrive(barrier)
            barrier.arrive()
    else:
        barrier.wait(0)
        for i in range(4):
            out[4 * (thread - 16) + i] = tile[4 * (31 - thread) + i]


@pytest.mark.parametrize("noinc", [False, True])
def test_an_mbarrier_tells_of_copies(noinc):
    source = np.arange(64, dtype=np.uint32)
    for seed in SEEDS:
        sim.seed(seed)
        out = np.zeros(64, np.uint32)
        hand_over[1, 32](source, out, noinc)
        np.testing.assert_array_equal(out, source.reshape(16, 4)[::-1].reshape(-1))


# ---------------------------------------------------------------------------- mistakes


def launch(body, threads=2):
    """Run `body(thread, tile, barrier, source)`, with a barrier of count 1."""

    @cuda.jit
    def kernel(source):
        tile, barrier = tma.shared_tile(TILE), tma.shared_barrier()
        thread = cuda.threadIdx.x
        if thread == 0:
            barrier.init(1)
            tma.fence_mbarrier_init()
        cuda.syncthreads()
        body(thread, tile, barrier, source)

    kernel[1, threads](np.arange(64, dtype=np.uint32))


def copy_words(thread, tile, source):
    ptx.cp_async_cg(tile.address + 16 * thread, source[4 * thread :])


def read_own_early(thread, tile, barrier, source):
    copy_words(thread, tile, source)
    ptx.cp_async_commit_group()
    ptx.cp_async_wait_group(1)
    tile[4 * thread]


def wait_without_commit(thread, tile, barrier, source):
    copy_words(thread, tile, source)
    ptx.cp_async_wait_group(0)
    tile[4 * thread]


def read_without_sync(thread, tile, barrier, source):
    if thread == 1:
        copy_words(thread, tile, source)
    cuda.syncthreads()
    ptx.cp_async_wait_all()
    tile[4]


def write_early(thread, tile, barrier, source):
    copy_words(thread, tile, source)
    tile[4 * thread + 1] = 0


def copy_twice(thread, tile, barrier, source):
    copy_words(thread, tile, source)
    copy_words(thread, tile, source[8:])


def copy_over_a_reader(thread, tile, barrier, source):
    if thread == 0:
        copy_words(1, tile, source)
        ptx.cp_async_wait_all()
    cuda.syncthreads()
    if thread == 1:
        tile[4]
    else:
        for _ in range(50):
            cuda.nanosleep(1)
        copy_words(1, tile, source)


def store_without_fence(thread, tile, barrier, source):
    if thread == 0:
        for i in range(16):
            copy_words(i, tile, source)
    ptx.cp_async_wait_all()
    cuda.syncthreads()
    if thread == 1:
        ptx.cp_async_bulk_store(source, tile, 256)


def load_while_copying(thread, tile, barrier, source):
    if thread == 0:
        copy_words(thread, tile, source)
        barrier.arrive_expect_tx(256)
        ptx.cp_async_bulk_load(tile, source, 256, barrier)


def copy_while_loading(thread, tile, barrier, source):
    if thread == 0:
        barrier.arrive_expect_tx(256)
        ptx.cp_async_bulk_load(tile, source, 256, barrier)
        copy_words(thread, tile, source)


def never_wait(thread, tile, barrier, source):
    copy_words(thread, tile, source)


def misaligned(thread, tile, barrier, source):
    ptx.cp_async_cg(tile.address + 8, source)


def misaligned_source(thread, tile, barrier, source):
    ptx.cp_async_ca(tile, source[1:], 8)


def too_large(thread, tile, barrier, source):
    ptx.cp_async_ca(tile, source, 8, 9)


def past_the_end(thread, tile, barrier, source):
    ptx.cp_async_ca(tile, source[60:62], 16, 12)


def past_the_tile(thread, tile, barrier, source):
    ptx.cp_async_cg(tile.address + 256, source)


def too_many_arrivals(thread, tile, barrier, source):
    copy_words(thread, tile, source)
    if thread == 0:
        barrier.expect_tx(16)
        barrier.arrive()
    cuda.syncthreads()
    ptx.cp_async_mbarrier_arrive_noinc(barrier)
    barrier.wait(0)


def inval_before_the_arrival(thread, tile, barrier, source):
    if thread == 0:
        copy_words(thread, tile, source)
        ptx.cp_async_mbarrier_arrive_noinc(barrier)
        barrier.inval()
        ptx.cp_async_wait_all()


MISTAKES = {
    read_own_early: (sim.EarlyRead, "bytes 0 to 3: read before the cp.async of thread"),
    wait_without_commit: (sim.EarlyRead, "cp_async_wait_all() first"),
    read_without_sync: (sim.EarlyRead, "and then synchronise with this one"),
    write_early: (sim.EarlyOverwrite, "overwritten before the cp.async"),
    copy_twice: (sim.EarlyOverwrite, "overwritten by another cp.async before"),
    copy_over_a_reader: (sim.EarlyOverwrite, "(warp 0 lane 1) has read them, and nothing orders"),
    store_without_fence: (sim.MissingFence, "a store reads what a cp.async of thread (0, 0, 0)"),
    load_while_copying: (sim.EarlyOverwrite, "overwritten by a load before the cp.async"),
    copy_while_loading: (sim.EarlyOverwrite, "overwritten by a cp.async before the load"),
    never_wait: (sim.UnfinishedCopy, "no thread has waited for 1 cp.async of thread (0, 0, 0)"),
    misaligned: (sim.BadOperand, "a copy of 16 bytes needs a multiple of 16"),
    misaligned_source: (sim.BadOperand, "cp_async_ca: source starts 4 bytes into"),
    too_large: (sim.BadOperand, "src_size is 9; it must be 0 to the 8 of the copy"),
    past_the_end: (sim.BadOperand, "12 bytes are read where the array has 8 left"),
    past_the_tile: (sim.BadOperand, "out of range"),
    too_many_arrivals: (sim.BarrierMisuse, "more threads arrive than the barrier was"),
    inval_before_the_arrival: (sim.BarrierMisuse, "mbarrier_inval before the arrival of cp_async"),
}


@pytest.mark.parametrize("body", MISTAKES, ids=lambda body: body.__name__)
def test_mistakes_are_reported(body):
    kind, text = MISTAKES[body]
    for seed in range(5):
        sim.seed(seed)
        with pytest.raises(kind) as caught:
            launch(body, threads=1 if "read_own" in body.__name__ else 2)
        assert text in str(caught.value)


def fence_by_a_waiter(thread, tile, barrier, source):
    """The thread that copies never waits: the one that does fences and stores."""
    if thread == 0:
        for i in range(16):
            copy_words(i, tile, source)
        ptx.cp_async_mbarrier_arrive_noinc(barrier)
    else:
        barrier.wait(0)
        tma.fence_proxy_async()
        ptx.cp_async_bulk_store(source, tile, 256)
        ptx.cp_async_bulk_commit_group()
        ptx.cp_async_bulk_wait_group(0)


def ring_of_small_copies(thread, tile, barrier, source):
    """Words of one granule belong to two threads, and each goes round on its own."""
    for k in range(8):
        ptx.cp_async_ca(tile.address + 4 * thread, source[k:], 4)
        ptx.cp_async_wait_all()
        assert tile[thread] == k


@pytest.mark.parametrize("body", [fence_by_a_waiter, ring_of_small_copies])
def test_what_is_right_is_not_reported(body):
    for seed in SEEDS:
        sim.seed(seed)
        launch(body)
