"""setmaxnreg: registers move between the warpgroups of a block."""

from __future__ import annotations

from numba_tma import simulator
from numba_tma.host.architectures import ACCELERATED
from numba_tma.ptx._instruction import RegisterCount, instruction

__all__ = ["setmaxnreg_dec", "setmaxnreg_inc"]


@instruction(
    "setmaxnreg.dec.sync.aligned.u32 {registers};", isa=(8, 0), sm=ACCELERATED, convergent=True
)
def setmaxnreg_dec(registers: RegisterCount) -> None:
    """Release registers down to `registers` per thread (24 to 256, a multiple of 8).

    Executed by all threads of a warpgroup (128), converged. `registers` is at most the threads'
    current number. ptxas ignores the instruction, with only a remark, unless the number of
    registers at launch is known: give the kernel ``launch_bounds=(threads, 1)``. Orders nothing.
    """
    simulator.setmaxnreg("dec", registers)


@instruction(
    "setmaxnreg.inc.sync.aligned.u32 {registers};", isa=(8, 0), sm=ACCELERATED, convergent=True
)
def setmaxnreg_inc(registers: RegisterCount) -> None:
    """Wait until the block has the registers free, then take `registers` per thread.

    Executed by all threads of a warpgroup (128), converged. `registers` is at least the threads'
    current number. Other warpgroups must release the requested registers, or the wait never ends.
    With 384 threads of 168 registers, ``dec`` 40 in one warpgroup allows ``inc`` 232 in the other
    two, and 240 hangs. The launch bounds are those of `setmaxnreg_dec`. Orders nothing.
    """
    simulator.setmaxnreg("inc", registers)
