"""Every access to shared memory after every other: the error if nothing orders them, or none.

Accesses go straight to the records. What the second thread knows is written into its clock.
"""

import numpy as np
import pytest

from numba_tma.simulator.clocks import Clocks
from numba_tma.simulator.errors import SimulatorError
from numba_tma.simulator.hazards import Hazards
from numba_tma.simulator.memory import BASE, SharedMemory
from numba_tma.simulator.readers import of_pipeline

FIRST, NBYTES = BASE + 64, 32  #: what the first access is to
NUMBER = 3  #: of the first access: of a store, copy or operation, or the thread's time


class Thing:
    """A thread, barrier, product or queue, as far as the records look at one."""

    def __init__(self, **fields):
        self.__dict__.update(fields)


class Place:
    """The records of a block of two threads, and accesses to it."""

    def __init__(self):
        memory, self.clocks = SharedMemory(), Clocks(2)
        memory.allocate("key", "owner", 256, 16, tracked=False)
        cta = Thing()
        self.threads = [Thing(row=row, description=f"thread {row}", cta=cta) for row in range(2)]
        self.clocks.table[0, 0] = NUMBER
        self.hazards = Hazards(memory, self.clocks, self.threads.__getitem__)
        self.barrier, self.other = (
            Thing(column=self.clocks.new_column(), model=Thing(phase=NUMBER - 1), name="bar")
            for _ in range(2)
        )
        self.queue, self.own_queue = (
            Thing(known=self.clocks.new_column(), in_words=str, missing=str) for _ in range(2)
        )
        self.copies = self.clocks.copies, self.clocks.fenced_copies

    def know(self, row, what, number):
        """Let a thread know of the first one's accesses up to a number."""
        columns = {
            "time": 0, "fence": 2, "stores": 4, "phase": self.barrier.column,
            "queue": self.queue.known, "copies": self.copies[0], "fenced": self.copies[1],
        }  # fmt: skip
        self.clocks.table[row, columns[what]] = number

    def access(self, kind, row, address, nbytes, second=True):
        hazards, thread = self.hazards, self.threads[row]
        barrier, queue = (self.other, self.own_queue) if second else (self.barrier, self.queue)
        match kind:
            case "read":
                hazards.read(thread, address, nbytes)
            case "write":
                hazards.write(thread, address, nbytes)
            case "pieces":
                addresses = np.arange(address, address + nbytes, 16)
                hazards.write_pieces(thread, addresses, np.zeros((len(addresses), 16), np.uint8))
            case "load" | "reduce" | "copy_out" | "async_write":
                getattr(hazards, kind)(thread, address, nbytes, barrier)
            case "store":
                hazards.store(thread, address, nbytes, NUMBER, every_byte=True)
            case "matrix_read":
                hazards.matrix_read(thread, address, nbytes, queue, NUMBER, every_byte=True)
            case "copy":
                for start in range(address, address + nbytes, 16):
                    hazards.copy(thread, start, 16, NUMBER)
            case "multiply":
                rows, ended = slice(row, row + 1), np.array([NUMBER], np.int32)
                hazards.multiply(Thing(
                    threads=[thread], rows=rows, reads=[(address, nbytes)], ended=ended,
                    in_words="a wgmma", site="here",
                ))  # fmt: skip


ARRIVALS, SOURCES = ("load", "reduce"), ("store", "copy_out", "multiply", "matrix_read")
WRITES = ("write", "pieces")
LOST, EARLY, RACE, FENCE = "EarlyOverwrite", "EarlyRead", "DataRace", "MissingFence"
OVER = (*WRITES, *ARRIVALS)  #: what overwrites

#: What must be known at a second access, each with the error if it is not, by both accesses.
NEEDED = {
    "read": dict.fromkeys(WRITES, [("time", RACE)])
    | dict.fromkeys([*ARRIVALS, "copy"], [("time", LOST)]),
    "write": dict.fromkeys(["read", *WRITES], [("time", RACE)])
    | dict.fromkeys(ARRIVALS, [("time", LOST), ("fence", FENCE)]) | {"copy": [("time", LOST)]}
    | dict.fromkeys(SOURCES, [("time", FENCE), ("fence", FENCE)]),
    "load": dict.fromkeys(["read", *SOURCES], [("phase", EARLY)])
    | dict.fromkeys([*OVER, "copy", "async_write"], [("phase", LOST)]),
    "reduce": dict.fromkeys(["read", *SOURCES], [("phase", EARLY)])
    | dict.fromkeys([*WRITES, "load"], [("phase", LOST)]),
    "store": dict.fromkeys([*OVER, "copy", "async_write"], [("stores", LOST)]),
    "copy_out": dict.fromkeys(OVER, [("phase", LOST)]),
    "multiply": dict.fromkeys([*OVER, "copy", "async_write"], [("time", LOST)]),
    "matrix_read": dict.fromkeys([*OVER, "copy", "async_write"], [("queue", LOST)]),
    "async_write": dict.fromkeys(["read", *SOURCES], [("phase", EARLY)])
    | dict.fromkeys([*OVER, "async_write"], [("phase", LOST)]),
    "copy": {"read": [("copies", EARLY)], "copy": [("copies", LOST)]}
    | dict.fromkeys(WRITES, [("copies", LOST)])
    | dict.fromkeys(ARRIVALS, [("copies", LOST), ("fenced", FENCE)])
    | dict.fromkeys(SOURCES, [("copies", EARLY), ("fenced", FENCE)]),
}  # fmt: skip
NEEDED["pieces"] = NEEDED["write"]
KINDS = list(NEEDED)
#: Second accesses that meet the first one, and those beside it.
MEETING = [(FIRST, 32), (FIRST - 16, 32), (FIRST + 16, 48), (FIRST + 16, 16)]
BESIDE = [(FIRST - 32, 32), (FIRST + NBYTES, 16)]
#: The same of words, which only these access.
OF_WORDS = ("read", "write", "async_write")
WORDS_MEETING = [(FIRST - 4, 8), (FIRST + 4, 4), (FIRST + NBYTES - 4, 8)]
WORDS_BESIDE = [(FIRST - 4, 4), (FIRST + NBYTES, 4)]
#: What a message names if this is not known.
NAMED = dict.fromkeys(["time", "fence", "stores", "copies", "fenced"], "thread 0")
NAMED |= {"phase": "It completes on bar", "queue": f"that {NUMBER} may"}
OF_LOADS = "It completes phase 2 (parity 0) of bar"


def named(first, what, span):
    """Return what a message says: the bytes in question, and the first access or its end."""
    start, stop = max(span[0], FIRST), min(sum(span), FIRST + NBYTES)
    granules = start // 16 * 16, -(-stop // 16) * 16 - start // 16 * 16
    places = [span, granules, (start, min(16, stop - start))]  # races are looked for by granule
    texts = [f"owner, bytes {at - BASE} to {at - BASE + size - 1}: " for at, size in places]
    loads = what == "phase" and first in ("load", "async_write")
    return tuple(texts), OF_LOADS if loads else NAMED[what]


def outcome(first, second, span, known, row=1):
    """Return the error of the second access, by the thread of `row`; None for none."""
    place = Place()
    place.access(first, 0, FIRST, NBYTES, second=False)
    for what, number in known.items():
        place.know(row, what, number)
    try:
        place.access(second, row, *span)
    except SimulatorError as error:
        return error
    return None


@pytest.mark.parametrize("first", KINDS)
def test_a_second_access_must_know_of_the_first(first):
    for second in KINDS:
        needed = NEEDED[first].get(second, [])
        known = {what: NUMBER for what, _ in needed}
        words = second in OF_WORDS
        for span in BESIDE + WORDS_BESIDE * words:
            assert outcome(first, second, span, {}) is None, (second, span)
        for span in MEETING + WORDS_MEETING * words:
            assert outcome(first, second, span, known) is None, (second, span)
            for what, error in needed:
                found = outcome(first, second, span, known | {what: NUMBER - 1})
                assert type(found).__name__ == error, (second, span, what)
                where, cause = named(first, what, span)
                assert str(found).startswith(where) and cause in str(found), (second, span)


@pytest.mark.parametrize("first", KINDS)
def test_a_thread_knows_its_own_time_and_nothing_else(first):
    for second in KINDS:
        needed = [(w, error) for w, error in NEEDED[first].get(second, []) if w != "time"]
        known = {what: NUMBER for what, _ in needed}
        assert outcome(first, second, MEETING[0], known, row=0) is None, second
        for what, error in needed:
            found = outcome(first, second, MEETING[0], known | {what: NUMBER - 1}, row=0)
            assert type(found).__name__ == error, (second, what)


@pytest.mark.parametrize(
    ("where", "of_stage"),
    [
        ("x[0] of TilePipeline(2, x)", True), ("y[1, 3] of KvPipeline(4)", True),
        ("x[12] of Pipeline(2", True), ("x of TilePipeline(2, x)", False), ("owner", False),
        ("x[0] of Tile(2, x)", False), ("a x[0] of TilePipeline(2)", False),
    ],
)  # fmt: skip
def test_the_words_of_a_pipeline_are_for_its_stages(where, of_stage):
    said = ". In a pipeline: do so" if of_stage else ""
    assert of_pipeline(f"{where}, bytes 0 to 15", "do so") == said
    assert of_pipeline(where, "") == ""
