"""Tests of the compiler share a process, and with it the state of libNVVM."""

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from numba.cuda.cudadrv import nvvm


@pytest.fixture(autouse=True, scope="session")
def _no_debug_information() -> Iterator[None]:
    """Compile without -g and with optimisation what asks for the opposite.

    After one module with -g, libNVVM 13.4 gives every later module of its process other code for
    compute capability 10.0 and newer; after one with -opt=0, it reads parameters through generic
    addresses for 9.0 too. Goldens would depend on the order of the tests.
    """
    compile_ir = nvvm.compile_ir

    def as_usual(modules: Any, **options: Any) -> bytes:
        options.pop("g", None)
        options.pop("opt", None)
        return compile_ir(modules, **options)

    with mock.patch.object(nvvm, "compile_ir", as_usual):
        yield
