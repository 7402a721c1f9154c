"""Types that mma.sync multiplies, and the parts of tiles that a warpgroup's warps load for it.

Pure NumPy. An instruction multiplies 32 bytes along K of 16 rows of A and 8 columns of B. A
warpgroup multiplies 64 rows, each warp its 16, by the same columns: its sums are a `Fragment`. So a
part of A has rows in blocks of 64, and a part of B columns in pairs of 8, for `ldmatrix_x4`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numba_tma.host.dtypes import DType
from numba_tma.host.layout import Swizzle, Tile, swizzle_index
from numba_tma.host.matrix_layout import CHUNK_BYTES, MAJORS
from numba_tma.host.mma_rules import operand_name
from numba_tma.host.warpgroup import ROWS, STEP_BYTES

SIDES = ("a", "b")
PAIR = 16  #: columns of B that one ldmatrix_x4 loads, for two instructions
WARP_ROWS = 16  #: rows of A of one instruction
_SWIZZLED = (Swizzle.B32, Swizzle.B64, Swizzle.B128)


@dataclass(frozen=True)
class WarpForm:
    """Types that one row of mma.sync multiplies in any mix, and the type of their sums."""

    operands: tuple[str, ...]
    row: str
    accumulator: str = "f32"

    def __str__(self) -> str:
        return f"{', '.join(self.operands)} -> {self.accumulator}"


WARP_FORMS = (
    WarpForm(("f16",), "mma_m16n8k16"),
    WarpForm(("bf16",), "mma_m16n8k16"),
    WarpForm(("tf32",), "mma_m16n8k8_tf32"),
    WarpForm(("e4m3", "e5m2"), "mma_m16n8k32_f8"),
    WarpForm(("i8", "u8"), "mma_m16n8k32_i8", "i32"),
)


def check_warp_product(accumulator: DType, n: int, a: WarpPart, b: WarpPart) -> WarpForm:
    """Return the form that multiplies two parts into fragments of 64 x n, or raise a ValueError."""
    names = operand_name(a.dtype), operand_name(b.dtype)
    form = next((f for f in WARP_FORMS if set(names) <= set(f.operands)), None)
    if form is None or accumulator.name != form.accumulator:
        raise ValueError(
            f"mma_sync: there is no {names[0]} x {names[1]} -> {accumulator}; mma.sync multiplies "
            f"{'; '.join(map(str, WARP_FORMS))}"
        )
    if (a.side, b.side) != SIDES:
        raise ValueError(
            f'mma_sync: a is a part of side "{a.side}" and b of side "{b.side}": load them with '
            'load_part("a", ...) and load_part("b", ...)'
        )
    if n != b.rows:
        raise ValueError(
            f"mma_sync: the fragments have {n} columns and b has {b.rows}: use fragment({b.rows})"
        )
    return form


@dataclass(frozen=True)
class WarpPart:
    """The registers of a part of an operand: `rows` rows of A, or columns of B, by 32 bytes of K.

    A warp holds 16 of 64 rows of A, and all columns of B.
    """

    side: str
    dtype: DType
    rows: int

    def __post_init__(self) -> None:
        if self.side not in SIDES:
            raise ValueError(f'load_part: side is {self.side!r}: use "a" or "b"')
        unit = ROWS if self.side == "a" else PAIR
        if self.rows < unit or self.rows % unit or self.rows > 256:
            what = "rows of A" if self.side == "a" else "columns of B"
            raise ValueError(
                f"load_part: rows is {self.rows}; a warpgroup loads {what} in multiples of {unit}, "
                "up to 256"
            )

    @property
    def groups(self) -> int:
        """Groups of four registers, which one ldmatrix_x4 loads."""
        return self.rows // (ROWS if self.side == "a" else PAIR)

    @property
    def registers(self) -> int:
        """Registers of each thread."""
        return 4 * self.groups


@dataclass(frozen=True)
class PartLayout:
    """Where a part lies in a swizzled tile, for `ldmatrix_x4`.

    Parameters
    ----------
    part
        The registers.
    tile
        ``(rows, K)`` for K-major and ``(K, rows)`` for MN-major; leading axes are 1.
    major
        The axis along which elements are contiguous.
    """

    part: WarpPart
    tile: Tile
    major: str = "K"

    def __post_init__(self) -> None:
        if broken := self._violation():
            raise ValueError(f"load_part: {self.tile} is no {self.major}-major operand: {broken}")

    def _violation(self) -> str:
        tile = self.tile
        if self.major not in MAJORS:
            return f'major is {self.major!r}: use "K" or "MN"'
        if operand_name(tile.dtype) not in {name for form in WARP_FORMS for name in form.operands}:
            return f"mma.sync does not multiply {tile.dtype}"
        if self.major == "MN" and tile.itemsize != 2:
            return (
                "ldmatrix transposes elements of 16 bits: use f16 or bf16, or a tile with K "
                "innermost"
            )
        if tile.swizzle not in _SWIZZLED:
            names = ", ".join(swizzle.name for swizzle in _SWIZZLED)
            return f"swizzle {tile.swizzle.name} has bank conflicts: use {names}"
        if tile.ndim < 2 or any(extent != 1 for extent in tile.shape[:-2]):
            return "a matrix has two axes: use a tile of (rows, K), or (K, rows) for MN-major"
        if self.major == "K" and tile.shape[-1] * tile.itemsize != tile.swizzle.span:
            return (
                f"its rows have {tile.shape[-1] * tile.itemsize} B, and one span of "
                f"{tile.swizzle.name} is {tile.swizzle.span} B: use rows of one span"
            )
        rows, k = tile.shape[-2:] if self.major == "K" else tile.shape[:-3:-1]
        if k * tile.itemsize % STEP_BYTES:
            return f"its K is {k}: use a multiple of {STEP_BYTES // tile.itemsize}"
        if rows < self.part.rows:
            return f"it has {rows} rows, and {self.part.rows} are loaded: use a larger tile"
        if self.major == "MN" and tile.shape[-1] % self.row_unit:
            return f"it has {rows} rows: use a multiple of {self.row_unit}"
        if self.major == "MN" and self.part.side == "a" and self.row_unit != ROWS:
            return f"rows of A come in blocks of {ROWS}: use swizzle B128"
        return ""

    @property
    def k_steps(self) -> int:
        """Steps of 32 bytes along K."""
        return self.tile.shape[-1 if self.major == "K" else -2] * self.tile.itemsize // STEP_BYTES

    @property
    def row_unit(self) -> int:
        """Unit of a first row: other rows start inside the swizzle's pattern."""
        return 8 if self.major == "K" else self.tile.swizzle.span // self.tile.itemsize

    @property
    def unit_nbytes(self) -> int:
        """Bytes from a row to the row `row_unit` further."""
        return 8 * self.tile.pitch if self.major == "K" else self.tile.slab_nbytes

    def check_step(self, k_step: object) -> int:
        """Return the step along K, or raise a ValueError."""
        if not isinstance(k_step, int) or not 0 <= k_step < self.k_steps:
            raise ValueError(
                f"load_part: k_step is {k_step!r}; {self.tile} has {self.k_steps} steps of "
                f"{STEP_BYTES} B along K: use a literal from 0 to {self.k_steps - 1}"
            )
        return k_step

    def lane_offset(self, lane: Any, warp: Any) -> Any:
        """Return the bytes from the part's first row to the 16 bytes whose address a lane gives.

        That is for the first group and step. `lane` and `warp` (of the warpgroup) are integers,
        arrays, or any objects with the operators of integers.
        """
        low = lane & 7
        # Bits 3 and 4 of the lane choose the matrix: registers go along rows first in A, along K
        # first in B.
        eight, other = lane & 8, (lane >> 1) & 8
        if self.part.side == "b":
            eight, other = other, eight
        # `eight` counts rows of the operand from the lane's matrix on, `other` selects the half of
        # 16 bytes along K.
        block = warp * WARP_ROWS if self.part.side == "a" else warp * 0
        if self.major == "K":
            line = (low | eight) + block
            column = other * 2
        else:
            line = low | other
            column = (block + eight) * 2
        linear = line * self.tile.pitch
        span = self.tile.swizzle.span
        turn = (linear >> 7) * CHUNK_BYTES & (span - CHUNK_BYTES)
        return linear + (column ^ turn)

    def moves(self, group: int, k_step: int) -> tuple[int, int]:
        """Return what is XORed to a lane's offset, and then added, for a group and a step."""
        if self.major == "K":
            apart = ROWS if self.part.side == "a" else PAIR
            return k_step * STEP_BYTES, group * apart * self.tile.pitch
        nbytes = group * (ROWS if self.part.side == "a" else PAIR) * self.tile.itemsize
        slab, inside = divmod(nbytes, self.tile.swizzle.span)
        k = k_step * STEP_BYTES // self.tile.itemsize
        return inside, slab * self.tile.slab_nbytes + k * self.tile.pitch

    def word_addresses(self, lane: int, warp: int, k_step: int) -> NDArray[np.intp]:
        """Return the bytes from the part's first row to both halves of each register of a lane.

        From the layout of mma.sync's operands alone; `lane_offset` says the same for ldmatrix.
        """
        register = np.arange(self.part.registers)
        group, one = register // 4, register % 4
        lower, upper = one % 2, one // 2  # the next 8 rows; the next 16 bytes, in A
        if self.part.side == "a":
            row = group * ROWS + warp * WARP_ROWS + 8 * lower + lane // 4
            byte = 16 * upper + 4 * (lane % 4)
        else:
            row = group * PAIR + 8 * upper + lane // 4
            byte = 16 * lower + 4 * (lane % 4)
        byte = byte[:, None] + np.array([0, 2]) + k_step * STEP_BYTES
        row = np.broadcast_to(row[:, None], byte.shape)
        if self.major == "K":
            linear = row * self.tile.pitch + byte
        else:
            slab, inside = np.divmod(row * self.tile.itemsize, self.tile.swizzle.span)
            k = byte // self.tile.itemsize
            linear = slab * self.tile.slab_nbytes + k * self.tile.pitch + inside
        addresses: NDArray[np.intp] = swizzle_index(self.tile.swizzle, linear)
        return addresses
