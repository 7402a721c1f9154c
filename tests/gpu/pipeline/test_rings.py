"""Every kind of ring on the GPU: each tile is right for every producer and consumer."""

import pytest
from numba import cuda

import numba_tma as tma
from tests.gpu.worker import on_gpu
from tests.kernels import ring_kernels as rings

CASE = rings.Case(cuda.to_device, lambda array: array.copy_to_host())
W = tma.Warps


def counts(stages):
    return sorted({0, 1, stages - 1, stages, 2 * stages + 1, 1000})


@pytest.mark.parametrize("name", rings.PAYLOADS)
@pytest.mark.parametrize("stages", range(1, 9))
@on_gpu
def test_payloads(stages, name):
    for n_tiles in counts(stages):
        CASE.payload(stages, (W(1), W(4)), 1, name, 0, n_tiles)


@pytest.mark.parametrize("stages", range(1, 9))
@on_gpu
def test_several_tiles_in_a_stage(stages):
    for n_tiles in counts(stages):
        CASE.payload(stages, (W(1), W(2)), 3, "standard", min(1, stages - 1), n_tiles)


@pytest.mark.parametrize("stages", range(1, 9))
@pytest.mark.parametrize(
    "groups", [(W(1), W(1), W(2)), (W(2), W(1), W(3), W(1)), (W(1), tma.Threads(40))]
)
@on_gpu
def test_several_consumers(stages, groups):
    for n_tiles in counts(stages):
        CASE.payload(stages, groups, 1, "standard", min(1, stages - 1), n_tiles)


@pytest.mark.parametrize("stages", range(1, 9))
@pytest.mark.parametrize("filled_by", ["cp_async", "threads"])
@on_gpu
def test_stages_that_threads_fill(filled_by, stages):
    for groups in ((W(1), W(4)), (W(4), W(2)), (tma.Threads(48), tma.Threads(32))):
        for n_tiles in counts(stages):
            CASE.one_input(rings.filled_kernel(stages, groups, filled_by), False, n_tiles)


@pytest.mark.parametrize("stages", range(2, 9, 2))
@on_gpu
def test_consumers_that_take_turns(stages):
    for n_tiles in counts(stages):
        CASE.one_input(rings.alternate_kernel(stages, (W(1), W(2), W(2))), True, n_tiles, 2)


@pytest.mark.parametrize("stages", range(1, 9))
@pytest.mark.parametrize(
    ("cluster", "shared", "grid"),
    [
        ((1, 1), (), (2, 1)),
        ((2, 1), (("a", "x"),), (6, 1)),
        ((1, 2), (("a", "y"),), (1, 4)),
        ((2, 2), (("a", "x"), ("b", "y")), (4, 4)),
        ((2, 2), (("a", "x"), ("b", "x")), (2, 4)),
        ((4, 1), (("a", "x"),), (8, 1)),
    ],
)
@on_gpu
def test_clusters_that_share_tiles(stages, cluster, shared, grid):
    if not shared:
        for n_tiles in counts(stages):
            CASE.payload(stages, (W(1), W(2)), 1, "standard", 0, n_tiles)
        return
    for n_tiles in counts(stages):
        CASE.multicast(stages, cluster, shared, (W(1), W(2)), grid, n_tiles)


@pytest.mark.parametrize("stages", range(1, 9))
@on_gpu
def test_asking_before_waiting_and_memory_handed_in(stages):
    for n_tiles in counts(stages):
        CASE.one_input(rings.try_kernel(stages, (W(1), W(2))), True, n_tiles)


@pytest.mark.parametrize("consumers", [1, 2, 3])
@pytest.mark.parametrize("kept", [24, 40, 56])
@on_gpu
def test_registers_that_move(consumers, kept):
    for n_tiles in counts(3):
        CASE.one_input(rings.register_kernel(3, consumers, kept), True, n_tiles)


@pytest.mark.parametrize("stages", range(1, 9))
@on_gpu
def test_block_scales(stages):
    for n_tiles in counts(stages):
        CASE.block_scaled(stages, (W(1), W(4)), 1 + stages % 2, n_tiles)
