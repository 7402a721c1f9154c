"""The tcgen05 matmuls, and every mistake in them that the simulator must report by name."""

import sys

import pytest

from numba_tma import simulator as sim
from tests.kernels import scaled_matmul, tensor_matmul
from tests.mutants.tensor import MUTANTS
from tests.tiers import every, seeds


@seeds(1, 4)
@pytest.mark.parametrize(
    ("program", "name"),
    [(tensor_matmul, "matmul"), (tensor_matmul, "paired"), (scaled_matmul, "scaled")],
)
def test_the_kernel_is_right_before_it_is_broken(program, name, seeds):
    for seed in seeds:
        sim.seed(seed)
        found, expected = program.launch(getattr(program, name))
        assert (found == expected).all()


def test_there_are_as_many_mutants_as_promised():
    assert len({repr(mutant) for mutant in MUTANTS}) == len(MUTANTS) >= 20


@seeds(1, 3)
@pytest.mark.parametrize("mutant", every(8, MUTANTS), ids=repr)
def test_the_simulator_catches(mutant, seeds):
    kernel = mutant.build()
    for seed in seeds:
        sim.seed(seed)
        with pytest.raises(sim.SimulatorError) as caught:
            sys.modules[mutant.program.__module__].launch(kernel)
        name = type(caught.value).__name__
        assert name in mutant.errors.split(), f"seed {seed}: {caught.value!r}"
        if name == mutant.errors.split()[0]:
            assert mutant.text in str(caught.value), f"seed {seed}"
