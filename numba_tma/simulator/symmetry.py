"""Warps that do the same: of states that differ in which of them is how far, one is enough."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace

from .cells import Cells
from .programs import Program
from .protocol import (
    ArriveAfterCopies,
    CopyAsync,
    Init,
    Issue,
    Meet,
    Operation,
    Store,
    without_warp,
)


class LikeWarps:
    """The warps of a run whose classes do the same to the same barriers and cells.

    What they do while barriers are initialised, which one thread does, is not looked at.
    """

    def __init__(self, programs: Sequence[Program], cells: Cells) -> None:
        self._programs = programs
        self._cells = cells
        #: By class: the place after its last mbarrier_init.
        self._starts = [_start(program.operations) for program in programs]
        self._alike = self._find()

    def _find(self) -> list[list[tuple[int, ...]]]:
        """Return lists of warps, each by its classes, that do the same to the same components."""
        warps: defaultdict[Hashable, list[int]] = defaultdict(list)
        for number, program in enumerate(self._programs):
            log = program.logs[0]
            warps[log.block, log.warp].append(number)
        alike: defaultdict[Hashable, list[tuple[int, ...]]] = defaultdict(list)
        for numbers in warps.values():
            signature = tuple(self._signature(number) for number in numbers)
            if None not in signature:
                alike[signature].append(tuple(numbers))
        return [several for several in alike.values() if len(several) > 1]

    def _signature(self, number: int) -> Hashable:
        """Return what a class does after it has initialised barriers, without the class's name.

        None if its copies or writes carry that name.
        """
        program, own = self._programs[number], []
        for operation in program.operations[self._starts[number] :]:
            if isinstance(operation, Issue | Store | CopyAsync | ArriveAfterCopies):
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
        lanes = tuple(log.lane for log in program.logs)
        return lanes, tuple(own), tuple(accesses)

    def canonical(self, state: tuple[int, ...]) -> tuple[int, ...]:
        """Return the same for states that differ in the names of like warps alone."""
        values = list(state)
        for warps in self._alike:
            places = [tuple([state[n] - self._starts[n] for n in numbers]) for numbers in warps]
            if min(map(min, places)) < 0:
                continue
            places.sort()
            for numbers, several in zip(warps, places):
                for number, place in zip(numbers, several):
                    values[number] = self._starts[number] + place
        return tuple(values)


def _start(operations: list[Operation]) -> int:
    inits = [index for index, operation in enumerate(operations) if isinstance(operation, Init)]
    return inits[-1] + 1 if inits else 0
