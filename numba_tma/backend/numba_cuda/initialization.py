"""numba-cuda initialises the driver: one thread does, and the others wait for it.

numba-cuda marks its driver as initialised before it calls cuInit. A thread that comes meanwhile
would call the driver too early, and get CUDA_ERROR_NOT_INITIALIZED.
"""

from __future__ import annotations

import functools
import threading

from numba.cuda.cudadrv.driver import Driver

from numba_tma.host.process_bound import new_in_children

_ensure_initialized = Driver.ensure_initialized
_initialising = new_in_children(threading.RLock)  # cuInit is looked up by the same way


@functools.wraps(_ensure_initialized)
def _ensure_alone(self: Driver) -> None:
    if self.pid is None and self.initialization_error is None:
        with _initialising:
            _ensure_initialized(self)


Driver.ensure_initialized = _ensure_alone
