"""The registers of a block, which setmaxnreg moves between its warpgroups."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numba_tma.simulator.thread import SimulatedThread

WARPGROUP = 128
REGISTER_FILE = 65536  # of a multiprocessor, 32 bits each
MOST = 256  # of a thread, as setmaxnreg counts them


class Registers:
    """The registers of each warpgroup, and the free registers of the block.

    A launch is taken to share the whole register file out evenly, in multiples of 8 per thread, as
    it does with ``launch_bounds=(threads, 1)``; what does not divide belongs to nobody.
    """

    def __init__(self, threads: int) -> None:
        self.launch = min(MOST, REGISTER_FILE // threads // 8 * 8)
        self.total = self.launch * threads
        self._sizes = [min(WARPGROUP, threads - i) for i in range(0, threads, WARPGROUP)]
        self._held = [self.launch] * len(self._sizes)
        self.free = 0

    def move(self, group: int, registers: int) -> bool:
        """Give each thread of a warpgroup this many; return False if too few are free."""
        if self.lacking(group, registers) > 0:
            return False
        self.free -= self._needed(group, registers)
        self._held[group] = registers
        return True

    def lacking(self, group: int, registers: int) -> int:
        """Return how many registers other warpgroups have to release first."""
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
        """Return the line of a deadlock report for it."""
        sum_ = self._registers.in_words(self._group, self._wanted)
        return f"{self._name} of warpgroup {self._group}: {sum_}; waiting"


def take(thread: SimulatedThread, name: str, count: int) -> None:
    """Let the thread's warpgroup, which executes this together, have `count` per thread."""
    cta, group = thread.cta, thread.warp // 4
    cta.scheduler.check_not_stopping()
    while not cta.registers.move(group, count):
        cta.scheduler.park(RegisterWait(name, group, count, cta.registers))
    cta.scheduler.event()
    for other in cta.threads:
        if isinstance(other.wait, RegisterWait):
            cta.scheduler.wake(other)
