"""`launched_again`: a wrapper that checks and prepares once for arrays at the same place.

A wrapper is written in two halves. The public half has the documentation and finds `out`. The
private half reads the arrays, checks them, makes tensor maps and calls `launch`. Under
`launched_again` the private half runs once for arrays at the same place. Another such call repeats
the recorded launches with the same bytes, and costs the host little more than the launches do.
Once two calls have shown how launches follow arrays, it does not run for arrays elsewhere either
(`numba_tma.kernels._host.moved`)::

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
from dataclasses import dataclass
from operator import is_
from typing import Any, NamedTuple, overload

from numba_tma.host import driver as _driver
from numba_tma.host import tracing
from numba_tma.host.annotations import DeviceArray, StreamLike
from numba_tma.host.array_interface import NoDeviceArray, reading_of
from numba_tma.host.environment import simulated
from numba_tma.host.streams import handle_of
from numba_tma.kernels._host.call_key import CallForm, NearReader, form_reader, no_arrays
from numba_tma.kernels._host.launch import Launch, Recording, check_stream, recorded, recorder
from numba_tma.kernels._host.moved import STEP, Moves, Spans, learned, spans_of

Prepare = Callable[..., Sequence[DeviceArray] | None]  #: the private half of a wrapper
Wrapper = Callable[..., Any]  #: the same, when it is called
NewResult = Callable[..., DeviceArray]  #: makes the array `out` of a call that has None

# Limits of each wrapper: calls, and bytes of workspaces. The oldest call is forgotten first.
_MOST_CALLS = 1024
_ADDRESSES = 4  #: where the addresses begin in a key
_MOST_BYTES = 256 << 20

#: Workspaces of calls that graphs have captured. A graph may be replayed at any time.
_captured: dict[int, Sequence[DeviceArray]] = {}


@dataclass(frozen=True, slots=True)
class _Call:
    """What is remembered of a call."""

    numbers: tuple[Any, ...]
    written: str  #: the numbers, which tells 0.0 from -0.0 and finds NaN again
    recording: Recording

    def has(self, numbers: tuple[Any, ...]) -> bool:
        """Return whether the numbers are these; the same objects are, and need not be written."""
        mine = self.numbers
        if len(mine) == 1 == len(numbers) and mine[0] is numbers[0]:
            return True
        same = len(mine) == len(numbers) and all(map(is_, mine, numbers))
        return same or self.written == repr(numbers)


class _Kin(NamedTuple):
    """The launches of a call, and how they follow its arrays, if another call has shown it."""

    launches: list[Launch]
    addresses: tuple[int, ...]
    spans: Spans
    moves: Moves | None = None


class _Calls:
    """The calls of one wrapper. Look-ups take no lock; what changes the table does."""

    def __init__(self) -> None:
        self.table: dict[Hashable, _Call] = {}
        self._kin: dict[Hashable, _Kin] = {}  #: by `_key_of_kin`
        self._forms: dict[Hashable, CallForm] = {}
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

    def moved(self, key: tuple[Any, ...], numbers: tuple[Any, ...]) -> _Call | None:
        """Return a call whose arrays lie elsewhere than another's; None if it must be prepared."""
        written = repr(numbers)
        kin = self._kin.get(_key_of_kin(key, written))
        launches = kin and kin.moves and kin.moves.launched_at(key[_ADDRESSES:])
        return _Call(numbers, written, Recording(launches, [])) if launches else None

    def learn(
        self, key: tuple[Any, ...], call: _Call, arrays: tuple[DeviceArray | None, ...]
    ) -> None:
        """Compare a call that was prepared with one whose arrays lie elsewhere."""
        launches = call.recording.launches
        if call.recording.workspace or not launches:
            return  # counters and sums are of one call alone
        same, addresses = _key_of_kin(key, call.written), key[_ADDRESSES:]
        kin = self._kin.get(same)
        if kin is not None:
            moves = learned(kin.launches, kin.addresses, launches, addresses, kin.spans)
            # If they show nothing, the newer one is compared with the next.
            newer = kin._replace(launches=launches, addresses=addresses, moves=None)
            self._kin[same] = kin._replace(moves=moves) if moves else newer
        elif spans := spans_of([array for array in arrays if array is not None]):
            with self._lock:
                if len(self._kin) >= _MOST_CALLS:
                    self._kin.pop(next(iter(self._kin)))
                self._kin[same] = _Kin(launches, addresses, spans)

    def form_of(self, key: Hashable) -> CallForm:
        """Return the form of this key; the table's keys have the form itself."""
        found = self._forms.get(key)
        if found is None:
            with self._lock:
                if len(self._forms) >= _MOST_CALLS:
                    self._forms.pop(next(iter(self._forms)))
                found = self._forms.setdefault(key, CallForm())
        return found

    def clear(self) -> None:
        """Forget all calls."""
        with self._lock:
            self.table.clear()
            self._kin.clear()
            self._nbytes = 0

    def _forget(self, key: Hashable) -> None:
        if (old := self.table.pop(key, None)) is not None:
            self._nbytes -= _nbytes(old)


def _key_of_kin(key: tuple[Any, ...], written: str) -> Hashable:
    """Return the key of calls that differ from one in how many steps their arrays are away."""
    return *key[:_ADDRESSES], written, *[address % STEP for address in key[_ADDRESSES:]]


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
def launched_again(
    function: str, *names: str, new: NewResult | None = None
) -> Callable[[Prepare], Wrapper]: ...
def launched_again(
    function: str | Prepare, *names: str, new: NewResult | None = None
) -> Callable[[Prepare], Wrapper] | Wrapper:
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
    new
        Makes the array of the name ``out`` where a call has None: ``new(arrays, *options)``. The
        wrapper returns that array, new or not; without `new` it returns None.

    Notes
    -----
    A call whose arrays lie elsewhere launches with other addresses without `prepare`, after two
    that ran it, if it has no workspace. So `prepare` may depend on an address by its multiples of
    512, and by which arrays share memory; it passes addresses to kernels as whole parameters.

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
        return _launched_again(function, function.__name__.lstrip("_"), (), None)
    return lambda prepare: _launched_again(prepare, function, names, new)


def _launched_again(
    prepare: Prepare, function: str, names: tuple[str, ...], new: NewResult | None
) -> Wrapper:
    calls = _Calls()
    table = calls.table
    read = form_reader(())
    near: NearReader = no_arrays
    other: NearReader = no_arrays  #: of arrays of another form
    at = names.index("out") if new else -1

    def with_result(arrays: tuple[Any, ...], options: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arrays with a new one for the result that is not given."""
        if new is None or arrays[at] is not None:
            return arrays
        return *arrays[:at], new(arrays, *options), *arrays[at + 1 :]

    def find(
        context: int, handle: int, options: tuple[Any, ...], given: tuple[Any, ...]
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Return the key of a call, and its arrays."""
        nonlocal near, other, read
        arrays = with_result(given, options)
        found = read(arrays)
        if found is None:
            read = fitting = form_reader(arrays)
            found = fitting(arrays)
        key, addresses = found
        form, failed = calls.form_of(key), (near, other)
        nearest = form.nearest(failed, given, arrays[at] if new else None, at)
        if nearest is not no_arrays and nearest not in failed:
            near, other = nearest, near
        return (form, context, handle, options, *addresses), arrays

    @functools.wraps(prepare)
    def call(
        arrays: tuple[DeviceArray | None, ...],
        stream: StreamLike,
        numbers: tuple[Any, ...],
        *options: Hashable,
    ) -> DeviceArray | None:
        try:
            context, handle = _driver.current_context(), 0 if stream is None else handle_of(stream)
            if tracing.recorders and tracing.active() is not None:
                context = ~context  # its launches are of traced kernels
            found = near(context, handle, options, arrays)
            if found is None:
                found = other(context, handle, options, arrays)
            if found is None:
                key, arrays = find(context, handle, options, arrays)
                result = arrays[at] if new else None
            else:
                key, result = found
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
            recording = known.recording
            workspace = recording.workspace
            # The legacy default stream, 0, cannot be captured.
            if workspace and handle and _driver.is_capturing(handle):
                _captured[id(workspace)] = workspace
            try:
                for again in recording.launches:
                    again()
            except BaseException:
                forget_all()
                raise
            if outer is not None:
                outer.add(recording)
            return result
        if new and result is not arrays[at]:
            arrays = *arrays[:at], result, *arrays[at + 1 :]
        if (moved := calls.moved(key, numbers)) is not None:
            calls.add(key, moved)
            try:
                for again in moved.recording.launches:
                    again()
            except BaseException:
                forget_all()
                raise
            if outer is not None:
                outer.add(moved.recording)
            return result
        captured = _driver.is_capturing(handle)
        allowed = _driver.allocating_while_capturing() if captured else contextlib.nullcontext()
        with recorded() as recording, allowed:
            recording.workspace.extend(prepare(arrays, stream, numbers, *options) or ())
        new_call = _Call(numbers, repr(numbers), recording)
        calls.add(key, new_call)
        calls.learn(key, new_call, arrays)
        if captured and recording.workspace:
            _captured[id(recording.workspace)] = recording.workspace
        if outer is not None:
            outer.add(recording)
        return result

    @functools.wraps(prepare)
    def simulate(
        arrays: tuple[DeviceArray | None, ...],
        stream: StreamLike,
        numbers: tuple[Any, ...],
        *options: Hashable,
    ) -> DeviceArray | None:
        arrays = with_result(arrays, options)
        check_stream(function, stream)
        prepare(arrays, stream, numbers, *options)
        return arrays[at] if new else None

    return simulate if simulated() else call


def _check_arrays(function: str, names: tuple[str, ...], arrays: tuple[Any, ...]) -> None:
    """Raise a TypeError that names the first argument that is no device array."""
    for i, array in enumerate(arrays):
        name = names[i] if i < len(names) else f"array {i + 1}"
        if array is not None:
            reading_of(array, f"{function}(): {name}")
