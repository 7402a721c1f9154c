"""Races mode in kernels: the log of what a warp does to shared memory. See `host.races`."""

from __future__ import annotations

from numba_tma.backend.interface import device_function, native, u32
from numba_tma.host.environment import debug_seed
from numba_tma.host.races import BLOCKS, CAPACITY, EVENT_WORDS, SEEN
from numba_tma.ptx import (
    atom_add_u32,
    atom_exch_b32,
    cluster_ctarank,
    cluster_nctarank,
    clusterid_x,
    clusterid_y,
    clusterid_z,
    ctaid_x,
    ctaid_y,
    ctaid_z,
    getctarank,
    laneid,
    lanemask_eq,
    ld_relaxed_sys_global_u32,
    nanosleep,
    nclusterid_x,
    nclusterid_y,
    nctaid_x,
    nctaid_y,
    ntid_x,
    ntid_y,
    ntid_z,
    st_global_v4_u32,
    tid_x,
    tid_y,
    tid_z,
)

SEED = debug_seed()


@native
def header_word(index: int) -> int:
    """Return the global address of a word of the log's header."""
    raise NotImplementedError


@native
def event_word(index: int) -> int:
    """Return the address of a word of the log's events, in mapped memory."""
    raise NotImplementedError


@device_function
def tracked_slot() -> int:
    """Return the block's number among the tracked ones: those of a cluster are neighbours."""
    clusters = (clusterid_z() * nclusterid_y() + clusterid_y()) * nclusterid_x() + clusterid_x()
    return u32(clusters * cluster_nctarank() + cluster_ctarank())


@device_function
def own_warp() -> int:
    """Return the warp's number in its block."""
    return u32(u32((tid_z() * ntid_y() + tid_y()) * ntid_x() + tid_x()) >> 5)


@device_function
def is_tracked(slot: int) -> bool:
    """Return whether all blocks of this one's cluster fit among the tracked ones."""
    return u32(slot - cluster_ctarank() + cluster_nctarank()) <= u32(BLOCKS)


@device_function
def seen_word(slot: int, warp: int, index: int) -> int:
    """Return the address of a word of a warp: its epoch is word 0."""
    return header_word(u32(u32(64) + (slot * u32(32) + warp) * u32(SEEN) + index))


@device_function
def write_event(
    slot: int,
    kind: int,
    address: int,
    size: int,
    other: int,
    line: int,
    mask: int,
    located: int,
) -> int:
    """Append an event to the log; return its number."""
    # If ptxas knew that this is 1, it would add up the lanes, in a register that diverged lanes of
    # a warp share.
    one = u32(lanemask_eq() >> laneid())
    number = atom_add_u32(header_word(u32(0)), one)
    if number < u32(CAPACITY):
        start = event_word(u32(number * u32(EVENT_WORDS)))
        rank = u32(getctarank(located))
        warps = u32(u32(ntid_x() * ntid_y() * ntid_z() + u32(31)) >> 5)
        block = u32((ctaid_z() * nctaid_y() + ctaid_y()) * nctaid_x() + ctaid_x())
        first = u32(u32(kind) | own_warp() << 8 | cluster_nctarank() << 16 | rank << 24)
        st_global_v4_u32(start, (first, slot, address, size))
        st_global_v4_u32(start, (other, line, block, u32(warps | mask << 16)), 16)
    return number


@device_function
def note(
    kind: int, address: int, size: int, other: int, line: int, mask: int, located: int
) -> None:
    """Log a step of the thread, and maybe delay what follows, as the seed says."""
    slot = tracked_slot()
    if is_tracked(slot):
        number = write_event(slot, kind, address, size, other, line, mask, located)
        atom_add_u32(seen_word(slot, own_warp(), u32(0)), u32(1))
        delay(number)


@device_function
def delay(number: int) -> None:
    """Sleep for up to 1 us after one event in eight, which the seed and its number choose."""
    mixed = u32(u32(number ^ u32(SEED)) * u32(2654435761))
    mixed = u32(u32(mixed ^ mixed >> 15) * u32(2246822519))
    if u32(mixed >> 29) == 0:
        nanosleep(u32(mixed >> 8 & u32(1023)))


@device_function
def note_access(kind: int, address: int, size: int, partial: int, line: int) -> None:
    """Log a generic access to `size` bytes, unless the warp has logged it in this epoch.

    `partial`: the access was to a part of these bytes.
    """
    slot = tracked_slot()
    if is_tracked(slot):
        warp = own_warp()
        start = u32(u32(address) & u32(0xFFFFFF) & ~u32(u32(size) - u32(1)))  # of any block
        epoch = ld_relaxed_sys_global_u32(seen_word(slot, warp, u32(0)))
        words = u32(start >> 2)
        key = u32(words | u32(size) >> 3 << 16 | u32(epoch + u32(1)) << 18)  # of 4, 8 or 16 bytes
        index = u32(u32(1) + (words >> 2 ^ u32(kind) << 6) % u32(SEEN - 1))  # kinds share none
        place = seen_word(slot, warp, index)
        if ld_relaxed_sys_global_u32(place) != key and atom_exch_b32(place, key) != key:
            write_event(slot, kind, start, size, partial, line, u32(0), u32(0))
