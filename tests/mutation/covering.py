"""Which test files reach which lines of the library, by execution or by compilation.

As a pytest plugin (``-p tests.mutation.covering``) this module records the lines that one run
executes, and those of the functions that Numba compiles, whose Python never runs. `record` runs
each test file in a process of its own, so that no file profits from what another has compiled.
"""

from __future__ import annotations

import ast
import functools
import itertools
import json
import math
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

#: The variable that tells the plugin where to write.
WRITE_TO = "NUMBA_TMA_COVERING"
ROOT = Path(__file__).parents[2]
FAST = "not gpu and not slow"
TIERS = ("cpu", "sim")


@dataclass(frozen=True)
class TestFile:
    """A file of tests: how long it takes, and the lines of the library that it reaches."""

    path: str  #: from the root of the project
    seconds: float
    passed: bool
    lines: dict[str, list[int]]  #: by source file

    __test__ = False  # no class of tests

    @property
    def tier(self) -> str:
        """The folder in tests/: "cpu" or "sim"."""
        return self.path.split("/")[1]

    def reaches(self, path: str, line: int) -> bool:
        """Return whether some test of the file reaches a line."""
        return line in self.lines.get(path, ())


def environment(root: Path, tier: str) -> dict[str, str]:
    """Return the environment of a test process of a tier."""
    simulator = {"NUMBA_ENABLE_CUDASIM": "1"} if tier == "sim" else {}
    return {**os.environ, "PYTHONPATH": str(root), "OPENBLAS_NUM_THREADS": "1", **simulator}


def record(root: Path, to: Path, jobs: int, folder: str = "") -> list[TestFile]:
    """Run the test files of the fast tiers, and return what each reaches; kept in the folder `to`.

    With `folder`, only the files in that folder of each tier.
    """
    to.mkdir(parents=True, exist_ok=True)

    def run(test: Path) -> TestFile:
        name = test.relative_to(root).as_posix()
        kept = to / (name.replace("/", ".") + ".json")
        if not kept.exists():
            tier, lines = name.split("/")[1], kept.with_suffix(".lines")
            command = [sys.executable, "-m", "pytest", "-q", "-m", FAST, name]
            command += ["-p", "no:cacheprovider", "-p", "tests.mutation.covering"]
            start = time.monotonic()
            done = subprocess.run(
                command,
                cwd=root,
                env=environment(root, tier) | {WRITE_TO: str(lines)},
                capture_output=True,
            )
            seconds = time.monotonic() - start
            reached = json.loads(lines.read_text()) if lines.exists() else {}
            lines.unlink(missing_ok=True)
            passed = done.returncode in (0, 5)  # 5: all tests of the file are slow
            found = TestFile(name, round(seconds, 1), passed, reached)
            kept.write_text(json.dumps(asdict(found)))
        return TestFile(**json.loads(kept.read_text()))

    folders = [root / "tests" / tier / folder for tier in TIERS]
    tests = [path for each in folders for path in sorted(each.rglob("test_*.py"))]
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(run, tests))


# ------------------------------------------------------------------------------- the plugin


class _Recorder:
    """Records the lines of the library that this process executes or compiles."""

    def __init__(self, root: Path) -> None:
        import coverage
        from numba.cuda.core import bytecode  # numba-cuda has its own

        self.root = root
        self.compiled: dict[str, set[int]] = defaultdict(set)
        # sys.monitoring (Python 3.12) costs next to nothing, and sees greenlets by itself.
        monitored = hasattr(sys, "monitoring")
        os.environ.setdefault("COVERAGE_CORE", "sysmon" if monitored else "ctrace")
        self.coverage = coverage.Coverage(
            data_file=None,
            source=[str(root / "numba_tma")],
            concurrency=["thread"] if monitored else ["greenlet", "thread"],
        )

        original = bytecode.FunctionIdentity.from_function.__func__

        def noted(cls: Any, function: Any) -> Any:
            code = function.__code__
            lines = {line for _, _, line in code.co_lines() if line is not None}
            self.compiled[code.co_filename] |= lines | {code.co_firstlineno}
            return original(cls, function)

        bytecode.FunctionIdentity.from_function = classmethod(noted)
        self.coverage.start()

    def lines(self) -> dict[str, list[int]]:
        self.coverage.stop()
        data = self.coverage.get_data()
        found = {name: set(data.lines(name) or ()) for name in data.measured_files()}
        for name, lines in self.compiled.items():
            found.setdefault(name, set()).update(lines)
        return {
            Path(name).relative_to(self.root).as_posix(): sorted(lines)
            for name, lines in found.items()
            if Path(name).is_relative_to(self.root / "numba_tma")
        }


#: Begins with the import: files of conftest import the library before plugins are configured.
_RECORDER = _Recorder(ROOT) if WRITE_TO in os.environ else None


def pytest_unconfigure() -> None:
    if _RECORDER:
        Path(os.environ[WRITE_TO]).write_text(json.dumps(_RECORDER.lines()))


# ------------------------------------------------------------------------------- the choice


def reaching(
    tests: Iterable[TestFile], path: str, line: int, limit: float = math.inf
) -> list[TestFile]:
    """Return the passing test files that reach a line: those that import its module come first.

    Then come those that are named most like its file, and of equals the quick ones. Together they
    take at most `limit` seconds; the first is there if it takes longer. Processes that a test
    starts are not recorded, so a line that nothing reaches gets the files that are named like its
    own.
    """
    words, passing = _words(path), [test for test in tests if test.passed]
    found = [test for test in passing if test.reaches(path, line)]
    found = found or [test for test in passing if Path(path).stem in _words(test.path)]
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def distance(test: TestFile) -> tuple[bool, int, float]:
        return module not in imports(test.path), -len(words & _words(test.path)), test.seconds

    found.sort(key=distance)
    ends = itertools.accumulate(test.seconds for test in found)
    return [test for i, (test, end) in enumerate(zip(found, ends)) if not i or end <= limit]


@functools.cache
def imports(path: str) -> set[str]:
    """Return the names that a test file imports: modules, and what is imported from them."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
    return found


def _words(path: str) -> set[str]:
    """Return the words of a path: matmul/grouped.py and test_matmul_grouped.py share two."""
    return set(path.removesuffix(".py").replace("/", "_").split("_"))
