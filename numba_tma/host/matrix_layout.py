"""Tiles as operands of the tensor cores: their descriptors, and the memory that these denote.

Pure NumPy. wgmma and tcgen05.mma read their operands from shared memory in chunks of 16 bytes. A
64-bit descriptor has a start address, two distances and a swizzle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.host_only import host_only
from numba_tma.host.layout import Swizzle, Tile, swizzle_index
from numba_tma.host.warpgroup import STEP_BYTES

MAJORS = ("K", "MN")
CHUNK_BYTES = 16  # bytes that every swizzle keeps together
MAX_OFFSET = 0x3FFF * CHUNK_BYTES  # the fields have 14 bits and count chunks

_DTYPES = ("f16", "bf16", "e4m3", "e5m2", "i8", "u8", "f32", "tf32", "f32_ftz", "tf32_ftz")
# In bits 61 to 63. wgmma has neither bit 61 nor the swizzles that need it.
_SWIZZLE_BITS = {
    Swizzle.NONE: 0,
    Swizzle.B128_ATOM_32B: 1,
    Swizzle.B128: 2,
    Swizzle.B64: 4,
    Swizzle.B32: 6,
}
_PLAIN = (Swizzle.NONE, Swizzle.B32, Swizzle.B64, Swizzle.B128)
#: Swizzles that an instruction reads, by major axis and bytes of an element.
LEGAL: dict[str, dict[str, dict[int, tuple[Swizzle, ...]]]] = {
    "wgmma": {
        "K": {1: _PLAIN, 2: _PLAIN, 4: _PLAIN},
        "MN": {2: _PLAIN},
    },
    "tcgen05": {
        "K": {1: _PLAIN, 2: _PLAIN, 4: _PLAIN},
        "MN": {1: _PLAIN, 2: _PLAIN, 4: (Swizzle.B128_ATOM_32B,)},
    },
}


#: Swizzles with which tcgen05.mma reads types of less than 8 bits, which are K-major. Unpacked
#: elements have a byte each in the layout: 16 of them, then a gap, fill a chunk.
NARROW: dict[str, tuple[Swizzle, ...]] = {
    "e2m1": _PLAIN,
    "e2m1_unpacked": (Swizzle.NONE, Swizzle.B128),
    "e2m3": (Swizzle.NONE, Swizzle.B128),
    "e3m2": (Swizzle.NONE, Swizzle.B128),
}


@dataclass(frozen=True)
class MatrixLayout:
    """How a tile is read as a matrix of `rows` (M of A, N of B) by `k`.

    Parameters
    ----------
    tile
        ``(rows, K)`` for K-major and ``(K, rows)`` for MN-major; leading axes are folded into the
        first of the two. Without a swizzle the chunks of 16 B are an axis of their own, the first:
        ``(chunks, rows, 16 B)`` or ``(chunks, K, 16 B)``.
    major
        The axis along which elements are contiguous: ``"K"``, or ``"MN"`` (what PTX calls
        transposed).
    instruction
        Who reads it: ``"wgmma"`` (compute capability 9.0) or ``"tcgen05"`` (10.0).

    Raises
    ------
    ValueError
        When the instruction cannot read the tile so; the message lists what it can read.
    """

    tile: Tile
    major: str = "K"
    instruction: str = "wgmma"

    def __post_init__(self) -> None:
        if self.major not in MAJORS:
            raise ValueError(
                f'major is {self.major!r}: use "K" for a tile with K innermost, "MN" for one with '
                "the rows of A or the columns of B innermost"
            )
        if not isinstance(self.tile, Tile):
            raise TypeError(f"MatrixLayout(tile={self.tile!r}): give a Tile")
        if not isinstance(self.instruction, str) or self.instruction not in LEGAL:
            raise ValueError(
                f"instruction is {self.instruction!r}: use {' or '.join(map(repr, LEGAL))}"
            )
        if broken := violations(self.tile, self.major, self.instruction):
            raise ValueError(
                f"{self.tile} is no {self.major}-major operand of {self.instruction}: "
                f"{'; '.join(broken)}. {legal_tiles(self.instruction)}"
            )

    @property
    def rows(self) -> int:
        """Extent along M (of A) or N (of B)."""
        return _extents(self.tile, self.major)[0]

    @property
    def k(self) -> int:
        """Extent along K."""
        return _extents(self.tile, self.major)[1]

    @property
    def k_per_step(self) -> int:
        """Elements along K of one instruction: its shape's k."""
        return STEP_BYTES // CHUNK_BYTES * self.tile.dtype.chunk

    @property
    def num_k_steps(self) -> int:
        """Instructions that cover the whole tile along K."""
        return self.k // self.k_per_step

    @property
    def leading(self) -> int:
        """Leading dimension byte offset (LBO).

        K-major: distance between the two chunks of a row, which only an unswizzled tile chooses.
        MN-major: between the spans of a row (slabs); unswizzled, between groups of 8 along K.
        """
        return _offsets(self.tile, self.major)[0]

    @property
    def stride(self) -> int:
        """Stride dimension byte offset (SBO).

        K-major: distance between groups of 8 rows. MN-major: between groups of 8 (of 4 with
        B128_ATOM_32B) along K; unswizzled, between the chunks of a row.
        """
        return _offsets(self.tile, self.major)[1]

    @property
    def row_unit(self) -> int:
        """Unit of a first row; other rows start inside a swizzle's pattern."""
        if self.major == "K":
            return 8
        span = self.tile.swizzle.span
        return span // CHUNK_BYTES * self.tile.dtype.chunk

    @property
    def row_offset(self) -> int:
        """Bytes from one `row_unit` to the next."""
        spans = self.major == "MN" and self.tile.swizzle is not Swizzle.NONE
        return self.leading if spans else self.stride

    @property
    def steps_per_slab(self) -> int:
        """Consecutive steps along K within one span of the swizzle."""
        swizzled = self.major == "K" and self.tile.swizzle is not Swizzle.NONE
        return self.tile.swizzle.span // STEP_BYTES if swizzled else 1

    @property
    def slab_offset(self) -> int:
        """Bytes from a step to the step `steps_per_slab` further."""
        swizzled = self.tile.swizzle is not Swizzle.NONE
        if self.major == "K":
            return self.tile.slab_nbytes if swizzled else 2 * self.leading
        return self.k_per_step * (self.tile.pitch if swizzled else CHUNK_BYTES)

    def offset(self, k_step: int = 0, row: int = 0) -> int:
        """Return the bytes from the tile's base to the part that starts at a k step and a row."""
        if not 0 <= k_step < self.num_k_steps:
            raise ValueError(
                f"k_step is {k_step}; {self.tile} has {self.num_k_steps} steps of "
                f"{self.k_per_step} along K: use 0 to {self.num_k_steps - 1}"
            )
        if not 0 <= row < self.rows or row % self.row_unit:
            last = (self.rows - 1) // self.row_unit * self.row_unit
            raise ValueError(
                f"row is {row}; parts of {self.tile} start at multiples of {self.row_unit} rows: "
                f"use one from 0 to {last}"
            )
        slab, step = divmod(k_step, self.steps_per_slab)
        along_k = slab * self.slab_offset + step * STEP_BYTES
        return along_k + row // self.row_unit * self.row_offset

    def words(self, address: int) -> tuple[int, int]:
        """Return the descriptor's low and high 32 bits for a tile at a shared-memory address."""
        if address % self.tile.alignment or not 0 <= address < 1 << 18:
            raise ValueError(
                f"{self.tile} at address {address:#x}: a matrix starts at a multiple of "
                f"{self.tile.alignment} B below 256 KiB, where the swizzle's pattern starts"
            )
        return address // CHUNK_BYTES | self.low, self.high

    @property
    def low(self) -> int:
        """The low word without the address."""
        return self.leading // CHUNK_BYTES << 16

    @property
    def high(self) -> int:
        """The high word, which does not depend on the address."""
        version = 1 << 14 if self.instruction == "tcgen05" else 0  # bits 46 to 48: 0b001
        return self.stride // CHUNK_BYTES | version | _SWIZZLE_BITS[self.tile.swizzle] << 29

    def descriptor(self, address: int, k_step: int = 0, row: int = 0) -> int:
        """Return the 64-bit descriptor of the part that starts at a k step and a row."""
        low, high = self.words(address)
        return high << 32 | low + self.offset(k_step, row) // CHUNK_BYTES


def violations(tile: Tile, major: str, instruction: str) -> list[str]:
    """List every rule that a tile breaks as an operand, each with a repair."""
    if tile.dtype.name not in _dtypes(instruction):
        names = ", ".join(_dtypes(instruction))
        return [f"the tensor cores have no {tile.dtype} here: use {names}"]
    swizzles = _swizzles(tile.dtype, major, instruction)
    if swizzles is None:
        sizes = " or ".join(str(8 * size) for size in LEGAL[instruction][major])
        return [
            f"only types of {sizes} bits can be {major}-major: use {_named(instruction, major)}, "
            "or a tile with K innermost"
        ]
    if tile.swizzle not in swizzles:
        return [
            f"swizzle {tile.swizzle.name} is not read so: use "
            + ", ".join(s.name for s in swizzles)
        ]
    unit = tile.dtype.chunk
    if tile.swizzle is Swizzle.NONE:
        if tile.ndim not in {"K": (3,), "MN": (2, 3)}[major] or tile.shape[-1] != unit:
            middle = "rows" if major == "K" else "K"
            return [
                f"an unswizzled operand has chunks of 16 B as its first axis: use Tile((chunks, "
                f"{middle}, {unit}), {tile.dtype}), or a swizzle"
            ]
    elif tile.ndim < 2:
        return ["a matrix has two axes: use a tile of shape (rows, K), or (K, rows) for MN-major"]
    broken = []
    rows, k = _extents(tile, major)
    row_multiple = 8 if major == "K" else max(8, unit)
    if rows % row_multiple:
        broken.append(f"it has {rows} rows (M or N): use a multiple of {row_multiple}")
    step = STEP_BYTES // CHUNK_BYTES * unit
    if k % step:
        broken.append(f"its K is {k}: use a multiple of {step}, which one instruction takes")
    for name, offset in zip(("leading", "stride"), _offsets(tile, major)):
        if offset > MAX_OFFSET:
            broken.append(
                f"its {name} dimension offset is {offset:,} B, more than the {MAX_OFFSET:,} B that "
                "14 bits say: use fewer rows"
            )
    return broken


def legal_tiles(instruction: str) -> str:
    """Describe the matrices that an instruction reads."""
    parts = []
    for major, sizes in LEGAL[instruction].items():
        shape = "(rows, K)" if major == "K" else "(K, rows)"
        narrow = NARROW.values() if (instruction, major) == ("tcgen05", "K") else ()
        for swizzles in dict.fromkeys([*sizes.values(), *narrow]):
            names = [
                n
                for n in _dtypes(instruction)
                if _swizzles(as_dtype(n), major, instruction) == swizzles
            ]
            parts.append(
                f"{major}-major {shape} of {', '.join(names)} with swizzle "
                + ", ".join(s.name for s in swizzles)
            )
    return (
        f"{instruction} reads: {'; '.join(parts)}; rows a multiple of 8, K of 32 B, and with NONE "
        "the chunks of 16 B as a first axis"
    )


def _named(instruction: str, major: str) -> str:
    sizes = LEGAL[instruction][major]
    return ", ".join(n for n in _DTYPES if as_dtype(n).itemsize in sizes)


def _dtypes(instruction: str) -> tuple[str, ...]:
    return (*_DTYPES, *NARROW) if instruction == "tcgen05" else _DTYPES


def _swizzles(dtype: DType, major: str, instruction: str) -> tuple[Swizzle, ...] | None:
    """Return the swizzles with which a type is read; None if it cannot be of this major."""
    if dtype.is_packed:
        return NARROW[dtype.name] if major == "K" else None
    return LEGAL[instruction][major].get(dtype.itemsize)


def _extents(tile: Tile, major: str) -> tuple[int, int]:
    """Return the rows (M or N) and the K of the matrix."""
    outer, inner = tile.size // tile.shape[-1], tile.shape[-1]
    if tile.swizzle is Swizzle.NONE:
        chunks = tile.shape[0] if tile.ndim == 3 else 1
        outer, inner = tile.shape[-2], chunks * tile.shape[-1]
    return (outer, inner) if major == "K" else (inner, outer)


def _offsets(tile: Tile, major: str) -> tuple[int, int]:
    """Return the leading and the stride dimension byte offset."""
    if tile.swizzle is Swizzle.NONE:
        group, chunk = 8 * CHUNK_BYTES, tile.shape[-2] * CHUNK_BYTES
        return (chunk, group) if major == "K" else (group, chunk)
    if major == "K":
        return CHUNK_BYTES, 8 * tile.pitch
    # The pattern of wider atoms repeats after fewer lines.
    return tile.slab_nbytes, tile.alignment


# ------------------------------------------------------------- what a descriptor denotes


class MatrixFields(NamedTuple):
    """The fields of a descriptor, offsets in bytes."""

    address: int
    leading: int
    stride: int
    base_offset: int
    swizzle: Swizzle
    instruction: str


def decode_descriptor(descriptor: int) -> MatrixFields:
    """Return the fields of a descriptor; bits 46 to 48 distinguish tcgen05 from wgmma."""
    address, leading, stride = (
        (descriptor >> shift & 0x3FFF) * CHUNK_BYTES for shift in (0, 16, 32)
    )
    version, bits = descriptor >> 46 & 7, descriptor >> 61 & 7
    instruction = {0: "wgmma", 1: "tcgen05"}.get(version)
    found = [swizzle for swizzle, value in _SWIZZLE_BITS.items() if value == bits]
    if instruction is None or not found or (instruction == "wgmma" and bits & 1):
        raise ValueError(
            f"{descriptor:#018x} is no matrix descriptor: bits 46 to 48 are {version}, and the "
            f"swizzle's bits 61 to 63 are {bits}"
        )
    base_offset = descriptor >> 49 & 7
    return MatrixFields(address, leading, stride, base_offset, found[0], instruction)


def matrix_addresses(
    descriptor: int, rows: int, itemsize: int, major: str = "K", steps: int = 1
) -> NDArray[np.intp]:
    """Compute the addresses from which an instruction reads its operand.

    Parameters
    ----------
    descriptor
        64 bits, for wgmma or tcgen05.
    rows
        The instruction's M (of A) or N (of B).
    itemsize
        Bytes per element; the instruction's K is 32 bytes of them.
    major
        ``"K"`` or ``"MN"``: the instruction's transposition bit.
    steps
        2 for B of a sparse product, whose K is 64 bytes.

    Returns
    -------
    numpy.ndarray
        The shared-memory address of each element, of shape ``(rows, steps * 32 // itemsize)``.
    """
    fields = decode_descriptor(descriptor)
    if fields.base_offset:
        raise ValueError(
            f"{descriptor:#018x} has base offset {fields.base_offset}: matrices start where the "
            "swizzle's pattern does"
        )
    row, k = np.indices((rows, steps * STEP_BYTES // itemsize))
    swizzled = fields.swizzle is not Swizzle.NONE
    span = fields.swizzle.span  # 16 without a swizzle: one chunk
    if major == "K" and swizzled and steps * STEP_BYTES > span:
        raise ValueError(
            f"{descriptor:#018x} has rows of {span} B, and a sparse product reads "
            f"{steps * STEP_BYTES} B of each: use a swizzle of 64 or 128 B"
        )
    if major == "K":
        chunk, byte = np.divmod(k * itemsize, CHUNK_BYTES)
        apart = CHUNK_BYTES if swizzled else fields.leading
        linear = row // 8 * fields.stride + row % 8 * span + chunk * apart + byte
    else:
        part, byte = np.divmod(row * itemsize, span)
        group = fields.swizzle.alignment // span if swizzled else 8
        next_part, next_group = fields.leading, fields.stride
        if not swizzled:
            next_part, next_group = next_group, next_part
        linear = part * next_part + byte + k // group * next_group + k % group * span
    addresses: NDArray[np.intp] = swizzle_index(fields.swizzle, fields.address + linear)
    return addresses


@host_only
def reference_matrix(
    memory: NDArray[np.uint8], descriptor: int, rows: int, dtype: Any, major: str = "K"
) -> NDArray[Any]:
    """Read a matrix as the tensor cores do.

    Parameters
    ----------
    memory
        Shared memory, byte by byte from address 0.
    descriptor, rows, major
        Those of `matrix_addresses`.
    dtype
        Element type.

    Returns
    -------
    numpy.ndarray
        Shape ``(rows, K)``, of the dtype's NumPy type: K is 32 bytes of elements.
    """
    dtype = as_dtype(dtype)
    addresses = matrix_addresses(descriptor, rows, dtype.itemsize, major)
    if addresses.max() + dtype.itemsize > memory.size:
        raise ValueError(
            f"{descriptor:#018x} reads {rows} rows up to address {addresses.max():#x}, past the "
            f"{memory.size:,} B of memory"
        )
    read = memory[addresses[..., None] + np.arange(dtype.itemsize)]
    matrix: NDArray[Any] = read.view(dtype.numpy)[..., 0]
    return matrix
