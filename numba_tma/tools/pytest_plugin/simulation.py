"""Tests in the simulator: one order of a seed, or every order."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from unittest import mock

import pytest

if TYPE_CHECKING:
    from numba_tma.simulator import Report

#: The name of a test's property that has the sizes of what was explored.
EXPLORED = "explored"


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Begin the simulator's order with a seed; raise if a simulated thread outlives its launch.

    A launch that leaves copies in flight raises by itself.
    """
    from numba_tma import simulator
    from numba_tma.simulator.scheduler import Scheduler
    from numba_tma.simulator.thread import SimulatedThread

    run, left = Scheduler.run, list[SimulatedThread]()

    def checked(self: Scheduler, threads: Sequence[SimulatedThread]) -> None:
        try:
            run(self, threads)
        finally:
            left.extend(thread for thread in threads if thread)  # it has begun and not ended

    simulator.seed(seed)
    with mock.patch.object(Scheduler, "run", checked):
        yield
    if left:
        raise AssertionError(f"{len(left)} simulated threads have outlived their launch: {left}")


def explore(item: pytest.Function, limit: int) -> None:
    """Run a test's function so that its launches are explored in every order."""
    from numba_tma import simulator

    names = item._fixtureinfo.argnames
    arguments = {name: item.funcargs[name] for name in names}
    report = simulator.explore(lambda: item.obj(**arguments), limit=limit)
    item.user_properties.append((EXPLORED, sizes_of(report)))


def sizes_of(report: Report) -> str:
    """Return what the summary shows of an exploration."""
    return f"{report.runs} {report.states} {report.transitions}"


def write_summary(reporter: pytest.TerminalReporter) -> None:
    """Print the blocks, states and steps of each test that was explored."""
    found = [
        (report.nodeid.rpartition("::")[2], str(sizes).split())
        for report in reporter.getreports("passed")
        for name, sizes in report.user_properties
        if name == EXPLORED
    ]
    if found:
        reporter.section("explored in every order")
    for test, (runs, states, steps) in sorted(found):
        reporter.line(f"{int(states):>9,} states {int(steps):>9,} steps {runs:>3} runs  {test}")
