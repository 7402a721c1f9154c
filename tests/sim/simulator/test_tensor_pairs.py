"""Accesses to tensor memory, one after the other: what is missing until the second may rely on it.

The records are used by themselves. Threads learn of each other through their clocks.
"""

import itertools

import numpy as np
import pytest

from numba_tma.simulator.clocks import Clocks
from numba_tma.simulator.column_accesses import ColumnAccesses, Region, halves
from numba_tma.simulator.errors import (
    EarlyOverwrite,
    EarlyRead,
    MissingFence,
    SimulatorError,
    TensorMemoryMisuse,
    UnfinishedProduct,
)
from numba_tma.simulator.tcgen05_queue import MatrixAccesses, MatrixQueue, queue_of, queues_of

WARPS = 3


class Thing:
    """A thread or a block, as far as the records look at one."""

    def __init__(self, **fields):
        self.__dict__.update(fields)


def block():
    """Return a thread of each warp, and their clocks."""
    clocks = Clocks(WARPS)
    cta = Thing(tracked_clocks=lambda: clocks, matrix_queues={}, index=(5, 0, 0))
    cta.cluster = [cta]
    threads = [Thing(cta=cta, warp=w, row=w, description=f"thread {w}") for w in range(WARPS)]
    return threads, clocks


def region(lane, lanes, column, columns):
    return Region(slice(lane, lane + lanes), slice(column, column + columns))


PLACE = region(32, 32, 64, 8)
MEETING = [PLACE, region(48, 16, 64, 8), region(32, 16, 71, 1), region(0, 128, 0, 512),
           region(16, 17, 60, 5)]  # fmt: skip
BESIDE = [region(0, 32, 64, 8), region(64, 64, 64, 8), region(32, 32, 56, 8),
          region(32, 32, 72, 8)]  # fmt: skip


def failure(check, *given):
    """Return the error of a check; None for none."""
    try:
        check(*given)
    except SimulatorError as error:
        return error
    return None


@pytest.mark.parametrize("name", ["ld", "st"])
def test_another_warp_waits_fences_and_arrives(name):
    (first, second, third), clocks = block()
    accesses, told = ColumnAccesses(name, clocks, WARPS), []
    for number in (1, 2):
        accesses.record(first, PLACE, number)
    accesses.waited(first, 1)  # the one before
    assert accesses.is_over(first, 1) and not accesses.is_over(first, 2)

    def learn():
        clocks.learn(second.row, clocks.publish(first.row))

    def steps():
        yield EarlyOverwrite, f"it must execute tcgen05_wait_{name}(), then tcgen05_fence_before_"
        learn()
        yield EarlyOverwrite, "it must execute"
        accesses.waited(first, 2)
        yield EarlyOverwrite, f"nothing orders its tcgen05_wait_{name}() before this"
        learn()
        yield MissingFence, f"it has executed tcgen05_wait_{name}(), and must execute tcgen05_fen"
        accesses.fence_after(second)
        accesses.fence_before(first)
        yield MissingFence, "it has executed"
        learn()
        yield MissingFence, "this thread has waited for it, and must execute tcgen05_fence_after_"
        accesses.fence_after(third)
        yield MissingFence, "this thread has waited"
        accesses.fence_after(second)

    for kind, text in steps():
        for place in BESIDE:
            assert failure(accesses.check, second, place, EarlyOverwrite, "done") is None
        for place in MEETING:
            found = failure(accesses.check, second, place, EarlyOverwrite, "done")
            assert type(found) is kind
            begin = f"{place.describe()}: done before the tcgen05_{name} of warp 0 there is known"
            assert str(found).startswith(begin) and text in str(found)
        found = failure(accesses.check_told, [second, third], PLACE, "freed")
        told.append(type(found))
    for place in (*MEETING, *BESIDE):
        accesses.check(second, place, EarlyOverwrite, "done")
        accesses.check_told([second, third], place, "freed")
        accesses.check_told([second], place, "freed")
    assert failure(accesses.check_told, [third], PLACE, "freed") is not None
    # Who frees columns needs no fence of its own.
    assert told == [TensorMemoryMisuse] * 3 + [MissingFence] * 2 + [type(None)] * 2


def test_a_warp_waits_for_its_own_accesses():
    (first, second, _), clocks = block()
    accesses = ColumnAccesses("st", clocks, WARPS)
    accesses.record(first, PLACE, 1)
    found = failure(accesses.check, first, PLACE, EarlyRead, "loaded")
    assert type(found) is EarlyRead and str(found).endswith("execute tcgen05_wait_st() before")
    accesses.check(first, PLACE, EarlyRead, "loaded", but=1)
    assert failure(accesses.check, first, PLACE, EarlyRead, "loaded", 2)
    assert failure(accesses.check, second, PLACE, EarlyRead, "loaded", 1)
    accesses.record(second, region(32, 16, 64, 1), 1)
    assert "of warp 1" in str(failure(accesses.check, first, PLACE, EarlyRead, "x", 1))
    accesses.waited(first, 1)
    accesses.check(first, region(48, 16, 64, 8), EarlyRead, "loaded")
    assert accesses.is_over(first, 1) and not accesses.is_over(second, 1)


def test_what_a_thread_relies_on_is_told():
    (first, second, _), clocks = block()
    accesses = ColumnAccesses("ld", clocks, WARPS)
    accesses.record(first, PLACE, 4)
    accesses.waited(first, 4)
    clock = clocks.waited_for(first.row)
    accesses.tell(first, clock)
    clocks.learn(second.row, clock)
    accesses.fence_after(second)
    accesses.check(second, PLACE, EarlyOverwrite, "done")
    accesses.fence_before(second)
    clocks.learn(first.row, clocks.publish(second.row))  # an older one changes nothing
    accesses.fence_after(first)
    accesses.check(first, PLACE, EarlyOverwrite, "done")


def test_halves_of_warps_hold_the_lanes_of_a_region():
    for first, last in itertools.combinations(range(0, 129, 8), 2):
        rows = range(8)[halves(Region(slice(first, last), slice(0, 1)))]
        assert list(rows) == [n for n in range(8) if first < 16 * n + 16 and 16 * n < last]
    assert PLACE.describe() == "tensor memory, lanes 32 to 63, columns 64 to 71"


# --------------------------------------------------------------------------- the tensor cores


@pytest.mark.parametrize("writes", [True, False])
def test_another_thread_waits_for_a_commit_and_fences(writes):
    (first, second, third), clocks = block()
    queue, accesses = queue_of(first), MatrixAccesses(clocks)
    assert queue_of(first) is queue and list(queues_of(second.cta)) == [queue]
    for number in (1, 2):
        queue.issue(f"product {number}", lambda: None)
        regions = ([], [PLACE]) if writes else ([PLACE], [])
        accesses.record(queue, number, *regions)
    assert queue.in_words(2).startswith("the product 2 of thread 0 (at test_tensor_pairs.py:")
    before = clocks.table[first.row].copy()
    before[[queue.known, queue.told]] = 1
    clocks.learn(second.row, before)  # a commit of the first product alone

    def steps():
        yield EarlyOverwrite, "no tcgen05_commit of thread 0 covers it yet"
        clock = clocks.waited_for(first.row)
        assert queue.commit(clock) == 2
        yield EarlyOverwrite, "its tcgen05_commit has been issued: wait for the barrier"
        queue.fence_after(second)
        yield EarlyOverwrite, "its tcgen05_commit has been issued"
        clocks.learn(second.row, clock)
        yield MissingFence, "this thread has waited for it, and must execute"
        queue.fence_after(third)
        yield MissingFence, "this thread has waited for it"
        queue.fence_after(second)

    told = []
    for kind, text in steps():
        for place in BESIDE:
            assert failure(accesses.check, second, place, EarlyOverwrite, "done") is None
        for place in MEETING:
            found = failure(accesses.check, second, place, EarlyOverwrite, "done")
            assert type(found) is kind and text in str(found)
            assert f"{place.describe()}: done before {queue.in_words(2)} there is" in str(found)
            accesses.check(second, place, EarlyOverwrite, "done", queue)
        found = failure(accesses.check, second, PLACE, EarlyRead, "read")
        early = EarlyRead if kind is EarlyOverwrite else kind
        assert type(found) is (early if writes else type(None)), "reads may follow reads"
        told.append(type(failure(accesses.check_told, [second, third], PLACE, "freed")))
        ends = failure(accesses.check_end, second.cta, slice(0, WARPS))
        known = kind is MissingFence
        assert type(ends) is (type(None) if known else UnfinishedProduct)
        assert known or f"block (5, 0, 0) ended before {queue.in_words(2)} was" in str(ends)
    for place in (*MEETING, *BESIDE):
        accesses.check(second, place, EarlyOverwrite, "done")
    assert failure(accesses.check, third, PLACE, EarlyOverwrite, "done")
    assert failure(accesses.check_told, [third], PLACE, "freed")
    assert told == [TensorMemoryMisuse] * 3 + [type(None)] * 2
    assert failure(accesses.check_end, second.cta, slice(2, WARPS))
    assert failure(accesses.check_end, second.cta, slice(1, 2)) is None


def test_a_fence_before_tells_what_a_thread_relies_on():
    (first, second, third), clocks = block()
    queue = queue_of(first)
    for _ in range(3):
        queue.issue("product", lambda: None)
    clock = clocks.waited_for(first.row)
    queue.commit(clock)
    clocks.learn(second.row, clock)
    queue.fence_after(second)
    assert queue.relied[second] == 3 and queue.relied[third] == 0
    clocks.learn(third.row, clocks.publish(first.row))
    queue.fence_after(third)
    assert queue.relied[third] == 0, "the first thread has not waited itself"
    queue.fence_before(second)
    clocks.learn(third.row, clocks.publish(second.row))
    queue.fence_after(third)
    queue.fence_after(third)
    assert queue.relied[third] == 3
    clocks.table[third.row, queue.told] = 1
    queue.fence_after(third)
    queue.fence_before(third)
    assert queue.relied[third] == 3 == clocks.table[third.row, queue.told]


def test_operations_of_a_thread_are_executed_in_order():
    (first, *_), _ = block()
    queue, done = queue_of(first), []
    operations = [queue.issue(str(n), lambda n=n: done.append(n)) for n in range(3)]
    assert (queue.issued, queue.commits, queue.committed) == (3, 0, 0)
    for order, landed in ((2, False), (1, False), (0, True), (2, False), (1, True), (2, True)):
        assert operations[order].advance() is landed
    assert done == [0, 1, 2] and queue.done == 3
    queue.commit(np.zeros(64, np.int32))
    assert (queue.commits, queue.committed) == (1, 3)


def test_freed_columns_have_no_operations():
    (first, second, _), clocks = block()
    queue, accesses = queue_of(first), MatrixAccesses(clocks)
    queue.issue("product", lambda: None)
    accesses.record(queue, 1, [region(0, 128, 0, 64)], [region(0, 128, 32, 64)])
    accesses.forget(region(0, 128, 32, 32))
    for column in range(96):
        found = failure(accesses.check, second, region(0, 16, column, 1), EarlyRead, "x")
        assert bool(found) == (column >= 64)
        place = region(112, 16, column, 1)
        found = failure(accesses.check, second, place, EarlyOverwrite, "x")
        assert bool(found) == (not 32 <= column < 64)


def test_each_queue_has_columns_of_its_own():
    threads, clocks = block()
    queues = [MatrixQueue(thread) for thread in threads]
    places = [place for queue in queues for place in (queue.known, queue.told)]
    assert len({*places}) == 6 and min(places) >= 3 * WARPS
    assert [queue.told - queue.known for queue in queues] == [1, 1, 1]
