"""What a prepared launch asks of numba-cuda: the compiled kernel and the driver's handle of it."""

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
    """Return the kernel compiled for these arguments: the one that numba-cuda would launch."""
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
    """Give this thread the context that numba-cuda works in, if it has none."""
    cuda.current_context()


def stream_of(handle: int) -> Any:
    """Return cuda.core's stream of a handle."""
    return driver._to_core_stream(cuda.external_stream(handle) if handle else 0)


def max_threads(compiled: Any) -> int:
    """Return how many threads a block of this kernel may have, for the registers it needs."""
    return int(compiled.max_threads_per_block)


def ordinary_reason(compiled: Any) -> str:
    """Say why only numba-cuda itself can launch this kernel; "" if that is not so."""
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
