"""Matmul for few rows, with A and B swapped, against float64, and the same bits again."""

import numpy as np
import pytest

from numba_tma.kernels.matmul.dense import matmul
from numba_tma.kernels.matmul.plan import SwappedConfig
from tests.gpu.kernels.test_kernels import EPS32, assert_close
from tests.gpu.kernels.test_matmul import (
    ACTIVATIONS,
    LIMIT,
    TYPES,
    Device,
    check,
    exact,
    factors,
    values,
)
from tests.gpu.worker import on_gpu

ONE = SwappedConfig(64, 8)
CONFIGS = {
    "one block": ONE,
    "two": SwappedConfig(64, 16, 2, blocks=2),
    "four": SwappedConfig(64, 8, 4),
    "eight": SwappedConfig(64, 64, 8, stages=3),
    "three, of which two have a share": SwappedConfig(64, 16, 3),
    "five, each with a share": SwappedConfig(64, 40, 5, blocks=2),
    "six": SwappedConfig(128, 48, 6),
    "seven, of which six have a share": SwappedConfig(64, 48, 7, first="a"),
    "two warpgroups": SwappedConfig(128, 32),
    "two warpgroups, four blocks": SwappedConfig(128, 16, 4, k=128),
    "long stages": SwappedConfig(64, 16, k=512),
    "most rows": SwappedConfig(128, 128, 2, k=128),
    "few columns": SwappedConfig(64, 40, 2, first="a"),
    "two warpgroups, few columns": SwappedConfig(128, 32, blocks=2, k=128, first="a"),
}
SHAPES = (
    *((1, 1, 1), (1, 8, 16), (1, 6144, 4096), (5, 1000, 1003), (8, 131, 65), (16, 4096, 520)),
    *((17, 512, 2048), (33, 264, 7), (64, 9000, 264), (130, 200, 333)),
)


@pytest.mark.parametrize("name", CONFIGS)
@on_gpu(limit=LIMIT)
def test_configurations(name):
    for shape in SHAPES:
        check(*factors(*shape, ("bf16", "bf16")), config=CONFIGS[name], what=name)


@pytest.mark.parametrize("layout", ["TN", "TT", "NN", "NT"])
@pytest.mark.parametrize("name", ["four", "two warpgroups"])
@on_gpu(limit=LIMIT)
def test_layouts(name, layout):
    for shape in ((16, 264, 200), (3, 261, 77), (1, 7, 9), (48, 1000, 1000)):
        arrays = factors(*shape, ("f16", "f16"), layout)
        check(*arrays, out="f16", config=CONFIGS[name], what=layout)


@pytest.mark.parametrize("kinds", [("bf16", "f32"), ("f16", "bf16"), ("f32", "f32")])
@on_gpu(limit=LIMIT)
def test_types(kinds):
    for layout in ("TN", "NT"):
        for name in ("one block", "four"):
            arrays = factors(11, 300, 304, (kinds[0],) * 2, layout)
            check(*arrays, out=kinds[1], config=CONFIGS[name], out_dtype=kinds[1])


@on_gpu(limit=LIMIT)
def test_floats_of_8_bits():
    """Of whose sums the tensor cores keep 13 bits."""
    for kinds in (("e4m3", "e4m3"), ("e5m2", "e4m3")):
        a, b = factors(7, 300, 1000, kinds)
        expected, size = exact(a, b)
        for name in ("one block", "four"):
            out = Device(np.full(expected.shape, 7, TYPES["bf16"]))
            matmul(Device(a), Device(b), out, config=CONFIGS[name])
            error = np.abs(out.get().astype(float) - expected)
            assert (error <= 2.0**-8 * np.abs(expected) + 2.0**-10 * size).all(), (kinds, name)


@pytest.mark.parametrize("name", [None, "relu", "silu"])
@on_gpu(limit=LIMIT)
def test_what_follows(name):
    for (m, n, k), config in (((5, 264, 1000), "four"), ((70, 131, 72), "two warpgroups")):
        a, b = factors(m, n, k, ("bf16", "bf16"))
        expected, size = exact(a, b)
        bias, old, added = (values(s, "bf16", 3 + i) for i, s in enumerate((n, (m, n), (m, n))))
        rows, columns = values(m, "f32", 6), values(n, "f32", 7)
        wide = [x.astype(np.float64) for x in (bias, old, added, rows, columns)]
        scale = 0.375 * wide[3][:, None] * wide[4]
        before = scale * expected - 0.5 * wide[1] + wide[0]
        expected = ACTIVATIONS[name](before) + wide[2]
        slack = np.abs(scale) * size + np.abs(wide[1]) + np.abs(wide[0])
        slack = 1.2 * (2 * k + 8) * EPS32 * slack + 3e-6
        target, given = Device(old.copy()), {"alpha": 0.375, "beta": -0.5, "activation": name}
        terms = {"bias": bias, "residual": added, "row_scale": rows, "column_scale": columns}
        given |= {key: Device(value) for key, value in terms.items()}
        matmul(Device(a), Device(b), target, config=CONFIGS[config], **given)
        assert_close(target.get(), expected, np.dtype(TYPES["bf16"]), slack, 0.5, f"{m} x {n}")


@on_gpu(limit=LIMIT)
def test_a_residual_in_place_again_and_again():
    a, b = factors(9, 1032, 640, ("bf16", "bf16"))
    expected, out = exact(a, b)[0], Device(np.zeros((9, 1032), np.float32))
    device = [Device(x) for x in (a, b)]
    for _ in range(5):
        matmul(*device, out, residual=out, config=CONFIGS["four"])
    np.testing.assert_allclose(out.get(), 5 * expected, 1e-5, 1e-3)
    for _ in range(5):
        matmul(*device, out, beta=1, alpha=-1, config=CONFIGS["one block"])
    np.testing.assert_allclose(out.get(), 0, 0, 2e-3)


@on_gpu(limit=LIMIT)
def test_batches():
    for batch, m, n in ((3, 10, 72), (5, 1, 200)):
        a, b = factors(m, n, 136, ("bf16", "bf16"), batch=(batch,))
        for left, right in ((a, b), (a, b[0]), (a[0], b), (a[:, ::2], b[1:2])):
            for name in ("one block", "four", "two warpgroups"):
                check(left, right, config=CONFIGS[name])


@on_gpu(limit=LIMIT)
def test_views_leave_what_is_around_them():
    memory = values((30, 400), "bf16", 1)
    for columns in (slice(8, 138), slice(3, 133)):
        for name in ("one block", "four"):
            a, b = memory[5:14, 8:136], values((128, 140), "bf16", 2)[:, 1:131]
            whole = np.full((20, 144), 7, TYPES["bf16"])
            target = Device(whole[6:15, columns])
            expected, size = exact(a, b)
            matmul(Device(a), Device(b), target, config=CONFIGS[name])
            assert_close(target.get(), expected, whole.dtype, 256 * EPS32 * size, 0.5, name)
            around = target.memory.copy_to_host().view(whole.dtype)
            around[6:15, columns] = 7
            assert (around == 7).all(), (columns, name)


@on_gpu(limit=LIMIT)
def test_infinities_and_nan_stay_in_their_rows():
    a, b = factors(13, 72, 800, ("bf16", "bf16"))
    a[3, 5], a[7, 799], a[12, 0] = np.inf, np.nan, -np.inf
    for name in CONFIGS:
        got = Device(np.zeros((13, 72), np.float32))
        matmul(Device(a), Device(b), got, config=CONFIGS[name])
        bad = ~np.isfinite(got.get()).all(axis=1)
        assert set(np.flatnonzero(bad)) == {3, 7, 12}, name


@on_gpu(limit=LIMIT)
def test_the_same_bits_again():
    """A stage that is refilled too early, or a part that comes late, changes few elements."""
    a, b = map(Device, factors(16, 28672, 4096, ("bf16", "bf16")))
    for name in CONFIGS:
        out = Device(np.full((16, 28672), 7, TYPES["bf16"]))
        first = matmul(a, b, out, config=CONFIGS[name]).get().view(np.uint16).copy()
        for _ in range(20):
            again = matmul(a, b, out, config=CONFIGS[name])
        np.testing.assert_array_equal(again.get().view(np.uint16), first, name)
