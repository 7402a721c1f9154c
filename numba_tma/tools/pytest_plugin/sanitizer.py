"""A test under compute-sanitizer, in a process of its own."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence

import pytest

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
#: The option of the run inside: there the test is called.
INSIDE = "--tma-sanitized"
_FOUND = re.compile(r"(?:ERROR SUMMARY: (\d+) error|SUMMARY: (\d+) hazard)")
_SKIPPED = re.compile(r"^SKIPPED \[\d+\] (.*)$", re.MULTILINE)
#: Where what the tool has seen ends, and the host's stack begins.
_HOST = ("Saved host backtrace", "Host Frame", "Host Traceback")
_RECORDS = 8


def missing() -> str:
    """Return why no test can run under compute-sanitizer; "" if one can."""
    if shutil.which("compute-sanitizer"):
        return ""
    return "compute-sanitizer is not on PATH: it comes with the CUDA toolkit"


def check(config: pytest.Config, nodeid: str, tool: str, limit: float) -> None:
    """Run a test under a tool; fail with what the tool reports, or with what the test prints."""
    command = [*tool_command(tool), sys.executable, *pytest_arguments(config), nodeid]
    try:
        done = subprocess.run(
            command, cwd=config.rootpath, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.fail(f"no end within {limit:g} s under {tool}", pytrace=False)
    output = done.stdout + done.stderr
    found = _FOUND.search(output)
    if found is None:
        pytest.fail(f"{tool} has reported nothing:\n{output[-4000:]}", pytrace=False)
    if number := int(found[1] or found[2]):
        pytest.fail(f"{tool} reports {number}:\n{readable(output)}", pytrace=False)
    if done.returncode:
        pytest.fail(f"the test fails under {tool}:\n{output[-4000:]}", pytrace=False)
    if skipped := _SKIPPED.search(output):
        pytest.skip(skipped[1])


def tool_command(tool: str) -> list[str]:
    """Return compute-sanitizer's part of the command."""
    # Reports of the API are left out: cuda.bindings asks every driver for functions of newer ones.
    extra = ["--report-api-errors", "no"] if tool == "memcheck" else []
    return ["compute-sanitizer", "--tool", tool, *extra]


def pytest_arguments(config: pytest.Config) -> list[str]:
    """Return pytest's part, without the options and the workers of the run outside."""
    ini = ["-c", str(config.inipath)] if config.inipath else []
    mode = f"--import-mode={config.getoption('importmode')}"
    place = f"--rootdir={config.rootpath}"
    plugins = ["-p", "numba_tma_pytest", "-p", "no:cacheprovider"]
    return ["-m", "pytest", "-q", "-rs", *plugins, *ini, place, mode, "-o", "addopts=", INSIDE]


def readable(output: str) -> str:
    """Return the first records of a report, without the host's stacks."""
    records: list[list[str]] = []
    hidden = False
    for line in output.splitlines():
        if not line.startswith("========="):
            continue
        text = line.removeprefix("=========")
        if not text.startswith("     "):  # the first line of a record
            records.append([])
            hidden = False
        hidden = hidden or text.strip().startswith(_HOST)
        if text.strip() and not hidden and records:
            records[-1].append(text[1:])
    told = [record for record in records if record and not _is_frame(record)]
    more = len(told) - _RECORDS
    lines = [line for record in told[:_RECORDS] for line in record]
    return "\n".join([*lines, *([f"and {more} more"] if more > 0 else [])])


def _is_frame(record: Sequence[str]) -> bool:
    return record[0].startswith(("COMPUTE-SANITIZER", "ERROR SUMMARY", "RACECHECK SUMMARY"))
