"""The rules of races mode: a launch's events, replayed with vector clocks. Pure NumPy.

A warp acts for its lanes. A clock has for each warp of the cluster its epoch, its fenced epoch, the
epochs of its cp.async copies that are known to be complete, and that anybody has fenced then, and
the numbers of its bulk groups and wgmma groups that are known to have read their source; and for each mbarrier the number of its phases that are known
to have completed. A step is ordered before another one if the other's clock has reached it. These
are the rules of `simulator.hazards`, by words of 4 bytes; beyond them, generic accesses of
different warps are checked against each other.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numba_tma.host.debug import Site
from numba_tma.host.races import EVENT, Kind, Race, Step, line_in_words

WORDS = 60_000  #: of a block's shared memory, with what the system takes
MOST = 20  #: races of a cluster that are kept
Clock = NDArray[np.int32]
#: A name by (rank of the block, shared address).
Names = Mapping[tuple[int, int], str]

_EPOCH, _FENCED, _COPIED, _STORED, _READ, _DONE = range(6)  # the columns of a warp, by kind
_VERBS = {
    "reads": "a read",
    "writes": "a write",
    "copies": "a cp.async",
    "stores": "a store from it",
    "products": "a wgmma that reads it",
}


@dataclass
class _Barrier:
    """An mbarrier: its current phase, and the last two that have completed, by parity."""

    rank: int
    address: int
    column: int
    count: int
    by: int  #: the warp that initialised it, and its epoch then
    epoch: int
    pending: int = 0
    tx: int = 0
    phase: int = 0
    counted: bool = True
    clock: Clock | None = None
    done: dict[int, tuple[int, Clock]] = field(default_factory=dict)
    arrived: dict[int, int] = field(default_factory=dict)
    load: tuple[int, _Step] | None = None  #: phase and issuer of the last load

    def settle(self, force: bool = False) -> None:
        """Complete the phase, if it has all arrivals and bytes."""
        if self.pending <= 0 and (force or not self.counted or self.tx == 0):
            assert self.clock is not None
            self.done[self.phase & 1] = self.phase, self.clock
            self.clock, self.phase = None, self.phase + 1
            self.pending, self.tx = self.count, 0


@dataclass
class _Meeting:
    """A named barrier, or the cluster's."""

    turn: int = 0
    clock: Clock | None = None
    arrived: set[int] = field(default_factory=set)
    done: dict[int, Clock] = field(default_factory=dict)
    turn_of: dict[int, int] = field(default_factory=dict)


class _Memory:
    """The access records of a block's shared memory, by word and warp."""

    def __init__(self, warps: int) -> None:
        shape = (WORDS, warps)
        self.reads, self.writes, self.copies = (np.zeros(shape, np.int32) for _ in range(3))
        self.stores, self.products = (np.zeros(shape, np.int32) for _ in range(2))
        self.written = np.zeros(WORDS, np.bool_)
        self.column = np.zeros(WORDS, np.int32)
        self.phase = np.zeros(WORDS, np.int32)


class Replay:
    """The events of one cluster, in their order. `races` has what they show."""

    def __init__(
        self,
        blocks: int,
        warps: int,
        sites: Sequence[Site],
        names: Names,
        extents: Iterable[tuple[int, int, int]] = (),
    ) -> None:
        self.blocks, self.warps, self.sites, self.names = blocks, warps, sites, names
        self.actors = blocks * warps
        self.races: list[Race] = []
        self._first = 6 * self.actors
        self._columns = self._first + 1
        self._table = np.zeros((self.actors, self._first + 64), np.int32)
        self._table[np.arange(self.actors), np.arange(self.actors)] = 1
        self._memory = [_Memory(warps) for _ in range(blocks)]
        self._barriers: dict[tuple[int, int], _Barrier] = {}
        self._meetings: dict[tuple[int, int], _Meeting] = defaultdict(_Meeting)
        self._groups = np.zeros((2, self.actors), np.int32)  # closed bulk and wgmma groups
        self._sources: list[dict[int, tuple[int, _Step]]] = [{}, {}]
        self._copy_groups: list[list[int]] = [[] for _ in range(self.actors)]
        self._copies: dict[int, tuple[int, _Step]] = {}
        self._remote: dict[tuple[int, int], tuple[int, _Step]] = {}
        self._extents = list(extents)
        self._lines: dict[tuple[str, int, int], int] = {}
        self._loads: dict[tuple[int, int], _Step] = {}
        self._line = [0] * self.actors
        self._role = [""] * self.actors
        self._grid: dict[int, tuple[int, int, int]] = {}
        self._seen: set[tuple[str, str, str, str]] = set()
        self._names = sorted(names)

    # ----------------------------------------------------------------------- the events

    def run(self, events: Iterable[Any], block_of: Any) -> None:
        """Replay events; `block_of` finds a block's index from its linear one."""
        # Lines are kept below, and labels were read before.
        told = {Kind.LINE, Kind.LABEL}
        steps = {int(k): getattr(self, f"_{k.name.lower()}") for k in Kind if k not in told}
        for event in events:
            kind, warp, blocks, at, slot, address, size, other, line, block, _, mask = event.item()
            rank = slot % blocks
            actor = rank * self.warps + warp
            if rank not in self._grid:
                self._grid[rank] = block_of(block)
            if line:
                self._line[actor] = line
            if kind in steps:
                steps[kind](actor, rank, at, address & 0xFFFFFF, size, other, mask)
            if len(self.races) >= MOST:
                return

    def finish(self) -> None:
        """Report copies that nobody has waited for at the kernel's end."""
        known = self._table.max(axis=0)
        for barrier in self._barriers.values():
            if barrier.load is not None and barrier.load[0] + 1 > known[barrier.column]:
                rule = "the kernel ended before any thread had waited for that phase"
                self._report("UnfinishedCopy", self._barrier_name(barrier), barrier.load[1], rule)
        for actor, (group, step) in self._sources[0].items():
            if group > self._of(actor, _STORED)[actor]:
                rule = "the kernel ended before its warp had waited for its bulk group"
                self._report("UnfinishedCopy", step.where, step, rule)
        for actor, (epoch, step) in self._copies.items():
            if epoch > known[_DONE * self.actors + actor]:
                rule = "the kernel ended before any thread had waited for it"
                self._report("UnfinishedCopy", "a stage", step, rule)
        for (rank, actor), (epoch, step) in self._remote.items():
            own = self._table[rank * self.warps : (rank + 1) * self.warps, actor]
            if epoch > own.max():
                rule = (
                    "that block may have ended before: it waits for its peers first, by close() "
                    "or cluster_sync()"
                )
                self._report("MissingClusterSync", f"rank {rank} of the cluster", step, rule)

    def _site(
        self, actor: int, rank: int, at: int, address: int, size: int, other: int, mask: int
    ) -> None:
        if 0 < other <= len(self.sites):
            self._role[actor] = self.sites[other - 1].role or self._role[actor]

    # ------------------------------------------------------------------------- accesses

    def _read(
        self, actor: int, rank: int, at: int, address: int, size: int, other: int, mask: int
    ) -> None:
        part, memory = _words(address, size), self._memory[rank]
        step = self._step("a read", actor)
        self._check_fill("EarlyRead", rank, part, step)
        self._check_warps("EarlyRead", "writes", _EPOCH, rank, part, step)
        self._check_warps("EarlyRead", "copies", _DONE, rank, part, step)
        self._check_written(rank, part, step)
        memory.reads[part, actor % self.warps] = self._epoch(actor)
        self._lines["reads", actor, part.start] = self._line[actor]

    def _write(
        self, actor: int, rank: int, at: int, address: int, size: int, other: int, mask: int
    ) -> None:
        self._change("writes", actor, rank, address, size)

    def _copy(
        self, actor: int, rank: int, at: int, address: int, size: int, other: int, mask: int
    ) -> None:
        self._change("copies", actor, rank, address, size)

    def _change(self, into: str, actor: int, rank: int, address: int, size: int) -> None:
        part, memory = _words(address, size), self._memory[rank]
        step = self._step(_VERBS[into], actor)
        self._check_fill("EarlyOverwrite", rank, part, step)
        self._check_accesses(rank, part, step)
        memory.written[part] = True
        getattr(memory, into)[part, actor % self.warps] = self._epoch(actor)
        self._lines[into, actor, part.start] = self._line[actor]
        if into == "copies":
            self._copies[actor] = self._epoch(actor), step

    def _load(
        self, actor: int, rank: int, at: int, address: int, size: int, other: int, mask: int
    ) -> None:
        step, part = self._step("a load", actor), _words(address, size)
        ranks = [r for r in range(self.blocks) if mask >> r & 1] if mask else [rank]
        for into in ranks:
            barrier = self._barrier(actor, into if mask else at, other & 0xFFFFFF)
            self._check_fill("EarlyOverwrite", into, part, step)
            self._check_accesses(into, part, step)
            self._check_warps("MissingFence", "writes", _FENCED, into, part, step)
            self._check_warps("MissingFence", "copies", _COPIED, into, part, step)
            self._memory[into].written[part] = True
            if barrier is None:
                continue
            memory = self._memory[into]
            memory.column[part], memory.phase[part] = barrier.column, barrier.phase + 1
            barrier.load = barrier.phase, step
            self._loads[barrier.column, barrier.phase] = step
            self._bytes(barrier, -size)

    def _source(
        self, actor: int, rank: int, at: int, address: int, size: int, other: int, mask: int
    ) -> None:
        self._read_by_engine(0, "stores", actor, rank, address, size)

    def _product(
        self, actor: int, rank: int, at: int, address: int, size: int, other: int, mask: int
    ) -> None:
        self._read_by_engine(1, "products", actor, rank, address, size)

    def _read_by_engine(
        self, queue: int, into: str, actor: int, rank: int, address: int, size: int
    ) -> None:
        part, memory = _words(address, size), self._memory[rank]
        step = self._step(_VERBS[into], actor, self._where(rank, address))
        self._check_fill("EarlyRead", rank, part, step)
        self._check_warps("EarlyRead", "copies", _DONE, rank, part, step)
        self._check_warps("MissingFence", "writes", _EPOCH, rank, part, step)
        self._check_warps("MissingFence", "writes", _FENCED, rank, part, step)
        self._check_warps("MissingFence", "copies", _COPIED, rank, part, step)
        if queue:
            self._check_written(rank, part, step)
        group = int(self._groups[queue, actor]) + 1
        getattr(memory, into)[part, actor % self.warps] = group
        self._sources[queue][actor] = group, step
        self._lines[into, actor, part.start] = self._line[actor]

    def _copy_commit(self, actor: int, *_: int) -> None:
        self._copy_groups[actor].append(self._epoch(actor))
        self._table[actor, actor] += 1

    def _copy_drained(
        self, actor: int, rank: int, at: int, address: int, size: int, other: int, mask: int
    ) -> None:
        groups, done = self._copy_groups[actor], self._of(actor, _DONE)
        if other or len(groups) > size:
            epoch = self._epoch(actor) if other else groups[-1 - size]
            done[actor] = max(int(done[actor]), epoch)
            self._table[actor, actor] += 1

    def _untracked(self, *_: int) -> None:
        self._extents.clear()  # what was written is not known

    def _commit(self, actor: int, *_: int) -> None:
        self._groups[0, actor] += 1

    def _product_commit(self, actor: int, *_: int) -> None:
        self._groups[1, actor] += 1

    def _drained(self, actor: int, rank: int, at: int, address: int, size: int, *_: int) -> None:
        own = self._of(actor, _STORED)
        own[actor] = max(int(own[actor]), int(self._groups[0, actor]) - size)

    def _product_drained(
        self, actor: int, rank: int, at: int, address: int, size: int, *_: int
    ) -> None:
        own = self._of(actor, _READ)
        own[actor] = max(int(own[actor]), int(self._groups[1, actor]) - size)

    # ---------------------------------------------------------- fences, barriers, meetings

    def _fence(self, actor: int, *_: int) -> None:
        self._of(actor, _FENCED)[actor] = self._epoch(actor)
        copied = self._of(actor, _COPIED)
        np.maximum(copied, self._of(actor, _DONE), out=copied)
        self._table[actor, actor] += 1

    def _init(
        self, actor: int, rank: int, at: int, address: int, size: int, other: int, mask: int
    ) -> None:
        self._barriers[rank, address] = _Barrier(
            rank, address, self._column(), size, actor, self._epoch(actor), pending=size
        )

    def _inval(
        self, actor: int, rank: int, at: int, address: int, size: int, other: int, mask: int
    ) -> None:
        self._barriers.pop((at, address), None)

    def _arrive_copied(
        self, actor: int, rank: int, at: int, address: int, size: int, other: int, mask: int
    ) -> None:
        self._arrive(actor, rank, at, address, size, other, mask, copied=True)

    def _arrive(
        self,
        actor: int,
        rank: int,
        at: int,
        address: int,
        size: int,
        other: int,
        mask: int,
        *,
        copied: bool = False,
    ) -> None:
        barrier = self._barrier(actor, at, address)
        if barrier is None:
            return
        barrier.settle(force=barrier.pending <= 0 and barrier.clock is not None)
        if at != rank:
            step = self._step("a remote arrival", actor)
            self._remote[at, actor] = self._epoch(actor), step
        barrier.clock = _joined(barrier.clock, self._publish(actor, copied))
        barrier.arrived[actor] = barrier.phase
        barrier.pending -= size
        barrier.count -= size if mask else 0
        self._bytes(barrier, _signed(other))

    def _expect(
        self, actor: int, rank: int, at: int, address: int, size: int, other: int, mask: int
    ) -> None:
        if (barrier := self._barrier(actor, at, address)) is not None:
            barrier.tx += _signed(other)

    def _complete(
        self, actor: int, rank: int, at: int, address: int, size: int, other: int, mask: int
    ) -> None:
        if (barrier := self._barrier(actor, at, address)) is not None:
            self._bytes(barrier, -_signed(other))

    def _uncounted(
        self, actor: int, rank: int, at: int, address: int, size: int, other: int, mask: int
    ) -> None:
        self._extents.clear()  # what was written is not known
        if (barrier := self._barrier(actor, at, address)) is not None:
            barrier.counted = False

    def _bytes(self, barrier: _Barrier, nbytes: int) -> None:
        barrier.tx += nbytes
        if barrier.clock is not None:
            barrier.settle()

    def _waited(
        self, actor: int, rank: int, at: int, address: int, size: int, other: int, mask: int
    ) -> None:
        barrier = self._barrier(actor, at, address)
        if barrier is not None and size & 1 in barrier.done:
            self._learn_phase(actor, barrier, size & 1)

    def _waited_own(
        self, actor: int, rank: int, at: int, address: int, size: int, other: int, mask: int
    ) -> None:
        barrier = self._barrier(actor, at, address)
        if barrier is None:
            return
        phase = barrier.arrived.get(actor, -1)
        if phase == barrier.phase and barrier.clock is not None:
            self._learn(actor, barrier.clock)  # threads that have exited do not arrive
        elif phase & 1 in barrier.done:
            self._learn_phase(actor, barrier, phase & 1)

    def _learn_phase(self, actor: int, barrier: _Barrier, parity: int) -> None:
        phase, clock = barrier.done[parity]
        self._learn(actor, clock)
        known = self._table[actor]
        known[barrier.column] = max(int(known[barrier.column]), phase + 1)

    def _meet(
        self, actor: int, rank: int, at: int, address: int, size: int, other: int, mask: int
    ) -> None:
        self._come(rank, address, actor, size // 32 or self.warps)

    def _met(self, actor: int, rank: int, at: int, address: int, *_: int) -> None:
        self._go(rank, address, actor)

    def _cluster_arrive(self, actor: int, *_: int) -> None:
        self._come(-1, 0, actor, self.actors)

    def _cluster_waited(self, actor: int, *_: int) -> None:
        self._go(-1, 0, actor)

    def _come(self, rank: int, number: int, actor: int, needed: int) -> None:
        meeting = self._meetings[rank, number]
        meeting.clock = _joined(meeting.clock, self._publish(actor))
        meeting.arrived.add(actor)
        meeting.turn_of[actor] = meeting.turn
        if len(meeting.arrived) >= needed:
            meeting.done[meeting.turn] = meeting.clock
            meeting.done.pop(meeting.turn - 4, None)
            meeting.turn, meeting.clock, meeting.arrived = meeting.turn + 1, None, set()

    def _go(self, rank: int, number: int, actor: int) -> None:
        meeting = self._meetings[rank, number]
        turn = meeting.turn_of.get(actor, -1)
        # A turn that ended without some warps did so because these have exited.
        clock = meeting.done.get(turn, meeting.clock)
        if clock is not None:
            self._learn(actor, clock)

    # --------------------------------------------------------------------------- clocks

    def _epoch(self, actor: int) -> int:
        return int(self._table[actor, actor])

    def _of(self, actor: int, kind: int) -> Clock:
        """Return what a warp knows of all warps, of one kind: a view."""
        return self._table[actor, kind * self.actors : (kind + 1) * self.actors]

    def _publish(self, actor: int, copied: bool = False) -> Clock:
        """Return a copy of a warp's clock, and begin a new epoch of the warp."""
        snapshot: Clock = self._table[actor].copy()
        if copied:  # known to those who wait for it
            snapshot[_DONE * self.actors + actor] = self._epoch(actor)
        self._table[actor, actor] += 1
        return snapshot

    def _learn(self, actor: int, clock: Clock) -> None:
        known = self._table[actor, : len(clock)]
        np.maximum(known, clock, out=known)

    def _column(self) -> int:
        if self._columns == self._table.shape[1]:
            self._table = np.pad(self._table, ((0, 0), (0, self._columns)))
        self._columns += 1
        return self._columns - 1

    # --------------------------------------------------------------------------- checks

    def _barrier(self, actor: int, rank: int, address: int) -> _Barrier | None:
        """Return the barrier that a warp uses; report one that is not known to be initialised."""
        barrier = self._barriers.get((rank, address))
        if barrier is None or self._table[actor, barrier.by] < barrier.epoch:
            name = self.names.get((rank, address), f"the mbarrier at {address:#x}")
            other = self._step("mbarrier.init", barrier.by) if barrier else None
            rule = (
                "nothing orders the initialisation before the use: fence_mbarrier_init(), then a "
                "sync of the block or the cluster, stand between them"
            )
            self._report("BarrierMisuse", name, self._step("a use", actor), rule, other)
        return barrier

    def _check_fill(self, kind: str, rank: int, part: slice, step: _Step) -> None:
        memory = self._memory[rank]
        late = memory.phase[part] > self._table[step.actor, memory.column[part]]
        if not late.any():
            return
        word = part.start + int(np.argmax(late))
        column, phase = int(memory.column[word]), int(memory.phase[word]) - 1
        barrier = next(b for b in self._barriers.values() if b.column == column)
        rule = (
            f"the load completes phase {phase} (parity {phase & 1}) of "
            f"{self._barrier_name(barrier)}, and no wait for it comes before"
        )
        self._report(kind, self._where(rank, 4 * word), step, rule, self._loads[column, phase])

    def _check_warps(
        self, kind: str, records: str, known: int, rank: int, part: slice, step: _Step
    ) -> None:
        """Report an access of another warp, or an unfenced one, that the clock has not reached."""
        first = rank * self.warps
        reached = self._of(step.actor, known)[first : first + self.warps]
        late = getattr(self._memory[rank], records)[part] > reached
        own = step.actor - first
        if known == _EPOCH and 0 <= own < self.warps:
            late[:, own] = False
        if not late.any():
            return
        word, warp = (int(n[0]) for n in np.nonzero(late))
        word += part.start
        if known in (_EPOCH, _DONE) and kind != "MissingFence":
            rule = "nothing orders them: no barrier or sync stands between"
        else:
            rule = "no fence_proxy_async() follows the write before the barrier or sync between"
        other = self._other(records, first + warp, word)
        self._report(kind, self._where(rank, 4 * word), step, rule, other)

    def _check_accesses(self, rank: int, part: slice, step: _Step) -> None:
        """Check what changes bytes against all earlier accesses to them."""
        for records, known in (("reads", _EPOCH), ("writes", _EPOCH), ("copies", _DONE)):
            self._check_warps("EarlyOverwrite", records, known, rank, part, step)
        self._check_sources(rank, part, step)

    def _check_written(self, rank: int, part: slice, step: _Step) -> None:
        """Report a read of a stage's bytes that nothing has written."""
        if self._memory[rank].written[part].any():
            return
        start = 4 * part.start
        if any(rank == r and first <= start < last for r, first, last in self._extents):
            rule = "nothing has written these bytes"
            self._report("UninitializedRead", self._where(rank, start), step, rule)

    def _check_sources(self, rank: int, part: slice, step: _Step) -> None:
        """Report a store or a wgmma that may still be reading."""
        first, memory = rank * self.warps, self._memory[rank]
        for records, kind in (("stores", _STORED), ("products", _READ)):
            reached = self._of(step.actor, kind)[first : first + self.warps]
            late = getattr(memory, records)[part] > reached
            if late.any():
                word, warp = (int(n[0]) for n in np.nonzero(late))
                word += part.start
                rule = "it may still be reading: no wait for its group comes before"
                other = self._other(records, first + warp, word)
                self._report("EarlyOverwrite", self._where(rank, 4 * word), step, rule, other)

    # -------------------------------------------------------------------------- reports

    def _other(self, records: str, actor: int, word: int) -> _Step:
        lines = self._lines
        near = (w for w in range(word, max(word - 4096, -1), -1) if (records, actor, w) in lines)
        step = self._step(_VERBS[records], actor)
        start = next(near, None)
        if start is not None:
            step = _Step(**{**vars(step), "line": lines[records, actor, start]})
        return step

    def _step(self, what: str, actor: int, where: str = "") -> _Step:
        return _Step(what, actor, self._line[actor], self._role[actor], where)

    def _report(
        self, kind: str, where: str, step: _Step, rule: str, other: _Step | None = None
    ) -> None:
        sides = self._side(step), self._side(other) if other else None
        key = (kind, where.partition("[")[0], sides[0].line, sides[1].line if sides[1] else "")
        if key not in self._seen:
            self._seen.add(key)
            self.races.append(Race(kind, where, *sides, rule))

    def _side(self, step: _Step) -> Step:
        rank, warp = divmod(step.actor, self.warps)
        block = self._grid.get(rank, (0, 0, 0))
        return Step(step.what, step.role, warp, block, line_in_words(step.line))

    def _where(self, rank: int, address: int) -> str:
        """Return the tile that holds an address."""
        i = bisect.bisect_right(self._names, (rank, address)) - 1
        if i >= 0 and self._names[i][0] == rank:
            return self.names[self._names[i]]
        return f"shared address {address:#x}"

    def _barrier_name(self, barrier: _Barrier) -> str:
        default = f"the mbarrier at {barrier.address:#x}"
        return self.names.get((barrier.rank, barrier.address), default)


@dataclass(frozen=True)
class _Step:
    """A step that may become one side of a race."""

    what: str
    actor: int
    line: int
    role: str
    where: str


def _words(address: int, size: int) -> slice:
    return slice(address // 4, min(WORDS, -(-(address + size) // 4)))


def _joined(one: Clock | None, other: Clock) -> Clock:
    if one is None:
        return other
    long, short = (one, other) if len(one) >= len(other) else (other, one)
    result = long.copy()
    np.maximum(result[: len(short)], short, out=result[: len(short)])
    return result


def _signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


def races_of(
    events: NDArray[Any],
    grid: Sequence[int],
    sites: Sequence[Site],
    names_of: Any,
    *,
    ended: bool,
) -> list[Race]:
    """Return the races in a launch's events. `ended`: no warp was stuck and no event is missing.

    `names_of` returns what a label event gives: the names as (address, text) pairs, and the bytes
    from the first address that are the pipeline's stages.
    """
    assert events.dtype == EVENT

    def block_of(linear: int) -> tuple[int, int, int]:
        x, y = grid[0], grid[1]
        return linear % x, linear // x % y, linear // (x * y)

    races: list[Race] = []
    clusters = events["slot"] // np.maximum(events["blocks"], 1)
    order = np.argsort(clusters, kind="stable")
    bounds = np.flatnonzero(np.diff(clusters[order])) + 1
    for part in np.split(order, bounds) if len(order) else ():
        own = events[part]
        blocks, warps = int(own["blocks"][0]), int(own["warps"].max())
        names: dict[tuple[int, int], str] = {}
        extents: list[tuple[int, int, int]] = []
        for label in own[own["kind"] == Kind.LABEL]:
            rank = int(label["slot"]) % blocks
            base = int(label["address"])
            places, nbytes = names_of(int(label["other"]), base, int(label["size"]))
            names |= {(rank, address): text for address, text in places}
            extents.append((rank, base, base + nbytes))
        replay = Replay(blocks, warps, sites, names, extents)
        replay.run(own, block_of)
        if ended and not replay.races:
            replay.finish()
        races += replay.races
        if len(races) >= MOST:
            break
    return races
