"""A thread's share of a row, in registers: how it is loaded, converted and stored.

A `Share` is a compile-time value. Every function is unrolled over its accesses, so the elements
stay in registers. A loaded share is as packed as in memory until `to_float`. An access is one row
of the instruction table; where the thread has no element, its predicate is false.

Rows that begin or end between two multiples of 16 B have unaligned shares (`Share.aligned`). Their
accesses are the 16-byte units of memory that the row touches. A unit that also holds elements of
other rows is accessed element by element, so that nothing outside of the row is read or written.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from numba_tma import ptx
from numba_tma.backend.interface import native, u32
from numba_tma.device.share import ACCESSES, Share
from numba_tma.device.vectors import four
from numba_tma.host.annotations import Address, Integer, Real, Registers

# The bodies below are what the simulator runs. `lowering.row_share` is what a compiler emits.


def _gather(
    share: Share,
    space: str,
    location: Address,
    first: Integer,
    limit: Integer,
    units: bool = True,
    **operands: Any,
) -> Registers:
    """Return a thread's elements; with `units`, those of a whole access are loaded at once."""
    load = getattr(ptx, f"ld_{space}_{share.access}")
    load_one = getattr(ptx, f"ld_{space}_{ACCESSES[share.dtype.itemsize]}")
    loaded: list[Any] = []
    for i, there in zip(share.indices(first), share.present(first, limit)):
        place = location + i * share.unit
        if share.aligned or (units and all(there)):
            words = np.array(load(place, **operands, condition=there[0]))
            loaded.append(words.astype(np.uint16 if share.width == 2 else np.uint32).reshape(-1))
            continue
        nbytes = share.dtype.itemsize
        ones = [load_one(place + n * nbytes, condition=is_) for n, is_ in enumerate(there)]
        loaded.append(np.array(ones, f"u{nbytes}"))
    return np.concatenate([each.view(share.dtype.numpy) for each in loaded])


@native
def load_global(share: Share, location: Address, first: Integer, limit: Integer) -> Registers:
    """Load a thread's share of the row at global address `location`; 0 past the limit.

    The accesses use the cache policy of `share.cache`. PTX: ld.global.
    """
    return _gather(share, "global", location, first, limit, **share.load_operands)


@native
def load_cached(share: Share, location: Address, first: Integer, limit: Integer) -> Registers:
    """Load a share of a row that other blocks load too: `load_global` through L1 and L2.

    This row may begin anywhere relative to the share's: an unaligned share is loaded by elements.
    """
    return _gather(share, "global", location, first, limit, units=False)


@native
def load_shared(share: Share, location: Address, first: Integer, limit: Integer) -> Registers:
    """Load a thread's share of the row at shared-memory address `location`; 0 past the limit.

    An unaligned share is loaded in whole accesses, in which shared memory has 0 beside the row.
    PTX: ld.shared.
    """
    load = getattr(ptx, f"ld_shared_{share.access}")
    loaded = [load(location + i * share.unit, condition=i < limit) for i in share.indices(first)]
    words = np.array(loaded, np.uint16 if share.width == 2 else np.uint32)
    return words.reshape(-1).view(share.dtype.numpy)


@native
def store_global(
    share: Share, location: Address, first: Integer, limit: Integer, packed: Registers
) -> None:
    """Store a thread's share to the row at global address `location`. PTX: st.global."""
    each = {width: getattr(ptx, f"st_global_{name}") for width, name in ACCESSES.items()}
    parts = packed.reshape(share.count, -1)
    for i, part, there in zip(share.indices(first), parts, share.present(first, limit)):
        place, nbytes = location + i * share.unit, share.dtype.itemsize
        if share.aligned or all(there):
            words = part.view(np.uint16 if share.width == 2 else np.uint32)
            each[share.width](place, words if len(words) > 1 else words[0], condition=there[0])
            continue
        for n, bits in enumerate(part.view(f"u{nbytes}")):
            each[nbytes](place + n * nbytes, bits, condition=there[n])


@native
def store_sums(
    share: Share, location: Address, first: Integer, limit: Integer, values: Registers
) -> None:
    """Store a thread's float32 values to the row of float32 at global address `location`."""
    each = min(4, share.lanes)
    row: Any = {4: ptx.st_global_v4_f32, 2: ptx.st_global_v2_f32, 1: ptx.st_global_f32}[each]
    for i, lanes in zip(share.indices(first), values.reshape(share.count, -1)):
        for lane in range(0, share.lanes, each):
            part = lanes[lane : lane + each]
            place = location + (i * share.lanes + lane) * 4
            row(place, part if each > 1 else part[0], condition=i < limit)


@native
def write_floats(
    share: Share, location: u32, first: Integer, limit: Integer, values: Registers
) -> None:
    """Write a thread's float32 values to a row of float32 in shared memory.

    `first` and `limit` count elements of the row, and `share` has one access. Elements beyond the
    row are left out. Values of whole accesses of 16 B are written four at a time, to a multiple of
    16 B. PTX: st.shared.
    """
    each = 4 if share.aligned and share.lanes >= 4 else 1
    for lane in range(0, share.lanes, each):
        if 0 <= first + lane < limit:
            place, part = location + 4 * (first + lane), values[lane : lane + each]
            if each > 1:
                ptx.st_shared_v4_f32(place, part)
            else:
                ptx.st_shared_f32(place, part[0])


@native
def to_float(share: Share, packed: Registers) -> Registers:
    """Return a loaded share as a vector of float32."""
    np.seterr(all="ignore")  # of this simulated thread: a GPU does not report inf - inf
    return packed.astype(np.float32)


@native
def from_float(share: Share, values: Registers) -> Registers:
    """Round a vector of float32 to a share that can be stored."""
    return values.astype(share.dtype.numpy)


@native
def keep(share: Share, values: Registers, first: Integer, limit: Integer, other: Real) -> Registers:
    """Return `values` with `other` in place of the elements past the limit."""
    return np.where(np.ravel(share.present(first, limit)), values, np.float32(other))


@native
def zeros(share: Share) -> Registers:
    """Return a vector of float32 zeros, one per element of a thread."""
    return np.zeros(share.values, np.float32)


@native
def num_present(share: Share, first: Integer, limit: Integer) -> np.float32:
    """Return how many elements of the thread are below the limit, as a float32."""
    return np.float32(np.sum(share.present(first, limit)))


@native
def weighted(share: Share, values: Registers, weights: Registers) -> Registers:
    """Return the sum of a thread's accesses, each times its weight, lane by lane (fma.rn).

    `weights` has one float32 per access. The accesses are added in their order.
    """
    result: Any = np.zeros(share.lanes, np.float32)
    for lanes, weight in zip(values.reshape(-1, share.lanes), weights):
        result = ptx.fma_rn_f32(lanes, weight, result)
    return result


@native
def first_largest(share: Share, values: Registers, first: Integer, limit: Integer) -> Registers:
    """Return the vector (largest element, its column, 0, 0).

    Of equal elements the first counts; NaN is larger than any number. The column is a float32. A
    thread without elements has (-inf, 2**24).
    """
    best, column = np.float32(-np.inf), np.float32(1 << 24)
    starts = [i * share.unit_elements for i in share.indices(first)]
    columns = [start + n for start in starts for n in range(share.lanes)]
    for value, here, there in zip(values, columns, np.ravel(share.present(first, limit))):
        if not there:
            continue
        if column == 1 << 24 or value > best or (value != value and best == best):
            best, column = value, np.float32(here)
    return four(float(best), float(column), 0, 0)
