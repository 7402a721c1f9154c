"""The rules of races mode judge the steps of the simulator's threads, right and broken."""

import pytest

from numba_tma import simulator
from tests.mutants.mutants import MUTANTS, PROGRAMS
from tests.mutants.table import built, run
from tests.sim.race_log import record
from tests.tiers import every

#: The errors after which the simulator runs on no further, before a GPU would have logged the race.
STOPS = ("BarrierMisuse", "Deadlock", "WrongByteCount", "BadCoordinate")
RACES = [
    mutant
    for mutant in MUTANTS
    if mutant.program.on_hopper
    and not mutant.patched
    and not {"host", "compile", "launch", "debug"} & set(mutant.caught)
]
RIGHT = [program for program in PROGRAMS if program.on_hopper]


@pytest.mark.parametrize("program", every(5, RIGHT), ids=lambda p: p.pipeline)
def test_a_right_program_has_no_race(program):
    simulator.seed(1)
    recorder, error = record(lambda: run(program, built(program, program.source)))
    assert error is None and recorder.races() == []


@pytest.mark.filterwarnings("ignore:.*overflow")  # sums of what was not loaded yet
@pytest.mark.parametrize("mutant", every(8, RACES), ids=repr)
def test_a_mutant_has_one(mutant):
    simulator.seed(1)
    recorder, error = record(lambda: run(mutant.program, mutant.build()))
    stopped = type(error).__name__
    races = recorder.races(ended=stopped not in STOPS)
    assert races or stopped in STOPS
