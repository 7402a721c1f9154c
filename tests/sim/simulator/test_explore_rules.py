"""Rules of `explore`: mistakes that only some orders show, and what adds no orders."""

from dataclasses import FrozenInstanceError, fields
from typing import get_args

import numpy as np
import pytest
from numba import cuda

from numba_tma import simulator as sim
from numba_tma.simulator import protocol

F32 = np.dtype(np.float32)
VALUES = 4
BYTES = 4 * VALUES


def wait(barrier, parity):
    while not sim.mbarrier_try_wait_parity(barrier, parity):
        pass


def found_in_records_without_it(run, error, match, seeds=8):
    """Check that `explore` finds an error in each record of a run that does not show one."""
    explored = 0
    for seed in range(seeds):
        sim.seed(seed)
        try:
            run()
        except sim.SimulatorError:
            continue
        explored += 1
        with pytest.raises(error, match=match):
            sim.explore(run, seeds=(seed,))
    assert explored


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize(
    ("loads", "message"),
    [(1, "the loads bring 16 bytes more than the phase"), (2, "while 16 bytes of its loads are")],
)
def test_bytes_are_expected_before_their_load_begins(loads, message, early):
    @cuda.jit
    def kernel(x):
        tiles = sim.allocate_shared("tiles", 2 * BYTES, 128)
        full = sim.allocate_shared("full", 8, 8)
        if cuda.threadIdx.x == 0:
            sim.mbarrier_init(full, 1)
            sim.fence_mbarrier_init()
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            sim.mbarrier_arrive_expect_tx(full, 2 * BYTES if early else BYTES)
            for part in np.split(x, loads):
                at = tiles + (0 if part[0] == 0 else BYTES)
                sim.cp_async_bulk_load(at, part, full)
            if not early:
                sim.mbarrier_expect_tx(full, BYTES)
        wait(full, 0)
        sim.shared_read(tiles, F32)  # the rest is not read

    x = np.arange(2 * VALUES, dtype=np.float32)
    if early:
        assert sim.explore(lambda: kernel[1, 2](x)).states > 5
        return
    found_in_records_without_it(lambda: kernel[1, 2](x), sim.WrongByteCount, message)


@pytest.mark.parametrize("answered", [True, False])
def test_a_warp_arrives_again_after_the_others_have_come(answered):
    @cuda.jit
    def kernel():
        gate = sim.allocate_shared("gate", 8, 8)
        if cuda.threadIdx.x == 0:
            sim.mbarrier_init(gate, 1)
        cuda.syncthreads()
        for turn in range(3):
            if sim.warp_id() == 0:
                sim.barrier_arrive(1, 64)
                if answered:
                    wait(gate, turn & 1)
                for _ in range(0 if answered else 40):
                    sim.yield_turn()  # long enough for most orders, and no order at all
            else:
                sim.barrier_sync(1, 64)
                if cuda.threadIdx.x == 32:
                    sim.mbarrier_arrive(gate)

    if answered:
        assert sim.explore(lambda: kernel[1, 64]()).states > 5
        return
    found_in_records_without_it(
        lambda: kernel[1, 64](), sim.BarrierMisuse, "arrives again before the others have come"
    )


@pytest.mark.parametrize("kind", get_args(protocol.Operation), ids=lambda kind: kind.__name__)
def test_a_recorded_operation_is_a_value(kind):
    """Runs and classes of threads share operations, and find them by hash."""
    names = [field.name for field in fields(kind)]
    one, other = (kind(*range(len(names))) for _ in range(2))
    assert one == other and hash(one) == hash(other)
    with pytest.raises(FrozenInstanceError):
        setattr(one, names[0], 7)


@pytest.mark.parametrize("scratch", ["of one thread", "of all threads"])
def test_bytes_that_are_passed_on_to_nobody_add_no_orders(scratch):
    @cuda.jit
    def kernel(uses):
        full = sim.allocate_shared("full", 8, 8)
        words = sim.allocate_shared("words", 12, 4)
        thread = cuda.threadIdx.x
        if thread == 0:
            sim.mbarrier_init(full, 3)
        cuda.syncthreads()
        if uses and (scratch == "of all threads" or thread == 1):
            sim.shared_write(words + 4 * thread, np.float32(1))
        sim.mbarrier_arrive(full)
        if uses and (scratch == "of all threads" or thread == 1):
            sim.shared_read(words + 4 * thread, F32)
        wait(full, 0)

    without, with_scratch = (sim.explore(lambda u=u: kernel[1, 3](u)) for u in (False, True))
    assert with_scratch.states == without.states
