"""The simulator's errors: one exception type for each kind of mistake."""

from __future__ import annotations


class SimulatorError(RuntimeError):
    """A mistake in a kernel that the simulator has found."""

    #: The steps that lead to the mistake, if `explore` found it.
    interleaving: tuple[str, ...] = ()


class Deadlock(SimulatorError):
    """Every live thread waits, and nothing in flight could wake one of them."""


class EarlyRead(SimulatorError):
    """Bytes of an asynchronous load were read before its completion was known to the reader."""


class EarlyOverwrite(SimulatorError):
    """Bytes were written while a thread or copy may still read or write them."""


class DataRace(SimulatorError):
    """Two threads access the same bytes, one of them writes, and nothing orders the two."""


class UnequalTurns(SimulatorError):
    """Warps of a role have taken different numbers of a pipeline's stages."""


class MissingFence(SimulatorError):
    """The copy engine accesses a thread's writes without a proxy fence and sync in between."""


class UninitializedRead(EarlyRead):
    """Shared bytes were read that no thread has written and no load fills."""


class WrongByteCount(SimulatorError):
    """The loads that complete on a barrier's phase bring another number of bytes than expected."""


class MissingClusterSync(SimulatorError):
    """Another block's shared memory was used when it may not have started, or may have ended."""


class UnfinishedCopy(SimulatorError):
    """A thread or block ended with copies that no thread has waited for."""


class UnfinishedProduct(SimulatorError):
    """A fragment was used, or a thread ended, before the wait for the wgmma that changes it."""


class TensorMemoryMisuse(SimulatorError):
    """Tensor memory was used outside an allocation or a warp's lanes, or not freed."""


class BarrierMisuse(SimulatorError):
    """An mbarrier or named barrier was used in a way that its rules forbid."""


class BadCoordinate(SimulatorError):
    """Coordinates that the hardware refuses with an illegal-instruction fault."""


class BadOperand(SimulatorError):
    """An address, size, count or mask outside what the instruction accepts."""


class OutOfSharedMemory(SimulatorError):
    """The block asks for more shared memory than there is."""


class NotCompiled(SimulatorError):
    """The compiler refuses the kernel (``NUMBA_TMA_SIM_COMPILES``)."""


class TimingDependent(SimulatorError):
    """A thread's operations depend on timing, so the orders of the launch cannot be explored."""


class TooManyStates(SimulatorError):
    """A kernel has more states than the `limit` of `explore`."""
