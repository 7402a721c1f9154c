"""``python -m numba_tma bench``: the kernels beside their peers, in one run, into a file."""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from numba_tma._version import __version__
from numba_tma.bench import figure
from numba_tma.bench.copies import bench_copy, bench_transpose
from numba_tma.bench.host import bench_host
from numba_tma.bench.norms import (
    bench_layernorm,
    bench_norm_backward,
    bench_reductions,
    bench_rmsnorm,
    bench_softmax,
)
from numba_tma.bench.pointwise import bench_add, bench_gelu, bench_scale_add, bench_swiglu
from numba_tma.bench.progress import progress
from numba_tma.bench.report import PACKAGES, RESULTS, table, version, write_readme_table

#: By the name that ``--only`` takes: what returns the rows, given torch.
CASES: dict[str, Callable[[Any], list[dict[str, Any]]]] = {
    "copy": bench_copy,
    "transpose": bench_transpose,
    "rmsnorm": bench_rmsnorm,
    "layernorm": bench_layernorm,
    "softmax": bench_softmax,
    "norm_backward": bench_norm_backward,
    "reductions": bench_reductions,
    "add": bench_add,
    "scale_add": bench_scale_add,
    "gelu": bench_gelu,
    "swiglu": bench_swiglu,
    "host": bench_host,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, write the results file after each case, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m numba_tma bench", description=__doc__)
    parser.add_argument("--only", choices=sorted(CASES), action="append", help="run these cases")
    parser.add_argument("--output", type=Path, help=f"results file (default: in {RESULTS})")
    parser.add_argument("--readme", type=Path, help="README whose table is replaced")
    parser.add_argument("--from-results", type=Path, help="measure nothing: use this file")
    parser.add_argument("--plot", type=Path, help="picture to draw (svg, png, pdf); by matplotlib")
    options = parser.parse_args(argv)
    if options.from_results:
        results = json.loads(options.from_results.read_text())
    else:
        results = {}
        for results in measure(options.only or list(CASES)):
            path = options.output or RESULTS / f"{results['gpu'].split()[-1].lower()}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(results, indent=2) + "\n")
    print(table(results))
    if options.readme:
        write_readme_table(options.readme, results)
    if options.plot:
        figure.plot(results, options.plot)
    return 0


def measure(cases: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Run the named cases on the current GPU; yield the results so far after each."""
    from numba import cuda

    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise SystemExit(
            f"bench measures beside torch, which is not here ({error}): pip install '.[bench]'"
        ) from None
    name = cuda.get_current_device().name
    rows: list[dict[str, Any]] = []
    results = {
        "gpu": name if isinstance(name, str) else name.decode(),
        "date": datetime.date.today().isoformat(),
        "versions": {"numba-tma": __version__} | {p: v for p in PACKAGES if (v := version(p))},
        "rows": rows,
    }
    for case in progress(cases):
        rows += CASES[case](torch)
        torch.cuda.empty_cache()
        yield results
