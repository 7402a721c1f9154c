"""What tests of exported kernels share: kernels, the page's code, and compiles of C and C++."""

import contextlib
import functools
import importlib.util
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from numba import cuda, types

import numba_tma as tma
from numba_tma.host import driver as _driver
from tests.page_code import DOCS
from tests.recording_driver import RecordingDriver

TILE = tma.Tile((8, 32), "f32")
PIPE = tma.TilePipeline(2, x=TILE)
F32, I32, I64 = types.float32, types.int32, types.int64
MAP = tma.TensorMapType(2, TILE)


@cuda.jit
def scale(x, y, factor, sizes):
    pipe = PIPE.start()
    if pipe.is_producer():
        for tile, stage in pipe.produce(0, sizes[0], 1):
            x.load(stage.x, (tile * 8, 0), stage.barrier)
    else:
        for tile, stage in pipe.consume(0, sizes[0], 1):
            y[tile * 8, cuda.threadIdx.x] = stage.x[0, cuda.threadIdx.x] * factor


SCALE = (MAP, F32[:, ::1], F32, types.Tuple((I32, I64)))


@cuda.jit
def nothing(x):
    pass


# --------------------------------------------------------------------- without a GPU


@contextlib.contextmanager
def recording() -> Iterator[RecordingDriver]:
    """Put a driver that notes launches in the place of the GPU's."""
    _driver.compute_capability.cache_clear()
    with RecordingDriver().installed() as driver:
        yield driver
    _driver.compute_capability.cache_clear()


def exported(kernel: Any, signature: Any, folder: Path, **options: Any) -> tma.ExportedKernel:
    """Export a kernel, and load it."""
    tma.export(kernel, signature, folder / "kernel", **options)
    return tma.load(folder / "kernel")


def launched(
    driver: RecordingDriver,
    kernel: tma.ExportedKernel,
    *arguments: Any,
    grid: Any = 1,
    block: Any = 64,
) -> Any:
    """Launch a kernel, and return what the driver noted."""
    driver.sizes[kernel.image.entry] = kernel.image.sizes
    kernel[grid, block](*arguments)
    return driver.launches[-1]


def machine_code(cubin: bytes) -> bytes:
    """Return the executable section of a cubin, an ELF file."""
    (start,) = struct.unpack_from("<Q", cubin, 40)
    size, count = struct.unpack_from("<HH", cubin, 58)
    for i in range(count):
        _, _, flags, _, offset, nbytes = struct.unpack_from("<IIQQQQ", cubin, start + i * size)
        if flags & 4:
            return cubin[offset : offset + nbytes]
    raise ValueError("no section is executable")


# -------------------------------------------------------------------- the page, C and C++

PAGE = DOCS / "guide/export.md"


def block(language: str, number: int = 0) -> str:
    """Return a block of code of the page."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), flags=re.S | re.M)
    return found[number]


@functools.cache
def headers() -> Path:
    """Return the folder of ``cuda.h``, or skip the calling test."""
    folders = []
    if spec := importlib.util.find_spec("nvidia"):
        folders += [Path(path, "cu13/include") for path in spec.submodule_search_locations]
        folders += [Path(path, "cuda_runtime/include") for path in spec.submodule_search_locations]
    roots = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX")]
    nvcc = shutil.which("nvcc")
    roots += [str(Path(nvcc).resolve().parents[1])] if nvcc else []
    folders += [Path(root, "include") for root in (*roots, "/usr/local/cuda") if root]
    for folder in folders:
        if (folder / "cuda.h").exists():
            return folder
    pytest.skip("cuda.h is neither in NVIDIA's wheels, nor in CUDA_HOME, nor beside nvcc")


def compile_with(compiler: str, source: Path, *options: str) -> None:
    """Compile C or C++ with every warning as an error, or skip without the compiler."""
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} here")
    strict = ["-Wall", "-Wextra", "-Werror"]
    strict = ["-Xcompiler", ",".join(strict)] if compiler == "nvcc" else [*strict, "-Wpedantic"]
    command: list[str] = [compiler, *strict, "-isystem", str(headers()), str(source), *options]
    done = subprocess.run(command, cwd=source.parent, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
