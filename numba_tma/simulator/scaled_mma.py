"""mma.sync of every type, with and without scale factors, for the calling warp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from numba_tma.host.dtypes import as_dtype
from numba_tma.host.warpgroup import STEP_BYTES
from numba_tma.simulator.block import FULL_MASK
from numba_tma.simulator.errors import BadOperand
from numba_tma.simulator.sparse import ORDERED, Codes, check_codes, expanded
from numba_tma.simulator.tcgen05_operands import BITS, decoded_scales
from numba_tma.simulator.thread import WARP_SIZE, current
from numba_tma.simulator.thread_instructions import exchange

#: A register of scale factors, the first byte of it, and the lanes of a quad that give it.
ScaleOperand: TypeAlias = "tuple[int, int, int]"
Matrix: TypeAlias = "NDArray[np.float64]"

ROWS, COLUMNS = 16, 8
#: Where the lowest bit of a narrow element is in its byte, if not at the byte's lowest.
_FIRST_BIT = {4: 2}
#: Types of the elements as they lie in registers; what is not here has a byte or less.
_WIDE = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16), "tf32": np.dtype("f4")}
_TF32 = np.uint32(0xFFFFE000)  #: the bits of a float32 that tf32 uses
_INTEGERS = ("s8", "u8")
#: Codes of a row of a sparse A: each is for 4 elements of a byte, or 8 packed ones.
_CODES_OF_A_ROW = 16
_PTX = {"s8": "i8"}  #: dtypes of PTX types, where their names differ
#: The key of the product among the values of the lanes, which one lane computes for all.
_PRODUCT = WARP_SIZE


def mma_sync(
    name: str,
    k: int,
    a_type: str,
    b_type: str,
    a: Sequence[int],
    b: Sequence[int],
    c: Sequence[float],
    scale_type: str | None = None,
    factors: int = 0,
    scale_a: ScaleOperand | None = None,
    scale_b: ScaleOperand | None = None,
    metadata: int | None = None,
) -> Any:
    """Return this lane's part of A B + C; C of float16 has two elements in each of two registers.

    `k` is that of the instruction; A stores half of it if there are `metadata`. Integers are added
    up in int32, all else in float64, and rounded once. `factors` is the number of scale factors of
    a row of A, and of a column of B.
    """
    own = (
        tuple(int(word) & 0xFFFFFFFF for word in a),
        tuple(int(word) & 0xFFFFFFFF for word in b),
        tuple(c),
        scale_a and tuple(int(x) for x in scale_a),
        scale_b and tuple(int(x) for x in scale_b),
        metadata and int(metadata),
    )
    lanes = exchange(name, FULL_MASK, own)
    if len(lanes) < WARP_SIZE:
        raise BadOperand(
            f"{name}: {len(lanes)} threads of the warp execute it; it takes all {WARP_SIZE}"
        )
    if _PRODUCT not in lanes:  # the first lane that goes on
        held = [lanes[lane] for lane in range(WARP_SIZE)]
        left = _matrix([h[0] for h in held], a_type, k if metadata is None else k // 2, ROWS)
        right = _matrix([h[1] for h in held], b_type, k, COLUMNS)
        if metadata is not None:
            left = expanded(left, _codes(name, [h[5] for h in held], k), k // _CODES_OF_A_ROW)
        if scale_type is not None:
            left *= _scales(name, "a", [h[3] for h in held], scale_type, factors, k)
            right *= _scales(name, "b", [h[4] for h in held], scale_type, factors, k)
        with np.errstate(invalid="ignore", over="ignore"):
            lanes[_PRODUCT] = left @ right.T
    lane = current().lane
    row, column = lane // 4, 2 * (lane % 4)
    product = lanes[_PRODUCT][[row, row + 8], column : column + 2]
    with np.errstate(invalid="ignore", over="ignore"):
        if a_type in _INTEGERS:
            total = product.astype(np.int64) + np.array(own[2], np.int64).reshape(2, 2)
            return tuple(int(value) for value in total.astype(np.int32).ravel())
        if len(own[2]) == 2:  # float16, two in a register
            words = np.array([int(word) & 0xFFFFFFFF for word in own[2]], np.uint32)
            total = product + words.view(np.float16).astype(float).reshape(2, 2)
            return tuple(int(word) for word in total.astype(np.float16).view(np.uint32).ravel())
        total = product + np.array([float(value) for value in own[2]]).reshape(2, 2)
        return tuple(float(value) for value in total.astype(np.float32).ravel())


def mma_sync_parts(
    name: str, types: tuple[str, str], a: NDArray[np.uint32], b: NDArray[np.uint32]
) -> list[Matrix]:
    """Return this lane's elements of A B for each block of 16 rows, in the order of a fragment.

    `a` and `b` are the lane's registers: four for 16 rows of A, two for 8 columns of B.
    """
    lanes = exchange(name, FULL_MASK, (a, b))
    if len(lanes) < WARP_SIZE:
        raise BadOperand(
            f"{name}: {len(lanes)} threads of the warp execute it; it takes all {WARP_SIZE}"
        )
    if _PRODUCT not in lanes:  # the first lane that goes on
        held = [lanes[lane] for lane in range(WARP_SIZE)]
        left, right = (np.array([h[i] for h in held]) for i in range(2))
        k = STEP_BYTES * 8 // BITS[types[0]]
        columns = np.vstack(
            [_matrix(right[:, i : i + 2], types[1], k, COLUMNS) for i in range(0, len(b), 2)]
        )
        with np.errstate(invalid="ignore", over="ignore"):
            lanes[_PRODUCT] = [
                _matrix(left[:, i : i + 4], types[0], k, ROWS) @ columns.T
                for i in range(0, len(a), 4)
            ]
    lane = current().lane
    row, column = lane // 4, 2 * (lane % 4)
    found = []
    for block in lanes[_PRODUCT]:
        pairs = block[[row, row + 8]].reshape(2, -1, COLUMNS)[:, :, column : column + 2]
        found.append(pairs.transpose(1, 0, 2).ravel())
    return found


def _codes(name: str, words: Sequence[int], k: int) -> Codes:
    """Return the codes of each row of a sparse A from the metadata of all lanes: (rows, codes).

    Lane l has 8 codes of row l // 4, or 8 rows on if l is odd: of the second half of K in the upper
    two lanes of a quad.
    """
    held = np.array(words, np.uint32)
    row, code = np.indices((ROWS, _CODES_OF_A_ROW))
    lane = 4 * (row % 8) + row // 8 + 2 * (code // 8)
    codes: Codes = (held[lane] >> 4 * (code % 8).astype(np.uint32) & 0xF).astype(np.intp)
    check_codes(f"{name}: the metadata", codes, k // _CODES_OF_A_ROW, ORDERED)
    return codes


def _matrix(registers: Any, type_name: str, k: int, rows: int) -> Matrix:
    """Return (rows, k) elements from the registers of all lanes."""
    words = np.array(registers, np.uint32)  # lane, register
    elements = _elements(words, type_name, packed=rows * k * 4 == words.size * 32)
    per = elements.shape[-1]
    lane, register, element = np.indices(elements.shape)
    row_groups = rows // 8
    row = lane // 4 + 8 * (register % row_groups)
    column = per * (lane % 4) + 4 * per * (register // row_groups) + element
    matrix = np.empty(elements.size).reshape(rows, k)  # the registers hold rows x k elements
    matrix[row, column] = elements
    return matrix


def _elements(words: NDArray[np.uint32], type_name: str, packed: bool) -> Matrix:
    """Return the numbers in registers: an axis more than `words` has."""
    if type_name in _WIDE:
        kept = words & _TF32 if type_name == "tf32" else words
        wide: Matrix = kept[..., None].view(_WIDE[type_name]).astype(np.float64)
        return wide
    dtype = as_dtype(_PTX.get(type_name, type_name))
    bits = BITS[dtype.name]
    width = 4 if packed else 8  # bits that an element takes
    first = 0 if packed else _FIRST_BIT.get(bits, 0)
    shifts = np.arange(0, 32, width, dtype=np.uint32) + np.uint32(first)
    codes = (words[..., None] >> shifts & np.uint32((1 << bits) - 1)).astype(np.uint8)
    return codes.view(dtype.numpy).astype(np.float64)


def _scales(
    name: str,
    which: str,
    operands: Sequence[tuple[int, int, int]],
    scale_type: str,
    factors: int,
    k: int,
) -> Matrix:
    """Return the factor of each element: (rows, k)."""
    (_, first, thread), others = operands[0], {operand[1:] for operand in operands}
    threads = 2 if which == "a" else 4
    if len(others) > 1:
        raise BadOperand(f"{name}: the lanes give different byte_{which} or thread_{which}")
    if first % factors or not 0 <= first < 4:
        raise BadOperand(
            f"{name}: byte_{which} is {first}; with {factors} factors of a row it is "
            + " or ".join(map(str, range(0, 4, factors)))
        )
    if not 0 <= thread < threads:
        raise BadOperand(f"{name}: thread_{which} is {thread}; it is 0 to {threads - 1}")
    quads = np.array([operand[0] for operand in operands], np.uint32).reshape(8, 4)
    if which == "a":  # rows 0 to 7 from one lane of each quad, rows 8 to 15 from the next
        words = np.concatenate([quads[:, 2 * thread], quads[:, 2 * thread + 1]])
    else:
        words = quads[:, thread]
    shifts = 8 * np.arange(first, first + factors, dtype=np.uint32)
    codes = (words[:, None] >> shifts & np.uint32(255)).astype(np.uint8)
    return np.repeat(decoded_scales(codes, scale_type), k // factors, axis=1)
