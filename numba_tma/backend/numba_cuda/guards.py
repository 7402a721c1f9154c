"""Launches of kernels that use the library: their arguments, and the checks before them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from numba import cuda
from numba.cuda.dispatcher import _Kernel

from numba_tma.backend.numba_cuda.requirements import check_registers, requirements_of
from numba_tma.backend.numba_cuda.symbols import reads_llvm
from numba_tma.host import debug
from numba_tma.host.environment import racing
from numba_tma.host.launch_rules import Requirements

Launch = Callable[..., Any]

#: The functions from an argument to the launcher's driver argument, by Numba type class.
ARGUMENTS: dict[type, Callable[[Any], Any]] = {}


def _prepare_argument(
    prepare: Callable[..., None], typ: Any, value: Any, stream: Any, retr: Any, kernelargs: Any
) -> None:
    """Pass an argument of the library's types on, and any other as numba-cuda does."""
    unwrap = ARGUMENTS.get(type(typ))
    if unwrap is not None:
        kernelargs.append(unwrap(value))
    else:
        prepare(typ, value, stream, retr, kernelargs)


def _check(
    launch: Callable[..., Any],
    needs: Requirements,
    args: Any,
    griddim: Any,
    blockdim: Any,
    *rest: Any,
) -> Any:
    """Launch a kernel, if it can be launched with this grid and block."""
    needs.check(griddim, blockdim)
    return launch(args, griddim, blockdim, *rest)


def _watch(
    launch: Callable[..., Any], args: Any, griddim: Any, blockdim: Any, stream: Any, *rest: Any
) -> Any:
    """Launch a kernel in debug mode, wait for its end, and raise the errors in its records."""
    if _is_capturing(stream):
        raise RuntimeError(
            "this kernel was compiled in debug mode, in which each launch waits for the kernel's "
            "end; a stream that is being captured cannot be waited for: capture without "
            "NUMBA_TMA_DEBUG and debug=True"
        )
    with debug.LOCK:  # there is one buffer
        records = debug.mapped_buffer()
        records.clear()
        judge = _race_check() if racing() else None
        if judge:
            judge.clear()
        result = launch(args, griddim, blockdim, stream, *rest)
        try:
            cuda.synchronize()
        except Exception as error:  # the context is lost; what was written before it is not
            records.check(error)
            if judge:
                judge.check_after_failure(griddim, error)
            raise
        if judge:
            judge.check(griddim, records.records())
        records.check()
    return result


def _race_check() -> Any:
    from numba_tma.backend.numba_cuda import race_check  # with all that reads a log

    return race_check


def _is_capturing(stream: Any) -> bool:
    from cuda.bindings import driver

    error, status = driver.cuStreamIsCapturing(int(getattr(stream, "handle", stream)))
    # The legacy default stream, while another stream captures: it accepts no launch either.
    return bool(error) or status != driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE


def _takes_ours(types_: Any) -> bool:
    return any(type(t) in ARGUMENTS or _takes_ours(getattr(t, "types", ())) for t in types_)


def _adapt_launches(kernel: Any) -> None:
    """Add the library's arguments and checks to this kernel's launches, and to no other's."""
    if _takes_ours(kernel.argument_types):
        kernel._prepare_args = functools.partial(_prepare_argument, kernel._prepare_args)
    guards: list[Callable[..., Any]] = []
    needs = requirements_of(kernel)
    if not reads_llvm():
        check_registers(kernel._codelibrary.get_asm_str())
    if needs.blocks or needs.line or needs.cluster:
        guards.append(lambda launch, *rest: _check(launch, needs, *rest))
    if needs.watched:
        guards.append(_watch)
    if guards:
        kernel.numba_tma_guards = guards
        kernel.launch = guarded(kernel, kernel.launch)


def guarded(kernel: Any, launch: Callable[..., Any]) -> Callable[..., Any]:
    """Return `launch` behind the checks of this kernel's launches, and its debug mode."""
    for guard in getattr(kernel, "numba_tma_guards", ()):
        launch = functools.partial(guard, launch)
    return launch


_init, _rebuild = _Kernel.__init__, _Kernel._rebuild.__func__


@functools.wraps(_init)
def _init_and_adapt(self: Any, *args: Any, **kwargs: Any) -> None:
    _init(self, *args, **kwargs)
    _adapt_launches(self)


def _rebuild_and_adapt(cls: Any, *args: Any, **kwargs: Any) -> Any:
    kernel = _rebuild(cls, *args, **kwargs)
    _adapt_launches(kernel)
    return kernel


_Kernel.__init__ = _init_and_adapt
_Kernel._rebuild = classmethod(_rebuild_and_adapt)
