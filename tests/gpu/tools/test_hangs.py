"""A case that hangs, traps or dies is reported within its time limit, and the next case works."""

import os
import time

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma.tools.pytest_plugin.worker import Worker, WorkerLost
from tests.gpu.worker import on_gpu

TILE = tma.Tile((8, 32), "f32")
LIMIT = 4


@cuda.jit
def sum_tile(x, column, surplus, total):
    """Sum a tile; a barrier that expects a surplus of bytes never completes."""
    tile, barrier = tma.shared_tile(TILE), tma.shared_barrier()
    barrier.init(1)
    tma.fence_mbarrier_init()
    barrier.arrive_expect_tx(TILE.nbytes + surplus)
    x.load(tile, (0, column), barrier)
    barrier.wait(0)
    for row in range(8):
        for lane in range(32):
            total[0] += tile[row, lane]


@on_gpu
def sum_on_gpu(column=0, surplus=0):
    x = np.arange(8 * 64, dtype=np.float32).reshape(8, 64)
    total = cuda.to_device(np.zeros(1))
    sum_tile[1, 1](tma.tensor_map(cuda.to_device(x), TILE), column, surplus, total)
    assert total.copy_to_host()[0] == x[:, column : column + 32].sum()
    return os.getpid()


@on_gpu
def fail(message):
    raise AssertionError(message)


@on_gpu
def leave(status):
    os._exit(status)


@pytest.fixture
def worker():
    worker = Worker()
    yield worker
    worker.stop()


def run(worker, function, *args, limit=20.0):
    return worker.call(function, *args, limit=limit)


def test_a_hang_costs_its_limit_only_and_the_next_case_works(worker):
    first = run(worker, sum_on_gpu)
    start = time.monotonic()
    with pytest.raises(WorkerLost, match=rf"sum_on_gpu\(0, 16\).*\n.*{LIMIT} s: it hangs"):
        run(worker, sum_on_gpu, 0, 16, limit=LIMIT)
    took = time.monotonic() - start
    assert LIMIT <= took < LIMIT + 10, took  # the driver tears a running kernel down
    assert run(worker, sum_on_gpu) != first


def test_a_trap_is_reported_and_the_next_case_works(worker):
    first = run(worker, sum_on_gpu, 4)
    with pytest.raises(WorkerLost, match=r"(?is)illegal.?instruction"):
        run(worker, sum_on_gpu, 1)  # 4 B into the row; the copy engine takes multiples of 16 B
    assert run(worker, sum_on_gpu, 32) != first


def test_a_dead_process_is_reported_and_the_next_case_works(worker):
    with pytest.raises(WorkerLost, match="exit code 3"):
        run(worker, leave, 3)
    assert run(worker, sum_on_gpu)


def test_a_failure_is_an_assertion_error_and_keeps_the_process(worker):
    first = run(worker, sum_on_gpu)
    with pytest.raises(AssertionError, match="seven"):
        run(worker, fail, "seven")
    assert run(worker, sum_on_gpu) == first
