"""OutputTilePipeline in the simulator: values under several seeds, in both memories."""

from collections import Counter

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import simulator as sim
from tests.kernels import output_kernels as kernels
from tests.tiers import quick, seeds

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


PAIR_ROLES = tma.Roles(mma=W(1), epilogue=W(4))


@seeds(1, 4)
def test_each_pair_of_a_cluster_passes_accumulators_to_its_own_epilogues(seeds):
    PAIR = tma.OutputTilePipeline(
        2,
        tma.Tile((128, 32), "f32"),
        mma=PAIR_ROLES.mma,
        epilogue=PAIR_ROLES.epilogue,
        memory="tensor",
        cta_group=2,
        cluster=(4, 1),
    )

    @cuda.jit
    @tma.cluster((4, 1))
    def kernel(stages, n):
        pipe = PAIR.start()
        if PAIR_ROLES.mma.is_member():
            for _ in pipe.produce(0, n):
                pass
        else:
            for tile, stage in pipe.consume(0, n):
                if cuda.threadIdx.x == PAIR_ROLES.epilogue.first:
                    stages[cuda.blockIdx.x, tile] = stage.index
        pipe.close()

    for seed in seeds:
        sim.seed(seed)
        stages = np.full((4, 5), -1)
        kernel[4, PAIR_ROLES.threads](stages, 5)
        np.testing.assert_array_equal(stages, np.tile(np.arange(5) % 2, (4, 1)))
