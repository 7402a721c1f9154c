"""The process of a worker: it runs one function or test after the other."""

from __future__ import annotations

import faulthandler
import pickle
import sys
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, TextIO

import pytest

from numba_tma.tools.isolation import Address, found_at, sendable

#: What the session of a worker has as `config.workerinput`, as the workers of xdist have theirs.
WORKER_INPUT = {"workerid": "tma", "workercount": 1}
#: Options for the process that reports, or that would start more of them.
_OFF: dict[str, object] = {
    "numprocesses": None,
    "dist": "no",
    "tx": [],
    "usepdb": False,
    "maxfail": 0,
    "lf": False,
    "failedfirst": False,
    "newfirst": False,
    "stepwise": False,
    "collectonly": False,
}
_in_worker = False


def in_worker() -> bool:
    """Return whether this process is a worker, whose functions and tests run here."""
    return _in_worker


class LastWord(Exception):
    """Raised by a function that has lost the device, with what it returns: its process ends."""


class DeviceLost(RuntimeError):
    """A kernel has ended with an error that the CUDA context keeps."""


def serve(pipe: Connection, arguments: Sequence[str] | None, traces: str) -> None:
    """Run what `pipe` asks for until its other end closes; `traces` is a file for hangs."""
    global _in_worker
    _in_worker = True
    with open(traces, "w") as file:
        jobs = _Jobs(pipe, file)
        if arguments is None:
            jobs.serve()
        else:
            status = pytest.main([*arguments], [_Tests(jobs)])
            if not jobs.served:
                text = f"its session of pytest ended with status {status}"
                pipe.send(("lost", text, False))


def device_error() -> str:
    """Return the name of the error that this thread's CUDA context keeps; "" if there is none."""
    if "cuda.bindings.driver" not in sys.modules:
        return ""
    driver = sys.modules["cuda.bindings.driver"]
    try:
        (status,) = driver.cuCtxSynchronize()
    except Exception:  # without a driver there is no such function
        return ""
    names = driver.CUresult
    none = (names.CUDA_ERROR_NOT_INITIALIZED, names.CUDA_ERROR_INVALID_CONTEXT)
    return "" if status in (names.CUDA_SUCCESS, *none) else str(status.name)


def check_device() -> None:
    """Raise what a kernel has left: its error belongs to the test that launched it."""
    if error := device_error():
        raise DeviceLost(f"a kernel ended with {error}")


class _Jobs:
    """What the process is asked for, and its answers: (kind, value, whether it goes on)."""

    def __init__(self, pipe: Connection, traces: TextIO) -> None:
        self.pipe, self.traces, self.served = pipe, traces, False
        self.tests: _Tests | None = None

    def serve(self) -> None:
        """Answer until the other end of the pipe closes."""
        self.served = True
        _start_cuda()
        self.pipe.send(("returned", None, True))
        while True:
            try:
                kind, *job, limit = self.pipe.recv()
            except EOFError:
                return
            # Leave the time to say where it hangs before the other side kills this process.
            faulthandler.dump_traceback_later(0.9 * limit, file=self.traces)
            answer = self._call(*job) if kind == "call" else self._test(*job)
            faulthandler.cancel_dump_traceback_later()
            sys.stdout.flush()  # what a function printed belongs to its test
            self.pipe.send(answer)

    def _call(self, address: Address, path: str, given: bytes) -> tuple[str, Any, bool]:
        try:
            function = self._find(address, path)
            args, kwargs = pickle.loads(given)
            value = function(*args, **kwargs)
            check_device()
            return "returned", value, True
        except LastWord as said:
            return "returned", said.args[0], False
        except pytest.skip.Exception as skipped:  # it does not pickle
            return "skipped", str(skipped), True
        except Exception as error:
            if device_error():
                return "lost", traceback.format_exc(), False
            trace = traceback.format_exc()
            sent = sendable(error)
            sent.add_note(f"Raised in the worker process:\n{trace}")
            return "raised", sent, True
        except BaseException:
            return "lost", traceback.format_exc(), False

    def _find(self, address: Address, path: str) -> Any:
        """Return a function by its address; a test file's module may have to be collected first."""
        try:
            return found_at(address)
        except ModuleNotFoundError:
            if self.tests is None:
                raise
            self.tests.items(path)
            return found_at(address)

    def _test(self, nodeid: str, path: str, following: str | None) -> tuple[str, Any, bool]:
        assert self.tests is not None
        reports = self.tests.run(nodeid, path, following)
        if isinstance(reports, str):
            return "lost", reports, True
        return "reports", reports, not device_error()


def _start_cuda() -> None:
    """Create the context now: what it takes is no test's time."""
    from numba_tma.tools.testing import gpu_available

    if gpu_available():
        from numba import cuda

        cuda.synchronize()


class _Tests:
    """The plugin of a worker's session: it collects the files of the tests that are asked for."""

    def __init__(self, jobs: _Jobs) -> None:
        self.jobs, jobs.tests = jobs, self
        self.session: Any = None
        self._items: dict[str, dict[str, pytest.Item]] = {}
        self._reports: list[Any] = []
        self._errors: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> None:
        """Leave to the parent what reports, and to `_Jobs` the trace of what hangs."""
        config.workerinput = WORKER_INPUT  # type: ignore[attr-defined]
        vars(config.option).update({k: v for k, v in _OFF.items() if hasattr(config.option, k)})
        for plugin in ("terminal", "faulthandler"):
            config.pluginmanager.unregister(name=plugin)

    def pytest_collection(self, session: pytest.Session) -> bool:
        """Collect nothing yet."""
        session.items = []
        return True

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Serve in place of the session's own tests."""
        self.session = session
        self.jobs.serve()
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the report for the parent."""
        hook = self.session.config.hook
        data = hook.pytest_report_to_serializable(config=self.session.config, report=report)
        self._reports.append(data)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep what a file says that cannot be collected."""
        if report.failed:
            self._errors.append(str(report.longrepr))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Let a test fail whose kernels have failed after their launch."""
        yield
        check_device()

    def items(self, path: str) -> dict[str, pytest.Item]:
        """Return the tests of a file by their ids."""
        if path not in self._items:
            found = self.session.perform_collect([path], genitems=True)
            self._items[path] = {item.nodeid: item for item in found}
        return self._items[path]

    def run(self, nodeid: str, path: str, following: str | None) -> list[Any] | str:
        """Return the reports of a test, or why there is no such test."""
        self._errors.clear()
        self._reports.clear()
        item = self.items(path).get(nodeid)
        if item is None:
            return "\n".join(self._errors) or f"{path} has no test {nodeid} in this process"
        nextitem = next((f[following] for f in self._items.values() if following in f), None)
        item.ihook.pytest_runtest_protocol(item=item, nextitem=nextitem)
        self.session.shouldfail = self.session.shouldstop = False
        return [*self._reports]
