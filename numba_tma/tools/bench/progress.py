"""How far a measurement is: one line on a terminal, which overwrites itself."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator


def progress(names: Iterable[str], width: int = 24) -> Iterator[str]:
    """Yield the names, and say on stderr which is at work and since how many seconds it runs.

    Where stderr is no terminal each name gets a line of its own.
    """
    todo = list(names)
    start, terminal = time.perf_counter(), sys.stderr.isatty()
    for n, name in enumerate([*todo, "done"]):
        filled = width * n // max(1, len(todo))
        bar = "#" * filled + "." * (width - filled)
        seconds = time.perf_counter() - start
        line = f"[{bar}] {n} of {len(todo)}, {seconds:.0f} s: {name}"
        last = n == len(todo)
        print(
            f"\r{line[:78]:<78}" if terminal else line,
            end="\n" if last or not terminal else "",
            file=sys.stderr,
            flush=True,
        )
        if not last:
            yield name
