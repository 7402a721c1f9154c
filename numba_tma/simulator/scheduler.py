"""The scheduler: one simulated thread runs at a time, and copies land in between.

Exactly one thread runs at a time and hands over at scheduling points only, so a run depends on its
seed alone. The thread that stops running picks its successor, so that a step costs one switch.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from numba_tma.simulator.barriers import MbarrierWait
from numba_tma.simulator.copies import Copy
from numba_tma.simulator.errors import Deadlock, SimulatorError
from numba_tma.simulator.fibers import Fiber, running_fiber
from numba_tma.simulator.thread import SimulatedThread, Stopped, WaitCondition

#: Every try_wait and test_wait may return False this many times, without an event in between,
#: before the run counts as a deadlock.
IDLE_ROUNDS = 8
#: The same while threads still write memory, which another thread may poll.
LIVELOCK_ROUNDS = 1000


class Scheduler:
    """Runs the threads of a set of blocks that are alive together."""

    def __init__(self, seed: str, report: Callable[[Sequence[SimulatedThread]], str]) -> None:
        self._random = random.Random(seed)
        self._draw = self._random.random
        # Seeds also choose these rates: copies land at once or as late as possible, threads run on
        # or take turns. Bugs appear at either end. No rate is 0: otherwise a thread that spins
        # would keep copies, for which another thread waits, from landing.
        self._landing_rate = self._random.choice((0.5, 0.1, 0.02, 0.002))
        self._switch_rate = self._random.choice((1.0, 0.5, 0.1))
        self._report = report
        self.threads: list[SimulatedThread] = []
        self.step = 0
        self.error: BaseException | None = None
        self._runnable: list[SimulatedThread] = []
        self._copies: list[Copy] = []
        self._running: SimulatedThread | None = None
        self._stopping = False
        self._host: Fiber | None = None
        # The number of events that could end a wait; writes are counted apart.
        self._events = self._writes = 0
        self._expired = 0
        self._idle = (0, 0)
        self._idle_rounds = self._quiet_rounds = 0

    def run(self, threads: Sequence[SimulatedThread]) -> None:
        """Run all threads to their end; raise the first error that one of them met."""
        self.threads = list(threads)
        self._runnable = list(threads)
        self._host = running_fiber()
        try:
            # Threads switch to each other. They come back here to begin another one, so that no
            # thread's stack lies on another's, and with None at the end.
            self._running = self._next()
            while self._running is not None:
                self._running = self._running.switch()
        finally:
            self._stop()
        if self.error is not None:
            raise self.error

    # Called by the running thread.

    def point(self) -> None:
        """Let another thread run, perhaps, or a copy land."""
        thread = self._current()
        stay = self._draw() >= self._switch_rate
        if not stay:
            self._runnable.append(thread)
        self._switch(thread, stay=stay)

    def park(self, wait: WaitCondition) -> None:
        """Stop the running thread until it is woken."""
        thread = self._current()
        thread.wait = wait
        begun = self.step
        self._switch(thread)
        if thread.cta.traced and (kind := getattr(wait, "range_kind", "")):
            thread.cta.emit(thread, kind, getattr(wait, "range_name", ""), begun=begun)

    def wake(self, thread: SimulatedThread) -> None:
        """Let a parked thread go on."""
        thread.wait = None
        self._runnable.append(thread)

    def start_copy(self, copy: Copy) -> None:
        """Add a copy, which runs by itself from now on; each of its steps is an event."""
        self._copies.append(copy)

    def event(self) -> None:
        """Count an event that could end a wait."""
        self._events += 1

    def wrote(self) -> None:
        """Count a write to memory."""
        self._writes += 1

    @property
    def nanoseconds(self) -> int:
        """The time since the blocks began; an expired wait takes as long as on a GPU."""
        return 1_000 * self.step + 1_000_000 * self._expired

    def check_not_stopping(self) -> None:
        """Unwind the calling thread if the run is over."""
        if self._stopping or self.error is not None:
            raise Stopped

    # Called by a thread when it ends.

    def fail(self, error: BaseException, thread: SimulatedThread) -> None:
        """Keep the first error, with the name of its thread."""
        if self.error is None:
            self.error = error
            if not isinstance(error, Deadlock):
                _prefix(error, f"tid={list(thread.index)} ctaid={list(thread.block)}")

    def exit(self, thread: SimulatedThread) -> SimulatedThread | None:
        """Return the thread that goes on after the end of `thread`."""
        thread.exited = True
        if self._stopping:
            return None
        self.event()
        thread.cta.thread_exited(thread)
        return self._next()

    # Inside.

    def _current(self) -> SimulatedThread:
        if self._stopping or self.error is not None:
            raise Stopped
        assert self._running is not None
        return self._running

    def _switch(self, thread: SimulatedThread, *, stay: bool = False) -> None:
        following = self._next(thread if stay else None)
        if following is not thread:
            self._running = following
            if following:  # it has begun
                following.switch()
            else:
                assert self._host is not None
                self._host.switch(following)
            if self._stopping or self.error is not None:
                raise Stopped
        if thread.error is not None:
            error, thread.error = thread.error, None
            raise error

    def _next(self, preferred: SimulatedThread | None = None) -> SimulatedThread | None:
        """Choose the next thread, the `preferred` one if any; None when all ended or one failed."""
        self.step += 1
        runnable = self._runnable
        while self.error is None:
            waiting = preferred is None and not runnable
            if self._copies and (waiting or self._draw() < self._landing_rate):
                self._advance_copy()
            elif preferred is not None:
                return preferred
            elif runnable:
                index = int(self._draw() * len(runnable))
                runnable[index], runnable[-1] = runnable[-1], runnable[index]
                return runnable.pop()
            elif all(thread.exited for thread in self.threads):
                return None
            else:
                self._end_idleness()
        return None

    def _advance_copy(self) -> None:
        index = int(self._draw() * len(self._copies))
        copy = self._copies[index]
        self.event()
        try:
            done = copy.advance()
        except Exception as error:  # the error is a copy's, not the next thread's
            self.fail(error, copy.thread)
            return
        if done:
            self._copies[index] = self._copies[-1]
            self._copies.pop()

    def _end_idleness(self) -> None:
        """Let the hardware's time limit on waits expire; end the run if no thread can go on."""
        now = self._events, self._writes
        self._idle_rounds = self._idle_rounds + 1 if now == self._idle else 0
        self._quiet_rounds = self._quiet_rounds + 1 if now[0] == self._idle[0] else 0
        self._idle = now
        timed = [t for t in self.threads if isinstance(t.wait, MbarrierWait)]
        self._expired += 1
        if timed and self._idle_rounds < IDLE_ROUNDS and self._quiet_rounds < LIVELOCK_ROUNDS:
            for thread in timed:
                self.wake(thread)
            return
        parked = [thread for thread in self.threads if thread.wait is not None]
        # Raised in a waiting thread, so that the traceback leads to the kernel's line.
        victim = (timed or parked)[0]
        victim.error = Deadlock(self._report(self.threads))
        self.wake(victim)

    def _stop(self) -> None:
        """End every live thread."""
        self._stopping = True
        for thread in self.threads:
            if thread:
                thread.throw(Stopped)


def _prefix(error: BaseException, text: str) -> None:
    """Put `text` in front of an error's message, whatever its type."""
    if len(error.args) > 1 and not isinstance(error, SimulatorError):
        error.add_note(text)
    else:
        error.args = (f"{text}: {error}" if str(error) else text,)
