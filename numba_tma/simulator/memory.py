"""The shared memory of one block: its bytes, its allocations and their labels."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from numba_tma.host.layout import Swizzle
from numba_tma.host.matrix_layout import CHUNK_BYTES
from numba_tma.simulator.errors import BadOperand, OutOfSharedMemory

#: The first address allocated. The hardware reserves the first KiB, so 0 is never valid.
BASE = 1024
#: The limit of a block, in bytes.
CAPACITY = 227 * 1024
END = BASE + CAPACITY


@dataclass(frozen=True, slots=True)
class Allocation:
    """A range of the window; a `tracked` one reports reads of bytes that were never written."""

    start: int
    nbytes: int
    alignment: int
    owner: str
    tracked: bool


class SharedMemory:
    """The bytes, allocations and labels of a block."""

    def __init__(self) -> None:
        # 0xff is NaN in every float type, so that unwritten values are visible in results.
        self.data: NDArray[np.uint8] = np.full(END, 0xFF, np.uint8)
        #: Where the window lies in the memory of this process.
        self.pointer = int(self.data.__array_interface__["data"][0])
        self.written: NDArray[np.bool_] = np.zeros(END, np.bool_)
        #: Bytes outside tracked allocations count as written.
        self.written[:] = True
        self._written = self.written.data.cast("B")
        #: For each 16 bytes 1 + the swizzle of the tensor map that loaded them; 0 for other bytes.
        self._swizzles: NDArray[np.uint8] = np.zeros(END // CHUNK_BYTES, np.uint8)
        self._allocations: dict[Hashable, Allocation] = {}
        self._starts: list[int] = []
        self._by_start: dict[int, Allocation] = {}
        #: By owner, and by identity with the owner itself: its number.
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[int, tuple[Hashable, int]] = {}
        self._labels: dict[int, str] = {}
        self._labelled: list[int] = []
        self._top = BASE

    def allocate(
        self, key: Hashable, owner: object, nbytes: int, alignment: int, *, tracked: bool
    ) -> Allocation:
        """Return the allocation made under `key`, making it at the first call."""
        allocation = self._allocations.get(key)
        if allocation is not None:
            if (allocation.nbytes, allocation.alignment) != (nbytes, alignment):
                raise BadOperand(
                    f"{owner}: one thread asked for {allocation.nbytes} shared bytes aligned to "
                    f"{allocation.alignment}, another in the same call for {nbytes} bytes "
                    f"aligned to {alignment}; all threads of a block must ask for the same"
                )
            return allocation
        if nbytes < 0:
            raise BadOperand(f"{owner}: nbytes is {nbytes}; it must not be negative")
        if alignment < 1 or alignment & (alignment - 1):
            raise BadOperand(f"{owner}: alignment is {alignment}; it must be a power of two")
        start = -(-self._top // alignment) * alignment
        if start + nbytes > END:
            rows = "".join(
                f"\n  {a.nbytes:7d} bytes at {a.start}: {a.owner}" for a in self._by_start.values()
            )
            raise OutOfSharedMemory(
                f"{owner}: {nbytes} shared bytes aligned to {alignment} do not fit: "
                f"{start + nbytes - BASE} of {CAPACITY} would be in use. Use fewer stages or "
                f"smaller tiles; so far:{rows or ' nothing'}"
            )
        allocation = Allocation(start, nbytes, alignment, str(owner), tracked)
        self._allocations[key] = allocation
        self._by_start[start] = allocation
        self._starts.append(start)
        self._top = start + max(nbytes, 1)
        if tracked:
            self.written[start : start + nbytes] = False
        return allocation

    def number_of(self, owner: Hashable) -> int:
        """Return the number of an owner of allocations: the same for equal ones."""
        known = self._known.get(id(owner))
        if known is None:  # once for all threads: the hash of a constant is slow
            known = owner, self._numbers.setdefault(owner, len(self._numbers))
            self._known[id(owner)] = known
        return known[1]

    def wrote(self, address: int, nbytes: int, swizzle: Swizzle | None = None) -> None:
        """Note that bytes were written: by a load through a map with `swizzle`, or otherwise."""
        self.written[address : address + nbytes] = True
        granules = slice(address // CHUNK_BYTES, -(-(address + nbytes) // CHUNK_BYTES))
        self._swizzles[granules] = 0 if swizzle is None else 1 + swizzle

    def is_written(self, address: int, nbytes: int) -> bool:
        """Return whether all of these bytes were written."""
        return 0 not in self._written[address : address + nbytes].tobytes()

    def wrote_words(self, addresses: NDArray[np.intp], nbytes: int) -> None:
        """Note that threads wrote `nbytes` at each address, each within 16 aligned bytes."""
        self.written[addresses[:, None] + np.arange(nbytes)] = True
        self._swizzles[addresses // CHUNK_BYTES] = 0

    def other_swizzle(
        self, addresses: NDArray[np.intp], swizzle: Swizzle
    ) -> tuple[int, Swizzle] | None:
        """Return the first address that a map with another swizzle loaded, and that swizzle."""
        codes = self._swizzles[addresses // CHUNK_BYTES]
        others = (codes != 0) & (codes != 1 + swizzle)
        if not others.any():
            return None
        return int(addresses[others][0]), Swizzle(int(codes[others][0]) - 1)

    def allocation_at(self, address: int) -> Allocation | None:
        """Return the allocation that `address` lies in."""
        index = bisect_right(self._starts, address) - 1
        if index < 0:
            return None
        allocation = self._by_start[self._starts[index]]
        return allocation if address < allocation.start + allocation.nbytes else None

    def check_range(self, what: str, address: int, nbytes: int) -> None:
        """Raise unless `nbytes` from `address` on lie inside one allocation."""
        allocation = self.allocation_at(address)
        if allocation is not None and address + nbytes <= allocation.start + allocation.nbytes:
            return
        where = (
            "not in any allocation of this block"
            if allocation is None
            else f"past the end of {allocation.owner}, which has {allocation.nbytes} bytes "
            f"at {allocation.start}"
        )
        raise BadOperand(
            f"{what}: shared bytes {address} to {address + nbytes - 1} are out of range: {where}"
        )

    def set_label(self, address: int, text: str) -> None:
        """Label the object that starts at `address` with `text`."""
        if address not in self._labels:
            self._labelled.insert(bisect_right(self._labelled, address), address)
        self._labels[address] = text

    def label(self, address: int) -> str | None:
        """Return the label that was given to exactly `address`."""
        return self._labels.get(address)

    def describe(self, address: int, nbytes: int) -> str:
        """Return the text of a range: its label or owner, and the byte range inside."""
        allocation = self.allocation_at(address)
        index = bisect_right(self._labelled, address) - 1
        if allocation is None:
            return f"shared bytes {address} to {address + nbytes - 1}"
        start, name = allocation.start, allocation.owner
        if index >= 0 and self._labelled[index] >= start:
            start = self._labelled[index]
            name = self._labels[start]
        first = address - start
        return f"{name}, bytes {first} to {first + nbytes - 1}"
