"""`with` over pipelines on the GPU: every tile is right, whatever ends a scope."""

import pytest
from numba import cuda

import numba_tma as tma
from tests.gpu.worker import on_gpu
from tests.kernels import scope_pipelines as scoped

CASE = scoped.Case(cuda.to_device, lambda array: array.copy_to_host())
W = tma.Warps
HALF = tma.Tile((scoped.ROWS // 2, scoped.COLUMNS), "u32")
STAGES = pytest.mark.parametrize("stages", range(1, 5))


def counts(stages):
    return sorted({0, 1, stages - 1, stages, 2 * stages + 1, 1000})


@STAGES
@pytest.mark.parametrize(
    ("groups", "k_group"),
    [((W(1), W(4)), 1), ((W(1), W(2)), 3), ((W(2), W(1), W(3)), 1), ((W(1), W(1), W(1), W(1)), 2)],
)
@on_gpu
def test_the_usage_block(stages, groups, k_group):
    for n_tiles in counts(stages):
        CASE.payload_scopes(stages, groups, k_group, n_tiles)


@STAGES
@on_gpu
def test_stages_that_cp_async_fills(stages):
    for groups in ((W(1), W(4)), (W(4), W(2)), (tma.Threads(48), W(1))):
        for n_tiles in counts(stages):
            CASE.skipping(scoped.cp_async_kernels(stages, groups), n_tiles, by_map=False)


@STAGES
@on_gpu
def test_stages_that_threads_fill(stages):
    for groups in ((W(1), W(4)), (W(4), W(2)), (tma.Threads(48), W(1))):
        for n_tiles in counts(stages):
            CASE.skipping(scoped.thread_kernels(stages, groups), n_tiles, by_map=False)


@STAGES
@pytest.mark.parametrize("per_tile", [False, True])
@on_gpu
def test_clusters(stages, per_tile):
    for n_tiles in counts(stages):
        made = scoped.cluster_kernels(stages, (W(1), W(2)), per_tile)
        CASE.skipping(made, n_tiles, blocks=2, tile=HALF)


@STAGES
@pytest.mark.parametrize("returns", [False, True])
@pytest.mark.parametrize("cluster", [1, 2])
@on_gpu
def test_scopes_that_are_left_early(stages, cluster, returns):
    for n_tiles in counts(stages)[1:]:
        CASE.early(stages, (W(1), W(2)), cluster, n_tiles, returns)


@STAGES
@pytest.mark.parametrize("inner", [1, 2, 7])
@on_gpu
def test_scopes_within_a_persistent_loop(stages, inner):
    for n_tiles in counts(stages):
        CASE.skipping(scoped.persistent_kernels(stages, (W(1), W(2)), inner), n_tiles)


@STAGES
@on_gpu
def test_stores_from_a_scopes_stage(stages):
    for n_tiles in (*counts(stages), 9):
        CASE.stored(stages, (W(1), W(4)), n_tiles)


@pytest.mark.parametrize("stages", range(2, 7))
@on_gpu
def test_a_stage_that_is_held_while_others_go_by(stages):
    for turns in (1, 3, 200):
        CASE.held(stages, (W(1), W(2)), turns)


@STAGES
@on_gpu
def test_scopes_in_device_functions_and_over_two_pipelines(stages):
    for n_tiles in counts(stages):
        CASE.in_functions(stages, (W(1), W(2)), n_tiles)
        CASE.two_pipelines(stages, (W(1), W(2)), n_tiles)
