"""In the simulator there is neither a compiler to export with, nor a GPU to load for."""

import pytest
from numba import cuda

import numba_tma as tma


@cuda.jit
def kernel(x):
    pass


def test_export_and_load_say_what_they_need(tmp_path):
    with pytest.raises(RuntimeError, match="export needs the compiler, and NUMBA_ENABLE_CUDASIM=1"):
        tma.export(kernel, (), tmp_path / "kernel")
    with pytest.raises(RuntimeError, match="load needs a GPU, and NUMBA_ENABLE_CUDASIM=1"):
        tma.load(tmp_path / "kernel")
