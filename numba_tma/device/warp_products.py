"""mma.sync with fragments: products of a warpgroup's warps, on every GPU, from swizzled tiles.

A warpgroup multiplies 64 rows, or a few blocks of 64, by the same columns. `load_part` brings 32
bytes along K of the operands into registers, and `mma_sync` multiplies them. The sums are
`Fragment` values, so that they go on like those of `wgmma`. Unlike `wgmma`, both operands take
registers and instructions, and a product is complete when the call returns.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numba_tma import simulator
from numba_tma.backend.interface import native
from numba_tma.device.fragments import Fragment
from numba_tma.device.fragments import _checked as checked
from numba_tma.device.shared import SharedTile
from numba_tma.host.annotations import DTypeLike, Integer
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.mma_rules import operand_name
from numba_tma.host.warp_rules import PartLayout, WarpPart, check_warp_product

_layout = functools.lru_cache(PartLayout)
_addresses = functools.lru_cache(PartLayout.word_addresses)


@native
class OperandPart:
    """A part of an operand in the registers of a warpgroup; see `load_part`."""

    def __init__(self, part: WarpPart, words: NDArray[np.uint32]) -> None:
        self._part, self._words = part, words


@native
def load_part(
    side: str, tile: SharedTile, row: Integer, rows: int, k_step: int, major: str = "K"
) -> OperandPart:
    """Return 32 bytes along K of `rows` rows of an operand in shared memory, in registers.

    Executed by all threads of a warpgroup, converged in each warp. The tile's copy must be
    complete. Each warp executes an ldmatrix_x4 for 64 rows of A (of which it loads 16), or for 16
    columns of B. The swizzle spreads its rows over all banks.

    Parameters
    ----------
    side
        "a" or "b", a literal. Each warp loads 16 of 64 rows of A, and all columns of B.
    tile
        ``(rows, K)`` for K-major, with rows of one swizzle span, and ``(K, rows)`` for MN-major,
        which is for types of 16 bits; leading axes are 1.
    row
        The first row of A, or column of B: a multiple of 8, for MN-major of a span.
    rows
        A literal: a multiple of 64 for A and of 16 for B.
    k_step
        Which 32 bytes along K, a literal.
    major
        "K" or "MN", a literal: the axis along which elements are contiguous.
    """
    part = checked(WarpPart, side, tile.tile.dtype, rows)
    layout = checked(_layout, part, tile.tile, major)
    step, first = checked(layout.check_step, k_step), int(row)
    if first % layout.row_unit:
        raise simulator.BadOperand(
            f"load_part: row is {first}; parts of {tile.tile} start at multiples of "
            f"{layout.row_unit} rows"
        )
    thread = simulator.thread_in_warpgroup()
    start = int(tile.address) + first // layout.row_unit * layout.unit_nbytes
    halves = _addresses(layout, thread % 32, thread // 32, step) + start
    if major == "K":
        read = [simulator.shared_read(at, np.dtype(np.uint32)) for at in halves[:, 0].tolist()]
        words = np.array(read, np.uint32)
    else:
        kind = np.dtype(np.uint16)
        each = [simulator.shared_read(at, kind) for at in halves.ravel().tolist()]
        words = np.array(each, np.uint16).view(np.uint32)
    tile.accesses.unfenced = True
    return OperandPart(part, words)


@native
def zero_part(side: str, dtype: DTypeLike, rows: int) -> OperandPart:
    """Return a part of zeros, to begin a loop that multiplies what the step before has loaded."""
    part = checked(WarpPart, side, as_dtype(dtype), rows)
    return OperandPart(part, np.zeros(part.registers, np.uint32))


@native
def mma_sync(sums: tuple[Fragment, ...], a: OperandPart, b: OperandPart) -> tuple[Fragment, ...]:
    """Return ``sums + a @ b.T``: a fragment of 64 x n for each 64 rows of a.

    Executed by all threads of a warpgroup, converged in each warp. n is the number of columns of b.
    The tensor cores multiply f16, bf16 and tf32 to f32, e4m3 and e5m2 in any mix to f32, i8 and u8
    in any mix to i32. PTX: ``mma.sync``, 8 columns at a time.
    """
    given = sums if isinstance(sums, tuple) else (sums,)
    if not all(isinstance(each, Fragment) for each in given) or len(given) != a._part.groups:
        raise simulator.BadOperand(
            f"mma_sync(sums=...) takes a tuple of {a._part.groups} fragments, one for each 64 rows "
            f"of a, not {sums!r}"
        )
    form = checked(check_warp_product, given[0]._dtype, given[0]._n, a._part, b._part)
    names = (operand_name(a._part.dtype), operand_name(b._part.dtype))
    products = simulator.mma_sync_parts(form.row, names, a._words, b._words)
    return tuple(
        Fragment(each._dtype, each._n, _added(each._ready("mma_sync"), product))
        for each, product in zip(given, products)
    )


def _added(held: Any, product: Any) -> Any:
    """Return sums and products in the type of the sums: integers wrap around, floats round once."""
    wide = np.int64 if held.dtype.kind == "i" else np.float64
    with np.errstate(invalid="ignore", over="ignore"):
        return (held.astype(wide) + product.astype(wide)).astype(held.dtype)
