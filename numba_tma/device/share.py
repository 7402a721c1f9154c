"""`Share`: the part of a row that a thread holds. The host chooses it, without any body."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numba_tma.backend.interface import constant_class
from numba_tma.host.annotations import Integer
from numba_tma.host.cache_policy import CachePolicy
from numba_tma.host.dtypes import DType

#: The suffix of an instruction that accesses so many bytes.
ACCESSES = {16: "v4_u32", 8: "v2_u32", 4: "u32", 2: "u16"}


@constant_class
@dataclass(frozen=True)
class Share:
    """The elements of a row that a thread holds: `count` accesses, `step` accesses apart.

    Access k of the thread whose first access is `first` is number ``first + k * step`` of the row.
    Every function of row_share.py takes `first` and `limit`, the number of accesses of the row. For
    unaligned shares both count elements: access k begins with element ``first + k * step * lanes``,
    which is negative if the row begins within the access.

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
    aligned
        False if rows begin and end anywhere; `width` is 16, and `whole` is False.
    """

    dtype: DType
    width: int
    count: int
    step: int
    whole: bool
    cache: str = "allocate"
    aligned: bool = True

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
        return ACCESSES[self.width]

    @property
    def load_operands(self) -> dict[str, Any]:
        """The operands of ld.global that `cache` stands for."""
        if self.cache == "allocate":
            return {}
        if self.cache == "no_allocate":
            return {"l1": "no_allocate"}
        return {"cache_hint": int(CachePolicy[self.cache.upper()])}

    @property
    def unit_elements(self) -> int:
        """Elements of what `first` and `limit` count: an access, or one."""
        return self.lanes if self.aligned else 1

    @property
    def unit(self) -> int:
        """Bytes of what `first` and `limit` count."""
        return self.unit_elements * self.dtype.itemsize

    def indices(self, first: Integer) -> list[int]:
        """Return the number that each access of a thread begins with; its own first is `first`."""
        step = self.step if self.aligned else self.step * self.lanes
        return [int(first) + k * step for k in range(self.count)]

    def present(self, first: Integer, limit: Integer) -> list[list[bool]]:
        """Return which elements of each access are in the row."""
        if self.aligned:
            return [[bool(i < limit)] * self.lanes for i in self.indices(first)]
        lanes, end = range(self.lanes), int(limit)
        return [[0 <= i + n < end for n in lanes] for i in self.indices(first)]
