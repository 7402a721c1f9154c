"""What the tensor cores read through descriptors: one product per (dtype, major-ness, swizzle).

Products of small integers are exact in every type, so that they equal NumPy's bit for bit.
"""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import Swizzle
from numba_tma.host.dtypes import as_dtype
from tests.gpu.copies import Tensor
from tests.gpu.worker import on_gpu
from tests.kernels.matrix_operands import Operand, ways
from tests.kernels.mma_kernels import product

ROWS, COLUMNS = 128, 128  # two warpgroups of 64 rows; as many columns as make slabs of any swizzle
#: Of the product, by the type of both operands.
ACCUMULATORS = {"bf16": "f32", "f16": "f32", "tf32": "f32", "e4m3": "f32", "i8": "i32"}


def pairs(dtype):
    """List operands A and B so that each is read in every way, mostly not the same one."""
    k = 256 // as_dtype(dtype).itemsize  # two slabs of the widest swizzle
    kinds = ways(as_dtype(dtype))
    shifted = kinds[3:] + kinds[:3]
    return [
        (Operand(ROWS, k, dtype, *first), Operand(COLUMNS, k, dtype, *second))
        for first, second in zip(kinds, shifted)
    ]


CASES = [pair for dtype in ACCUMULATORS for pair in pairs(dtype)]
NARROW = [
    # less than a span wide, and a last slab that is not full
    (Operand(128, 48, "bf16"), Operand(128, 48, "bf16", "MN")),
    (Operand(128, 80, "f16"), Operand(128, 80, "f16", "K", Swizzle.B64)),
    (Operand(128, 32, "i8"), Operand(128, 32, "i8", "K", Swizzle.B32)),
    (Operand(192, 32, "bf16", "MN"), Operand(208, 32, "bf16", "MN")),
]


def integers(operand, seed):
    """Return small integers, which the type holds and whose sums the accumulator holds exactly."""
    # the accumulator of 8-bit floats keeps 13 bits or so
    most = {"i8": 127, "e4m3": 2}.get(operand.dtype, 8)
    drawn = np.random.default_rng(seed).integers(-most, most + 1, (operand.rows, operand.k))
    return drawn.astype(np.int32)


def on_device(operand, matrix):
    """Return the map of a matrix in the operand's order, and the memory that it lies in."""
    array = operand.as_tensor(matrix.astype(operand.tile.dtype.numpy))
    stored = np.ascontiguousarray(array if array.base is None else array.base)
    memory = cuda.to_device(stored.reshape(-1).view(np.uint8))
    tensor = Tensor(array.shape, array.strides, array.itemsize).on_device(memory)
    return tma.tensor_map(tensor, operand.tile, dtype=operand.tile.dtype), memory


@on_gpu
def check_product(a, b, columns=COLUMNS, first_row=0):
    x, y = integers(a, 1), integers(b, 2)
    (a_map, a_memory), (b_map, b_memory) = on_device(a, x), on_device(b, y)
    accumulator = ACCUMULATORS[a.dtype]
    out = cuda.to_device(np.zeros((ROWS, columns), as_dtype(accumulator).numpy))
    kernel, _ = product(a, b, columns, accumulator)
    kernel[1, 256](a_map, b_map, np.int32(first_row), out.dtype.type(0), True, out)
    expected = (x[first_row : first_row + ROWS] @ y[:columns].T).astype(out.dtype)
    np.testing.assert_array_equal(out.copy_to_host(), expected)
    assert a_memory is not None and b_memory is not None  # alive until here


@pytest.mark.parametrize(("a", "b"), CASES, ids=str)
def test_a_product(a, b):
    check_product(a, b)


@pytest.mark.parametrize(("a", "b"), NARROW, ids=str)
def test_tiles_of_other_widths(a, b):
    check_product(a, b, b.rows, a.rows - ROWS)


@pytest.mark.parametrize("columns", [8, 64, 96])
def test_the_first_columns_of_a_wider_tile(columns):
    check_product(Operand(128, 64, "bf16"), Operand(128, 64, "bf16", "MN"), columns)
