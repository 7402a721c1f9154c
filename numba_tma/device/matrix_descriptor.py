"""Matrix descriptors: how a kernel names a shared tile to the tensor cores (wgmma, tcgen05.mma)."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from numba_tma.backend.interface import constant_class, device_class, native, u32, u64
from numba_tma.host.layout import Tile
from numba_tma.host.matrix_layout import CHUNK_BYTES, MAJORS, MatrixLayout, violations
from numba_tma.simulator import BadOperand

constant_class(MatrixLayout)


@native
@device_class()
@dataclass(frozen=True)
class MatrixDescriptorPair:
    """The two words of a matrix descriptor, without the tile's layout.

    ``pair + nbytes`` is the matrix that starts `nbytes` further on, such as in another stage: one
    32-bit addition, since only the low word holds the address.
    """

    lo: u32
    hi: u32

    @property
    def value(self) -> int:
        """The descriptor in the 64 bits that instructions take."""
        return u64(self.hi) << u64(32) | u64(self.lo)

    def __add__(self, nbytes: int) -> MatrixDescriptorPair:
        return MatrixDescriptorPair(_moved(self.lo, nbytes), self.hi)


@native
@device_class(static=("layout",))
@dataclass(frozen=True)
class MatrixDescriptor:
    """A shared tile as a matrix operand; `SharedTile.matrix_descriptor` makes it.

    A value of two registers, of which the high one is a compile-time constant. Making one reads
    nothing and orders nothing. Before an instruction reads through it, the tile's bytes must have
    arrived, and bytes that threads wrote must be fenced. ``descriptor + nbytes`` is the same matrix
    `nbytes` further on.
    """

    layout: MatrixLayout
    lo: u32
    hi: u32

    @property
    def value(self) -> int:
        """The descriptor in the 64 bits that instructions take."""
        return u64(self.hi) << u64(32) | u64(self.lo)

    @property
    def pair(self) -> MatrixDescriptorPair:
        """The two words alone, without the tile."""
        return MatrixDescriptorPair(self.lo, self.hi)

    @native
    def advance(self, k_step: int = 0, row: int = 0) -> MatrixDescriptor:
        """Return the descriptor of the part that an instruction reads.

        The offset counts from the start of this descriptor, which is the tile's base or one of its
        rows, not a k step. Literals are checked when the kernel is compiled, other values in the
        simulator.

        Parameters
        ----------
        k_step
            Which of the tile's `layout.num_k_steps` parts along K, each 32 bytes of every row: 16
            elements of 16 bits, 8 of 32, 32 of 8. Where the tile is wider than its swizzle the
            steps go on in the next slab.
        row
            First row (of M or N), such as that of a warpgroup: a multiple of `layout.row_unit`.
        """
        try:
            nbytes = self.layout.offset(k_step, row)
        except ValueError as error:
            raise BadOperand(f"MatrixDescriptor.advance: {error}") from None
        return self + nbytes

    def __add__(self, nbytes: int) -> MatrixDescriptor:
        return MatrixDescriptor(self.layout, _moved(self.lo, nbytes), self.hi)


def _moved(low: int, nbytes: int) -> int:
    if nbytes % CHUNK_BYTES:
        raise BadOperand(whole_chunks(nbytes))
    return low + nbytes // CHUNK_BYTES


def whole_chunks(nbytes: int) -> str:
    """Say that a descriptor cannot be moved by so many bytes."""
    return (
        f"a matrix descriptor + {nbytes}: descriptors count chunks of {CHUNK_BYTES} B, so add a "
        f"multiple of {CHUNK_BYTES}"
    )


@functools.lru_cache(maxsize=1024)  # all threads of a warpgroup make the same descriptor
def matrix_descriptor(tile: Tile, address: int, major: str = "K") -> MatrixDescriptor:
    """Return the descriptor of a tile at a shared-memory address (simulator).

    It is wgmma's, or that of tcgen05 if only tcgen05 reads such a tile.
    """
    try:
        layout = _layout(tile, major)
        return MatrixDescriptor(layout, *layout.words(address))
    except ValueError as error:
        raise BadOperand(f"SharedTile.matrix_descriptor: {error}") from None


def _layout(tile: Tile, major: str) -> MatrixLayout:
    try:
        return MatrixLayout(tile, major)
    except ValueError:
        if major in MAJORS and not violations(tile, major, "tcgen05"):
            return MatrixLayout(tile, major, "tcgen05")
        raise
