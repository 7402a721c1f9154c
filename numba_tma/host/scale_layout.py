"""Tiles of scale factors as tcgen05.cp reads them: an atom is a matrix of 32 rows of 16 bytes."""

from __future__ import annotations

from dataclasses import dataclass

from numba_tma.host.layout import Swizzle, Tile
from numba_tma.host.scale_factors import ATOM_BYTES, ATOM_ROWS, ATOM_SHAPE

#: Columns of tensor memory that the copy of one atom fills, in all four groups of 32 lanes.
ATOM_COLUMNS = 4
#: The shape of the copy, as PTX has it.
COPY_SHAPE = "32x128b.warpx4"

_CORE_BYTES = 128  # 8 rows of 16 B, one after the other: the stride dimension offset
_UNIT = 16  # bytes that the fields of a descriptor count
_VERSION = 1 << 14  # in the high word: bits 46 to 48 of the descriptor are 0b001
#: The high word of the descriptor of every copy from dense rows of 16 B.
COPY_HIGH = _CORE_BYTES // _UNIT | _VERSION


@dataclass(frozen=True)
class ScaleLayout:
    """How `tcgen05_cp` reads a `scale_tile`, atom by atom.

    Parameters
    ----------
    tile
        Of shape (atoms of 128 rows, atoms of 4 scales, 2, 256), as `scale_tile` returns it.

    Raises
    ------
    ValueError
        When the tile has another shape, a swizzle, or a type that is none of scale factors.

    Examples
    --------
    >>> from numba_tma.host.scale_factors import scale_tile
    >>> layout = ScaleLayout(scale_tile(256, 256, "nvfp4"))
    >>> layout.columns, [hex(layout.descriptor(1024, row=r)) for r in range(2)]
    (8, ['0x400800000040', '0x4008000000c0'])
    """

    tile: Tile

    def __post_init__(self) -> None:
        tile = self.tile
        if tile.ndim != 4 or tile.shape[2:] != ATOM_SHAPE or tile.swizzle is not Swizzle.NONE:
            raise ValueError(
                f"{tile} is no tile of scale factors: its shape is (atoms of {ATOM_ROWS} rows, "
                f"atoms of 4 scales, {ATOM_SHAPE[0]}, {ATOM_SHAPE[1]}), without a swizzle; use "
                "scale_tile(rows, k, format)"
            )
        if tile.dtype.name not in ("ue8m0", "ue4m3"):
            raise ValueError(
                f"{tile} holds {tile.dtype}: scale factors are ue8m0 or ue4m3; use "
                "scale_tile(rows, k, format)"
            )

    @property
    def row_atoms(self) -> int:
        """Atoms along the rows of A, or the columns of B."""
        return self.tile.shape[0]

    @property
    def k_atoms(self) -> int:
        """Atoms along K."""
        return self.tile.shape[1]

    @property
    def columns(self) -> int:
        """Columns of tensor memory of all atoms of one part of K, side by side."""
        return self.row_atoms * ATOM_COLUMNS

    @property
    def high(self) -> int:
        """The high word of every descriptor. The low word is the address in units of 16 B."""
        return COPY_HIGH

    def offset(self, k: int = 0, row: int = 0) -> int:
        """Return the bytes from the tile's base to an atom, by its places along K and the rows."""
        if not (0 <= k < self.k_atoms and 0 <= row < self.row_atoms):
            raise ValueError(
                f"k is {k} and row is {row}; {self.tile} has {self.k_atoms} atoms along K and "
                f"{self.row_atoms} along the rows"
            )
        return (row * self.k_atoms + k) * ATOM_BYTES

    def column(self, k: int = 0, row: int = 0) -> int:
        """Return the column of an atom from that of the first: what a product expects there."""
        self.offset(k, row)
        return k * self.columns + row * ATOM_COLUMNS

    def descriptor(self, address: int, k: int = 0, row: int = 0) -> int:
        """Return the 64-bit descriptor of an atom of a tile at a shared-memory address."""
        at = address + self.offset(k, row)
        if at % _CORE_BYTES or not 0 <= at < 1 << 18:
            raise ValueError(
                f"{self.tile} at address {address:#x}: scale factors start at a multiple of "
                f"{_CORE_BYTES} B below 256 KiB"
            )
        return self.high << 32 | at // _UNIT
