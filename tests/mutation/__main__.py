"""Put small bugs into the library one at a time, and report which of them no test notices.

``python -m tests.mutation --count 60 --seed 1`` takes a sample of 60. Trials are kept in
``.mutation``, so that a run that was stopped goes on where it was; the folder is removed to begin
anew. Trials are of the fast tiers, those of ``make test``.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue

from tests.mutation.covering import ROOT, record
from tests.mutation.equivalent import reason_of, stale
from tests.mutation.sites import Mutation, library
from tests.mutation.trial import Verdict, copy_project, judge


def main() -> None:
    """Try a sample of mutations and print the report."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--count", type=int, default=60, help="mutations in the sample")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample")
    parser.add_argument("--jobs", type=int, default=1, help="trials at a time")
    parser.add_argument(
        "--only", nargs="+", default=["numba_tma/"], metavar="START", help="only files below these",
    )  # fmt: skip
    parser.add_argument("--tests", default="", help="a folder of both tiers: only its tests")
    parser.add_argument(
        "--limit", type=float, default=math.inf, metavar="SECONDS",
        help="tests in a trial: the nearest to the change, up to so many seconds of them",
    )  # fmt: skip
    given = parser.parse_args()
    kept = ROOT / ".mutation"
    tests = record(ROOT, kept / "covering", given.jobs, given.tests)
    for test in tests:
        if not test.passed:
            print(f"{test.path} fails without a mutation, and is left out", flush=True)
    every = library(ROOT)
    for path, line in stale(every, ROOT):
        print(f"equivalent.py lists what is no mutation of {path}: {line}", flush=True)
    sites = [one for one in every if one.path.startswith(tuple(given.only))]
    sample = random.Random(given.seed).sample(sites, min(given.count, len(sites)))
    done = _kept(kept / "trials.jsonl", given.limit)
    copies: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.jobs) as pool:
        for i in range(given.jobs):
            copies.put(copy_project(ROOT, Path(folder) / str(i)))

        def attempt(mutation: Mutation) -> tuple[Mutation, Verdict]:
            if mutation not in done:
                copy = copies.get()
                done[mutation] = judge(copy, mutation, tests, given.limit)
                copies.put(copy)
                with (kept / "trials.jsonl").open("a") as file:
                    line = {"mutation": asdict(mutation), "verdict": asdict(done[mutation])}
                    file.write(json.dumps(line | {"limit": given.limit}) + "\n")
            return mutation, done[mutation]

        results = list(pool.map(attempt, sample))
    print("\n".join(report(results)))


def _kept(path: Path, limit: float) -> dict[Mutation, Verdict]:
    """Return the verdicts of earlier runs; what has survived fewer tests is tried again."""
    lines = path.read_text().splitlines() if path.exists() else []
    kept = {}
    for trial in map(json.loads, lines):
        verdict = Verdict(**trial["verdict"])
        if verdict.outcome in ("killed", "unreached") or trial["limit"] >= limit:
            kept[Mutation(**trial["mutation"])] = verdict
    return kept


def report(results: list[tuple[Mutation, Verdict]]) -> Iterator[str]:
    """Yield the lines of the report, in Markdown: the rates, and the survivors as diffs."""
    sources = {m.path: (ROOT / m.path).read_text() for m, _ in results}
    reasons = {m: reason_of(m, sources[m.path]) for m, _ in results}
    counted = [(m, v) for m, v in results if not reasons[m]]
    yield "| part | mutations | killed | by a generated file alone | survived | unreached | rate |"
    yield "|---|---|---|---|---|---|---|"
    rooms = sorted({m.path.split("/")[1] for m, _ in counted})
    for room in [*rooms, "all"]:
        some = [v.outcome for m, v in counted if room in ("all", m.path.split("/")[1])]
        killed, golden = some.count("killed"), some.count("golden")
        rest = f"{some.count('survived')} | {some.count('unreached')}"
        rate = (killed + golden / 2) / max(len(some), 1)
        yield f"| {room} | {len(some)} | {killed} | {golden} | {rest} | {rate:.0%} |"
    for mutation, verdict in results:
        if verdict.outcome != "killed":
            reason = f"; equivalent: {reasons[mutation]}" if reasons[mutation] else ""
            yield f"\n{verdict.outcome}, {mutation.kind}{reason}:"
            yield "```diff\n" + mutation.diff(sources[mutation.path]) + "\n```"


if __name__ == "__main__":
    main()
