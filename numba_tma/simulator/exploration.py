"""Every interleaving of a kernel's threads and copies, from a record of what each thread does.

Threads are assumed to be deterministic: a thread's branches do not depend on when its waits end.
Then one run shows the operations of every thread, and any other run of the kernel has the same
operations in another order. `explore` tries all orders breadth first, and visits each state once.
So it reports an error with a shortest path to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from numba_tma.host.environment import simulated
from numba_tma.host.progress import ProgressLine
from numba_tma.simulator import numba_hooks
from numba_tma.simulator.components import BLOCKED, BarrierValue
from numba_tma.simulator.errors import (
    BarrierMisuse,
    Deadlock,
    SimulatorError,
    TimingDependent,
    TooManyStates,
)
from numba_tma.simulator.programs import Step
from numba_tma.simulator.protocol import Run, recorded_protocol
from numba_tma.simulator.report import operation_in_words, threads_in_words
from numba_tma.simulator.state_space import State, StateSpace

#: Steps of the path that an error's message shows; `error.interleaving` has all of them.
_SHOWN = 30


@dataclass(frozen=True)
class Report:
    """The size of an exploration without errors: blocks or clusters, their states, and steps."""

    runs: int
    states: int
    transitions: int


def explore(
    launch: Callable[[], object], *, seeds: Sequence[int] = (0, 1), limit: int = 1_000_000
) -> Report:
    """Run the kernels that `launch` launches in every interleaving, and raise the first error.

    For a process in the simulator (``NUMBA_ENABLE_CUDASIM=1``). Returns a `Report` of the numbers
    of blocks or clusters, of states, and of steps between them.

    Errors are a deadlock, a read of bytes that have not landed or are overwritten, an overwrite of
    bytes in use, and a wrong byte count or number of arrivals. The error with a shortest path is
    raised as the simulator's error. Its message and its `interleaving` have the path.

    `launch` is called once for each of `seeds`; each thread must execute the same operations every
    time. Blocks outside clusters are explored one by one. `TooManyStates` is raised if a block or
    cluster has more than `limit` states.
    """
    if not simulated():
        raise RuntimeError(
            "explore runs kernels in the simulator: set NUMBA_ENABLE_CUDASIM=1 before Python starts"
        )
    runs, *others = [_recorded(launch, seed) for seed in seeds]
    for seed, other in zip(seeds[1:], others):
        _compare(runs, other, seeds[0], seed)
    return explore_runs(runs, limit=limit)


def explore_runs(runs: Sequence[Run], *, limit: int = 1_000_000) -> Report:
    """Explore the runs that `recorded_protocol` recorded."""
    states = transitions = 0
    for run in runs:
        search = _Search(StateSpace(run), limit)
        search.run()
        states += len(search.came_from)
        transitions += search.transitions
    return Report(len(runs), states, transitions)


def _recorded(launch: Callable[[], object], seed: int) -> list[Run]:
    with numba_hooks.seeded(seed), recorded_protocol() as runs:
        launch()
    return runs


def _compare(runs: list[Run], others: list[Run], seed: int, other_seed: int) -> None:
    threads, other_threads = ([len(run.logs) for run in each] for each in (runs, others))
    if threads != other_threads:
        raise TimingDependent(
            f"seed {seed} ran {len(threads)} blocks or clusters with {sum(threads)} threads, and "
            f"seed {other_seed} {len(other_threads)} with {sum(other_threads)}: only launches of "
            "the same blocks in every order can be explored"
        )
    for run, other in zip(runs, others):
        if log := run.differs(other):
            raise TimingDependent(
                f"warp {log.warp} lane {log.lane} of block {log.block} does something else under "
                f"seed {seed} than under seed {other_seed}: what it does depends on the order in "
                "which threads and copies ran (test_wait, try_acquire, an atomic, data of "
                "another thread). Only kernels whose threads do the same in every order can be "
                "explored"
            )


class _Search:
    """Breadth first over the states of one run."""

    def __init__(self, space: StateSpace, limit: int) -> None:
        self._space = space
        self._limit = limit
        self.transitions = 0
        self.came_from: dict[State, State | None] = {space.canonical(space.initial): None}

    def run(self) -> None:
        """Visit every state."""
        line = ProgressLine()
        try:
            self._visit_all(line)
        finally:
            line.clear()

    def _visit_all(self, line: ProgressLine) -> None:
        level = list(self.came_from)
        came_from, canonical = self.came_from, self._space.canonical
        while level:
            following: list[State] = []
            for state in level:
                try:
                    steps = self._steps_from(state)
                except SimulatorError:
                    raise self._explained(state) from None
                self.transitions += len(steps)
                for _, concrete in steps:
                    after = canonical(concrete)
                    if after not in came_from:
                        came_from[after] = state
                        following.append(after)
                line.show(f"explored {len(came_from):,} states, of {self._limit:,} at most")
                if len(came_from) > self._limit:
                    raise TooManyStates(
                        f"more than {self._limit:,} states, and no error in those seen: explore "
                        "fewer tiles, stages or warps, or raise `limit`"
                    )
            level = following

    def _steps_from(self, state: State) -> list[tuple[Step, State]]:
        """Return the possible steps and the states after them; raise an error or a deadlock."""
        steps = self._successors(state)
        programs = enumerate(self._space.programs)
        if not steps and any(state[n] < len(program.steps) for n, program in programs):
            raise Deadlock(self._waiting(state))
        return steps

    def _successors(self, state: State) -> list[tuple[Step, State]]:
        found = []
        for step in self._candidates(state):
            if any(state[number] < place for number, place in step.after):
                continue
            after = self._apply(state, step)
            if after is None:
                continue
            if step.at_once:
                return [(step, after)]
            found.append((step, after))
        return found

    def _candidates(self, state: State) -> Iterator[Step]:
        space = self._space
        groups: dict[object, list[tuple[int, int]]] = {}
        for number, program in enumerate(space.programs):
            place = state[number]
            if place == len(program.steps):
                continue
            if place in program.not_before:
                self._check_turn(state, number, place)
            segment = program.segments[place]
            if segment is not None:
                groups.setdefault(segment, []).append((number, place))
                continue
            step = program.steps[place]
            if step.moves[0][0] == number:  # all members of a meeting have the same step
                yield step
        for members in groups.values():
            if len(members) > 1:
                yield space.together(tuple(members))
            else:
                (number, place), *_ = members
                yield space.programs[number].steps[place]
        yield from space.of_copies(state)

    def _check_turn(self, state: State, number: int, place: int) -> None:
        program = self._space.programs[number]
        if any(state[other] < there for other, there in program.not_before[place]):
            what = operation_in_words(program.operations[place], self._space.run)
            raise BarrierMisuse(
                f"{self._space.names[number]}: {what}: the thread arrives again before the others "
                "have come"
            )

    def _apply(self, state: State, step: Step) -> State | None:
        values = list(state)
        for component, table in step.effects:
            try:
                after = table[values[component]]
            except SimulatorError as error:
                where = f"{step.who}: {step.what}: {self._space.names[component]}"
                raise type(error)(f"{where}: {error}") from None
            if after == BLOCKED:
                return None
            values[component] = after
        for number, place in step.moves:
            values[number] = place
        return tuple(values)

    def _waiting(self, state: State) -> str:
        space = self._space
        lines, exited = ["every live thread waits and no copy is under way"], []
        for number, program in enumerate(space.programs):
            place = state[number]
            if place >= len(program.operations):
                exited += program.logs
                continue
            what = operation_in_words(program.operations[place], space.run)
            lines.append(f"  {space.names[number]}: {what}")
            for component, _ in program.steps[place].effects:
                value = space.values.values[state[component]]
                if isinstance(value, BarrierValue):
                    lines[-1] += f", which is {value.in_words()}"
        if exited:
            lines.append(f"  exited: {threads_in_words(exited)}")
        return "\n".join(lines)

    def _explained(self, state: State) -> SimulatorError:
        """Return the error of a state, with a shortest sequence of steps to it."""
        way, concrete = self._way_to(state)
        try:
            self._steps_from(concrete)
        except SimulatorError as found:
            shown = [f"  {n + 1}. {line}" for n, line in enumerate(way)][-_SHOWN:]
            before = [f"  ... {len(way) - _SHOWN} steps before"] if len(way) > _SHOWN else []
            error = type(found)("\n".join([str(found), "after these steps:", *before, *shown]))
            error.interleaving = tuple(way)
            return error
        raise AssertionError("states that differ in names alone have the same errors")

    def _way_to(self, state: State) -> tuple[list[str], State]:
        """Return the steps to a state, and the state, with the run's names in both."""
        path: list[State] = []
        at: State | None = state
        while at is not None:
            path.append(at)
            at = self.came_from[at]
        concrete, way = path.pop(), []
        while path:
            wanted = path.pop()
            step, concrete = next(
                (step, after)
                for step, after in self._successors(concrete)
                if self._space.canonical(after) == wanted
            )
            way.append(f"{step.who}: {step.what}")
        return way, concrete
