"""Settings that are read from the process environment: every variable of the library, here alone.

A switch takes an integer, as Numba's switches do, or one of `_WORDS`; an empty variable is not set.
"""

import functools
import os
import sys
from pathlib import Path

from numba_tma.host.architectures import TARGETS

_WORDS = {
    **dict.fromkeys(("true", "yes", "on"), True),
    **dict.fromkeys(("", "false", "no", "off"), False),
}


@functools.cache
def simulated() -> bool:
    """Whether kernels run in the CPU simulator (``NUMBA_ENABLE_CUDASIM`` is an integer, and not 0).

    It must be what Numba reads, which warns of a value that is no integer, and takes 0. Read once,
    because Numba too reads the variable only when it is imported.
    """
    try:
        return int(os.environ.get("NUMBA_ENABLE_CUDASIM", "0")) != 0
    except ValueError:
        return False


def check_compiles(function: str) -> None:
    """Refuse a call of a function that compiles, if the simulator has replaced the compiler."""
    if simulated():
        raise RuntimeError(
            f"{function} needs the compiler, and NUMBA_ENABLE_CUDASIM=1 has replaced it by the "
            "simulator: unset NUMBA_ENABLE_CUDASIM and start Python again"
        )


@functools.cache
def debugging() -> bool:
    """Whether waits are bounded (``NUMBA_TMA_DEBUG``, a switch, or "races").

    False in the simulator, which finds deadlocks itself. Read once, because it is compiled into
    kernels.
    """
    asked = _asks_for_races() or _switch("NUMBA_TMA_DEBUG")
    return asked and not simulated()


@functools.cache
def racing() -> bool:
    """Whether kernels log what they do to shared memory (``NUMBA_TMA_DEBUG=races``).

    False in the simulator, which has the same rules. Read once, because it is compiled into
    kernels.
    """
    return _asks_for_races() and not simulated()


@functools.cache
def debug_seed() -> int:
    """Return the seed of the delays in races mode (``NUMBA_TMA_DEBUG_SEED``, 0 by default)."""
    text = os.environ.get("NUMBA_TMA_DEBUG_SEED") or "0"
    try:
        return int(text) & 0xFFFFFFFF
    except ValueError:
        raise ValueError(
            f"NUMBA_TMA_DEBUG_SEED={text!r}: the seed of the delays is an integer, such as 0"
        ) from None


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


def simulator_seed() -> int:
    """Return the simulator's first seed (``NUMBA_TMA_SIM_SEED``, 0 by default)."""
    text = os.environ.get("NUMBA_TMA_SIM_SEED") or "0"
    try:
        return int(text)
    except ValueError:
        raise ValueError(
            f"NUMBA_TMA_SIM_SEED={text!r}: the seed of the simulator's orders is an integer, such "
            "as 0"
        ) from None


def compiled_target() -> str:
    """Return the target for which the simulator compiles what it launches; "" if it does not.

    ``NUMBA_TMA_SIM_COMPILES``: a switch, for sm_90a, or a target such as ``sm_100a`` or ``100a``.
    """
    text = os.environ.get("NUMBA_TMA_SIM_COMPILES", "").lower()
    target = text.removeprefix("sm_")
    if target in TARGETS:
        return target
    try:
        return "90a" if _switch("NUMBA_TMA_SIM_COMPILES") else ""
    except ValueError:
        raise ValueError(
            f"NUMBA_TMA_SIM_COMPILES={text!r}: give 1 (on, for sm_90a), 0 (off), or a target: "
            f"{', '.join(f'sm_{name}' for name in TARGETS)}"
        ) from None


def trace_file() -> str:
    """Return the file of a trace of the whole process (``NUMBA_TMA_TRACE``); "" without one."""
    return os.environ.get("NUMBA_TMA_TRACE", "").replace("%p", str(os.getpid()))


def full_errors() -> bool:
    """Whether errors of kernels keep Numba's text around them (``NUMBA_TMA_FULL_ERRORS``)."""
    return _switch("NUMBA_TMA_FULL_ERRORS")


#: The variable behind `gpu_required`, which the pytest plugin sets for its processes.
REQUIRE_GPU = "NUMBA_TMA_REQUIRE_GPU"


def gpu_required() -> bool:
    """Whether tests for a GPU fail where there is none, and are not skipped."""
    return _switch(REQUIRE_GPU)


def simulator_global_races() -> bool:
    """Whether the simulator finds races in global memory (``NUMBA_TMA_SIM_GLOBAL_RACES``)."""
    return _switch("NUMBA_TMA_SIM_GLOBAL_RACES")


def cache_setting() -> str | None:
    """Return the value of ``NUMBA_TMA_CACHE``; None if it is not set."""
    return os.environ.get("NUMBA_TMA_CACHE")


def cache_folder() -> Path | None:
    """Return the folder of caches, or None if they are off or the process has no home folder.

    ``NUMBA_TMA_CACHE`` is a folder, or a switch. Without it, and where it is on, the folder is
    ``numba_tma`` in Numba's or the system's folder for caches.
    """
    text = (cache_setting() or "0") if cache_setting() is not None else "1"
    switch = {"1": True, "0": False, **_WORDS}.get(text.lower())
    if switch is False:
        return None
    usual = {
        "win32": os.environ.get("LOCALAPPDATA") or "~/AppData/Local",
        "darwin": "~/Library/Caches",
    }.get(sys.platform, os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    try:
        if switch is None:
            return Path(text).expanduser()
        return Path(os.environ.get("NUMBA_CACHE_DIR") or usual, "numba_tma").expanduser()
    except RuntimeError:
        return None


def cache_limit() -> int:
    """Return the most bytes of cached kernels (``NUMBA_TMA_CACHE_MIB``, 512 MiB by default)."""
    text = os.environ.get("NUMBA_TMA_CACHE_MIB") or "512"
    try:
        mebibytes = int(text)
    except ValueError:
        mebibytes = 0
    if not 1 <= mebibytes <= 1 << 20:
        raise ValueError(
            f"NUMBA_TMA_CACHE_MIB={text!r}: give the most that cached kernels may take, in MiB, "
            "from 1 to 1048576; NUMBA_TMA_CACHE=0 turns the cache off"
        )
    return mebibytes << 20


#: Variables of Numba and of this library that change no compiled code.
_WITHOUT_EFFECT = (
    *("NUMBA_CACHE", "NUMBA_TMA_CACHE", "NUMBA_TMA_SIM", "NUMBA_TMA_DEBUG_", "NUMBA_TMA_TRACE"),
)


def compiler_variables() -> dict[str, str]:
    """Return the environment variables that may change what the compiler makes of a kernel."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith("NUMBA_") and not name.startswith(_WITHOUT_EFFECT)
    }


def _asks_for_races() -> bool:
    return os.environ.get("NUMBA_TMA_DEBUG", "").lower() == "races"


def _switch(name: str) -> bool:
    text = os.environ.get(name, "")
    try:
        return _WORDS[text.lower()] if text.lower() in _WORDS else int(text) != 0
    except ValueError:
        raise ValueError(f"{name}={text!r}: a switch is 1 (on) or 0 (off)") from None
