"""GPU cases run in a child process: one that hangs or loses the context costs that process only."""

import functools
import os
import warnings
from collections.abc import Callable
from typing import Any

from numba_tma.tools.pytest_plugin.serving import in_worker
from numba_tma.tools.pytest_plugin.worker import Worker

if "PYTEST_XDIST_WORKER" in os.environ:  # references of all of them at once: one core for each
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

CASE_SECONDS = 20
IMPORT_SECONDS = 90  # of a case that imports torch or CuPy: all workers at once, the first time

WORKER = Worker()


def on_gpu(function: Any = None, *, limit: float = CASE_SECONDS) -> Any:
    """Run calls of the module-level `function` in this process's worker, within `limit` seconds."""
    if function is None:
        return functools.partial(on_gpu, limit=limit)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not in_worker():
            return WORKER.call(call, *args, limit=limit, **kwargs)
        return _quietly(function, *args, **kwargs)

    return call


def _quietly(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with warnings.catch_warnings():
        grids = ".*Grid size .* will likely result in GPU under-utilization"
        warnings.filterwarnings("ignore", grids)
        return function(*args, **kwargs)
