"""The table of circular buffering in the simulator: each kernel against NumPy."""

import pytest

from numba_tma import simulator
from tests.kernels import buffering
from tests.tiers import quick, seeds


def is_quick(case):
    """One stage is the same for any work. Three tiles show no second turn of four stages.

    The six tiles of `test_any_number_of_tiles` do.
    """
    ((work, form, stages),) = case
    return stages == 2 or stages == 1 and (work == "silu" or form == "synchronous")


CASES = quick(is_quick, [(case,) for case in buffering.CASES])


@seeds(1, 3)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_kernel_computes_what_numpy_does(case, seeds):
    for seed in seeds:
        simulator.seed(seed)
        buffering.run(*case, tiles=3, blocks=2 if case[2] == 1 else 1)


@pytest.mark.parametrize("tiles", [1, 6])
def test_any_number_of_tiles(tiles):
    for form in ("circular, mbarrier", "warp-specialised"):
        buffering.run("silu", form, 4, tiles, blocks=1)
