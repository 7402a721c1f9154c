"""testing.check in a compiling process: the simulator is a process of its own."""

import subprocess
import sys

import numpy as np
import pytest

import numba_tma as tma
from numba_tma.tools.testing import CheckError
from tests.kernels import checked


def test_a_right_kernel_is_compiled_assembled_and_simulated():
    done = tma.testing.check(checked.copies(3), checked.arguments)
    x, y, n = done.arguments
    assert np.array_equal(y, 6 * x) and n == 4
    assert "cp.async.bulk.tensor" in done.ptx and done.report.arch == "sm_90a"


def test_the_half_that_refuses_is_named():
    with pytest.raises(CheckError) as caught:
        tma.testing.check(checked.deadlocks, checked.arguments)
    assert str(caught.value).startswith(
        "deadlocks: the simulator refuses it, and the compiler accepts it: Deadlock: "
    )
    assert caught.value.compiler == "" and "give both sides the same range" in str(caught.value)


def test_the_target_is_chosen():
    with pytest.raises(CheckError, match="needs compute capability 9.0 .Hopper. or") as caught:
        tma.testing.check(checked.copies(3), checked.arguments, cc=(8, 0))
    assert caught.value.simulator == ""


def test_no_kernel():
    with pytest.raises(TypeError, match="is no kernel: give a function under @cuda.jit"):
        tma.testing.check(checked.arguments, checked.arguments)


def test_what_does_not_pickle():
    held = checked.Unpicklable()
    with pytest.raises(TypeError, match="what it uses does not pickle .ValueError: this one stays"):
        tma.testing.check(checked.copies(held), checked.arguments)


def test_a_kernel_of_a_notebook():
    subprocess.run([sys.executable, "-"], input=checked.NOTEBOOK, text=True, check=True)
