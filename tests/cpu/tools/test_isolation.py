"""numba_tma.tools.isolation: a process of its own for what may hang.

Each process imports this file, which therefore imports no Numba.
"""

import os
import re
import threading
import time

import numpy as np
import pytest

from numba_tma.tools import isolation
from numba_tma.tools.isolation import run_isolated


def add(a, b):
    print("adding")
    return a + b


def fail(value):
    raise KeyError(value)


class Unpicklable(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def fail_unpicklable():
    raise Unpicklable("this", "that")


def hang(path):
    child = os.fork()
    with open(f"{path}/{'parent' if child else 'child'}", "w") as file:
        file.write(str(os.getpid()))
    print("about to hang")
    time.sleep(600)


def die():
    os.abort()


def process_id():
    return os.getpid()


def test_isolated_returns_the_value_and_passes_output_on(capsys):
    assert (run_isolated(add, np.arange(3), 1, timeout=60) == [1, 2, 3]).all()
    assert "adding" in capsys.readouterr().out
    assert run_isolated(process_id, timeout=60) != os.getpid()


def test_isolated_source_sees_args_and_sets_result():
    assert run_isolated("result = sum(args)", 1, 2, 3, timeout=60) == 6
    assert run_isolated("pass", timeout=60) is None


def test_the_process_runs_a_function_or_a_source():
    assert isolation.address_of(add) == (__name__, "add")
    assert isolation.found_at((__name__, "add"))(np.int64(2), 3) == 5
    assert isolation.found_at(("numpy", "random.Generator"))(np.random.PCG64(1)).integers(9) < 9
    assert isolation.address_of("result = 1") == "result = 1"
    assert isolation.found_at("result = args[0] + 1")(6) == 7
    assert isolation.found_at("other = 1")() is None


def test_an_error_that_cannot_be_pickled_is_told():
    found = isolation.sendable(KeyError("key"))
    assert type(found) is KeyError and found.args == ("key",)
    found = isolation.sendable(Unpicklable("this", "that"))
    assert type(found) is RuntimeError and str(found) == "Unpicklable: this and that"


def test_isolated_environment():
    source = "import os; result = os.environ['NUMBA_TMA_TEST']"
    assert run_isolated(source, timeout=60, env={"NUMBA_TMA_TEST": "here"}) == "here"
    assert "NUMBA_TMA_TEST" not in os.environ


def test_isolated_raises_what_the_function_raised():
    with pytest.raises(KeyError, match="the value") as caught:
        run_isolated(fail, "the value", timeout=60)
    (note,) = caught.value.__notes__
    assert "run_isolated(fail)" in note and "raise KeyError(value)" in note


def test_isolated_error_that_does_not_pickle_keeps_its_text():
    with pytest.raises(RuntimeError, match="Unpicklable: this and that"):
        run_isolated(fail_unpicklable, timeout=60)


def test_isolated_value_that_does_not_pickle():
    with pytest.raises(Exception, match="pickle"):
        run_isolated("result = lambda: 1", timeout=60)


def test_isolated_timeout_kills_the_whole_group(tmp_path):
    with pytest.raises(TimeoutError, match="hang timed out after 4 s and was killed") as caught:
        run_isolated(hang, str(tmp_path), timeout=4)  # time to start on a busy machine
    assert "about to hang" in str(caught.value)
    assert re.search(r"test_isolation.py.*in hang", str(caught.value)), "where it stood"
    processes = [int((tmp_path / name).read_text()) for name in ("parent", "child")]
    deadline = time.monotonic() + 10  # the kernel ends a killed process when it gets to it
    while any(map(running, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(running, processes))


def running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_isolated_death_names_the_signal():
    with pytest.raises(ChildProcessError, match="die ended with SIGABRT"):
        run_isolated(die, timeout=60)
    with pytest.raises(ChildProcessError, match="exit status 3"):
        run_isolated("import sys; sys.exit(3)", timeout=60)


def test_isolated_takes_functions_of_a_notebook_and_inside_of_functions():
    step = 3
    assert run_isolated(lambda x: x + step, 4, timeout=60) == 7
    source = "def f(x):\n    return g(x) + 1\ndef g(x):\n    return 2 * x\n"
    names = {"__name__": "__main__"}  # of a script
    exec(source, names)
    assert run_isolated(names["f"], 4, timeout=60) == 9


def test_isolated_names_what_does_not_pickle():
    lock = threading.Lock()
    with pytest.raises(TypeError, match="cannot be sent to another process"):
        run_isolated(lambda: lock, timeout=60)
