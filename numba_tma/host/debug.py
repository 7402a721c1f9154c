"""Debug mode on the host: the records of stuck warps, and the exceptions made of them.

A wait that takes longer than `wait_limit` writes one `RECORD` to memory of the host that the GPU
can write to, and its threads exit; so the kernel ends and the context survives. The purpose of a
wait is known when the kernel is compiled (`Site`); the record holds the site's number.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from numba_tma.host.environment import debugging, simulated
from numba_tma.host.process_bound import new_in_children

MARKER = "numba_tma_debug"  #: in the PTX of every kernel that can write records

#: One record, in 32-bit words. `device.waiting.record` writes the fields in this order, four words
#: at a time.
RECORD = np.dtype(
    [
        *((name, "<u4") for name in ("site", "stage", "parity", "iteration")),
        *((f"block_{axis}", "<u4") for axis in "xyz"),
        *((name, "<u4") for name in ("warp", "lane", "rank", "address", "issued")),
        ("nanoseconds", "<u8"),
        ("word", "<u8"),  # of the mbarrier; 0 if another warp has recorded it
    ]
)


def offset_of(field: str) -> int:
    """Return the offset of a field in a record, in bytes."""
    offsets: Any = RECORD.fields
    return int(offsets[field][1])


CAPACITY = 1024
#: Before the records: how many there are, how many waits were cut short because of them, and one
#: word for each of the barriers (by hash) whose mbarrier word a warp has claimed.
COUNT, STOPPED, CLAIMS, NUM_CLAIMS = 0, 1, 8, 248
HEADER = CLAIMS + NUM_CLAIMS
UNCOUNTED = 0xFFFFFFFF  #: stands for the issued bytes if those of one copy are unknown


@dataclass(frozen=True)
class Site:
    """The purpose of a wait or a check in a kernel, where it is a compile-time value.

    `tx_bytes` are those of a full phase, where copies are counted; `stages` those of the ring, or 0
    where the producer sets the ledger back and writes the number of the turn behind it; `parts` are
    those of a stage that have barriers of their own. A coordinate times `itemsize` is a multiple of
    `unit`: of 16 bytes, or of elements if they are packed.
    """

    what: str
    role: str = ""
    tx_bytes: int = 0
    stages: int = 1
    kind: str = "wait"  #: or "sync", "flag", "ledger", "coordinate"
    debug: bool | None = None  #: whether the wait is bounded; None: see `debugging`
    itemsize: int = 0
    unit: int = 16
    in_cluster: bool = False  #: other blocks arrive; the wait makes their writes visible
    parts: int = 1

    @property
    def is_bounded(self) -> bool:
        """Whether the wait ends after the limit."""
        return debugging() if self.debug is None else self.debug

    @property
    def for_empty(self) -> bool:
        """Whether a producer waits here, for consumers."""
        return self.kind == "wait" and self.what.endswith(".empty'")

    @property
    def for_full(self) -> bool:
        """Whether a consumer waits here, for the producer."""
        return self.kind == "wait" and self.what.endswith(".full'")

    @property
    def in_ring(self) -> bool:
        """Whether stages and iterations are counted at the wait."""
        return bool(self.role) or self.what.endswith((".full'", ".empty'"))

    @property
    def ledger(self) -> Site:
        """The site of the byte count that follows the wait."""
        return replace(self, kind="ledger")


def is_bounded(owner: type, debug: object) -> bool:
    """Return whether the waits of a pipeline that was given `debug` are bounded.

    Never in the simulator, which finds deadlocks itself.
    """
    if not isinstance(debug, bool | None):
        raise TypeError(f"{owner.__name__}(debug=...) takes True, False or None, not {debug!r}")
    return debugging() if debug is None else debug and not simulated()


_SITES: list[Site] = []


def site_number(site: Site) -> int:
    """Return the number of a site in records, never 0."""
    if site not in _SITES:
        _SITES.append(site)
    return _SITES.index(site) + 1


# ------------------------------------------------------------------------------ records


@dataclass(frozen=True)
class Record:
    """The record of one warp. Unknown numbers are None.

    `count`, `pending` and `outstanding` are the barrier's: the arrivals of a phase, those that are
    missing in this phase, and the bytes that it still expects.
    """

    site: Site
    stage: int
    parity: int
    iteration: int
    block: tuple[int, int, int]
    warp: int
    lane: int
    rank: int  #: of the block in its cluster
    address: int  #: of the barrier in shared memory
    seconds: float
    part: int = 0  #: of the stage, if its parts are waited for one by one
    issued: int | None = None  #: bytes of the copies to this stage, if they are counted
    count: int | None = None
    pending: int | None = None
    outstanding: int | None = None


def decode_word(word: int) -> tuple[int, int, int]:
    """Return (count, pending arrivals, outstanding bytes) of an mbarrier's 64 bits.

    Layout measured on an H200: minus the count in bits 1 to 20, minus the bytes in bits 21 to
    41, minus the pending arrivals in bits 43 to 62.
    """
    count = -(word >> 1) % (1 << 20)
    pending = -(word >> 43) % (1 << 20)
    outstanding = -(word >> 21) % (1 << 21)
    if outstanding >= 1 << 20:  # more bytes came than were expected
        outstanding -= 1 << 21
    return count, pending, outstanding


def decode(rows: np.ndarray[Any, Any], sites: Sequence[Site]) -> list[Record]:
    """Return the records of a buffer. Warps that share a barrier share its numbers."""
    words = {_barrier_of(row): int(row["word"]) for row in rows if row["word"]}
    return [_decode_row(row, sites, words.get(_barrier_of(row))) for row in rows if row["site"]]


def _decode_row(row: Any, sites: Sequence[Site], word: int | None) -> Record:
    count, pending, outstanding = decode_word(word) if word else (None, None, None)
    site = sites[int(row["site"]) - 1]
    stage, part = divmod(int(row["stage"]), site.parts)
    return Record(
        site=site,
        stage=stage,
        part=part,
        block=(int(row["block_x"]), int(row["block_y"]), int(row["block_z"])),
        seconds=int(row["nanoseconds"]) / 1e9,
        issued=None if row["issued"] == UNCOUNTED else int(row["issued"]),
        count=count,
        pending=pending,
        outstanding=outstanding,
        **{name: int(row[name]) for name in _PLAIN},
    )


_PLAIN = ("parity", "iteration", "warp", "lane", "rank", "address")


def _barrier_of(row: Any) -> tuple[int, ...]:
    return tuple(int(row[name]) for name in ("block_x", "block_y", "block_z", "address"))


class Buffer:
    """The words that kernels write their records to."""

    def __init__(self, words: np.ndarray[Any, np.dtype[np.uint32]]) -> None:
        self.words = words
        self.clear()

    def clear(self) -> None:
        """Forget all records. No kernel that can write records may be running."""
        self.words[:] = 0

    @property
    def stopped(self) -> int:
        """Number of waits that ended early because others were stuck before."""
        return int(self.words[STOPPED])

    @property
    def lost(self) -> int:
        """Number of records that did not fit."""
        return max(0, int(self.words[COUNT]) - CAPACITY)

    def records(self) -> list[Record]:
        """Return the records, oldest first."""
        number = min(int(self.words[COUNT]), CAPACITY)
        rows = self.words[HEADER:].view(RECORD)[:number]
        return decode(rows, _SITES)

    def check(self, cause: BaseException | None = None) -> None:
        """Raise the exception for the records, if there are any."""
        if records := self.records():
            raise error_of(records, self.stopped, self.lost) from cause


NUM_WORDS = HEADER + CAPACITY * RECORD.itemsize // 4
#: A kernel that is compiled without a GPU cannot run there, so any address will do.
NO_GPU = 0x7E57_0000_0000

#: Held while a kernel runs that can write records, because there is one buffer.
LOCK = new_in_children(threading.RLock)


@functools.cache
def mapped_buffer() -> Buffer:
    """Return the buffer that the GPUs of this process write to. There must be a GPU."""
    from numba import cuda

    # A plain array, since Numba's has no view as records. It keeps the mapped memory alive.
    return Buffer(np.asarray(memoryview(cuda.mapped_array(NUM_WORDS, np.uint32))))


@functools.cache
def buffer_address() -> int:
    """Return the address of the buffer's words, which is compiled into kernels."""
    from numba import cuda

    # Under unified addressing the host and every GPU reach pinned memory at one address.
    return int(mapped_buffer().words.ctypes.data) if cuda.is_available() else NO_GPU


# --------------------------------------------------------------------------- exceptions


class PipelineError(RuntimeError):
    """A kernel in debug mode ended early, because it was stuck or wrong.

    Its results are invalid. The context survives, and the next launch works. `records` has the
    records of all its warps.
    """

    def __init__(self, message: str, records: Sequence[Record] = ()) -> None:
        super().__init__(message)
        self.records = tuple(records)

    def __reduce__(self) -> Any:
        """Pickle the records too: errors travel between processes."""
        return type(self), (str(self), self.records)


class PipelineTimeout(PipelineError):
    """Warps waited longer than NUMBA_TMA_DEBUG_TIMEOUT seconds."""


class ByteLedgerError(PipelineError):
    """A stage became full with other bytes than it expects."""


class CoordinateError(PipelineError):
    """A tiled copy started off 16 bytes along the innermost axis."""


_ERRORS = {"coordinate": CoordinateError, "ledger": ByteLedgerError}


def error_of(records: Sequence[Record], stopped: int = 0, lost: int = 0) -> PipelineError:
    """Return the exception for the records of stuck warps."""
    first = min(records, key=_causality)
    others = Counter(_summary(r) for r in records if r is not first)
    lines = [_sentence(first)]
    if others or lost:
        lines.append(f"{sum(others.values()) + lost} more:")
        lines += [f"  {number} x {summary}" for summary, number in others.most_common(10)]
        if rest := sum(others.values()) + lost - sum(n for _, n in others.most_common(10)):
            lines.append(f"  {rest} x elsewhere")
    if stopped:
        lines.append(f"{stopped} later waits were cut short")
    return _ERRORS.get(first.site.kind, PipelineTimeout)("\n".join(lines), records)


def _causality(record: Record) -> int:
    """Rank a record by its distance from the cause: a stuck side makes the other side wait too."""
    # A block that waits for another's flag comes last: the other is stuck before it sets the flag.
    kinds = ("coordinate", "ledger", "sync", "wait", "flag")
    rank = 4 * kinds.index(record.site.kind)
    if record.outstanding:
        return rank  # only a copy can complete the phase
    if record.pending is None:
        return rank + 3
    # A wait for an arrival of somebody who waits as well comes after what that one waits for; the
    # arrivals at "empty" are those of consumers, which wait for "full" only after they released.
    return rank + (1 if record.site.for_empty else 2)


def _sentence(record: Record) -> str:
    site = record.site
    if site.kind == "coordinate" and site.unit != 16:
        return (
            f"{_who(record)}: {site.what}: innermost coordinate {_signed(record.iteration)} is not "
            f"a multiple of {site.unit} elements, the least that TMA moves there"
        )
    if site.kind == "coordinate":
        return (
            f"{_who(record)}: {site.what}: innermost coordinate {_signed(record.iteration)} x "
            f"{site.itemsize} B is not a multiple of 16 B: TMA moves whole 16-byte units; use a "
            f"multiple of {16 // site.itemsize} elements"
        )
    if site.kind == "ledger":
        return (
            f"{_who(record)}: {_where(record)} in iteration {record.iteration}: "
            f"{record.issued or 0:,} bytes issued, {site.tx_bytes:,} expected: "
            f"{_ledger_hint(record)}"
        )
    text = f"{_who(record)} waited {record.seconds:.1f} s on {_where(record)}"
    text += f" in iteration {record.iteration}" if site.in_ring and site.kind == "wait" else ""
    if site.tx_bytes and record.issued is not None:
        text += f"; {record.issued:,} of {site.tx_bytes:,} bytes were issued"
    if record.pending is None or record.outstanding is None:
        return text
    text += f"; {record.pending} of {record.count} arrivals are pending"
    if record.outstanding < 0:
        text += f", and {-record.outstanding:,} bytes more came than were expected"
    else:
        text += f", {record.outstanding:,} bytes outstanding"
    return f"{text}: {_hint(record)}"


def _who(record: Record) -> str:
    cluster = f" (rank {record.rank} of its cluster)" if record.rank else ""
    role = f"{record.site.role} " if record.site.role else ""
    return f"{role}warp {record.warp} of block {record.block}{cluster}"


def _where(record: Record) -> str:
    site = record.site
    if site.kind in ("sync", "flag"):
        return site.what
    if not site.in_ring:
        return f"{site.what} at shared address {record.address:#x} phase {record.parity}"
    part = f" sub-stage {record.part}" if site.parts > 1 else ""
    phase = "" if site.kind == "ledger" else f" phase {record.parity}"
    return f"{site.what} stage {record.stage}{part}{phase}"


def _summary(record: Record) -> str:
    known = ""
    if record.pending is not None:
        known = f": {record.pending} of {record.count} arrivals pending"
        known += f", {record.outstanding:,} bytes outstanding"
    if record.site.kind == "coordinate":
        return f"{record.site.what}: innermost coordinate off 16 B"
    role = f"{record.site.role} on " if record.site.role else ""
    return f"{role}{_where(record)}{known}"


def _ledger_hint(record: Record) -> str:
    if (record.issued or 0) > record.site.tx_bytes:
        return "a tile of the stage was loaded twice, or a tile of another stage onto its barrier"
    return "bytes were completed by other means than copies onto the stage's barrier"


def _hint(record: Record) -> str:
    """Return the most likely cause, judged from the numbers."""
    site, pending, outstanding = record.site, record.pending or 0, record.outstanding or 0
    if outstanding < 0:
        return "a copy is larger than the bytes that were expected, or came twice"
    if site.kind == "sync":
        return "these threads left before the others, or wait elsewhere"
    if outstanding and not pending:
        if not site.tx_bytes or record.issued is None:
            return "fewer bytes were copied onto this barrier than it was told to expect"
        if record.issued < site.tx_bytes:
            return "a load of this stage is missing, or was issued on another barrier"
        return "all loads were issued, so one of them is still under way or cannot end"
    if pending and site.for_empty:
        return (
            "consumer warps have not released the stage: a release is missing, one of them left "
            "early, or one waits itself"
        )
    if pending and site.for_full and not outstanding:
        return (
            "the producer has not acquired the stage: it waits itself, has left its loop, or goes "
            "through fewer tiles than the consumers"
        )
    if pending == record.count and not outstanding:
        return (
            "nobody has arrived in this phase: an arrival is missing, or the wait names the wrong "
            "parity, that of the phase to come"
        )
    if pending:
        return "somebody has not arrived: a thread left early, or the barrier counts too many"
    return "the phase completed late, or the wait names the wrong parity"


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word
