"""Every kind of ring in the simulator: each tile is right for every producer and consumer."""

import pytest

import numba_tma as tma
from numba_tma import simulator as sim
from tests.kernels import ring_kernels as rings
from tests.tiers import quick

CASE = rings.Case()
W = tma.Warps


@pytest.fixture(autouse=True, params=[0, pytest.param(1, marks=pytest.mark.slow)])
def seeded(request):
    sim.seed(request.param)


SHAPES = [
    (1, (W(1), W(1)), 1, 0),
    (2, (W(1), W(2)), 2, 1),
    (3, (W(1), W(1), W(2)), 1, 0),
    (2, (W(2), W(1), W(1), W(1)), 3, 1),
    (2, (W(1), tma.Threads(40)), 1, 0),
]


@pytest.mark.parametrize("name", rings.PAYLOADS)
@pytest.mark.parametrize(("stages", "groups", "k_group", "in_flight"), quick(SHAPES[1::3], SHAPES))
def test_payloads_and_several_consumers(name, stages, groups, k_group, in_flight):
    for n_tiles in (0, 1, 5):
        CASE.payload(stages, groups, k_group, name, in_flight, n_tiles)


@pytest.mark.parametrize("filled_by", ["cp_async", "threads"])
@pytest.mark.parametrize(
    ("stages", "groups"),
    [(1, (W(1), W(1))), (2, (W(2), W(1))), (3, (tma.Threads(48), tma.Threads(32)))],
)
def test_stages_that_threads_fill(filled_by, stages, groups):
    for n_tiles in (0, 1, 2 * stages + 1):
        CASE.one_input(rings.filled_kernel(stages, groups, filled_by), False, n_tiles)


@pytest.mark.parametrize("stages", [2, 4])
def test_consumers_that_take_turns(stages):
    for n_tiles in (0, 1, 2, 3, 9):
        CASE.one_input(rings.alternate_kernel(stages, (W(1), W(1), W(1))), True, n_tiles, 2)


CLUSTERS = [
    (stages, *case)
    for stages in (1, 3)
    for case in (
        ((2, 1), (("a", "x"),), (4, 1)),
        ((1, 2), (("a", "y"),), (1, 2)),
        ((2, 2), (("a", "x"), ("b", "y")), (2, 2)),
        ((2, 2), (("a", "x"), ("b", "x")), (2, 4)),
        ((4, 1), (("a", "x"),), (4, 1)),
    )
]


@pytest.mark.parametrize(
    ("stages", "cluster", "shared", "grid"), quick([CLUSTERS[i] for i in (1, 2, 5)], CLUSTERS)
)
def test_clusters_that_share_tiles(stages, cluster, shared, grid):
    for n_tiles in (1, 2 * stages + 1):
        CASE.multicast(stages, cluster, shared, (W(1), W(1)), grid, n_tiles)


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_asking_before_waiting_and_memory_handed_in(stages):
    for n_tiles in (0, 1, 2 * stages + 1):
        CASE.one_input(rings.try_kernel(stages, (W(1), W(1))), True, n_tiles)


def test_registers_that_move():
    for n_tiles in (0, 5):
        CASE.one_input(rings.register_kernel(2, 1, 40), True, n_tiles)


@pytest.mark.parametrize(("stages", "k_group"), [(1, 1), (2, 2)])
def test_block_scales(stages, k_group):
    for n_tiles in (0, 1, 2 * stages + 1):
        CASE.block_scaled(stages, (W(1), W(2)), k_group, n_tiles)
