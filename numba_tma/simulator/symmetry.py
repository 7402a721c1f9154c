"""Symmetry: threads and warps with the same program are interchangeable in a state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace

from numba_tma.simulator.cells import Cells
from numba_tma.simulator.programs import Program
from numba_tma.simulator.protocol import (
    ArriveAfterCopies,
    CommitProducts,
    CopyAsync,
    Init,
    Issue,
    IssueStore,
    Meet,
    Multiply,
    Operation,
    without_warp,
)


class Symmetry:
    """The warps of a run with the same operations on the same barriers and cells, and such threads.

    Operations before the last mbarrier_init, which one thread executes, are not compared.
    """

    def __init__(self, programs: Sequence[Program], cells: Cells) -> None:
        self._programs = programs
        self._cells = cells
        #: By class: the place after its last mbarrier_init.
        self._starts = [_start(program.operations) for program in programs]
        self._alike = self._find()

    def _find(self) -> list[list[tuple[int, ...]]]:
        """Return lists of identical units, each by its classes: threads first, then warps."""
        warps: defaultdict[Hashable, list[int]] = defaultdict(list)
        for number, program in enumerate(self._programs):
            log = program.logs[0]
            warps[log.block, log.warp].append(number)
        threads: defaultdict[Hashable, list[tuple[int, ...]]] = defaultdict(list)
        alike: defaultdict[Hashable, list[tuple[int, ...]]] = defaultdict(list)
        for warp, numbers in warps.items():
            lanes = [tuple(log.lane for log in self._programs[n].logs) for n in numbers]
            does = [self._signature(number) for number in numbers]
            if None not in does:
                alike[tuple(lanes), tuple(does)].append(tuple(numbers))
            meetings = [self._meetings_in_warp(number) for number in numbers]
            if all(each == meetings[0] for each in meetings):  # else a meeting distinguishes them
                for number, signature in zip(numbers, does):
                    if signature is not None and len(self._programs[number].logs) == 1:
                        threads[warp, signature].append((number,))
        found = [*threads.values(), *alike.values()]
        return [several for several in found if len(several) > 1]

    def _meetings_in_warp(self, number: int) -> list[Operation]:
        return [
            operation
            for operation in self._programs[number].operations
            if isinstance(operation, Meet) and without_warp(operation.place) != operation.place
        ]

    def _signature(self, number: int) -> Hashable:
        """Return a class's operations after it has initialised barriers, without the class's name.

        None if its copies or writes have that name.
        """
        program, own = self._programs[number], []
        for operation in program.operations[self._starts[number] :]:
            if isinstance(operation, Issue | IssueStore | CopyAsync | ArriveAfterCopies):
                return None
            if isinstance(operation, Multiply | CommitProducts):
                return None
            if isinstance(operation, Meet):
                place = without_warp(operation.place)
                name = operation.name if place == operation.place else ""
                operation = replace(operation, place=place, name=name)
            own.append(operation)
        slots = range(self._starts[number], len(program.operations) + 1)
        accesses = [frozenset(self._cells.accesses[number, slot]) for slot in slots]
        if any(access.kind == "write" for each in accesses for access in each):
            return None
        return tuple(own), tuple(accesses)

    def canonical(self, state: tuple[int, ...]) -> tuple[int, ...]:
        """Return the same state for all states that differ in the names of identical units."""
        values = list(state)
        for units in self._alike:
            places = [tuple([values[n] - self._starts[n] for n in numbers]) for numbers in units]
            if min(map(min, places)) < 0:
                continue
            places.sort()
            for numbers, several in zip(units, places):
                for number, place in zip(numbers, several):
                    values[number] = self._starts[number] + place
        return tuple(values)


def _start(operations: list[Operation]) -> int:
    inits = [index for index, operation in enumerate(operations) if isinstance(operation, Init)]
    return inits[-1] + 1 if inits else 0
