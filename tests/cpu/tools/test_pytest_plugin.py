"""numba_tma.tools.pytest_plugin: tests in other processes, without a GPU."""

import os
import re
import stat
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from numba_tma.host import environment
from numba_tma.tools import doctor, pytest_plugin, testing
from numba_tma.tools.pytest_plugin import sanitizer, serving
from numba_tma.tools.pytest_plugin.worker import Worker, WorkerLost
from tests.gpu.worker import on_gpu

pytest_plugins = ["pytester"]
PLUGIN = ("-p", "numba_tma_pytest", "-p", "no:cacheprovider")


# ------------------------------------------------------------------------------ functions


def process_id():
    return os.getpid()


def add(a, b=0):
    return a + b


def fail(error):
    raise error


def sleep(seconds):
    print("never seen")
    time.sleep(seconds)


def lose():
    raise serving.LastWord("the last")


def skips():
    pytest.importorskip("a_library_that_nobody_has")


def read(name):
    return os.environ.get(name)


@pytest.fixture(scope="module")
def worker():
    worker = Worker(environment={"NUMBA_TMA_TEST": "here"})
    yield worker
    worker.stop()


def test_a_process_runs_functions_until_it_is_lost(worker):
    first = worker.call(process_id, limit=60)
    assert first != os.getpid()
    assert worker.call(add, 1, b=2, limit=60) == 3
    assert worker.call(read, "NUMBA_TMA_TEST", limit=60) == "here"
    assert "NUMBA_TMA_TEST" not in os.environ
    with pytest.raises(KeyError, match="the key") as caught:
        worker.call(fail, KeyError("the key"), limit=60)
    assert "Raised in the worker process" in caught.value.__notes__[0]
    with pytest.raises(pytest.skip.Exception, match="a_library_that_nobody_has"):
        worker.call(skips, limit=60)
    number = 5
    assert worker.call(lambda: number, limit=60) == 5
    assert worker.call(process_id, limit=60) == first
    assert worker.call(lose, limit=60) == "the last"
    second = worker.call(process_id, limit=60)
    assert second != first
    with pytest.raises(WorkerLost, match=r"leave\(3\):\nthe process died with exit code 3"):
        worker.call(leave, 3, limit=60)
    hangs = r"(?s)sleep\(30\):\nno answer within 1 s: it hangs.*in sleep"
    with pytest.raises(WorkerLost, match=hangs):
        start = time.monotonic()
        worker.call(sleep, 30, limit=1)
    assert 1 <= time.monotonic() - start < 20
    assert worker.call(process_id, limit=60) not in (first, second)


def leave(status):
    os._exit(status)


@on_gpu
def add_on_gpu(a, b):
    return a + b, serving.in_worker()


def test_a_case_of_the_gpu_tests_runs_in_a_process(worker):
    assert worker.call(add_on_gpu, 1, 2, limit=60) == (3, True)


def test_errors_of_kernels_belong_to_the_function_that_launched_them(monkeypatch):
    status = SimpleNamespace(CUDA_SUCCESS=0, CUDA_ERROR_NOT_INITIALIZED=3,
                             CUDA_ERROR_INVALID_CONTEXT=201)  # fmt: skip
    answers = [0, 3, 201]
    driver = SimpleNamespace(CUresult=status, cuCtxSynchronize=lambda: (answers[0],))
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", driver)
    while answers:
        assert not serving.device_error()
        serving.check_device()
        answers.pop(0)
    answers = [SimpleNamespace(name="CUDA_ERROR_ILLEGAL_INSTRUCTION")]
    with pytest.raises(serving.DeviceLost, match="CUDA_ERROR_ILLEGAL_INSTRUCTION"):
        serving.check_device()
    driver.cuCtxSynchronize = None  # as without a driver
    assert not serving.device_error()


# ------------------------------------------------------------------------------ tests

ISOLATED = """
import os, time, pytest
THERE = []

@pytest.fixture(scope="module")
def made():
    THERE.append(os.getpid())
    yield os.getpid()
    assert len(THERE) == 1

@pytest.mark.tma_isolated(timeout=60)
@pytest.mark.parametrize("n", [1, 2])
def test_shares(n, made, tmp_path):
    print("printed", n)
    assert made == os.getpid() != {parent} and n == 1

@pytest.mark.tma_isolated(timeout=1)
def test_hangs():
    time.sleep(60)

@pytest.mark.tma_isolated
def test_dies():
    os._exit(3)

@pytest.mark.tma_isolated
@pytest.mark.xfail(strict=True)
def test_expected():
    raise KeyError

@pytest.mark.tma_isolated
def test_skips():
    pytest.skip("by itself")

def test_here(made):
    assert made == os.getpid()

def double(x):
    return 2 * x, os.getpid()

def test_calls(tma_isolated):
    assert tma_isolated(double, 3)[0] == 6
    assert tma_isolated(double, 3, timeout=20)[1] != os.getpid()

@pytest.mark.tma_gpu
def test_gpu():
    pass

@pytest.mark.tma_sanitizer("memcheck", "racecheck")
def test_sanitized():
    pass
"""


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_tests_that_hang_and_die_are_reported(pytester, workers):
    pytester.makepyfile(ISOLATED.replace("{parent}", "0"))
    count = ("-n", str(workers)) if workers else ()
    result = pytester.runpytest_subprocess(*PLUGIN, *count, "-ra")
    outcomes = result.parseoutcomes()
    assert outcomes == {"passed": 3, "failed": 3, "xfailed": 1, "skipped": 4}, result.outlines
    text = result.stdout.str()
    assert "no answer within 1 s: it hangs" in text and "in test_hangs" in text
    assert "_pytest/python.py" not in text  # frames of the test alone
    assert "the process died with exit code 3" in text
    assert "printed 2" in text and "assert (" in text  # pytest's own comparison
    if not testing.gpu_available():
        assert "no NVIDIA driver answers" in text


PAGE = Path(__file__).parents[3] / "docs" / "guide" / "testing.md"
MORE = """

SEEDS = []

def test_a_seed(tma_simulator):
    from numba_tma.tools.pytest_plugin import serving

    SEEDS.append(tma_simulator)
    assert serving.in_worker()

def test_of_this_process():
    assert SEEDS == []

@pytest.mark.tma_explore(limit=3)
def test_too_many():
    check(2)
"""


def test_the_pages_example_in_the_simulator(pytester):
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    pytester.makepyfile(example + MORE)
    options = ("--tma-seeds=2", "-v", "-k", "not gpu and not sanit")
    result = pytester.runpytest_subprocess(*PLUGIN, *options)
    assert result.parseoutcomes() == {"passed": 8, "failed": 1, "deselected": 5}, result.outlines
    for seed in (0, 1):
        result.stdout.fnmatch_lines([f"*test_a_seed?seed {seed}? PASSED*"])
    result.stdout.fnmatch_lines(["*explored in every order*", "* states *test_every_order"])
    assert "limit" in result.stdout.str()


def test_conftest_may_choose_the_simulator(pytester):
    pytester.makeconftest("import os; os.environ['NUMBA_ENABLE_CUDASIM'] = '1'")
    pytester.makepyfile(
        """
        import numba_tma as tma
        from numba_tma.host.environment import simulated
        from numba_tma.tools.pytest_plugin import serving

        def test_here(tma_simulator):
            assert simulated() and not serving.in_worker()
        """
    )
    result = pytester.runpytest_subprocess(*PLUGIN)
    assert result.parseoutcomes() == {"passed": 1}, result.outlines


class Item(SimpleNamespace):
    """A test with markers and fixtures."""

    def get_closest_marker(self, name):
        return self.markers.get(name)


@pytest.mark.parametrize("marker", ["tma_gpu", "tma_sanitizer"])
@pytest.mark.parametrize(
    "simulates", [{"fixturenames": ["tma_simulator"]}, {"markers": {"tma_explore": object()}}]
)
def test_a_test_has_a_gpu_or_the_simulator(marker, simulates):
    given = {"nodeid": "test_it.py::test", "markers": {}, **simulates}
    given["markers"] = {**given["markers"], marker: object()}
    with pytest.raises(pytest.UsageError, match=r"test_it.py::test needs a GPU and the simulator"):
        pytest_plugin.pytest_collection_modifyitems([Item(**given)])


def test_a_sanitizers_tools_are_known():
    marked = SimpleNamespace(args=("memcheck", "lint"))
    item = Item(nodeid="test_it.py::test", markers={"tma_sanitizer": marked})
    metafunc = SimpleNamespace(fixturenames=[], definition=item)
    with pytest.raises(pytest.UsageError, match="memcheck, racecheck, .* not 'lint'"):
        pytest_plugin.pytest_generate_tests(metafunc)


# ------------------------------------------------------------------------------ a GPU


def test_the_librarys_asserts_are_not_rewritten():
    from numba_tma.tools.bench import peers

    assert "rewrite" not in type(peers.__spec__.loader).__module__


def test_a_gpu_can_be_required(pytester):
    if testing.gpu_available():
        pytest.skip("there is a GPU")
    pytester.makepyfile(
        """
        import pytest
        from numba_tma.tools import testing

        @pytest.mark.tma_gpu
        def test_marked(): pass

        def test_asks(): testing.skip_without_gpu()
        """
    )
    result = pytester.runpytest_subprocess(*PLUGIN, "--tma-require-gpu")
    assert result.parseoutcomes() == {"errors": 1, "failed": 1}


def test_the_reason_is_what_doctor_says(monkeypatch):
    facts = {"driver_cuda": "13.0", "driver_error": None, "driver": "580"}
    monkeypatch.setattr(doctor, "_driver_facts", lambda: facts)
    found = {"device": "A100", "compute_capability": "8.0", "tensor_maps": False}
    monkeypatch.setattr(doctor, "_device_facts", lambda: found)
    assert doctor.why_no_gpu().startswith("A100 has compute capability 8.0; TMA came with 9.0; run")
    found.update(device="H100", compute_capability="9.0", tensor_maps=True)
    assert doctor.why_no_gpu() == ""


def test_the_variable_requires_a_gpu(monkeypatch):
    monkeypatch.setattr(testing, "gpu_available", lambda: False)
    monkeypatch.delenv(environment.REQUIRE_GPU, raising=False)
    assert not environment.gpu_required()
    monkeypatch.setenv(environment.REQUIRE_GPU, "1")
    with pytest.raises(AssertionError, match="doctor"):
        testing.skip_without_gpu()


# ------------------------------------------------------------------------------ sanitizers

REPORT = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at kernel(float*)+0x120 in file.py:12
=========     by thread (3,0,0) in block (0,0,0)
=========     Saved host backtrace up to driver entry point at kernel launch time
=========     Host Frame: cuLaunchKernel [0x1]
=========         Host Frame: python [0x2]
=========
========= Invalid __shared__ write of size 2 bytes
=========     at other+0x8
========= ERROR SUMMARY: 2 errors
"""


def test_a_report_has_what_the_tool_has_seen():
    assert sanitizer.readable(REPORT).splitlines() == [
        "Invalid __global__ read of size 4 bytes",
        "    at kernel(float*)+0x120 in file.py:12",
        "    by thread (3,0,0) in block (0,0,0)",
        "Invalid __shared__ write of size 2 bytes",
        "    at other+0x8",
    ]
    many = sanitizer.readable("========= Error: a\n" * 11).splitlines()
    assert many == ["Error: a"] * 8 + ["and 3 more"]


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Put a compute-sanitizer on PATH that runs its command, if it is to, and prints a summary."""

    def make(summary, runs=False):
        tool, command = tmp_path / "compute-sanitizer", '"$@"' if runs else "true"
        tool.write_text(
            f"#!/bin/sh\necho $2 >> {tmp_path}/tools\n"
            f"while [ $1 != {sys.executable} ]; do shift; done\n"
            f"{command}\nstatus=$?\ncat <<E\n{summary}\nE\nexit $status\n"
        )
        tool.chmod(tool.stat().st_mode | stat.S_IEXEC)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    return make


def test_a_sanitizer_runs_the_test_in_a_process(tmp_path, fake, monkeypatch):
    (tmp_path / "test_it.py").write_text(
        "import os, pytest\n"
        "@pytest.mark.tma_sanitizer('memcheck', 'racecheck')\n"
        "@pytest.mark.parametrize('x', [1, 2])\n"
        "def test(x):\n"
        f"    assert x == 1 and os.getpid() != {os.getpid()}\n"
        "    if 'SKIPS' in os.environ: pytest.skip('by itself')\n"
    )
    options = {"importmode": "prepend"}
    config = SimpleNamespace(rootpath=tmp_path, inipath=None, getoption=options.get)

    def check(x=1, tool="memcheck"):
        sanitizer.check(config, f"test_it.py::test[{x}-{tool}]", tool, 60)

    fake("========= ERROR SUMMARY: 0 errors", runs=True)
    check()
    with pytest.raises(pytest.fail.Exception, match="(?s)the test fails under memcheck.*x == 1"):
        check(2)
    with monkeypatch.context() as patched, pytest.raises(pytest.skip.Exception, match="by itself"):
        patched.setenv("SKIPS", "1")
        check()
    fake(REPORT)
    with pytest.raises(pytest.fail.Exception, match="memcheck reports 2:\nInvalid __global__"):
        check()
    fake("========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)")
    with pytest.raises(pytest.fail.Exception, match="racecheck reports 1"):
        check(tool="racecheck")
    fake("Segmentation fault")
    with pytest.raises(pytest.fail.Exception, match="memcheck has reported nothing"):
        check()
    assert (tmp_path / "tools").read_text().split() == ["memcheck"] * 4 + ["racecheck", "memcheck"]


def test_tools_that_are_not_installed_are_named(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert "compute-sanitizer is not on PATH" in sanitizer.missing()
    racecheck = ["compute-sanitizer", "--tool", "racecheck"]
    assert sanitizer.tool_command("racecheck") == racecheck
    memcheck = ["compute-sanitizer", "--tool", "memcheck", "--report-api-errors", "no"]
    assert sanitizer.tool_command("memcheck") == memcheck
