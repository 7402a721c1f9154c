"""Kernels compiled for the cache: to the GPU's code, without loading it."""

from __future__ import annotations

import inspect
from typing import Any

from numba.core import types
from numba.cuda.dispatcher import _Kernel

from numba_tma.backend.numba_cuda.launches import is_kernel, ordinary_reason, typeof
from numba_tma.backend.numba_cuda.registration import register_declared
from numba_tma.backend.numba_cuda.requirements import parameter_sizes, requirements_of
from numba_tma.host.annotations import Kernel
from numba_tma.host.kernel_image import KernelImage


def compile_image(kernel: Kernel, arguments: tuple[Any, ...]) -> KernelImage | None:
    """Return a kernel compiled for the current device; None if only numba-cuda can launch it.

    `arguments` are those of a launch, or their Numba types.
    """
    if not is_kernel(kernel):
        raise TypeError(f"{kernel!r} is no kernel: a cached one is a function under @cuda.jit")
    register_declared()
    given = tuple(a if isinstance(a, types.Type) else typeof(a) for a in arguments)
    compiled = _Kernel(kernel.py_func, given, **kernel.targetoptions)
    needs = requirements_of(compiled)
    if needs.watched or compiled.launch_config_sensitive or ordinary_reason(compiled):
        return None
    return KernelImage(
        name=kernel.py_func.__name__,
        entry=compiled.entry_name,
        arguments=tuple(inspect.signature(kernel.py_func).parameters),
        sizes=parameter_sizes(compiled._codelibrary.get_asm_str(), compiled.entry_name),
        requirements=needs,
        cooperative=bool(compiled.cooperative),
        code=bytes(compiled._codelibrary.get_cubin().code),
    )
