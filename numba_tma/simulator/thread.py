"""A simulated CUDA thread: a fiber that runs until it switches to another."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ReferenceType

import numpy as np
from numba.cuda.simulator.kernelapi import Dim3

from numba_tma.simulator.async_copies import AsyncCopies
from numba_tma.simulator.clocks import Clock
from numba_tma.simulator.copies import BulkGroups
from numba_tma.simulator.fibers import Fiber, running_fiber
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


class SimulatedThread(Fiber):  # type: ignore[misc]
    """A thread of a block, with the attributes that numba's simulated `cuda` module looks up."""

    def __init__(
        self,
        kernel: Callable[[], None],
        cta: Cta,
        block: tuple[int, int, int],
        index: tuple[int, int, int],
        debug: bool,
    ) -> None:
        super().__init__()
        self._kernel = kernel
        self._debug = debug
        self.cta = cta
        self.block = block
        self.index = index
        self.blockIdx, self.threadIdx = Dim3(*block), Dim3(*index)
        (x, y, z), (width, height, _) = index, cta.block_dim
        self.thread_id = x + width * (y + height * z)
        self.warp, self.lane = divmod(self.thread_id, WARP_SIZE)
        #: The thread's row in the vector clocks: its position among all threads of the launch.
        self.row = -1
        self.wait: WaitCondition | None = None
        #: The exception that the thread raises when it is woken, instead of going on.
        self.error: BaseException | None = None
        self.exited = False
        #: The cluster barrier's meeting at which the thread has arrived and not waited.
        self.cluster_arrival: Rendezvous | None = None
        self.groups = BulkGroups()
        self.async_copies = AsyncCopies()
        self.products = ProductGroups()
        #: The clock of relaxed waits that no fence has acquired; the clock of the last fence.
        self.seen: Clock | None = None
        self.fenced: Clock | None = None
        #: By number of an owner: the allocations that the thread has asked for.
        self.allocation_calls: dict[int, int] = {}
        #: By mbarrier address: the phase of the thread's first failed poll.
        self.failed_polls: dict[int, int] = {}
        #: The same of the step at which its wait began, which a time limit may end several times.
        self.waits_begun: dict[int, int] = {}
        #: By tensor map in global memory: the edit of it that this thread has acquired.
        self.acquired: dict[int, int] = {}
        #: The loops over stages that this thread alone executes, and their names.
        self.elected: list[tuple[ReferenceType[Any], str]] = []
        #: The pipelines that the thread has started, and where. (Few: the hash of code is slow.)
        self.started: list[object] = []
        self.accesses = 0
        #: The thread's operations on barriers and bytes, in a recorded run.
        self.log: Log | None = None
        #: Registers per thread since the last setmaxnreg; None before the first.
        self.registers: int | None = None

    @property
    def description(self) -> str:
        """Return the thread's name in messages."""
        return f"thread {self.index} of block {self.block} (warp {self.warp} lane {self.lane})"

    def note(self, kind: Callable[..., Operation], *fields: object) -> None:
        """Add an operation to the thread's log, in a recorded run; no other run makes one."""
        if self.log is not None:
            self.log.note(kind(*fields))

    def run(self) -> SimulatedThread | None:
        """Run the kernel; return the thread that goes on after its end, None after the last."""
        scheduler = self.cta.scheduler
        try:
            with np.errstate(divide="raise") if self._debug else nullcontext():
                self._kernel()
            scheduler.check_not_stopping()
            self.groups.check_done()
            self.products.check_done()
        except Stopped:
            pass
        except BaseException as error:  # every error goes to the host, which raises it
            scheduler.fail(error, self)
        return scheduler.exit(self)

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
    thread = running_fiber()
    if not isinstance(thread, SimulatedThread):
        raise RuntimeError(
            "this is for kernels: call it in a @cuda.jit kernel (which runs on the CPU if "
            "NUMBA_ENABLE_CUDASIM=1 is set before Python starts), not on the host"
        )
    return thread
