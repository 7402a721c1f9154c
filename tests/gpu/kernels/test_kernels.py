"""The shipped kernels against float64: every byte of a copy, every element within its bound.

An error is bounded in units of the result type's last place (ulp), plus what float32 arithmetic
may add to it.
"""

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

from numba_tma.kernels.copy.api import copy
from numba_tma.kernels.copy.plan import CopyPlan
from numba_tma.kernels.pointwise.api import plan_for, scale_add
from numba_tma.kernels.rows.rmsnorm import rmsnorm
from tests.gpu.worker import on_gpu

TYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
EPS32 = 2.0**-24  # relative error of one rounding to float32


class BFloat16Array:
    """A device array of bfloat16, which numba's own arrays cannot say."""

    def __init__(self, array):
        self.array, self.dtype = array, np.dtype(ml_dtypes.bfloat16)
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, "typestr": "<V2"}


def to_device(array):
    if array.dtype == ml_dtypes.bfloat16:
        return BFloat16Array(cuda.to_device(array.view(np.uint16)))
    return cuda.to_device(array)


def to_host(array):
    if isinstance(array, BFloat16Array):
        return array.array.copy_to_host().view(ml_dtypes.bfloat16)
    return array.copy_to_host()


def normal(shape, name, seed=0, scale=1.0):
    values = np.random.default_rng(seed).standard_normal(shape) * scale
    return values.astype(TYPES[name])


def ulp(values, dtype):
    """Return the distance of neighbours in `dtype` at the magnitudes of float64 `values`."""
    info = ml_dtypes.finfo(dtype)
    _, exponents = np.frexp(np.maximum(np.abs(values), float(info.smallest_normal)))
    return np.ldexp(1.0, exponents - 1 - info.nmant)


def assert_close(actual, expected, dtype, float32_error, bound_ulp, what):
    """Hold |actual - expected| to `bound_ulp` ulp plus `float32_error`; both are printed."""
    error = np.abs(actual.astype(np.float64) - expected)
    ulps = (error - float32_error) / ulp(expected, dtype)
    worst = np.unravel_index(np.argmax(ulps), ulps.shape)
    print(
        f"{what}: max abs error {error.max():.3g}, {(error / ulp(expected, dtype)).max():.2f} ulp"
    )
    assert ulps.max() <= bound_ulp, (
        f"{what}: {ulps.max():.2f} ulp over what float32 may add, allowed {bound_ulp}, at {worst}: "
        f"{actual[worst]} and not {expected[worst]}"
    )


# -------------------------------------------------------------------------------- copy


@on_gpu
def test_copy_of_bytes_with_tails():
    rng = np.random.default_rng(0)
    lengths = [*range(1, 34), *(4096 * k + tail for k in (1, 3) for tail in range(34))]
    lengths += [4095, 3 * 4096 - 16, (1 << 20) + 5]
    for length in lengths:
        source = rng.integers(0, 256, length, np.uint8)
        memory = cuda.to_device(np.full(length + 128, 0xAA, np.uint8))
        copy(cuda.to_device(source), memory[64 : 64 + length], plan=CopyPlan())
        expected = np.pad(source, 64, constant_values=0xAA)
        np.testing.assert_array_equal(memory.copy_to_host(), expected, f"length {length}")


@on_gpu
def test_copy_of_elements_and_axes():
    for name in TYPES:
        for shape in ((1,), (7, 5), (3, 33, 65), (2, 3, 5, 7, 11)):
            source = normal(shape, name)
            out = to_device(np.zeros_like(source))
            assert copy(to_device(source), out) is out
            np.testing.assert_array_equal(to_host(out).view("u1"), source.view("u1"))


@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "f8"])
@on_gpu
def test_copy_of_matrices_with_padded_rows(dtype):
    rng = np.random.default_rng(0)
    for rows, columns, source_width, out_width in (
        (1, 16, 32, 48),
        (37, 288, 304, 320),
        (37, 304, 304, 320),
        (64, 256, 512, 256),
        (1000, 1008, 1024, 1040),
    ):
        source = rng.integers(0, 100, (rows, source_width)).astype(dtype)
        expected = np.full((rows, out_width), 77, dtype)
        expected[:, :columns] = source[:, :columns]
        for plan in (None, CopyPlan()):
            out = cuda.to_device(np.full((rows, out_width), 77, dtype))
            copy(cuda.to_device(source)[:, :columns], out[:, :columns], plan=plan)
            np.testing.assert_array_equal(out.copy_to_host(), expected)


@on_gpu
def test_copy_of_what_tma_cannot_address_leaves_the_gaps():
    rng = np.random.default_rng(0)
    for dtype in ("u1", "f2", "f4", "f8"):
        for start, columns in ((0, 61), (1, 64), (2, 200), (8, 256)):
            source = rng.integers(0, 100, (37, 300)).astype(dtype)
            out = cuda.to_device(np.full((37, 290), 77, dtype))
            copy(cuda.to_device(source)[:, start : start + columns], out[:, 3 : 3 + columns])
            expected = np.full((37, 290), 77, dtype)
            expected[:, 3 : 3 + columns] = source[:, start : start + columns]
            np.testing.assert_array_equal(out.copy_to_host(), expected, f"{dtype} {start}")


# ----------------------------------------------------------------------------- rmsnorm


def float64_rmsnorm(x, weight, eps):
    x = x.astype(np.float64)
    scale = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    return x * scale * weight.astype(np.float64)


# The relative error that float32 arithmetic adds before the one rounding to the result's type:
# sums over up to 64 terms in each thread and 10 levels of a tree, halved by the root, then five
# single operations.
RMSNORM_ERROR = 48 * EPS32

# Short rows (several to a stage), rows of a block each, the longest; odd counts of rows.
ROWS_AND_COLUMNS = [(1, 8), (5, 64), (301, 128), (77, 1000), (301, 1024), (133, 4096), (9, 8192)]


@pytest.mark.parametrize("columns", sorted({columns for _, columns in ROWS_AND_COLUMNS}))
@pytest.mark.parametrize("name", TYPES)
@on_gpu
def test_rmsnorm(name, columns):
    dtype = np.dtype(TYPES[name])
    for rows in [rows for rows, n in ROWS_AND_COLUMNS if n == columns]:
        weight = normal(columns, name, 1)
        for seed, eps in ((2, 1e-6), (3, 0.5)):
            x = normal((rows, columns), name, seed, scale=3.0)
            x[rows // 2] = 0
            y = to_device(np.full_like(x, 7))
            assert rmsnorm(to_device(x), to_device(weight), eps=eps, out=y) is y
            expected = float64_rmsnorm(x, weight, float(np.float32(eps)))
            what = f"rmsnorm {name} {rows}x{columns} eps {eps}"
            slack = RMSNORM_ERROR * np.abs(expected)
            assert_close(to_host(y), expected, dtype, slack, 0.5, what)


@on_gpu
def test_rmsnorm_in_place_of_more_axes_and_padded_rows():
    weight = normal(256, "f32", 1)
    padded = normal((6, 5, 272), "f32", 2)
    x = cuda.to_device(padded)
    view = x[:, :, :256]
    rmsnorm(view, cuda.to_device(weight), out=view)
    expected = float64_rmsnorm(padded[:, :, :256], weight, 1e-6)
    result = x.copy_to_host()
    slack = RMSNORM_ERROR * np.abs(expected)
    assert_close(result[:, :, :256], expected, np.dtype("f4"), slack, 0.5, "rmsnorm in place")
    np.testing.assert_array_equal(result[:, :, 256:], padded[:, :, 256:])


@on_gpu
def test_rmsnorm_again_and_again_on_one_stream():
    """The kernels of a stream share a queue counter, which each must leave at 0."""
    weight = cuda.to_device(np.ones(1024, np.float32))
    for rows in (1, 500, 33, 132, 1000):
        x = normal((rows, 1024), "f32", rows)
        y = to_host(rmsnorm(cuda.to_device(x), weight))
        expected = float64_rmsnorm(x, np.ones(1024), 1e-6)
        slack = RMSNORM_ERROR * np.abs(expected)
        assert_close(y, expected, np.dtype("f4"), slack, 0.5, f"rmsnorm of {rows} rows")


# --------------------------------------------------------------------------- scale_add


@pytest.mark.parametrize("name", TYPES)
@on_gpu
def test_scale_add(name):
    dtype = np.dtype(TYPES[name])
    for shape in ((64,), (3, 256), (37, 520), (5, 7, 96), (1000, 1024)):
        x, y = normal(shape, name, 1), normal(shape, name, 2)
        for alpha, beta in ((2.0, -0.5), (1 / 3, 1e-3), (0.0, 1.0)):
            given = to_device(x), to_device(y), alpha, beta
            out, tiles = (to_device(np.full_like(x, 7)) for _ in range(2))
            assert scale_add(*given, out=out) is out
            scale_add(*given, out=tiles, plan=plan_for(2))
            terms = [
                float(np.float32(factor)) * array.astype(np.float64)
                for factor, array in ((alpha, x), (beta, y))
            ]
            # Two products and a sum, each rounded to float32, or fused.
            slack = 2.1 * EPS32 * (np.abs(terms[0]) + np.abs(terms[1]))
            what = f"scale_add {name} {shape} {alpha} {beta}"
            for got in map(to_host, (out, tiles)):
                assert_close(got, terms[0] + terms[1], dtype, slack, 0.5, what)


@on_gpu
def test_scale_add_of_padded_rows_in_place():
    padded, y = normal((37, 80), "f32", 1), normal((37, 64), "f32", 2)
    x = cuda.to_device(padded)
    view = x[:, :64]
    scale_add(view, cuda.to_device(y), 2.0, 4.0, out=view)
    expected = 2.0 * padded[:, :64].astype(np.float64) + 4.0 * y
    slack = 2.1 * EPS32 * (np.abs(2.0 * padded[:, :64]) + np.abs(4.0 * y))
    result = x.copy_to_host()
    assert_close(result[:, :64], expected, np.dtype("f4"), slack, 0.5, "scale_add in place")
    np.testing.assert_array_equal(result[:, 64:], padded[:, 64:])
