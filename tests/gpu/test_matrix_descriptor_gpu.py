"""What the tensor cores read through descriptors: one product per (dtype, major-ness, swizzle).

wgmma itself is written by hand here. Products of small integers are exact in every type, so that
they equal NumPy's bit for bit.
"""

import functools

import numpy as np
import pytest
from numba import cuda, types

import numba_tma as tma
from numba_tma import Swizzle
from numba_tma.dtypes import as_dtype
from tests.gpu import raw_wgmma
from tests.gpu.copies import TRIES, Tensor
from tests.gpu.worker import on_gpu
from tests.matrix_operands import Operand

ROWS, COLUMNS = 128, 128  # two warpgroups of 64 rows; as many columns as make slabs of any swizzle
PLAIN = (Swizzle.NONE, Swizzle.B32, Swizzle.B64, Swizzle.B128)


def pairs(dtype):
    """List operands A and B so that each is read in every way, mostly not the same one."""
    k = 256 // as_dtype(dtype).itemsize  # two slabs of the widest swizzle
    majors = ("K", "MN") if raw_wgmma.SHAPES[dtype].transposes else ("K",)
    kinds = [(major, swizzle) for major in majors for swizzle in PLAIN]
    shifted = kinds[3:] + kinds[:3]
    return [
        (Operand(ROWS, k, dtype, *first), Operand(COLUMNS, k, dtype, *second))
        for first, second in zip(kinds, shifted)
    ]


CASES = [pair for dtype in raw_wgmma.SHAPES for pair in pairs(dtype)]
NARROW = [
    # less than a span wide, and a last slab that is not full
    (Operand(128, 48, "bf16"), Operand(128, 48, "bf16", "MN")),
    (Operand(128, 80, "f16"), Operand(128, 80, "f16", "K", Swizzle.B64)),
    (Operand(128, 32, "i8"), Operand(128, 32, "i8", "K", Swizzle.B32)),
    (Operand(192, 32, "bf16", "MN"), Operand(208, 32, "bf16", "MN")),
]


@functools.cache
def product_kernel(a, b, columns=COLUMNS):
    """Return the kernel that multiplies 128 rows of A by all, or the first, columns of B."""
    zeros, mma, wait, store = raw_wgmma.instructions(
        a.dtype, columns, a.major == "MN", b.major == "MN"
    )
    first_a, first_b = (0,) * a.tile.ndim, (0,) * b.tile.ndim
    a_tile, b_tile, a_major, b_major = a.tile, b.tile, a.major, b.major
    nbytes, k_steps = a_tile.nbytes + b_tile.nbytes, a.layout().num_k_steps

    @cuda.jit
    def product(a_map, b_map, first_row, out, completed):
        a_shared, b_shared = tma.shared_tile(a_tile), tma.shared_tile(b_tile)
        full = tma.shared_barrier()
        thread = cuda.threadIdx.x
        if thread == 0:
            full.init(1)
            tma.fence_mbarrier_init()
        cuda.syncthreads()
        if thread == 0:
            full.arrive_expect_tx(nbytes)
            a_map.load(a_shared, first_a, full)
            b_map.load(b_shared, first_b, full)
        arrived = types.int32(0)
        for _ in range(TRIES):
            if full.test_wait(0):
                arrived = types.int32(1)
                break
        if cuda.syncthreads_and(arrived):
            row = first_row + thread // 128 * 64
            a_descriptor = a_shared.matrix_descriptor(a_major).advance(row=row)
            b_descriptor = b_shared.matrix_descriptor(b_major)
            total = zeros()
            raw_wgmma.fence()
            for k_step in range(k_steps):
                total = mma(
                    total, a_descriptor.advance(k_step).value, b_descriptor.advance(k_step).value
                )
            raw_wgmma.commit_group()
            total = wait(total)
            line = thread // 128 * 64 + thread % 128 // 32 * 16 + thread % 32 // 4
            column = thread % 4 * 2
            row_bytes = types.uint64(4 * columns)
            place = types.uint64(out[0]) + line * row_bytes + types.uint64(4 * column)
            store(total, place, row_bytes)
            if thread == 0:
                completed[0] = 1

    return product


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
    result = raw_wgmma.SHAPES[a.dtype].result
    out = cuda.to_device(np.full((ROWS, columns), 0x7FABCDEF, np.uint32))
    completed = cuda.to_device(np.zeros(1, np.int32))
    pointer = cuda.to_device(np.array([out.device_ctypes_pointer.value], np.uint64))
    product_kernel(a, b, columns)[1, 256](a_map, b_map, first_row, pointer, completed)
    assert completed.copy_to_host()[0] == 1, "the tiles did not come"
    expected = (x[first_row : first_row + ROWS] @ y[:columns].T).astype(str(result))
    np.testing.assert_array_equal(out.copy_to_host().view(expected.dtype), expected)
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
