"""Launches of kernels that use the library: their arguments, and the checks before them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from numba import cuda
from numba.cuda.dispatcher import _Kernel

from numba_tma.backend.numba_cuda import race_check
from numba_tma.backend.numba_cuda.requirements import check_registers, requirements_of
from numba_tma.host import debug
from numba_tma.host.cluster_rules import check_grid
from numba_tma.host.environment import racing

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


def _check_block(
    launch: Callable[..., Any],
    sizes: frozenset[int],
    args: Any,
    griddim: Any,
    blockdim: Any,
    *rest: Any,
) -> Any:
    """Launch a kernel with a pipeline, if its block has a producer and consumers.

    `sizes` are the threads of its pipelines' roles; 0 for a pipeline without roles.
    """
    x, y, z = blockdim
    for size in sizes - {0}:
        if tuple(blockdim) != (size, 1, 1):
            raise ValueError(
                f"block {tuple(blockdim)}: the roles of the kernel's pipeline have {size} threads, "
                f"in one dimension: launch blocks of {size}, which Roles.threads says"
            )
    if 0 in sizes and (y != 1 or z != 1 or not 64 <= x <= 1024 or x % 32):
        raise ValueError(
            f"block {tuple(blockdim)}: a kernel with a TilePipeline has one-dimensional blocks of "
            "whole warps, the last of which produces and the others consume: use 64, 96, 128, ... "
            "1024 threads"
        )
    return launch(args, griddim, blockdim, *rest)


def _check_line(
    launch: Callable[..., Any], args: Any, griddim: Any, blockdim: Any, *rest: Any
) -> Any:
    """Launch a kernel whose whole block loads or stores tiles, if the block is one-dimensional."""
    x, y, z = blockdim
    if y != 1 or z != 1 or x % 32:
        raise ValueError(
            f"block {tuple(blockdim)}: a kernel with a StorePipeline or a CircularBuffer that "
            "names no role has one-dimensional blocks of whole warps: use 32, 64, 96, ... 1024 "
            "threads"
        )
    return launch(args, griddim, blockdim, *rest)


def _check_clusters(
    launch: Callable[..., Any], size: Any, args: Any, griddim: Any, *rest: Any
) -> Any:
    """Launch a kernel that runs in clusters of `size`, if they divide the grid."""
    check_grid(griddim, size)
    return launch(args, griddim, *rest)


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
        if racing():
            race_check.clear()
        result = launch(args, griddim, blockdim, stream, *rest)
        try:
            cuda.synchronize()
        except Exception as error:  # the context is lost; the records before the error are not
            records.check(error)
            raise
        if racing():
            race_check.check(griddim, records.records())
        records.check()
    return result


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
    if needs.blocks:
        guards.append(lambda launch, *rest: _check_block(launch, needs.blocks, *rest))
    if needs.line:
        guards.append(_check_line)
    check_registers(kernel._codelibrary.get_asm_str())
    if needs.cluster:
        guards.append(lambda launch, *rest: _check_clusters(launch, needs.cluster, *rest))
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
