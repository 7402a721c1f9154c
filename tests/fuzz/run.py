"""Many calls in many processes, their failures made small, and the summary."""

from __future__ import annotations

import collections
import json
import re
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from typing import Any, NamedTuple

from numba_tma.host.environment import simulated
from numba_tma.tools.pytest_plugin.worker import Worker, WorkerLost
from tests.fuzz.cases import POOLS, draw
from tests.fuzz.families import Case
from tests.fuzz.minimise import Verdict, minimise, script_of
from tests.fuzz.trial import BAD, attempt


class Failure(NamedTuple):
    """A call that failed."""

    index: int
    case: Case
    verdict: str
    text: str


class Run:
    """The calls of some seconds."""

    def __init__(self, given: Namespace) -> None:
        self.given, self.failures = given, list[Failure]()
        self.verdicts: collections.Counter[tuple[str, str]] = collections.Counter()
        self.slowest: list[tuple[float, int, str]] = []
        self.calls, self.lock, self.tiny = 0, threading.Lock(), simulated()
        self.start = time.monotonic()
        self.jobs = max(1, min(given.jobs, POOLS))

    def work(self) -> None:
        """Make calls, one thread and process for some of the pools, then make failures small."""
        self._together(self._pools)
        self.seconds = time.monotonic() - self.start
        self.first = list(dict.fromkeys(self._by_kind().values()))
        self._together(self._small)

    def _together(self, target: Any) -> None:
        threads = [threading.Thread(target=target, args=(i,)) for i in range(self.jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _pools(self, job: int) -> None:
        worker, turn = Worker(), 0
        pools = range(job, POOLS, self.jobs)
        while time.monotonic() - self.start < self.given.seconds:
            for pool in pools:
                index = turn * POOLS + pool
                with self.lock:
                    if self.calls >= self.given.calls:
                        worker.stop()
                        return
                    self.calls += 1
                case = draw(self.given.seed, index, self.tiny, self.given.only)
                self._note(index, case, *self._attempt(worker, case))
                if time.monotonic() - self.start > self.given.seconds:
                    break
            turn += 1
        worker.stop()

    def _attempt(self, worker: Worker, case: Case) -> Verdict:
        limit = self.given.limit
        try:
            found: Verdict = worker.call(attempt, case, limit=limit)
        except WorkerLost as lost:
            text = str(lost)
            return ("hang" if "no answer within" in text else "crash"), text[-3000:], limit
        if found[0] == "crash" and not self.tiny:
            worker.stop()  # the context may be lost
        return found

    def _note(self, index: int, case: Case, verdict: str, text: str, seconds: float) -> None:
        with self.lock:
            self.verdicts[case["family"], verdict] += 1
            self.slowest = sorted([*self.slowest, (seconds, index, case["family"])])[-5:]
            if verdict in (*BAD, "hang"):
                self.failures.append(Failure(index, case, verdict, text))
                print(f"{verdict}: {case['family']}, call {self.given.seed}:{index}", flush=True)

    def _by_kind(self) -> dict[tuple[str, ...], int]:
        kinds: dict[tuple[str, ...], int] = {}
        for at, (_, case, verdict, text) in enumerate(self.failures):
            told = re.sub(r"[-\d.x]+", "#", text.strip().splitlines()[-1])[:50] if text else ""
            told = "" if verdict == "wrong" else told
            kinds.setdefault((case["family"], verdict, told), at)
        return kinds

    def _small(self, job: int) -> None:
        worker = Worker()
        for at in self.first[job :: self.jobs]:
            index, case, verdict, text = self.failures[at]
            if verdict not in ("hang",):
                case = minimise(case, verdict, lambda c: self._attempt(worker, c),
                                self.given.minimise)  # fmt: skip
            folder, name = self.given.failures, f"{case['family']}-{self.given.seed}-{index}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}.json").write_text(json.dumps(case, indent=1) + "\n")
            (folder / f"{name}.py").write_text(script_of(case, text))
            print(f"{folder / name}.py: {verdict}: {text.strip()[-600:]}", flush=True)
        worker.stop()


def report(run: Run) -> Iterator[str]:
    """Yield the lines of the summary."""
    kinds = sorted({verdict for _, verdict in run.verdicts})
    wide = max((len(name) for name, _ in run.verdicts), default=0)
    where = "in the simulator" if run.tiny else "on a GPU"
    yield f"{run.calls} calls {where} in {run.seconds:.0f} s by {run.jobs} processes, seed " + str(
        run.given.seed)  # fmt: skip
    yield " " * wide + " " + "  ".join(kinds)
    for name in sorted({name for name, _ in run.verdicts}):
        numbers = (f"{run.verdicts[name, kind] or '':>{len(kind)}}" for kind in kinds)
        yield f"{name:{wide}} " + "  ".join(numbers)
    totals = (sum(run.verdicts[name, kind] for name, _ in {(n, 0) for n, _ in run.verdicts})
              for kind in kinds)  # fmt: skip
    yield f"{'all':{wide}} " + "  ".join(f"{n:>{len(kind)}}" for n, kind in zip(totals, kinds))
    slow = ", ".join(f"{name} {run.given.seed}:{index} {seconds:.1f} s"
                     for seconds, index, name in reversed(run.slowest))  # fmt: skip
    yield f"slowest: {slow}"
    yield f"failures: {len(run.failures)}, scripts of {len(run.first)} kinds in " + (
        f"{run.given.failures}" if run.failures else "none")  # fmt: skip
