"""The scheduler and the registers of a block by themselves: who runs, who waits, what is left."""

from collections import Counter

import pytest

from numba_tma.simulator.barriers import MbarrierWait
from numba_tma.simulator.block import Cta
from numba_tma.simulator.errors import Deadlock
from numba_tma.simulator.registers import MOST, REGISTER_FILE, Registers, RegisterWait
from numba_tma.simulator.report import ranges, threads_in_words
from numba_tma.simulator.scheduler import IDLE_ROUNDS, LIVELOCK_ROUNDS, Scheduler


class Thing:
    """A thread or a copy, as far as the scheduler looks at one."""

    def __init__(self, **fields):
        self.__dict__.update(fields)


def threads(count):
    return [
        Thing(exited=False, wait=None, error=None, index=(n, 0, 0), block=(0, 0, 0))
        for n in range(count)
    ]


def scheduler(seed="0", count=0, landing=0.0):
    """Return a scheduler of threads that never run, and the threads."""
    made, several = Scheduler(seed, lambda them: f"{len(them)} threads"), threads(count)
    made.threads, made._landing_rate = several, landing
    return made, several


def test_any_thread_that_can_run_is_next():
    made, several = scheduler(count=5)
    found = Counter()
    for _ in range(500):
        made._runnable = list(several)
        chosen = made._next()
        found[chosen.index[0]] += 1
        assert {*several} - {chosen} == {*made._runnable} and len(made._runnable) == 4
    assert set(found) == {0, 1, 2, 3, 4} and min(found.values()) > 60
    assert made._next(several[2]) is several[2] and made.step == 501


def test_copies_land_in_any_order_and_one_at_a_time():
    orders, landed = set(), []
    for seed in range(60):
        made, (thread,) = scheduler(str(seed), 1, landing=1.0)
        del landed[:]
        for name in "abc":
            steps = iter([False, True])
            made.start_copy(Thing(advance=lambda n=name, s=steps: (landed.append(n), next(s))[1]))
        made._runnable = [thread]
        assert made._next() is thread and not made._copies
        assert Counter(landed) == dict.fromkeys("abc", 2) and made._events == 6
        orders.add("".join(dict.fromkeys(reversed(landed))))
    assert len(orders) == 6


def test_a_copy_lands_before_threads_are_idle():
    made, (thread,) = scheduler(count=1)
    thread.wait = Thing()
    made.start_copy(Thing(advance=lambda: made.wake(thread) or True))
    assert made._next() is thread and thread.wait is None and not made._expired


def test_the_error_of_a_copy_is_its_thread_s():
    made, (thread, _) = scheduler(count=2, landing=1.0)

    def fail():
        raise KeyError("copy")

    made.start_copy(Thing(advance=fail, thread=thread))
    made._runnable = list(made.threads)
    assert made._next() is None
    assert str(made.error).startswith('"tid=[0, 0, 0] ctaid=[0, 0, 0]: ')
    made.fail(ValueError("a later one"), thread)
    assert isinstance(made.error, KeyError)


def test_a_run_is_over_when_all_threads_have_ended():
    made, several = scheduler(count=3)
    for thread in several:
        thread.exited = True
    assert made._next() is None and made.error is None


def rounds(made, waiting, *, writes=False, events=(0,)):
    """Return how often the time limit of waits expires before the run counts as a deadlock."""
    for number in range(LIVELOCK_ROUNDS + 9):
        waiting.wait = MbarrierWait(None, "", 0)
        made._writes += writes
        made._events += number in events
        assert made._next() is waiting
        if waiting.error is not None:
            assert isinstance(waiting.error, Deadlock) and str(waiting.error) == "2 threads"
            return number
    raise AssertionError


def test_a_wait_ends_by_its_time_limit_until_nothing_can_happen():
    made, (waiting, other) = scheduler(count=2)
    other.exited = True
    assert rounds(made, waiting) == IDLE_ROUNDS == 8
    made, (waiting, other) = scheduler(count=2)
    assert rounds(made, waiting, writes=True) == LIVELOCK_ROUNDS == 1000
    made, (waiting, other) = scheduler(count=2)
    assert rounds(made, waiting, events=(0, 5)) == 5 + IDLE_ROUNDS
    made, (waiting, other) = scheduler(count=2)
    assert rounds(made, waiting, writes=True, events=(0, 5)) == 5 + LIVELOCK_ROUNDS


def test_waits_without_a_time_limit_are_a_deadlock_at_once():
    made, (first, second) = scheduler(count=2)
    second.wait = Thing()
    assert made._next() is second and isinstance(second.error, Deadlock) and first.error is None
    made, (first, second) = scheduler(count=2)
    first.wait, second.wait = Thing(), MbarrierWait(None, "", 0)
    assert made._next() is second and second.error is None and first.wait is not None


def test_time_goes_on_by_steps_and_by_waits_that_expire():
    made, _ = scheduler()
    made.step, made._expired = 7, 3
    assert made.nanoseconds == 3_007_000


def test_the_seed_chooses_how_late_copies_land_and_how_often_threads_switch():
    rates = Counter()
    for seed in range(200):
        made = Scheduler(str(seed), str)
        rates[made._landing_rate, made._switch_rate] += 1
    landing, switch = ({pair[i] for pair in rates} for i in (0, 1))
    assert landing == {0.5, 0.1, 0.02, 0.002} and switch == {1.0, 0.5, 0.1}


# ------------------------------------------------------------------------------ registers


@pytest.mark.parametrize("count", [32, 128, 160, 256, 384, 512, 1024])
def test_a_launch_divides_the_register_file(count):
    registers = Registers(count)
    assert registers.launch % 8 == 0 and registers.launch <= 256 == MOST
    assert registers.total == count * registers.launch <= REGISTER_FILE == 65536
    more = count * (registers.launch + 8)
    assert registers.launch == 256 or more > REGISTER_FILE
    assert registers.free == 0 and registers.waiting == []


@pytest.mark.parametrize("shape", [(256, 1, 1), (8, 32, 1), (1, 2, 128), (4, 1, 64), (2, 16, 8)])
def test_the_threads_of_a_block_of_any_shape_share_its_registers(shape):
    block = Cta(Scheduler("0", str), lambda: None, (0, 0, 0), (1, 1, 1), shape, debug=False)
    assert vars(block.registers) == vars(Registers(256))


def test_warpgroups_give_and_take():
    registers = Registers(384)
    assert registers.launch == 168
    assert not registers.move(1, 176) and registers.lacking(1, 176) == 8 * 128
    assert registers.move(0, 168) and registers.move(2, 24) and registers.free == 144 * 128
    assert registers.lacking(1, 240) == (72 - 144) * 128
    assert registers.move(1, 240) and registers.free == 72 * 128
    assert registers.move(0, 240) and registers.free == 0, "the last ones"
    assert not registers.move(2, 32)
    text = "it needs 128 x (32 - 24) = 1,024 more and 0 are free: the block has 64,512, the "
    assert registers.in_words(2, 32).startswith(f"{text}warpgroups 240 x 128 + 240 x 128 + 24")
    wait = RegisterWait("setmaxnreg_inc(32)", 2, 32, registers)
    assert wait.headline().startswith(f"setmaxnreg_inc(32) of warpgroup 2: {text}")
    assert wait.headline().endswith("; waiting")


def test_a_warpgroup_may_be_a_part_of_one():
    registers = Registers(160)
    assert registers.launch == 256
    assert registers.move(1, 24) and registers.free == 232 * 32
    assert registers.in_words(0, 264).startswith("it needs 128 x (264 - 256) = 1,024 more and 7")


# ----------------------------------------------------------------------------- the words


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], ""), ([3], "3"), ([0, 1], "0-1"), ([1, 3], "1, 3"), ([7, 0, 1, 3, 2], "0-3, 7"),
     ([5, 4, 9, 8, 1], "1, 4-5, 8-9")],
)  # fmt: skip
def test_numbers_as_ranges(numbers, text):
    assert ranges(numbers) == text


def test_threads_by_block_warp_and_lane():
    def lanes(block, warp, *numbers):
        return [Thing(block=(block, 0, 0), warp=warp, lane=lane) for lane in numbers]

    whole = lanes(0, 1, *range(32)) + lanes(0, 2, *range(32)) + lanes(0, 4, *range(32))
    assert threads_in_words(lanes(0, 3, 7)) == "block (0, 0, 0): warp 3 lane 7"
    assert threads_in_words(whole) == "block (0, 0, 0): warps 1-2, 4 lanes 0-31"
    assert threads_in_words(lanes(1, 0, 1, 0) + lanes(0, 0, 5, 7) + lanes(1, 2, 3)) == (
        "block (1, 0, 0): warp 0 lanes 0-1; warp 2 lane 3; block (0, 0, 0): warp 0 lanes 5, 7"
    )
