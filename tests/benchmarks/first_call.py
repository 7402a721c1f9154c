"""Measure the first call in a new process, cold and from the cache.

``python -m tests.benchmarks.first_call`` runs each case in processes of its own: once with an empty
cache, then several times with what that run has kept. ``--write`` adds the times to
``tests/benchmarks/results/first_call.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.first_calls import CASES

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests" / "benchmarks" / "results" / "first_call.json"


def call(name: str, folder: str, *options: str) -> dict[str, Any]:
    """Make the first call in a new process; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.first_calls", name, *options],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
        env=os.environ | {"NUMBA_TMA_CACHE": folder},
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure every case, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=7, help="processes that find the kernel")
    parser.add_argument("--memory", action="store_true", help="use no torch")
    parser.add_argument("--write", action="store_true", help=f"write {FILE.name}")
    given = parser.parse_args()
    options = ["--memory"] * given.memory
    rows = {}
    print(f"{'':28}{'cold':>9}{'cached':>9}{'fastest':>9}{'again':>11}   imports on a hit")
    for name in CASES:
        with tempfile.TemporaryDirectory() as folder:
            cold = call(name, folder, *options)
            warm = [call(name, folder, *options) for _ in range(given.runs)]
        times = [one["seconds"] for one in warm]
        median = statistics.median(times)
        rows[name] = {"library": cold["library"], "cold": cold["seconds"], "cached": median}
        print(
            f"{name:28}{cold['seconds']:7.3f} s{median:7.3f} s{min(times):7.3f} s"
            f"{1e6 * statistics.median(one['again'] for one in warm):8.1f} us"
            f"   {', '.join(warm[0]['imported']) or 'none'}"
        )
    if given.write:
        FILE.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
