"""Ordered turns in the simulator: roles in their order at each stage, or an error."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import simulator
from tests.tiers import quick


def turns(depth, groups, broken="", scope=False):
    """Return the kernel whose roles write down, in each stage, who comes when."""
    ROLES = tma.Roles(**{f"math{i}": tma.Warps(1) for i in range(groups)}, rest=tma.Warps(1))
    ORDER = tma.OrderedSequenceBarrier(depth, ROLES.roles[:groups])

    @cuda.jit
    def write_down(log, used, num_tiles):
        order = ORDER.start()
        group = cuda.threadIdx.x // 32
        if group < groups:
            for tile in range(group, num_tiles, groups):
                for stage in range(depth):
                    if scope:
                        turn = order.turn()
                    elif broken != "wait":
                        order.wait()
                    if cuda.threadIdx.x % 32 == 0:
                        at = used[stage]
                        log[stage, at] = tile
                        cuda.syncwarp(1)  # another thread may come between
                        used[stage] = at + 1
                    if scope:
                        turn.close()
                    elif broken != "arrive":
                        order.arrive()

    return write_down


@pytest.mark.parametrize("scope", [False, True])
@pytest.mark.parametrize(("depth", "groups"), quick([(2, 3)], [(1, 2), (2, 2), (3, 2), (2, 3)]))
def test_the_roles_take_turns_in_order(depth, groups, scope):
    kernel = turns(depth, groups, scope=scope)
    for tiles in (0, 1, groups, 3 * groups + 1):
        for seed in range(2):
            simulator.seed(seed)
            log = np.full((depth, tiles), -1)
            used = np.zeros(depth, np.int64)
            kernel[1, 32 * groups + 32](log, used, tiles)
            np.testing.assert_array_equal(log, np.tile(np.arange(tiles), (depth, 1)))


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        ("wait", "arrive: the role has not waited for this turn.*call wait"),
        ("arrive", "wait: the role still has its turn.*call arrive"),
    ],
)
def test_a_dropped_wait_or_arrival_is_caught(broken, text):
    log, used = np.zeros((2, 8)), np.zeros(2, np.int64)
    with pytest.raises(simulator.BarrierMisuse, match=text):
        turns(2, 2, broken)[1, 96](log, used, 8)


def test_a_role_that_never_ends_its_turn_is_a_deadlock():
    ROLES = tma.Roles(math0=tma.Warps(1), math1=tma.Warps(1))
    ORDER = tma.OrderedSequenceBarrier(1, (ROLES.math0, ROLES.math1))

    @cuda.jit
    def stuck():
        order = ORDER.start()
        order.wait()
        if ROLES.math1.is_member():
            order.arrive()

    with pytest.raises(simulator.Deadlock, match=r"turn\[0\] of math1"):
        stuck[1, 64]()
