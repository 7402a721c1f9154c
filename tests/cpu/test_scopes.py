"""`tma.scopes`: what it compiles to, what of a function it keeps, and what it refuses."""

from __future__ import annotations

import functools
import inspect
import linecache
import re
from unittest import mock

import numpy as np
import pytest
from numba import cuda, types
from numba.core.errors import TypingError
from numba.cuda.core.errors import TypingError as CudaTypingError

import numba_tma as tma
from numba_tma.testing import compile_ptx, instructions, ptxas
from tests.scope_cases import CASES, Elected, Log, Scope

ROWS, I64 = types.int64[:, ::1], types.int64
FACTOR = 2


def lines_of(ptx):
    """Return {number: file name} and the source lines that instructions belong to."""
    files = dict(re.findall(r'^\s*\.file\s+(\d+) "([^"]+)"', ptx, re.M))
    return files, {int(line) for line in re.findall(r"^\s*\.loc\s+\d+ (\d+) ", ptx, re.M)}


def line_of(function, text):
    """Return the number of the line of `function` in its file that holds `text`."""
    source, first = inspect.getsourcelines(function)
    (found,) = [first + i for i, line in enumerate(source) if text in line]
    return found


# ---------------------------------------------------------------------------- the code


@pytest.mark.parametrize(("scoped", "explicit"), [c[1:3] for c in CASES], ids=[c[0] for c in CASES])
def test_scopes_cost_what_the_calls_cost(scoped, explicit):
    ours, theirs = (compile_ptx(kernel, (ROWS, I64)) for kernel in (scoped, explicit))
    assert instructions(ours) == instructions(theirs)
    report = ptxas(ours)
    assert (report.spill_stores, report.spill_loads, report.stack_frame) == (0, 0, 0)
