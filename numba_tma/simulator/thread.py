"""A simulated CUDA thread: an operating-system thread that runs only while it has the baton."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Protocol

from numba.cuda.simulator.kernel import BlockThread

from numba_tma.simulator.async_copies import AsyncCopies
from numba_tma.simulator.clocks import Clock
from numba_tma.simulator.copies import BulkGroups
from numba_tma.simulator.products import ProductGroups

if TYPE_CHECKING:
    from numba_tma.simulator.block import Cta
    from numba_tma.simulator.clocks import Clock
    from numba_tma.simulator.protocol import Log, Operation
    from numba_tma.simulator.rendezvous import Rendezvous

WARP_SIZE = 32


class WaitCondition(Protocol):
    """The condition that a parked thread waits for."""

    def headline(self) -> str:
        """Return the wait's line of a deadlock report, up to the names of the threads."""


class Stopped(BaseException):
    """Unwinds a simulated thread whose launch is over; kernels cannot catch it by accident."""


class SimulatedThread(BlockThread):  # type: ignore[misc]
    """A thread of a block, with the attributes that numba's simulated `cuda` module looks up."""

    def __init__(
        self,
        kernel: Callable[[], None],
        cta: Cta,
        block: tuple[int, int, int],
        index: tuple[int, int, int],
        debug: bool,
    ) -> None:
        super().__init__(kernel, cta, block, index, debug)
        self.cta = cta
        self.block = block
        self.index = index
        self.warp, self.lane = divmod(int(self.thread_id), WARP_SIZE)
        #: The thread's row in the vector clocks: its position among all threads of the launch.
        self.row = -1
        self.baton = threading.Lock()
        self.baton.acquire()
        self.wait: WaitCondition | None = None
        #: The exception that the thread raises when it is woken, instead of going on.
        self.throw: BaseException | None = None
        self.exited = False
        #: The cluster barrier's meeting at which the thread has arrived and not waited.
        self.cluster_arrival: Rendezvous | None = None
        self.groups = BulkGroups()
        self.async_copies = AsyncCopies()
        self.products = ProductGroups()
        #: The clock of relaxed waits that no fence has acquired; the clock of the last fence.
        self.seen: Clock | None = None
        self.fenced: Clock | None = None
        self.allocation_calls: Counter[Hashable] = Counter()
        #: By mbarrier address: the phase of the thread's first failed poll.
        self.failed_polls: dict[int, int] = {}
        #: By tensor map in global memory: the edit of it that this thread has acquired.
        self.acquired: dict[int, int] = {}
        self.accesses = 0
        #: The thread's operations on barriers and bytes, in a recorded run.
        self.log: Log | None = None
        #: Registers per thread since the last setmaxnreg; None before the first.
        self.registers: int | None = None

    @property
    def description(self) -> str:
        """Return the thread's name in messages."""
        return f"thread {self.index} of block {self.block} (warp {self.warp} lane {self.lane})"

    def note(self, operation: Operation) -> None:
        """Add an operation to the thread's log, in a recorded run."""
        if self.log is not None:
            self.log.note(operation)

    def run(self) -> None:
        """Run the kernel; at its end the scheduler chooses the next thread."""
        scheduler = self.cta.scheduler
        try:
            threading.Thread.run(self)
            scheduler.check_not_stopping()
            self.groups.check_done()
            self.products.check_done()
        except Stopped:
            pass
        except BaseException as error:  # every error goes to the host, which raises it
            scheduler.fail(error, self)
        scheduler.exit(self)

    def syncthreads(self) -> None:
        """Wait for all live threads of the block."""
        self.cta.syncthreads(self, True)

    def syncthreads_count(self, value: object) -> int:
        """Wait for all live threads; return the number of true values."""
        return sum(map(bool, self.cta.syncthreads(self, value)))

    def syncthreads_and(self, value: object) -> int:
        """Wait for all live threads; return 1 if all values are true."""
        return int(all(self.cta.syncthreads(self, value)))

    def syncthreads_or(self, value: object) -> int:
        """Wait for all live threads; return 1 if any value is true."""
        return int(any(self.cta.syncthreads(self, value)))


def current() -> SimulatedThread:
    """Return the calling simulated thread."""
    thread = threading.current_thread()
    if not isinstance(thread, SimulatedThread):
        raise RuntimeError(
            "this is for kernels: call it in a @cuda.jit kernel (which runs on the CPU if "
            "NUMBA_ENABLE_CUDASIM=1 is set before Python starts), not on the host"
        )
    return thread
