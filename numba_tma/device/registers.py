"""A thread's share of a row, in registers: how it is loaded, computed with and stored.

Every function is unrolled by the counts of its `Share`, so that nothing is indexed and all of it
stays in registers. What was loaded is as packed as in memory until `to_float`.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from numba_tma import simulator
from numba_tma.backend.interface import constant_class, lowered_in
from numba_tma.host.dtypes import DType


@constant_class
@dataclass(frozen=True)
class Share:
    """Which elements of a row a thread holds: `count` accesses, `step` accesses apart.

    Parameters
    ----------
    dtype
        Of the elements: f32, f16 or bf16.
    width
        Bytes of an access: 16, 8, 4 or 2, by which addresses and lengths are divisible.
    count
        Accesses of a thread.
    step
        Threads that share the row, so that neighbours access neighbouring memory.
    whole
        Whether every thread has all of its accesses; else those from a limit on are not there.
    cache
        How rows are loaded from global memory: "allocate" through the L1 cache, "no_allocate"
        past it, "evict_first" to leave the L2 cache before what is written.
    """

    dtype: DType
    width: int
    count: int
    step: int
    whole: bool
    cache: str = "allocate"

    @property
    def lanes(self) -> int:
        """Elements of an access."""
        return self.width // self.dtype.itemsize

    @property
    def words(self) -> int:
        """Registers of what was loaded."""
        return self.count * max(1, self.width // 4)

    @property
    def values(self) -> int:
        """Elements of a thread."""
        return self.count * self.lanes

    def indices(self, first: int) -> list[int]:
        """Return the numbers of the accesses of the thread whose first is `first`."""
        return [first + k * self.step for k in range(self.count)]


# What follows are the bodies for the simulator. Global memory is raw memory of the process there.


def global_memory(location: Any, nbytes: int) -> Any:
    """Return what instructions take for the global memory at an address."""
    memory: Any = (ctypes.c_uint8 * int(nbytes)).from_address(int(location))
    return np.frombuffer(memory, np.uint8)


def _gather(share: Share, first: int, limit: int, read: Any) -> Any:
    absent = np.zeros(share.lanes, share.dtype.numpy)
    parts = [read(i * share.width) if i < limit else absent for i in share.indices(int(first))]
    return np.concatenate(parts)


def load_global(share: Any, location: Any, first: Any, limit: Any) -> Any:
    """Load a thread's share of the row at `location` as `share.cache` says; 0 where it has none."""
    return _gather(share, first, limit, lambda at: _elements(share, location + at).copy())


def load_cached(share: Any, location: Any, first: Any, limit: Any) -> Any:
    """Load what other rows need too: as `load_global`, by default through the caches."""
    return load_global(share, location, first, limit)


def load_shared(share: Any, location: Any, first: Any, limit: Any) -> Any:
    """Load a thread's share of the row at the shared-memory address `location`."""
    dtype = share.dtype.numpy
    return _gather(
        share, first, limit, lambda at: simulator.shared_read(location + at, dtype, share.lanes)
    )


def store_global(share: Any, location: Any, first: Any, limit: Any, packed: Any) -> None:
    """Store a thread's share to the row at `location`."""
    for k, i in enumerate(share.indices(int(first))):
        if i < limit:
            part = packed[k * share.lanes : (k + 1) * share.lanes]
            _elements(share, location + i * share.width)[:] = part


def _elements(share: Share, location: int) -> Any:
    return global_memory(location, share.width).view(share.dtype.numpy)


def store_sums(share: Any, location: Any, first: Any, limit: Any, values: Any) -> None:
    """Store a thread's values to the row of float32 at `location`."""
    for k, i in enumerate(share.indices(int(first))):
        if i < limit:
            part = values[k * share.lanes : (k + 1) * share.lanes]
            row = global_memory(location + i * share.lanes * 4, share.lanes * 4)
            row.view(np.float32)[:] = part


def store_float(location: Any, value: Any) -> None:
    """Store a float32 to global memory."""
    global_memory(location, 4).view(np.float32)[0] = value


def to_float(share: Any, packed: Any) -> Any:
    """Return what was loaded as a vector of float32."""
    np.seterr(all="ignore")  # of this simulated thread: a GPU has no word on inf - inf
    return packed.astype(np.float32)


def from_float(share: Any, values: Any) -> Any:
    """Round a vector of float32 to what is stored."""
    return values.astype(share.dtype.numpy)


def keep(share: Any, values: Any, first: Any, limit: Any, other: Any) -> Any:
    """Return `values` with `other` where the thread has no element."""
    there = np.repeat(np.array(share.indices(int(first))) < limit, share.lanes)
    return np.where(there, values, np.float32(other))


def zeros(share: Any) -> Any:
    """Return the vector of float32 that are all 0."""
    return np.zeros(share.values, np.float32)


def num_present(share: Any, first: Any, limit: Any) -> Any:
    """Return how many elements the thread has, as a float32."""
    return np.float32(share.lanes * sum(i < limit for i in share.indices(int(first))))


def four(a: Any, b: Any, c: Any, d: Any) -> Any:
    """Return the vector of four float32."""
    return np.array([a, b, c, d], np.float32)


def exp2(x: Any) -> Any:
    """Return 2**x of a number or of each element (ex2.approx.ftz: to 2 units in the last place)."""
    return np.exp2(np.asarray(x, np.float32))


def fused(x: Any, slope: Any, shift: Any) -> Any:
    """Return slope * x + shift of each element, rounded once (fma.rn)."""
    return (x.astype(np.float64) * slope + shift).astype(np.float32)


def weighted(share: Any, values: Any, weights: Any) -> Any:
    """Return the sum of a thread's accesses, each times its weight, in their order (fma.rn)."""
    result = np.zeros(share.lanes, np.float32)
    for lanes, weight in zip(values.reshape(-1, share.lanes), weights):
        result = (lanes.astype(np.float64) * weight + result).astype(np.float32)
    return result


def log2(x: Any) -> Any:
    """Return the binary logarithm of a number (lg2.approx)."""
    return np.log2(np.float32(x))


def rsqrt(x: Any) -> Any:
    """Return 1 / sqrt(x) of a number (rsqrt.approx, to 2**-22.9)."""
    return np.float32(1) / np.sqrt(np.float32(x))


def reciprocal(x: Any) -> Any:
    """Return 1 / x of a number (rcp.approx, to 1 unit in the last place)."""
    return np.float32(1) / np.float32(x)


def larger(a: Any, b: Any) -> Any:
    """Return the larger of two numbers; a NaN only if both are (max.f32)."""
    return np.fmax(a, b)


def largest(values: Any) -> Any:
    """Return the largest element; a NaN only if all are (max.f32)."""
    return np.fmax.reduce(values)


def total(values: Any) -> Any:
    """Return the sum of the elements, added in pairs: a short chain, and a small error."""
    while len(values) > 1:
        odd = values[len(values) // 2 * 2 :]
        values = np.concatenate([values[: len(values) // 2 * 2 : 2] + values[1::2], odd])
    return values[0]


def first_largest(share: Any, values: Any, first: Any, limit: Any) -> Any:
    """Return the vector of (largest element, its column): the first of several, NaN above all.

    A thread without elements has (-inf, 2**24).
    """
    best, column = np.float32(-np.inf), np.float32(1 << 24)
    for k, i in enumerate(share.indices(int(first))):
        for lane in range(share.lanes if i < limit else 0):
            value = values[k * share.lanes + lane]
            if column == 1 << 24 or value > best or (value != value and best == best):
                best, column = value, np.float32(i * share.lanes + lane)
    return four(best, column, 0, 0)


def store_index(location: Any, value: Any) -> None:
    """Store a column, held as a float32, to global memory as an int64."""
    global_memory(location, 8).view(np.int64)[0] = int(value)


def send_four(location: Any, values: Any, barrier: Any) -> None:
    """Store a vector of four float32 to a block of the cluster, and 16 bytes to its barrier.

    st.async: both are cluster addresses of one block.
    """
    simulator.st_async(location, values, barrier)


def swapped(value: Any, distance: Any) -> Any:
    """Return the value of the lane whose number differs in the bit `distance` (shfl.sync.bfly)."""
    return simulator.shfl("bfly", value, distance)


lowered_in("registers")
