"""Rules of `explore`: mistakes that only some orders show, and what adds no orders."""

from dataclasses import FrozenInstanceError, fields
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest
from numba import cuda

from numba_tma import simulator as sim
from numba_tma.simulator import protocol
from numba_tma.simulator.components import (
    Await,
    BarrierValue,
    CellValue,
    Complete,
    Fill,
    Filled,
    Launch,
    ReadBy,
    ReadDone,
    Rewritten,
    Seen,
    apply,
)
from numba_tma.simulator.programs import Program, in_scope
from numba_tma.simulator.protocol import Arrive, CountBytes, Init, Inval, Wait

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


@pytest.mark.parametrize("completed", [BYTES, BYTES - 4, BYTES + 4])
def test_bytes_that_threads_count_are_explored(completed):
    @cuda.jit
    def kernel():
        full = sim.allocate_shared("full", 8, 8)
        if cuda.threadIdx.x == 0:
            sim.mbarrier_init(full, 1)
            sim.fence_mbarrier_init()
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            sim.mbarrier_expect_tx(full, BYTES)
            sim.mbarrier_complete_tx(full, BYTES)
            sim.mbarrier_expect_tx(full, BYTES)
            sim.mbarrier_arrive(full)
        else:
            sim.mbarrier_complete_tx(full, completed)
        wait(full, 0)

    if completed == BYTES:
        assert sim.explore(lambda: kernel[1, 2]()).states > 5
    else:
        with pytest.raises(sim.SimulatorError):
            sim.explore(lambda: kernel[1, 2]())


NONE, SOME = frozenset(), frozenset({5})


@pytest.mark.parametrize(
    ("effect", "value", "after"),
    [
        (Seen(3, "it"), (3, 0, NONE), (3, 0, NONE)), (Seen(3, "it"), (3, 0, SOME), (3, 0, SOME)),
        (Seen(3, "it"), (2, 0, NONE), "it while the copy or write that .* has not even begun"),
        (Seen(3, "it"), (2, 3, NONE), "it while the copy or write that .* is still under way"),
        (Seen(3, "it"), (4, 0, NONE), "it after something else has overwritten them"),
        (Seen(3, "it"), (3, 4, NONE), "it while a copy or write over them is under way already"),
        (Rewritten(3), (3, 0, NONE), (3, 0, NONE)), (Rewritten(3), (2, 0, NONE), "written while"),
        (Rewritten(3), (3, 0, SOME), "written while a store or copy may still be reading them"),
        (Rewritten(3), (3, 4, NONE), "written while a copy or write over them is under way"),
        (Fill(4, "it"), (3, 0, NONE), (3, 4, NONE)),
        (Fill(4, "it"), (3, 0, SOME), "it while a store or copy may still be reading them"),
        (Fill(4, "it"), (3, 5, NONE), "it while another copy or write of them is under way"),
        (Filled(4), (3, 4, SOME), (4, 0, SOME)), (Filled(4), (3, 5, NONE), False),
        (ReadBy(5), (3, 4, NONE), (3, 4, SOME)), (ReadDone(5), (3, 4, SOME), (3, 4, NONE)),
        (ReadDone(6), (3, 4, SOME), False), (Await({4}), (3, 4, NONE), False),
        (Await({5}), (3, 4, SOME), False), (Await({6}), (3, 4, SOME), (3, 4, SOME)),
    ],
)  # fmt: skip
def test_what_an_effect_makes_of_a_cell(effect, value, after):
    value = CellValue(*value)
    if isinstance(after, str):
        with pytest.raises(sim.SimulatorError, match=f"^{after}"):
            apply(effect, value)
    else:
        assert apply(effect, value) == (after and CellValue(*after))


PLACE = None


@pytest.mark.parametrize(
    ("effect", "value", "after"),
    [
        (Init(PLACE, 2), None, (2, 2, 0, 0, 0)), (Init(PLACE, 2), (2, 2, 0, 0, 0), "mbarrier_init"),
        (Inval(PLACE), None, "used where there may be no"), (Inval(PLACE), (2, 2, 0, 0, 0), None),
        (Inval(PLACE), (2, 2, 8, 0, 8), "mbarrier_inval while loads that complete on it run"),
        (CountBytes(PLACE, 8), (2, 2, 0, 0, 0), (2, 2, 8, 0, 0)),
        (CountBytes(PLACE, 0), (2, 1, 8, 0, 0), (2, 1, 8, 0, 0)),
        (CountBytes(PLACE, -8), (2, 2, 8, 0, 0), (2, 2, 0, 0, 0)),
        (CountBytes(PLACE, -8), (2, 0, 8, 0, 0), (2, 2, 0, 1, 0)),
        (Launch(8), (2, 2, 8, 0, 0), (2, 2, 8, 0, 8)),
        (Complete(8), (2, 2, 8, 0, 8), (2, 2, 0, 0, 0)),
        (Complete(8), (2, 0, 8, 0, 16), "phase 0 completes while 8 bytes of its loads are still"),
        (Arrive(PLACE, 1, None, False, False), (2, 2, 0, 0, 0), (2, 1, 0, 0, 0)),
        (Arrive(PLACE, 1, 8, False, False), (2, 1, 0, 0, 0), (2, 0, 8, 0, 0)),
        (Arrive(PLACE, 1, None, True, False), (2, 2, 0, 0, 0), (1, 1, 0, 0, 0)),
        (Arrive(PLACE, 2, None, False, False), (2, 2, 0, 3, 0), (2, 2, 0, 4, 0)),
        (Arrive(PLACE, 2, None, False, False), (2, 2, -8, 0, 0), "phase 0: the loads bring 8 byte"),
        (Wait(PLACE, 0, False), (2, 2, 0, 0, 0), False),
        (Wait(PLACE, 0, False), (2, 2, 0, 1, 0), (2, 2, 0, 1, 0)),
        (Wait(PLACE, 1, False), (2, 2, 0, 1, 0), False),
        (Wait(PLACE, 1, True), (2, 2, 0, 1, 0), False),
        (Wait(PLACE, 1, True), (2, 2, 0, 2, 0), (2, 2, 0, 2, 0)),
    ],
)  # fmt: skip
def test_what_an_effect_makes_of_a_barrier(effect, value, after):
    value = value and BarrierValue(*value)
    if isinstance(after, str):
        with pytest.raises(sim.SimulatorError, match=f"^{after}"):
            apply(effect, value)
    else:
        assert apply(effect, value) == (after and BarrierValue(*after))


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


@pytest.mark.parametrize(
    ("place", "inside"),
    [
        ((0, ("warp", 0, 0b11)), [0, 1]), ((0, ("warp", 0, 0b10)), [1]),
        ((0, ("warp", 1, 0b11)), [2]), ((1, ("warp", 0, 0b1)), [3]),
        ((0, ("warpgroup", 0)), [0, 1, 2]), ((0, ("warpgroup", 1)), [4]),
        ((0, "block"), [0, 1, 2, 4]), ((1, "block"), [3]), ((0, "cluster"), [0, 1, 2, 3, 4]),
    ],
)  # fmt: skip
def test_who_takes_part_in_a_meeting_of_all_live_threads(place, inside):
    """Of two blocks: two lanes of warp 0, a lane of warps 1 and 4, and a lane of the other."""
    threads = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 4, 0)]
    programs = [
        Program([SimpleNamespace(rank=rank, warp=warp, lane=lane)], [])
        for rank, warp, lane in threads
    ]
    assert in_scope(programs, place) == inside
