"""Hazards: each access to shared bytes is checked against the accesses ordered before it.

The verdict does not depend on the time at which a copy runs: an access is ordered before another
only by the vector clocks. Records are kept per 16-byte granule, the unit of every copy. `Races`
checks the generic accesses of different threads against each other, by byte.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from numba_tma.simulator.async_copies import AsyncRecords
from numba_tma.simulator.clocks import Clock, Clocks
from numba_tma.simulator.copies import call_site
from numba_tma.simulator.errors import (
    EarlyOverwrite,
    EarlyRead,
    MissingFence,
    SimulatorError,
    UninitializedRead,
)
from numba_tma.simulator.memory import END, SharedMemory
from numba_tma.simulator.races import GRANULE, Races
from numba_tma.simulator.readers import (
    COPY,
    FENCES,
    IN_FLIGHT,
    RELEASE,
    STORE,
    TCGEN05,
    WAITS,
    WGMMA,
    Reader,
    of_pipeline,
)

if TYPE_CHECKING:
    from numba_tma.simulator.barriers import TrackedBarrier
    from numba_tma.simulator.products import PendingProduct
    from numba_tma.simulator.tcgen05_queue import MatrixQueue
    from numba_tma.simulator.thread import SimulatedThread

#: The unit of st.async and red.async; other words of a granule are independent of them.
WORD = 4

Records = NDArray[np.int32]
#: Accesses of the copy engine to granules [first, last) until an mbarrier, perhaps of another
#: block, completes a phase: the range and the barrier, and the number of phases to be known.
Transfers = dict[tuple[int, int, "TrackedBarrier"], int]


def _zeros(rows: int, columns: int) -> Records:
    """Return zeros whose pages take memory, and time, only once they are written."""
    if not hasattr(mmap, "MAP_PRIVATE"):  # Windows
        return np.zeros((rows, columns), np.int32)
    pages = mmap.mmap(-1, 4 * rows * columns, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(pages, np.int32).reshape(rows, columns)


def _any(flags: NDArray[np.bool_]) -> bool:
    return 1 in flags.tobytes()  # in a tenth of the time that the few flags of an access take any()


class Hazards:
    """The access records of one block's shared window."""

    #: Whether reads, too, must be fenced before a load may overwrite their bytes. An arrival does
    #: not wait for reads in flight. The default is False: on the hardware a thread is safe once it
    #: has used the values, as most threads do before they arrive, and the simulator sees no uses.
    fenced_reads = False

    def __init__(
        self, memory: SharedMemory, clocks: Clocks, thread_of: Callable[[int], SimulatedThread]
    ) -> None:
        granules = END // GRANULE
        self._memory = memory
        self._clocks = clocks
        self._thread_of = thread_of
        self._barriers: dict[int, TrackedBarrier] = {}
        #: By column and phase of a barrier: the thread that issued its last load, and where.
        self._loads: dict[tuple[int, int], tuple[SimulatedThread, str]] = {}
        # By word: the barrier that the last st.async or red.async completes on, and the phase.
        self._async_fills: dict[int, tuple[TrackedBarrier, int]] = {}
        # By granule and thread: epoch of the last generic read and write, number of the last store.
        self._reads = _zeros(granules, clocks.threads)
        self._writes = _zeros(granules, clocks.threads)
        self._stores = _zeros(granules, clocks.threads)
        self._has_stores = False
        # By granule: the mbarrier that the last load completes on, and in which of its phases.
        self._fill_column = np.zeros(granules, np.int32)
        self._fill_phase = np.zeros(granules, np.int32)
        #: The words that cp.async fills, once a thread uses it.
        self._copied: AsyncRecords | None = None
        # Sources of copies to blocks of the cluster, and destinations of reductions from them.
        self._outgoing: Transfers = {}
        self._reductions: Transfers = {}
        #: By granule: whether a wgmma or tcgen05 operation has read it.
        self._operands = np.zeros(granules, np.bool_)
        #: By granules [first, last) and warpgroup: the last wgmma that reads exactly these.
        self._products: dict[tuple[int, int, int], PendingProduct] = {}
        #: By granules [first, last) and tcgen05 queue: its last operation that reads exactly these.
        self._matrix_reads: dict[tuple[int, int, MatrixQueue], int] = {}
        self._races = Races(memory, clocks, thread_of)

    def read(
        self, thread: SimulatedThread, address: int, nbytes: int, *, atomic: bool = False
    ) -> None:
        """Check and record a generic read."""
        row = thread.row
        first, last = self._granules(address, nbytes)
        self._reads[first:last, row] = self._clocks.epoch(row)
        if self._unfilled(row, first, last):
            raise self._early(EarlyRead, "read", row, address, nbytes)
        self._check_async_fills(EarlyRead, "read", row, address, nbytes)
        if self._copied is not None:
            self._copied.check_read(row, address, nbytes)
        self._check_reductions(EarlyRead, "read", row, address, nbytes)
        if not self._memory.is_written(address, nbytes):
            raise UninitializedRead(
                f"{self._memory.describe(address, nbytes)}: read before all of it was written. "
                "If a load is to fill it, wait for the load's barrier first"
            )
        self._races.read(row, address, address + nbytes, atomic=atomic)

    def write(
        self,
        thread: SimulatedThread,
        address: int,
        nbytes: int,
        image: NDArray[np.uint8] | None = None,
        *,
        atomic: bool = False,
    ) -> None:
        """Check and record a generic write of the bytes `image`."""
        row, clocks = thread.row, self._clocks
        first, last = self._granules(address, nbytes)
        if self._unfilled(row, first, last):
            raise self._early(EarlyOverwrite, "overwritten", row, address, nbytes)
        self._check_async_fills(EarlyOverwrite, "overwritten", row, address, nbytes)
        if self._copied is not None:
            self._copied.check_write(row, address, nbytes)
        self._check_readers(row, first, last, "a write to")
        self._check_reductions(EarlyOverwrite, "overwritten", row, address, nbytes)
        self._check_outgoing(row, address, nbytes, "a write to")
        self._races.write(row, address, address + nbytes, image, atomic=atomic)
        self._writes[first:last, row] = clocks.epoch(row)
        self._memory.wrote(address, nbytes)

    def write_pieces(
        self, thread: SimulatedThread, addresses: NDArray[np.intp], pieces: NDArray[np.uint8]
    ) -> None:
        """Check and record generic writes of a piece at each address, each inside a granule."""
        nbytes = pieces.shape[1]
        row, granules = thread.row, addresses // GRANULE
        transfers = self._async_fills or self._copied or self._reductions or self._outgoing
        known = self._clocks.table[row]
        products = False
        if _any(self._operands[granules]):
            reads = [
                *(its[:2] for its, p in self._products.items() if _any(p.ended > known[p.rows])),
                *(its[:2] for its, n in self._matrix_reads.items() if n > known[its[2].known]),
            ]
            products = any(_any((first <= granules) & (granules < last)) for first, last in reads)
        late = self._fill_phase[granules] > self._clocks.table[row, self._fill_column[granules]]
        stored = self._has_stores and _any(self._stores[granules] > self._clocks.stores(row))
        if transfers or products or stored or _any(late):
            for address, image in zip(addresses.tolist(), pieces):
                self.write(thread, address, nbytes, image)
            return
        self._races.write_pieces(row, addresses.tolist(), pieces)
        self._writes[granules, row] = self._clocks.epoch(row)
        self._memory.wrote_words(addresses, nbytes)

    def load(
        self, thread: SimulatedThread, address: int, nbytes: int, barrier: TrackedBarrier
    ) -> None:
        """Check a load that `thread` issues, and record that it fills these bytes."""
        first, last = self._granules(address, nbytes)
        self._check_reductions(EarlyOverwrite, "overwritten by a load", thread.row, address, nbytes)
        self._check_arrival(thread, address, nbytes, "load")
        self._races.filled(first, last)
        self._barriers[barrier.column] = barrier
        self._loads[barrier.column, barrier.model.phase] = thread, call_site()
        self._fill_column[first:last] = barrier.column
        self._fill_phase[first:last] = barrier.model.phase + 1

    def reduce(
        self, thread: SimulatedThread, address: int, nbytes: int, barrier: TrackedBarrier
    ) -> None:
        """Check a reduction into these bytes that `thread` issues, in this block or another.

        Several reductions into the same bytes may be in flight.
        """
        self._check_arrival(thread, address, nbytes, "reduction")
        if not self._memory.is_written(address, nbytes):
            raise UninitializedRead(
                f"{self._memory.describe(address, nbytes)}: a reduction combines them with its "
                "source, but not all of them were written"
            )
        key = (*self._granules(address, nbytes), barrier)
        self._reductions[key] = barrier.model.phase + 1

    def check_fenced_reads(self, row: int, address: int, nbytes: int, what: str) -> None:
        """Raise unless each reader of these bytes has fenced its reads before it arrived."""
        granules = self._granules(address, nbytes)
        if (late := self._unordered(self._reads, self._clocks.fences(row), *granules)) is not None:
            reader, where = late
            raise MissingFence(
                f"{where}: a {what} may overtake a read by {reader.description}: execute "
                "fence_proxy_async() after the last read, before the arrival or sync"
            )

    def _check_arrival(self, thread: SimulatedThread, address: int, nbytes: int, what: str) -> None:
        """Raise unless the copy engine may write these bytes."""
        row, clocks = thread.row, self._clocks
        first, last = self._granules(address, nbytes)
        if self._unfilled(row, first, last):
            done = "overwritten by another load" if what == "load" else f"changed by a {what}"
            raise self._early(EarlyOverwrite, done, row, address, nbytes)
        self._check_async_fills(EarlyOverwrite, f"overwritten by a {what}", row, address, nbytes)
        if self._copied is not None:
            self._copied.check_write(row, address, nbytes, f"overwritten by a {what}")
            self._copied.check_fence(row, address, nbytes, f"a {what} overwrites")
        late = self._unordered(self._reads, clocks.epochs(row), first, last)
        if late is not None:
            reader, where = late
            raise EarlyOverwrite(
                f"{where}: a {what} is issued over them after {reader.description} has read them, "
                f"and nothing orders that read before this {what}. Let every reader arrive on the "
                "'empty' barrier (or sync) after its last read, and wait for that before loading"
                + of_pipeline(where, RELEASE)
            )
        if self.fenced_reads:
            self.check_fenced_reads(row, address, nbytes, what)
        self._check_readers(row, first, last, f"a {what} into")
        self._check_outgoing(row, address, nbytes, f"a {what} into")
        late = self._unordered(self._writes, clocks.epochs(row), first, last)
        if late is not None:
            writer, where = late
            raise EarlyOverwrite(
                f"{where}: a {what} is issued over them after {writer.description} has written "
                f"them, and nothing orders that write before this {what}. Let the writer arrive on "
                "the 'empty' barrier (or sync) after its last write, and wait for that"
                + of_pipeline(where, RELEASE)
            )
        self._check_fences(row, first, last, f"a {what} overwrites")

    def store(
        self, thread: SimulatedThread, address: int, nbytes: int, number: int, *, every_byte: bool
    ) -> None:
        """Check a store that `thread` issues, and record that its `number`-th store reads these.

        A tensor store may be clipped, so some bytes of its source may be unwritten.
        """
        self._check_source(thread.row, address, nbytes, STORE, every_byte=every_byte)
        first, last = self._granules(address, nbytes)
        self._stores[first:last, thread.row] = number
        self._has_stores = True

    def copy_out(
        self, thread: SimulatedThread, address: int, nbytes: int, barrier: TrackedBarrier
    ) -> None:
        """Check a copy of these bytes to a block of the cluster that completes on `barrier`."""
        self._check_source(thread.row, address, nbytes, COPY)
        key = (*self._granules(address, nbytes), barrier)
        self._outgoing[key] = barrier.model.phase + 1

    def multiply(self, product: PendingProduct) -> None:
        """Check the operands of a wgmma, and record its reads until its threads have waited."""
        row = self._clocks.together(product.rows)
        for address, nbytes in product.reads:
            self._check_source(row, address, nbytes, WGMMA)
            first, last = self._granules(address, nbytes)
            self._operands[first:last] = True
            self._products[first, last, product.rows.start] = product

    def matrix_read(
        self,
        thread: SimulatedThread,
        address: int,
        nbytes: int,
        queue: MatrixQueue,
        number: int,
        *,
        every_byte: bool,
    ) -> None:
        """Check the read of a tcgen05 operation that `thread` issues, and record it."""
        self._check_source(thread.row, address, nbytes, TCGEN05, every_byte=every_byte)
        first, last = self._granules(address, nbytes)
        self._operands[first:last] = True
        self._matrix_reads[first, last, queue] = number

    def _check_source(
        self, row: int, address: int, nbytes: int, reader: Reader, *, every_byte: bool = True
    ) -> None:
        """Raise unless writes and copies into these bytes are ordered before the read."""
        clocks, done = self._clocks, reader.done
        first, last = self._granules(address, nbytes)
        if self._unfilled(row, first, last):
            raise self._early(EarlyRead, done, row, address, nbytes)
        self._check_async_fills(EarlyRead, done, row, address, nbytes)
        self._check_reductions(EarlyRead, done, row, address, nbytes)
        if self._copied is not None:
            self._copied.check_read(row, address, nbytes, done)
            self._copied.check_fence(row, address, nbytes, f"{reader.name} reads")
        late = self._unordered(self._writes, clocks.epochs(row), first, last)
        if late is not None:
            writer, where = late
            raise MissingFence(
                f"{where}: {reader.name} reads what {writer.description} has written, and nothing "
                "orders that write before the read. The writer must execute fence_proxy_async() "
                f"after its last write and then synchronise with {reader.who} (syncthreads, "
                "syncwarp or a barrier)" + of_pipeline(where, FENCES)
            )
        self._check_fences(row, first, last, f"{reader.name} reads")
        written = self._memory.written[address : address + nbytes]
        if not (self._memory.is_written(address, nbytes) if every_byte else _any(written)):
            raise UninitializedRead(
                f"{self._memory.describe(address, nbytes)}: {reader.target}, but it was never "
                "written"
            )

    def async_write(
        self, thread: SimulatedThread, address: int, nbytes: int, barrier: TrackedBarrier
    ) -> None:
        """Check a st.async or red.async, and record that it fills these words.

        Several that complete on the same phase may write one word. Generic reads and writes are not
        checked: they are recorded per granule, which is too coarse for words.
        """
        row = thread.row
        first, last = self._granules(address, nbytes)
        done = "overwritten by st_async or red_async"
        if self._unfilled(row, first, last):
            raise self._early(EarlyOverwrite, done, row, address, nbytes)
        self._check_readers(row, first, last, "st_async or red_async to")
        fill = barrier, barrier.model.phase + 1
        self._check_async_fills(EarlyOverwrite, done, row, address, nbytes, but=fill)
        self._async_fills |= dict.fromkeys(self._words(address, nbytes), fill)

    def copy(self, thread: SimulatedThread, address: int, nbytes: int, number: int) -> None:
        """Check a cp.async that `thread` issues, and record that it fills these bytes.

        Reads and writes of other threads are checked if the copy covers a whole granule. For a
        smaller part, the records do not show whether they touched it.
        """
        row, clocks = thread.row, self._clocks
        if self._copied is None:
            self._copied = AsyncRecords(self._memory, clocks, self._thread_of)
        first, last = self._granules(address, nbytes)
        if self._unfilled(row, first, last):
            raise self._early(EarlyOverwrite, "overwritten by a cp.async", row, address, nbytes)
        self._copied.check_write(row, address, nbytes, "overwritten by another cp.async")
        self._check_readers(row, first, last, "a cp.async into")
        for records, done in ((self._reads, "read"), (self._writes, "written")):
            late = self._unordered(records, clocks.epochs(row), first, last)
            if late is not None and nbytes == GRANULE:
                other, where = late
                raise EarlyOverwrite(
                    f"{where}: a cp.async is issued over them after {other.description} has "
                    f"{done} them, and nothing orders that before this copy. Let the threads "
                    "synchronise in between"
                )
        self._copied.record(row, number, address, nbytes)

    def fence(self, thread: SimulatedThread) -> None:
        """Make the writes of `thread` so far visible to the copy engine."""
        self._clocks.fence(thread.row)

    @staticmethod
    def _granules(address: int, nbytes: int) -> tuple[int, int]:
        return address // GRANULE, -(-(address + nbytes) // GRANULE)

    @staticmethod
    def _words(address: int, nbytes: int) -> range:
        return range(address // WORD, -(-(address + nbytes) // WORD))

    def _check_async_fills(
        self,
        kind: type[SimulatorError],
        done: str,
        row: int,
        address: int,
        nbytes: int,
        but: tuple[TrackedBarrier, int] | None = None,
    ) -> None:
        if not self._async_fills:
            return
        for word in self._words(address, nbytes):
            fill = self._async_fills.get(word)
            if fill is None or fill == but:
                continue
            barrier, phase = fill
            if phase > self._clocks.table[row, barrier.column]:
                raise self._too_early(kind, done, "write", address, nbytes, barrier, phase - 1)

    def _unfilled(self, row: int, first: int, last: int) -> bool:
        if last - first == 1:
            known: int = self._clocks.table.item(row, self._fill_column.item(first))
            return self._fill_phase.item(first) > known
        return _any(self._late(row, first, last))

    def _late(self, row: int, first: int, last: int) -> NDArray[np.bool_]:
        known = self._clocks.table[row, self._fill_column[first:last]]
        late: NDArray[np.bool_] = self._fill_phase[first:last] > known
        return late

    def _unordered(
        self, records: Records, known: Clock, first: int, last: int
    ) -> tuple[SimulatedThread, str] | None:
        """Return a thread with recorded accesses beyond `known`, and their place."""
        beyond = records[first:last] > known
        if not _any(beyond):
            return None
        row = int(np.argmax(beyond.any(axis=0)))
        granules = np.flatnonzero(beyond[:, row])
        start = (first + int(granules[0])) * GRANULE
        end = (first + int(granules[-1]) + 1) * GRANULE
        return self._thread_of(row), self._memory.describe(start, end - start)

    def _check_readers(self, row: int, first: int, last: int, what: str) -> None:
        late = None
        if self._has_stores:
            late = self._unordered(self._stores, self._clocks.stores(row), first, last)
        if late is not None:
            storer, where = late
            raise EarlyOverwrite(
                f"{where}: {what} bytes that a store of {storer.description} may still be "
                "reading. That thread must commit the store and pass "
                "cp_async_bulk_wait_group_read(), and synchronise with whoever writes next"
                + of_pipeline(
                    where, "pipe.store(map, tile, coords) does so before it releases the stage"
                )
            )
        if not _any(self._operands[first:last]):
            return
        for (start, end, _), product in self._products.items():
            if start < last and first < end:
                self._check_product(row, max(start, first), min(end, last), what, product)
        for (start, end, queue), number in self._matrix_reads.items():
            overlaps = start < last and first < end
            if overlaps and number > self._clocks.table[row, queue.known]:
                start, end = max(start, first), min(end, last)
                where = self._memory.describe(start * GRANULE, (end - start) * GRANULE)
                raise EarlyOverwrite(
                    f"{where}: {what} bytes that {queue.in_words(number)} may still be reading: "
                    f"{queue.missing(number)}"
                )

    def _check_product(
        self, row: int, first: int, last: int, what: str, product: PendingProduct
    ) -> None:
        unknown = product.ended > self._clocks.table[row, product.rows]
        if _any(unknown):
            late = product.threads[int(np.argmax(unknown))]
            where = self._memory.describe(first * GRANULE, (last - first) * GRANULE)
            raise EarlyOverwrite(
                f"{where}: {what} bytes that {product.in_words} (at {product.site}) may still be "
                f"reading: that {late.description} has waited for it is not known here. Every "
                "thread of the warpgroup must pass wgmma_wait() for it, and only then release the "
                "stage, or synchronise with whoever writes next" + of_pipeline(where, IN_FLIGHT)
            )

    def _check_outgoing(self, row: int, address: int, nbytes: int, what: str) -> None:
        barrier = self._under_way(self._outgoing, row, address, nbytes)
        if barrier is not None:
            raise EarlyOverwrite(
                f"{self._memory.describe(address, nbytes)}: {what} bytes that a copy to a block of "
                f"the cluster may still be reading. It completes on {barrier.name} there: let a "
                "thread that has waited for that tell this one (barrier_cluster, or a remote "
                "arrival)"
            )

    def _check_reductions(
        self, kind: type[SimulatorError], done: str, row: int, address: int, nbytes: int
    ) -> None:
        barrier = self._under_way(self._reductions, row, address, nbytes)
        if barrier is not None:
            raise kind(
                f"{self._memory.describe(address, nbytes)}: {done} before a reduction into them is "
                f"known to be complete. It completes on {barrier.name}: wait for that first, in "
                "this thread or in one that synchronises with this thread afterwards"
            )

    def _under_way(
        self,
        transfers: Mapping[tuple[int, int, TrackedBarrier], int],
        row: int,
        address: int,
        nbytes: int,
    ) -> TrackedBarrier | None:
        """Return the barrier of a transfer of these bytes that is not ordered before `row`."""
        if not transfers:
            return None
        first, last = self._granules(address, nbytes)
        known = self._clocks.table[row]
        for (start, end, barrier), phase in transfers.items():
            if start < last and first < end and phase > known[barrier.column]:
                return barrier
        return None

    def _check_fences(self, row: int, first: int, last: int, what: str) -> None:
        late = self._unordered(self._writes, self._clocks.fences(row), first, last)
        if late is not None:
            writer, where = late
            raise MissingFence(
                f"{where}: {what} bytes that {writer.description} has written without a "
                "fence_proxy_async() between its write and the synchronisation: the copy engine "
                "and the tensor cores may see or leave old bytes. The writer must execute the "
                "fence after its last write, before it syncs or arrives"
                + of_pipeline(where, FENCES)
            )

    def _early(
        self, kind: type[SimulatorError], done: str, row: int, address: int, nbytes: int
    ) -> SimulatorError:
        first, last = self._granules(address, nbytes)
        granule = first + int(np.argmax(self._late(row, first, last)))
        barrier = self._barriers[int(self._fill_column[granule])]
        phase = int(self._fill_phase[granule]) - 1
        error = self._too_early(kind, done, "load", address, nbytes, barrier, phase)
        if done == "overwritten by another load":
            self._name_repetition(error, row, barrier, phase)
        return error

    def _name_repetition(
        self, error: SimulatorError, row: int, barrier: TrackedBarrier, phase: int
    ) -> None:
        """Add to an error of two loads that they are one load, executed by two threads."""
        first, site = self._loads.get((barrier.column, phase), (None, ""))
        thread = self._thread_of(row)
        if first is not None and first is not thread and site == call_site():
            error.args = (
                f"{error}. The other load is the same one, at {site}, executed by "
                f"{first.description}, too: let one thread execute it, under `if "
                "tma.elect_sync():` or in the body of pipe.produce(...)",
            )

    def _too_early(
        self,
        kind: type[SimulatorError],
        done: str,
        filled_by: str,
        address: int,
        nbytes: int,
        barrier: TrackedBarrier,
        phase: int,
    ) -> SimulatorError:
        where = self._memory.describe(address, nbytes)
        return kind(
            f"{where}: {done} before the {filled_by} that fills them is "
            f"known to be complete. It completes phase {phase} (parity {phase & 1}) of "
            f"{barrier.name}: wait for that phase first, in this thread or in one that "
            "synchronises with this thread afterwards"
            + of_pipeline(where, WAITS if kind is EarlyRead else "")
        )
