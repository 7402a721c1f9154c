"""Kernels from the disk on a GPU: right values in a second process, which imports no compiler."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma.host import cache_files, kernel_store, stored_launch
from tests.first_calls import CASES

ROOT = Path(__file__).parents[3]
#: Small launches by Numba, whose warning may begin with a colour.
pytestmark = pytest.mark.filterwarnings("ignore:.*Grid size")


def first_call(name, folder, *options):
    """Make the first call in a new process."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.first_calls", name, *options],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        env=os.environ | {"NUMBA_TMA_CACHE": str(folder)},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", CASES)
def test_a_second_process_has_the_values_without_a_compiler(name, tmp_path, capsys):
    cold = first_call(name, tmp_path, "--memory")
    warm = first_call(name, tmp_path, "--memory")
    with capsys.disabled():
        print(f"\n{name}: {cold['seconds']:.3f} s, from the cache {warm['seconds']:.3f} s", end="")
    assert "numba" in cold["imported"] and warm["imported"] == []
    assert cold["error"] < 4e-3 and warm["error"] == cold["error"]
    assert warm["result"] == cold["result"]
    assert warm["seconds"] < cold["seconds"] / 2


def test_files_that_are_damaged_are_compiled_again(tmp_path):
    first = first_call("rmsnorm", tmp_path, "--memory")
    (file,) = (tmp_path / "kernels").iterdir()
    for damaged in (b"garbage", file.read_bytes()[:-100]):
        file.write_bytes(damaged)
        again = first_call("rmsnorm", tmp_path, "--memory")
        assert "numba" in again["imported"] and again["result"] == first["result"]
        assert file.stat().st_size > 1000


def test_processes_that_compile_the_same_kernel_at_once(tmp_path):
    command = [sys.executable, "-m", "tests.first_calls", "rmsnorm", "--memory"]
    environment = os.environ | {"NUMBA_TMA_CACHE": str(tmp_path)}
    workers = [
        subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    results = {json.loads(worker.communicate(timeout=120)[0])["result"] for worker in workers}
    assert len(results) == 1 and len(list((tmp_path / "kernels").iterdir())) == 1


# ------------------------------------------------------------------------ users' kernels

TILE = tma.Tile((8, 32), np.float32)


@tma.cached
def scale_kernel(stages, factor):
    PIPE = tma.TilePipeline(stages, x=TILE)

    @cuda.jit
    def scale(x, y, tiles, alpha):
        pipe = PIPE.start()
        if pipe.is_producer():
            for tile, stage in pipe.produce(cuda.blockIdx.x, tiles, cuda.gridDim.x):
                x.load(stage.x, (tile * 8, 0), stage.barrier)
        else:
            for tile, stage in pipe.consume(cuda.blockIdx.x, tiles, cuda.gridDim.x):
                for row in range(8):
                    y[tile * 8 + row, cuda.threadIdx.x] = (
                        stage.x[row, cuda.threadIdx.x] * factor * alpha
                    )

    return scale


@tma.cached
@cuda.jit
def every_type(out, i, f, flag, small, half, single, numbers):
    if cuda.grid(1) == 0:
        out[0], out[1], out[2], out[3] = i, f, flag, small
        out[4], out[5], out[6], out[7] = float(half), single, numbers[0], numbers[1]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_TMA_CACHE", str(tmp_path))
    monkeypatch.setattr(cache_files, "_warned", set())
    as_another_process(monkeypatch)
    return tmp_path


def as_another_process(monkeypatch):
    """Forget what this process has loaded."""
    monkeypatch.setattr(stored_launch, "_loaded", {})
    scale_kernel._made.clear()
    every_type.found.clear()


def scaled(x, stages, factor, alpha, prepared):
    """Launch the kernel, and return its result."""
    source, y = cuda.to_device(x), cuda.device_array_like(x)
    kernel, x_map = scale_kernel(stages, factor), tma.tensor_map(source, TILE)
    launch = tma.launcher(kernel, 4, 64) if prepared else kernel[4, 64]
    launch(x_map, y, len(x) // 8, alpha)
    return y.copy_to_host()


@pytest.mark.parametrize("prepared", [True, False])
def test_a_users_kernel_from_the_cache(cache, monkeypatch, prepared):
    x = np.random.default_rng(1).random((128, 32), np.float32)
    for stages, factor in ((2, 3), (4, 3), (4, 5)):
        wanted = x * factor * np.float32(0.5)
        for _ in range(2):
            found = scaled(x, stages, factor, np.float32(0.5), prepared)
            np.testing.assert_allclose(found, wanted, rtol=1e-6)
            as_another_process(monkeypatch)
    assert len(kernel_store.entries()) == 3


def test_arguments_of_every_type(cache, monkeypatch):
    out = cuda.to_device(np.zeros(8, np.float64))
    given = (-7, 0.1, True, np.int16(-3), np.float16(1.5), np.float32(0.25), (9, 2.5))
    for _ in range(2):
        out[:] = 0
        every_type[1, 32](out, *given)
        assert out.copy_to_host().tolist() == [-7, 0.1, 1, -3, 1.5, 0.25, 9, 2.5]
        as_another_process(monkeypatch)


def test_streams_graphs_and_threads(cache):
    import threading

    x = np.random.default_rng(2).random((64, 32), np.float32)
    source, y = cuda.to_device(x), cuda.device_array_like(x)
    x_map, stream = tma.tensor_map(source, TILE), cuda.stream()
    launch = tma.launcher(scale_kernel(2, 2), 2, 64, stream=stream)
    launch(x_map, y, 8, np.float32(1))
    stream.synchronize()
    np.testing.assert_array_equal(y.copy_to_host(), 2 * x)
    results = []

    def run():
        mine = cuda.device_array_like(x)
        scale_kernel(2, 2)[2, 64](x_map, mine, 8, np.float32(3))
        cuda.synchronize()
        results.append(mine.copy_to_host())

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    for result in results:
        np.testing.assert_array_equal(result, 6 * x)


def test_numbas_launches_beside_ours(cache):
    """One primary context serves both."""
    x = cuda.to_device(np.arange(256, dtype=np.float32).reshape(8, 32))
    y = cuda.device_array_like(x)
    kernel = scale_kernel(3, 2)
    x_map = tma.tensor_map(x, TILE)
    kernel[1, 64](x_map, y, 1, np.float32(1))
    first = y.copy_to_host()
    kernel.kernel[1, 64](x_map, y, 1, np.float32(1))
    np.testing.assert_array_equal(first, y.copy_to_host())
