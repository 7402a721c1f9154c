"""First calls of every function, in a process that finds all kernels in the cache."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FAMILIES = ("attention", "copy", "matmul", "pointwise", "rows", "stencil", "transpose")
#: Packages that compile; cuda.core takes long to import.
COMPILERS = ("numba", "llvmlite", "cuda.core", "numba_tma.simulator", "numba_tma.backend.lowering")


def run(*options, **environment):
    """Return what the process prints."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.every_hit", *options],
        **{"capture_output": True, "text": True, "cwd": ROOT, "timeout": 1200},
        env=os.environ | {"NUMBA_TMA_CACHE": "0"} | environment,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def compilers_of(found):
    """Return what each call imports of compilers."""
    return {
        name: modules
        for name, imported in found["imported"].items()
        if (modules := [m for m in imported if m in COMPILERS or m.startswith(
            tuple(f"{compiler}." for compiler in COMPILERS))])
    }  # fmt: skip


@pytest.fixture(scope="module")
def hopper():
    return run("9.0")


def test_no_function_imports_a_compiler(hopper):
    functions = {
        name
        for family in FAMILIES
        for name in importlib.import_module(f"numba_tma.kernels.{family}").__all__
        if name.islower()
    }
    called = {name.partition(",")[0] for name in hopper["imported"]}
    assert called == functions | {"rmsnorm_pipelined"}
    assert compilers_of(hopper) == {} and len(hopper["launches"]) > 60


@pytest.mark.parametrize("capability", ["10.0", "12.0"])
def test_no_function_imports_a_compiler_on_other_gpus(capability):
    found = run(capability)
    assert compilers_of(found) == {} and len(found["launches"]) > 45


def test_keys_do_not_depend_on_the_process(hopper):
    """Neither on its hash of texts, nor on whether Numba is imported."""
    other = run("9.0", "--numba", PYTHONHASHSEED="7")
    for name in ("kernels", "launches"):
        assert other[name] == hopper[name]


@pytest.mark.slow
def test_every_kernel_that_is_compiled_is_found(tmp_path):
    cold = run("9.0", "--compile", NUMBA_TMA_CACHE=str(tmp_path))
    warm = run("9.0", "--cached", NUMBA_TMA_CACHE=str(tmp_path))
    assert compilers_of(cold) and compilers_of(warm) == {}
    for name in ("kernels", "launches"):
        assert warm[name] == cold[name]
