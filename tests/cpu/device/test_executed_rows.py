"""Unaligned shares in compiled kernels, executed: each element, and no byte beside the row."""

import numpy as np
import pytest
from numba import cuda, float32, int32, int64

from numba_tma.device import row_share
from numba_tma.device.share import Share
from numba_tma.host.dtypes import as_dtype
from numba_tma.tools.testing import compile_ptx
from tests.ptx_machine import ARRAYS, Machine

STEP, COUNT = 2, 2  # threads of a row, and accesses of each


def share_of(dtype):
    return Share(as_dtype(dtype), 16, COUNT, STEP, False, aligned=False)


def compiled(share):
    def kernel(x, w, y, sums, first, limit):
        packed = row_share.load_global(share, x, first, limit)
        values = row_share.to_float(share, packed)
        kept = row_share.keep(share, values, first, limit, float32(1))
        scaled = kept * row_share.to_float(share, row_share.load_cached(share, w, first, limit))
        row_share.store_global(share, y, first, limit, row_share.from_float(share, scaled))
        best = row_share.first_largest(share, values, first, limit)
        sums[0], sums[1] = kept.sum(), row_share.num_present(share, first, limit)
        sums[2], sums[3] = best[0], best[1]

    kinds = (int64, int64, int64, float32[::1], int32, int32)
    return compile_ptx(cuda.jit(kernel), kinds, cc=(9, 0, "a"))


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_a_thread_has_the_elements_of_the_row(dtype):
    share, of = share_of(dtype), as_dtype(dtype)
    ptx, lanes = compiled(share), share.lanes
    generator = np.random.default_rng(0)
    for before in range(lanes):
        for columns in (1, lanes - before, 2 * lanes, 3 * lanes + 1, 4 * lanes - before):
            begin = 8 * lanes + before  # of the row in its memory
            x = generator.integers(-9, 9, 16 * lanes).astype(of.numpy)
            weight = generator.integers(1, 5, columns).astype(of.numpy)
            y = np.full_like(x, 99)
            for w_begin in (0, before, lanes - 1):
                w = np.full(w_begin + columns, 50, of.numpy)
                w[w_begin:] = weight
                for thread in range(STEP):
                    check(ptx, share, (x, w, y), (begin, w_begin, columns), thread)


def check(ptx, share, arrays, places, thread):
    (x, w, y), (begin, w_begin, columns) = arrays, places
    lanes, nbytes = share.lanes, share.dtype.itemsize
    first = thread * lanes - begin % lanes
    bases = [ARRAYS + (k << 16) for k in (1, 2, 3)]
    sums, out = np.zeros(4, np.float32), y.copy()
    row, weight, result = (
        base + at * nbytes for base, at in zip(bases, (begin, w_begin, begin))
    )
    machine = Machine(ptx, row, weight, result, sums, first, columns)
    for base, array in zip(bases, (x, w, out)):
        machine.poke(base, array.tobytes())
    machine.run(thread)
    numbers = [first + k * STEP * lanes + n for k in range(COUNT) for n in range(lanes)]
    own = [n for n in numbers if 0 <= n < columns]
    expected = y.copy()
    mine = x[begin:][own].astype(np.float32)
    expected[begin:][own] = mine * w[w_begin:][own].astype(np.float32)
    found = np.frombuffer(machine.peek(bases[2], y.nbytes), y.dtype)
    np.testing.assert_array_equal(found, expected)
    largest = (mine.max(), own[mine.argmax()]) if own else (-np.inf, 1 << 24)
    absent = len(numbers) - len(own)
    np.testing.assert_array_equal(sums, [mine.sum() + absent, len(own), *largest])
    for name, address, count in machine.accesses:
        if "global" in name and address >= bases[0]:
            base = address & -1 << 16
            start, end = {bases[0]: (row, columns), bases[2]: (result, columns)}.get(
                base, (base, w_begin + columns)
            )
            assert start <= address and address + count <= start + end * nbytes, name
    whole = sum(0 <= n and n + lanes <= columns for n in numbers[::lanes])
    wide = [at >> 16 for name, at, count in machine.accesses if "global" in name and count == 16]
    assert wide.count(bases[0] >> 16) == wide.count(bases[2] >> 16) == whole


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_a_long_row_that_begins_anywhere_is_loaded_in_units_of_16_bytes(dtype):
    """In two, where the row has the next access's elements, too; else element by element."""
    share = Share(as_dtype(dtype), 16, COUNT, 32, False, aligned=False)
    lanes, nbytes, of = share.lanes, share.dtype.itemsize, share.dtype.numpy
    base, to = ARRAYS + (1 << 16), ARRAYS + (2 << 16)

    def kernel(w, y, first, limit):
        packed = row_share.load_cached(share, w, first, limit)
        row_share.store_global(share, y, first, limit, packed)

    ptx = compile_ptx(cuda.jit(kernel), (int64, int64, int32, int32), cc=(9, 0, "a"))
    values = np.random.default_rng(0).integers(-9, 9, 80 * lanes).astype(of)
    for begin, down in ((0, 0), (1, 0), (1, 1), (lanes - 1, lanes - 1), (3, 1)):
        for thread, columns in ((0, 33 * lanes), (0, 64 * lanes), (31, 64 * lanes), (2, 36 * lanes),
                                (1, 34 * lanes + 1), (1, 35 * lanes - down), (1, 3 * lanes - 1),
                                (1, 3 * lanes - down)):  # fmt: skip
            first = thread * lanes - down
            row, result = base + begin * nbytes, to + down * nbytes
            machine = Machine(ptx, row, result, first, columns)
            machine.poke(base, values.tobytes())
            machine.run(thread)
            numbers = [first, first + 32 * lanes]
            own = [n + i for n in numbers for i in range(lanes) if 0 <= n + i < columns]
            stored = np.zeros(columns, of)
            stored[own] = values[begin:][own]
            assert machine.peek(result, stored.nbytes) == stored.tobytes()
            end = row + columns * nbytes
            loads = [(at, n) for name, at, n in machine.accesses if base <= at < to]
            assert all(base <= at and at + n <= end and at % n == 0 for at, n in loads)
            twice = sum(0 <= n and n + 2 * lanes <= columns for n in numbers)
            once = sum(0 <= i < columns for n in numbers for i in range(n, n + lanes)
                       if not (0 <= n and n + 2 * lanes <= columns))  # fmt: skip
            assert [n for _, n in loads] == [16] * 2 * twice + [nbytes] * once
