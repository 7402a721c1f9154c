"""A prepared launch's calls into numba-cuda: the compiled kernel, its handle, its context."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import cuda
from numba.cuda import dispatcher, typing
from numba.cuda.core.errors import TypingError
from numba.cuda.cudadrv import driver
from numba.cuda.dispatcher import CUDADispatcher

from numba_tma.backend.numba_cuda.guards import guarded
from numba_tma.backend.numba_cuda.requirements import requirements_of

__all__ = [
    "compiled_for",
    "guarded",
    "handle_of",
    "is_kernel",
    "make_context_current",
    "max_threads",
    "ordinary_reason",
    "requirements_of",
    "stream_of",
    "typeof",
]


def is_kernel(kernel: Any) -> bool:
    """Return whether `kernel` can be launched."""
    return isinstance(kernel, CUDADispatcher) and not kernel.targetoptions.get("device")


def compiled_for(kernel: Any, grid: Any, block: Any, args: tuple[Any, ...]) -> Any:
    """Return the kernel that numba-cuda would launch with these arguments, compiled."""
    configuration = kernel.configure(grid, block)
    before = configuration._push_args(args)
    try:
        chosen = kernel._select_launch_config_dispatcher(configuration)
        if chosen.specialized:
            compiled = next(iter(chosen.overloads.values()))
        else:
            with_configuration = {dispatcher._LAUNCH_CONFIG_KW: configuration}
            find = dispatcher._dispatcher.Dispatcher._cuda_call
            compiled = find(chosen, *args, **with_configuration)
        chosen._update_launch_config_sensitivity(compiled, configuration)
    finally:
        configuration._pop_args(before)
    return compiled


def handle_of(compiled: Any) -> Any:
    """Return cuda.core's kernel of a compiled one, loaded on the current device."""
    return compiled._codelibrary.get_cufunc().kernel


def make_context_current() -> None:
    """Make numba-cuda's context current, if this thread has no context."""
    cuda.current_context()


def stream_of(handle: int) -> Any:
    """Return cuda.core's stream of a handle."""
    return driver._to_core_stream(cuda.external_stream(handle) if handle else 0)


def max_threads(compiled: Any) -> int:
    """Return the most threads that a block of this kernel may have, given its registers."""
    return int(compiled.max_threads_per_block)


def ordinary_reason(compiled: Any) -> str:
    """Return the reason why only numba-cuda can launch this kernel; "" without one."""
    if compiled.debug:
        return "it was compiled with debug=True, whose exceptions numba-cuda looks for"
    if compiled.extensions:
        return "it has extensions, which numba-cuda asks for its arguments"
    return ""


def typeof(value: Any) -> Any:
    """Return the Numba type of an argument, or raise a TypeError."""
    find: Callable[..., Any] = typing.typeof.typeof
    try:
        return find(value, typing.typeof.Purpose.argument)
    except (ValueError, TypingError, NotImplementedError) as error:
        raise TypeError(str(error)) from None
