"""The kernels under compute-sanitizer's memcheck."""

import os
import shutil
import subprocess
import sys

import pytest

KERNELS = """
import warnings
warnings.simplefilter("ignore")
import numpy as np
from numba import cuda
from numba_tma.kernels.copy import copy
from numba_tma.kernels.pointwise import scale_add
from numba_tma.kernels.rmsnorm import rmsnorm

rng = np.random.default_rng(0)
x = rng.integers(0, 256, 100_003, np.uint8)
y = cuda.to_device(np.zeros_like(x))
copy(cuda.to_device(x), y)
assert (y.copy_to_host() == x).all()
a, b = (rng.standard_normal((33, 520)).astype(np.float32) for _ in range(2))
out = cuda.to_device(np.zeros_like(a))
copy(cuda.to_device(a)[:, :200], out[:, :200])
assert (out.copy_to_host()[:, :200] == a[:, :200]).all()
result = scale_add(cuda.to_device(a), cuda.to_device(b), 2.0, 3.0).copy_to_host()
assert np.allclose(result, 2 * a + 3 * b)
for columns in (64, 1024, 4096, 8192):
    x = rng.standard_normal((301, columns)).astype(np.float32)
    w = rng.standard_normal(columns).astype(np.float32)
    y = rmsnorm(cuda.to_device(x), cuda.to_device(w)).copy_to_host()
    exact = x / np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-6) * w
    assert np.allclose(y, exact, rtol=1e-5, atol=1e-6)
cuda.synchronize()
print("all right")
"""


@pytest.mark.skipif(
    shutil.which("compute-sanitizer") is None, reason="compute-sanitizer is not installed"
)
def test_memcheck_is_clean():
    # Reports of the API are left out: cuda.bindings asks every driver for functions of newer ones.
    command = ["compute-sanitizer", "--tool", "memcheck", "--report-api-errors", "no"]
    done = subprocess.run(
        [*command, sys.executable, "-c", KERNELS],
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ,
        check=False,
    )
    assert "all right" in done.stdout, done.stdout + done.stderr
    assert "ERROR SUMMARY: 0 errors" in done.stdout
