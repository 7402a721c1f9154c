"""Data races: generic accesses of different threads to one byte that nothing orders.

Of two accesses by different threads, one of them a write, one has to be ordered before the other.
Atomic operations may meet each other, and writes of the bytes that are there already may meet.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from numba_tma.host.source_lines import line_in_words
from numba_tma.simulator.clocks import Clock, Clocks
from numba_tma.simulator.copies import line_of
from numba_tma.simulator.errors import DataRace
from numba_tma.simulator.memory import SharedMemory

if TYPE_CHECKING:
    from numba_tma.simulator.thread import SimulatedThread

GRANULE = 16
#: Readers of a cell that are kept before the first look at which of them a new one stands for.
_FEW = 4

_PACKAGE = Path(__file__).resolve().parent.parent
_LIBRARY, _KERNELS = str(_PACKAGE), str(_PACKAGE / "kernels")
#: By file: whether it is the library's, and no kernel's. (The hash of code is slow.)
_inside: dict[str, bool] = {}

_BLOCK = (
    "nothing orders the two: on a GPU either may be first. Let the threads synchronise in between "
    "(syncthreads, a role's sync() between warps, syncwarp within one, or an mbarrier on which the "
    "first arrives with release semantics)"
)
_CLUSTER = (
    "the arrival between the two releases at block scope, which other blocks of the cluster do not "
    'see: arrive with semantics "release.cluster" and wait with "acquire.cluster", or call '
    "cluster_sync() between the two"
)

Bytes = NDArray[np.uint8]
Place = tuple[CodeType, int]


class ThreadAccess(NamedTuple):
    """An access of a thread: the thread's own time, and the place in the kernel."""

    epoch: int
    place: Place
    atomic: bool


class Cell:
    """Bytes that threads access together: the last write, and the reads since."""

    __slots__ = ("few", "readers", "writer", "written")

    def __init__(self) -> None:
        self.writer = -1
        self.written: ThreadAccess | None = None
        self.readers: dict[int, ThreadAccess] = {}
        self.few = _FEW


class Races:
    """The generic accesses to a block's shared memory."""

    def __init__(
        self, memory: SharedMemory, clocks: Clocks, thread_of: Callable[[int], SimulatedThread]
    ) -> None:
        self._memory = memory
        self._clocks = clocks
        self._thread_of = thread_of
        #: By number of a granule: its cells, by their first byte and the one after the last, and
        #: those of atomic accesses by one more, since an atomic access stands for no plain one.
        self._granules: dict[int, dict[tuple[int, ...], Cell]] = {}

    def read(self, row: int, start: int, stop: int, *, atomic: bool) -> None:
        """Check and record a read of a thread."""
        known = self._clocks.table[row]
        access = ThreadAccess(known.item(row), place_in_kernel(), atomic)
        for granule in range(start // GRANULE, (stop - 1) // GRANULE + 1):
            cells = self._granules.setdefault(granule, {})
            span = max(start, granule * GRANULE), min(stop, (granule + 1) * GRANULE)
            for key, cell in cells.items():
                if cell.written is not None and key[0] < span[1] and span[0] < key[1]:
                    self._check_writer(row, known, cell, span, access, "read")
            mine = (*span, 1) if atomic else span
            cell = cells.get(mine) or cells.setdefault(mine, Cell())
            readers = cell.readers
            if len(readers) > cell.few and row not in readers:
                # What this read follows, it stands for. The next look is at twice as many.
                for reader in [r for r, its in readers.items() if its.epoch <= known[r]]:
                    del readers[reader]
                cell.few = max(_FEW, 2 * len(readers))
            readers[row] = access

    def write(
        self, row: int, start: int, stop: int, image: Bytes | None = None, *, atomic: bool = False
    ) -> None:
        """Check and record a write of `image` by a thread."""
        known = self._clocks.table[row]
        access = ThreadAccess(known.item(row), place_in_kernel(), atomic)
        for granule in range(start // GRANULE, (stop - 1) // GRANULE + 1):
            span = max(start, granule * GRANULE), min(stop, (granule + 1) * GRANULE)
            new = None if image is None else image[span[0] - start : span[1] - start]
            self._written(row, known, granule, span, new, access)

    def write_pieces(self, row: int, addresses: Sequence[int], pieces: Bytes) -> None:
        """Check and record writes of a piece at each address, each inside a granule."""
        known, nbytes = self._clocks.table[row], pieces.shape[1]
        access = ThreadAccess(known.item(row), place_in_kernel(), False)
        for start, new in zip(addresses, pieces):
            self._written(row, known, start // GRANULE, (start, start + nbytes), new, access)

    def _written(
        self,
        row: int,
        known: Clock,
        granule: int,
        span: tuple[int, int],
        new: Bytes | None,
        access: ThreadAccess,
    ) -> None:
        """Check and record a write to `span` of a granule."""
        cells = self._granules.get(granule)
        if cells is None:
            cells = self._granules[granule] = {}
        for key, cell in list(cells.items()):
            if key[0] < span[1] and span[0] < key[1]:
                if cell.writer != row and cell.written is not None:
                    data = self._memory.data[span[0] : span[1]]
                    if new is None or data.tobytes() != new.tobytes():
                        self._check_writer(row, known, cell, span, access, "written")
                self._check_readers(row, known, cell, span, access)
                if span[0] <= key[0] and key[1] <= span[1]:
                    if len(key) > 2 or not access.atomic:
                        del cells[key]  # ordered before this write, so before what follows
        cell = cells[(*span, 1) if access.atomic else span] = Cell()
        cell.writer, cell.written = row, access

    def filled(self, first: int, last: int) -> None:
        """Forget the accesses to granules [first, last), which all are ordered before a load."""
        for granule in range(first, last):
            self._granules.pop(granule, None)

    def _check_writer(
        self,
        row: int,
        known: Clock,
        cell: Cell,
        span: tuple[int, int],
        mine: ThreadAccess,
        done: str,
    ) -> None:
        its = cell.written
        if its is None or cell.writer == row or its.atomic and mine.atomic:
            return
        if its.epoch > known.item(cell.writer):
            raise self._race(span, cell.writer, "written", its, done, mine)
        if its.epoch > self._clocks.released(row, cell.writer):
            writer, reader = self._thread_of(cell.writer), self._thread_of(row)
            if writer.cta is not reader.cta:
                raise self._race(span, cell.writer, "written", its, done, mine, _CLUSTER)

    def _check_readers(
        self, row: int, known: Clock, cell: Cell, span: tuple[int, int], mine: ThreadAccess
    ) -> None:
        for reader, its in cell.readers.items():
            if reader == row or its.epoch <= known.item(reader) or (its.atomic and mine.atomic):
                continue
            raise self._race(span, reader, "read", its, "written", mine)

    def _race(
        self,
        span: tuple[int, int],
        other: int,
        did: str,
        its: ThreadAccess,
        done: str,
        mine: ThreadAccess,
        repair: str = "",
    ) -> DataRace:
        where = self._memory.describe(span[0], span[1] - span[0])
        return DataRace(
            f"{where}: {done} at {in_words(mine.place)} and {did} by "
            f"{self._thread_of(other).description} at {in_words(its.place)}, and "
            f"{repair or _BLOCK}"
        )


def place_in_kernel() -> Place:
    """Return the innermost place of a kernel from which the thread came to the caller's caller."""
    frame = sys._getframe(2)
    while True:
        code = frame.f_code
        name = code.co_filename
        inside = _inside.get(name)
        if inside is None:
            inside = _inside[name] = name.startswith(_LIBRARY) and not name.startswith(_KERNELS)
        if not inside or frame.f_back is None:
            return code, frame.f_lasti
        frame = frame.f_back


def in_words(place: Place) -> str:
    """Return a place as its file and line."""
    code, instruction = place
    return line_in_words(code.co_filename, line_of(code, instruction))
