"""Threads, interrupts, forks and the end of a process on a GPU."""

import os
import signal
import subprocess
import sys
import threading

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma.kernels.pointwise import add
from numba_tma.tools.testing import run_isolated
from tests.gpu.worker import on_gpu
from tests.kernels.doubled import PIPE, TILE, double

LIMIT = 120


@cuda.jit
def no_load(x, y, n):
    pipe = PIPE.start()
    if pipe.is_producer():
        for tile, stage in pipe.produce(0, n, 1):
            if tile < 0:
                x.load(stage.x, (tile * 4, 0), stage.barrier)
    elif pipe.is_consumer():
        for tile, stage in pipe.consume(0, n, 1):
            y[tile, 0] = stage.x[0, 0]


def doubled(seed, launch=double):
    values = np.random.default_rng(seed).standard_normal((16, 32)).astype(np.float32)
    x, y, stream = cuda.to_device(values), cuda.to_device(np.zeros_like(values)), cuda.stream()
    cuda.synchronize()
    launch[1, 64, stream](tma.tensor_map(x, TILE), y, 4)
    stream.synchronize()
    return bool((y.copy_to_host() == 2 * values).all())


def in_threads(count, work):
    """Return what `work` returned or raised in each of so many threads."""
    found = []

    def noted(i):
        try:
            found.append(work(i))
        except BaseException as error:
            found.append(repr(error))

    threads = [threading.Thread(target=noted, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def many_threads():
    def shipped(i):
        x = cuda.to_device(np.full((5, 33), i, np.float32))
        return bool((add(x, x).copy_to_host() == 2 * i).all())

    found = in_threads(16, lambda i: all(doubled(i * 30 + n) for n in range(30)))
    return found + in_threads(16, shipped)


def test_16_threads_compile_and_launch():
    assert run_isolated(many_threads, timeout=LIMIT) == [True] * 32


def interrupted_wait():
    """Interrupt a launch that waits for ever, in debug mode, and launch again."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)  # what Ctrl-C does
    assert doubled(0)
    errors = []
    for _ in range(2):
        signal.setitimer(signal.ITIMER_REAL, 1.0)
        try:
            doubled(0, no_load)
        except (KeyboardInterrupt, tma.PipelineTimeout) as error:
            errors.append(type(error).__name__)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        right = doubled(1)
    except tma.PipelineTimeout:  # the report of the interrupted launch
        right = doubled(1)
    return errors, right and doubled(2)


def test_an_interrupt_during_a_wait_in_debug_mode_leaves_the_process_usable():
    env = {"NUMBA_TMA_DEBUG": "1", "NUMBA_TMA_DEBUG_TIMEOUT": "4"}
    errors, right = run_isolated(interrupted_wait, timeout=LIMIT, env=env)
    assert len(errors) == 2 and right


def forked():
    """Return what a forked child says of a map and of a launch."""
    x = cuda.to_device(np.zeros((16, 32), np.float32))
    launch = tma.launcher(double, 1, 64)
    one = tma.tensor_map(x, TILE)
    launch(one, x, 0)
    cuda.synchronize()
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        texts = []
        for call in (lambda: tma.tensor_map(x, TILE), lambda: launch(one, x, 0)):
            try:
                call()
                texts.append("silence")
            except Exception as error:
                texts.append(f"{type(error).__name__}: {error}")
        os.write(theirs, "\0".join(texts).encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        texts = pipe.read().split("\0")
    os.waitpid(child, 0)
    return texts, doubled(1)


def test_a_context_does_not_survive_a_fork_and_both_errors_say_so():
    texts, right = run_isolated(forked, timeout=LIMIT)
    assert right and len(texts) == 2
    assert all("does not survive a fork" in text for text in texts), texts


@on_gpu
def test_a_map_keeps_the_memory_of_a_deleted_array():
    values = np.arange(512, dtype=np.float32).reshape(16, 32)
    x, y = cuda.to_device(values), cuda.to_device(np.zeros_like(values))
    one = tma.tensor_map(x, TILE)
    del x
    others = [cuda.to_device(np.full((16, 32), -1, np.float32)) for _ in range(8)]
    double[1, 64](one, y, 4)
    np.testing.assert_array_equal(y.copy_to_host(), 2 * values)
    del others


EXIT = """
import numpy as np
from numba import cuda
import numba_tma as tma
from numba_tma.kernels.matmul import Config, matmul
from numba_tma.kernels.rows import column_sum
from tests.gpu.host.test_processes import TILE, double

x = cuda.to_device(np.ones((64, 64), np.float32))
stream, maps = cuda.stream(), [tma.tensor_map(x, TILE)]
kept = tma.TensorMapArray(maps), matmul(x, x, config=Config(64, 64, splits=2), stream=stream)
kept += (column_sum(x), tma.launcher(double, 1, 64, stream=stream))
kept[-1](maps[0], x, 1)
print("end")
"""


def test_a_process_that_ends_with_maps_streams_and_workspaces_prints_nothing():
    done = subprocess.run(
        [sys.executable, "-c", EXIT],
        **{"capture_output": True, "text": True, "timeout": LIMIT},
        env={**os.environ, "NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS": "0"},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
