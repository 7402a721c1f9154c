"""Every mistake in the attention kernel of Blackwell's tensor cores is found in the simulator."""

import numpy as np
import pytest

from numba_tma import simulator as sim
from numba_tma.kernels.attention import Tcgen05AttentionPlan, launch
from tests.mutants.attention import MUTANTS
from tests.sim.kernels.test_attention import arrays, check
from tests.tiers import every, seeds


def attend(stages=4):
    """Compute two K/V tiles, whose maxima grow, for three heads on two SMs; compare with NumPy."""
    q, k, v = arrays(140, 64, heads=3, kv_heads=1)
    q[..., 0], k[0, :, 0, 0] = 8, np.arange(64) // 32 * 40
    check(q, k, v, plan=Tcgen05AttentionPlan(32, stages), return_lse=True)


@pytest.mark.slow
def test_the_kernel_is_right_before_it_is_broken():
    for seed in range(3):
        sim.seed(seed)
        attend()


def test_there_are_as_many_mutants_as_promised():
    assert len({repr(mutant) for mutant in MUTANTS}) == len(MUTANTS) >= 25


@seeds(1, 3)
@pytest.mark.parametrize("mutant", every(8, MUTANTS), ids=repr)
@pytest.mark.filterwarnings("ignore")  # of arithmetic with numbers that were never written
def test_a_mutant_is_caught(mutant, seeds, monkeypatch):
    monkeypatch.setattr(launch, "tcgen05_attention_kernel", mutant.build())
    for seed in seeds:
        sim.seed(seed)
        with pytest.raises((sim.SimulatorError, AssertionError)) as caught:
            attend(mutant.stages)
        name = type(caught.value).__name__
        assert name in mutant.errors.split(), f"seed {seed}: {caught.value!r}"
        if name == mutant.errors.split()[0]:
            assert mutant.text in str(caught.value), f"seed {seed}"
