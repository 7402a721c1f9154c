"""GPU cases run in a child process: one that hangs or loses the context costs that process only.

Starting Python, Numba and a CUDA context takes seconds, so each pytest process keeps one child and
feeds it with cases over a pipe, until a case makes it worthless.
"""

import faulthandler
import functools
import importlib
import multiprocessing
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:  # references of all of them at once: one core for each
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

START_SECONDS = 60
CASE_SECONDS = 20
IMPORT_SECONDS = 90  # of a case that imports torch or CuPy: all workers at once, the first time

#: Every function under `on_gpu`, by module and name: what the child finds a case by.
CASES: dict[tuple[str, str], Callable[..., Any]] = {}


class WorkerLost(BaseException):
    """A case hung, killed its process, or raised an error that may have cost the context.

    Not an Exception: Hypothesis would run the case again and again to shrink it, and each time
    cost a new process. An AssertionError it may shrink.
    """


class Worker:
    """A child process that runs cases, replaced by a new one when a case has ruined it."""

    def __init__(self) -> None:
        self.process: Any = None
        self.pipe: Any = None

    def run(self, case: tuple[str, str], args: Any, kwargs: Any, limit: float) -> Any:
        """Return what a case returns; raise its AssertionError, or WorkerLost, with its text.

        A case that skips is skipped.
        """
        if self.process is None or not self.process.is_alive():
            self.stop()
            self._start()
        self.pipe.send((case, args, kwargs, limit))
        kind, value = self._answer(limit)
        if kind == "last":
            self.stop()
        if kind in ("returned", "last"):
            return value
        if kind == "skipped":
            pytest.skip(value)
        given = [*map(repr, args), *(f"{name}={kwargs[name]!r}" for name in kwargs)]
        text = f"in the worker process, {'.'.join(case)}({', '.join(given)}):\n{value}"
        if kind == "failed":
            raise AssertionError(text)
        self.stop()
        raise WorkerLost(text)

    def stop(self) -> None:
        """Kill the process; the next case gets a new one."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.pipe.close()
            self.process = None

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")  # a CUDA context does not survive a fork
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()  # so that the child's end is the only one, and its death is seen
        kind, value = self._answer(START_SECONDS)
        if kind != "returned":
            self.stop()
            raise WorkerLost(f"the worker process did not start: {value}")

    def _answer(self, limit: float) -> tuple[str, Any]:
        if not self.pipe.poll(limit):
            return "lost", f"no answer within {limit:g} s: it hangs"
        try:
            return self.pipe.recv()  # type: ignore[no-any-return]
        except (EOFError, ConnectionError):
            self.process.join()
            return "lost", f"the process died with exit code {self.process.exitcode}"


class LastWord(Exception):
    """Raised by a case that has lost the device, with what it returns: its process ends."""


WORKER = Worker()


def on_gpu(function: Any = None, *, limit: float = CASE_SECONDS) -> Any:
    """Run calls of the module-level `function` in this process's worker, within `limit` seconds."""
    if function is None:
        return functools.partial(on_gpu, limit=limit)
    case = (function.__module__, function.__qualname__)
    CASES[case] = function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return WORKER.run(case, args, kwargs, limit)

    return call


def _serve(pipe: Connection) -> None:
    """Run cases until the other end of `pipe` closes (the child process)."""
    from numba import cuda

    warnings.filterwarnings("ignore", ".*Grid size .* will likely result in GPU under-utilization")
    cuda.synchronize()
    pipe.send(("returned", None))
    while True:
        try:
            case, args, kwargs, limit = pipe.recv()
        except EOFError:
            return
        # Leave the time to say where it hangs before the other side kills this process.
        faulthandler.dump_traceback_later(0.9 * limit)
        try:
            importlib.import_module(case[0])
            value = CASES[case](*args, **kwargs)
            cuda.synchronize()  # an error of a kernel belongs to the case that launched it
            answer = ("returned", value)
        except LastWord as said:
            answer = ("last", *said.args)
        except AssertionError:
            answer = ("failed", traceback.format_exc())
        except pytest.skip.Exception as skipped:
            answer = ("skipped", str(skipped))
        except BaseException:  # pytest's other outcomes too
            answer = ("lost", traceback.format_exc())
        faulthandler.cancel_dump_traceback_later()
        sys.stdout.flush()  # what a case printed belongs to its test
        pipe.send(answer)
