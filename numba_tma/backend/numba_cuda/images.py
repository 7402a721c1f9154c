"""Kernels compiled for the cache and for export, without loading them; a kernel's resources."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

from numba.core import types
from numba.cuda.core import sigutils
from numba.cuda.dispatcher import _Kernel

from numba_tma.backend.numba_cuda.functions import is_of_library
from numba_tma.backend.numba_cuda.kernels import parameter_sizes
from numba_tma.backend.numba_cuda.launches import (
    compiled_for,
    is_kernel,
    max_threads,
    ordinary_reason,
    typeof,
)
from numba_tma.backend.numba_cuda.registration import register_declared
from numba_tma.backend.numba_cuda.requirements import has_dynamic_shared, requirements_of
from numba_tma.backend.numba_cuda.symbols import without_ptx
from numba_tma.backend.numba_cuda.targeting import compiling_for
from numba_tma.host.annotations import Kernel, Signature
from numba_tma.host.dtypes import name_of
from numba_tma.host.exported_arguments import (
    NUMBERS,
    ExportedArgument,
    ExportedArray,
    ExportedMap,
    ExportedMapArray,
    ExportedNumber,
    ExportedPointer,
    ExportedTuple,
)
from numba_tma.host.kernel_image import KernelImage
from numba_tma.host.launch_rules import Resources
from numba_tma.host.launching import parameters_of
from numba_tma.host.tensor_map_array import TensorMapArray


def compile_image(kernel: Kernel, arguments: tuple[Any, ...]) -> KernelImage | None:
    """Return a kernel compiled for the current device; None if only numba-cuda can launch it.

    `arguments` are those of a launch, or their Numba types.
    """
    if not is_kernel(kernel):
        raise TypeError(f"{kernel!r} is no kernel: a cached one is a function under @cuda.jit")
    register_declared()
    # What is checked in the PTX of others, tests hold for the library's kernels.
    with without_ptx() if is_of_library(kernel.py_func) else nullcontext():
        compiled = _compiled(kernel, arguments)
    if _bound_to_process(compiled):
        return None
    return _image(compiled, 0)


def export_image(
    kernel: Kernel, signature: Signature, capability: tuple[int, int, str], shared: int
) -> tuple[KernelImage, tuple[ExportedArgument, ...]]:
    """Return a kernel compiled for a compute capability, and the types of its arguments.

    It raises a TypeError or ValueError for what is no kernel, and for one that cannot be launched
    without this process.
    """
    if not is_kernel(kernel):
        raise TypeError(f"{kernel!r} is no kernel; give a function under @cuda.jit")
    register_declared()
    given, described = [], []
    for name, argument in _arguments(kernel, signature):
        try:
            given.append(argument if isinstance(argument, types.Type) else typeof(argument))
            described.append(_described(given[-1]))
        except TypeError as error:
            raise TypeError(f"{name}: {error}") from None
    with compiling_for(capability):
        compiled = _compiled(kernel, given)
        if reason := _bound_to_process(compiled):
            raise ValueError(f"{kernel.py_func.__name__} {reason}")
        image = _image(compiled, shared)
        dynamic = has_dynamic_shared(compiled._codelibrary.get_asm_str())
    if dynamic and not shared:
        raise ValueError(
            f"{image.name} has shared memory of dynamic size, cuda.shared.array(0, ...): give its "
            "bytes, shared=..."
        )
    return image, tuple(described)


def examine(kernel: Kernel, arguments: tuple[object, ...]) -> Resources:
    """Return the resources of the kernel that a launch with these arguments launches."""
    if not is_kernel(kernel):
        raise TypeError(f"suggest_launch: {kernel!r} is no kernel: give a function under @cuda.jit")
    register_declared()
    compiled = compiled_for(kernel, *_ANY, arguments)
    return Resources(
        int(compiled.regs_per_thread),
        int(compiled.shared_mem_per_block),
        max_threads(compiled),
        requirements_of(compiled),
    )


_ANY = 1024, 32  # grid and block, for which nothing is launched and no warning is due


def _compiled(kernel: Kernel, arguments: Sequence[Any]) -> _Kernel:
    given = tuple(a if isinstance(a, types.Type) else typeof(a) for a in arguments)
    return _Kernel(kernel.py_func, given, **kernel.targetoptions)


def _image(compiled: _Kernel, shared: int) -> KernelImage:
    library = compiled._codelibrary
    return KernelImage(
        name=compiled.py_func.__name__,
        entry=compiled.entry_name,
        arguments=tuple(inspect.signature(compiled.py_func).parameters),
        sizes=parameter_sizes(compiled),
        requirements=requirements_of(compiled),
        cooperative=bool(compiled.cooperative),
        code=bytes(library.get_cubin().code),
        shared=shared,
    )


def _bound_to_process(compiled: _Kernel) -> str:
    """Return the reason why a kernel's code is not all that its launches need; "" without one."""
    library = compiled._codelibrary
    if requirements_of(compiled).watched:
        return (
            "is compiled in debug mode, whose records are in this process's memory: leave out "
            "debug=True and NUMBA_TMA_DEBUG"
        )
    if compiled.launch_config_sensitive:
        return "has code that depends on its grid and block, for which numba-cuda compiles it"
    if library.referenced_objects:
        return "has an array of the device among its globals: pass the array as an argument"
    if library._setup_functions or library._teardown_functions:
        return "links code with callbacks, which numba-cuda calls when it loads the kernel"
    if compiled.shared_memory_carveout is not None:
        return "has shared_memory_carveout=, which numba-cuda sets when it loads the kernel"
    reason = ordinary_reason(compiled)
    return f"is for numba-cuda alone: {reason}" if reason else ""


# --------------------------------------------------------------------- types of arguments


def _arguments(kernel: Kernel, signature: Signature) -> Iterator[tuple[str, Any]]:
    """Return a kernel's parameters with their types, or with arguments in the place of types."""
    given = signature
    if not isinstance(signature, tuple | list):
        given, returned = sigutils.normalize_signature(signature)
        if returned not in (None, types.void):
            raise ValueError(f"signature {signature!r} returns {returned}; a kernel has no result")
    names = parameters_of(kernel.py_func)
    if len(given) != len(names):
        raise ValueError(
            f"signature has {len(given)} types, and {kernel.py_func.__name__}"
            f"({', '.join(names)}) has {len(names)} parameters"
        )
    return zip(names, given)


def _described(numba_type: types.Type) -> ExportedArgument:
    """Return the type of an argument without a compiler, or raise a TypeError."""
    host_class = getattr(numba_type, "host_class", None)
    if host_class is TensorMapArray:
        element = numba_type.element
        return ExportedMapArray(ExportedMap.of(element, element.host_class))
    if host_class is not None:
        return ExportedMap.of(numba_type, host_class)
    if isinstance(numba_type, types.CPointer):
        return ExportedPointer(str(numba_type.dtype))
    if isinstance(numba_type, types.BaseTuple):
        return ExportedTuple(tuple(map(_described, numba_type)))
    if isinstance(numba_type, types.Array) and not isinstance(numba_type.dtype, types.Record):
        readonly = not numba_type.mutable
        dtype = name_of(numba_type.dtype)
        return ExportedArray(dtype, numba_type.ndim, numba_type.layout, readonly)
    if numba_type.name in NUMBERS:
        return ExportedNumber(numba_type.name)
    raise TypeError(
        f"a {numba_type} cannot be exported; tensor maps, arrays, pointers, numbers of up to 64 "
        "bits, and tuples of these can"
    )
