"""Every answer of docs/guide/migration.md is executed by a test that ports a seed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import executed, migration

ROOT = Path(__file__).parents[3]
#: The tests that write each name of a seed in the words of numba_tma.
PORTS = [
    *sorted((ROOT / "tests" / "sim" / "pipeline").glob("test_*_seed*.py")),
    *(ROOT / "tests" / "sim" / "pipeline" / f"test_{name}.py" for name in ("nvfuser", "staged")),
]


@pytest.mark.slow  # the ports run in every `make test`
def test_every_answer_is_executed(tmp_path):
    left = tmp_path / "not executed"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    command += ["-p", "tests.executed", "-m", "not slow", *map(str, PORTS)]
    environment = os.environ | {executed.FILE: str(left)}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
    assert left.read_text() == "", "no test that ports a seed executes these"


def test_what_is_not_called_is_missing(monkeypatch):
    def load(coords, multicast=None):
        return coords

    answers = {"load", "load(multicast=...)", "load(coords=...)"}
    monkeypatch.setattr(executed, "missing", set(answers))
    noted = executed.watched(load, "load")
    assert executed.missing == answers
    assert noted(3) == 3
    assert executed.missing == {"load(multicast=...)"}
    noted(coords=3, multicast=1)
    assert executed.missing == set()


def test_a_field_that_is_not_read_is_missing(monkeypatch):
    class Held:
        first, second = 1, 2

    monkeypatch.setattr(executed, "missing", {"Held.first", "Held.second"})
    executed.watch_reads(Held, {"first": "Held.first", "second": "Held.second"})
    assert Held().second == 2
    assert executed.missing == {"Held.first"}


def test_the_ports_are_of_all_seeds():
    assert len(PORTS) == 7 and len(migration.SEEDS) == 5
