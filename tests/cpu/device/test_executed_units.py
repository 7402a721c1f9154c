"""Units of rows in compiled kernels, executed: each byte of a row, and no byte beside the rows."""

import itertools

import numpy as np
import pytest
from numba import cuda, typeof, types

from numba_tma.device.units import store_part
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.layout import Tile
from numba_tma.host.rows import Divisor, PlacedRows
from numba_tma.kernels.copy.kernel import copy_units_kernel
from numba_tma.kernels.pointwise.kernel import unit_kernel
from numba_tma.kernels.pointwise.plan import UNIT_THREADS
from numba_tma.tools.testing import compile_ptx
from tests.ptx_machine import ARRAYS, Machine

ROWS, INT, DIVISOR = typeof(PlacedRows(0, 0, 0)), types.int64, typeof(Divisor(0, 0, 0))
THREADS = 4
FROM, TO = ARRAYS + (1 << 16), ARRAYS + (2 << 16)


def prepared(ptx, threads, rows, arrays, nbytes):
    """Return a machine, and the threads that compute the last array."""
    units = (15 + nbytes) // 16 + 1
    places = [number for array in arrays for number in array]
    machine = Machine(ptx, *places, rows, nbytes, *Divisor.of(units), block=(threads, 1, 1))
    return machine, rows * units


def place(begin, base, rows, pitch, nbytes):
    start = base + begin
    return PlacedRows(start, start + (rows - 1) * pitch + nbytes, pitch if rows > 1 else 0)


def executed(machine, threads, busy):
    """Execute the busy threads and two more; return each access of global memory."""
    accesses = []
    for number in range(busy + 2):
        machine.run(number % threads, (number // threads, 0, 0))
        accesses += [a for a in machine.accesses if "global" in a[0]]
    return accesses


def inside(access, rows):
    """Return whether an access is between the first and the last byte of rows."""
    _, address, count = access
    return rows.address <= address and address + count <= rows.end


@pytest.mark.parametrize("itemsize", [1, 2, 4])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("form", ["any", "alike"])
def test_bytes_are_copied_and_none_is_read_or_written_beside_the_rows(itemsize, rows, form):
    kernel = copy_units_kernel(itemsize, THREADS, rows == 1, form)
    ptx = compile_ptx(kernel, (ROWS, ROWS, INT, INT, DIVISOR), cc=(9, 0, "a"))
    rng = np.random.default_rng(itemsize)
    phases = itertools.product(range(0, 16, itemsize), range(0, 16, itemsize))
    for begin, to in [*phases][:: 5 if itemsize < 4 else 1]:
        columns = int(rng.integers(1, 40 // itemsize + 2))
        nbytes = columns * itemsize
        pitches = [nbytes + itemsize * int(gap) for gap in rng.integers(0, 3, 2)]
        if form == "alike":
            begin, pitches[0] = to, pitches[1] + 16
        source, out = (
            place(p, base, rows, pitch, nbytes)
            for p, base, pitch in zip((begin, to), (FROM, TO), pitches)
        )
        machine, busy = prepared(ptx, THREADS, rows, (source, out), nbytes)
        given = rng.integers(0, 256, 512, np.uint8)
        machine.poke(FROM, given.tobytes())
        machine.poke(TO, b"\xaa" * 512)
        accesses = executed(machine, THREADS, busy)
        want = np.full(512, 0xAA, np.uint8)
        for row in range(rows):
            a, b = begin + row * pitches[0], to + row * pitches[1]
            want[b : b + nbytes] = given[a : a + nbytes]
        found = np.frombuffer(machine.peek(TO, 512), np.uint8)
        np.testing.assert_array_equal(found, want, f"{columns} columns from {begin} to {to}")
        assert accesses and all(
            inside(a, source) or inside(a, out) for a in accesses if a[1] >= FROM
        )


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_a_function_of_inputs_each_with_its_own_alignment(dtype):
    of = as_dtype(dtype)
    fn = lambda x, row, column, one: x * row + column * one  # noqa: E731
    kernel = unit_kernel(fn, ("full", "row", "one per row", "one"), 0, of, False, "any")
    ptx = compile_ptx(kernel, (*(ROWS,) * 5, INT, INT, DIVISOR), cc=(9, 0, "a"))
    rng, size = np.random.default_rng(7), of.itemsize
    rows, bases = 2, [ARRAYS + (k << 16) for k in range(1, 6)]
    for columns in (1, 16 // size, 33):
        begins = rng.integers(0, 16 // size, 5) * size
        shapes = (rows, columns), (1, columns), (rows, 1), (1, 1), (rows, columns)
        arrays = [
            place(int(begin), base, r, (c + 1) * size, c * size)
            for begin, base, (r, c) in zip(begins, bases, shapes)
        ]
        machine, busy = prepared(ptx, UNIT_THREADS, rows, arrays, columns * size)
        values = []
        for array, (r, c) in zip(arrays[:4], shapes):
            value = rng.integers(-4, 5, (r, c)).astype(of.numpy)
            values.append(value.astype(np.float32))
            for i in range(r):
                machine.poke(array.address + i * array.stride, value[i].tobytes())
        x, row, column, one = values
        accesses = executed(machine, UNIT_THREADS, busy)
        want = x * row + column * one
        for i in range(rows):
            raw = machine.peek(arrays[4].address + i * arrays[4].stride, columns * size)
            np.testing.assert_array_equal(np.frombuffer(raw, of.numpy).astype(np.float32), want[i])
        assert all(any(inside(a, array) for array in arrays) for a in accesses if a[1] >= bases[0])


@pytest.mark.parametrize("form", ["any", "alike", "whole"])
@pytest.mark.parametrize("flat", [True, False])
def test_only_units_of_several_rows_are_divided_among_them(flat, form):
    copied = copy_units_kernel(4, THREADS, flat, form)
    added = unit_kernel(lambda x: x + x, ("full",), 0, as_dtype("bf16"), flat, form)
    for kernel in (copied, added):
        ptx = compile_ptx(kernel, (ROWS, ROWS, INT, INT, DIVISOR), cc=(9, 0, "a"))
        assert ("mul.lo.s64" in ptx) == (not flat)


@pytest.mark.parametrize("rows", [1, 3])
def test_rows_of_whole_units_are_copied_by_units_alone(rows):
    kernel = copy_units_kernel(4, THREADS, rows == 1, "whole")
    ptx = compile_ptx(kernel, (ROWS, ROWS, INT, INT, DIVISOR), cc=(9, 0, "a"))
    given = np.random.default_rng(0).integers(0, 256, 256, np.uint8)
    arrays = [place(16, base, rows, pitch, 48) for base, pitch in ((FROM, 64), (TO, 80))]
    values = Divisor.of(3)
    machine = Machine(ptx, *arrays[0], *arrays[1], rows, 48, *values, block=(THREADS, 1, 1))
    machine.poke(FROM, given.tobytes())
    accesses = executed(machine, THREADS, 3 * rows)  # units of 16 bytes
    want = np.zeros(256, np.uint8)
    for row in range(rows):
        want[16 + row * 80 :][:48] = given[16 + row * 64 :][:48]
    np.testing.assert_array_equal(np.frombuffer(machine.peek(TO, 256), np.uint8), want)
    assert all(inside(a, arrays[0]) or inside(a, arrays[1]) for a in accesses if a[1] >= FROM)
    assert {count for _, address, count in accesses if address >= FROM} == {16}


@pytest.mark.parametrize("rows", [1, 1 << 20])
def test_units_far_behind_the_start_of_an_array_are_found(rows):
    nbytes = (1 << 38) // rows
    kernel = copy_units_kernel(4, THREADS, rows == 1, "whole")
    ptx = compile_ptx(kernel, (ROWS, ROWS, INT, INT, DIVISOR), cc=(9, 0, "a"))
    source, out = (place(0, base, rows, nbytes + 64, nbytes) for base in (1 << 44, 1 << 45))
    machine = Machine(ptx, *source, *out, rows, nbytes, *Divisor.of(nbytes // 16), block=(4, 1, 1))
    for number in (1 << 30, (1 << 31) - 1) + ((1 << 33) - 3,) * (rows == 1):
        machine.run(number % 4, (number // 4, 0, 0))
        at = number * 16 + number * 16 // nbytes * 64
        found = [address for name, address, _ in machine.accesses if "global" in name]
        assert found == [source.address + at, out.address + at]


@pytest.mark.parametrize("itemsize", [1, 2, 4])
def test_a_part_of_a_unit_is_stored_in_as_few_pieces_as_are_aligned(itemsize):
    element, address = Tile(1, f"u{8 * itemsize}"), TO

    def kernel(words, first, last):
        four = words[0], words[1], words[2], words[3]
        store_part(element, np.int64(address), four, first, last)

    ptx = compile_ptx(cuda.jit(kernel), (types.uint32[::1], types.int32, types.int32))
    unit = np.arange(1, 17, dtype=np.uint8)
    for first, last in itertools.combinations(range(0, 17, itemsize), 2):
        if last - first == 16:
            continue
        machine = Machine(ptx, unit.view(np.uint32).copy(), first, last)
        machine.run()
        found = np.frombuffer(machine.peek(TO, 16), np.uint8)
        inside = (np.arange(16) >= first) & (np.arange(16) < last)
        np.testing.assert_array_equal(found, np.where(inside, unit, 0))
        pieces, at = [], first
        while at < last:  # the largest that is aligned and ends within the part
            size = next(s for s in (8, 4, 2, 1) if at % s == 0 and at + s <= last)
            pieces.append((TO + at, size))
            at += size
        stores = [(at, size) for name, at, size in machine.accesses if name.startswith("st.")]
        assert sorted(stores) == pieces
