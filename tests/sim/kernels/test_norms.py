"""RMSNorm, LayerNorm and softmax in the simulator, against NumPy in float64."""

import ml_dtypes
import numpy as np
import pytest

from numba_tma import ptx, simulator
from numba_tma.kernels._host.limits import SHARED_BYTES
from numba_tma.kernels.rows.layernorm import layernorm
from numba_tma.kernels.rows.pipelined import rmsnorm_pipelined
from numba_tma.kernels.rows.plan import LONGEST, RowOptions, RowPlan, bytes_per_block, plan_for
from numba_tma.kernels.rows.plan import PLANS as MEASURED
from numba_tma.kernels.rows.rmsnorm import rmsnorm
from numba_tma.kernels.rows.softmax import log_softmax, softmax
from tests.tiers import quick

FLOATS = [np.float32, np.float16, ml_dtypes.bfloat16]
#: Half a unit in the last place, and as much again for what is computed in float32.
ROUNDING = {np.float32: 2.0**-20, np.float16: 2.0**-10, ml_dtypes.bfloat16: 2.0**-7}

#: One of each regime, with few threads, so that the simulator is quick.
PLANS = {
    "part of a warp": RowPlan(8, 4, early=True),
    "block": RowPlan(64),
    "bulk": RowPlan(32, 2, bulk=True),
    "cluster": RowPlan(32, 1, 2),
    "cluster, bulk": RowPlan(32, 1, 2, bulk=True),
    "staged": RowPlan(32, bulk=True, slot=512),
    "cluster 2, staged": RowPlan(32, 1, 2, bulk=True, slot=512, early=True),
    "cluster 4, staged": RowPlan(32, 1, 4, bulk=True, slot=512),
}


def by_plan(*quick):
    """Run a test with every plan, with those that are not quick where slow tests run."""
    cases = [
        pytest.param(plan, id=name, marks=[] if name in quick else [pytest.mark.slow])
        for name, plan in PLANS.items()
    ]
    return pytest.mark.parametrize("plan", cases)


def values(shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def close(got, want, dtype, size=None):
    """Hold got to want, to a rounding of `size`: the result, or the terms it is the sum of."""
    error = np.abs(got.astype(np.float64) - want)
    assert (error <= ROUNDING[dtype] * (np.abs(want) if size is None else size) + 1e-6).all()


def exact_rmsnorm(x, weight, eps=1e-6):
    x, weight = x.astype(np.float64), weight.astype(np.float64)
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


def exact_layernorm(x, weight, bias, eps=1e-5):
    x, weight, bias = (a.astype(np.float64) for a in (x, weight, bias))
    difference = x - x.mean(axis=-1, keepdims=True)
    return difference / np.sqrt(x.var(axis=-1, keepdims=True) + eps) * weight + bias


def exact_log_softmax(x, scale=1.0):
    x = x.astype(np.float64) * scale
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def check_all(x, plan=None):
    """Hold the four operations with their statistics to NumPy."""
    dtype, columns = x.dtype.type, x.shape[-1]
    weight, bias = values(columns, dtype, seed=1), values(columns, dtype, seed=2)
    exact = x.astype(np.float64)
    first, second = np.zeros(x.shape[:-1], np.float32), np.zeros(x.shape[:-1], np.float32)
    close(rmsnorm(x, weight, rstd=first, plan=plan), exact_rmsnorm(x, weight), dtype)
    close(first, 1 / np.sqrt((exact**2).mean(axis=-1) + 1e-6), np.float32)
    got = layernorm(x, weight, bias, mean=first, rstd=second, plan=plan)
    want = exact_layernorm(x, weight, bias)
    close(got, want, dtype, np.abs(want - bias) + np.abs(bias))
    close(first, exact.mean(axis=-1), np.float32)
    close(second, 1 / np.sqrt(exact.var(axis=-1) + 1e-5), np.float32)
    want = exact_log_softmax(x)
    close(softmax(x, logsumexp=first, plan=plan), np.exp(want), dtype)
    close(first, np.log(np.exp(exact).sum(axis=-1)), np.float32)
    close(log_softmax(x, plan=plan), want, dtype)


@pytest.fixture
def bulk_loads(monkeypatch):
    """Note bulk copies from global memory: (address, bytes)."""
    loads, load = [], ptx.cp_async_bulk_load

    def noted(destination, source, nbytes, *others):
        loads.append((int(source), int(nbytes)))
        load(destination, source, nbytes, *others)

    monkeypatch.setattr(ptx, "cp_async_bulk_load", noted)
    return loads


@by_plan("part of a warp", "cluster, bulk", "cluster 2, staged")
def test_every_regime(plan):
    simulator.seed(1)
    check_all(values((3, 304)), plan)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_every_regime_with_all_that_a_kernel_may_read_and_write(plan, bulk_loads):
    """Five rows, so that the last block of several has one."""
    rng = np.random.default_rng(4)
    x, residual = (rng.integers(-8, 9, (5, 268)).astype(np.float32) for _ in range(2))
    weight, bias, sums = values(268, seed=1), values(268, seed=2), np.zeros_like(x)
    mean, rstd = statistics = np.full((2, 8), 7, np.float32)
    given = {"residual": residual, "residual_out": sums, "mean": mean[:5], "rstd": rstd[:5]}
    got = layernorm(x, weight, bias, plan=plan, **given)
    exact = x + residual
    want = exact_layernorm(exact, weight, bias)
    close(got, want, np.float32, np.abs(want - bias) + np.abs(bias))
    np.testing.assert_array_equal(sums, exact)
    close(mean[:5], exact.mean(axis=-1, dtype=np.float64), np.float32)
    close(rstd[:5], 1 / np.sqrt(exact.astype(np.float64).var(axis=-1) + 1e-5), np.float32)
    assert (statistics[:, 5:] == 7).all()
    read = (x, residual) if plan.slot else (x,)
    for array in read if plan.bulk else ():
        inside = [n for at, n in bulk_loads if 0 <= at - array.ctypes.data <= array.nbytes - n]
        assert sum(inside) == array.nbytes  # each byte once
    assert sum(n for _, n in bulk_loads) == plan.bulk * len(read) * x.nbytes


@pytest.mark.parametrize(
    ("columns", "dtype"), [(256, np.float32), (304, ml_dtypes.bfloat16)], ids=["f32", "bf16"]
)
def test_rows_through_a_pipeline(columns, dtype):
    simulator.seed(1)
    x, weight = values((7, columns), dtype), values(columns, dtype, seed=1)
    got = rmsnorm_pipelined(x, weight, threads=64, stages=2, blocks=1)
    close(got, exact_rmsnorm(x, weight), dtype)


def test_a_pipeline_in_place_with_more_stages_than_rows():
    x, weight = values((2, 64)), values(64, seed=1)
    want = exact_rmsnorm(x, weight, 0.5)
    assert rmsnorm_pipelined(x, weight, eps=0.5, out=x, threads=32, stages=4) is x
    close(x, want, np.float32)
    assert rmsnorm_pipelined(values((0, 64)), weight).shape == (0, 64)


STAGED = [
    (1, 256),  # whole slots
    (1, 300),  # a last slot that is partial
    (2, 300),  # as well in each block
    (2, 260),  # with one access fewer in the last block
    (4, 36),  # of 9 accesses: blocks have 3, the last none
    (8, 68),  # of 17 accesses: the last two blocks have none
    (4, 1024),
    (8, 1000),
]


@pytest.mark.parametrize(("cluster", "columns"), quick([(1, 300), (2, 260), (4, 36)], STAGED))
def test_staged_rows_of_any_length(cluster, columns):
    simulator.seed(cluster)
    check_all(
        values((2 if cluster < 4 else 1, columns)), RowPlan(32, 1, cluster, bulk=True, slot=512)
    )


def test_nothing_behind_a_staged_row_is_read(bulk_loads):
    x = values((2, 68))
    softmax(x, plan=RowPlan(32, 1, 8, bulk=True, slot=512))
    parts = [(at, min(48, 272 - at)) for at in range(0, 272, 48)]  # of 6 blocks; 2 have none
    loads = [(at - x.ctypes.data, nbytes) for at, nbytes in bulk_loads]
    assert sorted(loads) == parts + [(272 + at, nbytes) for at, nbytes in parts]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["block", "cluster", "cluster 2, staged"])
@pytest.mark.parametrize("dtype", FLOATS[1:], ids=lambda d: np.dtype(d).name)
def test_types_of_16_bits(name, dtype):
    check_all(values((2, 264), dtype), PLANS[name])


@pytest.mark.parametrize("dtype", FLOATS[1:], ids=lambda d: np.dtype(d).name)
def test_staged_rows_of_16_bits(dtype):
    check_all(values((2, 536), dtype), PLANS["staged"])


@pytest.mark.parametrize(("rows", "columns"), [(5, 3), (1, 64)])
def test_any_shape_as_it_is_planned(rows, columns):
    check_all(values((rows, columns), ml_dtypes.bfloat16))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 65), (2, 1000)])
def test_more_shapes_and_types(rows, columns, dtype):
    check_all(values((rows, columns), dtype))


def test_rows_without_alignment_and_with_gaps():
    memory = values((2, 2, 75), np.float16)
    x = memory[:, :, 1:70]
    before, weight = memory.copy(), values(69, np.float16, seed=1)
    want = exact_rmsnorm(x, weight, eps=0.5)
    assert rmsnorm(x, weight, eps=0.5, out=x) is x
    close(x, want, np.float16)
    np.testing.assert_array_equal(memory[:, :, :1], before[:, :, :1])
    np.testing.assert_array_equal(memory[:, :, 70:], before[:, :, 70:])


@pytest.mark.parametrize(
    "plan",
    [
        RowPlan(16, 2),
        RowPlan(32, bulk=True, slot=512),
        pytest.param(RowPlan(32, 1, 2), marks=pytest.mark.slow),
        pytest.param(RowPlan(32, 1, 2, bulk=True, slot=512, early=True), marks=pytest.mark.slow),
    ],
)
def test_a_residual_is_added_and_written_out(plan):
    x, residual = values((5, 136)), values((5, 136), seed=3)
    weight, bias, sums = values(136, seed=1), values(136, seed=2), np.zeros((5, 136), np.float32)
    exact = x.astype(np.float64) + residual
    close(
        rmsnorm(x, weight, residual=residual, plan=plan), exact_rmsnorm(exact, weight), np.float32
    )
    got = layernorm(x, weight, bias, residual=residual, residual_out=sums, plan=plan)
    want = exact_layernorm(exact, weight, bias)
    close(got, want, np.float32, np.abs(want - bias) + np.abs(bias))
    close(sums, exact, np.float32, np.abs(x) + np.abs(residual))
    rmsnorm(x, weight, residual=residual, residual_out=residual, out=x, plan=plan)
    close(x, exact_rmsnorm(exact, weight), np.float32)
    np.testing.assert_array_equal(residual, sums)


@by_plan("cluster 2, staged")
def test_softmax_of_infinities_and_nan(plan):
    x = values((6, 304))
    x[0] = -np.inf
    x[1, 7:] = -np.inf
    x[2, 200] = np.nan
    x[3, 3] = np.inf
    x[4] = 1e30
    x[5, :150] = -np.inf
    sums = np.zeros(6, np.float32)
    got, logarithms = softmax(x, logsumexp=sums, plan=plan), log_softmax(x, plan=plan)
    assert np.isnan(got[[0, 2, 3]]).all() and np.isnan(logarithms[[0, 2, 3]]).all()
    with np.errstate(all="ignore"):
        want = exact_log_softmax(x[[1, 4, 5]])
    close(got[[1, 4, 5]], np.exp(want), np.float32)
    there = np.isfinite(want)
    close(logarithms[[1, 4, 5]][there], want[there], np.float32)
    assert (logarithms[[1, 4, 5]][~there] == -np.inf).all()
    assert sums[0] == -np.inf and np.isnan(sums[2])


@pytest.mark.parametrize("columns", [512, 520])  # the parts of as many elements each, or not
def test_layernorm_of_a_mean_far_from_0(columns):
    x = values((2, columns)) + np.float32(4096)
    one, zero = np.ones(columns, np.float32), np.zeros(columns, np.float32)
    error = np.abs(layernorm(x, plan=RowPlan(64)) - exact_layernorm(x, one, zero))
    assert error.max() < 5e-4  # the mean's own rounding; squares less a square would lose it all


def test_nan_stays_in_its_row():
    x = values((4, 96))
    x[2, 50] = np.nan
    for y in (rmsnorm(x), layernorm(x)):
        assert np.isnan(y[2]).all() and not np.isnan(y[[0, 1, 3]]).any()


def test_softmax_with_a_scale():
    x, sums = values((3, 72)), np.zeros(3, np.float32)
    close(softmax(x, scale=0.125, logsumexp=sums), np.exp(exact_log_softmax(x, 0.125)), np.float32)
    close(sums, np.log(np.exp(0.125 * x.astype(np.float64)).sum(-1)), np.float32)


def test_bits_whose_type_numpy_does_not_know():
    x, weight = values((3, 64), ml_dtypes.bfloat16), values(64, ml_dtypes.bfloat16, seed=1)
    got = rmsnorm(x.view(np.uint16), weight.view(np.uint16), dtype="bf16")
    assert got.dtype == np.uint16
    close(got.view(ml_dtypes.bfloat16), exact_rmsnorm(x, weight), ml_dtypes.bfloat16)


def test_nothing():
    assert rmsnorm(values((0, 64)), values(64)).shape == (0, 64)
    assert softmax(values((3, 0))).shape == (3, 0)


@pytest.mark.parametrize("width", [8, 16])
@pytest.mark.parametrize("columns", [1, 8, 1024, 1025, 16384, 65536, 262144, 900000, 1 << 20])
def test_a_plan_covers_the_row(columns, width):
    for itemsize in (2, 4):
        for options in (RowOptions(), RowOptions(residual=True), RowOptions(output=False)):
            plan = plan_for("rmsnorm", columns, itemsize, width, options)
            if plan.slot:
                part = bytes_per_block(columns * itemsize, plan.cluster)
                assert width == 16 and (1 + options.residual) * part <= SHARED_BYTES
            else:
                assert 128 * plan.threads * plan.cluster >= columns


@pytest.mark.parametrize(
    ("columns", "itemsize", "width", "options", "blocks"),
    [
        (16384, 2, 16, RowOptions(residual=True), None),  # 32 KB: in registers
        (16392, 2, 16, RowOptions(residual=True), 2),
        (32768, 2, 16, RowOptions(residual=True), 2),
        (65536, 2, 16, RowOptions(output=False), 2),
        (65536, 2, 16, RowOptions(residual=True), 4),
        (65536, 4, 16, RowOptions(output=False), 4),
        (921600, 2, 16, RowOptions(), 8),  # all of the shared memory of 8 blocks
        (921608, 2, 16, RowOptions(), None),
        (460800, 2, 16, RowOptions(residual=True), 8),
        (460808, 2, 16, RowOptions(residual=True), None),
        (65536, 2, 8, RowOptions(), None),
    ],
)
def test_long_rows_wait_in_shared_memory(columns, itemsize, width, options, blocks):
    plan = plan_for("row_sum", columns, itemsize, width, options)
    assert (plan.cluster if plan.slot else None) == blocks


def test_what_is_measured_is_planned():
    for name, plans in MEASURED.items():
        for nbytes, plan in plans.items():
            assert plan_for(name, nbytes // 2, 2) is plan
            assert plan_for(name, nbytes // 4 - 4, 4) is plan


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: rmsnorm(values((2, 64)), values(32)), r"pass a weight of shape \(64,\) of f32"),
        (lambda: rmsnorm(values((2, 64)), values(64, np.float16)), "weight has shape .* of f16"),
        (lambda: layernorm(values((2, 64)), None, values(63)), "bias has shape .63,. of f32"),
        (lambda: rmsnorm(values((2, 64), np.float64)), "x is f64; it works on f32, f16 and bf16"),
        (lambda: rmsnorm(values((2, 64))[:, ::2]), "last axis must be contiguous"),
        (lambda: rmsnorm(values((2, 64)), residual=values((2, 63))), "residual has shape .2, 63."),
        (
            lambda: rmsnorm(values((2, 64)), rstd=values(2, np.float16)),
            r"rstd has shape .2,. of f16; it takes one f32 for each row of x: .* of shape \(2,\)",
        ),
        (
            lambda: layernorm(values((2, 64)), mean=values((2, 2))[:, 0]),
            "last axis must be contiguous",
        ),
        (lambda: softmax(values((2, 64)), scale=-1.0), "softmax.scale=-1.0.: .* positive number"),
        (
            lambda: rmsnorm_pipelined(values((2, 65)), values(65)),
            "rows and weight are aligned to 4 B; bulk copies take multiples of 16 B: use rmsnorm",
        ),
        (lambda: rmsnorm_pipelined(values((2, 64)), values(32)), "weight has shape .32,."),
        (
            lambda: softmax(values((1, 60000)), plan=PLANS["staged"]),
            r"softmax\(plan=RowPlan.*a block has 240,000 B of rows, but room for 230,400 B in "
            "shared memory: give a row more blocks",
        ),
        (
            lambda: rmsnorm(x := values((1, 30000)), residual=x, plan=PLANS["staged"]),
            "a block has 240,000 B of rows",
        ),
        (lambda: softmax(values((1, 60000)), plan=PLANS["bulk"]), "a block has 480,256 B of rows"),
        (
            lambda: rmsnorm_pipelined(values((1, 30000)), values(30000), stages=2),
            "a block has 240,000 B of rows",
        ),
        (
            lambda: softmax(np.empty((1, LONGEST + 1), np.float16)),
            r"softmax\(\): x has rows of 16,777,217 elements; they are of up to 16,777,216: cut",
        ),
        (lambda: RowPlan(48), "threads=48.*: threads is a power of 2, up to 1,024"),
        (lambda: RowPlan(32, 1, 3), "cluster=3.*: cluster is 1, 2, 4 or 8"),
        (lambda: RowPlan(64, 2), "rows=2.*: several rows are of up to 32 threads each"),
        (lambda: RowPlan(16, 1, 2), "blocks of a cluster have 32 threads or more"),
        (lambda: RowPlan(32, slot=512), "slot goes with bulk=True and rows=1"),
        (
            lambda: RowPlan(64, bulk=True, slot=1000),
            "slot=1000.*: slot is a multiple of 1,024: 16 B",
        ),
    ],
)
def test_what_cannot_be_done(call, text):
    with pytest.raises(ValueError, match=text):
        call()
