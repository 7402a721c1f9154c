"""``python -m numba_tma bench``: the kernels beside their peers, in one run, into a file."""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType

from numba_tma.tools.bench import (
    attention,
    attention_backward,
    attention_few,
    attention_varlen,
    buffering,
    copies,
    figure,
    first_call,
    host,
    matmul,
    matmul_grouped,
    norms,
    pointwise,
    readme,
    survey,
)
from numba_tma.tools.bench.progress import progress
from numba_tma.tools.bench.report import table, write_table
from numba_tma.tools.bench.results import (
    RESULTS,
    Cases,
    LeftOut,
    Row,
    read,
    versions,
    with_row,
    write,
)
from numba_tma.tools.doctor import why_no_gpu

CASES: Cases = {
    **copies.CASES,
    **pointwise.CASES,
    **norms.CASES,
    **readme.CASES,
    **buffering.CASES,
    **matmul.CASES,
    **matmul_grouped.CASES,
    **attention.CASES,
    **attention_few.CASES,
    **attention_varlen.CASES,
    **attention_backward.CASES,
    **host.CASES,
    **first_call.CASES,
}
KERNELS = tuple(dict.fromkeys(kernel for kernel, _ in CASES))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, write the results file after each case, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m numba_tma bench", description=__doc__)
    parser.add_argument(
        "--only",
        choices=KERNELS,
        action="append",
        metavar="KERNEL",
        help=f"run this kernel; several are given one by one: {', '.join(KERNELS)}",
    )
    parser.add_argument(
        "--shape", action="append", help="run cases that end so: '8192 x 65536', 2^29, '1 GiB'"
    )
    parser.add_argument(
        "--output", type=Path, help=f"results file that rows are added to (default: in {RESULTS})"
    )
    parser.add_argument(
        "--page",
        type=Path,
        help="page whose table is replaced: docs/development/benchmarks.md, or "
        "docs/guide/circular_buffering.md",
    )
    parser.add_argument("--from-results", type=Path, help="measure nothing: use this file")
    parser.add_argument("--plot", type=Path, help="picture to draw, of five rows: docs/h200.svg")
    survey.add_options(parser)
    options = parser.parse_args(argv)
    survey.check(parser, options)
    if options.survey is not None:
        return survey.main(options, gpu_name)
    if options.from_results:
        results = json.loads(options.from_results.read_text())
    else:
        try:
            cases = chosen(options.only, options.shape)
        except ValueError as error:
            parser.error(str(error))
        gpu = gpu_name()
        path = options.output or RESULTS / f"{gpu.split()[-1].lower()}.json"
        results = read(path, gpu)
        for row in measure(cases):
            results = with_row(results, row)
            write(path, results)
    print(table(results))
    if options.page:
        write_table(options.page, results)
    if options.plot:
        figure.plot(results, options.plot)
    return 0


def chosen(
    kernels: Sequence[str] | None = None, shapes: Sequence[str] | None = None
) -> list[tuple[str, str]]:
    """Return the cases of these kernels (None: of all) that end in one of these shapes."""
    cases = [case for case in CASES if not kernels or case[0] in kernels]
    found = {shape: [case for case in cases if _ends_in(case[1], shape)] for shape in shapes or ()}
    for shape, those in found.items():
        if not those:
            there = "; ".join(dict.fromkeys(name for _, name in cases))
            raise ValueError(f"--shape {shape!r}: no case ends so; there are {there}")
    return [case for case in cases if not found or any(case in those for those in found.values())]


def _ends_in(name: str, shape: str) -> bool:
    words = re.sub(r"(?<=\d)x(?=\d)", " x ", shape).split()
    return bool(words) and name.split()[-len(words) :] == words


def gpu_name() -> str:
    """Return the name of the current GPU; end the program with a line if there is none with TMA."""
    if reason := why_no_gpu():
        raise SystemExit(f"bench measures on a GPU: {reason}")
    from numba import cuda

    name = cuda.get_current_device().name
    return name if isinstance(name, str) else name.decode()


def measure(cases: Iterable[tuple[str, str]]) -> Iterator[Row]:
    """Run cases on the current GPU; yield the row of each."""
    try:
        torch: ModuleType = importlib.import_module("torch")
    except ImportError as error:
        raise SystemExit(
            f"bench measures beside torch, which is not here ({error}): pip install '.[bench]'"
        ) from None
    run = {"date": datetime.date.today().isoformat(), "versions": versions()}
    names = {f"{kernel} {case}": (kernel, case) for kernel, case in cases}
    for name in progress(names):
        kernel, case = names[name]
        try:
            measured = CASES[kernel, case](torch)
        except LeftOut as reason:
            print(f"{name} is left out: {reason}", flush=True)
            continue
        torch.cuda.empty_cache()
        yield {"kernel": kernel, "case": case} | measured | run
