"""Copies and pointwise functions of arrays at any alignment: every element, and nothing beside."""

import numpy as np
import pytest
from numba import cuda

from numba_tma.kernels.copy.api import copy
from numba_tma.kernels.pointwise.api import add
from tests.gpu.kernels.test_kernels import TYPES, to_device, to_host
from tests.gpu.worker import on_gpu

GUARD = 77


def numbers(shape, dtype, seed=0):
    """Return small integers, whose sums are exact in every type."""
    return np.random.default_rng(seed).integers(-5, 6, shape).astype(dtype)


def rows_of(memory, begin, shape, gap):
    """Return the rows of a vector that begin at an element, `gap` elements apart."""
    rows, columns = shape
    pitch = columns + gap
    return memory[begin : begin + rows * pitch].reshape(rows, pitch)[:, :columns]


def surrounded(values, begin, gap):
    """Return a vector that has the values as rows, and GUARD everywhere else."""
    rows, columns = values.shape
    memory = np.full(begin + rows * (columns + gap) + 16, GUARD, values.dtype)
    rows_of(memory, begin, values.shape, gap)[...] = values
    return memory


@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "f8"])
@on_gpu(limit=60)
def test_rows_are_copied_between_every_pair_of_alignments(dtype):
    phases = 16 // np.dtype(dtype).itemsize
    for case, (begin, to) in enumerate(np.ndindex(phases, phases)):
        for columns, gaps in ((1 + case % 40, (0, 0)), (40 - case % 40, (3, 0)), (611, (1, 2))):
            x = numbers((5, columns), dtype, case)
            out = cuda.to_device(surrounded(np.zeros_like(x), to, gaps[1]))
            source = cuda.to_device(surrounded(x, begin, gaps[0]))
            copy(rows_of(source, begin, x.shape, gaps[0]), rows_of(out, to, x.shape, gaps[1]))
            want = surrounded(x, to, gaps[1])
            np.testing.assert_array_equal(out.copy_to_host(), want, f"{begin} to {to}, {columns}")


class Part:
    """Rows of a vector on the GPU, as any library would give them."""

    def __init__(self, memory, begin, shape, gap):
        given = dict(memory.__cuda_array_interface__)
        size = np.dtype(memory.dtype).itemsize
        given["data"] = (given["data"][0] + begin * size, False)
        given["shape"], given["strides"] = shape, ((shape[1] + gap) * size, size)
        self.memory, self.shape, self.__cuda_array_interface__ = memory, shape, given
        self.dtype = memory.dtype  # which the interface cannot say of bf16


@pytest.mark.parametrize("name", TYPES)
@on_gpu(limit=60)
def test_each_operand_has_its_own_alignment(name):
    dtype = np.dtype(TYPES[name])
    phases = 16 // dtype.itemsize
    for case in range(3 * phases):
        begins = [case % phases, (case * 3 + 1) % phases, (case * 5 + 2) % phases]
        for shape in ((5, 1 + case % 40), (3, 1001)):
            x, y = (numbers(shape, dtype, case + k) for k in range(2))
            given = [
                Part(to_device(surrounded(value, begin, gap)), begin, shape, gap)
                for value, begin, gap in zip((x, y), begins, (0, 1))
            ]
            memory = to_device(surrounded(np.zeros_like(x), begins[2], 3))
            add(*given, out=Part(memory, begins[2], shape, 3))
            want = surrounded((x + y).astype(dtype), begins[2], 3)
            np.testing.assert_array_equal(to_host(memory), want, f"{begins} {shape}")


@on_gpu
def test_allocations_that_begin_and_end_with_the_array():
    for nbytes in (1, 15, 17, 1001, 100_003):
        x = numbers(nbytes, np.uint8)
        for source, target in ((slice(0, -1), slice(1, None)), (slice(1, None), slice(0, -1))):
            out = cuda.to_device(np.full_like(x, GUARD))
            copy(cuda.to_device(x)[source], out[target])
            want = np.full_like(x, GUARD)
            want[target] = x[source]
            np.testing.assert_array_equal(out.copy_to_host(), want)
