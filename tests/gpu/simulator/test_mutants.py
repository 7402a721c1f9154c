"""Mutants that hang a GPU end in debug mode with the right error, and the context survives."""

import pytest
from numba import cuda

import numba_tma as tma
from numba_tma.tools.pytest_plugin.worker import Worker, WorkerLost
from tests.gpu.host.test_debug import ENVIRONMENT
from tests.gpu.worker import on_gpu
from tests.mutants.mutants import MUTANTS, PROGRAMS
from tests.mutants.table import built, run

STUCK = [mutant for mutant in MUTANTS if "debug" in mutant.caught]
LIMIT = 60  # two kernels are compiled


@pytest.fixture(scope="module")
def worker():
    worker = Worker(environment=ENVIRONMENT)
    yield worker
    worker.stop()


def launch(program, kernel):
    return run(program, kernel, cuda.to_device, lambda array: array.copy_to_host())


def check(program):
    got, wanted = launch(program, built(program, program.source))
    assert (got == wanted).all()


@on_gpu
def right(name):
    check(next(program for program in PROGRAMS if program.pipeline == name))


@on_gpu
def stuck(name):
    """Return what a broken kernel raises; the right one runs after it in the same process."""
    mutant = next(m for m in STUCK if repr(m) == name)
    try:
        launch(mutant.program, mutant.build())
    except tma.PipelineError as error:
        raised = type(error).__name__, str(error)
    else:
        raise AssertionError("nothing was raised")
    check(mutant.program)
    return raised


def call(worker, function, *args):
    return worker.call(function, *args, limit=LIMIT)


@pytest.mark.parametrize("name", [p.pipeline for p in PROGRAMS if p.on_hopper])
def test_the_program_is_right_before_it_is_broken(worker, name):
    call(worker, right, name)


@pytest.mark.parametrize("mutant", STUCK, ids=repr)
def test_debug_mode_catches(worker, mutant):
    kind, text = call(worker, stuck, repr(mutant))
    names, words = mutant.caught["debug"]
    assert kind in names.split()
    assert words in text


@on_gpu
def unclosed():
    mutant = next(
        m for m in MUTANTS if m.mistake.title == "A block of a cluster ends before its peers"
    )
    kernel = mutant.build()
    wrong = 0
    for _ in range(1000):
        got, wanted = launch(mutant.program, kernel)
        wrong += int((got != wanted).any())
    return f"1000 launches ended, {wrong} with wrong values"


def test_what_a_cluster_does_without_close(record_property):
    """Nothing is promised here: what happens is written down, in a process of its own."""
    worker = Worker()
    try:
        outcome = call(worker, unclosed)
    except WorkerLost as lost:
        outcome = str(lost)
    finally:
        worker.stop()
    record_property("outcome", outcome)
    print(outcome)
