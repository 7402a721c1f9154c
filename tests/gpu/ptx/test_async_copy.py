"""cp.async on the hardware: every form, bit for bit, and the two ways to wait."""

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from tests.gpu.ptx.test_mbarrier import passes
from tests.gpu.worker import on_gpu

POISON = 0xA5
THREADS = 64
SLOTS, WORDS = 16 * THREADS, 4 * THREADS  #: what all threads copy, in bytes and in words
CHUNK = tma.Tile(WORDS, "u32")
#: Long enough for a copy to end and its arrival to be made.
PAUSES = 1000


def source_bytes(seed):
    return np.random.default_rng(seed).integers(0, 256, SLOTS).astype(np.uint8)


def run(kernel, *args, seed=0):
    """Return what `kernel(source, out, *args)` makes of random bytes, 16 per thread, and them."""
    source = source_bytes(seed)
    out = cuda.to_device(np.full(SLOTS, POISON, np.uint8))
    kernel[1, THREADS](cuda.to_device(source), out, *args)
    return source.reshape(THREADS, 16), out.copy_to_host().reshape(THREADS, 16)


@cuda.jit(device=True)
def poison(space):
    for i in range(16):
        space[16 * cuda.threadIdx.x + i] = POISON
    cuda.syncthreads()


@cuda.jit(device=True)
def write_out(space, out):
    """Each thread writes what its neighbour copied."""
    cuda.syncthreads()
    other = 16 * ((cuda.threadIdx.x + 1) % THREADS)
    for i in range(16):
        out[other + i] = space[other + i]


def sizes(source, nbytes):
    """Return what is there after copies of `nbytes` to poisoned slots of 16."""
    return np.where(np.arange(16) < nbytes, source, POISON)


# ------------------------------------------------------------------------ whole copies


@cuda.jit
def copy_ca(source, out):
    """A thread's index decides which of the forms of .ca it executes."""
    space, thread = cuda.shared.array(SLOTS, np.uint8, 16), cuda.threadIdx.x
    poison(space)
    to, of = space[16 * thread :], source[16 * thread :]
    form = thread % 7
    if form == 0:
        ptx.cp_async_ca(to, of, 4)
    elif form == 1:
        ptx.cp_async_ca(to, of, 8)
    elif form == 2:
        ptx.cp_async_ca(to, of, 16)
    elif form == 3:
        ptx.cp_async_ca(to, of, 4, prefetch_size=64)
    elif form == 4:
        ptx.cp_async_ca(to, of, 4, prefetch_size=128)
    elif form == 5:
        ptx.cp_async_ca(to, of, 4, prefetch_size=256)
    else:
        ptx.cp_async_ca(to, of, 16, 16, 128)
    ptx.cp_async_wait_all()
    write_out(space, out)


@on_gpu
def test_ca_copies_4_8_and_16_bytes():
    source, out = run(copy_ca)
    widths = np.array([4, 8, 16, 4, 4, 4, 16])[np.arange(THREADS) % 7]
    np.testing.assert_array_equal(out, sizes(source, widths[:, None]))


@cuda.jit
def copy_cg(source, out):
    space, thread = cuda.shared.array(SLOTS, np.uint8, 16), cuda.threadIdx.x
    poison(space)
    to, of = space[16 * thread :], source[16 * thread :]
    form = thread % 5
    if form == 0:
        ptx.cp_async_cg(to, of)
    elif form == 1:
        ptx.cp_async_cg(to, of, prefetch_size=64)
    elif form == 2:
        ptx.cp_async_cg(to, of, prefetch_size=128)
    elif form == 3:
        ptx.cp_async_cg(to, of, prefetch_size=256)
    else:
        ptx.cp_async_cg(to, of, 16, 256)
    ptx.cp_async_wait_all()
    write_out(space, out)


@on_gpu
def test_cg_copies_16_bytes():
    source, out = run(copy_cg)
    np.testing.assert_array_equal(out, source)


# ---------------------------------------------------------------------- parts of copies


@cuda.jit
def fill_zeros(source, out, nbytes, cg):
    """Thread t copies t % (nbytes + 1) bytes and zeros behind them."""
    space, thread = cuda.shared.array(SLOTS, np.uint8, 16), cuda.threadIdx.x
    poison(space)
    to, of = space[16 * thread :], source[16 * thread :]
    count = thread % (nbytes + 1)
    if cg:
        ptx.cp_async_cg(to, of, count)
    elif nbytes == 4:
        ptx.cp_async_ca(to, of, 4, count)
    elif nbytes == 8:
        ptx.cp_async_ca(to, of, 8, count)
    else:
        ptx.cp_async_ca(to, of, 16, count)
    ptx.cp_async_wait_all()
    write_out(space, out)


@on_gpu
def test_src_size_fills_the_rest_with_zeros():
    for nbytes, cg in [(4, False), (8, False), (16, False), (16, True)]:
        source, out = run(fill_zeros, nbytes, cg, seed=nbytes)
        count = (np.arange(THREADS) % (nbytes + 1))[:, None]
        expected = np.where(np.arange(16) < count, source, 0)
        expected = np.where(np.arange(16) < nbytes, expected, POISON)
        np.testing.assert_array_equal(out, expected, f"{nbytes} bytes, cg={cg}")


@cuda.jit
def ignore_sources(source, out):
    """Every third thread writes zeros."""
    space, thread = cuda.shared.array(SLOTS, np.uint8, 16), cuda.threadIdx.x
    poison(space)
    to, of = space[16 * thread :], source[16 * thread :]
    ignore = thread % 3 == 0
    form = thread // 3 % 6
    if form == 0:
        ptx.cp_async_ca_ignore_src(to, of, 4, ignore)
    elif form == 1:
        ptx.cp_async_ca_ignore_src(to, of, 8, ignore)
    elif form == 2:
        ptx.cp_async_ca_ignore_src(to, of, 16, ignore)
    elif form == 3:
        ptx.cp_async_ca_ignore_src(to, of, 16, ignore, 128)
    elif form == 4:
        ptx.cp_async_cg_ignore_src(to, of, ignore)
    else:
        ptx.cp_async_cg_ignore_src(to, of, ignore, 256)
    ptx.cp_async_wait_all()
    write_out(space, out)


@on_gpu
def test_ignore_src_writes_zeros():
    source, out = run(ignore_sources)
    threads = np.arange(THREADS)
    widths = np.array([4, 8, 16, 16, 16, 16])[threads // 3 % 6][:, None]
    expected = sizes(np.where((threads % 3 == 0)[:, None], 0, source), widths)
    np.testing.assert_array_equal(out, expected)


@cuda.jit
def copy_if(source, out):
    """Every third thread does not copy, and keeps what it has."""
    space, thread = cuda.shared.array(SLOTS, np.uint8, 16), cuda.threadIdx.x
    poison(space)
    to, of = space[16 * thread :], source[16 * thread :]
    condition = thread % 3 != 0
    form = thread // 3 % 7
    if form == 0:
        ptx.cp_async_ca_conditional(to, of, 4, condition)
    elif form == 1:
        ptx.cp_async_ca_conditional(to, of, 8, condition)
    elif form == 2:
        ptx.cp_async_ca_conditional(to, of, 16, condition)
    elif form == 3:
        ptx.cp_async_ca_conditional(to, of, 16, condition, 16, 128)
    elif form == 4:
        ptx.cp_async_cg_conditional(to, of, condition)
    elif form == 5:
        ptx.cp_async_cg_conditional(to, of, condition, prefetch_size=64)
    else:
        ptx.cp_async_cg_conditional(to, of, condition, 16)
    ptx.cp_async_wait_all()
    write_out(space, out)


@on_gpu
def test_a_false_condition_copies_nothing_and_fills_nothing():
    source, out = run(copy_if)
    threads = np.arange(THREADS)
    widths = np.array([4, 8, 16, 16, 16, 16, 16])[threads // 3 % 7]
    expected = sizes(source, np.where(threads % 3 == 0, 0, widths)[:, None])
    np.testing.assert_array_equal(out, expected)


# ------------------------------------------------------------------------------- waits


@cuda.jit
def through_a_ring(source, out, rounds):
    """Each thread keeps 3 groups under way in a ring of 4 slots; its neighbour reads them."""
    ring = cuda.shared.array((4, WORDS), np.uint32, 16)
    thread = cuda.threadIdx.x
    for k in range(rounds + 3):
        if k < rounds:
            slot = ring[k % 4]
            ptx.cp_async_cg(slot[4 * thread :], source[k, 4 * thread :])
        ptx.cp_async_commit_group()  # empty at the end, so that the count stays
        if k >= 3:
            ptx.cp_async_wait_group(3)
            cuda.syncthreads()
            other = 4 * ((thread + 1) % THREADS)
            for i in range(4):
                out[k - 3, other + i] = ring[(k - 3) % 4, other + i]
            cuda.syncthreads()


@on_gpu
def test_groups_end_in_the_order_of_their_commits():
    rounds = 201
    source = np.random.default_rng(1).integers(0, 2**32, (rounds, WORDS), np.uint32)
    out = cuda.to_device(np.full_like(source, 77))
    through_a_ring[1, THREADS](cuda.to_device(source), out, rounds)
    np.testing.assert_array_equal(out.copy_to_host(), source)


@cuda.jit
def through_a_barrier(source, out, passed, rounds, noinc):
    """A warp copies, the other reads what it waited for on an mbarrier."""
    space = cuda.shared.array(128, np.uint32, 16)
    full, empty = tma.shared_barrier(), tma.shared_barrier()
    thread, every = cuda.threadIdx.x, 1
    if thread == 0:
        full.init(32)
        empty.init(32)
    cuda.syncthreads()
    for k in range(rounds):
        if thread < 32:
            every &= passes(empty, (k & 1) ^ 1)
            ptx.cp_async_cg(space[4 * thread :], source[k, 4 * thread :])
            if noinc:
                ptx.cp_async_mbarrier_arrive_noinc(full)
            else:
                ptx.cp_async_mbarrier_arrive(full)
                full.arrive()
        else:
            every &= passes(full, k & 1)
            mine = 4 * (thread - 32)
            for i in range(4):
                out[k, mine + i] = space[mine + i]
            empty.arrive()
    passed[thread] = every
    ptx.cp_async_wait_all()


@on_gpu
def test_an_mbarrier_tells_of_copies():
    rounds = 100
    source = np.random.default_rng(2).integers(0, 2**32, (rounds, 4 * 32), np.uint32)
    for noinc in (False, True):
        out = cuda.to_device(np.full_like(source, 77))
        passed = cuda.to_device(np.zeros(64, np.int32))
        through_a_barrier[1, 64](cuda.to_device(source), out, passed, rounds, noinc)
        np.testing.assert_array_equal(passed.copy_to_host(), np.ones(64))
        np.testing.assert_array_equal(out.copy_to_host(), source, f"noinc={noinc}")


@cuda.jit
def count_async_arrivals(source, seen):
    """One thread: what the two arrivals do to the pending count of a phase."""
    space, barrier = cuda.shared.array(16, np.uint8, 16), tma.shared_barrier()
    barrier.init(4)
    ptx.cp_async_cg(space, source)
    ptx.cp_async_mbarrier_arrive(barrier)
    ptx.cp_async_wait_all()
    for _ in range(PAUSES):  # until its arrival has been made
        cuda.nanosleep(20)
    seen[0] = ptx.mbarrier_pending_count(barrier.arrive())
    ptx.cp_async_mbarrier_arrive_noinc(barrier)
    for _ in range(PAUSES):
        cuda.nanosleep(20)
    seen[1] = ptx.mbarrier_pending_count(barrier.arrive())
    seen[2] = barrier.test_wait(0)
    barrier.arrive()
    seen[3] = barrier.test_wait(0)


@on_gpu
def test_noinc_counts_and_the_other_does_not():
    seen = cuda.to_device(np.full(4, 77, np.int32))
    count_async_arrivals[1, 1](cuda.to_device(np.zeros(16, np.uint8)), seen)
    np.testing.assert_array_equal(seen.copy_to_host(), [4, 2, 0, 1])


# -------------------------------------------------------------------- to the copy engine


@cuda.jit
def copy_and_store(source, out):
    """cp.async brings a chunk that a bulk store takes away."""
    chunk, thread = tma.shared_tile(CHUNK), cuda.threadIdx.x
    ptx.cp_async_cg(chunk.address + 16 * thread, source[4 * thread :])
    ptx.cp_async_wait_all()
    tma.fence_proxy_async()
    cuda.syncthreads()
    if thread == 0:
        ptx.cp_async_bulk_store(out, chunk, CHUNK.nbytes)
        ptx.cp_async_bulk_commit_group()
        ptx.cp_async_bulk_wait_group(0)


@on_gpu
def test_a_bulk_store_takes_what_was_copied():
    source = np.random.default_rng(3).integers(0, 2**32, WORDS, np.uint32)
    out = cuda.to_device(np.zeros_like(source))
    copy_and_store[1, THREADS](cuda.to_device(source), out)
    np.testing.assert_array_equal(out.copy_to_host(), source)
