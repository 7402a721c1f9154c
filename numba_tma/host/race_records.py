"""The records of a replay: what is kept of a launch's accesses, barriers and meetings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

WORDS = 60_000  #: of a block's shared memory, with what the system takes
MOST = 20  #: races of a cluster that are kept
Clock = NDArray[np.int32]
#: A name by (rank of the block, shared address).
Names = Mapping[tuple[int, int], str]

EPOCH, FENCED, COPIED, STORED, READ, DONE = range(6)  # the columns of a warp, by kind
CHANGES = "writes", "atomics"  #: what threads do to bytes themselves
VERBS = {
    "reads": "a read",
    "writes": "a write",
    "atomics": "an atomic",
    "copies": "a cp.async",
    "stores": "a store from it",
    "products": "a wgmma that reads it",
}


@dataclass
class LoggedBarrier:
    """An mbarrier: its current phase, and the last two that have completed, by parity."""

    rank: int
    address: int
    column: int
    count: int
    by: Side  #: the initialisation, and its warp's epoch then
    epoch: int
    pending: int
    tx: int = 0
    phase: int = 0
    counted: bool = True
    clock: Clock | None = None
    done: dict[int, tuple[int, Clock]] = field(default_factory=dict)
    arrived: dict[int, int] = field(default_factory=dict)
    load: tuple[int, Side] | None = None  #: phase and issuer of the last load

    def settle(self) -> None:
        """Complete the phase, if it has all arrivals and bytes."""
        if self.pending <= 0 and (not self.counted or self.tx == 0):
            self.complete()

    def complete(self) -> None:
        """Complete the phase, if there were arrivals in it."""
        if self.clock is not None:
            self.done[self.phase & 1] = self.phase, self.clock
            self.clock, self.phase = None, self.phase + 1
            self.pending, self.tx = self.count, 0


@dataclass
class Meeting:
    """A named barrier, or the cluster's. The lanes of a warp may arrive one after the other."""

    turn: int = 0
    clock: Clock | None = None
    arrived: dict[int, int] = field(default_factory=dict)  #: the lanes of each warp
    done: dict[int, Clock] = field(default_factory=dict)
    turn_of: dict[int, int] = field(default_factory=dict)

    def end(self) -> None:
        """Begin the next turn."""
        assert self.clock is not None
        self.done[self.turn] = self.clock
        self.done.pop(self.turn - 4, None)
        self.turn, self.clock, self.arrived = self.turn + 1, None, {}


class Memory:
    """The access records of a block's shared memory, by word and warp."""

    def __init__(self, warps: int) -> None:
        shape = (WORDS, warps)
        self.reads, self.writes, self.atomics = (np.zeros(shape, np.int32) for _ in range(3))
        self.copies, self.stores, self.products = (np.zeros(shape, np.int32) for _ in range(3))
        self.kinds: set[str] = set()  #: of the records above, those that are not all 0
        self.written = np.zeros(WORDS, np.bool_)
        self.column = np.zeros(WORDS, np.int32)
        self.phase = np.zeros(WORDS, np.int32)


class LogEvent(NamedTuple):
    """An event of the log, by a warp of a block of the cluster."""

    actor: int  #: the warp, among those of the cluster
    rank: int  #: of its block
    at: int  #: rank of the block that holds the barrier
    address: int
    size: int
    other: int
    mask: int


@dataclass(frozen=True)
class Side:
    """A step that may become one side of a race."""

    what: str
    actor: int
    line: int
    role: str
    where: str


def words(address: int, size: int) -> slice:
    """Return the words that bytes lie in."""
    return slice(address // 4, min(WORDS, -(-(address + size) // 4)))


def joined(one: Clock | None, later: Clock) -> Clock:
    """Return the maximum of both; a clock that was copied later has more columns, or as many."""
    if one is None:
        return later
    result = later.copy()
    np.maximum(result[: len(one)], one, out=result[: len(one)])
    return result


def signed(word: int) -> int:
    """Return a word as a number with a sign."""
    return word - (1 << 32) if word >> 31 else word
