"""The orders that `explore` skips change no verdict: records with mistakes, explored twice."""

import copy
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import simulator as sim
from numba_tma.simulator.exploration import explore_runs
from numba_tma.simulator.protocol import (
    Arrive,
    AwaitStores,
    Init,
    Issue,
    IssueStore,
    Meet,
    Wait,
    recorded_protocol,
)
from tests.sim.interleavings import goes_wrong
from tests.tiers import every

F32 = np.dtype(np.float32)
VALUES = 4
BYTES = 4 * VALUES


def wait(barrier, parity):
    while not sim.mbarrier_try_wait_parity(barrier, parity):
        pass


@cuda.jit
def ring(x, y, stages, tiles, warps, lanes, form):
    """Thread 0 loads; `lanes` lanes of each further warp read, and the first of them releases."""
    base = sim.allocate_shared("ring", stages * BYTES, 128)
    full = sim.allocate_shared("full", 8 * stages, 8)
    empty = sim.allocate_shared("empty", 8 * stages, 8)
    thread = sim.thread_index()[0]
    warp, lane = thread // 32 - 1, thread % 32
    if thread == (32 if form == "a reader initialises" else 0):
        for s in range(stages):
            sim.mbarrier_init(full + 8 * s, 1)
            each = lanes if form == "every lane arrives" else 1
            sim.mbarrier_init(empty + 8 * s, warps * each)
        sim.fence_mbarrier_init()
    cuda.syncthreads()
    if thread == 0:
        for i in range(tiles):
            s, parity = i % stages, i // stages & 1
            wait(empty + 8 * s, parity ^ 1)
            sim.mbarrier_arrive_expect_tx(full + 8 * s, BYTES)
            source = x[i * VALUES : (i + 1) * VALUES]
            sim.cp_async_bulk_load(base + s * BYTES, source, full + 8 * s)
    elif warp >= 0 and lane < lanes:
        for i in range(tiles):
            s, parity = i % stages, i // stages & 1
            wait(full + 8 * s, parity)
            if form == "two meetings":
                sim.syncwarp((1 << lanes) - 1)
            if lane < 2:
                sim.shared_read(base + s * BYTES, F32)
            if thread == 32 and form == "stored":
                sim.cp_async_bulk_store(y[i * VALUES : (i + 1) * VALUES], base + s * BYTES)
                sim.cp_async_bulk_commit_group()
                sim.cp_async_bulk_wait_group_read(0)
            if form == "every lane arrives":
                sim.mbarrier_arrive(empty + 8 * s)
                continue
            sim.syncwarp((1 << lanes) - 1)
            if lane == 0:
                sim.mbarrier_arrive(empty + 8 * s)


def recorded(*shape):
    _, tiles, warps, *_ = shape
    x = np.zeros(VALUES * max(tiles, 1), np.float32)
    with recorded_protocol() as runs:
        ring[1, 32 * (warps + 1)](x, np.zeros_like(x), *shape)
    return runs[0]


def remove(random, log, at):
    """Drop an operation; the accesses before and after it come together."""
    del log.operations[at]
    log.touches[at : at + 2] = [log.touches[at] | log.touches[at + 1]]


def repeat(random, log, at):
    log.operations.insert(at, log.operations[at])
    log.touches.insert(at + 1, set())


def swap(random, log, at):
    both = log.operations[at : at + 2]
    if len(both) == 2 and not any(isinstance(o, Init) for o in both):
        log.operations[at : at + 2] = log.operations[at : at + 2][::-1]


def delay(random, log, at):
    """Let the accesses before an operation come after it."""
    log.touches[at + 1] |= log.touches[at]
    log.touches[at] = set()


def alter(random, log, at):
    match log.operations[at]:
        case Wait(wanted=wanted) as operation:
            log.operations[at] = replace(operation, wanted=wanted ^ 1)
        case Init(count=count) as operation:
            log.operations[at] = replace(operation, count=max(1, count + random.choice((-1, 1))))
        case Arrive(nbytes=int(nbytes)) as operation:
            log.operations[at] = replace(operation, nbytes=nbytes + random.choice((-16, 16)))
        case AwaitStores(number) as operation:
            log.operations[at] = replace(operation, number=number - 1)
        case Arrive() as operation:
            log.operations[at] = replace(operation, count=2)
        case _:
            return


def broken(run, random):
    """Return the record with a mistake or two in it."""
    other = copy.copy(run)
    other.logs = [copy.copy(log) for log in run.logs]
    for log in other.logs:
        log.operations, log.touches = log.operations.copy(), list(map(set, log.touches))
    for _ in range(random.choice((1, 1, 2))):
        log = random.choice([log for log in other.logs if len(log.operations) > 1])
        # The first operation of a thread that initialises nothing is the meeting after that.
        first = 0 if isinstance(log.operations[0], Init) else 1
        # Meetings stay: who comes to them is taken to be fixed.
        places = [
            at
            for at, operation in enumerate(log.operations)
            if not isinstance(operation, Issue | IssueStore) and at >= first
        ]
        at = random.choice(places)
        moves = (delay, swap)
        change = random.choice((remove, repeat, alter, alter, *moves))
        if isinstance(log.operations[at], Meet):
            change = random.choice(moves)
        change(random, log, at)
    return other


SHAPES = [
    (1, 2, 1, 2, "read"),
    (1, 3, 1, 3, "read"),
    (2, 3, 1, 2, "read"),
    (1, 2, 2, 2, "read"),
    (1, 2, 2, 1, "a reader initialises"),
    (1, 2, 1, 3, "every lane arrives"),
    (2, 3, 1, 2, "every lane arrives"),
    (1, 2, 2, 2, "every lane arrives"),
    (1, 2, 1, 2, "two meetings"),
    (2, 3, 1, 2, "two meetings"),
    (1, 2, 1, 2, "stored"),
    (2, 3, 1, 2, "stored"),
]


@pytest.mark.parametrize("shape", every(3, [(shape,) for shape in SHAPES]))
def test_the_verdict_is_that_of_plain_search(shape):
    run = recorded(*shape)
    assert goes_wrong(run) is None
    assert explore_runs([run]).states > 10
    right = wrong = 0
    for seed in range(100):
        other = broken(run, random.Random(seed))
        expected = goes_wrong(other)
        try:
            explore_runs([other])
            found = None
        except sim.SimulatorError as error:
            found = f"{type(error).__name__}: {error}"
        assert (found is None) == (expected is None), (seed, found, expected)
        right, wrong = right + (found is None), wrong + (found is not None)
    assert right > 10 and wrong > 30


@pytest.mark.parametrize(
    ("units", "lanes", "apart", "states"),
    [(1, 1, 1, 6), (2, 1, 1, 9), (3, 1, 1, 13), (4, 1, 1, 18),  # of one warp
     (1, 1, 32, 6), (2, 1, 32, 9), (3, 1, 32, 13), (2, 2, 32, 24)],  # of warps
)  # fmt: skip
def test_threads_and_warps_that_do_the_same_are_interchangeable(units, lanes, apart, states):
    """So `units` at three places have as many states as there are multisets of places."""

    @cuda.jit
    def kernel():
        barrier, unit = tma.shared_barrier(), cuda.threadIdx.x // apart
        if cuda.threadIdx.x == 0:
            barrier.init(2 * units * lanes)
            tma.fence_mbarrier_init()
        cuda.syncthreads()
        if unit == 0:
            if cuda.threadIdx.x == 0:
                barrier.wait(0)
        elif cuda.threadIdx.x % apart < lanes:
            barrier.arrive()
            barrier.arrive()

    report = sim.explore(lambda: kernel[1, apart * (units + 1)]())
    assert report.states == states
    assert lanes > 1 or states == math.comb(units + 2, 2) + 3
