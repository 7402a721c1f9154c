"""Elements and vectors in compiled kernels, executed: their values, and arithmetic on them."""

import numpy as np
import pytest
from numba import cuda, typeof

import numba_tma as tma
from numba_tma import Tile
from numba_tma.host.dtypes import as_dtype
from numba_tma.tools.testing import compile_ptx
from tests.kernels.matrix_operands import noise
from tests.ptx_machine import Machine
from tests.tiers import quick

DTYPES = (
    *("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64"),
    *("f16", "bf16", "f32", "f64", "e4m3", "e5m2"),
)


def machine_of(body, *arrays):
    ptx = compile_ptx(cuda.jit(body), tuple(map(typeof, arrays)), cc=(9, 0, "a"))
    return Machine(ptx, *arrays)


def finite(dtype, count, seed=0):
    """Return random elements, without NaN: its bits are the hardware's choice."""
    elements = noise(dtype, (count,), seed)
    if as_dtype(dtype).is_float:
        elements[np.isnan(elements.astype(np.float64))] = 1
    return elements


@pytest.mark.parametrize("dtype", quick(("u8", "i16", "bf16", "e4m3", "f64"), DTYPES))
def test_elements_have_their_values(dtype):
    tile = Tile(as_dtype(dtype).chunk, dtype)
    count, last = tile.size, tile.size - 1

    def kernel(out):
        held, copy, vectors = tma.shared_tile(tile), tma.shared_tile(tile), tma.shared_tile(tile)
        vector = held.read_vector(0)
        for i in range(count):
            out[0, i] = held[i]
            copy[i] = held[i]
        vectors.write_vector(0, vector)
        out[1, 0], out[1, 1], out[1, last] = vector[0], vector[1], vector[last]

    out = np.zeros((2, count), as_dtype(dtype).compute)
    machine = machine_of(kernel, out)
    elements = finite(dtype, count)
    machine.poke_shared(machine.shared[0], elements.tobytes())
    machine.run()
    wide = elements.astype(out.dtype)
    np.testing.assert_array_equal(out[0], wide)
    ends = [0, 1, last]
    np.testing.assert_array_equal(out[1, ends], wide[ends])
    for copied in machine.shared[1:]:
        assert machine.peek_shared(copied, 16) == elements.tobytes()


@pytest.mark.parametrize("dtype", ["f32", "i32", "u32"])
def test_arithmetic_is_elementwise(dtype):
    tile, rows = Tile(4, dtype), Tile((7, 4), dtype)

    def kernel(out):
        a, b = tma.shared_tile(tile).read_vector(0), tma.shared_tile(tile).read_vector(0)
        results = tma.shared_tile(rows)
        results.write_vector((0, 0), a + b)
        results.write_vector((1, 0), a - b)
        results.write_vector((2, 0), a * b)
        results.write_vector((3, 0), b - out[3])
        c = a
        c += b
        results.write_vector((4, 0), c)
        c -= a + a
        results.write_vector((5, 0), c)
        c *= b
        results.write_vector((6, 0), c)
        out[0], out[1], out[2] = a.sum(), a.max(), a.min()

    number = as_dtype(dtype).numpy
    a, b = np.array([7, -30, 11, 2]).astype(number), np.array([-3, 5, 64, 9]).astype(number)
    out = np.array([0, 0, 0, 6], number)
    machine = machine_of(kernel, out)
    for address, vector in zip(machine.shared, (a, b)):
        machine.poke_shared(address, vector.tobytes())
    machine.run()
    found = np.frombuffer(machine.peek_shared(machine.shared[2], 7 * 16), number).reshape(7, 4)
    expected = [a + b, a - b, a * b, b - number.type(6), a + b, b - a, (b - a) * b]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(out[:3], [a.sum(dtype=number), a.max(), a.min()])


def test_quotients_and_nan():
    tile = Tile(4, "f32")

    def kernel(out):
        a, b = tma.shared_tile(tile).read_vector(0), tma.shared_tile(tile).read_vector(0)
        ratio = a / b
        again = a
        again /= b
        out[0, 0], out[0, 1], out[0, 2], out[0, 3] = ratio[0], ratio[1], ratio[2], ratio[3]
        out[1, 0], out[1, 1], out[1, 2], out[1, 3] = again[0], again[1], again[2], again[3]
        out[2, 0], out[2, 1], out[2, 2] = a.sum(), a.max(), a.min()

    a, b = np.float32([6, np.nan, -10, 2]), np.float32([2, 1, 4, 0])
    out = np.zeros((3, 4), np.float32)
    machine = machine_of(kernel, out)
    for address, vector in zip(machine.shared, (a, b)):
        machine.poke_shared(address, vector.tobytes())
    machine.run()
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(out[:2], [a / b] * 2)
    assert np.isnan(out[2, :3]).all()  # as NumPy's
