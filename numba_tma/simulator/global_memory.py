"""Accesses to global memory: races between threads and blocks, and reads before a primary's end.

The records cost time and memory, so they are made on request: `global_races`, or the environment's
``NUMBA_TMA_SIM_GLOBAL_RACES``. A dependent launch needs those of the launch before it, so they are
made, too, once there is a launcher with ``pdl=True``.

Two accesses are ordered by what orders shared memory in a block or cluster. Between blocks atomic
operations on global memory order: what a thread did before one is known to a thread that executes
one on the same word afterwards. A fence that is missing around them goes unnoticed. Copies through
im2col maps are not recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from numba_tma.host.environment import simulator_global_races
from numba_tma.simulator.clocks import Clock, join
from numba_tma.simulator.errors import DataRace, EarlyRead
from numba_tma.simulator.races import Place, in_words, place_in_kernel
from numba_tma.simulator.thread import current

if TYPE_CHECKING:
    from numba_tma.host.tensor_map import TensorMap
    from numba_tma.simulator.scheduler import Scheduler
    from numba_tma.simulator.thread import SimulatedThread

#: Accesses that are kept one by one before they are numbered, which takes longer and less memory.
_MANY = 2**16

Array = np.ndarray[Any, Any]
Known = dict["Scheduler", Clock]


class GlobalAccess(NamedTuple):
    """An access of a thread to global memory; without its thread where no races are looked for."""

    thread: SimulatedThread | None
    epoch: int
    place: Place
    atomic: bool
    writes: bool


class Shadow:
    """The numbers of the last accesses to each byte of an allocation; 0 for none."""

    def __init__(self, root: Array, address: int) -> None:
        self.root = root  # keeps the address from being used again
        self.start = address
        nbytes = root.nbytes if root.flags.c_contiguous else _extent(root)
        #: By byte: the last write, and the last reads of two threads.
        self.numbers: NDArray[np.int32] = np.zeros((3, nbytes), np.int32)

    def of(self, view: Array) -> NDArray[np.int32]:
        """Return the numbers of a view's bytes, as a view."""
        first = 4 * (_address(view) - self.start)
        rest = 4 * self.numbers.shape[1]
        return np.ndarray(
            (3, *view.shape, view.itemsize),
            np.int32,
            self.numbers.data,
            first,
            (rest, *(4 * stride for stride in view.strides), 4),
        )


class LaunchRecords:
    """The accesses of a launch, by number, and which of them were the last to each byte."""

    def __init__(self) -> None:
        self.accesses: list[GlobalAccess] = []
        self._numbers: dict[tuple[object, ...], int] = {}
        self._shadows: dict[int, Shadow] = {}
        #: Accesses without a number so far, as views and whether they write.
        self._unnumbered: list[tuple[Array, Place, bool]] = []

    def number(self, access: GlobalAccess) -> int:
        """Return the number of an access, the same for all that differ in their bytes alone."""
        thread, epoch, (code, instruction), atomic, writes = access
        key = thread, epoch, id(code), instruction, atomic, writes  # the hash of code is slow
        number = self._numbers.get(key)
        if number is None:
            self.accesses.append(access)
            number = self._numbers[key] = len(self.accesses)
        return number

    def of(self, root: Array, view: Array) -> NDArray[np.int32]:
        """Return the numbers of a view's bytes, as a view; `root` is the array that owns them."""
        address = _address(root)
        shadow = self._shadows.get(address)
        if shadow is None or shadow.root is not root:
            shadow = self._shadows[address] = Shadow(root, address)
        return shadow.of(view)

    def add(self, view: Array, place: Place, writes: bool) -> None:
        """Add an access of any thread; only `last` gives it a number, which few launches need."""
        self._unnumbered.append((view, place, writes))
        if len(self._unnumbered) == _MANY:
            self._number_all()

    def last(self, root: Array, view: Array, *, any_access: bool) -> GlobalAccess | None:
        """Return the newest of the last writes to a view's bytes, or of their last accesses."""
        self._number_all()
        shadow = self._shadows.get(_address(root))
        if shadow is None or shadow.root is not root:
            return None
        numbers = shadow.of(view)
        newest = int((numbers if any_access else numbers[0]).max())
        return self.accesses[newest - 1] if newest else None

    def _number_all(self) -> None:
        for view, place, writes in self._unnumbered:
            number = self.number(GlobalAccess(None, 0, place, False, writes))
            numbers = self.of(_root(view), view)
            if writes:
                numbers[0] = number
            numbers[1] = 0 if writes else number
        self._unnumbered.clear()


class GlobalMemory:
    """The accesses of the launch that runs, and of the one before it."""

    def __init__(self, *, races: bool) -> None:
        self._races = races
        self._launch = self._before = LaunchRecords()
        #: By word: what atomic operations on it have published. By run: what its threads acquired.
        self._published: dict[int, Known] = {}
        self._acquired: dict[Scheduler, list[tuple[int, int, Known]]] = {}

    def begin(self) -> None:
        """Begin a launch."""
        self._launch, self._before = LaunchRecords(), self._launch
        self._published, self._acquired = {}, {}

    def access(self, view: Array, *, writes: bool, atomic: bool) -> None:
        """Check and record an access of the calling thread to the elements of a view."""
        thread = current()
        if view.size == 0:
            return
        if thread.cta.dependent:
            self._check_dependent(thread, view, writes)
        if not self._races:  # a dependent launch asks for the place alone, whichever the thread
            self._launch.add(view, place_in_kernel(), writes)
            return
        launch, clocks = self._launch, thread.cta.tracked_clocks()
        numbers = launch.of(_root(view), view)
        access = GlobalAccess(thread, clocks.epoch(thread.row), place_in_kernel(), atomic, writes)
        for number in np.unique(numbers if writes else numbers[0]).tolist():
            if number:
                self._check(launch.accesses[number - 1], access, view)
        number = launch.number(access)
        if writes:
            numbers[0], numbers[1:] = number, 0
        else:
            for other in np.unique(numbers[1]).tolist():
                if other and launch.accesses[other - 1].thread is not thread:
                    np.copyto(numbers[2], other, where=numbers[1] == other)
            numbers[1] = number

    def synchronise(self, word: Array) -> None:
        """Order what the threads of earlier atomic operations on a word did before the caller."""
        if not self._races:
            return
        thread, address = current(), _address(word)
        clocks, run = thread.cta.tracked_clocks(), thread.cta.scheduler
        published = self._published.setdefault(address, {})
        acquired = self._acquired.setdefault(run, [])
        acquired.append((thread.row, clocks.epoch(thread.row), dict(published)))
        known = self._known(thread)
        known[run] = join(known[run], clocks.publish(thread.row))
        for other, clock in known.items():
            published[other] = join(published[other], clock) if other in published else clock

    def _known(self, thread: SimulatedThread) -> Known:
        """Return what is ordered before a thread, by run."""
        clocks, run = thread.cta.tracked_clocks(), thread.cta.scheduler
        known: Known = {run: clocks.table[thread.row].copy()}
        for row, epoch, seen in self._acquired.get(run, []):
            if row == thread.row or clocks.epochs(thread.row)[row] >= epoch:
                for other, clock in seen.items():
                    known[other] = join(known[other], clock) if other in known else clock
        return known

    def _check(self, its: GlobalAccess, mine: GlobalAccess, view: Array) -> None:
        thread = mine.thread
        if its.thread is thread or its.atomic and mine.atomic or not (its.writes or mine.writes):
            return
        assert thread is not None and its.thread is not None
        known = self._known(thread).get(its.thread.cta.scheduler)
        if known is None or its.epoch > known[its.thread.row]:
            raise DataRace(
                f"{_in_words(view)}: {'written' if mine.writes else 'read'} at "
                f"{in_words(mine.place)} and {'written' if its.writes else 'read'} by "
                f"{its.thread.description} at {in_words(its.place)}, and nothing orders the two: "
                "on a GPU either may be first. Threads of a block synchronise; blocks hand over by "
                "an atomic operation behind cuda.threadfence(), in two launches, or not at all"
            )

    def _check_dependent(self, thread: SimulatedThread, view: Array, writes: bool) -> None:
        """Raise if the launch before, which may still run, has used these bytes."""
        if thread.cta.primary_is_over(thread):
            return
        its = self._before.last(_root(view), view, any_access=writes)
        if its is None:
            return
        raise EarlyRead(
            f"{_in_words(view)}: {'written' if writes else 'read'} at "
            f"{in_words(place_in_kernel())} by a dependent launch (pdl=True), before it has waited "
            f"for the launch in front of it, which has {'written' if its.writes else 'read'} them "
            f"at {in_words(its.place)} and may still run: call ptx.griddepcontrol_wait() first, in "
            "this thread or in one that synchronises with it afterwards"
        )


def box_of(tensor_map: TensorMap, origin: Sequence[int]) -> Array:
    """Return the elements of a map's array that a copy of a box at `origin` moves, as a view."""
    array: Array = tensor_map.copies.view(tensor_map.array)
    steps = tensor_map.copies.encoded_steps(tensor_map.element_strides)
    extents = tensor_map.copies.box.shape
    return array[
        tuple(
            slice(start if start >= 0 else start % step, max(0, start + n * step), step)
            for start, n, step in zip(origin, extents, steps)
        )
    ]


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _root(view: Array) -> Array:
    """Return the array that owns the memory of a view."""
    while isinstance(view.base, np.ndarray):
        view = view.base
    return view


def _extent(array: Array) -> int:
    last = sum((n - 1) * abs(s) for n, s in zip(array.shape, array.strides))
    return int(last) + array.itemsize


def _in_words(view: Array) -> str:
    root = _root(view)
    first = _address(view) - _address(root)
    shape = f"of shape {root.shape} of {root.dtype}"
    return f"global memory, bytes {first} to {first + _extent(view) - 1} of an array {shape}"


#: The records that are made, if any.
_memory: GlobalMemory | None = GlobalMemory(races=True) if simulator_global_races() else None


def global_memory() -> GlobalMemory | None:
    """Return the records of accesses to global memory; None if none are made."""
    return _memory


def begin_launch(*, recorded: bool) -> None:
    """Begin a launch, whose accesses are recorded if a dependent launch may follow."""
    global _memory
    if recorded and _memory is None:
        _memory = GlobalMemory(races=False)
    if _memory is not None:
        _memory.begin()


@contextmanager
def global_races() -> Iterator[None]:
    """Find races in global memory in the kernels launched inside the ``with`` block."""
    global _memory
    outer, _memory = _memory, GlobalMemory(races=True)
    try:
        yield
    finally:
        _memory = outer


def accessed(view: Array, *, writes: bool, atomic: bool = False) -> None:
    """Record an access of the calling thread to global memory, if such records are made."""
    if _memory is not None:
        _memory.access(view, writes=writes, atomic=atomic)
        if atomic and view.size * view.itemsize <= 8:
            _memory.synchronise(view)
