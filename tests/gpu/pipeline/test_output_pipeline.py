"""OutputTilePipeline in shared memory on the GPU: each form, with several warps per role."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from tests.gpu.worker import on_gpu
from tests.kernels import output_kernels as kernels

CASE = kernels.Case(cuda.to_device, lambda array: array.copy_to_host())
W = tma.Warps
X = np.zeros((1, kernels.ROWS, kernels.COLUMNS), np.float32)


def counts(stages):
    return sorted({0, 1, stages - 1, stages, 2 * stages + 1, 1000})


@pytest.mark.parametrize("form", [build.__name__ for build in kernels.SHARED])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("stages", range(1, 9))
@on_gpu
def test_every_form_hands_over(stages, dtype, form):
    for n in counts(stages):
        CASE.shared(getattr(kernels, form), stages, (W(4), W(4)), dtype, n)


@pytest.mark.parametrize(
    "groups",
    [(W(1), W(1)), (W(8), W(3)), (tma.Warpgroups(2), W(1)), (tma.Threads(48), tma.Threads(20))],
)
@pytest.mark.parametrize("stages", range(1, 9))
@on_gpu
def test_groups(stages, groups):
    for n in counts(stages):
        CASE.shared(kernels.shared_loop, stages, groups, "f32", n)


@pytest.mark.parametrize("stages", range(1, 9))
@on_gpu
def test_a_copy_stores_what_stmatrix_filled(stages):
    for n in counts(stages):
        CASE.copied(stages, n)


@on_gpu
def test_a_launch_with_another_block_is_refused():
    ROLES, kernel = kernels.shared_loop(2, (W(1), W(1)), "f32")
    with pytest.raises(ValueError, match="launch blocks of 64, which Roles.threads says"):
        kernel[1, 96](cuda.to_device(X), cuda.to_device(X.transpose(0, 2, 1).copy()), 1)
