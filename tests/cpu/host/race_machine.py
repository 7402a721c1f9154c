"""A model of a GPU that logs: parts of warps run in any order, and so do steps and their effects.

A part of a warp is a generator, which is resumed at random. It takes a slot of the log in one
step and has its effect in another one, as a kernel in races mode does; copies land at any time.
What orders steps here is what orders them on the hardware: mbarriers and barriers.
"""

import random
from dataclasses import dataclass, field

import numpy as np

from numba_tma.host.race_judgement import races_of
from numba_tma.host.races import EVENT, Kind


@dataclass
class Lanes:
    """The lanes of a warp that run together."""

    warp: int
    lanes: int = 0xFFFFFFFF
    rank: int = 0

    @property
    def threads(self):
        bits = range(32)
        return {(self.rank, self.warp, b) for b in bits if self.lanes >> b & 1}


@dataclass
class Phases:
    count: int
    pending: int
    tx: int = 0
    phase: int = 0

    def settle(self):
        if self.pending <= 0 and self.tx == 0:
            self.phase, self.pending = self.phase + 1, self.count


@dataclass
class Turn:
    number: int = 0
    arrived: set = field(default_factory=set)


class Machine:
    """A cluster of blocks of some warps: `run` it once, then ask for its `races`."""

    def __init__(self, seed, warps, blocks=1):
        self.random = random.Random(seed)
        self.warps, self.blocks = warps, blocks
        self.events, self.live = [], set()
        self.barriers, self.turns = {}, {}
        self.running = []

    def start(self, who, steps):
        self.live |= who.threads
        self.running.append([self._to_its_end(who, steps), None])

    def _to_its_end(self, who, steps):
        yield from steps
        self.live -= who.threads
        for key, turn in self.turns.items():
            self._turn(key, turn, 0)

    def run(self):
        """Resume parts of warps at random, in bursts, until none can go on."""
        while ready := [p for p in self.running if p[1] is None or p[1]()]:
            part = self.random.choice(ready)
            for _ in range(self.random.choice((1, 1, 4, 16))):
                try:
                    part[1] = next(part[0])
                except StopIteration:
                    self.running.remove(part)
                    break
                if part[1] is not None and not part[1]():
                    break
        return not self.running

    def races(self, ended=True):
        return races_of(
            np.array(self.events, EVENT), (64, 1, 1), [], lambda *_: ([], 0), ended=ended
        )

    # ------------------------------------------------------------------- steps of a part

    def note(self, who, kind, address=0, size=0, other=0, at=None, mask=0):
        yield
        at = who.rank if at is None else at
        head = (int(kind), who.warp, self.blocks, at, who.rank)
        tail = (address, size, other, 0, who.rank, self.warps, mask)
        self.events.append((*head, *tail))
        yield

    def init(self, who, address, count):
        yield from self.note(who, Kind.INIT, address, count)
        self.barriers[who.rank, address] = Phases(count, count)

    def arrive(self, who, address, nbytes=0, at=None, each=True, kind=Kind.ARRIVE):
        """Arrive once, or by `each` lane, which logs its own arrival."""
        at = who.rank if at is None else at
        count = who.lanes.bit_count() if each else 1
        for _ in range(count):
            yield from self.note(who, kind, address, 1, nbytes, at)
        barrier = self._barrier(at, address)
        barrier.pending, barrier.tx = barrier.pending - count, barrier.tx + nbytes * count
        barrier.settle()

    def passed(self, who, address, parity):
        return self._barrier(who.rank, address).phase & 1 != parity

    def wait(self, who, address, parity):
        yield lambda: self.passed(who, address, parity)
        yield from self.note(who, Kind.WAITED, address, parity)

    def load(self, who, into, nbytes, address, mask=0):
        yield from self.note(who, Kind.LOAD, into, nbytes, address, who.rank, mask)
        for rank in range(self.blocks):
            if mask >> rank & 1 or (not mask and rank == who.rank):
                self.running.append([self._land(rank, address, nbytes), None])

    def _land(self, rank, address, nbytes):
        yield
        barrier = self._barrier(rank, address)
        barrier.tx -= nbytes
        barrier.settle()

    def sync(self, who, number=0, threads=0):
        yield from self.note(who, Kind.MEET, number, threads, who.lanes)
        yield from self._meet((who.rank, number), who, threads)
        yield from self.note(who, Kind.MET, number)

    def cluster_sync(self, who):
        yield from self.note(who, Kind.CLUSTER_ARRIVE, other=who.lanes)
        yield from self._meet((-1, 0), who, 0)
        yield from self.note(who, Kind.CLUSTER_WAITED)

    def converge(self, who):
        """Let all live lanes of the warp meet, unlogged: bar.warp.sync."""
        yield from self._meet((who.rank, ("warp", who.warp)), who, 0)

    def _meet(self, key, who, threads):
        turn = self.turns.setdefault(key, Turn())
        own = turn.number
        turn.arrived |= who.threads
        self._turn(key, turn, threads)
        yield lambda: turn.number > own

    def _turn(self, key, turn, threads):
        rank, number = key
        wanted = {t for t in self.live if rank in (-1, t[0])}
        if isinstance(number, tuple):
            wanted = {t for t in wanted if t[1] == number[1]}
        if turn.arrived and (len(turn.arrived) >= threads if threads else turn.arrived >= wanted):
            turn.number, turn.arrived = turn.number + 1, set()

    def _barrier(self, rank, address):
        return self.barriers.setdefault((rank, address), Phases(1, 1))
