"""The pytest plugin on a GPU: kernels that hang, trap, or are wrong to a sanitizer alone."""

import shutil

import pytest

pytest_plugins = ["pytester"]
TESTS = '''
import os, numpy as np, pytest
from numba import cuda
import numba_tma as tma

TILE = tma.Tile((8, 32), "f32")

@cuda.jit
def load(x, column, surplus, y):
    """Load a tile; a barrier that expects a surplus of bytes never completes."""
    tile, barrier = tma.shared_tile(TILE), tma.shared_barrier()
    barrier.init(1)
    tma.fence_mbarrier_init()
    barrier.arrive_expect_tx(TILE.nbytes + surplus)
    x.load(tile, (0, column), barrier)
    barrier.wait(0)
    y[0] = tile[0, 0]

@cuda.jit
def read_behind(x, y):
    y[0] = x[x.size + 1000]

@pytest.fixture(scope="module")
def x():
    return cuda.to_device(np.arange(8 * 64, dtype=np.float32).reshape(8, 64))

def launch(x, column, surplus=0):
    y = cuda.to_device(np.zeros(1, np.float32))
    load[1, 1](tma.tensor_map(x, TILE), column, surplus, y)
    return y

@pytest.mark.tma_gpu
@pytest.mark.tma_isolated(timeout=5)
class TestIsolated:
    def test_right(self, x):
        assert launch(x, 32).copy_to_host()[0] == 32

    def test_hangs(self, x):
        launch(x, 0, 16).copy_to_host()

    def test_right_after_a_hang(self, x):
        assert launch(x, 32).copy_to_host()[0] == 32

    def test_traps(self, x):
        launch(x, 1)  # 4 B into the row: nobody waits for the error

    def test_right_after_a_trap(self, x):
        assert launch(x, 32).copy_to_host()[0] == 32

@pytest.mark.tma_sanitizer("memcheck", "synccheck")
@pytest.mark.parametrize("kernel", ["right", "behind"])
def test_sanitized(kernel, x):
    if kernel == "right":
        launch(x, 0).copy_to_host()
    else:
        read_behind[1, 1](cuda.to_device(np.zeros(4)), cuda.to_device(np.zeros(4)))
'''


@pytest.mark.parametrize("workers", [0, 2])
def test_what_happens_on_the_device_is_reported(pytester, workers):
    pytester.makepyfile(TESTS)
    count = ("-n", str(workers)) if workers else ()
    result = pytester.runpytest_subprocess("-p", "numba_tma_pytest", "-v", *count)
    has = shutil.which("compute-sanitizer") is not None
    expected = {"passed": 6, "failed": 3} if has else {"passed": 3, "failed": 2, "skipped": 4}
    assert result.parseoutcomes() == expected, result.outlines
    text = result.stdout.str()
    assert "no answer within 5 s: it hangs" in text and "in test_hangs" in text
    assert "a kernel ended with CUDA_ERROR_ILLEGAL_INSTRUCTION" in text
    if has:
        assert "memcheck reports 1:" in text and "Invalid __global__ read of size 8" in text
        assert "Host Frame" not in text
