"""``python -m numba_tma cache``: what is kept on disk, and how it is removed."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from numba_tma.host import kernel_store
from numba_tma.host.cache_files import usable_folder
from numba_tma.host.environment import cache_limit


def main(argv: Sequence[str] | None = None) -> int:
    """Show the folder of caches, or remove the kernels in it."""
    parser = argparse.ArgumentParser(
        prog="python -m numba_tma cache",
        description="Show the compiled kernels that are kept on disk.",
    )
    parser.add_argument("--clear", action="store_true", help="remove the kernels")
    clear = parser.parse_args(argv).clear
    folder = usable_folder()
    if folder is None:
        print("nothing is cached: NUMBA_TMA_CACHE is off, or names no folder that can be written")
        return 0
    kernels = kernel_store.entries()
    nbytes = sum(entry.nbytes for entry in kernels)
    if clear:
        print(f"removed {kernel_store.clear()} kernels, {_mebibytes(nbytes)}, from {folder}")
        return 0
    print(f"folder   {folder}")
    print(f"kernels  {len(kernels)}, {_mebibytes(nbytes)} of {_mebibytes(cache_limit())}")
    if kernels:
        print(f"         used from {_when(kernels[0].used)} to {_when(kernels[-1].used)}")
    measured = folder / "matmul.json"
    print(f"matmul   {'measurements in ' + measured.name if measured.exists() else 'not measured'}")
    return 0


def _mebibytes(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):,.1f} MiB"


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
