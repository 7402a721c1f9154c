"""The shipped kernels in the simulator, with small shapes, against NumPy in float64."""

import ml_dtypes
import numpy as np
import pytest

from numba_tma import simulator
from numba_tma.dtypes import as_dtype
from numba_tma.kernels.copy import copy
from numba_tma.kernels.pointwise import scale_add
from numba_tma.kernels.rmsnorm import Plan, plan_for, rmsnorm

FLOATS = [np.float32, np.float16, ml_dtypes.bfloat16]
#: Half a unit in the last place, and as much again for what is computed in float32.
ROUNDING = {np.float32: 2.0**-21, np.float16: 2.0**-10, ml_dtypes.bfloat16: 2.0**-7}
#: Few threads, so that the simulator is quick: a block per row, and a warp per row.
BLOCK, WARP = Plan(0, 2, 64, 1), Plan(3, 2, 64, 1)


def values(shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def close(got, want, dtype, size=None):
    """Hold got to want, to a rounding of `size`: the result, or the terms it is the sum of."""
    error = np.abs(got.astype(np.float64) - want)
    assert (error <= ROUNDING[dtype] * (np.abs(want) if size is None else size) + 1e-7).all()


# -------------------------------------------------------------------------------- copy


@pytest.mark.parametrize("nbytes", [0, 1, 15, 16, 17, 4095, 4096, 4097, 12345])
def test_copy_of_any_number_of_bytes(nbytes):
    x = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    out = np.zeros_like(x)
    assert copy(x, out) is out
    np.testing.assert_array_equal(out, x)


@pytest.mark.parametrize("dtype", [np.int8, np.float64, ml_dtypes.bfloat16, np.uint32])
def test_copy_of_contiguous_arrays_of_any_type(dtype):
    x = np.arange(3 * 7 * 11).reshape(3, 7, 11).astype(dtype)
    out = np.zeros_like(x)
    copy(x, out)
    np.testing.assert_array_equal(out.view(np.uint8), x.view(np.uint8))


@pytest.mark.parametrize("columns", [20, 256, 300])
@pytest.mark.parametrize("rows", [1, 8, 21])
def test_copy_of_rows_with_gaps_leaves_the_gaps(rows, columns):
    for seed in range(3):
        simulator.seed(seed)
        x = values((rows, 512))
        out = np.zeros_like(x)
        copy(x[:, :columns], out[:, :columns])
        np.testing.assert_array_equal(out[:, :columns], x[:, :columns])
        assert not out[:, columns:].any()


def test_copy_wants_equal_shapes_and_types():
    with pytest.raises(ValueError, match=r"out has shape \(4,\) of f32, but source has .*\(8,\)"):
        copy(values(8), values(4))
    with pytest.raises(ValueError, match="out has shape .* of f16, but source .* of f32"):
        copy(values(8), values(8, np.float16))


# ----------------------------------------------------------------------------- rmsnorm


def normalised(x, weight, eps=1e-6):
    x, weight = x.astype(np.float64), weight.astype(np.float64)
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


@pytest.mark.parametrize("plan", [BLOCK, WARP], ids=["block per row", "warp per row"])
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize(("rows", "columns"), [(1, 8), (7, 256), (5, 272), (2, 1048)])
def test_rmsnorm(rows, columns, dtype, plan):
    x, weight = values((rows, columns), dtype), values(columns, dtype, seed=1)
    for seed in range(2):
        simulator.seed(seed)
        close(rmsnorm(x, weight, plan=plan), normalised(x, weight), dtype)


@pytest.mark.parametrize(("columns", "shared"), [(64, False), (768, True)])
def test_rmsnorm_as_it_is_planned(columns, shared):
    assert (plan_for(columns, as_dtype("f32")).rows_per_stage == 0) is shared
    x, weight = values((5, columns)), values(columns, seed=1)
    close(rmsnorm(x, weight), normalised(x, weight), np.float32)


@pytest.mark.parametrize("plan", [BLOCK, WARP], ids=["block per row", "warp per row"])
def test_rmsnorm_in_place_with_leading_axes_and_gaps_between_rows(plan):
    memory = values((2, 4, 96))
    x, weight = memory[:, :, :64], values(64, seed=1)
    before, want = memory.copy(), normalised(x, weight, eps=0.5)
    assert rmsnorm(x, weight, eps=0.5, out=x, plan=plan) is x
    close(x, want, np.float32)
    np.testing.assert_array_equal(memory[:, :, 64:], before[:, :, 64:])


def test_rmsnorm_of_bits_whose_type_numpy_does_not_know():
    x, weight = values((3, 64), ml_dtypes.bfloat16), values(64, ml_dtypes.bfloat16, seed=1)
    got = rmsnorm(x.view(np.uint16), weight.view(np.uint16), dtype="bf16", plan=BLOCK)
    assert got.dtype == np.uint16
    close(got.view(ml_dtypes.bfloat16), normalised(x, weight), ml_dtypes.bfloat16)


def test_rmsnorm_of_nothing():
    assert rmsnorm(values((0, 64)), values(64)).shape == (0, 64)


@pytest.mark.parametrize(
    ("x", "weight", "text"),
    [
        (values((2, 64)), values(32), r"pass a weight of shape \(64,\) of f32"),
        (values((2, 64)), values(64, np.float16), "weight has shape .* of f16"),
        (values((2, 64), np.float64), values(64, np.float64), "x is f64; it normalises f32"),
        (values((2, 6)), values(6), "a row of 6 f32 .24 B. cannot be cut"),
        (values((2, 64))[:, ::2], values(32), "last axis must be contiguous"),
    ],
)
def test_rmsnorm_of_what_it_cannot_do(x, weight, text):
    with pytest.raises(ValueError, match=text):
        rmsnorm(x, weight)


# --------------------------------------------------------------------------- pointwise


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("shape", [(8,), (3, 40), (5, 264), (2, 3, 512)])
def test_scale_add(shape, dtype):
    x, y = values(shape, dtype), values(shape, dtype, seed=1)
    scaled, added = 2.0 * x.astype(np.float64), -0.5 * y.astype(np.float64)
    close(scale_add(x, y, 2.0, -0.5), scaled + added, dtype, np.abs(scaled) + np.abs(added))


def test_scale_add_into_an_input_with_gaps_between_rows():
    for seed in range(3):
        simulator.seed(seed)
        memory, y = values((20, 300)), values((20, 280), seed=1)
        x = memory[:, :280]
        scaled, gap = 3.0 * x.astype(np.float64), memory[:, 280:].copy()
        assert scale_add(x, y, 3.0, 1.0, out=x) is x
        close(x, scaled + y, np.float32, np.abs(scaled) + np.abs(y))
        np.testing.assert_array_equal(memory[:, 280:], gap)


def test_scale_add_of_what_it_cannot_do():
    with pytest.raises(ValueError, match="shapes .2, 4. and .2, 8. cannot be broadcast"):
        scale_add(values((2, 4)), values((2, 8)), 1, 1)
    with pytest.raises(ValueError, match="argument 1 is f64; it works on f32, f16 and bf16"):
        scale_add(values(8, np.float64), values(8, np.float64), 1, 1)
