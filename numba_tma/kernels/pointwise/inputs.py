"""Kernels of any number of inputs: tuples of inputs, and one device function for each."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from numba import cuda

from numba_tma.host.annotations import DeviceFunction, Kernel


def device(function: Callable[..., Any]) -> DeviceFunction:
    """Compile a function for kernels, always inlined."""
    return cuda.jit(device=True, forceinline=True)(function)


@functools.cache
def as_device(function: Callable[..., Any]) -> DeviceFunction:
    """Return a function of elements as kernels call it: as it is if it is compiled for them."""
    compiled = hasattr(function, "py_func") or type(function).__module__.startswith("numba")
    return function if compiled else device(function)


def together(functions: Sequence[DeviceFunction]) -> DeviceFunction:
    """Return the device function that calls each of `functions` and returns their results."""
    *before, last = functions
    if not before:

        @device
        def alone(inputs, tiles, at, extra):  # type: ignore[no-untyped-def]
            return (last(inputs, tiles, at, extra),)

        return alone
    first = together(before)

    @device
    def all_of_them(inputs, tiles, at, extra):  # type: ignore[no-untyped-def]
        return first(inputs, tiles, at, extra) + (last(inputs, tiles, at, extra),)  # noqa: RUF005

    return all_of_them


def entry(body: DeviceFunction, name: str, **counts: int) -> Kernel:
    """Return the kernel that calls `body`, a device function, some of whose parameters are tuples.

    A kernel has a fixed number of parameters and takes no tuples. Each parameter of `body` that is
    named in `counts` becomes that many parameters of the kernel.
    """
    arguments, passed = [], []
    function: Any = getattr(body, "py_func", body)
    for parameter in inspect.signature(function).parameters:
        if parameter in counts:
            parts = [f"{parameter}{i}" for i in range(counts[parameter])]
            arguments += parts
            passed.append(f"({' '.join(f'{part},' for part in parts)})")
        else:
            arguments.append(parameter)
            passed.append(parameter)
    source = f"def {name}({', '.join(arguments)}):\n    body({', '.join(passed)})\n"
    made: dict[str, Any] = {"body": body}
    exec(source, made)
    return cuda.jit(made[name])
