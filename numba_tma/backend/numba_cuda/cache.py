"""The disk cache: numba-cuda's key has the kernel's bytecode, and this module adds the captures.

Two kernels that differ only in the `TilePipeline` in their globals have the same bytecode. For
kernels that use this library, the key therefore includes every captured object, the cluster size,
the library's version, the debug flag, and the compiler options. A kernel in debug mode contains the
address of a buffer of its process, and is not cached.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from numba.cuda.dispatcher import CUDACache, CUDADispatcher

from numba_tma._version import __version__
from numba_tma.backend.numba_cuda.object_types import is_constant
from numba_tma.backend.numba_cuda.registration import register_subjects
from numba_tma.backend.numba_cuda.requirements import requirements_of
from numba_tma.host.cluster_rules import cluster_of
from numba_tma.host.environment import debugging, racing

_OPTIONS = ("debug", "opt", "lineinfo", "fastmath", "max_registers", "launch_bounds", "forceinline")


def captured(function: FunctionType, seen: set[Any] | None = None) -> Iterator[str]:
    """Yield a text for each compile-time object that `function` or its helpers reference."""
    seen = set() if seen is None else seen
    if function in seen:
        return
    seen.add(function)
    if size := cluster_of(function):
        yield f"cluster={size}"
    names = set(_names(function.__code__))
    values = {n: function.__globals__[n] for n in names if n in function.__globals__}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        values[name] = cell.cell_contents
    for name, value in sorted(values.items()):
        yield from _captured_in(name, value, names, seen)


def _captured_in(path: str, value: Any, names: set[str], seen: set[Any]) -> Iterator[str]:
    if is_constant(value):
        yield f"{path}={_described(value)}"
    elif isinstance(value, CUDADispatcher):
        yield from captured(value.py_func, seen)
    elif isinstance(value, tuple) or isinstance(value, list) and all(map(is_constant, value)):
        for i, item in enumerate(value):
            yield from _captured_in(f"{path}[{i}]", item, names, seen)
    elif _is_ours(value):
        yield path
    elif isinstance(value, ModuleType) and value not in seen:
        seen.add(value)
        for name in sorted(names & vars(value).keys()):
            yield from _captured_in(f"{path}.{name}", vars(value)[name], names, seen)


def _described(value: Any) -> str:
    """Return a text that is unique to `value`: it has every field, which a repr may omit."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_described, value))})"
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return repr(value)
    fields = (f"{f.name}={_described(getattr(value, f.name))}" for f in dataclasses.fields(value))
    return f"{type(value).__qualname__}({', '.join(fields)})"


def _is_ours(value: Any) -> bool:
    """Whether `value` is the library, or one of its modules, functions or classes."""
    home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return isinstance(home, str) and home.partition(".")[0] == "numba_tma"


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _uses_library(signature: Any) -> bool:
    return any(
        type(a).__module__.startswith("numba_tma.") or _uses_library(getattr(a, "types", ()))
        for a in signature
    )


_index_key = CUDACache._index_key
_save_overload = CUDACache.save_overload
_enable_caching = CUDADispatcher.enable_caching


def _index_key_with_captures(self: Any, sig: Any, codegen: Any) -> tuple[Any, ...]:
    key: tuple[Any, ...] = _index_key(self, sig, codegen)
    register_subjects()  # a cached kernel is not compiled, and so does not register them
    objects = tuple(captured(self._py_func))
    if not objects and not _uses_library(sig):
        return key
    options = getattr(self, "options", None)
    return (*key, ("numba_tma", __version__, options, debugging(), racing(), objects))


def _save_unless_watched(self: Any, sig: Any, kernel: Any) -> None:
    if not requirements_of(kernel).watched:
        _save_overload(self, sig, kernel)


def _enable_caching_with_options(self: Any) -> None:
    _enable_caching(self)
    self._cache.options = tuple((o, repr(self.targetoptions.get(o))) for o in _OPTIONS)


CUDACache._index_key = _index_key_with_captures
CUDACache.save_overload = _save_unless_watched
CUDADispatcher.enable_caching = _enable_caching_with_options
