"""Processes that outlive the tests they run, and are replaced when a test has ruined them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import re
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from numba_tma.tools.isolation import address_of
from numba_tma.tools.pytest_plugin.serving import serve

#: Seconds for Python, Numba and a CUDA context to start, when all cores do the same.
START_SECONDS = 90
#: Frames around a test or function, in the trace of where it hangs.
_AROUND = re.compile(r"[/\\](_pytest|pluggy|multiprocessing|pytest_plugin)[/\\]|\"<string>\"")
_STARTING = threading.Lock()  # a process inherits the environment that it starts in


class WorkerLost(BaseException):
    """A test hung, ended its process, or lost the device.

    Not an Exception: Hypothesis would run the test again and again to shrink it, and each time cost
    a new process. An ordinary error it may shrink.
    """


class Worker:
    """A process that runs functions and tests; the next one gets a new process if it is lost.

    Starting Python, Numba and a CUDA context takes seconds, so a process runs as many as it can.

    Parameters
    ----------
    arguments
        Of a pytest session inside of the process, which runs tests; None for functions alone.
    environment
        Variables that the process has in addition.
    """

    def __init__(
        self,
        arguments: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.arguments = arguments
        self.environment = dict(environment or {})
        self._process: Any = None
        self._pipe: Any = None
        self._traces: Any = None

    def call(
        self, function: Callable[..., Any], *args: object, limit: float, **kwargs: object
    ) -> Any:
        """Return what a function returns in the process, within `limit` seconds.

        Arguments and result travel by pickle. An exception is raised here, with the traceback of
        the process as a note. `WorkerLost` is raised if the process hangs, ends, or has lost the
        device.
        """
        given = [*map(repr, args), *(f"{name}={kwargs[name]!r}" for name in kwargs)]
        name = f"{function.__module__}.{function.__qualname__}({', '.join(given)})"
        path = function.__code__.co_filename
        job = ("call", address_of(function), path, pickle.dumps((args, kwargs)))
        kind, value = self._ask(job, limit, name)
        if kind == "skipped":
            pytest.skip(value)
        if kind == "raised":
            raise value
        return value

    def test(self, nodeid: str, path: Path, following: str | None, limit: float) -> Sequence[Any]:
        """Return the reports of a test, serialised; see `call` for what is lost.

        Its fixtures are those of the process. `following` is the test that comes next there.
        """
        _, reports = self._ask(("test", nodeid, str(path), following), limit, "")
        return reports  # type: ignore[no-any-return]

    def stop(self) -> None:
        """Kill the process; what comes next gets a new one."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._traces.close()
            self._process = None

    def _ask(self, job: tuple[Any, ...], limit: float, name: str) -> tuple[str, Any]:
        if self._process is None or not self._process.is_alive():
            self.stop()
            self._start()
        self._pipe.send((*job, limit))
        kind, value, goes_on = self._answer(limit)
        if not goes_on:
            self.stop()
        if kind == "lost":
            raise WorkerLost(f"in the worker process, {name}:\n{value}" if name else value)
        return kind, value

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")  # a CUDA context does not survive a fork
        self._pipe, theirs = context.Pipe()
        self._traces = tempfile.NamedTemporaryFile()  # noqa: SIM115  # closed by `stop`
        self._process = context.Process(
            target=serve, args=(theirs, self.arguments, self._traces.name), daemon=True
        )
        with _STARTING, mock.patch.dict(os.environ, self.environment):
            self._process.start()
        theirs.close()  # so that the child's end is the only one, and its death is seen
        kind, value, _ = self._answer(START_SECONDS)
        if kind == "lost":
            self.stop()
            raise WorkerLost(f"the worker process did not start: {value}")

    def _answer(self, limit: float) -> tuple[str, Any, bool]:
        if not self._pipe.poll(limit):
            return "lost", f"no answer within {limit:g} s: it hangs{self._trace()}", False
        with contextlib.suppress(EOFError, ConnectionError):
            return self._pipe.recv()  # type: ignore[no-any-return]
        self._process.join()
        status = self._process.exitcode
        return "lost", f"the process died with exit code {status}{self._trace()}", False

    def _trace(self) -> str:
        lines = Path(self._traces.name).read_text(errors="replace").splitlines()
        return "".join(f"\n{line}" for line in lines if not _AROUND.search(line))
