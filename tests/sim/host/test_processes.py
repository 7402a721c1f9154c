"""Threads, interrupts, forks, pickles and the end of a process, in the simulator."""

import copy
import os
import pickle
import signal
import threading

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma.kernels.pointwise import add
from numba_tma.tools.testing import run_isolated
from tests.kernels.doubled import TILE, double


def doubled(seed):
    x = np.random.default_rng(seed).standard_normal((16, 32)).astype(np.float32)
    y = np.zeros_like(x)
    double[1, 64](tma.tensor_map(x, TILE), y, 4)
    return bool((y == 2 * x).all())


def in_threads(count, work):
    """Return what `work` returned or raised in each of so many threads."""
    found = []

    def noted(i):
        try:
            found.append(work(i))
        except BaseException as error:
            found.append(error)

    threads = [threading.Thread(target=noted, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_16_threads_launch():
    assert in_threads(16, lambda i: all(doubled(i * 3 + n) for n in range(3))) == [True] * 16


def test_16_threads_call_a_shipped_kernel():
    def work(i):
        x = np.full((5, 33), i, np.float32)
        return bool((add(x, x) == 2 * i).all())

    assert in_threads(16, work) == [True] * 16


@cuda.jit
def endless(x):
    while x[0] == 0:
        cuda.syncthreads()


def interrupted_launch():
    """Interrupt a launch that never ends, and launch again."""
    os.environ.pop("PYTEST_CURRENT_TEST", None)
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    signal.signal(signal.SIGALRM, signal.default_int_handler)  # what Ctrl-C does
    try:
        endless[1, 64](np.zeros(1, np.float32))
    except KeyboardInterrupt:
        return doubled(1) and doubled(2)
    return "it ended"


def test_an_interrupted_launch_leaves_the_simulator_usable():
    assert run_isolated(interrupted_launch, timeout=60) is True


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_launches():
    assert doubled(0)
    child = os.fork()
    if child == 0:
        signal.alarm(50)
        os._exit(0 if doubled(1) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("make", [tma.tensor_map, tma.gather_map, tma.ragged_tensor_map])
def test_maps_are_refused_by_name(make):
    one = make(np.ones((16, 32), np.float32), TILE)
    holders = [one] if make is tma.ragged_tensor_map else [one, tma.TensorMapArray([one])]
    for holder in holders:
        with pytest.raises(TypeError, match=rf"{type(holder).__name__}.*cannot be pickled: pickle"):
            pickle.dumps(holder)
        with pytest.raises(TypeError, match="points? to the same memory"):
            copy.deepcopy(holder)
        assert copy.copy(holder) is holder


EXIT = """
import numpy as np
from numba import cuda
import numba_tma as tma
from numba_tma.kernels.matmul import Config, matmul
from numba_tma.kernels.rows import column_sum

x = np.ones((64, 64), np.float32)
kept = tma.tensor_map(x, tma.Tile((8, 32), "f32")), cuda.stream()
kept += (tma.TensorMapArray([kept[0]]), matmul(x, x, config=Config(64, 64, splits=2)))
kept += (column_sum(x), x)
print("end")
"""


def test_a_process_that_ends_with_maps_and_workspaces_prints_nothing():
    import subprocess
    import sys

    done = subprocess.run([sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
