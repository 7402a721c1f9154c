"""Every mbarrier instruction on the hardware: its counts and its state."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from tests.gpu.worker import on_gpu

#: More than a wait for what has happened already can take; a mistake ends in a False.
TRIES = 20_000


def poisoned(shape, dtype=np.int32):
    return cuda.to_device(np.full(shape, 77, dtype))


@cuda.jit(device=True)
def passes(barrier, parity):
    for _ in range(TRIES):
        if ptx.mbarrier_try_wait_parity(barrier, parity):
            return 1
    return 0


@cuda.jit
def count_arrivals(seen):
    """One thread; phases of 6 arrivals."""
    barrier = tma.shared_barrier()
    barrier.init(6)
    # Phase 0: by one, by number, and by one that is not the last.
    seen[0] = ptx.mbarrier_pending_count(barrier.arrive())
    seen[1] = ptx.mbarrier_pending_count(barrier.arrive(2))
    seen[2] = ptx.mbarrier_pending_count(ptx.mbarrier_arrive_no_complete(barrier, 2))
    seen[3] = barrier.test_wait(0)
    state = ptx.mbarrier_arrive(barrier)
    seen[4] = barrier.pending_count(state)
    seen[5] = barrier.test_wait(0)
    # Phase 1: with every semantics.
    seen[6] = ptx.mbarrier_pending_count(ptx.mbarrier_arrive(barrier, semantics="release.cta"))
    seen[7] = ptx.mbarrier_pending_count(ptx.mbarrier_arrive(barrier, semantics="release.cluster"))
    seen[8] = ptx.mbarrier_pending_count(ptx.mbarrier_arrive(barrier, semantics="relaxed.cta"))
    state = ptx.mbarrier_arrive(barrier, semantics="relaxed.cluster")
    seen[9] = ptx.mbarrier_pending_count(state)
    seen[10] = barrier.test_wait(1)
    state = ptx.mbarrier_arrive(barrier, 2, semantics="release.cluster")
    seen[11] = ptx.mbarrier_pending_count(state)
    seen[12] = barrier.test_wait(1)


@on_gpu
def test_arrivals_are_counted_and_told():
    seen = poisoned(13)
    count_arrivals[1, 1](seen)
    expected = [6, 5, 3, 0, 1, 1, 6, 5, 4, 3, 0, 2, 1]
    np.testing.assert_array_equal(seen.copy_to_host(), expected)


@cuda.jit
def drop_arrivals(seen):
    """Of 16 arrivals, 13 leave in the first phase, one after the other."""
    barrier = tma.shared_barrier()
    barrier.init(16)
    seen[0] = ptx.mbarrier_pending_count(barrier.arrive_drop())
    seen[1] = ptx.mbarrier_pending_count(barrier.arrive_drop(2))
    seen[2] = ptx.mbarrier_pending_count(ptx.mbarrier_arrive_drop_no_complete(barrier, 1))
    state = ptx.mbarrier_arrive_drop(barrier, semantics="release.cta")
    seen[3] = ptx.mbarrier_pending_count(state)
    state = ptx.mbarrier_arrive_drop(barrier, semantics="release.cluster")
    seen[4] = ptx.mbarrier_pending_count(state)
    state = ptx.mbarrier_arrive_drop(barrier, semantics="relaxed.cta")
    seen[5] = ptx.mbarrier_pending_count(state)
    state = ptx.mbarrier_arrive_drop(barrier, semantics="relaxed.cluster")
    seen[6] = ptx.mbarrier_pending_count(state)
    state = ptx.mbarrier_arrive_drop_expect_tx(barrier, 16)
    seen[7] = ptx.mbarrier_pending_count(state)
    state = ptx.mbarrier_arrive_drop_expect_tx(barrier, 16, semantics="release.cta")
    seen[8] = ptx.mbarrier_pending_count(state)
    state = ptx.mbarrier_arrive_drop_expect_tx(barrier, 16, semantics="release.cluster")
    seen[9] = ptx.mbarrier_pending_count(state)
    state = ptx.mbarrier_arrive_drop_expect_tx(barrier, 16, semantics="relaxed.cta")
    seen[10] = ptx.mbarrier_pending_count(state)
    state = ptx.mbarrier_arrive_drop_expect_tx(barrier, 16, semantics="relaxed.cluster")
    seen[11] = ptx.mbarrier_pending_count(state)
    barrier.arrive(3)
    seen[12] = barrier.test_wait(0)  # 80 bytes are missing
    barrier.complete_tx(64)
    seen[13] = barrier.test_wait(0)
    barrier.complete_tx(16)
    seen[14] = barrier.test_wait(0)
    # The next phases expect 3.
    for phase in range(2):
        seen[15 + 3 * phase] = ptx.mbarrier_pending_count(barrier.arrive(2))
        seen[16 + 3 * phase] = barrier.test_wait(1 - phase)
        barrier.arrive()
        seen[17 + 3 * phase] = barrier.test_wait(1 - phase)


@on_gpu
def test_who_drops_is_not_expected_again():
    seen = poisoned(21)
    drop_arrivals[1, 1](seen)
    counts = [16, 15, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4]
    expected = [*counts, 0, 0, 1, 3, 0, 1, 3, 0, 1]
    np.testing.assert_array_equal(seen.copy_to_host(), expected)


@cuda.jit
def count_bytes(seen):
    """One thread; phases of 2 arrivals with bytes that no copy brings."""
    barrier = tma.shared_barrier()
    barrier.init(2)
    ptx.mbarrier_arrive_expect_tx(barrier, 100)
    ptx.mbarrier_arrive_expect_tx(barrier, 10, semantics="release.cta")
    seen[0] = barrier.test_wait(0)
    ptx.mbarrier_complete_tx(barrier, 109)
    seen[1] = barrier.test_wait(0)
    ptx.mbarrier_complete_tx(barrier, 1, semantics="relaxed.cta")
    seen[2] = barrier.test_wait(0)
    # Bytes that come off before they are expected.
    ptx.mbarrier_complete_tx(barrier, 48, semantics="relaxed.cluster")
    ptx.mbarrier_expect_tx(barrier, 16)
    ptx.mbarrier_expect_tx(barrier, 16, semantics="relaxed.cta")
    ptx.mbarrier_expect_tx(barrier, 15, semantics="relaxed.cluster")
    ptx.mbarrier_arrive(barrier)
    seen[3] = barrier.test_wait(1)
    ptx.mbarrier_arrive_expect_tx(barrier, 1, semantics="release.cluster")
    seen[4] = barrier.test_wait(1)
    # The two relaxed ones.
    ptx.mbarrier_arrive_expect_tx(barrier, 3, semantics="relaxed.cta")
    ptx.mbarrier_arrive_expect_tx(barrier, 4, semantics="relaxed.cluster")
    seen[5] = barrier.test_wait(0)
    ptx.mbarrier_complete_tx(barrier, 7)
    seen[6] = barrier.test_wait(0)


@on_gpu
def test_bytes_are_expected_and_credited():
    seen = poisoned(7)
    count_bytes[1, 1](seen)
    np.testing.assert_array_equal(seen.copy_to_host(), [0, 0, 1, 0, 1, 0, 1])


@cuda.jit
def ask_all_ways(seen):
    """One thread asks in every form whether a phase is over, before and after it is."""
    barrier = tma.shared_barrier()
    barrier.init(2)
    state = barrier.arrive()
    for after in range(2):
        seen[after, 0] = ptx.mbarrier_test_wait(barrier, state)
        seen[after, 1] = ptx.mbarrier_test_wait(barrier, state, semantics="acquire.cta")
        seen[after, 2] = ptx.mbarrier_test_wait(barrier, state, semantics="acquire.cluster")
        seen[after, 3] = ptx.mbarrier_test_wait(barrier, state, semantics="relaxed.cta")
        seen[after, 4] = ptx.mbarrier_test_wait(barrier, state, semantics="relaxed.cluster")
        seen[after, 5] = ptx.mbarrier_test_wait_parity(barrier, 0)
        seen[after, 6] = ptx.mbarrier_test_wait_parity(barrier, 0, semantics="acquire.cta")
        seen[after, 7] = ptx.mbarrier_test_wait_parity(barrier, 0, semantics="acquire.cluster")
        seen[after, 8] = ptx.mbarrier_test_wait_parity(barrier, 0, semantics="relaxed.cta")
        seen[after, 9] = ptx.mbarrier_test_wait_parity(barrier, 0, semantics="relaxed.cluster")
        seen[after, 10] = ptx.mbarrier_try_wait(barrier, state)
        seen[after, 11] = ptx.mbarrier_try_wait(barrier, state, semantics="acquire.cta")
        seen[after, 12] = ptx.mbarrier_try_wait(barrier, state, semantics="acquire.cluster")
        seen[after, 13] = ptx.mbarrier_try_wait(barrier, state, semantics="relaxed.cta")
        seen[after, 14] = ptx.mbarrier_try_wait(barrier, state, semantics="relaxed.cluster")
        seen[after, 15] = ptx.mbarrier_try_wait(barrier, state, suspend_hint=500)
        seen[after, 16] = ptx.mbarrier_try_wait(barrier, state, 500, "acquire.cluster")
        seen[after, 17] = ptx.mbarrier_try_wait_parity(barrier, 0)
        seen[after, 18] = ptx.mbarrier_try_wait_parity(barrier, 0, semantics="acquire.cta")
        seen[after, 19] = ptx.mbarrier_try_wait_parity(barrier, 0, semantics="acquire.cluster")
        seen[after, 20] = ptx.mbarrier_try_wait_parity(barrier, 0, semantics="relaxed.cta")
        seen[after, 21] = ptx.mbarrier_try_wait_parity(barrier, 0, semantics="relaxed.cluster")
        seen[after, 22] = ptx.mbarrier_try_wait_parity(barrier, 0, suspend_hint=500)
        seen[after, 23] = ptx.mbarrier_try_wait_parity(barrier, 0, 500, "acquire.cluster")
        if after == 0:
            barrier.arrive()


@on_gpu
def test_every_wait_gives_the_same_answer():
    seen = poisoned((2, 24))
    ask_all_ways[1, 1](seen)
    np.testing.assert_array_equal(seen.copy_to_host(), [[0] * 24, [1] * 24])


@cuda.jit
def arrive_from_afar(seen):
    """One thread at its own barrier, by the address that is one of the cluster as well."""
    barrier = tma.shared_barrier()
    barrier.init(25)
    tma.fence_mbarrier_init()
    remote = barrier.address
    ptx.mbarrier_arrive_remote(remote)
    ptx.mbarrier_arrive_remote(remote, 2)
    ptx.mbarrier_arrive_remote(remote, semantics="release.cta")
    ptx.mbarrier_arrive_remote(remote, semantics="release.cluster")
    ptx.mbarrier_arrive_remote(remote, semantics="relaxed.cta")
    ptx.mbarrier_arrive_remote(remote, semantics="relaxed.cluster")
    ptx.mbarrier_arrive_expect_tx_remote(remote, 16)
    ptx.mbarrier_arrive_expect_tx_remote(remote, 16, semantics="release.cta")
    ptx.mbarrier_arrive_expect_tx_remote(remote, 16, semantics="release.cluster")
    ptx.mbarrier_arrive_expect_tx_remote(remote, 16, semantics="relaxed.cta")
    ptx.mbarrier_arrive_expect_tx_remote(remote, 16, semantics="relaxed.cluster")
    ptx.mbarrier_arrive_drop_remote(remote)
    ptx.mbarrier_arrive_drop_remote(remote, 2)
    ptx.mbarrier_arrive_drop_remote(remote, semantics="release.cta")
    ptx.mbarrier_arrive_drop_remote(remote, semantics="release.cluster")
    ptx.mbarrier_arrive_drop_remote(remote, semantics="relaxed.cta")
    ptx.mbarrier_arrive_drop_remote(remote, semantics="relaxed.cluster")
    ptx.mbarrier_arrive_drop_expect_tx_remote(remote, 16)
    ptx.mbarrier_arrive_drop_expect_tx_remote(remote, 16, semantics="release.cta")
    ptx.mbarrier_arrive_drop_expect_tx_remote(remote, 16, semantics="release.cluster")
    ptx.mbarrier_arrive_drop_expect_tx_remote(remote, 16, semantics="relaxed.cta")
    ptx.mbarrier_arrive_drop_expect_tx_remote(remote, 16, semantics="relaxed.cluster")
    ptx.mbarrier_expect_tx_remote(remote, 16)
    ptx.mbarrier_expect_tx_remote(remote, 16, semantics="relaxed.cta")
    seen[0] = ptx.mbarrier_pending_count(barrier.arrive())  # the last of 25
    seen[1] = barrier.test_wait(0)
    ptx.mbarrier_complete_tx_remote(remote, 150)
    ptx.mbarrier_complete_tx_remote(remote, 41, semantics="relaxed.cta")
    seen[2] = barrier.test_wait(0)
    ptx.mbarrier_complete_tx_remote(remote, 1)
    seen[3] = passes(barrier, 0)
    seen[4] = ptx.mbarrier_pending_count(barrier.arrive())  # 12 have dropped


@on_gpu
def test_remote_forms_reach_the_own_block():
    seen = poisoned(5)
    arrive_from_afar[1, 1](seen)
    np.testing.assert_array_equal(seen.copy_to_host(), [1, 0, 0, 1, 13])


CHUNK = tma.Tile(64, "u32")


@cuda.jit
def load_what_there_is(source, parts, out, passed):
    """A stage of 4 parts of which `parts` are loaded; the others are credited."""
    chunk, barrier = tma.shared_tile(CHUNK), tma.shared_barrier()
    thread = cuda.threadIdx.x
    chunk[thread] = 0
    if thread == 0:
        barrier.init(1)
    tma.fence_proxy_async()
    cuda.syncthreads()
    if thread == 0:
        barrier.arrive_expect_tx(CHUNK.nbytes)
        for part in range(4):
            if part < parts:
                ptx.cp_async_bulk_load(chunk.address + 64 * part, source[16 * part :], 64, barrier)
            else:
                barrier.complete_tx(64)
    passed[thread] = passes(barrier, 0)
    out[thread] = chunk[thread]


@on_gpu
def case_of_credited_parts(parts):
    source = np.random.default_rng(parts).integers(1, 2**32, 64, np.uint32)
    out, passed = poisoned(64, np.uint32), poisoned(64)
    load_what_there_is[1, 64](cuda.to_device(source), parts, out, passed)
    np.testing.assert_array_equal(passed.copy_to_host(), np.ones(64))
    expected = np.where(np.arange(64) < 16 * parts, source, 0)
    np.testing.assert_array_equal(out.copy_to_host(), expected)


@pytest.mark.parametrize("parts", range(5))
def test_a_skipped_load_is_credited(parts):
    case_of_credited_parts(parts)


@cuda.jit
def leave(lengths, counts, passed):
    """Each thread takes part in so many phases; what it adds before is seen after the wait.

    A thread that leaves does not wait: nothing would keep the barrier from going two phases on.
    """
    barrier, thread = tma.shared_barrier(), cuda.threadIdx.x
    sums = cuda.shared.array(64, np.int32)
    sums[thread] = 0
    if thread == 0:
        barrier.init(cuda.blockDim.x)
    cuda.syncthreads()
    every = 1
    for k in range(lengths[thread]):
        cuda.atomic.add(sums, k, 1)
        if thread > 0 and k == lengths[thread] - 1:
            barrier.arrive_drop()
        else:
            barrier.arrive()
            every &= passes(barrier, k & 1)
            counts[k, thread] = sums[k]
    passed[thread] = every


@on_gpu
def test_threads_leave_and_the_others_go_on():
    lengths = np.random.default_rng(0).integers(1, 64, 64).astype(np.int32)
    lengths[0] = 64  # to the end: the barrier never expects nobody
    counts, passed = poisoned((64, 64)), poisoned(64)
    leave[1, 64](cuda.to_device(lengths), counts, passed)
    np.testing.assert_array_equal(passed.copy_to_host(), np.ones(64))
    phases = np.arange(64)[:, None]
    waits = (lengths - 1 > phases) | (np.arange(64) == 0)
    expected = np.where(waits, (lengths > phases).sum(1)[:, None], 77)
    np.testing.assert_array_equal(counts.copy_to_host(), expected)
