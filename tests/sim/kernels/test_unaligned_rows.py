"""Rows that begin and end between two multiples of 16 B: every element, and nothing beside them."""

import ml_dtypes
import numpy as np
import pytest

from numba_tma.kernels.rows.layernorm import layernorm
from numba_tma.kernels.rows.plan import UNALIGNED, RowPlan
from numba_tma.kernels.rows.reductions import row_argmax, row_max, row_sum
from numba_tma.kernels.rows.rmsnorm import rmsnorm
from numba_tma.kernels.rows.softmax import softmax
from tests.sim.kernels.test_norms import (
    close,
    exact_layernorm,
    exact_log_softmax,
    exact_rmsnorm,
    values,
)

PLANS = [
    RowPlan(8, 4),
    RowPlan(32, 1, 2),
    RowPlan(32, bulk=True, slot=512),
    RowPlan(32, 1, 2, bulk=True, slot=512, early=True),
]
GUARD = 77.0


def placed(array, begin, gap=0):
    """Return a copy of rows that begins `begin` elements after a multiple of 16 B.

    `gap` elements lie between two rows. What surrounds the rows, in the memory that is returned
    too, is all one number.
    """
    rows, columns = array.shape
    pitch, nbytes = columns + gap, array.dtype.itemsize
    memory = np.full(rows * pitch + begin + 16, GUARD, array.dtype)
    memory = memory[-memory.ctypes.data % 16 // nbytes :]
    view = memory[begin : begin + rows * pitch].reshape(rows, pitch)[:, :columns]
    view[...] = array
    return view, memory


def outside(view, memory):
    """Return what surrounds the rows."""
    start = (view.ctypes.data - memory.ctypes.data) // view.itemsize
    where = np.ones(len(memory), bool)
    for row in range(len(view)):
        at = start + row * view.strides[0] // view.itemsize
        where[at : at + view.shape[1]] = False
    return memory[where]


CASES = [
    (ml_dtypes.bfloat16, 129, 0, 0),
    (ml_dtypes.bfloat16, 35, 3, 0),
    (np.float16, 100, 4, 1),
    (np.float16, 64, 7, 8),  # whole accesses but for the place
    (np.float32, 53, 1, 0),
    (np.float32, 3, 3, 0),  # a row within an access, or in two
    (ml_dtypes.bfloat16, 1, 5, 0),
    (np.float16, 515, 6, 0),  # parts of both slots, blocks
]
#: Each case once, and each plan twice, where the others are slow.
QUICK = {(i, i % len(PLANS)) for i in range(len(CASES))}


@pytest.mark.parametrize(
    ("dtype", "columns", "begin", "gap", "plan"),
    [
        pytest.param(*case, plan, marks=[] if (i, k) in QUICK else [pytest.mark.slow])
        for i, case in enumerate(CASES)
        for k, plan in enumerate(PLANS)
    ],
)
def test_rows_that_begin_anywhere(dtype, columns, begin, gap, plan):
    x, around = placed(values((3, columns), dtype), begin, gap)
    y, memory = placed(np.zeros((3, columns), dtype), begin + 16 // x.itemsize, gap)
    weight, bias = values(columns, dtype, seed=1), values(columns, dtype, seed=2)
    rmsnorm(x, weight, out=y, plan=plan)
    close(y, exact_rmsnorm(x, weight), dtype)
    layernorm(x, weight, bias, out=y, plan=plan)
    want = exact_layernorm(x, weight, bias)
    close(y, want, dtype, np.abs(want - bias) + np.abs(bias) + 1e-2)
    softmax(x, out=y, plan=plan)
    close(y, np.exp(exact_log_softmax(x)), dtype)
    assert (outside(y, memory) == GUARD).all() and (outside(x, around) == GUARD).all()
    exact = x.astype(np.float64)
    close(row_sum(x, plan=plan), exact.sum(axis=-1), np.float32, np.abs(exact).sum(axis=-1))
    np.testing.assert_array_equal(row_max(x, plan=plan), x.max(axis=-1).astype(np.float32))
    np.testing.assert_array_equal(row_argmax(x, plan=plan), exact.argmax(axis=-1))


def test_a_residual_that_begins_elsewhere_takes_smaller_accesses(monkeypatch):
    from numba_tma.kernels.rows import launching

    widths = []
    chosen = launching.prepared

    def prepared(op, rows, columns, dtype, width, *rest):
        widths.append(width)
        return chosen(op, rows, columns, dtype, width, *rest)

    monkeypatch.setattr(launching, "prepared", prepared)
    x, _ = placed(values((3, 69)), 1)
    for begin, width in ((1, UNALIGNED), (5, UNALIGNED), (2, 4)):
        residual, around = placed(values((3, 69), seed=3), begin)
        total, memory = placed(np.zeros((3, 69), np.float32), 1)
        got = rmsnorm(x, residual=residual, residual_out=total, out=placed(x, 1)[0])
        close(got, exact_rmsnorm(x + residual, np.ones(69)), np.float32)
        np.testing.assert_array_equal(total, x + residual)
        assert (outside(total, memory) == GUARD).all()
        assert widths.pop() == width


@pytest.mark.parametrize("begin", range(8))
def test_a_row_whose_last_bytes_are_those_of_another_block(begin):
    """Of 10 units of 16 B, whole or not, a block stages 3; the last one may be alone in its."""
    plan = RowPlan(32, 1, 4, bulk=True, slot=512)
    x, residual = (placed(values((2, 70), np.float16, seed), begin)[0] for seed in (1, 2))
    total = placed(np.zeros((2, 70), np.float16), begin)[0]
    rmsnorm(x, residual=residual, residual_out=total, plan=plan)
    np.testing.assert_array_equal(total, x + residual)


def test_argmax_of_equal_elements_is_the_first():
    x, _ = placed(np.zeros((2, 70), ml_dtypes.bfloat16), 3)
    x[1, [9, 40]] = 1
    np.testing.assert_array_equal(row_argmax(x), [0, 9])
