"""Products whose commits release stages and hand accumulators over: values, and mutants."""

import ml_dtypes
import numpy as np
import pytest

import numba_tma as tma
from numba_tma import simulator as sim
from tests.kernels import commit_matmul as kernels
from tests.tiers import seeds

TILES, STEPS = 3, 3


def launch(group, tiles=TILES, steps=STEPS, **options):
    """Return the result of the kernel and NumPy's."""
    rng = np.random.default_rng(group)
    shape = (kernels.ROWS * group * tiles, kernels.K * steps)
    a = rng.integers(-2, 3, shape).astype(ml_dtypes.bfloat16)
    b = rng.integers(-2, 3, (kernels.N, shape[1])).astype(ml_dtypes.bfloat16)
    out = np.zeros((shape[0], kernels.N), np.float32)
    maps = map(tma.tensor_map, (a, b), kernels.tiles(group))
    kernels.matmul(group, **options)[(group, 1), kernels.ROLES.threads](*maps, out, tiles, steps)
    return out, a.astype(np.float32) @ b.astype(np.float32).T


@seeds(1, 5)
@pytest.mark.parametrize("group", [1, 2])
def test_a_block_and_a_pair_multiply(group, seeds):
    for seed in seeds:
        sim.seed(seed)
        np.testing.assert_array_equal(*launch(group))


@pytest.mark.parametrize("group", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"release": False}, "Deadlock"),
        ({"waits": False}, "EarlyRead|UninitializedRead|EarlyOverwrite|BarrierMisuse"),
    ],
)
def test_mutants_are_caught(group, options, error):
    sim.seed(0)
    with pytest.raises(sim.SimulatorError) as caught:
        launch(group, **options)
    assert type(caught.value).__name__ in error.split("|"), caught.value
