"""What a body asks of its kernel: shared memory, a cluster, launch bounds, 32-bit arithmetic.

The bodies here are the simulator's; kernels have those of `numba_tma.backend.lowering.primitives`.
"""

from __future__ import annotations

from typing import Any

from numba_tma import simulator
from numba_tma.backend.interface import native


@native
def allocate_shared(
    owner: Any, nbytes: int, alignment: int, what: str = "", kind: str = "shared"
) -> int:
    """Return the address of `nbytes` of shared memory, a new one for each call in the source.

    All arguments are constants. `owner` is what errors call the memory, with `what` it holds;
    its method ``shared_parts(what)`` gives the parts that the sum of a limit error shows.
    `kind` is what the launch has to know: ``"ring384"`` is for blocks of 384 threads,
    ``"ring"`` for two whole warps or more, ``"line"`` for whole warps in one dimension.
    """
    return simulator.allocate_shared((owner, what) if what else owner, nbytes, alignment)


@native
def require_cluster(owner: Any) -> None:
    """Hold the kernel to clusters of ``owner.cluster``; else ``owner.cluster_rule`` says why."""
    if simulator.cluster_dim()[:2] != owner.cluster:
        raise simulator.BadOperand(owner.cluster_rule(simulator.cluster_dim()))


@native
def add32(a: int, b: int) -> int:
    """Return a + b modulo 2**32; what ``u32(a + b)`` adds with 64 bits first."""
    return (int(a) + int(b)) & 0xFFFFFFFF


@native
def sub32(a: int, b: int) -> int:
    """Return a - b modulo 2**32."""
    return (int(a) - int(b)) & 0xFFFFFFFF


@native
def quotient(number: int, divisor: int) -> tuple[int, int]:
    """Return quotient and remainder of 32 bits; a kernel does not test `divisor` for 0."""
    return divmod(number, divisor)


@native
def kept_in_register(address: int) -> int:
    """Return an address, the same in all lanes, in a form that ptxas does not compute again."""
    return address


@native
def tiles_are_used() -> bool:
    """Return whether the function that calls this body reads or writes tiles anywhere.

    True on a path where it does not is allowed. What begins with it in `TileAccesses.unfenced` is
    the same on all ways into a loop, which then asks nothing.
    """
    return False


@native
def require_launch_bounds(threads: int) -> None:
    """Compile the kernel for blocks of `threads` threads, one to an SM."""
