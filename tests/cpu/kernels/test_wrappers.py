"""A second call of a kernel's function with the same arrays repeats the prepared launch."""

import functools
import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma.host import driver as _driver
from numba_tma.host.parameters import type_of
from numba_tma.kernels._host import launch as _launch
from numba_tma.kernels._host import memo
from numba_tma.kernels._host import workspace as _workspace
from numba_tma.kernels.copy import copy
from numba_tma.kernels.copy.plan import CopyPlan
from numba_tma.kernels.pointwise.activations import gelu, swiglu
from numba_tma.kernels.pointwise.api import Pointwise, add, plan_for, pointwise, scale_add
from numba_tma.kernels.rows import backward as _backward
from numba_tma.kernels.rows import columns as _columns
from numba_tma.kernels.rows.backward import layernorm_backward, rmsnorm_backward
from numba_tma.kernels.rows.layernorm import layernorm
from numba_tma.kernels.rows.reductions import column_sum, row_argmax, row_max, row_sum
from numba_tma.kernels.rows.rmsnorm import rmsnorm
from numba_tma.kernels.rows.softmax import log_softmax, softmax
from numba_tma.kernels.transpose import transpose
from tests.cpu.host.test_launcher import device_array
from tests.recording_driver import RecordingDriver

SHAPE = (48, 72)
RING, TILES = plan_for(2), CopyPlan()  # by TMA, which arrays of this size do not take by themselves


@pytest.fixture
def gpu(monkeypatch):
    """Note what is launched, with no GPU, and how many arrays are read for it."""
    noted = SimpleNamespace(launches=[], bound=0, spaces=[], counters=[], failing=False, early=[])

    def launcher(kernel, blocks, threads, stream, pdl):
        if pdl:
            noted.early.append(kernel)

        def bind(*arguments):
            noted.bound += 1
            # A launch holds addresses, and no arrays.
            shown = [getattr(v, "address", v) for v in arguments]

            def launch():
                noted.launches.append((kernel, blocks, threads, stream, *shown))
                if noted.failing:
                    raise tma.PipelineTimeout("stuck")

            return launch

        return SimpleNamespace(bind=bind)

    def space(rows, columns):
        noted.spaces.append(device_array((rows, columns), address=(9 + len(noted.spaces)) << 32))
        return noted.spaces[-1]

    monkeypatch.setattr(_launch, "_launcher", launcher)
    monkeypatch.setattr(cuda, "as_cuda_array", lambda view: view)
    monkeypatch.setattr(_driver, "current_device", lambda: 0)
    for module in (_columns, _backward):
        monkeypatch.setattr(module, "float_workspace", space)
    monkeypatch.setattr(_columns, "zero_counters", lambda count: space(1, count))

    def counter():
        address = (99 << 40) + 4 * len(noted.counters)
        noted.counters.append(device_array((1,), np.uint32, address=address))
        return noted.counters[-1]

    for module in ("_host.device", "copy.api", "transpose.api", "pointwise.api"):
        path = f"numba_tma.kernels.{module}."
        for name, fake in {
            "sm_count": lambda: 132,
            "queue_counter": counter,
            "tensor_map": lambda array, tile: ("map", array.address, array.shape, tile),
        }.items():
            monkeypatch.setattr(path + name, fake, raising=False)
    yield noted


def array(index, shape=SHAPE, dtype=np.float32):
    return device_array(shape, dtype, address=(1 << 40) + index * (1 << 20))


def vector(index, n=SHAPE[1], dtype=np.float32):
    return array(index, (n,), dtype)


def rows(index, dtype=np.float32):
    return vector(index, SHAPE[0], dtype)


def padded(index):
    return device_array(SHAPE, strides=(400, 4), address=(1 << 40) + index * (1 << 20))


BACKWARD = {"rstd": rows(5), "dx": array(3), "dweight": vector(4)}
#: Each with the arrays it writes first to, as it is called again with the same.
CALLS = {
    "copy": lambda to: copy(array(0), to),
    "copy of rows": lambda to: copy(padded(0), to),
    "copy of chunks": lambda to: copy(array(0), to, plan=TILES),
    "copy of tiles": lambda to: copy(padded(0), to, plan=TILES),
    "transpose": lambda to: transpose(array(0, SHAPE[::-1]), out=to),
    "rmsnorm": lambda to: rmsnorm(array(0), vector(1), out=to),
    "layernorm": lambda to: layernorm(array(0), vector(1), vector(2), mean=rows(3), out=to),
    "softmax": lambda to: softmax(array(0), out=to),
    "log_softmax": lambda to: log_softmax(array(0), scale=0.5, logsumexp=rows(3), out=to),
    "rmsnorm_backward": lambda to: rmsnorm_backward(
        array(0), array(1), vector(2), **BACKWARD | {"dx": to}
    ),
    "layernorm_backward": lambda to: layernorm_backward(
        array(0), array(1), None, mean=rows(6), dbias=vector(7), **BACKWARD | {"dx": to}
    ),
    "add": lambda to: add(array(0), array(1), out=to),
    "add by TMA": lambda to: add(array(0), array(1), out=to, plan=RING),
    "add of rows by TMA": lambda to: add(padded(0), array(1), out=to, plan=RING),
    "add of rows": lambda to: add(padded(0), array(1), out=to),
    "add of a vector": lambda to: add(array(0), vector(1), out=to),
    "scale_add": lambda to: scale_add(array(0), array(1), 2.0, 0.5, out=to),
    "gelu": lambda to: gelu(array(0), out=to),
    "gelu (tanh)": lambda to: gelu(array(0), approximate="tanh", out=to),
    "swiglu": lambda to: swiglu(array(0), array(1), out=to),
}
OF_ROWS = {
    "row_sum": (row_sum, rows, np.float32),
    "row_max": (row_max, rows, np.float32),
    "row_argmax": (row_argmax, rows, np.int64),
    "column_sum": (column_sum, lambda i, dtype: vector(i, dtype=dtype), np.float32),
}
for _name, (_function, _out, _dtype) in OF_ROWS.items():
    CALLS[_name] = lambda to, f=_function: f(array(0), out=to)
CALLS["column_sum"] = lambda to: column_sum(array(0), out=to, parts=40)


def out_of(name, index):
    if name in OF_ROWS:
        _, make, dtype = OF_ROWS[name]
        return make(index, dtype=dtype)
    return array(index)


@pytest.mark.parametrize("name", CALLS)
def test_the_second_call_repeats_the_launches(gpu, name, monkeypatch):
    call, out, other = CALLS[name], out_of(name, 20), out_of(name, 21)
    assert call(out) is out
    first, bound, spaces = gpu.launches[:], gpu.bound, len(gpu.spaces)
    assert first and bound == len(first)
    for again in (out, out_of(name, 20)):
        del gpu.launches[:]
        assert call(again) is again
        assert gpu.launches == first
    assert (gpu.bound, len(gpu.spaces)) == (bound, spaces)
    del gpu.launches[:]
    call(other)
    assert gpu.bound == 2 * bound and gpu.launches != first
    # Partial sums of different calls may be there at the same time.
    assert len({space.device_ctypes_pointer.value for space in gpu.spaces}) == 2 * spaces
    assert bool(spaces) == ("backward" in name or name == "column_sum")


def test_numbers_are_those_of_this_call(gpu):
    x, y, out = array(30), array(31), array(32)
    combine = pointwise(lambda x, y, alpha, beta: alpha * x + beta * y)
    for alpha in (2.0, 2.0, 0.0, -0.0, 3, np.float32(3), float("nan"), float("nan"), 2.0):
        combine(x, y, alpha, 0.5, out=out)
        numbers = [v for v in gpu.launches[-1] if isinstance(v, np.float32)]
        wanted = np.float32([alpha, 0.5])
        assert np.array(numbers, np.float32).tobytes() == wanted.tobytes()
    for scale in (0.5, 2.0, 0.5):
        softmax(x, scale=scale, out=out)
        assert gpu.launches[-1][-1] == np.float32(scale)
    for function in (rmsnorm, layernorm):
        for eps in (0.0, 1e-5, 1e-3):
            function(x, eps=eps, out=out)
            assert gpu.launches[-1][-1] == np.float32(eps)


def test_functions_of_the_user_are_told_apart(gpu):
    x, out = array(40), array(41)
    functions = [pointwise(f) for f in (lambda x: x + x, lambda x: x * x)]
    assert all(isinstance(f, Pointwise) for f in functions)
    for f in functions * 2:
        f(x, out=out)
    kernels = [launch[0] for launch in gpu.launches]
    assert kernels[0] is kernels[2] is not kernels[1] is kernels[3] and gpu.bound == 2


def test_other_functions_of_the_same_arrays_are_told_apart(gpu):
    x, out, sums = array(50), array(51), rows(52)
    pairs = (
        (functools.partial(softmax, x, out=out), functools.partial(log_softmax, x, out=out)),
        (functools.partial(row_sum, x, out=sums), functools.partial(row_max, x, out=sums)),
        (
            functools.partial(gelu, x, out=out),
            functools.partial(gelu, x, out=out, approximate="tanh"),
        ),
    )
    for one, other in pairs:
        del gpu.launches[:]
        for run in (one, other, one, other):
            run()
        kernels = [launch[0] for launch in gpu.launches]
        assert kernels[0] is kernels[2] and kernels[1] is kernels[3]
        assert kernels[0] is not kernels[1]


def test_bits_of_another_type_are_told_apart(gpu):
    x, y, out = (array(60 + i, dtype=np.uint16) for i in range(3))
    for _ in range(2):
        for dtype in ("bf16", "f16"):
            add(x, y, out=out, dtype=dtype)
            gelu(x, out=out, dtype=dtype)
    kernels = [launch[0] for launch in gpu.launches]
    assert kernels[:4] == kernels[4:] and len(set(map(id, kernels))) == 4


def test_mistakes_are_found_at_each_call(gpu):
    x = array(70)
    for _ in range(2):
        with pytest.raises(ValueError, match="out has shape"):
            add(x, x, out=array(71, (8, 8)))
        with pytest.raises(ValueError, match="scale is a positive number"):
            softmax(x, scale=-1.0, out=x)
        with pytest.raises(ValueError, match="it finds columns of rows of 1 to"):
            row_argmax(array(72, (1, (1 << 24) + 8)), out=vector(73, 1, np.int64))
    assert gpu.launches == []


def test_wrappers_within_wrappers_are_repeated_even_if_they_were_called_before(gpu):
    @memo.launched_again
    def twice(arrays, stream, numbers):
        copy(*arrays)
        copy(*arrays)

    arrays = array(0), array(30)
    copy(*arrays)
    for calls in range(3):
        twice(arrays, None, ())
        assert len(gpu.launches) == 1 + 2 * (calls + 1)


# ----------------------------------------------------------------- counters of tile queues


def counters_of(launches):
    """Return the addresses of the counters that launches draw tiles from."""
    found = [v for launch in launches for v in launch if hasattr(v, "device_ctypes_pointer")]
    return [v.device_ctypes_pointer.value for v in found]


def test_partial_results_after_a_launch_that_failed(gpu):
    """A kernel that fails leaves its counter anywhere: no launch may draw from it again."""
    x, y, out = array(80), array(81), array(82)
    add(x, y, out=out, plan=RING)
    gpu.failing = True
    for _ in range(2):  # a repeated launch, and the first of a call
        with pytest.raises(tma.PipelineTimeout):
            add(x, y, out=out, plan=RING)
    gpu.failing = False
    add(x, y, out=out, plan=RING)
    add(x, y, out=out, plan=RING)
    first, failed, second, new, again = counters_of(gpu.launches)
    assert first == failed and new == again
    assert len({failed, second, new}) == 3


def test_counters_are_zeroed_words_of_slabs(monkeypatch):
    monkeypatch.setattr(_workspace, "_slabs", {})
    with RecordingDriver().installed() as driver:
        counters = [_workspace.queue_counter() for _ in range(300)]
        slabs = [*driver.memory]
    assert {counter.address for counter in counters} == {
        *range(slabs[0], slabs[0] + 1024, 4), *range(slabs[1], slabs[1] + 4 * 44, 4)
    }  # fmt: skip
    assert driver.zeroed == [(slab, 1024) for slab in slabs]
    assert all(type_of(one) == type_of(counters[0]) and one.nbytes == 4 for one in counters)


def test_counters_of_a_call_are_zeroed():
    with RecordingDriver().installed() as driver:
        counters = _workspace.zero_counters(5)
        assert (counters.shape, counters.dtype) == ((5,), np.uint32)
        assert driver.zeroed == [(counters.address, 20)]


def test_partial_results_of_a_call_within_another(gpu):
    """The inner call has the same launch, so it is forgotten with the outer one."""

    @memo.launched_again
    def outer(arrays, stream, numbers):
        copy(*arrays, plan=TILES)

    arrays = padded(83), padded(84)
    outer(arrays, None, ())
    gpu.failing = True
    with pytest.raises(tma.PipelineTimeout):
        outer(arrays, None, ())
    gpu.failing = False
    copy(*arrays, plan=TILES)
    first, failed, new = counters_of(gpu.launches)
    assert first == failed != new


def test_partial_results_of_calls_that_run_at_a_time(gpu):
    """Graphs that were captured on one stream may run at a time: each call has its own counter."""
    x, y = array(85), array(86)
    for out in (array(87), array(88)):
        add(x, y, out=out, stream=3, plan=RING)
        add(x, y, out=out, stream=3, plan=RING)
        scale_add(x, y, 2.0, 3.0, out=out, stream=3, plan=RING)
    copy(padded(85), padded(86), stream=3, plan=TILES)
    counters = counters_of(gpu.launches)
    assert counters[0::3] != counters[1::3] and len(set(counters)) == 5


def test_a_call_keeps_the_counters_of_calls_within_it(gpu, monkeypatch):
    @memo.launched_again
    def outer(arrays, stream, numbers):
        copy(*arrays, plan=TILES)

    monkeypatch.setattr(memo, "_MOST_CALLS", 1)
    outer((padded(89), padded(90)), None, ())
    counter = weakref.ref(gpu.counters.pop())
    del gpu.launches[:]
    copy(padded(91), padded(92), plan=TILES)  # the inner call is forgotten
    gc.collect()
    assert counter() is not None
    outer((padded(93), padded(94)), None, ())
    gc.collect()
    assert counter() is None
