"""Every mutant that the simulator must report, under several orders."""

import pytest

from numba_tma import simulator
from tests.mutants.mutants import MUTANTS, PROGRAMS
from tests.mutants.table import built, run
from tests.tiers import seeds

MORE_SEEDS = range(8)  # where one order can hide it


@seeds(1, 2)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.pipeline)
def test_the_program_is_right_before_it_is_broken(program, seeds):
    for seed in seeds:
        simulator.seed(seed)
        got, wanted = run(program, built(program, program.source))
        assert (got == wanted).all()


@seeds(1, 2)
@pytest.mark.parametrize("mutant", [m for m in MUTANTS if "simulator" in m.caught], ids=repr)
def test_the_simulator_catches(mutant, seeds):
    names, text = mutant.caught["simulator"]
    raised = []
    for seed in MORE_SEEDS if mutant.some_orders else seeds:
        simulator.seed(seed)
        try:
            with mutant.patches():
                run(mutant.program, mutant.build())
        except simulator.SimulatorError as error:
            assert type(error).__name__ in names.split(), f"seed {seed}: {error!r}"
            raised.append(error)
            if type(error).__name__ == names.split()[0]:
                assert text in str(error), f"seed {seed}"
        else:
            assert mutant.some_orders, f"seed {seed}: nothing was raised"
    assert raised
