"""The pytest plugin: tests on a GPU, in processes that may be lost, and in the simulator.

`numba_tma_pytest`, which pytest loads where numba_tma is installed, has the options and registers
this. docs/guide/testing.md shows how it is used.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from numba_tma.host.environment import REQUIRE_GPU, gpu_required, simulated
from numba_tma.tools.pytest_plugin import sanitizer
from numba_tma.tools.pytest_plugin.serving import in_worker
from numba_tma.tools.pytest_plugin.simulation import explore, seeded, write_summary
from numba_tma.tools.pytest_plugin.worker import Worker, WorkerLost

#: Seconds that an isolated test may take, if its marker does not say.
SECONDS = 60
#: The same of a test in the simulator, or under compute-sanitizer.
SLOW_SECONDS = 300
#: Launches of a kernel that ``--tma-trace`` records of a test.
TRACED = 4
#: Orders that `tma_explore` goes through at most, if the marker does not say.
LIMIT = 1_000_000
MARKERS = (
    "tma_gpu: needs a GPU with TMA; skipped where there is none",
    f"tma_isolated(timeout={SECONDS}): runs in a process that may hang, trap or die",
    f"tma_explore(limit={LIMIT:_}): every order of its launches is explored in the simulator",
    f"tma_sanitizer(*tools): runs under compute-sanitizer: {', '.join(sanitizer.TOOLS)}",
)
_WORKERS = pytest.StashKey[dict[bool, Worker]]()
_SET = pytest.StashKey[pytest.MonkeyPatch]()


# ------------------------------------------------------------------------------ a session


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers; let `skip_without_gpu` know that a GPU is required."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    config.stash[_WORKERS] = {}
    config.stash[_SET] = pytest.MonkeyPatch()
    if config.getoption("--tma-require-gpu"):
        config.stash[_SET].setenv(REQUIRE_GPU, "1")


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the processes."""
    for worker in config.stash[_WORKERS].values():
        worker.stop()
    config.stash[_SET].undo()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was explored."""
    write_summary(terminalreporter)


@pytest.hookimpl(trylast=True)  # the test's own parameters come first in its name
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test of each seed, and of each tool."""
    if "tma_simulator" in metafunc.fixturenames:
        seeds = range(metafunc.config.getoption("--tma-seeds"))
        metafunc.parametrize("tma_simulator", seeds, ids="seed {}".format, indirect=True)
    if marker := metafunc.definition.get_closest_marker("tma_sanitizer"):
        tools = marker.args or ("memcheck",)
        if unknown := set(tools) - set(sanitizer.TOOLS):
            name = metafunc.definition.nodeid
            raise pytest.UsageError(
                f"{name}: tma_sanitizer takes {', '.join(sanitizer.TOOLS)}, not {unknown.pop()!r}"
            )
        metafunc.fixturenames.append("_tma_tool")
        metafunc.parametrize("_tma_tool", tools, indirect=True)


# ------------------------------------------------------------------------------ a test


@functools.cache
def why_no_gpu() -> str:
    """Return why no test can run on a GPU, as doctor says it; "" if one can."""
    from numba_tma.tools import doctor, testing

    return "" if testing.gpu_available() else doctor.why_no_gpu()


def missing(item: pytest.Item) -> str:
    """Return what a test needs and this machine has not; "" if it has all."""
    if item.config.getoption(sanitizer.INSIDE):  # the run outside has looked
        return ""
    sanitized = item.get_closest_marker("tma_sanitizer")
    if sanitized is None and item.get_closest_marker("tma_gpu") is None:
        return ""
    return why_no_gpu() or (sanitizer.missing() if sanitized else "")


def in_simulator(item: pytest.Item) -> bool:
    """Return whether a test needs the simulator."""
    fixtures = getattr(item, "fixturenames", ())
    return "tma_simulator" in fixtures or item.get_closest_marker("tma_explore") is not None


@pytest.hookimpl(trylast=True)  # behind what deselects tests, and what marks them
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what cannot run here; refuse tests that need both halves of Numba."""
    for item in items:
        marked = (item.get_closest_marker(name) for name in ("tma_gpu", "tma_sanitizer"))
        if in_simulator(item) and any(marked):
            raise pytest.UsageError(
                f"{item.nodeid} needs a GPU and the simulator, and Numba has one of them in a "
                "process: write one test for each"
            )
        if not gpu_required() and (reason := missing(item)):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let a test fail that would be skipped, where a GPU is required."""
    if gpu_required() and (reason := missing(item)):
        pytest.fail(reason, pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test in another process, if it needs one."""
    if in_worker() or missing(item):
        return None
    if _is_sanitized(item):
        run: Callable[[], None] = functools.partial(_run_sanitized, item)
    elif _is_elsewhere(item):
        run = functools.partial(_run_elsewhere, item, nextitem)
    else:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    run()
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    # Of tests before this one, what the next test does not share with it.
    item.session._setupstate.teardown_exact(nextitem)
    return True


def _is_sanitized(item: pytest.Item) -> bool:
    outside = not item.config.getoption(sanitizer.INSIDE)
    return outside and item.get_closest_marker("tma_sanitizer") is not None


def _is_elsewhere(item: pytest.Item) -> bool:
    if item.config.getoption(sanitizer.INSIDE):
        return False
    isolated = item.get_closest_marker("tma_isolated") is not None
    return isolated or in_simulator(item) and not simulated()


def _limit(item: pytest.Item, seconds: float) -> float:
    marker = item.get_closest_marker("tma_isolated")
    return float(marker.kwargs.get("timeout", seconds)) if marker else seconds


def _run_sanitized(item: pytest.Item) -> None:
    tool = item.callspec.params["_tma_tool"]  # type: ignore[attr-defined]
    limit = _limit(item, SLOW_SECONDS)
    _report(item, lambda: sanitizer.check(item.config, item.nodeid, tool, limit))


def _run_elsewhere(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    simulates, following = in_simulator(item), None
    if nextitem and _is_elsewhere(nextitem) and in_simulator(nextitem) is simulates:
        following = nextitem.nodeid
    limit = _limit(item, SLOW_SECONDS if simulates else SECONDS)
    reports: list[Any] = []
    lost = ""
    try:
        worker = _worker(item.config, simulates)
        reports.extend(worker.test(item.nodeid, item.path, following, limit))
    except WorkerLost as error:
        lost = str(error)
    if lost:
        _report(item, lambda: pytest.fail(lost, pytrace=False))
    for data in reports:
        hook = item.config.hook.pytest_report_from_serializable
        item.ihook.pytest_runtest_logreport(report=hook(config=item.config, data=data))


def _report(item: pytest.Item, run: Callable[[], None]) -> None:
    """Report a call in place of the test's function."""
    call = pytest.CallInfo.from_call(run, "call")
    report = item.ihook.pytest_runtest_makereport(item=item, call=call)
    item.ihook.pytest_runtest_logreport(report=report)


def _worker(config: pytest.Config, simulates: bool) -> Worker:
    """Return this process's worker, of the same session or of the simulator."""
    workers = config.stash[_WORKERS]
    if simulates not in workers:
        arguments = list(map(str, config.invocation_params.args))
        environment = {"NUMBA_ENABLE_CUDASIM": "1"} if simulates else {}
        workers[simulates] = Worker(arguments, environment)
    return workers[simulates]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Trace the kernels of a test, if that is asked for."""
    folder = item.config.getoption("--tma-trace")
    if not folder or item.get_closest_marker("tma_explore"):
        return (yield)
    from numba_tma.tools.trace import trace

    with trace(launches=TRACED) as found:
        result = yield
    if found.launches:
        path = Path(item.config.invocation_params.dir, folder)
        path.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^\w.-]+", "_", item.nodeid)
        found.save(path / f"{name[-200:]}.json")
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Explore what is marked so."""
    marker = pyfuncitem.get_closest_marker("tma_explore")
    if marker is None:
        return None
    explore(pyfuncitem, marker.kwargs.get("limit", LIMIT))
    return True


# ------------------------------------------------------------------------------ fixtures


@pytest.fixture
def _tma_tool(request: pytest.FixtureRequest) -> Any:
    """Return the tool that a test runs under."""
    return request.param


@pytest.fixture
def tma_simulator(request: pytest.FixtureRequest) -> Iterator[int]:
    """Run the test in the simulator; its value is the seed of the threads' and copies' order.

    The test fails if a simulated thread outlives its launch, or copies are left in flight.
    """
    with seeded(request.param):
        yield request.param


@pytest.fixture
def tma_isolated(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Call functions in a process that may hang, trap or die: ``tma_isolated(f, x, timeout=5)``.

    Arguments and results travel by pickle. An error of the function is raised; `WorkerLost` is
    raised if the process is lost, and the next call gets a new one.
    """

    def call(function: Callable[..., Any], *args: object, timeout: float = SECONDS) -> Any:
        if in_worker():
            return function(*args)
        return _worker(request.config, False).call(function, *args, limit=timeout)

    return call
