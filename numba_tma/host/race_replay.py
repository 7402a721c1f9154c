"""The rules of races mode: a launch's events, replayed with vector clocks. Pure NumPy.

A warp acts for its lanes. A clock has for each warp of the cluster its epoch, its fenced epoch, the
epochs of its cp.async copies that are known to be complete, and that anybody has fenced then, and
the numbers of its bulk groups and wgmma groups that are known to have read their source; and for
each mbarrier the number of its phases that are known to have completed. A step is ordered before
another one if the other's clock has reached it. These are the rules of `simulator.hazards`, by
words of 4 bytes; beyond them, generic accesses of different warps are checked against each other.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from numba_tma.host.debug import Site
from numba_tma.host.race_records import (
    CHANGES,
    COPIED,
    DONE,
    EPOCH,
    FENCED,
    MOST,
    READ,
    STORED,
    VERBS,
    Clock,
    LogEvent,
    LoggedBarrier,
    Meeting,
    Memory,
    Names,
    Side,
    joined,
    signed,
    words,
)
from numba_tma.host.races import Kind, Race, RaceSide, line_in_words


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
        self._columns = 6 * self.actors
        self._table = np.zeros((self.actors, self._columns + 64), np.int32)
        self._table[np.arange(self.actors), np.arange(self.actors)] = 1
        self._memory = [Memory(warps) for _ in range(blocks)]
        self._barriers: dict[tuple[int, int], LoggedBarrier] = {}
        self._barrier_of: dict[int, LoggedBarrier] = {}  # by column, with those that are gone
        self._meetings: dict[tuple[int, int], Meeting] = defaultdict(Meeting)
        self._groups = np.zeros((2, self.actors), np.int32)  # closed bulk and wgmma groups
        self._sources: list[dict[int, tuple[int, Side]]] = [{}, {}]
        self._copy_groups: list[list[int]] = [[] for _ in range(self.actors)]
        self._copies: dict[int, tuple[int, Side]] = {}
        self._remote: dict[tuple[int, int], tuple[int, Side]] = {}
        self._extents = list(extents)
        self._lines: dict[tuple[str, int, int], int] = {}
        self._loads: dict[tuple[int, int], Side] = {}
        self._line = [0] * self.actors
        self._role = [""] * self.actors
        self._grid: dict[int, tuple[int, int, int]] = {}
        self._seen: set[tuple[str, str, str, str]] = set()
        self._names = sorted(names)
        self._number = 0

    # ----------------------------------------------------------------------- the events

    def run(
        self,
        events: Iterable[Any],
        numbers: Iterable[int],
        block_of: Callable[[int], tuple[int, int, int]],
    ) -> None:
        """Replay numbered events; `block_of` finds a block's index from its linear one."""
        # Lines are kept below, and labels were read before.
        told = {Kind.LINE, Kind.LABEL}
        steps = {int(k): getattr(self, f"_{k.name.lower()}") for k in Kind if k not in told}
        for self._number, event in zip(numbers, events):
            kind, warp, blocks, at, slot, address, size, other, line, block, _, mask = event.item()
            rank = slot % blocks
            actor = rank * self.warps + warp
            if rank not in self._grid:
                self._grid[rank] = block_of(block)
            if line:
                self._line[actor] = line
            if kind in steps:
                steps[kind](LogEvent(actor, rank, at, address & 0xFFFFFF, size, other, mask))
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
            if group > self._of(actor, STORED)[actor]:
                rule = "the kernel ended before its warp had waited for its bulk group"
                self._report("UnfinishedCopy", step.where, step, rule)
        for actor, (epoch, step) in self._copies.items():
            if epoch > known[DONE * self.actors + actor]:
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

    def _site(self, e: LogEvent) -> None:
        if 0 < e.other <= len(self.sites):
            self._role[e.actor] = self.sites[e.other - 1].role or self._role[e.actor]

    # ------------------------------------------------------------------------- accesses

    def _read(self, e: LogEvent) -> None:
        part, memory = words(e.address, e.size), self._memory[e.rank]
        step = self._step("a read", e.actor)
        self._check_fill("EarlyRead", e.rank, part, step)
        for records in CHANGES:
            self._check_warps("EarlyRead", records, EPOCH, e.rank, part, step)
        self._check_warps("EarlyRead", "copies", DONE, e.rank, part, step)
        self._check_written(e.rank, part, step)
        memory.kinds.add("reads")
        memory.reads[part, e.actor % self.warps] = self._epoch(e.actor)
        self._lines["reads", e.actor, part.start] = self._line[e.actor]

    def _write(self, e: LogEvent) -> None:
        self._change("writes", e, partial=bool(e.other))

    def _atomic(self, e: LogEvent) -> None:
        self._change("atomics", e)

    def _copy(self, e: LogEvent) -> None:
        self._change("copies", e)

    def _change(self, into: str, e: LogEvent, *, partial: bool = False) -> None:
        """Record a write by threads; of a part of the bytes, others may write the rest."""
        part, memory = words(e.address, e.size), self._memory[e.rank]
        step = self._step(VERBS[into], e.actor)
        self._check_fill("EarlyOverwrite", e.rank, part, step)
        self._check_accesses(e.rank, part, step, but=into if partial or into == "atomics" else "")
        memory.written[part] = True
        memory.kinds.add(into)
        getattr(memory, into)[part, e.actor % self.warps] = self._epoch(e.actor)
        self._lines[into, e.actor, part.start] = self._line[e.actor]
        if into == "copies":
            self._copies[e.actor] = self._epoch(e.actor), step

    def _load(self, e: LogEvent) -> None:
        step, part = self._step("a load", e.actor), words(e.address, e.size)
        ranks = [r for r in range(self.blocks) if e.mask >> r & 1] if e.mask else [e.rank]
        for into in ranks:
            barrier = self._barrier(e.actor, into if e.mask else e.at, e.other & 0xFFFFFF)
            self._check_fill("EarlyOverwrite", into, part, step)
            self._check_accesses(into, part, step)
            for records in CHANGES:
                self._check_warps("MissingFence", records, FENCED, into, part, step)
            self._check_warps("MissingFence", "copies", COPIED, into, part, step)
            self._memory[into].written[part] = True
            if barrier is None:
                continue
            memory = self._memory[into]
            memory.column[part], memory.phase[part] = barrier.column, barrier.phase + 1
            barrier.load = barrier.phase, step
            self._loads[barrier.column, barrier.phase] = step
            self._bytes(barrier, -e.size)

    def _source(self, e: LogEvent) -> None:
        self._read_by_engine(0, "stores", e.actor, e.rank, e.address, e.size)

    def _product(self, e: LogEvent) -> None:
        self._read_by_engine(1, "products", e.actor, e.rank, e.address, e.size)

    def _read_by_engine(
        self, queue: int, into: str, actor: int, rank: int, address: int, size: int
    ) -> None:
        part, memory = words(address, size), self._memory[rank]
        step = self._step(VERBS[into], actor, self._where(rank, address))
        self._check_fill("EarlyRead", rank, part, step)
        self._check_warps("EarlyRead", "copies", DONE, rank, part, step)
        for records in CHANGES:
            self._check_warps("MissingFence", records, EPOCH, rank, part, step)
            self._check_warps("MissingFence", records, FENCED, rank, part, step)
        self._check_warps("MissingFence", "copies", COPIED, rank, part, step)
        if queue:
            self._check_written(rank, part, step)
        group = int(self._groups[queue, actor]) + 1
        memory.kinds.add(into)
        getattr(memory, into)[part, actor % self.warps] = group
        self._sources[queue][actor] = group, step
        self._lines[into, actor, part.start] = self._line[actor]

    def _copy_commit(self, e: LogEvent) -> None:
        self._copy_groups[e.actor].append(self._epoch(e.actor))
        self._table[e.actor, e.actor] += 1

    def _copy_drained(self, e: LogEvent) -> None:
        groups, done = self._copy_groups[e.actor], self._of(e.actor, DONE)
        if e.other or len(groups) > e.size:
            epoch = self._epoch(e.actor) if e.other else groups[-1 - e.size]
            done[e.actor] = max(int(done[e.actor]), epoch)
            self._table[e.actor, e.actor] += 1

    def _untracked(self, e: LogEvent) -> None:
        self._extents.clear()  # what was written is not known

    def _commit(self, e: LogEvent) -> None:
        self._groups[0, e.actor] += 1

    def _product_commit(self, e: LogEvent) -> None:
        self._groups[1, e.actor] += 1

    def _drained(self, e: LogEvent) -> None:
        own = self._of(e.actor, STORED)
        own[e.actor] = max(int(own[e.actor]), int(self._groups[0, e.actor]) - e.size)

    def _product_drained(self, e: LogEvent) -> None:
        own = self._of(e.actor, READ)
        own[e.actor] = max(int(own[e.actor]), int(self._groups[1, e.actor]) - e.size)

    # ---------------------------------------------------------- fences, barriers, meetings

    def _fence(self, e: LogEvent) -> None:
        self._of(e.actor, FENCED)[e.actor] = self._epoch(e.actor)
        copied = self._of(e.actor, COPIED)
        np.maximum(copied, self._of(e.actor, DONE), out=copied)
        self._table[e.actor, e.actor] += 1

    def _init(self, e: LogEvent) -> None:
        by, epoch = self._step("mbarrier.init", e.actor), self._epoch(e.actor)
        column = self._column()
        barrier = LoggedBarrier(e.rank, e.address, column, e.size, by, epoch, pending=e.size)
        self._barriers[e.rank, e.address] = self._barrier_of[column] = barrier

    def _inval(self, e: LogEvent) -> None:
        self._barriers.pop((e.at, e.address), None)

    def _arrive_copied(self, e: LogEvent) -> None:
        self._arrive(e, copied=True)

    def _arrive(self, e: LogEvent, *, copied: bool = False) -> None:
        barrier = self._barrier(e.actor, e.at, e.address)
        if barrier is None:
            return
        if barrier.pending <= 0:
            barrier.complete()
        if e.at != e.rank:
            step = self._step("a remote arrival", e.actor)
            self._remote[e.at, e.actor] = self._epoch(e.actor), step
        barrier.clock = joined(barrier.clock, self._publish(e.actor, copied))
        barrier.arrived[e.actor] = barrier.phase
        barrier.pending -= e.size
        barrier.count -= e.size if e.mask else 0
        self._bytes(barrier, signed(e.other))

    def _expect(self, e: LogEvent) -> None:
        if (barrier := self._barrier(e.actor, e.at, e.address)) is not None:
            barrier.tx += signed(e.other)

    def _complete(self, e: LogEvent) -> None:
        if (barrier := self._barrier(e.actor, e.at, e.address)) is not None:
            self._bytes(barrier, -signed(e.other))

    def _uncounted(self, e: LogEvent) -> None:
        self._extents.clear()  # what was written is not known
        if (barrier := self._barrier(e.actor, e.at, e.address)) is not None:
            barrier.counted = False

    def _bytes(self, barrier: LoggedBarrier, nbytes: int) -> None:
        barrier.tx += nbytes
        barrier.settle()

    def _waited(self, e: LogEvent) -> None:
        barrier, parity = self._barrier(e.actor, e.at, e.address), e.size & 1
        if barrier is None:
            return
        if barrier.phase & 1 == parity:  # the wait has passed, so what the log lacks has happened
            barrier.complete()
        if parity in barrier.done:
            self._learn_phase(e.actor, barrier, parity)

    def _waited_own(self, e: LogEvent) -> None:
        barrier = self._barrier(e.actor, e.at, e.address)
        if barrier is None:
            return
        phase = barrier.arrived.get(e.actor, -1)
        if phase == barrier.phase and barrier.clock is not None:
            self._learn(e.actor, barrier.clock)  # threads that have exited do not arrive
        elif phase & 1 in barrier.done:
            self._learn_phase(e.actor, barrier, phase & 1)

    def _learn_phase(self, actor: int, barrier: LoggedBarrier, parity: int) -> None:
        phase, clock = barrier.done[parity]
        self._learn(actor, clock)
        known = self._table[actor]
        known[barrier.column] = max(int(known[barrier.column]), phase + 1)

    def _meet(self, e: LogEvent) -> None:
        self._come(e.rank, e.address, e)

    def _met(self, e: LogEvent) -> None:
        self._go(e.rank, e.address, e.actor)

    def _cluster_arrive(self, e: LogEvent) -> None:
        self._come(-1, 0, e)

    def _cluster_waited(self, e: LogEvent) -> None:
        self._go(-1, 0, e.actor)

    def _come(self, rank: int, number: int, e: LogEvent) -> None:
        """Let lanes of a warp arrive; a turn ends with `size` threads, if that is given.

        Lanes that arrive again have left the turn before, so it has ended. That is the end of a
        turn of all threads, whose number is not known: some may have exited.
        """
        meeting = self._meetings[rank, number]
        if meeting.arrived.get(e.actor, 0) & e.other:
            meeting.end()
        meeting.clock = joined(meeting.clock, self._publish(e.actor))
        meeting.arrived[e.actor] = meeting.arrived.get(e.actor, 0) | e.other
        meeting.turn_of[e.actor] = meeting.turn
        if e.size and sum(lanes.bit_count() for lanes in meeting.arrived.values()) >= e.size:
            meeting.end()

    def _go(self, rank: int, number: int, actor: int) -> None:
        meeting = self._meetings[rank, number]
        turn = meeting.turn_of.get(actor, -1)
        # The turn has ended for the warp, even if the replay does not know its end yet.
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
            snapshot[DONE * self.actors + actor] = self._epoch(actor)
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

    def _barrier(self, actor: int, rank: int, address: int) -> LoggedBarrier | None:
        """Return the barrier that a warp uses; report one that is not known to be initialised."""
        barrier = self._barriers.get((rank, address))
        if barrier is None or self._table[actor, barrier.by.actor] < barrier.epoch:
            name = self.names.get((rank, address), f"the mbarrier at {address:#x}")
            other = barrier.by if barrier else None
            rule = (
                "nothing orders the initialisation before the use: fence_mbarrier_init(), then a "
                "sync of the block or the cluster, stand between them"
            )
            self._report("BarrierMisuse", name, self._step("a use", actor), rule, other)
        return barrier

    def _check_fill(self, kind: str, rank: int, part: slice, step: Side) -> None:
        memory = self._memory[rank]
        late = memory.phase[part] > self._table[step.actor, memory.column[part]]
        if not late.any():
            return
        word = part.start + int(np.argmax(late))
        column, phase = int(memory.column[word]), int(memory.phase[word]) - 1
        barrier = self._barrier_of[column]
        rule = (
            f"the load completes phase {phase} (parity {phase & 1}) of "
            f"{self._barrier_name(barrier)}, and no wait for it comes before"
        )
        self._report(kind, self._where(rank, 4 * word), step, rule, self._loads[column, phase])

    def _check_warps(
        self, kind: str, records: str, known: int, rank: int, part: slice, step: Side
    ) -> None:
        """Report an access of another warp, or an unfenced one, that the clock has not reached."""
        if records not in self._memory[rank].kinds:
            return
        first = rank * self.warps
        reached = self._of(step.actor, known)[first : first + self.warps]
        late = getattr(self._memory[rank], records)[part] > reached
        own = step.actor - first
        if known == EPOCH and 0 <= own < self.warps:
            late[:, own] = False
        if not late.any():
            return
        word, warp = (int(n[0]) for n in np.nonzero(late))
        word += part.start
        if known in (EPOCH, DONE) and kind != "MissingFence":
            rule = "nothing orders them: no barrier or sync stands between"
        else:
            rule = "no fence_proxy_async() follows the write before the barrier or sync between"
        other = self._other(records, first + warp, word)
        self._report(kind, self._where(rank, 4 * word), step, rule, other)

    def _check_accesses(self, rank: int, part: slice, step: Side, but: str = "") -> None:
        """Check what changes bytes against all earlier accesses to them."""
        for records in ("reads", *CHANGES, "copies"):
            if records != but:
                known = DONE if records == "copies" else EPOCH
                self._check_warps("EarlyOverwrite", records, known, rank, part, step)
        self._check_sources(rank, part, step)

    def _check_written(self, rank: int, part: slice, step: Side) -> None:
        """Report a read of a stage's bytes that nothing has written."""
        if self._memory[rank].written[part].any():
            return
        start = 4 * part.start
        if any(rank == r and first <= start < last for r, first, last in self._extents):
            rule = "nothing has written these bytes"
            self._report("UninitializedRead", self._where(rank, start), step, rule)

    def _check_sources(self, rank: int, part: slice, step: Side) -> None:
        """Report a store or a wgmma that may still be reading."""
        first, memory = rank * self.warps, self._memory[rank]
        for records, kind in (("stores", STORED), ("products", READ)):
            if records not in memory.kinds:
                continue
            reached = self._of(step.actor, kind)[first : first + self.warps]
            late = getattr(memory, records)[part] > reached
            if late.any():
                word, warp = (int(n[0]) for n in np.nonzero(late))
                word += part.start
                rule = "it may still be reading: no wait for its group comes before"
                other = self._other(records, first + warp, word)
                self._report("EarlyOverwrite", self._where(rank, 4 * word), step, rule, other)

    # -------------------------------------------------------------------------- reports

    def _other(self, records: str, actor: int, word: int) -> Side:
        lines = self._lines
        near = (w for w in range(word, max(word - 4096, -1), -1) if (records, actor, w) in lines)
        step = self._step(VERBS[records], actor)
        start = next(near, None)
        if start is not None:
            step = Side(**{**vars(step), "line": lines[records, actor, start]})
        return step

    def _step(self, what: str, actor: int, where: str = "") -> Side:
        return Side(what, actor, self._line[actor], self._role[actor], where)

    def _report(
        self, kind: str, where: str, step: Side, rule: str, other: Side | None = None
    ) -> None:
        sides = self._side(step), self._side(other) if other else None
        key = (kind, where.partition("[")[0], sides[0].line, sides[1].line if sides[1] else "")
        if key not in self._seen:
            self._seen.add(key)
            self.races.append(Race(kind, where, *sides, rule, self._number))

    def _side(self, step: Side) -> RaceSide:
        rank, warp = divmod(step.actor, self.warps)
        block = self._grid[rank]
        return RaceSide(step.what, step.role, warp, block, line_in_words(step.line))

    def _where(self, rank: int, address: int) -> str:
        """Return the tile that holds an address."""
        i = bisect.bisect_right(self._names, (rank, address)) - 1
        if i >= 0 and self._names[i][0] == rank:
            return self.names[self._names[i]]
        return f"shared address {address:#x}"

    def _barrier_name(self, barrier: LoggedBarrier) -> str:
        default = f"the mbarrier at {barrier.address:#x}"
        return self.names.get((barrier.rank, barrier.address), default)
