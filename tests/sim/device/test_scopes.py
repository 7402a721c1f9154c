"""Scopes in the simulator, where the rewritten function is plain Python."""

import linecache

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma.simulator import SimulatorError
from tests.kernels.scope_cases import CASES, EVENTS, THREADS, Log, Scope


@pytest.mark.parametrize(("scoped", "explicit", "first", "second"), [c[1:] for c in CASES],
                         ids=[c[0] for c in CASES])  # fmt: skip
@pytest.mark.parametrize("form", ["scoped", "explicit"])
def test_scopes_open_and_close_in_order(scoped, explicit, first, second, form):
    rows = np.zeros((THREADS, EVENTS), np.int64)
    cuda.jit(scoped if form == "scoped" else explicit)[1, THREADS](rows, 3)
    for row, events in zip(rows, (first, second)):
        assert row.tolist() == events + [0] * (EVENTS - len(events))


def test_what_is_no_scope_is_named():
    @cuda.jit
    @tma.scopes
    def kernel(rows):
        with rows[0]:
            pass

    with pytest.raises(SimulatorError, match=r"line \d+, with over .*: a scope is what a pipeline"):
        kernel[1, 1](np.zeros(1, np.int64))


@cuda.jit(device=True)
@tma.scopes
def twice(log, n):
    with Scope(log, n) as s:
        return 2 * s.number


def test_a_device_function_has_scopes():
    @cuda.jit
    def kernel(rows, n):
        log = Log(rows[cuda.threadIdx.x])
        log.write(twice(log, n))

    rows = np.zeros((1, 4), np.int64)
    kernel[1, 1](rows, 21)
    assert rows.tolist() == [[21, -21, 42, 0]]


def test_a_function_may_name_itself():
    names = {}
    text = "def kernel(n):\n    return n and kernel(n - 1)\n"
    linecache.cache["<itself>"] = len(text), None, text.splitlines(True), "<itself>"
    exec(compile(text, "<itself>", "exec"), names)
    assert tma.scopes(names["kernel"])(2) == 0
