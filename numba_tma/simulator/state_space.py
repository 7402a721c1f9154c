"""The steps that the threads and copies of a recorded run can take, in any order.

A state is a tuple: the place of each class of threads in its program, then the number of the value
of each barrier and cell. Orders that no other step can distinguish are left out:

- A thread's generic accesses are no steps. They take place between two operations, and are checked
  right after the first and right before the second. Contents never come back, so a condition that
  holds at both ends in every order holds all the time in between.
- Threads with the same program, of waits and meetings alone, are one class. Classes with the same
  waits ahead, up to a meeting of all, advance through these together: until the meeting, no other
  step depends on whether one of them still waits or has gone on. So if one of them fails or is
  stuck in some order, the others could have taken its steps, at the same time.
- A meeting releases all its threads in one step: each may be the next to run, and its next
  operation is a separate step.
- A step that only advances a thread's place, and checks nothing, is taken at once.
- States may differ only in which of several identical threads or warps is at which place. One state
  of each such set is kept (`symmetry.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from numba_tma.simulator.cells import Cells
from numba_tma.simulator.components import (
    Advance,
    Await,
    CellValue,
    Complete,
    Effect,
    Fill,
    Filled,
    Hold,
    Interner,
    Launch,
    ReadBy,
    ReadDone,
    Rewritten,
    Seen,
    Table,
    Value,
)
from numba_tma.simulator.programs import (
    Guards,
    Meeting,
    Step,
    in_scope,
    meetings_of,
    programs_of,
    segment_at,
)
from numba_tma.simulator.protocol import (
    Arrive,
    ArriveAfterCopies,
    AwaitCopies,
    AwaitMeeting,
    AwaitStores,
    ByteSpan,
    CommitProducts,
    CopyAsync,
    CountBytes,
    Init,
    Inval,
    Issue,
    IssueStore,
    Log,
    Meet,
    Multiply,
    Operation,
    Run,
    Transfer,
    Wait,
)
from numba_tma.simulator.report import operation_in_words, threads_in_words
from numba_tma.simulator.symmetry import Symmetry

State = tuple[int, ...]
Effects = list[tuple[int, Table]]


class StateSpace:
    """The initial state of a run, and the steps that its classes and copies can take."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.programs = programs_of(run)
        self.values = Interner()
        #: The name of each component.
        self.names: list[str] = []
        #: By address of a barrier: its component.
        self._barriers: dict[tuple[int, int], int] = {}
        self._initial: list[int] = []
        self._tables: dict[Effect, Table] = {}
        for program in self.programs:
            self._component(threads_in_words(program.logs))
            self._initial[-1] = 0  # a place, not a value
        self._cells = Cells(run, [program.logs for program in self.programs])
        self._first_cell = len(self.names)
        for span in self._cells.spans:
            self._component(run.span_name(span), CellValue())
        #: Steps of copies and stores, by cell and the content or reader in flight there.
        self._of_copies: dict[tuple[int, Hashable], Step] = {}
        #: Arrivals that the hardware makes, by component.
        self._of_hardware: dict[int, Step] = {}
        #: By row of a thread: the component of the last arrival of its tcgen05.commits.
        self._last_commit: dict[int, int] = {}
        self._spontaneous: dict[tuple[int, int], tuple[Step, ...]] = {}
        self._meetings = meetings_of(self.programs)
        self._fires: dict[Meeting, Step] = {}
        self._together: dict[tuple[tuple[int, int], ...], Step] = {}
        #: By class: the place of its exit.
        self._ends = [
            len(program.operations) + bool(self._closing(number, len(program.operations)))
            for number, program in enumerate(self.programs)
        ]
        for number, program in enumerate(self.programs):
            for index, operation in enumerate(program.operations):
                program.steps.append(self._step(number, index, operation))
                program.segments.append(segment_at(program.operations, index))
                if isinstance(operation, Meet) and operation.turn > 0:
                    program.not_before.update(self._after_last_turn(number, index, operation))
            last = len(program.operations)
            if effects := self._closing(number, last):
                step = Step(self.names[number], "exit", tuple(effects), ((number, last + 1),))
                program.steps.append(step)
                program.segments.append(None)
        #: The components with steps that no thread takes.
        self.moving = [
            *range(self._first_cell, self._first_cell + len(self._cells.spans)),
            *self._of_hardware,
        ]
        #: Maps most states that differ only in the names of identical threads to one state.
        self.canonical = Symmetry(self.programs, self._cells).canonical
        self.initial = self._begin()

    def _component(self, name: str, value: Value = None) -> int:
        self.names.append(name)
        self._initial.append(self.values.number(value))
        return len(self.names) - 1

    def _barrier(self, place: tuple[int, int]) -> int:
        if place not in self._barriers:
            self._barriers[place] = self._component(self.run.barrier_name(place))
        return self._barriers[place]

    def _table(self, effect: Effect) -> Table:
        table = self._tables.get(effect)
        if table is None:
            table = self._tables[effect] = Table(effect, self.values)
        return table

    def _on(self, components: Sequence[int], effect: Effect) -> Effects:
        return [(component, self._table(effect)) for component in components]

    def _cells_of(self, span: ByteSpan) -> list[int]:
        return [self._first_cell + cell for cell in self._cells.of(span)]

    # A thread's accesses between operations.

    def _closing(self, number: int, slot: int) -> Effects:
        """Return the checks at the end of the accesses before an operation."""
        effects: Effects = []
        for cell, kind, content in self._cells.accesses[number, slot]:
            effect = _SEEN[kind](content) if kind != "write" else Filled(content)
            effects += self._on([self._first_cell + cell], effect)
        return effects

    def _opening(self, number: int, slot: int) -> Effects:
        """Return the checks at the begin of the accesses after an operation."""
        effects: Effects = []
        for cell, kind, content in self._cells.accesses[number, slot]:
            effect = _SEEN[kind](content) if kind != "write" else Fill(content, "written")
            effects += self._on([self._first_cell + cell], effect)
        return effects

    def _begin(self) -> State:
        state = list(self._initial)
        for number in range(len(self.programs)):
            for component, table in self._opening(number, 0):
                state[component] = table[state[component]]
        return tuple(state)

    # Operations.

    def _step(self, number: int, index: int, operation: Operation) -> Step:
        if isinstance(operation, Meet) and operation.blocking:
            return self._fire(operation)
        effects = self._closing(number, index)
        after: Guards = ()
        if isinstance(operation, AwaitMeeting):
            after = self._all_at(operation)
        else:
            effects += self._effects(self.programs[number].logs[0], operation)
        begins = self._opening(number, index + 1)
        at_once = not effects and not isinstance(operation, Meet) and _only_checks(begins)
        effects += begins
        what = operation_in_words(operation, self.run)
        return Step(
            self.names[number], what, tuple(effects), ((number, index + 1),), after, at_once
        )

    def _effects(self, log: Log, operation: Operation) -> Effects:
        match operation:
            case Wait(barrier) | Init(barrier) | Inval(barrier) | Arrive(barrier):
                return self._on([self._barrier(barrier)], operation)
            case CountBytes(barrier):
                return self._on([self._barrier(barrier)], operation)
            case Issue(transfers):
                return [effect for each in transfers for effect in self._launch(each)]
            case IssueStore(number, source):
                reader = ("store", log.row, number)
                what = f"the store from {self.run.span_name(source)} has read it"
                return self._start(self._cells_of(source), ReadBy(reader), reader, ReadDone, what)
            case CopyAsync(_, content, into):
                new = self._cells.order(content)
                what = f"a cp.async lands in {self.run.span_name(into)}"
                begin = Fill(new, "overwritten by a cp.async")
                return self._start(self._cells_of(into), begin, new, Filled, what)
            case AwaitStores(number):
                return self._await(log, number, IssueStore)
            case AwaitCopies(number):
                return self._await(log, number, CopyAsync)
            case ArriveAfterCopies():
                return self._arrive_later(log, operation)
            case Multiply(commit, sources):
                cells = {cell for source in sources for cell in self._cells_of(source)}
                return self._on(sorted(cells), ReadBy(("product", log.row, commit)))
            case CommitProducts():
                return self._commit(log, operation)
        assert isinstance(operation, Meet)
        return []

    def _start(
        self,
        cells: list[int],
        begin: Effect,
        known_by: Hashable,
        end: Callable[[Any], Effect],
        what: str,
        also: Sequence[tuple[int, Table]] = (),
    ) -> Effects:
        """Return the effects that begin in `cells` now; the end is a step of the first cell."""
        effects = (*self._on(cells, end(known_by)), *also)
        self._of_copies[cells[0], known_by] = Step("the copy engine", what, effects)
        return self._on(cells, begin)

    def _launch(self, transfer: Transfer) -> Effects:
        new, barrier = self._cells.order(transfer.content), [self._barrier(transfer.barrier)]
        ends = self._on(barrier, Complete(transfer.nbytes))
        begins = self._on(barrier, Launch(transfer.nbytes))
        if transfer.source is not None:
            source, reader = self._cells_of(transfer.source), ("copy", transfer.content)
            begins += self._on(source, ReadBy(reader))
            ends += self._on(source, ReadDone(reader))
        what = f"the load into {self.run.span_name(transfer.into)} lands"
        begin = Fill(new, "overwritten by a load")
        cells = self._cells_of(transfer.into)
        return begins + self._start(cells, begin, new, Filled, what, ends)

    def _await(self, log: Log, number: int, kind: type[IssueStore] | type[CopyAsync]) -> Effects:
        """Return the waits for a thread's stores or copies up to `number`."""
        pending: defaultdict[int, set[Hashable]] = defaultdict(set)
        for operation in log.operations:
            if isinstance(operation, kind) and operation.number <= number:
                known_by: Hashable
                if isinstance(operation, CopyAsync):
                    span, known_by = operation.into, self._cells.order(operation.content)
                else:
                    span, known_by = operation.source, ("store", log.row, operation.number)
                for cell in self._cells_of(span):
                    pending[cell].add(known_by)
        return [
            effect
            for cell, several in pending.items()
            for effect in self._on([cell], Await(frozenset(several)))
        ]

    def _arrive_later(self, log: Log, operation: ArriveAfterCopies) -> Effects:
        barrier = [self._barrier(operation.barrier)]
        name = f"the arrival of cp.async on {self.run.barrier_name(operation.barrier)}"
        here = [self._component(name, 0)]
        arrive = Arrive(operation.barrier, 1, None, False, False)
        effects = self._on(here, Advance(1, 2)) + self._await(log, operation.number, CopyAsync)
        effects += self._on(barrier, arrive)
        self._of_hardware[here[0]] = Step("the copy engine", name, tuple(effects))
        return self._on(here, Advance(0, 1)) + (self._on(barrier, Hold()) if operation.hold else [])

    def _commit(self, log: Log, operation: CommitProducts) -> Effects:
        """Return the effect of a tcgen05.commit: a step of the hardware for each barrier.

        The first one ends the reads since the commit before, after whose arrivals it takes place.
        """
        reader = ("product", log.row, operation.number)
        read = {
            cell
            for one in log.operations
            if isinstance(one, Multiply) and one.commit == operation.number
            for source in one.sources
            for cell in self._cells_of(source)
        }
        ends = self._on(sorted(read), ReadDone(reader))
        starts: Effects = []
        for barrier in operation.barriers:
            name = f"the arrival of tcgen05.commit on {self.run.barrier_name(barrier)}"
            here = self._component(name, 0)
            starts += self._on([here], Advance(0, 1))
            effects = self._on([here], Advance(1, 2)) + ends
            if log.row in self._last_commit:
                effects += self._on([self._last_commit[log.row]], Advance(2, 2))
            effects += self._on([self._barrier(barrier)], Arrive(barrier, 1, None, False, False))
            self._of_hardware[here] = Step("the tensor cores", name, tuple(effects))
            self._last_commit[log.row], ends = here, []
        return starts

    # Meetings.

    def _all_at(self, meeting: Meet | AwaitMeeting) -> Guards:
        """Return the places that all classes must have reached for a meeting to be complete."""
        members = self._meetings[meeting.place, meeting.turn]
        guards = {number: index + (not meet.blocking) for number, index, meet in members}
        if any(meet.threads is None for *_, meet in members):
            for number in in_scope(self.programs, meeting.place):
                guards.setdefault(number, self._ends[number])  # it has exited
        return tuple(guards.items())

    def _after_last_turn(self, number: int, index: int, meet: Meet) -> dict[int, Guards]:
        """Return the guards at `index` if the class did not wait for the last meeting."""
        members = self._meetings[meet.place, meet.turn - 1]
        if not any(other == number and not last.blocking for other, _, last in members):
            return {}
        return {index: self._all_at(members[0][2])}

    def _fire(self, meeting: Meet) -> Step:
        """Return the step in which all threads that wait at a meeting go on."""
        key = meeting.place, meeting.turn
        if key not in self._fires:
            effects, begins, moves = [], [], []
            for number, index, meet in self._meetings[key]:
                if meet.blocking:
                    effects += self._closing(number, index)
                    begins += self._opening(number, index + 1)
                    moves.append((number, index + 1))
            at_once = not effects and _only_checks(begins)
            who = threads_in_words(log for number, _ in moves for log in self.programs[number].logs)
            unique = tuple(dict.fromkeys(effects + begins))
            self._fires[key] = Step(
                who, f"meet: {meeting.name}", unique, tuple(moves), self._all_at(meeting), at_once
            )
        return self._fires[key]

    # Possible steps.

    def of_copies(self, state: State) -> list[Step]:
        """Return the steps of the copies in flight."""
        steps: list[Step] = []
        for component in self.moving:
            number = state[component]
            known = self._spontaneous.get((component, number))
            if known is None:
                known = self._spontaneous[component, number] = self._moved(component, number)
            steps += known
        return steps

    def _moved(self, component: int, number: int) -> tuple[Step, ...]:
        value = self.values.values[number]
        if isinstance(value, CellValue):
            under_way = [value.coming, *value.readers]
            found = (self._of_copies.get((component, known_by)) for known_by in under_way)
            return tuple(step for step in found if step is not None)
        return (self._of_hardware[component],) if value == 1 else ()

    def together(self, members: tuple[tuple[int, int], ...]) -> Step:
        """Return the common step of classes with the same wait, each at a place of its program."""
        step = self._together.get(members)
        if step is None:
            steps = [self.programs[number].steps[place] for number, place in members]
            effects = dict.fromkeys(effect for one in steps for effect in one.effects)
            logs = [log for number, _ in members for log in self.programs[number].logs]
            step = self._together[members] = Step(
                threads_in_words(logs),
                steps[0].what,
                tuple(effects),
                tuple(move for one in steps for move in one.moves),
                at_once=all(one.at_once for one in steps),
            )
        return step


_SEEN: dict[str, Callable[[int], Effect]] = {"read": Seen, "change": Rewritten}


def _only_checks(effects: Effects) -> bool:
    return all(isinstance(table.effect, Seen | Rewritten) for _, table in effects)
