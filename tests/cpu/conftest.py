"""What all tests of this tier share: one state of libNVVM, and arrays at made-up addresses."""

import importlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from cuda.bindings import driver
from numba.cuda.cudadrv import nvvm


@pytest.fixture(autouse=True, scope="session")
def _no_debug_information() -> Iterator[None]:
    """Compile without -g and with optimisation what asks for the opposite.

    After one module with -g, libNVVM 13.4 gives every later module of its process other code for
    compute capability 10.0 and newer; after one with -opt=0, it reads parameters through generic
    addresses for 9.0 too. Goldens would depend on the order of the tests.
    """
    importlib.import_module("numba_tma.backend.compiler")  # has a `compile_ir` of its own
    compile_ir = nvvm.compile_ir

    def as_usual(modules: Any, **options: Any) -> bytes:
        options.pop("g", None)
        options.pop("opt", None)
        return compile_ir(modules, **options)

    with mock.patch.object(nvvm, "compile_ir", as_usual):
        yield


@pytest.fixture(autouse=True)
def _all_memory_is_accessible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the driver know memory wherever an array of a test says that it lies."""
    answer = driver.CUresult.CUDA_SUCCESS, 0
    monkeypatch.setattr(driver, "cuPointerGetAttribute", lambda which, address: answer)
