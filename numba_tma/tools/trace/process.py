"""The trace of a whole process: ``NUMBA_TMA_TRACE=file.json``."""

from __future__ import annotations

import atexit
import sys
from contextlib import ExitStack

from numba_tma.tools.trace import trace

#: Launches of a kernel that are recorded; a script may have thousands.
LAUNCHES = 4


def begin(path: str) -> None:
    """Trace the launches of this thread until the process ends; then write the file.

    The summary goes to stderr.
    """
    stack = ExitStack()
    found = stack.enter_context(trace(launches=LAUNCHES))

    def end() -> None:
        stack.close()
        if found.launches:
            found.save(path)
            print(f"{found.summary()}\n{path}: {found!r}", file=sys.stderr)

    atexit.register(end)
