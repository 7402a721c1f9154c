"""What the simulator changes in numba's: launches that ask the compiler first."""

import numpy as np
import pytest
from numba import cuda

from numba_tma import simulator
from numba_tma.simulator import compiling


def test_a_launch_asks_the_compiler_for_its_kernel_and_types(monkeypatch):
    @cuda.jit
    def fill(y, n):
        y[0] = n

    def refuse(kernel, types, target):
        return compiling.Compiled(error=f"{kernel.__name__}, {len(types)} types, {target}")

    y = np.zeros(4)
    fill[1, 1](y, 7)
    monkeypatch.setenv("NUMBA_TMA_SIM_COMPILES", "sm_100a")
    monkeypatch.setattr(compiling, "compile_elsewhere", refuse)
    with pytest.raises(simulator.NotCompiled, match="^fill does not .* fill, 2 types, 100a$"):
        fill[1, 1](y, 8)
    assert y[0] == 7


def test_a_module_has_its_own_cuda_back_after_a_launch():
    module = {"cuda": cuda}
    exec("@cuda.jit(device=True)\ndef column():\n    return cuda.threadIdx.x", module)
    column = module["column"]

    @cuda.jit
    def fill(y, fails):
        cuda.syncthreads()
        y[column()] += 1
        cuda.syncthreads()
        if fails:
            raise ZeroDivisionError

    y = np.zeros(64)
    for times in (1, 2):
        fill[1, 64](y, False)
        assert (y == times).all() and module["cuda"] is cuda
    with pytest.raises(ZeroDivisionError):
        fill[1, 64](y, True)
    assert module["cuda"] is cuda


def test_a_kernel_has_the_attributes_of_arrays_that_the_compiler_has():
    names = {}

    def attribute(name):
        exec(f"def kernel(y):\n    y.{name}", names)
        return cuda.jit(names["kernel"])

    y = cuda.to_device(np.zeros((2, 4)))
    for name in ("T", "shape", "strides", "dtype", "ndim", "sum", "reshape", "view", "flat"):
        attribute(name)[1, 1](y)
    for name in ("tolist", "tofile", "argsort", "swapaxes", "searchsorted", "base", "what"):
        with pytest.raises(AttributeError, match=name):
            attribute(name)[1, 1](y)


def test_an_error_does_not_keep_the_records_of_accesses():
    """They are most of the memory, and the traceback has the frames that hold the blocks."""

    @cuda.jit
    def kernel(y):
        tile = simulator.allocate_shared("tile", 64, 64)
        simulator.shared_write(tile, np.float32(1))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        kernel[1, 1](np.zeros(1))
    frames = [entry.frame.f_locals for entry in caught.traceback]
    blocks = [block for held in frames for block in held.get("blocks", [])]
    assert blocks and not any("hazards" in vars(block) for block in blocks)
