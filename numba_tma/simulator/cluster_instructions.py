"""The instructions of clusters: registers, the barrier, memory of the other blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from numba_tma.simulator.barriers import check_over_none
from numba_tma.simulator.block import FULL_MASK, Cta, Dim3
from numba_tma.simulator.cluster import resolve
from numba_tma.simulator.copies import Bytes, Load
from numba_tma.simulator.copy_instructions import note_issue
from numba_tma.simulator.errors import BadOperand, UninitializedRead
from numba_tma.simulator.protocol import Unmodelled
from numba_tma.simulator.thread import SimulatedThread, current
from numba_tma.simulator.thread_instructions import read_from, write_to, yield_turn

if TYPE_CHECKING:
    from numba_tma.simulator.barriers import TrackedBarrier
    from numba_tma.simulator.clocks import Clock

Reduction = Callable[[Any, Any], Any]

REDUCTIONS: dict[str, Reduction] = {
    "inc": lambda old, limit: 0 if old >= limit else old + 1,
    "dec": lambda old, limit: limit if old == 0 or old > limit else old - 1,
    "min": np.minimum,
    "max": np.maximum,
    "add": np.add,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


# Registers.


def cluster_block_index() -> Dim3:
    """Return the block's index in its cluster."""
    return _by_axis(lambda block, _, extent: block % extent)


def cluster_dim() -> Dim3:
    """Return the number of blocks of the cluster."""
    return current().cta.cluster_dim


def cluster_index() -> Dim3:
    """Return the cluster's index in the grid."""
    return _by_axis(lambda block, _, extent: block // extent)


def cluster_grid_dim() -> Dim3:
    """Return the number of clusters of the grid."""
    return _by_axis(lambda _, blocks, extent: blocks // extent)


def cluster_rank() -> int:
    """Return the block's rank in its cluster."""
    return current().cta.rank


def cluster_size() -> int:
    """Return the number of blocks of the cluster."""
    return len(current().cta.cluster)


def is_explicit_cluster() -> bool:
    """Return whether the kernel was given a cluster size."""
    return current().cta.explicit_cluster


def _by_axis(number: Callable[[int, int, int], int]) -> Dim3:
    cta = current().cta
    x, y, z = map(number, cta.index, cta.grid_dim, cta.cluster_dim)
    return x, y, z


# The barrier.


def barrier_cluster_arrive(qualifiers: str) -> None:
    """Arrive at the cluster's barrier without waiting."""
    thread = current()
    _meet_in_warp(thread, "barrier.cluster.arrive.aligned", qualifiers)
    thread.cta.cluster_arrive(thread, release="relaxed" not in qualifiers)


def barrier_cluster_wait(qualifiers: str) -> None:
    """Wait until all live threads of the cluster have arrived at its barrier."""
    thread = current()
    _meet_in_warp(thread, "barrier.cluster.wait.aligned", qualifiers)
    thread.cta.cluster_wait(thread)


def _meet_in_warp(thread: SimulatedThread, name: str, qualifiers: str) -> None:
    if "aligned" in qualifiers:
        thread.cta.warp_meeting(thread, name, FULL_MASK, None, orders_memory=False)


# Memory of the other blocks.


def shared_cluster_read(addr: int, dtype: np.dtype[Any], count: int | None = None) -> Any:
    """Read one value, or a vector of `count`, at an address of the cluster."""
    what = "ld_shared_cluster"
    yield_turn()
    owner, address = resolve(addr)
    _check_aligned(what, address, dtype.itemsize * (count or 1))
    return read_from(owner, what, address, dtype, count)


def shared_cluster_write(addr: int, values: Any) -> None:
    """Write one value, or a vector, at an address of the cluster."""
    what = "st_shared_cluster"
    yield_turn()
    owner, address = resolve(addr)
    _check_aligned(what, address, values.nbytes)
    write_to(owner, what, address, values)


def shared_cluster_reduce(addr: int, value: Any, operation: str) -> None:
    """Combine a value into the word at an address of the cluster, atomically."""
    what = f"red_shared_cluster_{operation}"
    yield_turn()
    owner, address = resolve(addr)
    _check_aligned(what, address, value.nbytes)
    old = read_from(owner, what, address, value.dtype, None, atomic=True)
    with np.errstate(over="ignore"):
        new = value.dtype.type(REDUCTIONS[operation](old, value))
    write_to(owner, what, address, new, atomic=True)


def st_async(destination: int, values: Any, mbar: int) -> None:
    """Write one value, or a vector, some time later; completes its bytes on `mbar`."""
    image = np.atleast_1d(values).view(np.uint8)
    _start("st_async", destination, image.nbytes, lambda old: image, mbar)


def red_async(destination: int, value: Any, mbar: int, operation: str) -> None:
    """Combine a value into a word some time later; completes its bytes on `mbar`."""
    what = f"red_async {operation}"

    def combine(old: Bytes) -> Bytes:
        with np.errstate(over="ignore"):
            new = REDUCTIONS[operation](old.view(value.dtype)[0], value)
        return np.array([new], value.dtype).view(np.uint8)

    current().note(Unmodelled, what)
    owner, address = resolve(destination)
    owner.memory.check_range(what, address, value.nbytes)
    if not owner.memory.written[address : address + value.nbytes].all():
        raise UninitializedRead(
            f"{owner.memory.describe(address, value.nbytes)} of block {owner.index}: {what} "
            "combines with the value there, but it was never written. Write its first value, then "
            "cluster_sync()"
        )
    _start(what, destination, value.nbytes, combine, mbar)


class AsyncWrite(Load):
    """A st.async or red.async in flight: a load into a block of the cluster, from a register."""

    def __init__(
        self,
        thread: SimulatedThread,
        owner: Cta,
        address: int,
        nbytes: int,
        change: Callable[[Bytes], Bytes],
        barrier: TrackedBarrier,
        clock: Clock,
    ) -> None:
        self._window = owner.memory.data[address : address + nbytes]
        self._written = owner.memory.written[address : address + nbytes]
        super().__init__(
            thread, address, nbytes, nbytes, lambda: change(self._window), barrier, clock
        )

    def advance(self) -> bool:
        """Write the bytes, then complete them on the barrier."""
        self._window[:] = self._read()
        self._written[:] = True
        if self.thread.log is not None:
            rank = self.barrier.cta.rank
            self.thread.log.landed(rank, self.address, self.nbytes, self.content)
        owner = self.barrier.cta
        owner.emit(self.thread, "landed", self.barrier.name, self.nbytes)
        owner.barrier_changed(self.thread, self.barrier, self.barrier.land(self))
        return True


def _start(
    what: str, destination: int, nbytes: int, change: Callable[[Bytes], Bytes], mbar: int
) -> None:
    thread = current()
    cta = thread.cta
    owner, address = resolve(destination)
    barrier_owner, barrier_address = resolve(mbar)
    if len(cta.cluster) == 1:
        raise BadOperand(
            f"{what}: the cluster has one block, and the instruction needs at least two: use "
            "@tma.cluster(2) or more"
        )
    if barrier_owner is not owner:
        raise BadOperand(
            f"{what}: the destination lies in block {owner.index} and the barrier in block "
            f"{barrier_owner.index}; map both to the same rank"
        )
    _check_aligned(what, address, nbytes)
    owner.memory.check_range(what, address, nbytes)
    barrier = owner.barrier_at(thread, barrier_address)
    check_over_none(owner.barriers, what, address, nbytes)
    owner.hazards.async_write(thread, address, nbytes, barrier)
    known = owner.tracked_clocks().publish(thread.row)
    write = AsyncWrite(thread, owner, address, nbytes, change, barrier, known)
    barrier.issue(write)
    owner.emit(thread, "issue", barrier.name, nbytes)
    cta.scheduler.start_copy(write)
    note_issue(thread, [write], None)
    cta.scheduler.point()


def _check_aligned(what: str, address: int, nbytes: int) -> None:
    if address % nbytes:
        raise BadOperand(f"{what}: shared address {address} is not a multiple of {nbytes} bytes")
