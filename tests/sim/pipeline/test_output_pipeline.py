"""OutputTilePipeline in the simulator: values under several seeds, in both memories."""

from collections import Counter

import numpy as np
import pytest

import numba_tma as tma
from numba_tma import simulator as sim
from tests.kernels import output_kernels as kernels
from tests.tiers import quick

CASE = kernels.Case()
W = tma.Warps


def counts(stages):
    return sorted({0, 1, stages - 1, stages, 2 * stages + 1})


@pytest.mark.parametrize(
    "seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("build", kernels.SHARED)
def test_every_form_hands_over_in_shared_memory(build, seed):
    sim.seed(seed)
    for n in counts(2):
        CASE.shared(build, 2, (W(1), W(2)), "f32", n)


@pytest.mark.parametrize("build", kernels.SHARED)
def test_every_stage_that_is_committed_is_released(build):
    with sim.record() as trace:
        CASE.shared(build, 2, (W(1), W(1)), "f32", 5)
    completed = Counter(event.kind for event in trace.events)
    assert completed["full"] == completed["empty"] == 5


CASES = [(stages, dtype) for stages in (1, 3, 4) for dtype in ("f32", "bf16")]


@pytest.mark.parametrize(("stages", "dtype"), quick([(1, "f32"), (3, "bf16")], CASES))
def test_stages_and_dtypes(stages, dtype):
    for n in counts(stages):
        CASE.shared(kernels.shared_loop, stages, (W(1), W(1)), dtype, n)


@pytest.mark.parametrize("groups", [(W(3), W(1)), (tma.Threads(40), tma.Threads(20))])
def test_groups(groups):
    CASE.shared(kernels.shared_loop, 2, groups, "f32", 5)


@pytest.mark.parametrize(
    "seed",
    [
        0,
        pytest.param(1, marks=pytest.mark.slow),
        pytest.param(2, marks=pytest.mark.slow),
        pytest.param(3, marks=pytest.mark.slow),
    ],
)
def test_a_copy_stores_what_stmatrix_filled(seed):
    sim.seed(seed)
    CASE.copied(2, 5)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "build",
    [kernels.TENSOR[0], *(pytest.param(b, marks=pytest.mark.slow) for b in kernels.TENSOR[1:])],
)
def test_every_form_hands_over_in_tensor_memory(build, seed):
    sim.seed(seed)
    dtype = "u32" if build is kernels.tensor_explicit else "f32"
    numpy = np.dtype(np.uint32 if dtype == "u32" else np.float32)
    for stages, n in ((1, 2), (2, 0), (2, 5)):
        ROLES, kernel = build(stages, dtype)
        bits = np.random.default_rng(n).integers(0, 2**31 - 2**23, (max(1, n), 128, 16), np.uint32)
        out = CASE.launch(kernel, ROLES, bits.view(numpy), n)
        np.testing.assert_array_equal(out.view(np.uint32)[:n], bits.transpose(0, 2, 1)[:n])
