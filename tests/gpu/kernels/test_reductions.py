"""Row sums, maxima and argmaxima, and column sums, against float64."""

import numpy as np
import pytest
from numba import cuda

from numba_tma.kernels.rows.plan import RowPlan
from numba_tma.kernels.rows.reductions import column_sum, row_argmax, row_max, row_sum
from tests.gpu.kernels.test_kernels import EPS32, TYPES, normal, to_device, to_host
from tests.gpu.worker import on_gpu

SHAPES = [(1, 64), (1001, 65), (33, 1000), (301, 1024), (9, 16384), (3, 65535), (7, 262144)]
LONG = [(301, 16392), (133, 40000), (77, 65536), (33, 100008), (5, 900000), (5, 1 << 20)]


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("shape", SHAPES + LONG)
@on_gpu
def test_rows(shape, name):
    x = normal(shape, name, 1)
    rows, columns = shape
    x[0, columns // 3 : columns // 3 + 9] = x.max()
    if rows > 3:
        x[1] = -np.inf
        x[2, [columns // 2, columns - 1]] = np.nan
        x[3] = x[3, 0]
    exact, device = x.astype(np.float64), to_device(x)
    got, want = row_sum(device).copy_to_host(), exact.sum(-1)
    some = np.isfinite(want)
    error = np.abs(got[some] - want[some])
    assert (error <= 64 * EPS32 * np.abs(exact[some]).sum(-1)).all()
    np.testing.assert_array_equal(got[~some], want[~some])
    np.testing.assert_array_equal(row_max(device).copy_to_host(), exact.max(-1))
    np.testing.assert_array_equal(row_argmax(device).copy_to_host(), exact.argmax(-1))


STAGED = RowPlan(32, 1, 4, bulk=True, slot=1024)


@pytest.mark.parametrize(
    "plan", [RowPlan(8, 16), RowPlan(256), RowPlan(64, 1, 4), RowPlan(128, bulk=True), STAGED]
)
@on_gpu
def test_regimes(plan):
    x = normal((77, 4096), "bf16", 1)
    x[:, 100:3000:7] = 5
    device = to_device(x)
    exact = x.astype(np.float64)
    np.testing.assert_array_equal(row_argmax(device, plan=plan).copy_to_host(), exact.argmax(-1))
    np.testing.assert_allclose(row_sum(device, plan=plan).copy_to_host(), exact.sum(-1), 1e-5, 1e-3)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize(
    "shape", [(1, 1), (7, 65), (10001, 64), (3000, 1000), (4096, 8192), (33, 100003)]
)
@on_gpu
def test_columns(shape, name):
    x = normal(shape, name, 1)
    exact, device = x.astype(np.float64), to_device(x)
    size = np.abs(exact).sum(0)
    results = [column_sum(device).copy_to_host() for _ in range(2)]
    assert (np.abs(results[0] - exact.sum(0)) <= 64 * EPS32 * size).all()
    np.testing.assert_array_equal(results[0], results[1])
    out = to_device(np.full(shape[1], 7, TYPES[name]))
    assert column_sum(device, out=out) is out
    rounded = results[0].astype(TYPES[name])
    np.testing.assert_array_equal(to_host(out).view("u1"), rounded.view("u1"))


@pytest.mark.parametrize("form", ["odd", "shifted", "view"])
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize(
    "shape",
    [
        *((4001, n) for n in (1, 3, 8, 31, 33, 56, 63, 70)),  # short rows, many read as one
        *((n, 1001) for n in (1, 8, 9, 16, 17, 100)),
        (1949, 528), (20, 150001), (70, 150001), (50001, 63), (12345, 783),
    ],
)  # fmt: skip
@on_gpu
def test_columns_that_begin_anywhere(shape, name, form):
    """Every column is written, in the same bits each time; NaN between rows is left out."""
    (rows, width), start = shape, int(form != "odd")
    pitch = width + 3 * (form == "view")
    flat = normal((start + rows * pitch,), name, 1)
    placed = flat[start:].reshape(rows, pitch)
    placed[:, width:] = np.nan
    bits = flat.view(np.uint16) if name == "bf16" else flat
    device = cuda.to_device(bits)[start:].reshape(rows, pitch)[:, :width]
    exact = placed[:, :width].astype(np.float64)
    dtype = {"dtype": "bf16"} if name == "bf16" else {}
    results = []
    for _ in range(2):
        out = cuda.to_device(np.full(width, np.nan, np.float32))
        results.append(column_sum(device, out=out, **dtype).copy_to_host())
    assert (np.abs(results[0] - exact.sum(0)) <= 64 * EPS32 * np.abs(exact).sum(0)).all()
    np.testing.assert_array_equal(*results)


@on_gpu
def test_columns_of_rows_with_gaps():
    padded = normal((513, 140), "f32", 1)
    got = column_sum(cuda.to_device(padded)[:, 3:131]).copy_to_host()
    np.testing.assert_allclose(got, padded[:, 3:131].astype(np.float64).sum(0), 1e-5, 1e-4)
