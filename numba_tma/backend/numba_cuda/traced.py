"""Kernels compiled with a trace, and their launches in place of the ordinary ones.

A trace is a matter of the compile: the same function is compiled a second time, with the hooks of
`lowering.tracing`. Bodies are kept by whether they write records (`functions.compiled_variant`); a
user's device functions are compiled anew for each traced kernel, and then have their own code back.
"""

from __future__ import annotations

import functools
import importlib
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba.cuda.core.compiler_lock import global_compiler_lock
from numba.cuda.dispatcher import CUDADispatcher

from numba_tma.backend.numba_cuda.functions import FUNCTIONS
from numba_tma.backend.numba_cuda.launches import compiled_for
from numba_tma.backend.numba_cuda.prepared_launch import CompiledLauncher
from numba_tma.backend.numba_cuda.registration import register_declared
from numba_tma.backend.numba_cuda.requirements import requirements_of
from numba_tma.host import tracing
from numba_tma.host.driver import current_context, launching_device
from numba_tma.host.launching import with_first_code
from numba_tma.host.streams import handle_of

#: The code that device functions of the user have without a trace, during a traced compile.
_set_aside: dict[CUDADispatcher, dict[Any, Any]] = {}


@contextmanager
def compiling() -> Iterator[None]:
    """Compile kernels that write records, in this thread; other threads wait to compile."""
    with global_compiler_lock:
        register_declared()
        lowering = importlib.import_module("numba_tma.backend.lowering.tracing")
        with tracing.compiling_traced(), lowering.attached():
            try:
                yield
            finally:
                for function, overloads in _set_aside.items():
                    function.overloads.clear()
                    function.overloads.update(overloads)
                _set_aside.clear()


_compile_device = CUDADispatcher.compile_device


@functools.wraps(_compile_device)
def _compile_device_anew(self: CUDADispatcher, *args: object, **kwargs: object) -> Any:
    """Compile a device function; with a trace, not take the code without one."""
    if tracing.compiles_traced() and self.py_func not in FUNCTIONS and self not in _set_aside:
        _set_aside[self] = dict(self.overloads)
        self.overloads.clear()
    return _compile_device(self, *args, **kwargs)


CUDADispatcher.compile_device = _compile_device_anew


class TracedDispatcher(CUDADispatcher):
    """A kernel that is compiled with a trace."""

    def compile(self, sig: object) -> Any:
        """Compile for argument types."""
        with compiling():
            return super().compile(sig)


#: The traced kernels of a kernel, by context: the address of its trace's memory is in the code.
_twins: weakref.WeakKeyDictionary[Any, dict[int, TracedDispatcher]] = weakref.WeakKeyDictionary()


def twin_of(kernel: CUDADispatcher) -> TracedDispatcher:
    """Return the kernel that is compiled with a trace, of the current context."""
    launching_device()  # makes a context where there is none
    known, context = _twins.setdefault(kernel, {}), current_context()
    if context not in known:
        twin = TracedDispatcher(kernel.py_func, targetoptions=kernel.targetoptions)
        if not kernel._can_compile:  # the types of its arguments were given to @cuda.jit
            for signature in kernel.overloads:
                twin.compile(signature)
            twin.disable_compile()
            twin._specialized = kernel._specialized
        known[context] = twin
    return known[context]


# ----------------------------------------------------------------------------- launches


class TracedLauncher(CompiledLauncher):
    """The launcher of a traced kernel, which takes the place of another launcher's."""

    def trace(self, recorder: tracing.Recorder, arguments: tuple[Any, ...]) -> None:
        """Launch once."""
        compiled = compiled_for(self.kernel, self.grid, self.block, arguments)
        _, bound = self._find(arguments)
        cluster = self.cluster or requirements_of(compiled).cluster
        name = self.kernel.py_func.__name__
        shared = int(compiled.shared_mem_per_block)
        of = tracing.Traced(name, self.grid, self.block, cluster, self.handle, shared)
        with tracing.recording(None):
            recorder.launch(of, self._guarded(bound))


def launch(
    recorder: tracing.Recorder, launcher: CompiledLauncher, arguments: tuple[Any, ...]
) -> None:
    """Launch the traced kernel of a launcher."""
    given = launcher.grid, launcher.block, launcher.cluster, launcher.stream, launcher.pdl
    TracedLauncher(twin_of(launcher.kernel), *given).trace(recorder, arguments)


_call = CUDADispatcher.call


def _call_traced(self: CUDADispatcher, args: tuple[Any, ...], configuration: Any) -> None:
    """Launch a kernel as numba-cuda does; in a thread that traces, the traced one."""
    recorder = tracing.active()
    if recorder is None:  # none has a launch inside of a launch
        _call(self, args, configuration)
        return
    grid, block, stream = configuration.griddim, configuration.blockdim, configuration.stream
    twin = twin_of(self)
    own = twin.configure(grid, block, stream, configuration.sharedmem)
    own.pre_launch_callbacks[:] = configuration.pre_launch_callbacks
    compiled = compiled_for(twin, grid, block, args)
    cluster, handle = requirements_of(compiled).cluster, handle_of(stream or None)
    shared = int(compiled.shared_mem_per_block) + int(configuration.sharedmem)
    of = tracing.Traced(self.py_func.__name__, grid, block, cluster, handle, shared)
    with tracing.recording(None):
        recorder.launch(of, lambda: _call(twin, args, own))


_traces = 0  # how many traces are open, in all threads
_counting = threading.Lock()


@contextmanager
def tracing_launches() -> Iterator[None]:
    """Let launches of threads that have a recorder be traced."""
    global _traces
    with _counting:
        _traces += 1
        CUDADispatcher.call = _call_traced
    try:
        with with_first_code():
            yield
    finally:
        with _counting:
            _traces -= 1
            if not _traces:
                CUDADispatcher.call = _call
