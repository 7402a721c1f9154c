"""Launches of the package's kernels, and their recording for launches that are repeated."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from numba_tma.host.annotations import DeviceArray, Kernel, StreamLike
from numba_tma.host.environment import simulated
from numba_tma.host.launching import launcher
from numba_tma.host.streams import handle_of

Grid = int | tuple[int, int]  #: blocks of a grid
Launch = Callable[[], None]  #: launches one kernel with arguments that are already packed


def as_stream(stream: StreamLike) -> StreamLike:
    """Return what numba-cuda launches on, from a numba, torch or CuPy stream, or a handle."""
    if stream is None or simulated():
        return 0
    handle = getattr(stream, "cuda_stream", getattr(stream, "ptr", stream))
    if isinstance(handle, int):
        from numba import cuda

        return cuda.external_stream(handle) if handle else 0
    return stream


def check_stream(function: str, stream: StreamLike) -> None:
    """Raise a TypeError or ValueError that names the function, unless it can launch on `stream`."""
    if simulated() and type(stream).__module__.startswith("numba."):
        return
    try:
        handle_of(stream)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{function}(): {error}") from None


def stream_key(stream: StreamLike) -> int:
    """Return a number that identifies a stream: its handle, 0 in the simulator."""
    return 0 if simulated() else handle_of(stream)


@functools.lru_cache(maxsize=1024)
def _launcher(kernel: Kernel, blocks: Grid, threads: int, stream: StreamLike, pdl: bool) -> Any:
    return launcher(kernel, blocks, threads, stream=stream, pdl=pdl)


def launch(
    kernel: Kernel,
    blocks: Grid,
    threads: int,
    stream: StreamLike,
    *arguments: Any,
    pdl: bool = False,
) -> None:
    """Launch a kernel, and record the launch if a `recorded` block is open on this thread.

    Parameters
    ----------
    kernel, blocks, threads
        A kernel, most often one of `shipped`, the blocks of the grid and the threads of a block.
    stream
        A numba, torch or CuPy stream, or None for the default stream.
    *arguments
        Those of the kernel: tensor maps, Numba arrays, addresses and numbers.
    pdl
        Programmatic dependent launch; see `numba_tma.launcher`.
    """
    prepared = _launcher(kernel, blocks, threads, stream, pdl)
    recording = recorder.recording
    if recording is None:
        prepared(*arguments)
    else:
        again = getattr(prepared, "bind_here", prepared.bind)(*arguments)
        again()
        recording.launches.append(again)


@dataclass(frozen=True, slots=True)
class Recording:
    """Launches that can be repeated, and the device memory that they need for it."""

    launches: list[Launch]
    workspace: list[DeviceArray]

    def add(self, other: Recording) -> None:
        """Record what another recording has, too."""
        self.launches.extend(other.launches)
        self.workspace.extend(other.workspace)


class _Recorder(threading.local):
    """What a thread records."""

    recording: Recording | None = None  #: of the class, because a look-up that fails is slow


recorder = _Recorder()


@contextlib.contextmanager
def recorded() -> Iterator[Recording]:
    """Record each launch of the block in the recording that is yielded; calling one repeats it.

    A nested block records for itself: its launches do not appear in the outer recording.
    """
    outer, recording = recorder.recording, Recording([], [])
    recorder.recording = recording
    try:
        yield recording
    finally:
        recorder.recording = outer
