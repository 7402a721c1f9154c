"""Kernels on their way to another process: the simulator's to the compiler's, or back.

A process has the compiler or the simulator, and a kernel under `cuda.jit` is an object of its half.
What travels is the Python function, with its code, the globals that it names and its closure, so
that a kernel of a notebook or inside of a function travels too. Functions that it calls and that
are no device functions are imported by name, unless their module is `__main__`.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from types import FunctionType
from typing import Any

from numba import cuda
from numba.cuda.cloudpickle import CloudPickler

#: Options of `cuda.jit` that both halves keep, or that the simulator notes for the compiler.
_OPTIONS = ("debug", "lineinfo", "fastmath", "opt", "forceinline", "launch_bounds", "max_registers")


def ship(*things: object) -> bytes:
    """Pickle kernels, and what goes with them; `pickle.loads` returns a tuple of them.

    Raises
    ------
    TypeError
        When a global of a kernel cannot be pickled, with the reason.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(things)
    except Exception as error:
        raise TypeError(
            f"a kernel cannot be sent to another process, because what it uses does not pickle "
            f"({type(error).__name__}: {error}): give it plain values, tiles and pipelines as "
            "globals, and make everything else an argument"
        ) from error
    return buffer.getvalue()


class _Pickler(CloudPickler):  # type: ignore[misc]  # it has no types
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._by_value: set[int] = set()

    def reducer_override(self, thing: Any) -> Any:
        """Return how a kernel or device function is made again; all else is cloudpickle's."""
        function = getattr(thing, "py_func", None)
        if isinstance(function, FunctionType) and not isinstance(thing, type):
            self._by_value.add(id(function))
            return _jit_again, (function, _options(thing))
        if id(thing) in self._by_value:  # its module may be a script, or choose the other half
            return self._dynamic_function_reduce(thing)
        return super().reducer_override(thing)


def _options(kernel: object) -> dict[str, Any]:
    """Return the options of `cuda.jit` that made a kernel, in either half."""
    given = getattr(kernel, "targetoptions", None) or getattr(kernel, "given_options", {})
    device = given.get("device", getattr(kernel, "_device", False))
    return {n: given[n] for n in _OPTIONS if n in given} | ({"device": True} if device else {})


def _jit_again(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    return cuda.jit(**options)(function)
