"""Simulator tests run in their own process, since numba reads the variable when imported."""

import os

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from numba_tma import simulator
from numba_tma.simulator import numba_hooks
from numba_tma.tools.pytest_plugin.simulation import EXPLORED, seeded, sizes_of

#: Tests of kernels as users write them. All other kernels here are for the simulator alone: they
#: take plain functions, dictionaries and formatted text, which the compiler has not.
COMPILED = (
    "kernels",
    "project",
    "tools",
    "simulator/test_refused",
    "simulator/test_generated",
    "simulator/test_plain_python",
)
FOR_THE_SIMULATOR = ("kernels/test_reductions", "kernels/test_attention_tcgen05_mutants")


@pytest.fixture(autouse=True)
def python_of_the_compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernels of the other tests be any Python."""
    place = request.path.relative_to(Path(__file__).parent).as_posix()
    if place.startswith(FOR_THE_SIMULATOR) or not place.startswith(COMPILED):
        monkeypatch.setattr(numba_hooks, "check_code", lambda function, *, device: None)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Start from one seed; no simulated thread may outlive its launch.

    What hangs all the same is ended by pytest's faulthandler_timeout.
    """
    with seeded(0):
        yield


@pytest.fixture
def explored(
    record_property: Callable[[str, object], None],
) -> Callable[..., simulator.Report]:
    """Explore a launch in every order; the run's summary shows the sizes of what was explored."""

    def check(launch: Callable[[], object], limit: int = 100_000) -> simulator.Report:
        report = simulator.explore(launch, limit=limit)
        assert report.states > report.runs > 0
        record_property(EXPLORED, sizes_of(report))
        return report

    return check
