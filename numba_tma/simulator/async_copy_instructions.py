"""cp.async, its groups and its arrivals on mbarriers, executed for the calling thread."""

from __future__ import annotations

from numba_tma.simulator.async_copies import AsyncArrival, AsyncCopy, AsyncWait
from numba_tma.simulator.barriers import check_over_none
from numba_tma.simulator.copies import Bytes
from numba_tma.simulator.copy_rules import global_view
from numba_tma.simulator.errors import BadOperand, BarrierMisuse
from numba_tma.simulator.global_memory import accessed
from numba_tma.simulator.mbarrier_instructions import change
from numba_tma.simulator.protocol import ArriveAfterCopies, AwaitCopies, ByteSpan, CopyAsync
from numba_tma.simulator.thread import current


def cp_async(what: str, dst: int, src: Bytes, nbytes: int, src_size: int) -> None:
    """Copy the first `src_size` bytes at `src` to shared `dst`, and zeros up to `nbytes`."""
    thread, address = current(), int(dst)
    cta, copies = thread.cta, thread.async_copies
    if not 0 <= src_size <= nbytes:
        raise BadOperand(
            f"{what}: src_size is {src_size}; it must be 0 to the {nbytes} of the copy"
        )
    if address % nbytes:
        raise BadOperand(
            f"{what}: destination is shared address {address}; a copy of {nbytes} bytes needs a "
            f"multiple of {nbytes}"
        )
    cta.memory.check_range(f"{what}, destination", address, nbytes)
    source = src[:0]
    if src_size:
        source = global_view(what, "source", src, nbytes)
        if source.nbytes < src_size:
            raise BadOperand(
                f"{what}: {src_size} bytes are read where the array has {source.nbytes} left: "
                "give a smaller src_size"
            )
        accessed(source[:src_size], writes=False)
    check_over_none(cta.barriers, what, address, nbytes)
    # Hazards are checked first, before this copy is recorded.
    cta.hazards.copy(thread, address, nbytes, copies.issued + 1)
    copy = AsyncCopy(thread, copies.issue(), address, source, nbytes)
    if thread.log is not None:
        copy.content = thread.log.new_fill()
        into = ByteSpan(cta.rank, address, address + nbytes)
        thread.note(CopyAsync, copy.number, copy.content, into)
    cta.scheduler.start_copy(copy)
    cta.scheduler.point()


def cp_async_commit_group() -> None:
    """Close this thread's group of copies."""
    thread = current()
    thread.async_copies.commit()
    thread.cta.scheduler.point()


def cp_async_wait_group(n: int) -> None:
    """Wait until all but this thread's newest `n` groups are complete."""
    left = int(n)
    if left < 0:
        raise BadOperand(f"cp_async_wait_group({n}): the number of groups must not be negative")
    groups = current().async_copies.groups
    awaited = groups[: max(0, len(groups) - left)]
    _wait(f"cp_async_wait_group({left})", awaited[-1] if awaited else 0)
    del groups[: len(awaited)]


def cp_async_wait_all() -> None:
    """Wait until all copies of this thread are complete."""
    copies = current().async_copies
    _wait("cp_async_wait_all()", copies.issued)
    copies.groups.clear()


def cp_async_mbarrier_arrive(addr: int) -> None:
    """Add to the current phase one pending arrival: that of this thread's copies."""
    _arrive("cp_async_mbarrier_arrive", addr, hold=True)


def cp_async_mbarrier_arrive_noinc(addr: int) -> None:
    """Arrive when this thread's copies are complete."""
    _arrive("cp_async_mbarrier_arrive_noinc", addr, hold=False)


def _wait(what: str, number: int) -> None:
    thread = current()
    scheduler = thread.cta.scheduler
    if thread.async_copies.complete(number):
        scheduler.point()
    else:
        scheduler.park(AsyncWait(thread.async_copies, what, number))
    thread.note(AwaitCopies, number)
    clocks = thread.cta.tracked_clocks()
    column = clocks.copies + thread.row
    clocks.table[thread.row, column] = max(int(clocks.table[thread.row, column]), number)


def _arrive(what: str, addr: int, *, hold: bool) -> None:
    thread, address = current(), int(addr)
    cta, number = thread.cta, thread.async_copies.issued
    barrier = cta.barrier_at(thread, address)
    thread.note(ArriveAfterCopies, barrier.place, number, hold)
    if hold:
        change(thread, cta, barrier, barrier.model.hold)

    def arrive() -> None:
        if cta.barriers.get(address) is not barrier:
            raise BarrierMisuse(
                f"{barrier.name}: mbarrier_inval before the arrival of {what} was made; wait for "
                "its phase first"
            )
        clocks = cta.tracked_clocks()
        column = clocks.copies + thread.row
        told = clocks.nothing()
        told[column] = number
        barrier.publish(told)
        change(thread, cta, barrier, barrier.model.arrive)

    cta.scheduler.start_copy(AsyncArrival(thread, number, arrive))
    cta.scheduler.point()
