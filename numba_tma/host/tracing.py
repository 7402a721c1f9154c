"""Whether this thread traces the kernels that it launches, and those that it compiles."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol


class Traced(NamedTuple):
    """A launch that is about to be traced."""

    name: str  #: of the kernel
    grid: tuple[int, ...]
    block: tuple[int, ...]
    cluster: tuple[int, ...] | None
    stream: int  #: its handle
    shared: int  #: bytes of a block's shared memory


class Recorder(Protocol):
    """What a trace does with a launch."""

    def launch(self, traced: Traced, run: Callable[[], None]) -> None:
        """Call `run`, which launches a kernel compiled with a trace, and read its rings."""


class _Here(threading.local):
    recorder: Recorder | None = None
    compiling = False


_here = _Here()
_lock = threading.Lock()
#: How many recorders the threads of the process have; read where a call would be slow.
recorders = 0


def active() -> Recorder | None:
    """Return the recorder of the launches of this thread; None outside of a trace."""
    return _here.recorder


@contextmanager
def recording(recorder: Recorder | None) -> Iterator[None]:
    """Let a recorder, or none, have the launches of this thread."""
    outer, _here.recorder = _here.recorder, recorder
    _count(recorder is not None)
    try:
        yield
    finally:
        _here.recorder = outer
        _count(-(recorder is not None))


def _count(more: int) -> None:
    global recorders
    with _lock:
        recorders += more


def compiles_traced() -> bool:
    """Return whether this thread compiles kernels that write records."""
    return _here.compiling


@contextmanager
def compiling_traced() -> Iterator[None]:
    """Let this thread compile kernels that write records."""
    outer, _here.compiling = _here.compiling, True
    try:
        yield
    finally:
        _here.compiling = outer
