"""Compiles for a compute capability whose GPU is not the current one, or not there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from numba.cuda import dispatcher
from numba.cuda.codegen import CUDACodeLibrary

from numba_tma.host.process_bound import new_in_children

#: Held while Numba's current device is another.
_substituting = new_in_children(threading.RLock)


@contextmanager
def compiling_for(capability: tuple[int, int, str]) -> Iterator[None]:
    """Compile for a compute capability in this thread, and in no other.

    Numba asks for the current device at two names: for Python-bodied device functions and
    kernels, and for code that is assembled.
    """
    device = SimpleNamespace(compute_capability=capability)
    with _substituting:
        thread = threading.get_ident()
        current, given_or_current = dispatcher.get_current_device, CUDACodeLibrary._ensure_cc

        def device_of_thread() -> Any:
            return device if threading.get_ident() == thread else current()

        def capability_of_thread(library: CUDACodeLibrary, given: tuple[Any, ...] | None) -> Any:
            if given is None and threading.get_ident() == thread:
                return capability
            return given_or_current(library, given)

        dispatcher.get_current_device = device_of_thread
        CUDACodeLibrary._ensure_cc = capability_of_thread
        try:
            yield
        finally:
            dispatcher.get_current_device = current
            CUDACodeLibrary._ensure_cc = given_or_current
