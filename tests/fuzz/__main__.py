"""Call the public functions with random arguments, as long as it is wanted.

On a GPU if there is one, otherwise in the simulator. ``python -m tests.fuzz --case 7:123`` makes
call 123 of seed 7 again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def main() -> int:
    """Run; return 1 if a call failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long calls are made")
    parser.add_argument("--calls", type=int, default=10**9, help="calls at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes")
    parser.add_argument("--only", default="", help="functions whose name has this in it")
    parser.add_argument("--case", default="", help="SEED:INDEX, or a file of the corpus")
    parser.add_argument("--limit", type=float, default=120, help="seconds for one call")
    parser.add_argument("--minimise", type=float, default=60, help="seconds for one failure")
    parser.add_argument("--failures", type=Path, default=Path("fuzz-failures"))
    given = parser.parse_args()
    if not _has_gpu():
        os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
    from tests.fuzz.run import Run, report

    if given.case:
        from tests.fuzz.cases import draw
        from tests.fuzz.trial import attempt

        seed, _, index = given.case.partition(":")
        tiny = bool(os.environ.get("NUMBA_ENABLE_CUDASIM"))
        case = draw(int(seed), int(index), tiny, given.only) if index else json.loads(
            Path(seed).read_text())  # fmt: skip
        print(json.dumps(case), *attempt(case), sep="\n")
        return 0
    run = Run(given)
    run.work()
    print("\n".join(report(run)))
    return int(bool(run.failures))


def _has_gpu() -> bool:
    """Ask in a process of its own: Numba decides once between GPU and simulator."""
    if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") == "1":
        return False
    code = "from numba_tma.tools.testing import gpu_available as g; raise SystemExit(not g())"
    return subprocess.run([sys.executable, "-c", code]).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
