"""Stencils on the GPU: whole numbers, so that results equal NumPy's bit for bit."""

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma.kernels.stencil.api import MODES
from numba_tma.kernels.stencil.plan import StencilPlan
from tests.gpu.kernels.test_kernels import to_device, to_host
from tests.gpu.worker import on_gpu
from tests.kernels.stencil_functions import (
    behind,
    box,
    convolve,
    correlate,
    cross,
    expected,
    flux,
    line,
)

TYPES = ["f8", "f4", "f2", ml_dtypes.bfloat16, *("i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1")]


def drawn(shape, dtype="f4", seed=0):
    return np.random.default_rng(seed).integers(0, 9, shape).astype(dtype)


def check(stencil, *arrays, **given):
    """Compare the results of a first call, and of one that is launched again, in new memory."""
    want = expected(stencil, *arrays)
    sources = [to_device(x) for x in arrays]
    for _ in range(2):
        out = to_device(np.full_like(want, 99))
        assert stencil(*sources, out=out, **given) is out
        np.testing.assert_array_equal(to_host(out), want)


@pytest.mark.parametrize("boundary", MODES)
@pytest.mark.parametrize("shape", [(301, 404), (2, 3), (17, 65)])
@on_gpu
def test_every_boundary(shape, boundary):
    check(tma.stencil(cross, boundary=boundary, cval=7), drawn(shape))


@pytest.mark.parametrize(
    "boundary", [("edge", "zero", "wrap"), ("zero", "wrap", "reflect"), ("nan", "constant", "nan")]
)
@pytest.mark.parametrize("dtype", ["f8", "f4"])
@on_gpu
def test_planes_with_a_boundary_for_each_axis(boundary, dtype):
    stencil = tma.stencil(box, boundary=boundary)
    check(stencil, drawn((70, 37, 100), dtype))
    check(stencil, drawn((2, 3, 9, 20, 68), dtype))
    check(stencil, drawn((9, 20, 68), dtype), plan=StencilPlan(8, 32, 5, 4, 2, planes=2))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@on_gpu
def test_every_type(dtype):
    stencil = tma.stencil(line, boundary="reflect", neighbourhood=((-3, 3),))
    for shape in ((16,), (10_000,), (3, 48), (100, 352)):
        check(stencil, drawn(shape, dtype))
    check(tma.stencil(behind, boundary="wrap"), drawn((40, 96), dtype))


@pytest.mark.parametrize("dtype", ["f4", "f2", "u1"])
@on_gpu
def test_arrays_at_any_address(dtype):
    host = drawn((3, 50, 200), dtype)
    memory = cuda.to_device(host)
    for boundary in ("wrap", "edge"):
        stencil = tma.stencil(cross, boundary=boundary)
        for part in (np.s_[:, :, 1:134], np.s_[:, 3:, :199], np.s_[::2, :, 5:]):
            out = cuda.to_device(np.zeros((3, 50, 211), dtype))
            target = out[: host[part].shape[0], : host[part].shape[1], 7 : 7 + host[part].shape[2]]
            stencil(memory[part], out=target)
            np.testing.assert_array_equal(target.copy_to_host(), expected(stencil, host[part]))


@on_gpu
def test_arrays_numbers_and_results():
    x, w = drawn((2, 50, 120)), drawn((2, 50, 120), seed=1)
    stencil = tma.stencil(flux, boundary="edge")
    for number in (2.5, 3):
        results = stencil(cuda.to_device(x), number, cuda.to_device(w))
        for found, want in zip(results, expected(stencil, x, np.float32(number), w)):
            np.testing.assert_array_equal(found.copy_to_host(), want)


@on_gpu
def test_weights_and_a_stream():
    x, stream = drawn((150, 212), "f8"), cuda.stream()
    source = cuda.to_device(x)
    for function in (correlate, convolve):
        stencil = tma.stencil(function, boundary="symmetric", neighbourhood=((-1, 1), (-1, 1)))
        found = stencil(source, stream=stream)
        stream.synchronize()
        np.testing.assert_array_equal(found.copy_to_host(), expected(stencil, x))


@on_gpu
def test_many_chunks_of_planes():
    x = drawn((200, 70, 130))
    check(tma.stencil(box, boundary="wrap"), x)
    check(tma.stencil(box), x, plan=StencilPlan(planes=7))
