"""Exported kernels on a GPU: from C++, from a Python without Numba, and beside Numba's launches."""

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba import cuda, types

import numba_tma as tma
from tests.exported import F32, I32, TILE, block, compile_with

ROOT = Path(__file__).parents[3]


def run(command, folder, **environment):
    """Run a command in a folder, and return what it prints."""
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])} | environment,
    )
    assert done.returncode == 0, f"status {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The folder of the files that the page's first block exports."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "exporting.py").write_text(block("python"))
    run([sys.executable, "exporting.py"], folder)
    return folder


def libcuda():
    """Return the path of the driver's library, which this process loads."""
    ctypes.CDLL("libcuda.so.1")
    return re.search(r"/\S*libcuda\.so\S*", Path("/proc/self/maps").read_text()).group()


@pytest.mark.parametrize("compiler", ["g++", "nvcc"])
def test_the_pages_cpp_launches(page, compiler):
    (page / "scale.cpp").write_text(block("cpp"))
    program = f"scale-{compiler.replace('+', 'p')}"
    # nvcc takes no library by its file's name.
    compile_with(compiler, page / "scale.cpp", "-Xlinker", libcuda(), "-o", program)
    assert run([str(page / program)], page) == "scaled\n"


def test_the_pages_python_launches(page):
    pytest.importorskip("torch")
    (page / "launching.py").write_text(block("python", 1))
    run([sys.executable, "launching.py"], page)


WITHOUT_NUMBA = """
import sys
sys.modules["numba"] = sys.modules["llvmlite"] = None
import numpy as np
import numba_tma as tma
from tests.first_calls import Memory

memory = Memory()
x = np.random.default_rng(3).random((64, 32), np.float32)
source, y = memory.to_device(x), memory.to_device(np.zeros_like(x))
kernel = tma.load("scale")
x_map = tma.tensor_map(source, tma.Tile((8, 32), "f32"))
kernel[4, 64](x_map, y, 2.0, 8)
assert (memory.to_host(y) == 2 * x).all()
launch = tma.launcher(kernel, 3, 64)
launch(x_map, y, np.float64(0.5), np.int8(8))
assert (memory.to_host(y) == x / 2).all()
names = ("numba.", "llvmlite", "numba_tma.backend.", "numba_tma.simulator")
print([n for n, module in sys.modules.items() if module is not None and n.startswith(names)])
"""


def test_a_process_without_numba_launches(page):
    assert run([sys.executable, "-c", WITHOUT_NUMBA], page) == "['numba_tma.backend.interface']\n"


# ---------------------------------------------------------------------- in this process


def exported(kernel, signature, folder, **options):
    tma.export(kernel, signature, folder / "kernel", **options)
    return tma.load(folder / "kernel")


def test_arguments_of_every_type(tmp_path):
    @cuda.jit
    def kernel(out, i, f, flag, small, half, numbers, strided, wide):
        if cuda.grid(1) == 0:
            out[0], out[1], out[2], out[3] = i, f, flag, small
            out[4], out[5], out[6] = float(half), numbers[0], numbers[1][0]
            out[7], out[8], out[9] = strided[1, 2], strided.shape[1], wide

    signature = (
        *(types.float64[::1], types.int64, types.float64, types.boolean, types.int16),
        *(types.float16, types.Tuple((types.uint8, types.UniTuple(F32, 1))), I32[:, :]),
        types.uint64,
    )
    out = cuda.to_device(np.zeros(10))
    matrix = cuda.to_device(np.arange(24, dtype=np.int32).reshape(4, 6))[::2, 1:]
    kernel = exported(kernel, signature, tmp_path)
    kernel[1, 32](out, -7, 0.1, True, -3, 1.5, (200, (2.5,)), matrix, 2**40)
    assert out.copy_to_host().tolist() == [-7, 0.1, 1, -3, 1.5, 200, 2.5, 15, 5, 2**40]


def test_roles_and_a_cluster(tmp_path):
    roles = tma.Roles(load=tma.Warps(1), work=tma.Warps(2))
    pipe_of_roles = tma.TilePipeline(2, producer=roles.load, consumer=roles.work, x=TILE)

    @cuda.jit
    @tma.cluster(2)
    def kernel(x, y, n_tiles):
        pipe = pipe_of_roles.start()
        if pipe.is_producer():
            for tile, stage in pipe.produce(cuda.blockIdx.x, n_tiles, cuda.gridDim.x):
                x.load(stage.x, (tile * 8, 0), stage.barrier)
        elif pipe.is_consumer():
            column = cuda.threadIdx.x - 32
            for tile, stage in pipe.consume(cuda.blockIdx.x, n_tiles, cuda.gridDim.x):
                if column < 32:
                    for row in range(8):
                        y[tile * 8 + row, column] = stage.x[row, column] + 1

    x = np.random.default_rng(4).random((128, 32), np.float32)
    source, y = cuda.to_device(x), cuda.to_device(np.zeros_like(x))
    x_map = tma.tensor_map(source, TILE)
    kernel = exported(kernel, (x_map, F32[:, ::1], I32), tmp_path)
    kernel[4, 96](x_map, y, 16)
    np.testing.assert_array_equal(y.copy_to_host(), x + 1)
    with pytest.raises(ValueError, match="roles of the kernel's pipeline have 96 threads"):
        kernel[4, 128](x_map, y, 16)
    with pytest.raises(ValueError, match="cluster"):
        kernel[3, 96](x_map, y, 16)


def test_dynamic_shared_memory_above_48_kib(tmp_path):
    @cuda.jit
    def kernel(x):
        buffer = cuda.shared.array(0, F32)
        i = cuda.threadIdx.x
        buffer[25_000 - 1 - i] = x[i]
        cuda.syncthreads()
        x[i] = 2 * buffer[25_000 - 1 - i]

    x = cuda.to_device(np.arange(64, dtype=np.float32))
    kernel = exported(kernel, (F32[::1],), tmp_path, shared=100_000)
    kernel[1, 64](x)
    assert (x.copy_to_host() == 2 * np.arange(64)).all()


def test_an_array_of_maps(tmp_path):
    @cuda.jit
    def kernel(maps, y):
        tile, barrier = tma.shared_tile(TILE), tma.shared_barrier()
        if cuda.threadIdx.x == 0:
            barrier.init(1)
            tma.fence_mbarrier_init()
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            barrier.arrive_expect_tx(TILE.nbytes)
            maps[cuda.blockIdx.x].load(tile, (0, 0), barrier)
        barrier.wait(0)
        y[cuda.blockIdx.x, cuda.threadIdx.x] = tile[7, cuda.threadIdx.x]

    arrays = [np.random.default_rng(n).random((8, 32), np.float32) for n in range(3)]
    maps = tma.TensorMapArray(tma.tensor_map(cuda.to_device(a), TILE) for a in arrays)
    y = cuda.to_device(np.zeros((3, 32), np.float32))
    exported(kernel, (maps, y), tmp_path)[3, 32](maps, y)
    np.testing.assert_array_equal(y.copy_to_host(), [a[7] for a in arrays])


def test_streams_and_numbas_launches_beside_ours(tmp_path):
    @cuda.jit
    def add(x, n):
        if cuda.grid(1) < x.size:
            x[cuda.grid(1)] += n

    x, stream = cuda.to_device(np.zeros(64, np.float32)), cuda.stream()
    kernel = exported(add, (F32[::1], F32), tmp_path)
    kernel[1, 64, stream](x, 1)
    stream.synchronize()
    add[1, 64, stream](x, np.float32(2))
    kernel[1, 64, stream](x, 4)
    stream.synchronize()
    assert (x.copy_to_host() == 7).all()


def test_a_cubin_of_another_gpu(tmp_path):
    @cuda.jit
    def kernel(x):
        x[0] = 1

    major, _ = cuda.get_current_device().compute_capability
    other = (9, 0, "a") if major != 9 else (10, 0, "a")
    x = cuda.to_device(np.zeros(1, np.float32))
    with pytest.raises(RuntimeError, match="has compute capability .*: export the kernel with cc"):
        exported(kernel, (F32[::1],), tmp_path, cc=other)[1, 1](x)
    exported(kernel, (F32[::1],), tmp_path)[1, 1](x)
    assert x.copy_to_host() == [1]
