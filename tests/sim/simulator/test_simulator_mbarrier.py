"""The mbarrier model, and the errors of its instructions."""

import copy

import numpy as np
import pytest
from numba import cuda

from numba_tma import simulator as sim
from numba_tma.simulator.cluster import mapa
from numba_tma.simulator.mbarrier import LIMIT, Mbarrier


def test_a_phase_completes_when_arrivals_and_bytes_are_in():
    barrier = Mbarrier(2)
    barrier.expect_tx(100)
    assert barrier.arrive() == 0
    assert barrier.arrive() == 0
    assert not barrier.has_completed(0) and not barrier.has_completed_parity(0)
    barrier.complete_tx(60)
    assert barrier.phase == 0
    barrier.complete_tx(40)
    assert (barrier.phase, barrier.pending, barrier.tx) == (1, 2, 0)
    assert barrier.has_completed(0) and barrier.has_completed_parity(0)
    assert not barrier.has_completed(1) and not barrier.has_completed_parity(1)


def test_bytes_may_come_before_they_are_expected():
    barrier = Mbarrier(1)
    barrier.complete_tx(64)
    assert barrier.tx == -64
    barrier.expect_tx(64)
    assert barrier.phase == 0
    barrier.arrive()
    assert barrier.phase == 1


def test_a_fresh_barrier_counts_as_past_parity_1():
    assert Mbarrier(1).has_completed_parity(1)
    assert not Mbarrier(1).has_completed_parity(0)


def test_arrive_with_a_count():
    barrier = Mbarrier(5)
    barrier.arrive(3)
    barrier.arrive(2)
    assert barrier.phase == 1


def test_it_can_be_copied_and_compared():
    barrier = Mbarrier(2)
    other = copy.copy(barrier)
    barrier.arrive()
    assert barrier != other
    other.arrive()
    assert barrier == other


@pytest.mark.parametrize("count", [0, -1, LIMIT + 1])
def test_a_count_out_of_range(count):
    with pytest.raises(sim.BarrierMisuse, match=f"count is {count}; it must be 1 to 1048575"):
        Mbarrier(count)


def test_limits_of_the_counts():
    barrier = Mbarrier(LIMIT)
    barrier.arrive(LIMIT)
    assert barrier.phase == 1
    with pytest.raises(sim.BarrierMisuse, match="count 0; it must be 1 to"):
        barrier.arrive(0)
    barrier.expect_tx(LIMIT)
    with pytest.raises(sim.BarrierMisuse, match="tx-count would become 1048576"):
        barrier.expect_tx(1)
    barrier.complete_tx(2 * LIMIT)
    with pytest.raises(sim.BarrierMisuse, match="tx-count would become -1048576"):
        barrier.complete_tx(1)
    with pytest.raises(sim.BarrierMisuse, match="must not be negative"):
        barrier.expect_tx(-1)


def test_too_many_arrivals():
    barrier = Mbarrier(1)
    barrier.expect_tx(1)
    barrier.arrive()
    with pytest.raises(sim.BarrierMisuse, match="0 of 1 arrivals are pending"):
        barrier.arrive()


def test_an_old_token():
    barrier = Mbarrier(1)
    for _ in range(2):
        barrier.arrive()
    assert barrier.has_completed(1) and not barrier.has_completed(2)
    for token in (0, 3):
        with pytest.raises(sim.BarrierMisuse, match="only the current phase and the one before"):
            barrier.has_completed(token)


def test_a_parity_is_0_or_1():
    with pytest.raises(sim.BarrierMisuse, match="parity is 2"):
        Mbarrier(1).has_completed_parity(2)


def test_who_drops_is_not_expected_again():
    barrier = Mbarrier(3)
    barrier.drop(2)
    assert (barrier.count, barrier.pending) == (1, 3)
    barrier.arrive(2)
    barrier.arrive()
    assert (barrier.phase, barrier.pending) == (1, 1)
    with pytest.raises(sim.BarrierMisuse, match="arrive_drop with count 2; it must be 1 to 1"):
        barrier.drop(2)


def test_no_complete_may_not_complete():
    barrier = Mbarrier(2)
    barrier.arrive_no_complete(1)
    with pytest.raises(sim.BarrierMisuse, match="count 1 in phase 0, which that completes"):
        barrier.arrive_no_complete(1)
    barrier.expect_tx(8)  # which keeps the phase open
    barrier.arrive_no_complete(1)
    assert barrier.phase == 0
    barrier.complete_tx(8)
    assert barrier.phase == 1


def test_a_held_phase_waits_for_one_arrival_more():
    barrier = Mbarrier(LIMIT)
    with pytest.raises(sim.BarrierMisuse, match="more than 1048575 arrivals"):
        barrier.hold()
    barrier.arrive(LIMIT - 1)
    barrier.hold()
    barrier.arrive()
    assert barrier.phase == 0
    barrier.arrive()
    assert (barrier.phase, barrier.pending) == (1, LIMIT)


# The instructions, in kernels of one thread each unless it takes two.


def one_thread(body):
    cuda.jit(lambda: body(sim.allocate_shared("barrier", 64, 64)))[1, 1]()


def test_init_arrive_wait_inval_and_again():
    def body(barrier):
        sim.mbarrier_init(barrier, 1)
        for phase in range(3):
            token = sim.mbarrier_arrive(barrier)
            assert sim.mbarrier_try_wait(barrier, token)
            assert sim.mbarrier_test_wait(barrier, token)
            assert sim.mbarrier_try_wait_parity(barrier, phase & 1)
            assert not sim.mbarrier_test_wait_parity(barrier, phase & 1 ^ 1)
        sim.mbarrier_inval(barrier)
        sim.mbarrier_init(barrier, 2)
        sim.mbarrier_arrive(barrier, 2)
        assert sim.mbarrier_try_wait_parity(barrier, 0)

    one_thread(body)


def test_a_state_tells_the_pending_arrivals():
    def body(barrier):
        sim.mbarrier_init(barrier, LIMIT)
        states = [sim.mbarrier_arrive(barrier), sim.mbarrier_arrive(barrier, 5)]
        states.append(sim.mbarrier_arrive_no_complete(barrier, 3))
        states.append(sim.mbarrier_arrive_drop(barrier, LIMIT - 11))
        states.append(sim.mbarrier_arrive_drop_no_complete(barrier, 1))
        states.append(sim.mbarrier_arrive_drop_expect_tx(barrier, 16))
        assert not sim.mbarrier_test_wait(barrier, states[-1])
        sim.mbarrier_complete_tx(barrier, 16)
        assert all(sim.mbarrier_test_wait(barrier, state) for state in states)
        states.append(sim.mbarrier_arrive(barrier))
        pending = [sim.mbarrier_pending_count(state) for state in states]
        assert pending == [LIMIT, LIMIT - 1, LIMIT - 6, LIMIT - 9, 2, 1, 9]

    one_thread(body)


def test_remote_forms_reach_the_own_block():
    def body(barrier):
        sim.mbarrier_init(barrier, 8)
        for remote in (barrier, mapa(barrier, 0)):
            sim.mbarrier_arrive_remote(remote)
            sim.mbarrier_arrive_drop_remote(remote)
            sim.mbarrier_arrive_expect_tx_remote(remote, 100)
            sim.mbarrier_arrive_drop_expect_tx_remote(remote, 10)
            sim.mbarrier_expect_tx_remote(remote, 1)
        assert not sim.mbarrier_test_wait_parity(barrier, 0)
        sim.mbarrier_complete_tx_remote(barrier, 222)
        assert sim.mbarrier_test_wait_parity(barrier, 0)
        assert sim.mbarrier_pending_count(sim.mbarrier_arrive(barrier)) == 4

    one_thread(body)


@pytest.mark.parametrize("arrival", ["release.cluster", "relaxed.cluster"])
@pytest.mark.parametrize("wait", ["acquire.cluster", "relaxed.cluster"])
@pytest.mark.parametrize("fences", [(), (0,), (1,), (0, 1)])
def test_memory_is_ordered_by_semantics_or_fences(arrival, wait, fences):
    """Thread 0 reads what was loaded and tells thread 1, which loads over it."""

    @cuda.jit
    def kernel(source):
        tile = sim.allocate_shared("tile", 16, 16)
        full, read = (sim.allocate_shared(name, 8, 8) for name in ("full", "read"))
        thread = sim.lane_id()
        if thread == 0:
            sim.mbarrier_init(full, 1)
            sim.mbarrier_init(read, 1)
            sim.fence_mbarrier_init()
        cuda.syncthreads()
        if thread == 1:
            sim.mbarrier_arrive_expect_tx(full, 16)
            sim.cp_async_bulk_load(tile, source, full)
        while not sim.mbarrier_try_wait_parity(full, 0):
            pass
        if thread == 0:
            sim.shared_read(tile, np.dtype(np.int32))
            if 0 in fences:
                sim.fence_acq_rel()
            sim.mbarrier_arrive(read, None, arrival)
        else:
            while not sim.mbarrier_try_wait_parity(read, 0, wait):
                pass
            if 1 in fences:
                sim.fence_acq_rel()
            sim.mbarrier_arrive_expect_tx(full, 16)
            sim.cp_async_bulk_load(tile, source, full)
            while not sim.mbarrier_try_wait_parity(full, 1):
                pass

    ordered = (arrival.startswith("release") or 0 in fences) and (
        wait.startswith("acquire") or 1 in fences
    )
    for seed in range(5):
        sim.seed(seed)
        if ordered:
            kernel[1, 2](np.zeros(4, np.int32))
        else:
            with pytest.raises(sim.EarlyOverwrite, match="nothing orders that read"):
                kernel[1, 2](np.zeros(4, np.int32))


def test_what_a_relaxed_wait_has_seen_counts_as_waited_for():
    """But its bytes are not to be read yet."""

    def body(barrier, read):
        tile = sim.allocate_shared("tile", 16, 16)
        sim.mbarrier_init(barrier, 1)
        sim.fence_mbarrier_init()
        sim.mbarrier_arrive_expect_tx(barrier, 16)
        sim.cp_async_bulk_load(tile, np.zeros(16, np.uint8), barrier)
        while not sim.mbarrier_try_wait_parity(barrier, 0, "relaxed.cta"):
            pass
        if read:
            sim.shared_read(tile, np.dtype(np.int32))

    one_thread(lambda barrier: body(barrier, False))
    with pytest.raises(sim.EarlyRead, match="wait for that phase first"):
        one_thread(lambda barrier: body(barrier, True))


def credited_twice(barrier):
    sim.mbarrier_init(barrier, 1)
    sim.mbarrier_expect_tx(barrier, 16)
    sim.mbarrier_complete_tx(barrier, 32)
    sim.mbarrier_arrive(barrier)


def test_more_bytes_credited_than_expected():
    with pytest.raises(sim.WrongByteCount, match="16 bytes more than the phase expects"):
        one_thread(credited_twice)


def negative_credit(barrier):
    sim.mbarrier_init(barrier, 1)
    sim.mbarrier_complete_tx(barrier, -16)


def last_without_complete(barrier):
    sim.mbarrier_init(barrier, 1)
    sim.mbarrier_arrive_no_complete(barrier, 1)


def init_twice(barrier):
    sim.mbarrier_init(barrier, 1)
    sim.mbarrier_init(barrier, 1)


def use_after_inval(barrier):
    sim.mbarrier_init(barrier, 1)
    sim.mbarrier_inval(barrier)
    sim.mbarrier_arrive(barrier)


def token_of_another(barrier):
    for address in (barrier, barrier + 8):
        sim.mbarrier_init(address, 1)
    sim.mbarrier_try_wait(barrier + 8, sim.mbarrier_arrive(barrier))


def stale_token(barrier):
    sim.mbarrier_init(barrier, 1)
    token = sim.mbarrier_arrive(barrier)
    sim.mbarrier_arrive(barrier)
    sim.mbarrier_try_wait(barrier, token)


def labelled(barrier):
    sim.label(barrier, "full[3] of Pipe")
    sim.mbarrier_arrive(barrier)


def inval_while_loading(barrier):
    sim.mbarrier_init(barrier, 1)
    sim.fence_mbarrier_init()
    sim.mbarrier_expect_tx(barrier, 1024)
    target = sim.allocate_shared("x", 1024, 16)
    # One of so many is still under way at once, whatever the seed.
    for i in range(64):
        sim.cp_async_bulk_load(target + 16 * i, np.zeros(16, np.uint8), barrier)
    sim.mbarrier_inval(barrier)


MISUSES = {
    "negative credit": (negative_credit, "complete_tx of -16 bytes"),
    "last without complete": (last_without_complete, "mbarrier at 1024: arrive with noComplete"),
    "before init": (lambda b: sim.mbarrier_arrive(b), "there is no mbarrier here yet"),
    "labelled": (labelled, "full[3] of Pipe: there is no mbarrier here yet"),
    "misaligned use": (lambda b: sim.mbarrier_arrive(b + 4), "multiple of 8"),
    "misaligned init": (lambda b: sim.mbarrier_init(b + 4, 1), "multiple of 8"),
    "count 0": (lambda b: sim.mbarrier_init(b, 0), "mbarrier at 1024: arrival count is 0"),
    "init twice": (init_twice, "mbarrier_init of a live mbarrier"),
    "after inval": (use_after_inval, "used after its mbarrier_inval"),
    "token of another": (token_of_another, "was not returned by this barrier"),
    "stale token": (stale_token, "mbarrier at 1024: the token is of phase 0, the barrier is in"),
    "inval while loading": (inval_while_loading, "while loads that complete on it run"),
}


@pytest.mark.parametrize("name", MISUSES)
def test_misuse(name):
    body, text = MISUSES[name]
    with pytest.raises(sim.BarrierMisuse) as caught:
        one_thread(body)
    assert text in str(caught.value)


def test_init_outside_shared_memory():
    with pytest.raises(sim.BadOperand, match="not in any allocation"):
        one_thread(lambda b: sim.mbarrier_init(b + 64, 1))


def test_inval_while_another_thread_waits():
    @cuda.jit
    def kernel():
        barrier = sim.allocate_shared("barrier", 8, 8)
        if sim.lane_id() == 0:
            sim.mbarrier_init(barrier, 1)
        cuda.syncthreads()
        if sim.lane_id() == 1:
            sim.mbarrier_try_wait_parity(barrier, 0)
        else:
            for _ in range(100):
                cuda.nanosleep(10)
            sim.mbarrier_inval(barrier)

    with pytest.raises(sim.BarrierMisuse, match="mbarrier_inval while thread \\(1, 0, 0\\)"):
        kernel[1, 2]()


@pytest.mark.parametrize("first", [0, 1])
def test_a_waiter_that_is_lapped_is_explained(first):
    """Two phases go by before a thread looks: the parity it waits for is wrong again.

    `first` phases are over before.
    """

    @cuda.jit
    def kernel():
        barrier = sim.allocate_shared("barrier", 8, 8)
        if sim.lane_id() == 0:
            sim.mbarrier_init(barrier, 1)
            for _ in range(first):
                sim.mbarrier_arrive(barrier)
        cuda.syncthreads()
        if sim.lane_id() == 1:
            while not sim.mbarrier_try_wait_parity(barrier, first):
                pass
        else:
            for _ in range(100):
                cuda.nanosleep(10)
            sim.mbarrier_arrive(barrier)
            sim.mbarrier_arrive(barrier)

    texts = []
    for seed in range(20):
        sim.seed(seed)
        try:
            kernel[1, 2]()
        except sim.Deadlock as error:
            texts.append(str(error))
    assert 0 < len(texts) < 20
    lapped = f"since phase {first}, but 2 phases went by before it looked again"
    assert any(lapped in text for text in texts)
