"""Threads taking turns: determinism, deadlocks, errors on their way to the host."""

import random
import signal
import threading
import time
import traceback

import numpy as np
import pytest
from numba import cuda

from numba_tma import simulator as sim
from numba_tma.simulator.thread import current


@cuda.jit
def shuffled_order(order):
    """Write down in which order threads pass."""
    for _ in range(3):
        cuda.nanosleep(1)
        place = cuda.atomic.add(order, 0, 1)
        order[1 + place] = cuda.threadIdx.x


def order_for(seed):
    sim.seed(seed)
    order = np.zeros(1 + 3 * 40, np.int64)
    shuffled_order[1, 40](order)
    return tuple(order)


def test_a_seed_fixes_the_order_and_seeds_differ():
    assert order_for(5) == order_for(5)
    assert len({order_for(seed) for seed in range(10)}) == 10


def test_events_are_the_same_for_a_seed():
    @cuda.jit
    def kernel(x):
        target = sim.allocate_shared("x", 1024, 128)
        barrier = sim.allocate_shared("barrier", 8, 8)
        if cuda.threadIdx.x == 0:
            sim.mbarrier_init(barrier, 1)
            sim.fence_mbarrier_init()
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            sim.mbarrier_arrive_expect_tx(barrier, 1024)
            for i in range(8):
                sim.cp_async_bulk_load(target + 128 * i, x[128 * i : 128 * (i + 1)], barrier)
        while not sim.mbarrier_try_wait_parity(barrier, 0):
            pass

    def events(seed):
        sim.seed(seed)
        with sim.record() as trace:
            kernel[3, 33](np.zeros(1024, np.uint8))
        return trace.events

    assert events(1) == events(1)
    assert len({tuple(events(seed)) for seed in range(10)}) == 10


@cuda.jit
def numbered(out):
    i = cuda.grid(1)
    cuda.syncthreads()
    out[i] = i + 1


def test_launches_of_many_host_threads_wait_for_each_other():
    wrong = []

    def work(worker):
        try:
            for _ in range(6):
                blocks, threads = 1 + worker % 3, 8 + worker
                out = cuda.to_device(np.zeros(64, np.int64))
                numbered[blocks, threads](out)
                num = blocks * threads
                expected = np.where(np.arange(64) < num, np.arange(64) + 1, 0)
                np.testing.assert_array_equal(out.copy_to_host(), expected)
        except BaseException as error:
            wrong.append(error)

    workers = [threading.Thread(target=work, args=(worker,)) for worker in range(14)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


def test_a_kernel_keeps_each_configuration():
    one, two = numbered[1, 8], numbered[2, 16]
    out = np.zeros(32, np.int64)
    one(out)
    assert np.count_nonzero(out) == 8
    two(out)
    assert np.count_nonzero(out) == 32


def test_debug_raises_on_division_by_zero_in_its_kernel_alone():
    def kernel(x):
        cuda.syncthreads()
        x[cuda.threadIdx.x] = np.float32(1) / x[cuda.threadIdx.x]

    before = np.geterr()
    with pytest.raises(FloatingPointError, match="divide by zero"):
        cuda.jit(debug=True, opt=False)(kernel)[1, 8](np.zeros(8, np.float32))
    assert np.geterr() == before
    with pytest.warns(RuntimeWarning, match="divide by zero"):
        cuda.jit(kernel)[1, 8](np.zeros(8, np.float32))


def test_what_a_kernel_lets_numpy_ignore_is_its_own_threads():
    @cuda.jit
    def kernel(x):
        if cuda.threadIdx.x == 0:
            np.seterr(divide="ignore")
        cuda.syncthreads()
        seen.append((cuda.threadIdx.x, np.geterr()["divide"]))

    seen = []
    kernel[1, 2](np.zeros(1))
    assert sorted(seen) == [(0, "ignore"), (1, "warn")]
    assert np.geterr()["divide"] == "warn"


def test_global_random_states_are_left_alone():
    before = random.getstate(), np.random.get_state()[1].tolist()
    order_for(3)
    assert before == (random.getstate(), np.random.get_state()[1].tolist())


def test_one_thread_runs_at_a_time():
    @cuda.jit
    def kernel(most):
        for _ in range(20):
            most[0] = max(most[0], 1 + inside.pop() if inside else 1)
            inside.append(0)
            time.sleep(0.0002)
            inside.pop()
            cuda.nanosleep(1)

    inside = []
    most = np.zeros(1)
    kernel[1, 8](most)
    assert most[0] == 1


# Errors.


class Strange(Exception):
    def __init__(self, one, two):
        super().__init__(one, two)


@cuda.jit
def failing(kind):
    if cuda.threadIdx.x == 2 and cuda.blockIdx.x == 1:
        if kind == "key":
            {}["missing"]
        if kind == "empty":
            raise ValueError
        if kind == "strange":
            raise Strange("a", "b")
        raise ValueError("what was wrong")  # the line that the traceback shows
    cuda.syncthreads()


def test_an_error_names_the_thread_and_keeps_its_type_and_traceback():
    with pytest.raises(ValueError) as caught:
        failing[3, (4, 1)]("value")
    assert str(caught.value) == "tid=[2, 0, 0] ctaid=[1, 0, 0]: what was wrong"
    shown = "".join(traceback.format_tb(caught.value.__traceback__))
    assert "the line that the traceback shows" in shown


@pytest.mark.parametrize("kind, error", [("key", KeyError), ("empty", ValueError)])
def test_errors_of_other_shapes(kind, error):
    with pytest.raises(error) as caught:
        failing[3, 8](kind)
    assert "tid=[2, 0, 0] ctaid=[1, 0, 0]" in str(caught.value)


def test_an_error_with_arguments_of_its_own_gets_a_note():
    with pytest.raises(Strange) as caught:
        failing[3, 8]("strange")
    assert caught.value.args == ("a", "b")
    assert caught.value.__notes__ == ["tid=[2, 0, 0] ctaid=[1, 0, 0]"]


def test_no_thread_is_left_after_an_error_wherever_the_others_are():
    @cuda.jit
    def kernel(cleaned):
        barrier = sim.allocate_shared("barrier", 8, 8)
        x = cuda.threadIdx.x
        if x == 0:
            sim.mbarrier_init(barrier, 1)
        cuda.syncthreads()
        try:
            if x < 32:
                sim.syncwarp(0xFFFFFFFF if x != 7 else 1 << 7)
                if x == 7:
                    raise ZeroDivisionError
            elif x < 64:
                while not sim.mbarrier_try_wait_parity(barrier, 0):
                    pass
            elif x < 96:
                while not sim.mbarrier_test_wait_parity(barrier, 0):
                    pass
            elif x < 128:
                sim.barrier_sync(3, 64)
            else:
                cuda.syncthreads()
        finally:
            cuda.syncthreads()  # unwinding threads must not wait again
            cleaned[0] += 1

    for seed in range(5):
        sim.seed(seed)
        cleaned = np.zeros(1)
        with pytest.raises((ZeroDivisionError, sim.SimulatorError)):
            kernel[1, 160](cleaned)  # the fixture no_thread_is_left looks at its threads
    # numba's state is sound as well: the next launch works.
    order_for(0)


def test_an_interrupt_ends_a_kernel_that_never_reaches_a_scheduling_point():
    spins = threading.Event()

    @cuda.jit
    def kernel():
        if cuda.threadIdx.x == 3:
            spins.set()
            while True:
                pass
        cuda.syncthreads()

    def interrupt():
        # Not before: what raises where Python ignores exceptions, as in a callback, is lost.
        assert spins.wait(60)
        time.sleep(0.1)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    # What a shell starts in the background ignores the signal, and Python then does too.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        kernel[1, 8]()
    interrupter.join()
    signal.signal(signal.SIGINT, before)


# Deadlocks.


def deadlock(kernel, threads, *args, seeds=5):
    texts = []
    for seed in range(seeds):
        sim.seed(seed)
        with pytest.raises(sim.Deadlock) as caught:
            kernel[1, threads](*args)
        texts.append(str(caught.value))
    assert len(set(texts)) == 1
    return texts[0], caught.value


def test_deadlock_report():
    @cuda.jit
    def kernel():
        barriers = sim.allocate_shared("barriers", 16, 8)
        warp, lane = sim.warp_id(), sim.lane_id()
        if cuda.threadIdx.x == 0:
            sim.label(barriers, "full[0] of Pipe")
            sim.mbarrier_init(barriers, 3)
            sim.mbarrier_init(barriers + 8, 1)
        cuda.syncthreads()
        if warp == 0:
            if lane == 0:
                sim.mbarrier_arrive_expect_tx(barriers, 4096)
            if lane < 4 or lane == 9:
                while not sim.mbarrier_try_wait_parity(barriers, 0):
                    pass
        elif warp == 1:
            while not sim.mbarrier_try_wait(barriers + 8, barriers + 8):
                pass
        elif warp == 2:
            sim.barrier_sync(5, 64)
        elif warp == 3:
            if lane:
                sim.syncwarp()
            else:
                cuda.syncthreads()

    text, error = deadlock(kernel, 128)
    for line in [
        "every live thread waits and no copy is under way",
        "full[0] of Pipe is in phase 0 (parity 0): 2 of 3 arrivals pending, 4096 bytes missing "
        "(4096 expected, 0 issued); a phase of parity 0 wanted: block (0, 0, 0): warp 0 lanes 0-3, "
        "9",
        "mbarrier at 1032 is in phase 0 (parity 0): 1 of 1 arrivals pending, 0 bytes missing; "
        "phase 0 wanted: block (0, 0, 0): warp 1 lanes 0-31",
        "named barrier 5 for 64 threads: 32 of 64 threads have arrived; waiting: "
        "block (0, 0, 0): warp 2 lanes 0-31",
        "syncwarp of warp 3 with mask 0xffffffff: 31 of 32 threads have arrived; waiting: "
        "block (0, 0, 0): warp 3 lanes 1-31",
        "syncthreads: 1 of 101 threads have arrived; waiting: block (0, 0, 0): warp 3 lane 0",
        "exited: block (0, 0, 0): warp 0 lanes 4-8, 10-31",
    ]:
        assert line in text
    assert "mbarrier_try_wait" in "".join(traceback.format_tb(error.__traceback__))


def test_spinning_on_test_wait_is_a_deadlock():
    @cuda.jit
    def kernel(work):
        barriers = sim.allocate_shared("barriers", 16, 8)
        cell = sim.allocate_shared("cells", 8, 4) + 4 * cuda.threadIdx.x
        if cuda.threadIdx.x == 0:
            sim.mbarrier_init(barriers, 1)
            sim.mbarrier_init(barriers + 8, 1)
            sim.mbarrier_arrive(barriers + 8)
        cuda.syncthreads()
        tries = 0
        while not sim.mbarrier_test_wait_parity(barriers, 0):
            tries += 1
            if work == "writes":
                sim.shared_write(cell, np.int32(tries))
            if work == "another":
                assert sim.mbarrier_test_wait_parity(barriers + 8, 0)
            if work == "two":
                assert not sim.mbarrier_test_wait_parity(barriers + 8, 1)

    for work in ("nothing", "writes", "another", "two"):
        text, _ = deadlock(kernel, 2, work, seeds=2)
        assert "a phase of parity 0 wanted: block (0, 0, 0): warp 0 lanes 0-1" in text


def test_polling_sees_what_happens_meanwhile():
    @cuda.jit
    def kernel(seen):
        barrier = sim.allocate_shared("barrier", 8, 8)
        x = cuda.threadIdx.x
        if x == 0:
            sim.mbarrier_init(barrier, 2)
        cuda.syncthreads()
        if x < 2:
            for _ in range(30):
                cuda.nanosleep(1)
            sim.mbarrier_arrive(barrier)
        else:
            while not sim.mbarrier_test_wait_parity(barrier, 0):
                seen[x] += 1

    for seed in range(10):
        sim.seed(seed)
        kernel[1, 40](np.zeros(40))


def test_a_try_wait_gives_up_after_the_time_limit():
    """A kernel that bounds its waits goes on, and can still end well."""

    @cuda.jit
    def kernel(gave_up):
        barrier = sim.allocate_shared("barrier", 8, 8)
        if cuda.threadIdx.x == 0:
            sim.mbarrier_init(barrier, 1)
        cuda.syncthreads()
        if not sim.mbarrier_try_wait_parity(barrier, 0):
            cuda.atomic.add(gave_up, 0, 1)

    gave_up = np.zeros(1, np.int64)
    kernel[1, 7](gave_up)
    assert gave_up[0] == 7


# Plain kernels of numba's simulator.


def test_plain_kernels_still_work():
    @cuda.jit(device=True)
    def square(value):
        return value * value

    @cuda.jit
    def reverse(x, total):
        first, second = cuda.shared.array(64, np.float32), cuda.shared.array((4, 8), np.int32)
        i = cuda.threadIdx.x
        first[i] = x[cuda.grid(1)]
        if i < 32:
            second[i // 8, i % 8] = i
        cuda.syncthreads()
        x[cuda.grid(1)] = square(first[63 - i])
        if i < 32:
            assert second[i // 8, i % 8] == i
        cuda.atomic.add(total, 0, 1)
        assert cuda.syncthreads_count(i < 10) == 10
        assert cuda.syncthreads_and(i < 64) == 1
        assert cuda.syncthreads_or(i == 64) == 0
        assert cuda.blockDim.x == 64 and cuda.gridDim.x == 3
        scratch = cuda.local.array(3, np.int32)
        scratch[0] = 1

    x = np.arange(192, dtype=np.float32)
    total = np.zeros(1, np.int32)
    expected = (x.reshape(3, 64)[:, ::-1] ** 2).ravel()
    reverse[3, 64](x, total)
    np.testing.assert_array_equal(x, expected)
    assert total[0] == 192


def test_a_lock_of_atomics_is_fair_enough():
    @cuda.jit
    def kernel(lock, total):
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        total[0] += 1
        cuda.atomic.exch(lock, 0, 0)

    for seed in range(5):
        sim.seed(seed)
        total = np.zeros(1, np.int32)
        kernel[1, 20](np.zeros(1, np.int32), total)
        assert total[0] == 20


def test_a_spin_on_an_atomic_operation_lets_other_threads_run():
    """Whichever thread begins: the flag's waiters may be first."""
    most = 10_000

    @cuda.jit
    def kernel(flag, tries):
        i = cuda.threadIdx.x
        if i == 0:
            cuda.atomic.exch(flag, 0, 1)
        while cuda.atomic.cas(flag, 0, 1, 1) == 0 and tries[i] < most:
            tries[i] += 1

    largest = []
    for seed in range(5):
        sim.seed(seed)
        tries = np.zeros(4, np.int32)
        kernel[1, 4](np.zeros(1, np.int32), tries)
        largest.append(tries.max())
    assert 0 < max(largest) < most


def test_threads_that_return_early_do_not_hold_up_the_rest():
    @cuda.jit
    def kernel(done):
        if cuda.threadIdx.x >= 5:
            return
        cuda.syncthreads()
        done[cuda.threadIdx.x] = 1

    done = np.zeros(32)
    kernel[1, 32](done)
    assert done.sum() == 5


def test_blocks_and_threads_of_three_dimensions():
    @cuda.jit
    def kernel(seen):
        block, thread = sim.block_index(), sim.thread_index()
        assert block == tuple(cuda.blockIdx) and thread == tuple(cuda.threadIdx)
        assert sim.block_dim() == (5, 3, 4) and sim.grid_dim() == (2, 1, 2)
        linear = thread[0] + 5 * (thread[1] + 3 * thread[2])
        assert (sim.warp_id(), sim.lane_id()) == divmod(linear, 32)
        seen[block[0], block[2], linear] += 1

    seen = np.zeros((2, 2, 60))
    kernel[(2, 1, 2), (5, 3, 4)](seen)
    assert (seen == 1).all()


def test_dynamic_shared_memory():
    @cuda.jit
    def kernel(out):
        floats, bytes_ = cuda.shared.array(0, np.float32), cuda.shared.array(0, np.uint8)
        assert len(floats) == 4 and len(bytes_) == 16
        floats[1] = 1.0
        out[0] = bytes_[7]

    out = np.zeros(1, np.uint8)
    kernel[1, 1, 0, 16](out)
    assert out[0] == 0x3F


def test_shared_arrays_have_an_address_and_an_alignment():
    @cuda.jit
    def kernel(found):
        for _ in range(2):
            a = cuda.shared.array((2, 3), np.int16, alignment=1024)
            found[0] = sim.shared_address(a)
        b = cuda.shared.array(1, np.int16)
        found[1], found[2] = sim.shared_address(a[1, 1:]), sim.shared_address(b)

    found = np.zeros(3, np.int64)
    kernel[1, 2](found)
    assert found[0] == 1024 and found[1] == 1024 + 8 and found[2] >= 1024 + 12


def test_a_function_called_outside_of_a_kernel():
    with pytest.raises(RuntimeError, match="this is for kernels: call it in a @cuda.jit kernel"):
        current()


def test_speed():
    """160 threads, 20 tiles, 4 stages, in about the time that a user waits for a test."""

    @cuda.jit
    def kernel(x, y, tiles):
        stages, nbytes = 4, 4096
        ring = sim.allocate_shared("ring", stages * nbytes, 128)
        full = sim.allocate_shared("full", 8 * stages, 8)
        empty = sim.allocate_shared("empty", 8 * stages, 8)
        t = cuda.threadIdx.x
        if t == 0:
            for s in range(stages):
                sim.mbarrier_init(full + 8 * s, 1)
                sim.mbarrier_init(empty + 8 * s, 128)
            sim.fence_mbarrier_init()
        cuda.syncthreads()
        for i in range(tiles):
            s, parity = i % stages, i // stages & 1
            if t == 0:
                while not sim.mbarrier_try_wait_parity(empty + 8 * s, parity ^ 1):
                    pass
                sim.mbarrier_arrive_expect_tx(full + 8 * s, nbytes)
                sim.cp_async_bulk_load(
                    ring + s * nbytes, x[i * 1024 : (i + 1) * 1024], full + 8 * s
                )
            elif t >= 32:
                while not sim.mbarrier_try_wait_parity(full + 8 * s, parity):
                    pass
                for j in range(t - 32, 1024, 128):
                    y[i * 1024 + j] = sim.shared_read(ring + s * nbytes + 4 * j, np.float32)
                sim.mbarrier_arrive(empty + 8 * s)

    x = np.arange(20 * 1024, dtype=np.float32)
    y = np.zeros_like(x)
    start = time.perf_counter()
    kernel[1, 160](x, y, 20)
    assert time.perf_counter() - start < 10
    np.testing.assert_array_equal(x, y)


def test_options_for_the_compiler_are_no_obstacle():
    @cuda.jit(device=True, forceinline=True, lineinfo=True)
    def twice(i):
        return 2 * i

    @cuda.jit(launch_bounds=(32, 1), max_registers=64)
    def kernel(out):
        out[cuda.threadIdx.x] = twice(cuda.threadIdx.x)

    out = np.zeros(32, np.int64)
    kernel[1, 32](out)
    assert (out == 2 * np.arange(32)).all()
