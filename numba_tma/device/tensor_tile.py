"""`TensorTile`: a matrix in tensor memory, as kernels hold it."""

from __future__ import annotations

from dataclasses import dataclass

from numba_tma.backend.interface import (
    Constant,
    Unknown,
    compile_time,
    constant_class,
    device_class,
    u32,
)
from numba_tma.backend.primitives import add32
from numba_tma.device.tensor_columns import (
    check_columns,
    check_values,
    load_columns,
    store_columns,
)
from numba_tma.host import tensor_tiles
from numba_tma.host.annotations import DTypeLike, Registers
from numba_tma.host.tensor_tiles import (
    LANES,
    Accumulator,
    ColumnClaim,
    TensorLayout,
    TensorMetadata,
    TensorOperand,
    TensorScales,
)
from numba_tma.ptx import cluster_ctarank, tcgen05_fence_before_thread_sync, tid_x
from numba_tma.simulator import BadOperand


@device_class(static=("layout",))
@dataclass(frozen=True)
class TensorTile:
    """A matrix in tensor memory: an accumulator, an operand A, metadata, or scale factors.

    ``tile.address`` is its address for tcgen05 instructions. A warp reaches 32 lanes: thread l of
    warp w loads and stores lane 32 (w mod 4) + l, so that four neighbouring warps share a tile.
    """

    layout: TensorLayout
    address: u32

    @property
    def row(self) -> int:
        """The row of D, or of A, in the thread's lane; in a pair, counted over both blocks."""
        layout = with_rows(self.layout, "tile.row")
        lane = tid_x() & u32(LANES - 1)
        if layout.m == 2 * LANES:
            return u32(lane + (cluster_ctarank() & 1) * LANES)
        if layout.ws:
            return u32(lane & u32(layout.m - 1))
        if layout.cta_group == 2:
            return u32((lane & 63) + (cluster_ctarank() & 1) * 64)
        return lane

    def load(self, column: Constant[int], num: Constant[int]) -> Registers:
        """Return `num` columns of the accumulator from `column` on, of the thread's lane.

        The result is a tuple of `num` elements, float16 as float32. `num` is a literal: 1, 2, 4,
        ... or 128. Executed by whole warps. The method waits for the load (tcgen05.ld of shape
        32x32b, tcgen05.wait::ld). Before it, the thread waits for the commit of the products, and
        fences (tcgen05.fence::after_thread_sync).

        The lane's row of D is ``tile.row``. A pair's accumulator of 128 rows has columns n / 2 on
        in lanes 64 to 127; `TensorMemoryHandle.tile` has the lanes of one with `ws`.
        """
        return self._load("tile.load", column, num)

    def store(self, column: Constant[int], values: Registers) -> None:
        """Store a tuple or a vector of elements from `column` on to the thread's lane.

        To an accumulator it is the reverse of `load`. For an operand A, values are rounded to its
        type, and those that share a cell are packed: 2 of 16 bits, 4 of 8 bits. `column` counts
        elements. The values fill 1, 2, 4, ... or 128 cells. Executed by whole warps. The method
        waits for the store (tcgen05.st of shape 32x32b, tcgen05.wait::st) and fences for the
        thread's next arrival (tcgen05.fence::before_thread_sync).
        """
        self._store("tile.store", column, values)
        tcgen05_fence_before_thread_sync()

    def operand(
        self, k: Constant[int], dtype: Constant[DTypeLike], column: Constant[int] = 0
    ) -> TensorTile:
        """Return an operand A of this accumulator's rows in its columns, from `column` on.

        Attention writes the weights P so into the columns of the scores S, which it has read:
        ``p = s.operand(128, "bf16", column=64)``. `column` counts columns of 32 bits.
        """
        layout = overlaid(self.layout, k, dtype, column)
        return TensorTile(layout, add32(self.address, column))

    def scale_rows(self, row: int, num: Constant[int]) -> TensorTile:
        """Return the scale factors of `num` rows from `row` on, both multiples of 64.

        For products of 64 or 192 columns, which begin in the middle of an atom of 128. `row` may be
        a run-time value, which the compiler does not check. One atom's columns are for 32 rows
        each, so that the address moves by ``row // 32``.
        """
        layout = part_of_scales(self.layout, row, num)
        return TensorTile(layout, add32(self.address, u32(row) // u32(32)))

    def _load(self, what: Constant[str], column: Constant[int], num: Constant[int]) -> Registers:
        layout = with_elements(self.layout, what)
        check_columns(layout, what, column, num)
        return load_columns(layout, self._of_warp(column), num)

    def _store(self, what: Constant[str], column: Constant[int], values: Registers) -> None:
        layout = with_rows(self.layout, what)
        check_values(layout, what, column, values)
        store_columns(layout, self._of_warp(u32(column) // u32(layout.per_cell)), values)

    def _of_warp(self, column: int) -> int:
        """Return the address of `column` in the warp's first lane."""
        lanes = u32((tid_x() & 96) << 16)  # 32 (warp mod 4) << 16
        return add32(add32(self.address, lanes), column)


for _constant in (Accumulator, TensorOperand, TensorMetadata, TensorScales, ColumnClaim):
    constant_class(_constant)


# ------------------------------------------------------------------- when a kernel is compiled


@compile_time
def overlaid(layout: TensorLayout, k: int, dtype: DTypeLike, column: int) -> TensorOperand:
    """Return the layout of an operand in an accumulator's columns, or raise."""
    if not isinstance(layout, Accumulator):
        raise BadOperand(f"tile.operand: the tile is {layout}; operands lie in an accumulator's")
    found = tensor_tiles.tensor_operand(layout.m, k, dtype, layout.cta_group, layout.ws)
    first = 0 if isinstance(column, Unknown) else column
    tensor_tiles.check_columns(found, first, layout.columns, str(layout))
    return found


@compile_time
def part_of_scales(layout: TensorLayout, row: int, num: int) -> TensorScales:
    """Return the layout of the scale factors of some rows, or raise."""
    if not isinstance(layout, TensorScales):
        raise BadOperand(f"tile.scale_rows: the tile is {layout}, and not of scale factors")
    first = None if isinstance(row, Unknown) else row
    return tensor_tiles.part_of_scales(layout, first, num)


@compile_time
def with_elements(layout: TensorLayout, what: str) -> Accumulator:
    """Return the layout of an accumulator of which each thread has a row; raise for any other."""
    if not isinstance(layout, Accumulator):
        raise BadOperand(f"{what}: the tile is {layout}; threads load accumulators")
    _check_lanes(layout, what)
    return layout


@compile_time
def with_rows(layout: TensorLayout, what: str) -> Accumulator | TensorOperand:
    """Return the layout of a matrix of which each thread has a row; raise for any other."""
    if isinstance(layout, (TensorScales, TensorMetadata)):
        raise BadOperand(
            f"{what}: the tile is {layout}; scale factors and metadata are copied from shared "
            "memory by tma.tcgen05_copy"
        )
    _check_lanes(layout, what)
    return layout


def _check_lanes(layout: Accumulator | TensorOperand, what: str) -> None:
    if layout.m == 64 and not layout.ws:
        raise BadOperand(
            f"{what}: {layout} has 64 rows, in 16 of every 32 lanes: use m=128, or move lanes with "
            "tma.ptx.tcgen05_ld_16x64b and tcgen05_st_16x64b from tile.address"
        )
