"""wgmma: a warpgroup's products in flight, its groups, and the result of a product."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from numba_tma.host.dtypes import DType
from numba_tma.host.matrix_layout import CHUNK_BYTES, MatrixLayout, matrix_addresses
from numba_tma.host.mma_rules import Product, RegisterOperand, fragment_coords, num_elements
from numba_tma.host.warpgroup import ROWS, STEP_BYTES, THREADS
from numba_tma.simulator.copies import call_site
from numba_tma.simulator.errors import BadOperand, UnfinishedProduct
from numba_tma.simulator.memory import SharedMemory

if TYPE_CHECKING:
    from numba_tma.simulator.thread import SimulatedThread

Array = NDArray[Any]

#: An epoch beyond every clock, for an event that has not happened.
NEVER = np.iinfo(np.int32).max


class SharedOperand(NamedTuple):
    """A matrix in shared memory: the descriptor, and the tile that it was made for."""

    descriptor: int
    layout: MatrixLayout

    def __str__(self) -> str:
        return f"{self.layout.tile} at {self.descriptor % 0x4000 * CHUNK_BYTES:#x}"


@dataclass(frozen=True)
class ProductCall:
    """The arguments of a product, which all threads of a warpgroup share."""

    product: Product
    accumulator: DType
    a: SharedOperand | RegisterOperand
    b: SharedOperand
    scale_d: bool
    negate_a: bool
    negate_b: bool


class Bytes(NamedTuple):
    """An operand's place in shared memory: each element's address, and all bytes as few runs."""

    addresses: NDArray[np.intp]
    runs: tuple[tuple[int, int], ...]


@functools.lru_cache(maxsize=128)
def bytes_of(operand: SharedOperand, rows: int, k_steps: int) -> Bytes:
    """Return the bytes that `k_steps` instructions read of an operand of `rows`."""
    layout, itemsize = operand.layout, operand.layout.tile.itemsize
    first = operand.descriptor
    span = STEP_BYTES * layout.steps_per_slab
    inside = first % 0x4000 * CHUNK_BYTES % span // STEP_BYTES if layout.steps_per_slab > 1 else 0
    if inside and inside + k_steps > layout.steps_per_slab:
        raise BadOperand(
            f"wgmma: the descriptor of {layout.tile} stands at k step {inside} of a slab of "
            f"{layout.steps_per_slab}, and {k_steps} steps from there leave it: give the "
            f"descriptor of the tile, or k_steps={layout.steps_per_slab - inside} or less"
        )
    steps = [
        matrix_addresses(first + layout.offset(k) // CHUNK_BYTES, rows, itemsize, layout.major)
        for k in range(k_steps)
    ]
    addresses = np.concatenate(steps, axis=1)
    granules = np.unique(addresses // CHUNK_BYTES)
    cuts = np.flatnonzero(np.diff(granules) > 1) + 1
    runs = [(int(run[0]) * CHUNK_BYTES, len(run) * CHUNK_BYTES) for run in np.split(granules, cuts)]
    return Bytes(addresses, tuple(runs))


@functools.cache
def _places(n: int, itemsize: int) -> tuple[Array, Array]:
    """Return (row, column) of each thread's elements, of shape (128, elements)."""
    thread, i = np.ogrid[:THREADS, : num_elements(n)]
    row, column = fragment_coords(i, thread, itemsize)
    return np.broadcast_to(row, column.shape), column


def gathered(elements: Sequence[Array], n: int, itemsize: int) -> Array:
    """Return the 64 x n matrix from the threads' elements."""
    matrix = np.empty((ROWS, n), elements[0].dtype)
    matrix[_places(n, itemsize)] = np.stack(elements)
    return matrix


def scattered(matrix: Array, itemsize: int) -> Array:
    """Return the elements of a 64 x n matrix by thread."""
    elements: Array = matrix[_places(matrix.shape[1], itemsize)]
    elements.flags.writeable = False
    return elements


def _exact(values: Array, dtype: DType) -> Array:
    """Return the values that the tensor cores read, in float64."""
    if dtype.is_float and dtype.itemsize == 4:  # tf32: without the last 13 bits
        values = (values.view(np.uint32) & ~np.uint32(0x1FFF)).view(np.float32)
    return values.astype(np.float32).astype(np.float64)


def _read(memory: SharedMemory, operand: SharedOperand, where: Bytes) -> Array:
    dtype = operand.layout.tile.dtype
    elements = memory.data.view(dtype.numpy)[where.addresses // dtype.itemsize]
    return _exact(elements, dtype)


def multiplied(
    call: ProductCall, memory: SharedMemory, accumulator: Array, a: Array | None, reads: list[Bytes]
) -> Array:
    """Return the new accumulator.

    Sums are exact inside an instruction and rounded to the accumulator's type after it; integers
    wrap round.
    """
    if isinstance(call.a, RegisterOperand):
        assert a is not None
        left = _exact(a, call.a.dtype)
    else:
        left = _read(memory, call.a, reads[0])
    right = _read(memory, call.b, reads[-1])
    if call.negate_a != call.negate_b:
        left = -left
    total = accumulator if call.scale_d else np.zeros_like(accumulator)
    width = call.product.k_per_step
    with np.errstate(all="ignore"):
        for k in range(0, call.product.k_steps * width, width):
            exact = total + left[:, k : k + width] @ right[:, k : k + width].T
            if total.dtype.kind == "i":
                exact = exact.astype(np.int64)
            total = exact.astype(total.dtype)
    return total


class PendingProduct:
    """A product of a warpgroup that its threads have started."""

    def __init__(
        self, threads: list[SimulatedThread], reads: list[tuple[int, int]], elements: Array
    ) -> None:
        self.threads = threads
        self.rows = slice(threads[0].row, threads[-1].row + 1)
        #: The bytes of shared memory that the product reads, as (address, number).
        self.reads = reads
        #: By thread: its elements of the new accumulator.
        self.elements = elements
        #: By thread: the epoch in which its wait for the product ended.
        self.ended = np.full(THREADS, NEVER, np.int32)
        self.site = call_site()

    @property
    def in_words(self) -> str:
        """Return the reader, for messages."""
        first, last = self.threads[0], self.threads[-1]
        return f"a wgmma of warps {first.warp} to {last.warp} of block {first.block}"

    def end(self, thread: SimulatedThread) -> None:
        """Record that `thread` has waited for the product."""
        self.ended[thread.row - self.rows.start] = thread.cta.tracked_clocks().epoch(thread.row)
        if thread.log is not None:
            for address, nbytes in self.reads:  # the product reads up to now
                thread.log.read(thread.cta, address, nbytes)

    def ended_for(self, thread: SimulatedThread) -> bool:
        """Return whether `thread` has waited for the product."""
        return bool(self.ended[thread.row - self.rows.start] != NEVER)


class ProductGroups:
    """The products of one thread: those not yet committed, then groups in order of their commit."""

    def __init__(self) -> None:
        self.open: list[PendingProduct] = []
        self.committed: list[list[PendingProduct]] = []

    def commit(self) -> None:
        """Close the open group, which may be empty."""
        self.committed.append(self.open)
        self.open = []

    def wait(self, thread: SimulatedThread, pending: int) -> None:
        """End all groups but the newest `pending`."""
        ended = self.committed[: max(0, len(self.committed) - pending)]
        for product in (product for group in ended for product in group):
            product.end(thread)
        del self.committed[: len(ended)]

    def check_done(self) -> None:
        """Raise if the thread ends with products that it has not waited for."""
        if self.open:
            raise UnfinishedProduct(
                f"the thread ends with {len(self.open)} wgmma that were never committed (the last "
                f"one at {self.open[-1].site}): leave out commit=False in the last of a chain, and "
                "wait with wgmma_wait()"
            )
        late = [product for group in self.committed for product in group]
        if late:
            raise UnfinishedProduct(
                f"the thread ends with {len(late)} wgmma that it has not waited for (the last one "
                f"at {late[-1].site}): shared memory and registers may be gone before it has "
                "ended. Call wgmma_wait() before the end"
            )
