"""`with` over pipelines in the simulator: every tile is right, whatever ends a scope."""

import pytest

import numba_tma as tma
from numba_tma import simulator as sim
from tests.kernels import scope_pipelines as scoped
from tests.tiers import quick

CASE = scoped.Case()
W = tma.Warps
HALF = tma.Tile((scoped.ROWS // 2, scoped.COLUMNS), "u32")


@pytest.fixture(autouse=True, params=[0, pytest.param(1, marks=pytest.mark.slow)])
def seeded(request):
    sim.seed(request.param)


def counts(stages):
    return sorted({0, stages - 1, 2 * stages + 1})


@pytest.mark.parametrize(
    ("stages", "groups", "k_group"),
    [(1, (W(1), W(1)), 1), (2, (W(1), W(2)), 2), (3, (W(1), W(1), W(1)), 1)],
)
def test_the_usage_block(stages, groups, k_group):
    for n_tiles in counts(stages):
        CASE.payload_scopes(stages, groups, k_group, n_tiles)


@pytest.mark.parametrize("kernels", [scoped.cp_async_kernels, scoped.thread_kernels])
@pytest.mark.parametrize(
    ("stages", "groups"), [(1, (W(1), W(1))), (3, (W(2), W(1))), (2, (tma.Threads(40), W(1)))]
)
def test_stages_that_threads_fill(kernels, stages, groups):
    for n_tiles in counts(stages):
        CASE.skipping(kernels(stages, groups), n_tiles, by_map=False)


@pytest.mark.parametrize(("stages", "per_tile"), [(1, False), (1, True), (3, False), (2, True)])
def test_clusters(stages, per_tile):
    for n_tiles in counts(stages):
        made = scoped.cluster_kernels(stages, (W(1), W(1)), per_tile)
        CASE.skipping(made, n_tiles, blocks=2, tile=HALF)


LEFT = [(s, c, r) for s in (1, 2) for c in (1, 2) for r in (False, True)]


@pytest.mark.parametrize(
    ("stages", "cluster", "returns"), quick([(1, 1, True), (2, 1, False), (2, 2, True)], LEFT)
)
def test_scopes_that_are_left_early(stages, cluster, returns):
    for n_tiles in (1, 2 * stages + 1):
        CASE.early(stages, (W(1), W(1)), cluster, n_tiles, returns)


@pytest.mark.parametrize("stages", [1, 3])
def test_scopes_within_a_persistent_loop(stages):
    for inner in (1, 2):
        for n_tiles in counts(stages):
            CASE.skipping(scoped.persistent_kernels(stages, (W(1), W(1)), inner), n_tiles)


@pytest.mark.parametrize("stages", [1, 3])
def test_stores_from_a_scopes_stage(stages):
    for n_tiles in (0, 1, 9):
        CASE.stored(stages, (W(1), W(2)), n_tiles)


@pytest.mark.parametrize("stages", quick([2, 3], [2, 3, 4, 5]))
def test_a_stage_that_is_held_while_others_go_by(stages):
    CASE.held(stages, (W(1), W(1)), 3)


@pytest.mark.parametrize("stages", quick([3], [1, 3]))
def test_scopes_in_device_functions_and_over_two_pipelines(stages):
    for n_tiles in counts(stages):
        CASE.in_functions(stages, (W(1), W(2)), n_tiles)
        CASE.two_pipelines(stages, (W(1), W(2)), n_tiles)
