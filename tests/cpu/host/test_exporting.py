"""Exports without a GPU: signatures, targets, files, and kernels that are refused."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numba import cuda, types

import numba_tma as tma
from tests.cpu.host.test_launcher import device_array
from tests.exported import (
    F32,
    I64,
    MAP,
    TILE,
    block,
    compile_with,
    exported,
    launched,
    nothing,
    recording,
    scale,
)
from tests.recording_driver import ATTRIBUTES, Array

ROOT = Path(__file__).parents[3]


@pytest.fixture
def gpu():
    """A driver that notes launches."""
    with recording() as driver:
        yield driver


def test_arguments_in_the_place_of_types(gpu, tmp_path):
    x = tma.tensor_map(Array(1, (64, 32), "f4"), TILE)
    kernel = exported(scale, (x, device_array((8, 32)), np.float32(1), (np.int32(1), 2)), tmp_path)
    assert repr(kernel) == (
        "scale(x: TensorMap(Tile((8, 32), f32, NONE)), y: array of f32, 2 axes, C-contiguous, "
        "factor: float32, sizes: (int32, int64))"
    )


@pytest.mark.parametrize("signature", ["void(float32[:], int64)", types.void(F32[:], I64)])
def test_other_forms_of_signatures(gpu, tmp_path, signature):
    @cuda.jit
    def kernel(x, n):
        pass

    assert str(exported(kernel, signature, tmp_path)) == (
        "kernel(x: array of f32, 1 axes, n: int64)"
    )


def test_dynamic_shared_memory(gpu, tmp_path):
    @cuda.jit
    def kernel(x):
        buffer = cuda.shared.array(0, F32)
        buffer[cuda.threadIdx.x] = x[0]
        cuda.syncthreads()
        x[0] = buffer[0]

    with pytest.raises(ValueError, match="export: kernel has shared memory of dynamic size"):
        exported(kernel, (F32[::1],), tmp_path)
    found = exported(kernel, (F32[::1],), tmp_path, shared=100_000)
    assert launched(gpu, found, Array(1, (4,), "f4")).shared == 100_000 and gpu.shared == [100_000]
    found[1, 32, 0, 100_000]
    with pytest.raises(ValueError, match="exported with shared=100000, and is given 64 B"):
        found[1, 32, 0, 64]
    assert "#define KERNEL_SHARED_BYTES 100000" in (tmp_path / "kernel.h").read_text()
    for wrong, error in ((-1, ValueError), (1 << 20, ValueError), (1.5, TypeError)):
        with pytest.raises(error, match=r"export\(shared="):
            exported(kernel, (F32[::1],), tmp_path, shared=wrong)


def test_a_cached_kernel_is_exported(gpu, tmp_path):
    kernel = exported(tma.cached(nothing), (I64,), tmp_path)
    assert launched(gpu, kernel, 5).packed == [np.int64(5).tobytes()]


# -------------------------------------------------------------------------------- targets


@pytest.mark.parametrize(
    ("cc", "target"),
    [((9, 0, "a"), "90a"), ((9, 0), "90"), ((8, 0), "80"), ((10, 0, "f"), "100f"), (None, "90a")],
)
def test_the_target(tmp_path, monkeypatch, cc, target):
    monkeypatch.setattr("numba_tma.host.exporting.present_capability", lambda: None)
    kernel = exported(nothing, (I64,), tmp_path, cc=cc)
    assert kernel._target == target
    assert f"for sm_{target}: kernel.cubin" in (tmp_path / "kernel.h").read_text()
    flags = int.from_bytes(kernel.image.code[48:52], "little")  # e_flags of the ELF file
    assert flags >> 8 & 0xFF == int("".join(filter(str.isdigit, target)))


@pytest.mark.parametrize(("major", "minor", "target"), [(9, 0, "90a"), (8, 9, "89")])
def test_the_target_of_the_current_gpu(gpu, tmp_path, monkeypatch, major, minor, target):
    monkeypatch.setitem(ATTRIBUTES, "COMPUTE_CAPABILITY_MAJOR", major)
    monkeypatch.setitem(ATTRIBUTES, "COMPUTE_CAPABILITY_MINOR", minor)
    assert exported(nothing, (I64,), tmp_path)._target == target


@pytest.mark.parametrize("cc", [(9, 1), 90, "90a", (9, 0, "x"), (9,)])
def test_an_unknown_target(tmp_path, cc):
    with pytest.raises(ValueError, match=r"export\(cc=.*: cc is one of .*\(9, 0, 'a'\)"):
        tma.export(nothing, (I64,), tmp_path / "kernel", cc=cc)


# --------------------------------------------------------------- kernels that are refused


@pytest.mark.parametrize("kernel", [3, None, lambda x: x, cuda.jit(device=True)(lambda x: x)])
def test_what_is_no_kernel(tmp_path, kernel):
    with pytest.raises(TypeError, match="is no kernel; give a function under @cuda.jit"):
        tma.export(kernel, (I64,), tmp_path / "kernel")


@pytest.mark.parametrize(
    ("signature", "error", "text"),
    [
        ((), ValueError, r"signature has 0 types, and nothing\(x\) has 1 parameters"),
        ((I64, I64), ValueError, r"signature has 2 types"),
        ("int64(int64)", ValueError, r"returns int64; a kernel has no result"),
        ((types.complex64,), TypeError, r"export: x: a complex64 cannot be exported; tensor maps"),
        ((types.unicode_type,), TypeError, r"export: x: a unicode_type cannot be"),
        ((tma.TensorMapType(2),), TypeError, r"export: x: a tensor map without a tile"),
        (3, TypeError, r"export: invalid signature"),
        ((object(),), TypeError, r"export: x: Cannot determine Numba type of <class 'object'>"),
    ],
)
def test_a_wrong_signature(tmp_path, signature, error, text):
    with pytest.raises(error, match=text):
        tma.export(nothing, signature, tmp_path / "kernel")
    assert not list(tmp_path.iterdir())


WATCHED = tma.TilePipeline(2, x=TILE, debug=True)


@cuda.jit
def watched(x):
    pipe = WATCHED.start()
    if pipe.is_producer():
        for tile, stage in pipe.produce(0, 2, 1):
            x.load(stage.x, (tile * 8, 0), stage.barrier)
    else:
        for _, stage in pipe.consume(0, 2, 1):
            stage.x[0, 0] = 1


GLOBAL = device_array((8,))


@cuda.jit
def captures(x):
    if x > 0:
        GLOBAL[0] = 1


def empty(x):
    pass


def any_number(*x):
    pass


@pytest.mark.parametrize(
    ("kernel", "given", "text"),
    [
        (watched, MAP, "watched is compiled in debug mode, whose records are in this process"),
        (captures, I64, "captures has an array of the device among its globals: pass the array"),
        (cuda.jit(debug=True, opt=False)(empty), I64, "compiled with debug=True"),
        (cuda.jit(shared_memory_carveout=50)(empty), I64, "shared_memory_carveout="),
        (cuda.jit(extensions=[SimpleNamespace()])(empty), I64, "has extensions"),
    ],
)
def test_a_kernel_that_is_bound_to_its_process(tmp_path, kernel, given, text):
    with pytest.raises(ValueError, match=f"export: .*{text}"):
        tma.export(kernel, (given,), tmp_path / "kernel")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "fact", ["launch_config_sensitive", "_setup_functions", "_teardown_functions"]
)
def test_facts_that_only_numba_cuda_can_provide(tmp_path, monkeypatch, fact):
    from numba_tma.backend.numba_cuda import images

    original = images._compiled

    def compiled(*given):
        kernel = original(*given)
        owner = kernel if hasattr(kernel, fact) else kernel._codelibrary
        setattr(owner, fact, {"x": 1})
        return kernel

    monkeypatch.setattr(images, "_compiled", compiled)
    with pytest.raises(ValueError, match="export: nothing "):
        tma.export(nothing, (I64,), tmp_path / "kernel")


def test_a_kernel_of_any_number_of_arguments(tmp_path):
    with pytest.raises(TypeError, match=r"export: any_number\(\*x\) does not have a fixed number"):
        tma.export(cuda.jit(any_number), (I64,), tmp_path / "kernel")


def test_paths(gpu, tmp_path, monkeypatch):
    for path in (tmp_path / "no" / "kernel", "", f"{tmp_path}/no/kernel"):
        with pytest.raises(FileNotFoundError, match="export.path=.*does not exist: make it first"):
            tma.export(nothing, (I64,), path)
    monkeypatch.chdir(tmp_path)
    tma.export(nothing, (I64,), "a.b")
    assert {one.name for one in tmp_path.iterdir()} == {"a.b.cubin", "a.b.h", "a.b.json"}
    assert "a_b_launch" in (tmp_path / "a.b.h").read_text()
    launched(gpu, tma.load("a.b"), 3)
    tma.export(nothing, (F32,), "a.b")
    assert str(tma.load("a.b")) == "nothing(x: float32)"


# ------------------------------------------------------------------------------- the page


def test_the_page_exports_and_its_cpp_compiles(gpu, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.py").write_text(block("python"))
    done = subprocess.run(
        [sys.executable, "page.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    (tmp_path / "scale.cpp").write_text(block("cpp"))
    compile_with("g++", tmp_path / "scale.cpp", "-std=c++11", "-c", "-o", "scale.o")
