"""Cells of shared memory: bytes that every recorded operation accesses together."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from numba_tma.simulator.protocol import ByteSpan, CopyAsync, Issue, IssueStore, Log, Run, Touch

Kind = Literal["read", "change", "write"]


class Access(NamedTuple):
    """A generic access to a cell.

    The access reads the cell's `content`, changes it in place, or writes a new `content`.
    """

    cell: int
    kind: Kind
    content: int


class Cells:
    """The cells of a run.

    Bytes that copies move are cut at the ends of the copies. A thread's write there changes bytes
    in place, and the content is named by the copy that brought it. Other bytes matter where threads
    pass them to each other: there, each write makes a new content.
    """

    def __init__(self, run: Run, classes: Sequence[Sequence[Log]]) -> None:
        self._run = run
        self.spans: list[ByteSpan] = []
        moved = dict.fromkeys(span for log in run.logs for span in _moved(log))
        self._copied = _Cuts(moved)
        self._atoms: dict[ByteSpan, int] = {}
        for span in moved:  # a cell each, although perhaps no thread reads it
            self.of(span)
        #: The accesses, by class and place in its program.
        self.accesses: defaultdict[tuple[int, int], set[Access]] = defaultdict(set)
        self._class_of = {log.row: n for n, logs in enumerate(classes) for log in logs}
        self._writes: dict[tuple[int, int], int] = {}
        plain: dict[Touch, set[tuple[int, int]]] = defaultdict(set)
        for number, logs in enumerate(classes):
            for log in logs:
                for slot, touches in enumerate(log.touches):
                    for touch in touches:
                        self._place(touch, number, slot, plain)
        self._place_plain(plain)

    def of(self, span: ByteSpan) -> list[int]:
        """Return the cells of bytes that a copy moves."""
        return [self._cell(atom) for atom in self._copied.atoms(span)]

    def order(self, content: int) -> int:
        """Return the number of a content: 0 for bytes without a write by a thread or copy."""
        return self._run.order[content] if content else 0

    def _written_by(self, content: int) -> int:
        """Return the number of a thread's written content: the same for all threads of a class."""
        if not content:
            return 0
        row, place = (content >> 32) - 1, content & 0xFFFFFFFF
        return self._writes.setdefault((self._class_of[row], place), self.order(content))

    def _cell(self, atom: ByteSpan) -> int:
        cell = self._atoms.setdefault(atom, len(self.spans))
        if cell == len(self.spans):
            self.spans.append(atom)
        return cell

    def _place(
        self, touch: Touch, number: int, slot: int, plain: dict[Touch, set[tuple[int, int]]]
    ) -> None:
        atoms = self._copied.atoms(touch.span)
        for atom in atoms:
            kind: Kind = "change" if touch.writes else "read"
            access = Access(self._cell(atom), kind, self.order(touch.filled_by))
            self.accesses[number, slot].add(access)
        if not atoms:
            plain[touch].add((number, slot))

    def _place_plain(self, plain: Mapping[Touch, set[tuple[int, int]]]) -> None:
        """Find the cells of bytes that several classes, and no copy, use."""
        cuts = _Cuts(touch.span for touch in plain)
        users: defaultdict[ByteSpan, set[tuple[int, int, bool, int]]] = defaultdict(set)
        for touch, places in plain.items():
            for atom in cuts.atoms(touch.span):
                content = self._written_by(touch.written_by)
                users[atom] |= {(*place, touch.writes, content) for place in places}
        alike: dict[frozenset[tuple[int, int, bool, int]], int] = {}
        for atom, signature in users.items():
            passed_on = any(writes for _, _, writes, _ in signature)
            if not passed_on or len({number for number, *_ in signature}) == 1:
                continue
            key = frozenset(signature)
            if key in alike:
                continue
            alike[key] = cell = self._cell(atom)
            written = {(number, slot) for number, slot, writes, _ in key if writes}
            for number, slot, writes, content in key:
                if writes or (number, slot) not in written:
                    access = Access(cell, "write" if writes else "read", content)
                    self.accesses[number, slot].add(access)


def _moved(log: Log) -> Iterable[ByteSpan]:
    """Return the bytes that a thread's copies read and write."""
    for operation in log.operations:
        match operation:
            case Issue(transfers):
                for transfer in transfers:
                    yield transfer.into
                    if transfer.source is not None:
                        yield transfer.source
            case IssueStore(_, source):
                yield source
            case CopyAsync(_, _, into):
                yield into


class _Cuts:
    """Bytes cut where any of some spans begins or ends."""

    def __init__(self, spans: Iterable[ByteSpan]) -> None:
        ends: defaultdict[int, dict[int, int]] = defaultdict(dict)
        for rank, start, stop in set(spans):
            ends[rank][start] = ends[rank].get(start, 0) + 1
            ends[rank][stop] = ends[rank].get(stop, 0) - 1
        self._cuts: dict[int, list[int]] = {}
        self._covered: dict[int, list[bool]] = {}
        for rank, changes in ends.items():
            self._cuts[rank] = sorted(changes)
            depth, covered = 0, []
            for cut in self._cuts[rank]:
                depth += changes[cut]
                covered.append(depth > 0)
            self._covered[rank] = covered

    def atoms(self, span: ByteSpan) -> list[ByteSpan]:
        """Return the pieces between cuts that `span` touches and some span covers."""
        rank, start, stop = span
        cuts = self._cuts.get(rank, [])
        found = []
        first = max(0, bisect_left(cuts, start + 1) - 1)
        for index in range(first, len(cuts) - 1):
            if cuts[index] >= stop:
                break
            if cuts[index + 1] > start and self._covered[rank][index]:
                found.append(ByteSpan(rank, cuts[index], cuts[index + 1]))
        return found
