"""Waiting on mbarriers and flags: the loop that PTX leaves to its users; in debug mode its limit.

Every wait of the library is `wait_for`, `wait_for_flag` or `meet`. Outside of debug mode they are a
loop over mbarrier.try_wait, one over loads, and a named barrier. In debug mode, which the
environment or the `Site` chooses when a kernel is compiled, they end after `wait_limit` seconds:
one thread of the warp leaves a record for the host, and the warp exits. See
`numba_tma.host.debug`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from numba_tma.backend.interface import (
    compile_time,
    constant_class,
    device_function,
    i64,
    native,
    u32,
)
from numba_tma.device.marks import now, waited_for_flag
from numba_tma.host.annotations import Address
from numba_tma.host.debug import (
    CAPACITY,
    CLAIMS,
    COUNT,
    HEADER,
    NUM_CLAIMS,
    RECORD,
    STOPPED,
    UNCOUNTED,
    Site,
)
from numba_tma.host.environment import wait_limit
from numba_tma.ptx import (
    activemask,
    atom_add_u32,
    atom_exch_b32,
    barrier_sync,
    cluster_ctarank,
    cluster_nctarank,
    ctaid_x,
    ctaid_y,
    ctaid_z,
    fence_acq_rel,
    globaltimer,
    laneid,
    lanemask_lt,
    ld_relaxed_sys_global_u32,
    ld_shared_u32,
    ld_shared_u64,
    mapa,
    mbarrier_arrive,
    mbarrier_inval,
    mbarrier_try_wait,
    mbarrier_try_wait_parity,
    nanosleep,
    ntid_x,
    ntid_y,
    red_shared_cluster_add_u32,
    st_global_u64,
    st_global_v4_u32,
    tid_x,
    tid_y,
    tid_z,
)

if TYPE_CHECKING:
    from numba_tma.device.barrier import Barrier

constant_class(Site)

LIMIT = int(wait_limit() * 1e9)  # nanoseconds
# A healthy wait, or the transfer of a byte count between blocks, takes less time than this.
GRACE = LIMIT // 32
RECORD_WORDS = RECORD.itemsize // 4


@native
def wait_for(barrier: Barrier, parity: int, site: Site, stage: int = 0, iteration: int = 0) -> None:
    """Wait until the phase of `parity` has completed, with acquire semantics at block scope.

    Executed by any thread: a loop over mbarrier.try_wait. `site`, the index `stage` and the number
    `iteration`, counted from 0, name the wait in debug mode. There it ends after the limit, and if
    the site has `tx_bytes` it compares them with the ledger of `barrier`.
    """
    while not try_wait_for(barrier, parity, site):
        pass


@device_function
def try_wait_for(barrier: Barrier, parity: int, site: Site) -> bool:
    """Return whether the phase of `parity` has completed, after waiting a limited time."""
    if site.in_cluster:
        return mbarrier_try_wait_parity(barrier, parity, None, "acquire.cluster")
    return mbarrier_try_wait_parity(barrier, parity)


@device_function
def wait_for_flag(flag: Address, site: Site) -> None:
    """Wait until the 32-bit word at a global address, which another block writes, is not 0.

    Executed by any thread. The wait orders nothing: a thread that reads what the other block wrote
    executes `fence_acq_rel` after it. `site` names the wait in debug mode.
    """
    begun = now()
    if has_limit(site):
        start = i64(globaltimer())
        while ld_relaxed_sys_global_u32(flag) == 0:
            if is_out_of_time(start):
                give_up_flag(site, start)
    else:
        while ld_relaxed_sys_global_u32(flag) == 0:
            pass
    waited_for_flag(site, begun)


@compile_time
def has_limit(site: Site) -> bool:
    """Return whether the wait at a site ends after the limit."""
    return site.is_bounded


@native
def meet(barrier_id: int, threads: int, barrier: Barrier, site: Site) -> None:
    """Synchronise `threads` threads by the named barrier `barrier_id`, as `barrier_sync` does.

    In debug mode the threads meet at `barrier` instead, an mbarrier of `threads` arrivals: a named
    barrier whose other threads have exited never completes.
    """
    barrier_sync(barrier_id, threads)


# --------------------------------------------------- the bounded forms, of compiled kernels only


@device_function
def wait_bounded(barrier: Barrier, parity: int, site: Site, stage: int, iteration: int) -> None:
    """Wait as `wait_for` does, for a limited time."""
    if not try_wait_for(barrier, parity, site):
        start = i64(globaltimer())
        while not try_wait_for(barrier, parity, site):
            if is_out_of_time(start):
                give_up(barrier, parity, site, stage, iteration, start)


@device_function
def wait_counted(barrier: Barrier, parity: int, site: Site, stage: int, iteration: int) -> None:
    """Wait as `wait_bounded` does, then compare the issued bytes with the expected ones."""
    wait_bounded(barrier, parity, site, stage, iteration)
    if is_miscounted(barrier, site, iteration):
        start = i64(globaltimer())
        # A count from another block of the cluster may arrive later than the bytes themselves.
        while is_miscounted(barrier, site, iteration):
            if i64(globaltimer()) - start > GRACE:
                issued = issued_bytes(barrier, site, iteration)
                if is_first_lane():
                    record(site.ledger, stage, parity, iteration, 0, barrier.address, 0, issued)
                    fence_acq_rel("sys")
                leave()


@device_function
def is_miscounted(barrier: Barrier, site: Site, iteration: int) -> bool:
    """Return whether the issued bytes, if they were counted, differ from the expected ones."""
    issued = issued_bytes(barrier, site, iteration)
    return issued != u32(site.tx_bytes) and issued != u32(UNCOUNTED)


@device_function
def meet_bounded(barrier: Barrier, site: Site) -> None:
    """Arrive on `barrier` and wait for a limited time until the others have."""
    state = mbarrier_arrive(barrier)
    if not mbarrier_try_wait(barrier, state):
        start = i64(globaltimer())
        while not mbarrier_try_wait(barrier, state):
            if is_out_of_time(start):
                give_up(barrier, u32(0), site, u32(0), u32(0), start)


@device_function
def is_out_of_time(start: int) -> bool:
    """Return whether a wait has exceeded the limit; end the thread if the kernel is ending."""
    waited = i64(globaltimer()) - start
    # Blocks that start after the first record end early: a grid may have many more of them.
    if GRACE < waited and waited < 2 * GRACE and is_ending():
        if is_first_lane():
            count_stopped()
        leave()
    return waited > LIMIT


@device_function
def give_up(
    barrier: Barrier,
    parity: int,
    site: Site,
    stage: int,
    iteration: int,
    start: int,
) -> None:
    """Write one record for the stuck threads of the warp, and end them."""
    if is_first_lane():
        waited = i64(globaltimer()) - start
        # Other stuck warps get time to write their records before this one exits and invalidates
        # the barrier.
        while i64(globaltimer()) - start < waited + GRACE:
            nanosleep(u32(1000))
        address = u32(barrier.address)
        word = i64(0)
        # The state of a live mbarrier is not in the memory that an ordinary load sees, but after
        # mbarrier.inval it is (measured on an H200). One warp alone does that.
        if claim(address):
            mbarrier_inval(address)
            word = i64(ld_shared_u64(address))
        issued = issued_bytes(barrier, site, iteration)
        record(site, stage, parity, iteration, waited, address, word, issued)
        fence_acq_rel("sys")
    leave()


@device_function
def give_up_flag(site: Site, start: int) -> None:
    """Write one record for the threads of the warp that wait for a flag, and end them."""
    if is_first_lane():
        waited = i64(globaltimer()) - start
        record(site, u32(0), u32(0), u32(0), waited, u32(0), 0, u32(0))
        fence_acq_rel("sys")
    leave()


@device_function
def check_coordinate(site: Site, coordinate: int) -> None:
    """End the threads whose tiled copy would fault: it starts off a multiple of 16 bytes."""
    if u32(coordinate * site.itemsize) % u32(site.unit) != 0:
        if is_first_lane():
            record(site, u32(0), u32(0), coordinate, 0, u32(0), 0, u32(0))
            fence_acq_rel("sys")
        leave()


@device_function
def count_multicast(ledger: int, nbytes: int, mask: int) -> None:
    """Add `nbytes` to the ledgers of the blocks in `mask`, at the offset that `ledger` has here."""
    for rank in range(cluster_nctarank()):
        if (u32(mask) >> u32(rank)) & u32(1) != 0:
            red_shared_cluster_add_u32(mapa(ledger, rank), nbytes)


@device_function
def issued_bytes(barrier: Barrier, site: Site, iteration: int) -> int:
    """Return the bytes that copies onto a stage's barrier have issued since its turn began."""
    if site.tx_bytes == 0:
        return u32(0)
    if barrier.ledger == 0:
        return u32(UNCOUNTED)
    ledger = u32(barrier.address + barrier.ledger)
    turn, before = u32(0), u32(0)
    if site.stages == 0:
        turn = u32(iteration)
    else:
        # The ledger is never reset: a peer of the cluster may already load for the next turn.
        before = u32(u32(iteration) // u32(site.stages)) * u32(site.tx_bytes)
    if ld_shared_u32(ledger + 4) != turn:
        return u32(UNCOUNTED)
    return u32(ld_shared_u32(ledger) - before)


# --------------------------------------------- primitives of compiled kernels only


@device_function
def is_first_lane() -> bool:
    """Return whether the thread is the first of the active threads of its warp."""
    return u32(activemask() & lanemask_lt()) == 0


@native
def buffer_word(index: int) -> int:
    """Return the global address of a word of the buffer for records."""
    raise NotImplementedError


@native
def number_of(site: Site) -> int:
    """Return the number by which the host finds `site`."""
    raise NotImplementedError


@device_function
def is_ending() -> bool:
    """Return whether a warp of the grid has written a record."""
    return ld_relaxed_sys_global_u32(buffer_word(COUNT)) != 0


@device_function
def count_stopped() -> None:
    """Count a wait that is cut short because the kernel is ending."""
    atom_add_u32(buffer_word(STOPPED), 1)


@device_function
def claim(address: int) -> bool:
    """Claim the barrier at `address` of this block; return whether this warp was the first.

    A claim is a word of the buffer, by hash. Of two barriers that share a word the second one's
    record has no mbarrier state.
    """
    hashed = u32(u32(address >> 3) + ctaid_x() * 37 + ctaid_y() * 101 + ctaid_z() * 211)
    return atom_exch_b32(buffer_word(u32(CLAIMS + hashed % u32(NUM_CLAIMS))), 1) == 0


@device_function
def record(
    site: Site,
    stage: int,
    parity: int,
    iteration: int,
    nanoseconds: int,
    address: int,
    word: int,
    issued: int,
) -> None:
    """Write a record, the fields of `debug.RECORD` in their order, if there is room."""
    slot = atom_add_u32(buffer_word(COUNT), 1)
    if slot < u32(CAPACITY):
        start = buffer_word(u32(HEADER + slot * u32(RECORD_WORDS)))
        thread = u32((tid_z() * ntid_y() + tid_y()) * ntid_x() + tid_x())
        st_global_v4_u32(start, (number_of(site), stage, parity, iteration))
        st_global_v4_u32(start, (ctaid_x(), ctaid_y(), ctaid_z(), u32(thread >> 5)), 16)
        st_global_v4_u32(start, (laneid(), cluster_ctarank(), address, issued), 32)
        st_global_u64(start, nanoseconds, 48)
        st_global_u64(start, word, 56)


@native
def leave() -> None:
    """End the thread."""
    raise NotImplementedError
