"""tcgen05.mma: one product, from its operands' places to the new accumulator."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from numba_tma.host.sparse_metadata import metadata_cells
from numba_tma.host.tensor_memory_layout import (
    LANES,
    WARP_LANES,
    ScaleBytes,
    TensorCells,
    accumulator_cells,
    accumulator_columns,
    halves_of_lanes,
    operand_lanes,
    scale_bytes,
    scale_columns,
)
from numba_tma.simulator.column_accesses import Region
from numba_tma.simulator.errors import BadOperand, TensorMemoryMisuse
from numba_tma.simulator.sparse import expanded
from numba_tma.simulator.tcgen05_operands import (
    BITS,
    Place,
    Values,
    decoded,
    decoded_scales,
    has_gaps,
    in_bytes,
)
from numba_tma.simulator.tcgen05_sparse import metadata_columns, read_codes

if TYPE_CHECKING:
    from numba_tma.simulator.block import Cta
    from numba_tma.simulator.tcgen05_descriptor import ProductShape
    from numba_tma.simulator.tensor_memory import CtaTensorMemory

#: Columns of a row of A in tensor memory: 32 bytes.
OPERAND_COLUMNS = 8
#: What the hardware writes for not-a-number, by type of the accumulator.
_NAN = {"f16": 0x7FFF, "f32": 0x7FFFFFFF}

Index = tuple[NDArray[np.intp], NDArray[np.intp]] | tuple[slice, slice]

cells_of = functools.lru_cache(maxsize=64)(accumulator_cells)
scales_at = functools.lru_cache(maxsize=64)(scale_bytes)


@dataclass(frozen=True)
class MatrixProduct:
    """A product: D = A B, or D = A B + D 2^-scale_d, of one block or of a pair."""

    kind: str
    shape: ProductShape
    layout: str
    blocks: tuple[Cta, ...]
    d: int  #: the address of the accumulator, the same in both blocks
    a: Place | int  #: bytes in shared memory, or an address in tensor memory
    b: Place
    accumulate: bool
    scale_d: int
    lane_mask: tuple[int, ...]  #: a word for each 32 lanes; a set bit leaves a lane of D alone
    zero_columns: NDArray[np.bool_] | None  #: columns of B that count as zeros
    metadata: int | None  #: address of what says which elements a sparse A stores
    scale_a: int  #: addresses of the scale factors of a scaled kind
    scale_b: int
    collector: tuple[str, str]  #: a buffer, "a" or "b0" to "b3", and what is done with it

    # Places.

    @property
    def accumulator_regions(self) -> list[Region]:
        """The regions of D in each block."""
        columns = accumulator_columns(self.layout, self.shape.says.n)
        return _regions(self.layout, self.d, columns)

    @property
    def operand_regions(self) -> list[Region]:
        """The regions of each block's tensor memory that the product reads besides D."""
        return self.left_regions + self.metadata_regions + self.scale_regions

    @property
    def left_regions(self) -> list[Region]:
        """The regions of A in each block, if A is in tensor memory."""
        if not isinstance(self.a, int):
            return []
        return _regions(self.layout, self.a, OPERAND_COLUMNS)

    @property
    def metadata_regions(self) -> list[Region]:
        """The region of the metadata of a sparse A in each block."""
        if self.metadata is None:
            return []
        column = (self.metadata & 0xFFFF) + self.shape.says.selector
        return [_region(0, LANES, column, metadata_columns(self.shape.says.a))]

    @property
    def scale_regions(self) -> list[Region]:
        """The regions of the scale factors in each block."""
        if not self.shape.scales:
            return []
        return [
            _region(0, LANES, address & 0xFFFF, scale_columns(rows))
            for address, rows in ((self.scale_a, self.rows), (self.scale_b, self.shape.says.n))
        ]

    @property
    def rows(self) -> int:
        """Rows of A in each block."""
        return self.shape.says.m // len(self.blocks)

    @property
    def unmasked(self) -> NDArray[np.bool_]:
        """Whether D changes in each lane: of shape (blocks, lanes)."""
        words = np.array(self.lane_mask or [0] * 4 * len(self.blocks), np.uint32)
        masked = words.repeat(WARP_LANES) >> np.tile(np.arange(WARP_LANES), len(words)) & 1
        free: NDArray[np.bool_] = masked.reshape(len(self.blocks), LANES) == 0
        return free

    def cells(self, block: int) -> Index:
        """Return the index of D in the tensor memory of a block."""
        column = self.d & 0xFFFF
        if self.layout in "AD":  # the same as below, in less time
            return slice(0, LANES), slice(column, column + self.shape.says.n)
        cells: TensorCells = cells_of(self.layout, self.shape.says.m, self.shape.says.n)
        part = slice(block * self.rows, (block + 1) * self.rows)
        return cells.lane[part] + (self.d >> 16), cells.column[part] + column

    def changes(self, block: int) -> NDArray[np.bool_]:
        """Return whether each element of D in a block changes; rows of one lane have one value."""
        free: NDArray[np.bool_] = self.unmasked[block][self.cells(block)[0]]
        return free if free.ndim == 2 else free[:, None]

    # Values.

    def execute(self) -> None:
        """Read the operands now, and write the accumulator."""
        says, group = self.shape.says, 8 if self.kind.startswith("mxf4") else 4
        if says.a == "tf32":
            group = 2
        b = np.concatenate([self._from_shared(cta, self.b, says.b) for cta in self.blocks])
        what, (buffer, operation) = f"tcgen05_mma kind::{self.kind}", self.collector
        if says.negate_b:
            b = -b
        for block, cta in enumerate(self.blocks):
            a = self._left(cta)
            kept = a if buffer == "a" else b
            cta.tensor_memory.collectors.pass_through(what, buffer, operation, kept)
            if self.metadata is not None:
                cells = metadata_cells(BITS[says.a], self.rows, says.selector)
                data = cta.tensor_memory.data
                codes = read_codes(what, data, self.metadata, cells, self.layout, group)
                a = expanded(a, codes, group)
            if says.negate_a:
                a = -a
            right = b
            if self.shape.scales:
                memory = cta.tensor_memory
                a = a * self._scales(memory, self.scale_a, self.rows, says.scale_a_id)
                right = b * self._scales(memory, self.scale_b, says.n, says.scale_b_id)
            if self.zero_columns is not None:
                right = np.where(self.zero_columns[:, None], 0.0, right)
            self._store(cta.tensor_memory, block, a, right)

    def _store(self, memory: CtaTensorMemory, block: int, a: Values, b: Values) -> None:
        cells = self.cells(block)
        old = memory.data[cells]
        with np.errstate(all="ignore"):
            total = a @ b.T
            if self.accumulate:
                total = total + self._accumulated(old) * 2.0**-self.scale_d
            bits = self._bits(total, old)
        memory.data[cells] = np.where(self.changes(block), bits, old) if self.lane_mask else bits

    def _accumulated(self, cells: NDArray[np.uint32]) -> Values:
        name = self.shape.says.d
        if name == "f16":
            return cells.astype(np.uint16).view(np.float16).astype(np.float64)
        numbers = np.ascontiguousarray(cells).view(np.float32 if name == "f32" else np.int32)
        return numbers.astype(np.float64)

    def _bits(self, total: Values, old: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Return the cells of the sums; an f16 sum is in the low half of a cell."""
        name = self.shape.says.d
        if name == "i32":  # float64 holds the sums of products of bytes exactly
            whole = total.astype(np.int64)
            if self.shape.says.saturate:
                whole = np.clip(whole, -(2**31), 2**31 - 1)
            return whole.astype(np.uint32)
        if name == "f16":
            low = total.astype(np.float16).view(np.uint16).astype(np.uint32)
            low[np.isnan(total)] = _NAN[name]
            high: NDArray[np.uint32] = old & np.uint32(0xFFFF0000)
            return high | low
        bits = total.astype(np.float32).view(np.uint32)
        bits[np.isnan(total)] = _NAN[name]
        return bits

    def _left(self, cta: Cta) -> Values:
        if isinstance(self.a, Place):
            return self._from_shared(cta, self.a, self.shape.says.a)
        lanes = operand_lanes(self.layout, self.rows) + (self.a >> 16)
        columns = np.arange(OPERAND_COLUMNS) + (self.a & 0xFFFF)
        copies = cta.tensor_memory.data[lanes[..., None], columns]
        if (copies != copies[0]).any():
            raise TensorMemoryMisuse(
                f"tcgen05_mma: A at {self.a:#x} in tensor memory has other values in lanes "
                f"{int(lanes[1, 0])} and on than in lanes {int(lanes[0, 0])} and on; in layout "
                f"{self.layout} a row lies in every lane that has elements of its row of D"
            )
        row_bytes = copies[0].view(np.uint8)
        if has_gaps(self.shape.says.a, self.kind):
            return in_bytes(row_bytes, self.shape.says.a)
        return decoded(row_bytes, self.shape.says.a, self.kind)

    def _from_shared(self, cta: Cta, place: Place, type_name: str) -> Values:
        return decoded(cta.memory.data[place.addresses], type_name, self.kind)

    def _scales(self, memory: CtaTensorMemory, address: int, rows: int, first: int) -> Values:
        """Return the scale factor of each element of `rows` rows."""
        at: ScaleBytes = scales_at(rows, self.shape.scales, first)
        copies = np.stack(
            [
                memory.data[at.lane + lane, at.column + (address & 0xFFFF)] >> 8 * at.byte & 0xFF
                for lane in range(0, LANES, WARP_LANES)
            ]
        ).astype(np.uint8)
        if (copies != copies[0]).any():
            raise TensorMemoryMisuse(
                f"tcgen05_mma: the scale factors at {address:#x} differ between the four groups of "
                "32 lanes, which hold a copy each: use tcgen05_cp with 32x128b.warpx4"
            )
        factors = decoded_scales(copies[0], self.shape.says.scale_type)
        k = self.shape.k * (2 if self.shape.says.sparse else 1)
        return factors.repeat(k // self.shape.scales, axis=1)


def _region(lane: int, lanes: int, column: int, columns: int) -> Region:
    return Region(slice(lane, lane + lanes), slice(column, column + columns))


def _regions(layout: str, address: int, columns: int) -> list[Region]:
    """Return the regions of a matrix that takes all lanes, or 16 of every 32."""
    lane, column = address >> 16, address & 0xFFFF
    if not halves_of_lanes(layout):
        return [_region(0, LANES, column, columns)]
    return [_region(first + lane, 16, column, columns) for first in range(0, LANES, WARP_LANES)]


def column_shift(mask: int, m: int, max_shift: int) -> int:
    """Return the columns by which a zero-column mask of a .ws product shifts B.

    Column n of the product takes column n + shift of B in shared memory.
    """
    shift, limit = mask >> 56 & 0x3F, min(max_shift, 16 if m == 32 else 32)
    if shift > limit:
        raise BadOperand(
            f"tcgen05_mma: the zero-column mask {mask:#x} shifts B by {shift} columns (bits 56 to "
            f"61), but max_shift {max_shift} of the instruction descriptor and M {m} allow {limit}"
        )
    return shift
