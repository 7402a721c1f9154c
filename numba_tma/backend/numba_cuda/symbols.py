"""Kernels without PTX: their requirements are read from LLVM's text.

With link-time optimisation, numba-cuda compiles a kernel twice: to what nvJitLink makes code of,
and to PTX. It searches the PTX for functions whose files it links, and the library for a kernel's
requirements. LLVM's text has the same symbols, and a kernel of the cache needs the code alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from numba.cuda.codegen import CUDACodeLibrary
from numba.cuda.descriptor import cuda_target

_here = threading.local()


@contextmanager
def without_ptx() -> Iterator[None]:
    """Let kernels that this thread makes have no PTX, where nothing else is read from it."""
    before = reads_llvm()
    # The memory manager's functions are found by their directives in PTX.
    _here.reads_llvm = not cuda_target.target_context.enable_nrt
    try:
        yield
    finally:
        _here.reads_llvm = before


def reads_llvm() -> bool:
    """Return whether kernels with link-time optimisation are made without PTX."""
    return getattr(_here, "reads_llvm", False)


_get_asm_str = CUDACodeLibrary.get_asm_str


def _get_symbols(self: CUDACodeLibrary, cc: object = None) -> str:
    """Return a kernel's PTX, or the text of LLVM that it would be compiled from."""
    if reads_llvm() and self._lto:
        return str(self.get_llvm_str())
    return str(_get_asm_str(self, cc))


CUDACodeLibrary.get_asm_str = _get_symbols
