"""``bench --survey``: calls drawn at random beside their best peer, and the distribution."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable

from numba_tma.tools.bench import figure
from numba_tma.tools.bench.results import RESULTS, replace
from numba_tma.tools.bench.survey import report, run
from numba_tma.tools.bench.survey.draw import FAMILIES, cases

MOST_JOBS = 16  #: processes that compile side by side; each has a CUDA context of its own
OPTIONS = ("cases", "seed", "seconds", "jobs", "again")  #: what is for a survey alone


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a survey."""
    group = parser.add_argument_group("survey")
    names = ", ".join(FAMILIES)
    group.add_argument(
        "--survey",
        nargs="*",
        choices=FAMILIES,
        metavar="FAMILY",
        help=f"draw shapes of these families at random (of all, if none is named): {names}",
    )
    counts = ", ".join(f"{name} {count}" for name, (_, count) in FAMILIES.items())
    group.add_argument("--cases", type=int, help=f"cases of each family (default: {counts})")
    group.add_argument("--seed", type=int, default=0, help="what the draw follows from (default 0)")
    group.add_argument(
        "--seconds",
        type=float,
        default=86400,
        help="begin no case after that time (default: a day)",
    )
    group.add_argument(
        "--jobs",
        type=int,
        default=min(MOST_JOBS, os.cpu_count() or 1),
        help="processes that compile side by side, before anything is measured; 0: none",
    )
    group.add_argument(
        "--again", action="store_true", help="measure these families again; drop what the file has"
    )


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """End the program where an option is for a survey and there is none, or the other way."""
    if options.survey is None:
        given = [name for name in OPTIONS if getattr(options, name) != parser.get_default(name)]
        if given:
            parser.error(f"--{given[0]} is for a survey: add --survey")
        return
    if options.only or options.shape:
        parser.error("--only and --shape choose measured cases, and --survey draws its own")
    least = {"cases": 1, "seconds": 0, "jobs": 0}
    for name, number in least.items():
        value = getattr(options, name)
        if value is not None and not value >= number:
            parser.error(f"--{name} {value:g}: it is {number} or more")


def main(options: argparse.Namespace, gpu_name: Callable[[], str]) -> int:
    """Measure what a results file lacks, and print the distribution."""
    if options.from_results:
        results = json.loads(options.from_results.read_text())
    else:
        gpu, names = gpu_name(), options.survey or list(FAMILIES)
        counts = {name: options.cases or FAMILIES[name][1] for name in names}
        path = options.output or RESULTS / f"survey_{report.tag(gpu)}.json"
        if options.again and path.exists():
            found = json.loads(path.read_text())
            found["rows"] = [row for row in found["rows"] if row["family"] not in counts]
            if found["rows"]:
                replace(path, report.text(found))
            else:
                path.unlink()
        drawn = cases(counts, options.seed)
        results = run.survey(path, gpu, drawn, options.seconds, options.jobs)
    print(f"{report.summary(results)}\n\n{report.worst(results)}")
    if options.plot:
        figure.plot(results, options.plot, report.draw)
    if options.page:
        report.write_section(options.page, results)
    return 0
