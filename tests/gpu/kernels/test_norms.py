"""RMSNorm, LayerNorm, softmax and their gradients against float64, in every regime."""

import numpy as np
import pytest
from numba import cuda

from numba_tma.kernels.rows.backward import layernorm_backward, rmsnorm_backward
from numba_tma.kernels.rows.layernorm import layernorm
from numba_tma.kernels.rows.pipelined import rmsnorm_pipelined
from numba_tma.kernels.rows.plan import RowPlan
from numba_tma.kernels.rows.rmsnorm import rmsnorm
from numba_tma.kernels.rows.softmax import log_softmax, softmax
from tests.gpu.kernels.test_kernels import EPS32, TYPES, assert_close, normal, to_device, to_host
from tests.gpu.worker import on_gpu

SHAPES = [
    (1, 1),
    (1, 64),
    (1001, 64),
    (5, 65),
    (33, 1000),
    (301, 1024),
    (77, 4096),
    (3, 8191),
    (133, 8192),
    (9, 16384),
    (3, 65535),
    (7, 65536),
    (3, 131072),
    (3, 262143),
    (7, 262144),
]


def staged(cluster, **how):
    return RowPlan(512, 1, cluster, bulk=True, slot=16384, **how)


#: Each regime beside what is chosen by itself, over rows of which blocks take several.
PLANS = {
    "warp": ((301, 1024), RowPlan(32, 4)),
    "part of a warp": ((301, 64), RowPlan(8, 16)),
    "bulk, rows": ((301, 1024), RowPlan(32, 4, bulk=True)),
    "bulk": ((301, 8192), RowPlan(256, bulk=True)),
    "cluster 2": ((70, 16384), RowPlan(256, 1, 2)),
    "cluster 4, bulk": ((70, 65536), RowPlan(512, 1, 4, bulk=True)),
    "cluster 8, bulk, ragged": ((70, 50000), RowPlan(256, 1, 8, bulk=True)),
    "registers for 10 blocks": ((301, 1024), RowPlan(32, 4, blocks=10)),
    "early": ((301, 4096), RowPlan(128, early=True)),
    "staged": ((301, 32768), staged(1)),
    "staged, one block": ((301, 65536), staged(1, early=True)),
    "staged, partial": ((301, 30008), staged(1, blocks=3, early=True)),
    "staged, 128 threads": ((301, 16392), RowPlan(128, bulk=True, slot=2048)),
    "cluster 2, staged": ((301, 65536), staged(2, blocks=3, early=True)),
    "cluster 2, staged, partial": ((301, 65480), staged(2)),
    "cluster 4, staged": ((71, 131072), staged(4, blocks=3, cache="evict_last")),
    "cluster 4, staged, partial": ((71, 100008), staged(4)),
    "cluster 8, staged": ((71, 262144), staged(8, blocks=3)),
    "cluster 8, staged, partial": ((71, 200040), staged(8, cache="evict_first")),
    "cluster 8, staged, empty blocks": ((71, 136), staged(8)),
    "cluster 4, 1024 threads": ((71, 65536), RowPlan(1024, 1, 4)),
    "cluster 8, 64 threads": ((71, 65536), RowPlan(64, 1, 8, bulk=True, slot=4096)),
}


@pytest.mark.parametrize(("columns", "threads"), [(8192, 512), (1000, 128)])
@on_gpu
def test_rmsnorm_through_a_pipeline(columns, threads):
    """The launches share a queue counter on a stream, which each must leave at 0."""
    for rows in (1, 1001, 133):
        x, weight = normal((rows, columns), "bf16"), normal(columns, "bf16", 1)
        got = to_device(np.full_like(x, 7))
        rmsnorm_pipelined(to_device(x), to_device(weight), eps=1e-5, out=got, threads=threads)
        exact = x.astype(np.float64)
        expected = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-5)
        expected = expected * weight.astype(np.float64)
        error = 48 * EPS32 * np.abs(expected)
        assert_close(to_host(got), expected, x.dtype, error, 0.5, f"pipelined {x.shape}")


@on_gpu(limit=60)  # the host compares gigabytes
def test_rmsnorm_through_a_pipeline_has_the_same_bits_again():
    x, weight = (to_device(normal(s, "bf16", 5)) for s in ((1001, 8192), 8192))
    out = to_device(np.full((1001, 8192), 7, TYPES["bf16"]))
    first = to_host(rmsnorm_pipelined(x, weight, eps=1e-5, out=out, threads=512)).view(np.uint16)
    for _ in range(20):
        again = to_host(rmsnorm_pipelined(x, weight, eps=1e-5, out=out, threads=512))
        np.testing.assert_array_equal(again.view(np.uint16), first)


def check_rmsnorm(x, name, plan=None):
    exact, weight = x.astype(np.float64), normal(x.shape[1], name, 1)
    rstd = cuda.to_device(np.full(len(x), 7, np.float32))
    got = to_device(np.full_like(x, 7))
    rmsnorm(to_device(x), to_device(weight), eps=1e-5, rstd=rstd, out=got, plan=plan)
    scale = 1 / np.sqrt((exact**2).mean(-1) + 1e-5)
    expected = exact * scale[:, None] * weight.astype(np.float64)
    what = f"rmsnorm {name} {x.shape}"
    assert_close(to_host(got), expected, x.dtype, 48 * EPS32 * np.abs(expected), 0.5, what)
    np.testing.assert_allclose(rstd.copy_to_host(), scale, 48 * EPS32)


def check_layernorm(x, name, plan=None):
    exact, weight, bias = x.astype(np.float64), *(normal(x.shape[1], name, s) for s in (1, 2))
    mean, rstd = (cuda.to_device(np.full(len(x), 7, np.float32)) for _ in range(2))
    got = to_device(np.full_like(x, 7))
    arrays = (to_device(weight), to_device(bias))
    layernorm(to_device(x), *arrays, mean=mean, rstd=rstd, out=got, plan=plan)
    weight, bias, middle = weight.astype(float), bias.astype(float), exact.mean(-1, keepdims=True)
    scale = 1 / np.sqrt(exact.var(-1, keepdims=True) + 1e-5)
    expected = (exact - middle) * scale * weight + bias
    size = np.abs((exact - middle) * scale * weight) + np.abs(bias)
    size = size + np.abs(exact).mean(-1, keepdims=True) * scale * np.abs(weight)
    what = f"layernorm {name} {x.shape}"
    assert_close(to_host(got), expected, x.dtype, 64 * EPS32 * size, 0.5, what)
    slack = 64 * EPS32 * np.abs(exact).mean(-1).max()
    np.testing.assert_allclose(mean.copy_to_host(), middle[:, 0], 0, slack)
    np.testing.assert_allclose(rstd.copy_to_host(), scale[:, 0], 64 * EPS32)


def check_softmax(x, name, plan=None, scale=1.0):
    exact = x.astype(np.float64) * scale
    below = exact - exact.max(-1, keepdims=True)
    sums = np.exp(below).sum(-1, keepdims=True)
    logarithms = cuda.to_device(np.full(len(x), 7, np.float32))
    got = to_device(np.full_like(x, 7))
    softmax(to_device(x), scale=scale, logsumexp=logarithms, out=got, plan=plan)
    expected, what = np.exp(below) / sums, f"softmax {name} {x.shape}"
    slack = (64 + 4 * np.abs(below)) * EPS32 * expected + 1e-37
    assert_close(to_host(got), expected, x.dtype, slack, 0.5, what)
    whole = (exact.max(-1, keepdims=True) + np.log(sums))[:, 0]
    np.testing.assert_allclose(logarithms.copy_to_host(), whole, 32 * EPS32, 64 * EPS32)
    log_softmax(to_device(x), scale=scale, out=got, plan=plan)
    expected = below - np.log(sums)
    slack = 32 * EPS32 * (np.abs(expected) + 16)
    assert_close(to_host(got), expected, x.dtype, slack, 0.5, f"log_{what}")


CHECKS = {"rmsnorm": check_rmsnorm, "layernorm": check_layernorm, "softmax": check_softmax}
BY_CHECK = pytest.mark.parametrize("check", CHECKS)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
@BY_CHECK
@on_gpu
def test_shapes(check, shape, name):
    CHECKS[check](normal(shape, name, 5, scale=3.0), name)


@pytest.mark.parametrize("regime", PLANS)
@BY_CHECK
@on_gpu
def test_regimes(check, regime):
    shape, plan = PLANS[regime]
    CHECKS[check](normal(shape, "bf16", 5, scale=3.0), "bf16", plan)


@pytest.mark.parametrize("regime", ["staged", "cluster 2, staged", "cluster 8, staged"])
@on_gpu
def test_regimes_of_float32_again_and_again(regime):
    (_, columns), plan = PLANS[regime]
    for rows in (1, 500, 133):
        check_layernorm(normal((rows, columns // 2), "f32", rows), "f32", plan)


@pytest.mark.parametrize("name", ["f32", "f16"])
@pytest.mark.parametrize("columns", [16392, 16393, 50257, 100008, 262144, 500000, 500001])
@BY_CHECK
@on_gpu
def test_long_rows_as_they_are_planned(check, columns, name):
    CHECKS[check](normal((19, columns), name, 5, scale=3.0), name)


@pytest.mark.parametrize("regime", ["staged, partial", "cluster 2, staged"])
@on_gpu(limit=60)  # the host compares gigabytes
def test_rows_have_the_same_bits_again(regime):
    """Memory that is read or filled too early changes few elements, and seldom."""
    (_, columns), plan = PLANS[regime]
    x, weight = (to_device(normal(s, "bf16", 5)) for s in ((1001, columns), columns))
    out = to_device(np.full((1001, columns), 7, TYPES["bf16"]))
    first = to_host(rmsnorm(x, weight, out=out, plan=plan)).view(np.uint16)
    for _ in range(20):
        again = to_host(rmsnorm(x, weight, out=out, plan=plan)).view(np.uint16)
        np.testing.assert_array_equal(again, first)


@pytest.mark.parametrize("offset", [0, 1, 2, 4])
@on_gpu
def test_rows_without_alignment_with_gaps_in_place(offset):
    for columns in (5, 129, 1000, 1001, 30000, 50257):
        padded = normal((13, columns + 24), "f16", 2)
        memory, weight = cuda.to_device(padded), normal(columns, "f16", 1)
        view = memory[:, offset : offset + columns]
        rmsnorm(view, cuda.to_device(weight), eps=0.5, out=view)
        x = padded[:, offset : offset + columns].astype(np.float64)
        expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 0.5) * weight.astype(float)
        got = memory.copy_to_host()
        slack = 48 * EPS32 * np.abs(expected)
        here = got[:, offset : offset + columns]
        assert_close(here, expected, x.astype("f2").dtype, slack, 0.5, f"offset {offset}")
        np.testing.assert_array_equal(got[:, :offset], padded[:, :offset])
        np.testing.assert_array_equal(got[:, offset + columns :], padded[:, offset + columns :])


@pytest.mark.parametrize("columns", [65, 1024, 8192, 16392, 32768, 65536, 65480, 262144])
@on_gpu
def test_a_residual(columns):
    for name, dtype in TYPES.items():
        x, residual, weight = (normal(s, name, 1) for s in ((9, columns), (9, columns), columns))
        sums, got = to_device(np.full_like(x, 7)), to_device(np.full_like(x, 7))
        arrays = [to_device(a) for a in (x, weight, residual)]
        rmsnorm(*arrays[:2], residual=arrays[2], residual_out=sums, out=got)
        exact = x.astype(np.float64) + residual.astype(np.float64)
        slack = 2 * EPS32 * (np.abs(x.astype(float)) + np.abs(residual.astype(float)))
        assert_close(to_host(sums), exact, np.dtype(dtype), slack, 0.5, f"sum {name} {columns}")
        expected = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-6)
        expected *= weight.astype(np.float64)
        slack = 48 * EPS32 * np.abs(expected)
        assert_close(to_host(got), expected, np.dtype(dtype), slack, 0.5, f"{name} {columns}")


@pytest.mark.parametrize("columns", [65, 1024, 8192, 65536])
@on_gpu
def test_infinities_and_nan(columns):
    x = normal((6, columns), "f32", 3)
    x[0] = -np.inf
    x[1, 7:] = -np.inf
    x[2, columns // 2] = np.nan
    x[3, 3] = np.inf
    x[4] = 1e30
    x[5, : columns // 2] = -np.inf
    sums = cuda.to_device(np.zeros(6, np.float32))
    plans = [None]
    if columns == 65536:
        plans += [
            PLANS[n][1] for n in ("cluster 4, bulk", "cluster 2, staged", "cluster 8, staged")
        ]
    for plan in plans:
        got = to_host(softmax(cuda.to_device(x), logsumexp=sums, plan=plan))
        logarithms = to_host(log_softmax(cuda.to_device(x), plan=plan))
        assert np.isnan(got[[0, 2, 3]]).all() and np.isnan(logarithms[[0, 2, 3]]).all()
        exact = x[[1, 4, 5]].astype(np.float64)
        exact = np.exp(exact - exact.max(-1, keepdims=True))
        exact /= exact.sum(-1, keepdims=True)
        np.testing.assert_allclose(got[[1, 4, 5]], exact, 2e-5, 1e-37)
        assert (logarithms[[1, 5]][exact[[0, 2]] == 0] == -np.inf).all()
        assert sums.copy_to_host()[0] == -np.inf and np.isnan(sums.copy_to_host()[2])
        y = to_host(layernorm(cuda.to_device(x), plan=plan))
        assert np.isnan(y[[0, 1, 2, 3]]).all()


@on_gpu
def test_huge_and_tiny_values():
    check_rmsnorm(normal((9, 4096), "f32", 1, scale=1e17), "f32")
    check_layernorm(normal((9, 4096), "f32", 1, scale=1e17), "f32")
    check_rmsnorm(normal((9, 4096), "f32", 1, scale=1e-20), "f32")
    check_softmax(normal((9, 4096), "f32", 1, scale=1e4), "f32")
    check_softmax(normal((9, 4096), "bf16", 1, scale=30), "bf16", scale=0.125)


@on_gpu
def test_a_mean_far_from_0():
    for columns in (520, 8192, 65536):
        x = normal((5, columns), "f32", 1) + np.float32(4096)
        got = to_host(layernorm(cuda.to_device(x)))
        exact = x.astype(np.float64)
        exact = (exact - exact.mean(-1, keepdims=True)) / np.sqrt(exact.var(-1, keepdims=True))
        assert np.abs(got - exact).max() < 3e-3  # the rounding of the mean, not of squares of 4096


# ---------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize(
    "shape", [(1, 1), (3, 65), (1001, 64), (301, 1000), (700, 4096), (77, 16384), (9, 65536)]
)
@on_gpu
def test_gradients(shape, name):
    dtype, (rows, columns) = np.dtype(TYPES[name]), shape
    dy, x, weight = (normal(s, name, k) for k, s in enumerate((shape, shape, columns)))
    exact, scale, upper = (a.astype(np.float64) for a in (x, weight, dy))
    for centred in (False, True):
        mean = exact.mean(-1, keepdims=True) * centred
        rstd = 1 / np.sqrt(((exact - mean) ** 2).mean(-1, keepdims=True) + 1e-5)
        normal_, g = (exact - mean) * rstd, upper * scale
        first = (g * normal_).mean(-1, keepdims=True)
        expected = g - normal_ * first - g.mean(-1, keepdims=True) * centred
        given = {"rstd": cuda.to_device(rstd[:, 0].astype(np.float32))}
        dweight, dbias = (cuda.to_device(np.full(columns, 7, np.float32)) for _ in range(2))
        got = to_device(np.full_like(x, 7))
        arrays = [to_device(a) for a in (dy, x, weight)]
        if centred:
            given |= {"mean": cuda.to_device(mean[:, 0].astype(np.float32))}
            layernorm_backward(*arrays, **given, dx=got, dweight=dweight, dbias=dbias)
            slack = 1e-5 * np.sqrt(rows)
            np.testing.assert_allclose(dbias.copy_to_host(), upper.sum(0), 1e-5, slack)
        else:
            rmsnorm_backward(*arrays, **given, dx=got, dweight=dweight)
        size = np.abs(g) + np.abs(normal_ * first) + np.abs(g).mean(-1, keepdims=True)
        size = (size + np.abs(mean * rstd) * np.abs(first)) * rstd
        what = f"gradient {name} {shape} {centred}"
        assert_close(to_host(got), expected * rstd, dtype, 128 * EPS32 * size, 0.5, what)
        slack = 1e-5 * np.sqrt(rows) * (1 + np.abs(mean * rstd).max())
        np.testing.assert_allclose(dweight.copy_to_host(), (upper * normal_).sum(0), 1e-5, slack)


@on_gpu
def test_gradients_have_the_same_bits_again():
    dy, x = (cuda.to_device(normal((3000, 2048), "f32", k)) for k in (1, 2))
    rstd = cuda.to_device(np.ones(3000, np.float32))
    results = []
    for _ in range(3):
        dweight = cuda.to_device(np.zeros(2048, np.float32))
        dx = rmsnorm_backward(dy, x, rstd=rstd, dweight=dweight)
        results.append((dx.copy_to_host(), dweight.copy_to_host()))
    for dx, dweight in results[1:]:
        np.testing.assert_array_equal(dx, results[0][0])
        np.testing.assert_array_equal(dweight, results[0][1])
