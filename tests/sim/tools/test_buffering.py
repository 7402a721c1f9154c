"""The table of circular buffering in the simulator: each kernel against NumPy."""

import pytest

from numba_tma import simulator
from tests.kernels import buffering
from tests.tiers import seeds


@seeds(1, 3)
@pytest.mark.parametrize("case", buffering.CASES, ids=str)
def test_each_kernel_computes_what_numpy_does(case, seeds):
    for seed in seeds:
        simulator.seed(seed)
        buffering.run(*case, tiles=3)


@pytest.mark.parametrize("tiles", [1, 6])
def test_any_number_of_tiles(tiles):
    for form in ("circular, mbarrier", "warp-specialised"):
        buffering.run("silu", form, 4, tiles)
