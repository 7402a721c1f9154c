"""Gradients of the norms in the simulator, against NumPy in float64."""

import ml_dtypes
import numpy as np
import pytest

from numba_tma.kernels.rows import backward
from numba_tma.kernels.rows.backward import (
    kernel,
    layernorm_backward,
    plan_for,
    rmsnorm_backward,
)
from numba_tma.kernels.rows.plan import RowPlan
from tests.tiers import quick


def values(shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def exact_backward(dy, x, weight, centred, eps=1e-5):
    """Return dx, dweight, dbias, mean, rstd."""
    dy, x, weight = (a.astype(np.float64) for a in (dy, x, weight))
    mean = x.mean(-1, keepdims=True) * centred
    rstd = 1 / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + eps)
    normal, g = (x - mean) * rstd, dy * weight
    dx = g - normal * (g * normal).mean(-1, keepdims=True) - g.mean(-1, keepdims=True) * centred
    return dx * rstd, (dy * normal).sum(0), dy.sum(0), mean[:, 0], rstd[:, 0]


@pytest.mark.parametrize(
    ("columns", "dtype", "plan"),
    quick(
        lambda case: case[2] is None or case[0] == 195,
        [
            (65, np.float32, None),
            (200, ml_dtypes.bfloat16, None),
            (195, np.float32, RowPlan(64, 1, 2)),  # the second block has fewer accesses
            (65, np.float32, RowPlan(32, 1, 2)),
            (200, ml_dtypes.bfloat16, RowPlan(32, 1, 2)),
        ],
    ),
    ids=str,
)
def test_gradients(columns, dtype, plan):
    dy, x = values((5, columns), dtype, 1), values((5, columns), dtype, 2)
    weight = values(columns, dtype, 3)
    tolerance = 2.0**-18 if dtype is np.float32 else 2.0**-7
    for centred in (False, True):
        want = exact_backward(dy, x, weight, centred)
        mean, rstd = (s.astype(np.float32) for s in want[3:])
        dweight, dbias = np.zeros(columns, np.float32), np.zeros(columns, dtype)
        if centred:
            out = np.zeros_like(x)
            got = layernorm_backward(
                dy, x, weight, mean=mean, rstd=rstd, dx=out, dweight=dweight, dbias=dbias, plan=plan
            )
            assert got is out
            np.testing.assert_allclose(dbias.astype(float), want[2], tolerance, 4 * tolerance)
        else:
            got = rmsnorm_backward(dy, x, weight, rstd=rstd, dweight=dweight, plan=plan)
        np.testing.assert_allclose(got.astype(float), want[0], tolerance, tolerance)
        np.testing.assert_allclose(dweight, want[1], 2.0**-18, 2.0**-16)


def test_without_a_weight_and_sums():
    dy, x = values((3, 96)), values((3, 96), seed=2)
    want = exact_backward(dy, x, np.ones(96), False)
    got = rmsnorm_backward(dy, x, rstd=want[4].astype(np.float32))
    np.testing.assert_allclose(got, want[0], 1e-5, 1e-5)


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("columns", [1, 64, 1024, 16384, 262144])
def test_a_plan_covers_the_row(columns, itemsize):
    plan = plan_for(columns, itemsize)
    assert plan.threads <= 1024 and plan.cluster <= 8 and plan.threads % 32 == 0
    assert 32 * plan.threads * plan.cluster >= columns


def test_no_row_behind_the_last_is_loaded(monkeypatch):
    loaded, load = set(), kernel.load_global

    def load_global(share, place, *rest):
        loaded.add((place - memory.ctypes.data) // memory.strides[1])
        return load(share, place, *rest)

    memory, rstd = values((3, 100, 64)), np.ones(5, np.float32)
    dy, x, dx = memory[:, :5]
    monkeypatch.setattr(kernel, "load_global", load_global)
    monkeypatch.setattr(backward, "backward_kernel", kernel.backward_kernel.__wrapped__)
    rmsnorm_backward(dy, x, rstd=rstd, dx=dx, plan=RowPlan(512))  # one block, or two
    assert loaded == {*range(5), *range(100, 105)}


def test_what_does_not_fit():
    x, rstd = values((2, 64)), np.ones(2, np.float32)
    with pytest.raises(ValueError, match=r"dweight has shape \(3,\) of f32, but x has 64 columns"):
        rmsnorm_backward(x, x, rstd=rstd, dweight=values(3))
    with pytest.raises(ValueError, match="dy has shape .2, 63. of f32, but x"):
        rmsnorm_backward(x[:, 1:], x, rstd=rstd)
    with pytest.raises(ValueError, match="mean has shape .3,. of f32; it takes one f32 for each"):
        layernorm_backward(x, x, mean=values(3), rstd=rstd)
