"""Settings that are read from the process environment."""

import functools
import os


@functools.cache
def simulated() -> bool:
    """Whether kernels run in the CPU simulator (``NUMBA_ENABLE_CUDASIM`` set and not "0").

    Read once, because Numba too reads the variable only when it is imported.
    """
    return _is_set("NUMBA_ENABLE_CUDASIM")


@functools.cache
def debugging() -> bool:
    """Whether waits are bounded (``NUMBA_TMA_DEBUG`` set and not "0").

    False in the simulator, which finds deadlocks itself. Read once, because it is compiled into
    kernels.
    """
    return _is_set("NUMBA_TMA_DEBUG") and not simulated()


@functools.cache
def wait_limit() -> float:
    """Seconds that a bounded wait takes at most (``NUMBA_TMA_DEBUG_TIMEOUT``, 2 by default)."""
    text = os.environ.get("NUMBA_TMA_DEBUG_TIMEOUT") or "2"
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1e-3 <= seconds <= 3600:
        raise ValueError(
            f"NUMBA_TMA_DEBUG_TIMEOUT={text!r}: give the seconds after which a wait counts as "
            "stuck, from 0.001 to 3600"
        )
    return seconds


def _is_set(name: str) -> bool:
    return os.environ.get(name, "0") not in ("", "0")
