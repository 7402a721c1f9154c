"""`launched_again`: a wrapper that checks and prepares once for arrays at the same place.

A wrapper is written in two halves. The public half has the documentation and finds `out`. The
private half reads the arrays, checks them, makes tensor maps and calls `launch`. Under
`launched_again` the private half runs once for arrays at the same place. Another such call repeats
the recorded launches with the same bytes, and costs the host little more than the launches do::

    def copy(source, out, *, stream=None, plan=None):
        _copy((source, out), stream, (), plan)
        return out

    @launched_again("copy", "source", "out")
    def _copy(arrays, stream, numbers, plan):
        source, out = (Array.read("copy", *given) for given in zip(("source", "out"), arrays))
        ...
        launch(copy_chunks, blocks, 32, stream, source.as_bytes(), out.as_bytes())
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from operator import is_
from typing import Any, NamedTuple, overload

from numba_tma.host import driver as _driver
from numba_tma.host.annotations import DeviceArray, StreamLike
from numba_tma.host.array_interface import NoDeviceArray, reading_of
from numba_tma.host.environment import simulated
from numba_tma.host.streams import handle_of
from numba_tma.kernels._host.call_key import key_reader
from numba_tma.kernels._host.launch import Recording, check_stream, recorded, recorder

Prepare = Callable[..., Sequence[DeviceArray] | None]  #: the private half of a wrapper
Wrapper = Callable[..., None]  #: the same, when it is called

# Limits of each wrapper: calls, and bytes of workspaces. The oldest call is forgotten first.
_MOST_CALLS = 1024
_MOST_BYTES = 256 << 20

#: Workspaces of calls that graphs have captured. A graph may be replayed at any time.
_captured: dict[int, Sequence[DeviceArray]] = {}


class _Call(NamedTuple):
    """What is remembered of a call."""

    numbers: tuple[Any, ...]
    written: str  #: the numbers, which tells 0.0 from -0.0 and finds NaN again
    recording: Recording

    def has(self, numbers: tuple[Any, ...]) -> bool:
        """Return whether the numbers are these; the same objects are, and need not be written."""
        mine = self.numbers
        same = len(mine) == len(numbers) and all(map(is_, mine, numbers))
        return same or self.written == repr(numbers)


class _Calls:
    """The calls of one wrapper. Look-ups take no lock; what changes the table does."""

    def __init__(self) -> None:
        self.table: dict[Hashable, _Call] = {}
        self._nbytes = 0
        self._lock = threading.Lock()
        _tables.add(self)

    def add(self, key: Hashable, call: _Call) -> None:
        """Remember a call in place of an equal one, and forget the oldest beyond the limits."""
        nbytes = _nbytes(call)
        with self._lock:
            self._forget(key)
            while self.table and (
                len(self.table) >= _MOST_CALLS or self._nbytes + nbytes > _MOST_BYTES
            ):
                self._forget(next(iter(self.table)))
            self.table[key] = call
            self._nbytes += nbytes

    def clear(self) -> None:
        """Forget all calls."""
        with self._lock:
            self.table.clear()
            self._nbytes = 0

    def _forget(self, key: Hashable) -> None:
        if (old := self.table.pop(key, None)) is not None:
            self._nbytes -= _nbytes(old)


def _nbytes(call: _Call) -> int:
    return sum(array.nbytes for array in call.recording.workspace)


_tables = weakref.WeakSet[_Calls]()


def _free_locks() -> None:
    """Free the locks that threads of the parent held (a forked child)."""
    for calls in tuple(_tables):
        calls._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_locks)


def forget_all() -> None:
    """Prepare all calls anew: after a launch that failed, which left its queue's counter anywhere.

    Calls of other functions may have the same launch among theirs.
    """
    for calls in tuple(_tables):
        calls.clear()


@overload
def launched_again(function: Prepare) -> Wrapper: ...
@overload
def launched_again(function: str, *names: str) -> Callable[[Prepare], Wrapper]: ...
def launched_again(function: str | Prepare, *names: str) -> Callable[[Prepare], Wrapper] | Wrapper:
    """Run the decorated `prepare` once for arrays at the same place, then repeat its launches.

    The wrapper is called as ``prepare(arrays, stream, numbers, *options)``, and launches by
    `launch` alone. Two calls are equal if their arrays (or None) have the same addresses, shapes,
    strides and element types, and their numbers, options, stream and context are equal. An equal
    call repeats the launches of the first, which hold addresses and keep no array alive.

    Parameters
    ----------
    function, *names
        Names of the public function and of its arrays, in the order of `arrays`, for the error
        about an argument that is no device array. The decorator may also stand bare: it then takes
        the name of `prepare`, and counts the arrays.

    Notes
    -----
    `options` form the cache key: they must be hashable, and equal options must mean the same.

    `numbers` are the numbers that are passed to the kernel. They are compared as they are written:
    0.0 and -0.0 differ, and NaN equals NaN. Only the last numbers are remembered for given arrays
    and options, so that numbers that change at each call replace each other.

    `prepare` returns the workspace that its launches need, a sequence of arrays, or None. The
    workspace is kept with the launches; no other call may write to it meanwhile. The workspace of
    a call that a graph captured is kept for ever, because nothing tells when the graph is gone.

    A launch that fails makes all functions forget their calls: what it has left in its workspace is
    not what it found there.
    """
    if callable(function):
        return _launched_again(function, function.__name__.lstrip("_"), ())
    return lambda prepare: _launched_again(prepare, function, names)


def _launched_again(prepare: Prepare, function: str, names: tuple[str, ...]) -> Wrapper:
    calls = _Calls()
    table = calls.table
    read = key_reader(())

    @functools.wraps(prepare)
    def call(
        arrays: tuple[DeviceArray | None, ...],
        stream: StreamLike,
        numbers: tuple[Any, ...],
        *options: Hashable,
    ) -> None:
        nonlocal read
        try:
            context, handle = _driver.current_context(), 0 if stream is None else handle_of(stream)
            key = read(context, handle, options, arrays)
            if key is None:
                fitting = key_reader(arrays)
                key, read = fitting(context, handle, options, arrays), fitting
        except NoDeviceArray:
            _check_arrays(function, names, arrays)
            raise
        except (TypeError, ValueError):
            check_stream(function, stream)
            raise
        try:
            known = table.get(key)
        except TypeError:  # a list, say: no option takes what has no hash
            prepare(arrays, stream, numbers, *options)  # raises, and names the option
            raise
        outer = recorder.recording
        if known is not None and (numbers is known.numbers or known.has(numbers)):
            launches, workspace = recording = known.recording
            # The legacy default stream, 0, cannot be captured.
            if workspace and handle and _driver.is_capturing(handle):
                _captured[id(workspace)] = workspace
            try:
                for again in launches:
                    again()
            except BaseException:
                forget_all()
                raise
            if outer is not None:
                outer.add(recording)
            return
        captured = _driver.is_capturing(handle)
        allowed = _driver.allocating_while_capturing() if captured else contextlib.nullcontext()
        with recorded() as recording, allowed:
            recording.workspace.extend(prepare(arrays, stream, numbers, *options) or ())
        calls.add(key, _Call(numbers, repr(numbers), recording))
        if captured and recording.workspace:
            _captured[id(recording.workspace)] = recording.workspace
        if outer is not None:
            outer.add(recording)

    @functools.wraps(prepare)
    def simulate(arrays: Sequence[DeviceArray], stream: StreamLike, *rest: object) -> None:
        check_stream(function, stream)
        prepare(arrays, stream, *rest)

    return simulate if simulated() else call


def _check_arrays(function: str, names: tuple[str, ...], arrays: tuple[Any, ...]) -> None:
    """Raise a TypeError that names the first argument that is no device array."""
    for i, array in enumerate(arrays):
        name = names[i] if i < len(names) else f"array {i + 1}"
        if array is not None:
            reading_of(array, f"{function}(): {name}")
