"""A thread's share of a row, in registers: how it is loaded, converted and stored.

A `Share` is a compile-time value. Every function is unrolled over its accesses, so the elements
stay in registers. A loaded share is as packed as in memory until `to_float`. An access is one row
of the instruction table; where the thread has no element, its predicate is false.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from numba_tma import ptx
from numba_tma.backend.interface import constant_class, native
from numba_tma.device.vectors import four
from numba_tma.host.annotations import Address, Integer, Real, Registers
from numba_tma.host.dtypes import DType

#: The suffix of an instruction that accesses so many bytes.
_ACCESSES = {16: "v4_u32", 8: "v2_u32", 4: "u32", 2: "u16"}


@constant_class
@dataclass(frozen=True)
class Share:
    """The elements of a row that a thread holds: `count` accesses, `step` accesses apart.

    Access k of the thread whose first access is `first` is number ``first + k * step`` of the row.
    Every function here takes `first` and `limit`, the number of accesses of the row.

    Parameters
    ----------
    dtype
        Element type: f32, f16 or bf16.
    width
        Bytes per access: 16, 8, 4 or 2. Addresses and row lengths are multiples of it.
    count
        Accesses per thread.
    step
        Threads per row: neighbouring threads access neighbouring memory.
    whole
        True if every access of every thread is below the limit: no predicate is emitted.
    cache
        Cache policy of `load_global`: "allocate" loads through L1, "no_allocate" past it,
        "evict_first" and "evict_last" set the eviction priority in L2.
    """

    dtype: DType
    width: int
    count: int
    step: int
    whole: bool
    cache: str = "allocate"

    @property
    def lanes(self) -> int:
        """Elements per access."""
        return self.width // self.dtype.itemsize

    @property
    def words(self) -> int:
        """Registers of a loaded share."""
        return self.count * max(1, self.width // 4)

    @property
    def values(self) -> int:
        """Elements per thread."""
        return self.count * self.lanes

    @property
    def access(self) -> str:
        """The suffix of the instructions that make an access, such as "v4_u32"."""
        return _ACCESSES[self.width]

    @property
    def load_operands(self) -> dict[str, Any]:
        """The operands of ld.global that `cache` stands for."""
        if self.cache == "allocate":
            return {}
        if self.cache == "no_allocate":
            return {"l1": "no_allocate"}
        return {"cache_hint": int(ptx.CachePolicy[self.cache.upper()])}

    def indices(self, first: Integer) -> list[int]:
        """Return the numbers of the accesses of the thread whose first access is `first`."""
        return [int(first) + k * self.step for k in range(self.count)]


# The bodies below are what the simulator runs. `lowering.row_share` is what a compiler emits.


def _gather(share: Share, first: Integer, limit: Integer, load: Callable[..., Any]) -> Registers:
    """Return what `load(offset, condition=...)` gives for every access of a thread."""
    loaded = [load(i * share.width, condition=i < limit) for i in share.indices(first)]
    words = np.array(loaded, np.uint16 if share.width == 2 else np.uint32)
    return words.reshape(-1).view(share.dtype.numpy)


@native
def load_global(share: Share, location: Address, first: Integer, limit: Integer) -> Registers:
    """Load a thread's share of the row at global address `location`; 0 past the limit.

    The accesses use the cache policy of `share.cache`. PTX: ld.global.
    """
    row = getattr(ptx, f"ld_global_{share.access}")
    operands = share.load_operands
    return _gather(share, first, limit, lambda at, **if_: row(location + at, **operands, **if_))


@native
def load_cached(share: Share, location: Address, first: Integer, limit: Integer) -> Registers:
    """Load a share of a row that other blocks load too: `load_global` through L1 and L2."""
    row = getattr(ptx, f"ld_global_{share.access}")
    return _gather(share, first, limit, lambda at, **if_: row(location + at, **if_))


@native
def load_shared(share: Share, location: Address, first: Integer, limit: Integer) -> Registers:
    """Load a thread's share of the row at shared-memory address `location`; 0 past the limit.

    PTX: ld.shared.
    """
    row = getattr(ptx, f"ld_shared_{share.access}")
    return _gather(share, first, limit, lambda at, **if_: row(location + at, **if_))


@native
def store_global(
    share: Share, location: Address, first: Integer, limit: Integer, packed: Registers
) -> None:
    """Store a thread's share to the row at global address `location`. PTX: st.global."""
    row = getattr(ptx, f"st_global_{share.access}")
    parts = packed.view(np.uint16 if share.width == 2 else np.uint32).reshape(share.count, -1)
    for i, part in zip(share.indices(first), parts):
        row(location + i * share.width, part if len(part) > 1 else part[0], condition=i < limit)


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
    there = np.repeat(np.array(share.indices(first)) < limit, share.lanes)
    return np.where(there, values, np.float32(other))


@native
def zeros(share: Share) -> Registers:
    """Return a vector of float32 zeros, one per element of a thread."""
    return np.zeros(share.values, np.float32)


@native
def num_present(share: Share, first: Integer, limit: Integer) -> np.float32:
    """Return how many elements of the thread are below the limit, as a float32."""
    return np.float32(share.lanes * sum(i < limit for i in share.indices(first)))


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
    for k, i in enumerate(share.indices(first)):
        for lane in range(share.lanes if i < limit else 0):
            value = values[k * share.lanes + lane]
            if column == 1 << 24 or value > best or (value != value and best == best):
                best, column = value, np.float32(i * share.lanes + lane)
    return four(float(best), float(column), 0, 0)
