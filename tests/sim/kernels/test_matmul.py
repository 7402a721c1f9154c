"""Matmul in the simulator: layouts, odd sizes, epilogues, batches and types, with small tiles."""

import ml_dtypes
import numpy as np
import pytest

from numba_tma.kernels.matmul import matmul
from numba_tma.kernels.matmul.plan import Config
from tests.tiers import quick

BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
ONE = Config(64, 64, stages=2)
TWO = Config(128, 64, stages=2)
PAIRS = Config(64, 64, stages=2, cluster=2)


def values(shape, dtype, seed):
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind in "iu":
        bounds = np.iinfo(dtype)
        return rng.integers(bounds.min, bounds.max, shape, dtype, endpoint=True)
    return rng.standard_normal(shape).astype(dtype)


def factors(m, n, k, dtype=BF16, layout="TN", batch=(), b_dtype=None):
    """Return a and b, as views of the memory that BLAS's `layout` says."""
    a = values((*batch, m, k) if layout[0] == "T" else (*batch, k, m), dtype, 1)
    b = values((*batch, n, k) if layout[1] == "N" else (*batch, k, n), b_dtype or dtype, 2)
    a = a if layout[0] == "T" else a.swapaxes(-1, -2)
    return a, b.swapaxes(-1, -2) if layout[1] == "N" else b


def exact(a, b):
    return a.astype(np.float64) @ b.astype(np.float64)


def assert_close(got, expected, what=""):
    """Hold the result to one rounding, of sums that have a few bits less than float64."""
    error = np.abs(got.astype(np.float64) - expected)
    last = float(ml_dtypes.finfo(got.dtype).eps)
    slack = 1e-5 * np.abs(expected).max()
    assert (error <= 0.51 * last * np.abs(expected) + slack).all(), (what, error.max())


def check(a, b, expected=None, out=None, config=ONE, **options):
    expected = exact(a, b) if expected is None else expected
    got = matmul(a, b, out, config=config, **options)
    assert got.shape == expected.shape and (out is None or got is out)
    assert_close(got, expected)
    return got


@pytest.mark.parametrize(
    ("shape", "config"),
    quick(
        [((100, 72, 136), TWO), ((33, 35, 37), ONE)],
        [((64, 64, 128), ONE), ((100, 72, 136), TWO), ((33, 35, 37), ONE), ((200, 136, 72), PAIRS)],
    ),
)
def test_shapes(shape, config):
    check(*factors(*shape), config=config)


@pytest.mark.parametrize("layout", quick(["NT"], ["TT", "NN", "NT"]))
def test_layouts(layout):
    check(*factors(70, 66, 75, layout=layout))


@pytest.mark.parametrize("layout", quick(["TT"], ["TT", "NN"]))
def test_pairs_share_b_however_it_lies(layout):
    check(*factors(100, 136, 72, layout=layout), config=Config(64, 128, stages=2, cluster=2))
    check(*factors(100, 90, 72, layout=layout), config=Config(64, 96, stages=2, cluster=2))


@pytest.mark.parametrize("layout", quick(["TN", "NT"], ["TN", "NT", "NN", "TT"]))
def test_blocks_side_by_side_share_a_however_it_lies(layout):
    check(*factors(40, 100, 72, layout=layout), config=Config(64, 32, stages=2, across=2))


@pytest.mark.parametrize("layout", quick(["NN"], ["TN", "NT", "NN", "TT"]))
def test_a_cluster_shares_both_operands(layout):
    """Its last tiles are outside of the matrix."""
    config = Config(64, 32, stages=2, cluster=2, across=2)
    check(*factors(150, 30, 72, layout=layout), config=config)


@pytest.mark.slow
def test_three_warpgroups_have_64_rows_each():
    check(*factors(200, 200, 72), config=Config(192, 192, out_stages=1))


TYPES = [
    ((np.float16, np.float16), np.float16),
    ((BF16, BF16), np.float32),
    ((E4M3, E5M2), BF16),
    ((E5M2, E5M2), np.float32),
    ((np.uint8, np.int8), np.int32),
    ((np.int8, np.int8), np.float32),
]


@pytest.mark.parametrize(("kinds", "out"), quick(TYPES[2:6:2], TYPES))
def test_types(kinds, out):
    for layout in ("TN", "NT"):
        a, b = factors(64, 64, 160, kinds[0], layout, b_dtype=kinds[1])
        got = matmul(a, b, config=ONE, out_dtype=out)
        assert got.dtype == out
        if out == np.int32:
            np.testing.assert_array_equal(got, exact(a, b))
        else:
            assert_close(got, exact(a, b), layout)


def test_float32_is_rounded_to_tf32():
    a, b = factors(64, 64, 70, np.float32)
    near = [(x.view(np.uint32) + 0x1000 & 0xFFFFE000).view(np.float32) for x in (a, b.T)]
    got = check(a, b, exact(near[0], near[1].T))
    assert got.dtype == np.float32


def test_usual_types_of_results():
    for dtype, usual in ((BF16, BF16), (np.float16, np.float16), (E4M3, BF16), (np.int8, np.int32)):
        assert matmul(*factors(0, 8, 32, dtype), config=ONE).dtype == usual  # no launch


def gelu(x):
    from math import erf

    return 0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2)))


ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": gelu,
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("out", quick([BF16], [BF16, np.float32]))
def test_activations(name, out):
    a, b = factors(64, 64, 64)
    expected = ACTIVATIONS[name](0.25 * exact(a, b))
    got = matmul(a, b, config=ONE, alpha=0.25, activation=name, out_dtype=out)
    last = 2.0**-8 if out is BF16 else 1e-4
    np.testing.assert_allclose(got.astype(np.float64), expected, last, 1e-4)


def check_everything_at_once(m, n, k, config):
    """Check a product with all that may follow it."""
    a, b = factors(m, n, k)
    bias, out, residual = (values(s, BF16, 3 + i) for i, s in enumerate((n, (m, n), (m, n))))
    rows, columns = values(m, np.float32, 6), values(n, np.float32, 7)
    wide = [x.astype(np.float64) for x in (bias, out, residual)]
    scaled = 0.5 * rows[:, None] * columns * exact(a, b)
    expected = np.maximum(scaled - 2 * wide[1] + wide[0], 0) + wide[2]
    terms = {"bias": bias, "residual": residual, "row_scale": rows, "column_scale": columns}
    check(a, b, expected, out, config, alpha=0.5, beta=-2, activation="relu", **terms)


@pytest.mark.parametrize(
    ("n", "config"), [(72, TWO), pytest.param(71, ONE, marks=pytest.mark.slow)]
)
def test_everything_at_once(n, config):
    check_everything_at_once(100, n, 72, config)


def test_a_residual_in_place():
    a, b = factors(64, 64, 64)
    out = values((64, 64), BF16, 3)
    check(a, b, exact(a, b) + out.astype(np.float64), out, residual=out)


def test_batches():
    a, b = factors(40, 64, 72, batch=(2,))
    check(a, b)
    check(a, b[1])  # all rows of a are one matrix
    check(a[1], b)


@pytest.mark.slow
def test_larger_batches():
    a, b = factors(40, 64, 72, batch=(3,))
    check(a, b)
    check(a, b[1])
    check(a[1], b)
    check(a[:, :39], b[0], exact(a[:, :39], b[0]))  # rows of several matrices with gaps
    check(a[1:2], b)


@pytest.mark.slow
def test_batches_of_scaled_rows():
    a, b = factors(40, 64, 72, batch=(3,))
    rows = values((3, 40), np.float32, 3)
    for right in (b, b[0]):
        check(a, right, rows[..., None] * exact(a, right), row_scale=rows)


def test_nothing_to_add_up():
    out = values((64, 64), BF16, 3)
    a, b = np.empty((64, 0), BF16), np.empty((0, 64), BF16)
    check(a, b, out.astype(np.float64), out.copy(), beta=1)
    check(a, b, np.zeros((64, 64)))
    assert matmul(np.empty((0, 8), BF16), np.empty((8, 5), BF16)).shape == (0, 5)


def test_views():
    memory = values((80, 90), BF16, 1)
    a, b = memory[3:67, 5:77], values((72, 130), BF16, 2)[:, 1:65]
    target = np.full((70, 80), 7, BF16)
    check(a, b, out=target[2:66, 3:67])
    outside = np.ones(target.shape, bool)
    outside[2:66, 3:67] = False
    assert (target[outside] == 7).all()


@pytest.mark.parametrize("out", quick([np.float32], [BF16, np.float32]))
@pytest.mark.parametrize("out_bytes", quick([32], [32, 128]))
def test_rows_that_tma_cannot_store(out, out_bytes):
    """Threads copy epilogue tiles, which may be narrower than a warp, and nothing beside them."""
    a, b = factors(67, 41, 72)
    memory = np.full((70, 47), 7, out)
    config = Config(64, 64, stages=2, out_bytes=out_bytes)
    check(a, b, out=memory[2:69, 3:44], config=config)
    memory[2:69, 3:44] = 7
    assert (memory == 7).all()


def test_rows_of_integers_that_tma_cannot_store():
    a, b = factors(5, 35, 128, np.int8)
    got = matmul(a, b, config=ONE)
    assert got.dtype == np.int32 and (got < 0).any()
    np.testing.assert_array_equal(got, exact(a, b))


def test_bits_of_another_type():
    a, b = factors(64, 64, 64)
    got = matmul(a.view(np.uint16), b.T.view(np.uint16).T, config=ONE, dtype="bf16")
    assert_close(got.view(BF16), exact(a, b))


@pytest.mark.slow
@pytest.mark.parametrize("splits", [2, 3, 5])
def test_parts_of_k(splits):
    check(*factors(40, 70, 200), config=Config(64, 64, stages=2, splits=splits))


@pytest.mark.parametrize("splits", quick([3], [2, 3, 5]))
def test_parts_of_k_with_everything(splits):
    config = Config(64, 64, stages=2, splits=splits)
    a, b = factors(40, 70, 200)
    bias, out, residual = values(70, BF16, 3), values((40, 70), BF16, 4), values((40, 70), BF16, 5)
    rows = values(40, np.float32, 6)
    expected = np.maximum(
        rows[:, None] * exact(a, b) + 0.5 * out.astype(float) + bias.astype(float), 0
    )
    terms = {"bias": bias, "row_scale": rows, "beta": 0.5, "activation": "relu"}
    expected = expected + residual.astype(float)
    check(a, b, expected, out, config, residual=residual, **terms)


@pytest.mark.slow
def test_parts_of_k_in_a_batch():
    a, b = factors(40, 70, 136, batch=(2,))
    check(a, b, config=Config(64, 64, stages=2, splits=2))
