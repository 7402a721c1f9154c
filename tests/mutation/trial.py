"""One small bug in a copy of the project, and the tests that might notice it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.covering import FAST, TIERS, TestFile, environment, reaching
from tests.mutation.sites import Mutation

#: Tests that compare with a file which is written from the code: any change fails them.
GENERATED = (
    "test_kernel_goldens.py", "test_api_page.py", "test_instruction_table.py", "test_house.py",
    "test_text.py",
)  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """What became of a mutation."""

    outcome: str  #: "killed", "golden" (killed by a generated file alone), "survived", "unreached"
    by: str  #: the test that failed first, or "time" for a test that did not end
    seconds: float


def copy_project(root: Path, to: Path) -> Path:
    """Copy the files that git tracks or does not ignore, and return the copy's folder."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root, check=True, capture_output=True, text=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (root / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, to / name)
    return to


def judge(copy: Path, mutation: Mutation, tests: Sequence[TestFile], limit: float) -> Verdict:
    """Put the bug into the copy, run the tests that reach it until one fails, and take it out."""
    start = time.monotonic()
    chosen = reaching(tests, mutation.path, mutation.line, limit)
    path = copy / mutation.path
    source = path.read_text()
    _write(path, mutation.apply(source))
    try:
        outcome, by = _first_failure(copy, chosen)
    finally:
        _write(path, source)
    if not chosen:
        outcome = "unreached"
    return Verdict(outcome, by, round(time.monotonic() - start, 1))


def _first_failure(copy: Path, chosen: Sequence[TestFile]) -> tuple[str, str]:
    generated = [test for test in chosen if test.path.endswith(GENERATED)]
    behaviour = [test for test in chosen if test not in generated]
    for outcome, some in (("killed", behaviour), ("golden", generated)):
        for tier in TIERS:
            if by := _failure(copy, tier, [test for test in some if test.tier == tier]):
                return outcome, by
    return "survived", ""


def _failure(copy: Path, tier: str, tests: Sequence[TestFile]) -> str:
    """Run test files in one process until a test fails. Return its name; "" if all pass."""
    if not tests:
        return ""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", FAST, "-p", "no:cacheprovider"]
    process = subprocess.Popen(
        [*command, *(test.path for test in tests)],
        cwd=copy,
        env=environment(copy, tier),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # a bug may hang tests that have processes of their own
    )
    try:
        text, _ = process.communicate(timeout=60 + 4 * sum(test.seconds for test in tests))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return "time"
    if process.returncode == 0:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", text, re.M)
    return failed[1] if failed else f"exit {process.returncode}"


def _write(path: Path, text: str) -> None:
    """Write a source file, and forget its bytecode, which may have the same second and size."""
    path.write_text(text)
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()
