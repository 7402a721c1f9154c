"""A survey's run: cases one by one in a process of their own, and rows as they are measured.

A case that hangs or takes the CUDA context along ends that process, gets a row that says so, and
the next process goes on behind it. Before that, processes side by side call everything once, so
that what is compiled is in the kernel cache.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

from numba_tma.tools.bench.peers import working
from numba_tma.tools.bench.progress import progress
from numba_tma.tools.bench.results import Results, Row, replace, versions
from numba_tma.tools.bench.survey import report
from numba_tma.tools.bench.survey.calls import call_of
from numba_tma.tools.bench.survey.draw import Case
from numba_tma.tools.bench.timing import worse_of_two
from numba_tma.tools.isolation import run_isolated

REPEATS = 10
CASE_SECONDS = 40  #: after which a case counts as hanging; compiling what is not cached is in it
PREPARING = 0.4  #: the share of all seconds after which measuring begins
PREPARING_SECONDS = 600  #: and the most
UNFINISHED = "not finished"  #: the error of a case that is at work
#: FlashAttention-4 keeps what it compiles on disk if it is told to.
ENVIRONMENT = {"FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "1"}
PROGRAM = (
    "import json, sys; from numba_tma.tools.bench.survey.run import work; "
    "work(*json.load(sys.stdin))"
)


# -------------------------------------------------------------------------------- the file


def read(path: Path, gpu: str) -> Results:
    """Return the results of a file, or none where there is no file.

    Raises
    ------
    SystemExit
        The file has the results of another GPU or of other versions.
    """
    new: Results = {"gpu": gpu, "versions": versions(), "rows": []}
    if not path.exists():
        return new
    found: Results = json.loads(path.read_text())
    for name in ("gpu", "versions"):
        if found[name] != new[name]:
            raise SystemExit(
                f"--output {path}: it has the results of {name} {found[name]}, and here are "
                f"{new[name]}; name another file, or measure all of it --again"
            )
    return found


def key(row: Row) -> tuple[str, str]:
    """Return the `Case.key` of a row's case."""
    return row["kernel"], row["case"]


def add(path: Path, results: Results, row: Row) -> None:
    """Write a row, in the place of the one of that case."""
    results["rows"] = [r for r in results["rows"] if key(r) != key(row)] + [row]
    replace(path, report.text(results))


def left(results: Results, cases: Sequence[Case]) -> list[Case]:
    """Return the cases that have no row yet."""
    there = {key(row) for row in results["rows"]}
    return [case for case in cases if case.key not in there]


# --------------------------------------------------------------------------------- one case


def measured(torch: ModuleType, gpu: str, case: Case) -> Row:
    """Return what a case's row has beside its names: times in microseconds, or an error."""
    try:
        return _times(torch, gpu, case)
    except Exception as error:
        return {"error": _first_line(error)}


def _times(torch: ModuleType, gpu: str, case: Case) -> Row:
    call = call_of(torch, case)
    call.right(call.ours())
    peers = working(torch, f"{case.kernel} {case.name}", call.peers, call.right)
    if not peers:
        raise RuntimeError("no peer can do it")
    copy = {"copy": call.copy[0]} if call.copy else {}
    seconds = worse_of_two({"numba_tma": call.ours, **peers, **copy}, repeats=REPEATS)
    us = {name: round(s * 1e6, 2) for name, s in seconds.items()}
    ours, copied = us.pop("numba_tma"), us.pop("copy", None)
    limit, reached = report.limit(
        gpu, case.dtype, call.nbytes, call.operations, seconds["numba_tma"]
    )
    return {
        "unit": "us",
        "numba_tma": ours,
        # A copy of all bytes that are moved.
        "copy": round(copied * call.copy[1], 2) if call.copy and copied is not None else None,
        "peers": us,
        "ratio": round(min(seconds[name] for name in us) / seconds["numba_tma"], 4),
        "bytes": call.nbytes,
        "operations": call.operations,
        "limit": limit,
        "reached": reached,
    }


def _first_line(error: BaseException) -> str:
    """Return what an error is, and the start of what it says."""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0][:200] if said else ''}"


def _row(case: Case, rest: Row) -> Row:
    names = {"family": case.family, "kernel": case.kernel, "case": case.name}
    return names | rest | {"date": datetime.date.today().isoformat()}


# ---------------------------------------------------------------------------- the processes


def work(path: str, gpu: str, cases: Sequence[Mapping[str, Any]], seconds: float) -> None:
    """Measure the cases that the file lacks, until the time is over or the CUDA context lost."""
    end = time.monotonic() + seconds
    results = read(Path(path), gpu)
    todo = left(results, [_case(case) for case in cases])
    torch = importlib.import_module("torch")
    for _ in progress(f"{case.kernel} {case.name}" for case in todo):
        if time.monotonic() > end:
            return
        case = todo.pop(0)
        add(Path(path), results, _row(case, {"error": UNFINISHED}))
        signal.alarm(CASE_SECONDS)  # which ends the process, whatever it waits for
        row = measured(torch, gpu, case)
        lost = "error" in row and _is_lost(torch)
        signal.alarm(0)
        add(Path(path), results, _row(case, row))
        if lost:
            return
        torch.cuda.empty_cache()


def _case(given: Mapping[str, Any]) -> Case:
    """Return a case as JSON has it."""
    return Case(**{**given, "shape": tuple(given["shape"])})


def _is_lost(torch: ModuleType) -> bool:
    """Return whether the CUDA context can do nothing more."""
    try:
        torch.cuda.synchronize()
    except Exception:
        return True
    return False


def start(path: Path, gpu: str, cases: Sequence[Case], seconds: float) -> int:
    """Run `work` in a process of its own, and return its exit status."""
    given = json.dumps((str(path), gpu, [asdict(case) for case in cases], seconds))
    command = [sys.executable, "-c", PROGRAM]
    return subprocess.run(command, input=given, text=True, env=os.environ | ENVIRONMENT).returncode


def prepare(cases: Sequence[Case]) -> None:
    """Call each case and its peers once, so that what they compile is in their caches."""
    torch = importlib.import_module("torch")
    unread = io.StringIO()  # measuring says what fails
    with contextlib.redirect_stdout(unread), contextlib.redirect_stderr(unread):
        for case in cases:
            with contextlib.suppress(Exception):
                call = call_of(torch, case)
                for run in (call.ours, *call.peers.values()):
                    with contextlib.suppress(Exception):
                        run()
            with contextlib.suppress(Exception):
                torch.cuda.synchronize()
                torch.cuda.empty_cache()


def prepare_all(cases: Sequence[Case], jobs: int, seconds: float) -> None:
    """Prepare cases in so many processes side by side."""

    def part(first: int) -> None:
        try:
            run_isolated(prepare, cases[first::jobs], timeout=seconds, env=ENVIRONMENT)
        except Exception as error:  # what is not prepared is compiled where it is measured
            print(f"preparing: {_first_line(error)}", flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(part, range(jobs)))


def survey(path: Path, gpu: str, cases: Sequence[Case], seconds: float, jobs: int) -> Results:
    """Measure the cases that the file lacks, and return all its results.

    Raises
    ------
    SystemExit
        A process ended before its first case.
    """
    end = time.monotonic() + seconds
    results = read(path, gpu)
    results["rows"] = [row for row in results["rows"] if row.get("error") != UNFINISHED]
    replace(path, report.text(results))
    if jobs and (todo := left(results, cases)):
        limit = min(PREPARING_SECONDS, PREPARING * seconds)
        prepare_all(todo, min(jobs, len(todo)), limit)
    while (todo := left(results, cases)) and time.monotonic() < end:
        status = start(path, gpu, cases, end - time.monotonic())
        results = read(path, gpu)
        for row in results["rows"]:
            if row.get("error") == UNFINISHED:
                ended = signal.Signals(-status).name if status < 0 else f"exit status {status}"
                row["error"] = f"the process ended: {ended}" + (
                    f", after {CASE_SECONDS} s" if status == -signal.SIGALRM else ""
                )
        replace(path, report.text(results))
        if status and len(left(results, cases)) == len(todo):
            raise SystemExit(f"--survey: the process ended before its first case ({status})")
    if todo := left(results, cases):
        print(
            f"{len(todo)} of {len(cases)} cases are left, the time is over; the same command goes "
            f"on with them",
            flush=True,
        )
    return results
