"""What scopes do, in the simulator: the rewritten function is plain Python there."""

import re

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma.simulator import SimulatorError
from tests.scope_cases import CASES, EVENTS, THREADS, Log, Scope


@pytest.mark.parametrize(("scoped", "explicit", "first", "second"), [c[1:] for c in CASES],
                         ids=[c[0] for c in CASES])  # fmt: skip
@pytest.mark.parametrize("form", ["scoped", "explicit"])
def test_scopes_open_and_close_in_order(scoped, explicit, first, second, form):
    rows = np.zeros((THREADS, EVENTS), np.int64)
    cuda.jit(scoped if form == "scoped" else explicit)[1, THREADS](rows, 3)
    for row, events in zip(rows, (first, second)):
        assert row.tolist() == events + [0] * (EVENTS - len(events))
