"""The shipped kernels in the simulator, with small shapes, against NumPy in float64."""

import ml_dtypes
import numpy as np
import pytest

from numba_tma import simulator
from numba_tma.kernels.copy.api import copy
from numba_tma.kernels.copy.plan import CopyPlan
from numba_tma.kernels.pointwise.api import scale_add
from tests.tiers import seeds

FLOATS = [np.float32, np.float16, ml_dtypes.bfloat16]
#: Half a unit in the last place, and as much again for what is computed in float32.
ROUNDING = {np.float32: 2.0**-21, np.float16: 2.0**-10, ml_dtypes.bfloat16: 2.0**-7}


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


@pytest.mark.parametrize(
    ("store", "loaded", "stored"),
    [("tma", 96, 96), ("registers", 96, 0), ("vector", 0, 0)],
)
def test_bytes_leave_a_chunk_by_the_way_of_the_plan(store, loaded, stored):
    x = np.arange(100, dtype=np.uint8)
    out = np.zeros_like(x)
    with simulator.record() as trace:
        copy(x, out, plan=CopyPlan(64, store=store))
    np.testing.assert_array_equal(out, x)
    moved = {
        kind: sum(event.nbytes for event in trace.events if event.kind == kind)
        for kind in ("issue", "store")
    }
    assert moved == {"issue": loaded, "store": stored}


@pytest.mark.parametrize("dtype", [np.int8, np.float64, ml_dtypes.bfloat16, np.uint32])
def test_copy_of_contiguous_arrays_of_any_type(dtype):
    x = np.arange(3 * 7 * 11).reshape(3, 7, 11).astype(dtype)
    out = np.zeros_like(x)
    copy(x, out)
    np.testing.assert_array_equal(out.view(np.uint8), x.view(np.uint8))


@seeds(1, 3)
@pytest.mark.parametrize("columns", [20, 256, 300])
@pytest.mark.parametrize("rows", [1, 8, 21])
def test_copy_of_rows_with_gaps_leaves_the_gaps(rows, columns, seeds):
    for seed in seeds:
        simulator.seed(seed)
        x = values((rows, 512))
        out = np.zeros_like(x)
        copy(x[:, :columns], out[:, :columns], plan=CopyPlan())
        np.testing.assert_array_equal(out[:, :columns], x[:, :columns])
        assert not out[:, columns:].any()


def test_copy_wants_equal_shapes_and_types():
    with pytest.raises(ValueError, match=r"out has shape \(4,\) of f32, but source has .*\(8,\)"):
        copy(values(8), values(4))
    with pytest.raises(ValueError, match="out has shape .* of f16, but source .* of f32"):
        copy(values(8), values(8, np.float16))


# --------------------------------------------------------------------------- pointwise


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("shape", [(8,), (3, 40), (5, 264), (2, 3, 512)])
def test_scale_add(shape, dtype):
    x, y = values(shape, dtype), values(shape, dtype, seed=1)
    scaled, added = 2.0 * x.astype(np.float64), -0.5 * y.astype(np.float64)
    close(scale_add(x, y, 2.0, -0.5), scaled + added, dtype, np.abs(scaled) + np.abs(added))


@seeds(1, 3)
def test_scale_add_into_an_input_with_gaps_between_rows(seeds):
    for seed in seeds:
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
    with pytest.raises(ValueError, match="x is f64; it works on f32, f16 and bf16"):
        scale_add(values(8, np.float64), values(8, np.float64), 1, 1)
