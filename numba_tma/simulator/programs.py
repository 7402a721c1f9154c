"""The threads of a recorded run in classes, and facts about their programs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field

from numba_tma.simulator.components import Table
from numba_tma.simulator.errors import BadOperand
from numba_tma.simulator.protocol import AwaitMeeting, Log, Meet, Operation, Run, Unmodelled, Wait

Meeting = tuple[tuple[int, Hashable], int]
#: Classes, and the least place that each must have reached.
Guards = tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class Step:
    """A possible next step: effects on components, and classes that advance."""

    who: str
    what: str
    effects: tuple[tuple[int, Table], ...]
    moves: tuple[tuple[int, int], ...] = ()
    after: Guards = ()
    #: Whether the step commutes with every other step.
    at_once: bool = False


@dataclass
class Program:
    """The operations of a class of threads."""

    logs: list[Log]
    operations: list[Operation]
    steps: list[Step] = field(default_factory=list)
    #: By place: the places that others must have reached, else a thread arrives twice at a meeting.
    not_before: dict[int, Guards] = field(default_factory=dict)
    #: By place: the waits up to the next meeting; None if there are other operations in between.
    segments: list[tuple[Operation, ...] | None] = field(default_factory=list)


def _only_waits(operation: Operation) -> bool:
    return isinstance(operation, Wait | AwaitMeeting) or (
        isinstance(operation, Meet) and operation.blocking
    )


def programs_of(run: Run) -> list[Program]:
    """Return the classes of a run: threads with the same waits, and nothing else, share one."""
    programs: dict[Hashable, Program] = {}
    for log in run.logs:
        for operation in log.operations:
            if isinstance(operation, Unmodelled):
                raise BadOperand(
                    f"the interleavings of kernels with {operation.name} cannot be explored: what "
                    "it leaves in memory depends on the order, which the model leaves out"
                )
        passive = all(_only_waits(operation) for operation in log.operations)
        key = (log.block, log.warp, tuple(log.operations)) if passive else log.row
        programs.setdefault(key, Program([], log.operations)).logs.append(log)
    return list(programs.values())


def segment_at(operations: list[Operation], index: int) -> tuple[Operation, ...] | None:
    """Return the waits from `index` to the next meeting; None if other operations intervene."""
    for end in range(index, len(operations)):
        operation = operations[end]
        if isinstance(operation, Meet) and operation.blocking and end > index:
            return tuple(operations[index : end + 1])
        if not isinstance(operation, Wait):
            return None
    return None


def meetings_of(programs: list[Program]) -> dict[Meeting, list[tuple[int, int, Meet]]]:
    """Return the classes of each meeting, with their places in their programs."""
    members: defaultdict[Meeting, list[tuple[int, int, Meet]]] = defaultdict(list)
    users: defaultdict[tuple[int, Hashable], set[int]] = defaultdict(set)
    for number, program in enumerate(programs):
        for index, operation in enumerate(program.operations):
            if isinstance(operation, Meet):
                members[operation.place, operation.turn].append((number, index, operation))
                users[operation.place].add(number)
    for (place, _), meeting in members.items():
        meet = meeting[0][2]
        threads = sum(len(programs[number].logs) for number in users[place])
        if meet.threads is not None and threads != meet.threads:
            raise BadOperand(
                f"{meet.name} is used by {threads} threads: which of them meet may depend on the "
                "order, which is not explored; use another barrier for others"
            )
    return members


def in_scope(programs: list[Program], place: tuple[int, Hashable]) -> list[int]:
    """Return the classes that a meeting of all live threads includes."""
    rank, key = place
    found = []
    for number, program in enumerate(programs):
        for log in program.logs:
            match key:
                case ("warp", warp, int(mask)):
                    inside = (log.rank, log.warp) == (rank, warp) and mask >> log.lane & 1
                case ("warpgroup", group):
                    inside = (log.rank, log.warp // 4) == (rank, group)
                case "cluster":
                    inside = True
                case _:
                    inside = log.rank == rank
            if inside:
                found.append(number)
                break
    return found
