"""The registers of a block, which setmaxnreg moves between its warpgroups."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numba_tma.simulator.thread import SimulatedThread

WARPGROUP = 128
REGISTER_FILE = 65536  # of an SM, 32 bits each
MOST = 256  # of a thread, for setmaxnreg


class Registers:
    """The registers of each warpgroup, and the free registers of the block.

    A launch is assumed to divide the whole register file evenly, in multiples of 8 per thread, as
    with ``launch_bounds=(threads, 1)``. The remainder is unused.
    """

    def __init__(self, threads: int) -> None:
        self.launch = min(MOST, REGISTER_FILE // threads // 8 * 8)
        self.total = self.launch * threads
        self._sizes = [min(WARPGROUP, threads - i) for i in range(0, threads, WARPGROUP)]
        self._held = [self.launch] * len(self._sizes)
        self.free = 0
        self.waiting: list[SimulatedThread] = []

    def move(self, group: int, registers: int) -> bool:
        """Set the registers per thread of a warpgroup; return False if too few are free."""
        if self.lacking(group, registers) > 0:
            return False
        self.free -= self._needed(group, registers)
        self._held[group] = registers
        return True

    def lacking(self, group: int, registers: int) -> int:
        """Return the number of registers that other warpgroups must release first."""
        return self._needed(group, registers) - self.free

    def _needed(self, group: int, registers: int) -> int:
        return (registers - self._held[group]) * self._sizes[group]

    def in_words(self, group: int, registers: int) -> str:
        """Return the sum that exceeds the register file."""
        size, held = self._sizes[group], self._held[group]
        terms = " + ".join(f"{h} x {n}" for h, n in zip(self._held, self._sizes))
        return (
            f"it needs {size} x ({registers} - {held}) = {self._needed(group, registers):,} more "
            f"and {self.free:,} are free: the block has {self.total:,}, the warpgroups {terms}. "
            "Ask for fewer, or let another warpgroup give back more"
        )


class RegisterWait:
    """A thread waits until its block has the registers that its warpgroup asks for."""

    def __init__(self, name: str, group: int, wanted: int, registers: Registers) -> None:
        self._name, self._group, self._wanted = name, group, wanted
        self._registers = registers

    def headline(self) -> str:
        """Return the wait's line of a deadlock report."""
        sum_ = self._registers.in_words(self._group, self._wanted)
        return f"{self._name} of warpgroup {self._group}: {sum_}; waiting"


def take(thread: SimulatedThread, name: str, count: int) -> None:
    """Give the thread's warpgroup, which executes this together, `count` registers per thread."""
    cta, group = thread.cta, thread.warp // 4
    cta.scheduler.check_not_stopping()
    while not cta.registers.move(group, count):
        cta.registers.waiting.append(thread)
        cta.scheduler.park(RegisterWait(name, group, count, cta.registers))
    cta.scheduler.event()
    waiting, cta.registers.waiting = cta.registers.waiting, []
    for other in waiting:
        cta.scheduler.wake(other)
