"""How column sums cut up a matrix: tiles of columns, and parts of the rows that are added at once.

The arguments of the launch are here, too: the host makes them without the kernel.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from numba_tma.host.annotations import Address, Integer
from numba_tma.host.arrays import Array
from numba_tma.kernels.rows.plan import UNALIGNED

THREADS = 512  #: Of a block.
BLOCKS = 2  #: Of an SM, at most.
BATCH = 4  #: Loads that a thread has in flight.
FEW_THREADS = 256  #: Of a block, where there are few rows.
FEW_COLUMNS, FEW_BATCH = 4, 8  #: Columns of a thread there, and rows that are in flight.
_PACKED = 1024  #: Bytes up to which short rows are read as one.
_WIDTHS = (16, 32, 64)  #: Threads across a tile, if the matrix has so many accesses.


class ColumnPlan(NamedTuple):
    """How a matrix is cut up.

    A block has the sums of a tile of columns, over a part of the rows for each of `down` rows of
    `across` threads. Groups of blocks have other parts of the rows.
    """

    width: int  #: Bytes of an access, or `UNALIGNED`.
    packed: int  #: Rows of the matrix that are read as one, without a gap between them.
    across: int  #: Threads that share a row of a tile.
    down: int  #: Rows of threads.
    columns: int  #: Of a tile; those of all packed rows.
    tiles: int
    groups: int

    @property
    def parts(self) -> int:
        """Parts of the rows: part p has the rows p, p + parts, p + 2 * parts ..."""
        return self.down * self.groups


class ColumnSizes(NamedTuple):
    """The sizes of a launch."""

    begin: Address  #: Of the memory of the matrix.
    end: Address  #: Of the first byte behind it.
    rows: Integer  #: Packed ones, as all below.
    columns: Integer
    across: Integer
    down: Integer
    tile_columns: Integer
    tiles: Integer
    groups: Integer
    packed: Integer


def plan_for(x: Array, sms: int, parts: int | None = None) -> ColumnPlan:
    """Return the plan for the rows of `x` on a GPU of so many SMs.

    With `parts`, the rows have so many parts, rounded up to those of whole blocks.
    """
    (rows, columns), itemsize = x.shape, x.itemsize
    pitch = x.strides[0] if rows > 1 else 0
    packed = _packed(rows, columns * itemsize, pitch)
    rows, columns, pitch = -(-rows // packed), columns * packed, pitch * packed
    width = 16 if _is_aligned(x, columns * itemsize, pitch) else UNALIGNED
    extra = int(width == UNALIGNED)  # a row touches one access more if it begins within one
    phases, lanes = 16 // math.gcd(16, pitch), 16 // itemsize
    accesses, most = -(-columns // lanes), BLOCKS * sms
    blocks = min(most, -(-accesses * rows // (BATCH * THREADS)))
    across = _across(accesses, rows, blocks, lanes, THREADS // phases)
    while accesses > across * most and across * phases < THREADS and not parts:
        across *= 2
    if packed > 1 or accesses + extra <= across:
        tiles, each = 1, accesses
    else:
        whole = across - 4 * extra  # threads, and columns in multiples of 64 B
        tiles = -(-accesses // whole)
        each = -(-accesses // (4 * tiles)) * 4
        tiles = -(-accesses // each)
    across = each + extra
    down = THREADS // across
    down -= down % phases
    columns = min(each * lanes, columns)
    groups = -(-min(parts or rows, rows) // down)
    if not parts:
        can_add = columns // packed <= THREADS  # the sums of other blocks, a column for a thread
        groups = min(groups, _groups(blocks, tiles, most) if can_add else 1)
    return ColumnPlan(width, packed, across, down, columns, tiles, groups)


def has_few_rows(x: Array, sms: int) -> bool:
    """Return whether a thread had better add up all rows of its columns.

    Each row would be the only one of its part. The tiles of longer rows, which begin anywhere,
    would be for more blocks than run at once.
    """
    (rows, columns), pitch = x.shape, x.strides[0]
    if rows <= 2 * BATCH:
        return True
    if _is_aligned(x, columns * x.itemsize, pitch):
        return False
    is_long = columns * x.itemsize > math.gcd(16, pitch) * THREADS * BLOCKS * sms
    return rows <= (16 if is_long else 4) * BATCH


def _packed(rows: int, nbytes: int, pitch: int) -> int:
    """Return how many rows to read as one: short ones that do not all begin at an access."""
    if pitch != nbytes or nbytes % 16 == 0 or 2 * nbytes > _PACKED:
        return 1
    return min(1 << (_PACKED // nbytes).bit_length() - 1, 1 << (rows - 1).bit_length())


def _is_aligned(x: Array, nbytes: int, pitch: int) -> bool:
    """Return whether all accesses of rows of `nbytes` are whole."""
    return math.gcd(x.address, x.extent[1], nbytes, pitch) % 16 == 0


def _across(accesses: int, rows: int, blocks: int, lanes: int, widest: int) -> int:
    """Return how many threads share a row of a tile.

    The narrower a tile, the fewer groups it has of as many blocks: the last block of a tile then
    adds up what a batch of loads brings. Few rows make tiles wider.
    """
    across = _WIDTHS[0]
    for wider in _WIDTHS[1:]:
        if wider * wider * blocks <= BATCH * 4 * THREADS // lanes * accesses:
            across = wider
    while across < widest and THREADS // across >= 2 * rows:
        across *= 2
    return across


def _groups(blocks: int, tiles: int, most: int) -> int:
    """Return how many groups fill the GPU; of more tiles than run at once, the last wave, too."""
    if tiles <= most:
        return max(1, blocks // tiles)
    return max(range(8, 0, -1), key=lambda n: tiles * n / most / -(-tiles * n // most))
