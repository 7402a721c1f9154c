"""setmaxnreg: the warpgroups of a block share its registers out anew."""

from __future__ import annotations

from numba_tma import simulator
from numba_tma.ptx._instruction import RegisterCount, instruction


@instruction("setmaxnreg.dec.sync.aligned.u32 {registers};", isa=(8, 0), sm="90a", convergent=True)
def setmaxnreg_dec(registers: RegisterCount) -> None:
    """Give back all but `registers` registers per thread (24 to 256, a multiple of 8).

    Executed by all threads of a warpgroup (128), converged; `registers` is not above what they
    have. ptxas ignores it, with a remark only, unless it knows the registers at launch: give the
    kernel ``launch_bounds=(threads, 1)``. Orders nothing.
    """
    simulator.setmaxnreg("dec", registers)


@instruction("setmaxnreg.inc.sync.aligned.u32 {registers};", isa=(8, 0), sm="90a", convergent=True)
def setmaxnreg_inc(registers: RegisterCount) -> None:
    """Wait until the block has the registers free, then take `registers` per thread.

    Executed by all threads of a warpgroup (128), converged; `registers` is not below what they
    have. Others must give back what is asked for here, or it waits for ever: with 384 threads of
    168 registers, ``dec`` 40 in one warpgroup allows ``inc`` 232 in the other two, and 240 hangs.
    Orders nothing. Launch bounds as for `setmaxnreg_dec`.
    """
    simulator.setmaxnreg("inc", registers)
