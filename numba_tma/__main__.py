"""`python -m numba_tma`: doctor, demo, explain, bench, cache."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

COMMANDS = {
    "doctor": "tell whether TMA can work here, and the repair if not",
    "demo": "run a pipelined RMSNorm and check it; in the simulator where there is no GPU",
    "explain": "run a script, trace its kernels, and say what limits each",
    "bench": "measure the kernels against torch on this GPU",
    "cache": "show the compiled kernels that are kept on disk, or remove them",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its module parses the options that follow its name."""
    parser = argparse.ArgumentParser(
        prog="python -m numba_tma", description="TMA for numba-cuda kernels."
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, purpose in COMMANDS.items():
        commands.add_parser(name, help=purpose, add_help=False)
    chosen, rest = parser.parse_known_args(argv)
    if chosen.command is None:
        if rest:
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        parser.print_help()
        return 0
    # Imported here: doctor has to run where numba, which the others need, is broken.
    status: int = importlib.import_module(f"numba_tma.tools.{chosen.command}").main(rest)
    return status


if __name__ == "__main__":
    sys.exit(main())
