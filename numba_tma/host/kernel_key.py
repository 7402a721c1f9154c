"""The key of a compiled kernel: a text of everything that decides its code, and that text's hash.

`described` writes an object as a text that differs for objects that may give other code. Objects of
this library, of Numba and NumPy and of the standard library are named: the key has the library's
sources and the others' versions. Functions of the user are written as their bytecode, constants,
defaults, captured variables, and the globals that they name, each of which is described in turn. An
object that nothing is known of has no description, and its kernel is not cached.

Numba's ``@overload`` implements a function elsewhere: a description has the function and not its
implementation.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import hashlib
import os
import sys
from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from numba_tma._version import __version__
from numba_tma.host.backend import declarations
from numba_tma.host.cluster_rules import cluster_of
from numba_tma.host.dtypes import DType
from numba_tma.host.environment import compiler_variables

#: Packages whose objects are named, since the key has their versions; beside the standard library.
_NAMED = {"numba", "numba_cuda", "numpy", "ml_dtypes", "llvmlite", "cuda"}
#: Distributions whose versions are in the key, by the beginning of their names.
_VERSIONS = (
    *("numba-", "numba_cuda-", "llvmlite-", "numpy-", "ml_dtypes-", "cuda_core-"),
    *("cuda_bindings-", "nvidia_nvvm", "nvidia_nvjitlink", "nvidia_cuda_nvcc"),
    *("nvidia_cuda_nvrtc", "nvidia_cuda_runtime"),
)
#: Options of ``@cuda.jit`` with which a kernel is more than its code.
_UNCACHEABLE = ("debug", "extensions", "link", "shared_memory_carveout")


class Undescribable(TypeError):
    """An object whose effect on a kernel's code is unknown."""


def key_of(kernel: str, arguments: Iterable[str], target: str) -> str:
    """Return the key of a kernel's code.

    Parameters
    ----------
    kernel
        Description of the kernel.
    arguments
        Descriptions of its arguments' types.
    target
        The compute capability.
    """
    parts = [*_toolchain(), repr(compiler_variables()), target, kernel, *arguments]
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()


# --------------------------------------------------------------------------- what compiles


@functools.cache
def _toolchain() -> tuple[str, ...]:
    python = f"python {sys.version_info[:3]} {sys.implementation.cache_tag} {sys.platform}"
    return f"numba_tma {__version__} {_sources()}", python, *_installed(), *_toolkit()


def _sources() -> str:
    """Return the hash of the library's files."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    hashed = hashlib.sha256()
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                with open(path, "rb", buffering=0) as file:  # hundreds, at each first call
                    data = file.read()
                hashed.update(f"{path[len(root) :]} {len(data)}\n".encode())
                hashed.update(data)
    return hashed.hexdigest()


def _installed() -> Iterator[str]:
    """Yield name and version of the distributions of `_VERSIONS`.

    Their folders are read, since importlib.metadata takes long to import.
    """
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in sorted(names):
            if name.endswith(".dist-info") and name.lower().startswith(_VERSIONS):
                yield name


def _toolkit() -> Iterator[str]:
    """Yield what is known of a toolkit that is not a distribution, and of Numba's settings."""
    with contextlib.suppress(OSError), open(".numba_config.yaml", "rb") as settings:
        yield hashlib.sha256(settings.read()).hexdigest()
    for variable in ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"):
        if home := os.environ.get(variable):
            for file in ("", "version.json", "nvvm/lib64/libnvvm.so"):
                try:
                    status = os.stat(os.path.join(home, file))
                    yield f"{variable} {home} {file} {status.st_mtime_ns}"
                except OSError:
                    continue


# ------------------------------------------------------------------------------ objects


def described(value: object) -> str:
    """Return a text that differs for objects that may give other code, or raise `Undescribable`."""
    try:
        return _Description().of(value)
    except RecursionError:
        raise Undescribable(f"a {type(value).__qualname__} that contains itself") from None


class _Description:
    """A description in the making; functions and classes are written once, and may be recursive."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._alive: list[Any] = []

    def of(self, value: object) -> str:
        """Return the text of an object."""
        if value is None or value is Ellipsis or isinstance(value, bool | int | str | bytes):
            enumerated = f"{type(value).__qualname__}." if isinstance(value, enum.Enum) else ""
            return f"{enumerated}{type(value).__name__}:{value!r}"
        if isinstance(value, float | complex):
            return f"{type(value).__name__}:{value!r}"
        if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            bits = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
            order = getattr(value, "strides", ())
            return f"{value.dtype.str}{value.dtype.name}{value.shape}{order}:{bits}"
        if isinstance(value, np.dtype):
            return f"dtype:{value.str}{value.name}{value.descr if value.names else ''}"
        if isinstance(value, DType):
            return f"DType:{value.name}"
        if isinstance(value, tuple | list):
            return f"{self.of(type(value))}({','.join(map(self.of, value))})"
        if isinstance(value, set | frozenset):
            return f"{type(value).__name__}({','.join(sorted(map(self.of, value)))})"
        if isinstance(value, dict):
            items = (f"{self.of(k)}={self.of(v)}" for k, v in value.items())
            return f"dict({','.join(items)})"
        if isinstance(value, ModuleType):
            return f"module:{value.__name__}"
        if isinstance(value, enum.Enum):
            return f"{self.of(type(value))}.{value.name}"
        if hasattr(value, "described_for_key"):
            return str(value.described_for_key(self.of))
        if isinstance(value, FunctionType | type) or _is_dispatcher(value):
            return self._once(value)
        if hasattr(value, "cache_info") and hasattr(value, "__wrapped__"):  # functools.cache
            return f"cache({self.of(value.__wrapped__)})"
        if isinstance(value, functools.partial):
            return f"partial({self.of(value.func)},{self.of(value.args)},{self.of(value.keywords)})"
        if isinstance(value, MethodType):
            return f"method({self.of(value.__func__)},{self.of(value.__self__)})"
        if isinstance(value, BuiltinFunctionType | np.ufunc):
            return f"builtin:{getattr(value, '__module__', '')}.{value.__qualname__}"
        if hasattr(value, "_defn"):  # Numba's @intrinsic
            return f"intrinsic({self.of(value._defn)})"
        return self._instance(value)

    def _once(self, value: Any) -> str:
        """Return the text of a function or class; its number if it has been written already."""
        if id(value) in self._seen:
            return f"#{self._seen[id(value)]}"
        self._seen[id(value)] = len(self._seen)
        self._alive.append(value)  # else another object could get its identity
        if isinstance(value, FunctionType):
            return self._function(value)
        return self._class(value) if isinstance(value, type) else self._dispatcher(value)

    def _instance(self, value: object) -> str:
        cls = type(value)
        if dataclasses.is_dataclass(cls):
            fields = dataclasses.fields(cls)
            shown = (f"{f.name}={self.of(getattr(value, f.name))}" for f in fields)
            return f"{self.of(cls)}({','.join(shown)})"
        if _is_ours(cls) and hasattr(value, "__dict__"):
            return f"{self.of(cls)}({self.of(vars(value))})"
        if _is_named(cls) and " at 0x" not in (text := repr(value)):
            return f"{_name(cls)}:{text}"
        raise Undescribable(
            f"a {cls.__module__}.{cls.__qualname__}, whose effect on the code is unknown"
        )

    def _dispatcher(self, kernel: Any) -> str:
        options = {k: v for k, v in sorted(kernel.targetoptions.items()) if v}
        if wrong := [name for name in _UNCACHEABLE if options.get(name)]:
            raise Undescribable(f"{kernel.py_func.__qualname__} has {wrong[0]}=")
        lines = ""
        if options.get("lineinfo"):
            code = kernel.py_func.__code__
            lines = f"{code.co_filename}:{code.co_firstlineno}:{code.co_linetable!r}"
        return f"jit({self.of(options)},{lines},{self.of(kernel.py_func)})"

    def _function(self, function: FunctionType) -> str:
        cells = [self._cell(cell) for cell in function.__closure__ or ()]
        if _is_ours(function) or _is_named(function):
            return f"function:{_name(function)}({','.join(cells)})"
        defaults = self.of(function.__defaults__), self.of(function.__kwdefaults__)
        names = set(_names(function.__code__))
        captured = [
            f"{name}={self._global(function.__globals__[name], names)}"
            for name in sorted(names & function.__globals__.keys())
        ]
        parts = [
            *(self._code(function.__code__), *defaults, *cells, *captured),
            *(f"cluster={cluster_of(function)}", *self._declared(function)),
        ]
        return f"def({';'.join(parts)})"

    def _global(self, value: object, names: set[str]) -> str:
        """Describe a global, and of a module that is described by its name what code may take."""
        if not isinstance(value, ModuleType) or _is_ours(value) or _is_named(value):
            return self.of(value)
        if id(value) in self._seen:
            return f"#{self._seen[id(value)]}"
        self._seen[id(value)] = len(self._seen)
        taken = sorted(names & vars(value).keys())
        shown = (f"{name}={self._global(vars(value)[name], names)}" for name in taken)
        return f"module:{value.__name__}({','.join(shown)})"

    def _cell(self, cell: Any) -> str:
        try:
            return self.of(cell.cell_contents)
        except ValueError:
            return "empty"

    def _code(self, code: CodeType) -> str:
        constants = [
            self._code(c) if isinstance(c, CodeType) else self.of(c) for c in code.co_consts
        ]
        numbers = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
        names = code.co_name, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
        jumps = getattr(code, "co_exceptiontable", b"")
        return f"code({code.co_code.hex()},{jumps!r},{numbers},{names},{','.join(constants)})"

    def _class(self, cls: type) -> str:
        if _is_ours(cls) or _is_named(cls):
            return f"class:{_name(cls)}"
        if issubclass(cls, enum.Enum):
            shown = (f"{member.name}={self.of(member.value)}" for member in cls)
            return f"enum {cls.__qualname__}({','.join(shown)})"
        members = {
            name: value
            for name, value in sorted(vars(cls).items())
            if name not in _OF_EVERY_CLASS and not name.startswith("_abc_")
        }
        shown = (f"{name}={self._member(value)}" for name, value in members.items())
        bases = ",".join(map(self.of, cls.__bases__))
        annotations = getattr(cls, "__annotations__", {})
        typed = ",".join(f"{name}:{kind!r}" for name, kind in annotations.items())
        parts = [bases, typed, *shown, *self._declared(cls)]
        return f"class {cls.__qualname__}({';'.join(parts)})"

    def _member(self, value: object) -> str:
        if isinstance(value, property):
            return f"property({self.of(value.fget)},{self.of(value.fset)})"
        if isinstance(value, staticmethod | classmethod):
            return f"{type(value).__name__}({self.of(value.__func__)})"
        if isinstance(value, functools.cached_property):
            return f"cached_property({self.of(value.func)})"
        if type(value).__name__ in ("member_descriptor", "getset_descriptor", "_tuplegetter"):
            return type(value).__name__
        return self.of(value)

    def _declared(self, subject: object) -> Iterator[str]:
        """Yield how a function or class was declared for kernels, with its options."""
        for kind, known, options in declarations():
            if known is subject:
                yield f"{kind}({self.of(dict(options))})"


#: Members that say nothing of a class, or that dataclasses and enumerations make of the others.
_OF_EVERY_CLASS = {
    *("__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__qualname__"),
    *("__dataclass_params__", "__dataclass_fields__", "__match_args__", "__orig_bases__"),
    *("__parameters__", "__firstlineno__", "__static_attributes__", "_member_map_"),
    *("_member_names_", "_value2member_map_", "_unhashable_values_", "__new__", "_new_member_"),
    *("__annotate__", "__annotate_func__", "__annotations_cache__", "__replace__"),
}


_STANDARD = os.path.dirname(os.__file__)


@functools.cache
def _has_a_version(root: str) -> bool:
    """Return whether a top-level module is of Python, or of a package whose version is in the key.

    A user's module may have the name of one of Python's.
    """
    if root in _NAMED:
        return True
    file = getattr(sys.modules.get(root), "__file__", None)
    return root in sys.stdlib_module_names - {"__main__"} and (
        file is None or os.path.abspath(file).startswith(_STANDARD + os.sep)
    )


def _is_dispatcher(value: object) -> bool:
    """Return whether a value is what ``@cuda.jit`` returns."""
    return hasattr(value, "py_func") and hasattr(value, "targetoptions")


def _root(value: object) -> str:
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return (name or "").partition(".")[0]


def _is_ours(value: object) -> bool:
    return _root(value) == "numba_tma"


def _is_named(value: object) -> bool:
    return _has_a_version(_root(value))


def _name(value: FunctionType | type) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes in a function, and in functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
