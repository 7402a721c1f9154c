"""A body's requirements on its kernel (shared memory, a cluster, launch bounds), 32-bit arithmetic.

The bodies here are the simulator's; kernels use `numba_tma.backend.lowering.primitives`.
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

    All arguments are constants. Errors name the memory by `owner` and by its content `what`. The
    error of the limit shows the sum of ``owner.shared_parts(what)``. `kind` is a requirement on the
    launch: ``"ring384"`` requires blocks of 384 threads, ``"ring"`` two whole warps or more,
    ``"line"`` whole warps in one dimension.
    """
    return simulator.allocate_shared((owner, what) if what else owner, nbytes, alignment)


@native
def require_cluster(owner: Any) -> None:
    """Require clusters of ``owner.cluster``; else ``owner.cluster_rule`` writes the error."""
    if simulator.cluster_dim()[:2] != owner.cluster:
        raise simulator.BadOperand(owner.cluster_rule(simulator.cluster_dim()))


@native
def add32(a: int, b: int) -> int:
    """Return a + b modulo 2**32, added in 32 bits; ``u32(a + b)`` adds in 64 bits first."""
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
    """Return a warp-uniform address in a form that ptxas does not compute again."""
    return address


@native
def tiles_are_used() -> bool:
    """Return whether the function that calls this body reads or writes tiles anywhere.

    The result may be True on a path without such accesses. `TileAccesses.unfenced` starts with this
    value, so that it is the same on all paths into a loop, and the loop needs no test.
    """
    return False


@native
def require_launch_bounds(threads: int) -> None:
    """Compile the kernel for blocks of `threads` threads, one per SM."""
