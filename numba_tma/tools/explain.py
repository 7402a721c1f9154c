"""``python -m numba_tma explain script.py``: run a script, and say what limits its kernels."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from numba_tma.host.environment import simulated
from numba_tma.tools.demo import run_in_simulator
from numba_tma.tools.trace import trace


def _from_one(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number from 1 on")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a script with a trace, and print its summary; return the script's exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m numba_tma explain",
        description="Run a script with traces on, and print where the time of each kernel goes; "
        "in the simulator where there is no GPU.",
    )
    parser.add_argument("--save", metavar="FILE", help="also write the trace, for Perfetto")
    parser.add_argument(
        "--launches",
        metavar="N",
        type=_from_one,
        default=2,
        help="launches traced of each kernel (2)",
    )
    parser.add_argument(
        "--blocks", metavar="N", type=_from_one, default=4, help="blocks traced of each launch (4)"
    )
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="those of the script")
    given = parser.parse_args(argv)
    if not Path(given.script).is_file():
        parser.error(f"{given.script} is no file: give a Python script")
    from numba_tma.tools.testing import gpu_available

    if not (simulated() or gpu_available()):
        return run_in_simulator("explain", *(sys.argv[1:] if argv is None else argv))
    sys.argv = [given.script, *given.arguments]
    sys.path.insert(0, str(Path(given.script).resolve().parent))
    status = 0
    with trace(blocks=given.blocks, launches=given.launches) as found:
        try:
            runpy.run_path(given.script, run_name="__main__")
        except SystemExit as end:  # the summary is of what ran before
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
    if found.launches:
        print(found.summary())
    else:
        print("no kernel was launched outside of the traces that the script itself makes")
    if given.save:
        found.save(given.save)
        print(f"written to {given.save}: open it in https://ui.perfetto.dev")
    return status
