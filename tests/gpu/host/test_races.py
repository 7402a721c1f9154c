"""Races mode on a GPU: broken kernels are named, and right ones raise nothing.

``python -m tests.gpu.race_report`` has every mutant at once.
"""

import pytest

from tests.gpu import race_report as report
from tests.tiers import every, quick

#: What races mode does not see: the log's unit is 16 bytes, of which the program writes a part.
MISSED = [
    "TilePipeline, filled_by='cp_async': A stage is filled in part",
    "TilePipeline, filled_by='threads': A stage is filled in part",
    "OutputTilePipeline: A stage is filled in part",
]
#: The device may end these launches with an error, sometimes before the log shows what is wrong.
CRASHED = [
    "TilePipeline, multicast: A block of a cluster ends before its peers",
    "TilePipeline, filled_by='cp_async': A stage is filled before it is empty",
    "barriers by hand: A stage is used before it is full",
    "barriers by hand: A wait names the previous phase",
]
CAUGHT = [name for name in map(repr, report.RUN) if name not in MISSED + CRASHED]


def workers(seconds):
    worker = report.RacesWorker(seconds=seconds)
    yield worker
    worker.stop()


@pytest.fixture(scope="module")
def worker():
    yield from workers(1)


@pytest.fixture(scope="module")
def patient():
    """Of kernels that have no stuck wait: on a GPU that others share, a wait may take seconds."""
    yield from workers(20)


def call(worker, function, *args, limit=report.LIMIT):
    return worker.call(function, *args, limit=limit)


def test_every_mutant_has_one_expectation():
    names = set(map(repr, report.RUN))
    assert names.issuperset(MISSED + CRASHED) and not set(MISSED) & set(CRASHED)


def caught(worker, name, runs=3):
    """Return whether a mutant is caught, in the first of so many runs that the device lets end."""
    for _ in range(runs):
        try:
            return call(worker, report.broken, name) is not None
        except report.WorkerLost as lost:
            if "LAUNCH_FAILED" not in str(lost):
                raise
    return False


@pytest.mark.parametrize("name", every(12, CAUGHT))
def test_a_mutant_is_caught(worker, name):
    assert caught(worker, name)


@pytest.mark.parametrize("name", quick(MISSED[:1], MISSED))
def test_a_mutant_is_missed(patient, name):
    """One that is caught from now on leaves the list."""
    assert call(patient, report.broken, name) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", CRASHED)
def test_the_device_ends_a_mutant_or_its_race_is_found(worker, name):
    try:
        found = call(worker, report.broken, name)
    except (AssertionError, report.WorkerLost) as error:
        assert "LAUNCH_FAILED" in str(error)
    else:
        assert found is not None


@pytest.mark.parametrize("name", every(4, [p.pipeline for p in report.RIGHT]))
def test_a_right_program_raises_nothing(patient, name):
    assert call(patient, report.right, name) is None


@pytest.mark.parametrize("name", quick(["cp_async", "threads"], report.PARTS))
def test_shipped_kernels_raise_nothing(patient, name):
    assert call(patient, report.part, name, limit=400) is None


def test_the_message_names_both_sides(patient):
    found, text = call(patient, report.broken, "TilePipeline: A stage is used after its release")
    assert {kind for kind, _ in found} & {"EarlyOverwrite", "EarlyRead"}
    first = text.splitlines()[0]
    assert " of TilePipeline: " in first and "add warp" in first and "load warp" in first
    assert first.count("mutant-") == 2
