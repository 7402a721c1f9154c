"""Matmul against float64: shapes, layouts, types, epilogues, views, and the same bits again.

Sums of K products in float32 are within K EPS32 of the sum of their magnitudes. The tensor cores
add with a few bits less, so the bound is twice as large.
"""

import json
import math
import os
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

from numba_tma.kernels.matmul.dense import matmul
from numba_tma.kernels.matmul.plan import Config
from tests.gpu.kernels.test_kernels import EPS32, assert_close, ulp
from tests.gpu.worker import on_gpu

TYPES = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "f32": np.float32,
    "i32": np.int32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "i8": np.int8,
    "u8": np.uint8,
}
SMALL = Config(64, 64, stages=3)
CONFIGS = {
    "64 x 64": SMALL,
    "128 x 64": Config(128, 64),
    "128 x 256": Config(),
    "128 x 256, pairs": Config(cluster=2),
    "128 x 192, pairs": Config(128, 192, cluster=2),
    "64 x 256, fours": Config(64, 256, cluster=4),
    "64 x 32, long stages": Config(64, 32, k=256),
    "64 x 64, longer stages": Config(64, 64, k=512),
    "192 x 192": Config(192, 192, out_stages=1),
    "192 x 128, pairs": Config(192, 128, cluster=2),
    "64 x 64, fours side by side": Config(64, 64, across=4),
    "64 x 64, 2 x 2": Config(64, 64, cluster=2, across=2),
    "128 x 64, 2 x 4": Config(128, 64, cluster=2, across=4),
}
LIMIT = 120  # seconds: kernels are compiled


class Device:
    """A device array of any type and strides, which numba's own arrays cannot say."""

    def __init__(self, array):
        """Take over a NumPy view as it lies in the memory that it is a view of."""
        base = array
        while isinstance(base.base, np.ndarray):
            base = base.base
        self.memory = cuda.to_device(np.ascontiguousarray(base).view(f"u{base.itemsize}"))
        start = array.ctypes.data - base.ctypes.data
        self.dtype, self.shape, self.host = array.dtype, array.shape, array
        self.start, self.strides = start, array.strides
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "strides": array.strides,
            "typestr": f"<V{array.itemsize}" if array.dtype.kind == "V" else array.dtype.str,
            "data": (self.memory.device_ctypes_pointer.value + start, False),
            "version": 3,
        }

    def get(self):
        """Return what is there now."""
        flat = self.memory.copy_to_host().reshape(-1).view(np.uint8)[self.start :]
        return np.lib.stride_tricks.as_strided(
            flat[: flat.size // self.dtype.itemsize * self.dtype.itemsize].view(self.dtype),
            *(self.shape, self.strides),
        )


def values(shape, name, seed):
    """Return random values of a type."""
    rng = np.random.default_rng(seed)
    if name in ("i8", "u8"):
        bounds = np.iinfo(TYPES[name])
        return rng.integers(bounds.min, bounds.max, shape, TYPES[name], endpoint=True)
    return rng.standard_normal(shape).astype(TYPES[name])


def factors(m, n, k, kinds, layout="TN", batch=(), b_batch=None):
    """Return a and b on the host, as views of the memory that `layout` says."""
    b_batch = batch if b_batch is None else b_batch
    a = values((*batch, m, k) if layout[0] == "T" else (*batch, k, m), kinds[0], 1)
    b = values((*b_batch, n, k) if layout[1] == "N" else (*b_batch, k, n), kinds[1], 2)
    return a if layout[0] == "T" else a.swapaxes(-1, -2), b.swapaxes(-1, -2) if layout[
        1
    ] == "N" else b


def exact(a, b):
    """Return a @ b and the sums of magnitudes, in float64; of f32 as the copies round it."""
    x, y = (rounded(v).astype(np.float64) for v in (a, b))
    return x @ y, np.abs(x) @ np.abs(y)


def rounded(v):
    if v.dtype != np.float32:
        return v
    bits = np.ascontiguousarray(v).view(np.uint32)
    return (
        (bits + np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1))) & np.uint32(0xFFFFE000)
    ).view("f4")


def check(a, b, out="bf16", config=None, what="", **options):
    """Multiply and compare; return what was computed."""
    expected, size = exact(a, b)
    target = Device(np.full(expected.shape, 7, TYPES[out]))
    assert matmul(Device(a), Device(b), target, config=config, **options) is target
    got, name = target.get(), f"{what} {a.shape} @ {b.shape}"
    if out == "i32":
        np.testing.assert_array_equal(got, expected.astype(np.int32), name)
    else:
        slack = 2 * a.shape[-1] * EPS32 * size + 1e-30
        assert_close(got, expected, np.dtype(TYPES[out]), slack, 0.5, name)
    return got


SHAPES = [
    *((1, 1, 1), (1, 8, 16), (64, 64, 64), (128, 256, 64), (129, 257, 65), (100, 72, 8)),
    *((256, 512, 192), (1000, 1000, 1000), (1024, 768, 4096), (17, 4096, 512), (4096, 17, 512)),
    *((255, 520, 1032), (300, 200, 7), (640, 1288, 2048)),
]


@pytest.mark.parametrize("shape", SHAPES)
@on_gpu(limit=LIMIT)
def test_shapes(shape):
    for config in (SMALL, Config(), Config(cluster=2)):
        check(*factors(*shape, ("bf16", "bf16")), config=config)


@pytest.mark.parametrize("name", CONFIGS)
@on_gpu(limit=LIMIT)
def test_configurations(name):
    for shape in ((1, 1, 1), (129, 257, 65), (1000, 1000, 1000), (2049, 1288, 520)):
        check(*factors(*shape, ("f16", "f16")), out="f16", config=CONFIGS[name], what=name)


@pytest.mark.parametrize("layout", ["TN", "TT", "NN", "NT"])
@pytest.mark.parametrize(
    "config", ["64 x 64", "128 x 256, pairs", "128 x 192, pairs", "64 x 32, long stages"]
)
@on_gpu(limit=LIMIT)
def test_layouts(config, layout):
    for shape in ((128, 256, 64), (136, 264, 200), (131, 261, 77), (1, 7, 9), (1000, 1000, 1000)):
        arrays = factors(*shape, ("bf16", "bf16"), layout)
        check(*arrays, config=CONFIGS[config], what=layout)


KINDS = [
    *(("bf16", "bf16", out) for out in ("bf16", "f32", "f16")),
    *(("f16", "f16", out) for out in ("f16", "f32")),
    *(("f32", "f32", out) for out in ("f32", "bf16")),
    *((x, y, "bf16") for x in ("e4m3", "e5m2") for y in ("e4m3", "e5m2")),
    *(("e4m3", "e4m3", "f32"), ("e4m3", "e4m3", "f16")),
    *((x, y, "i32") for x in ("i8", "u8") for y in ("i8", "u8")),
    ("i8", "i8", "f32"),
]


@pytest.mark.parametrize("kinds", KINDS)
@on_gpu(limit=LIMIT)
def test_types(kinds):
    for layout in ("TN", "NT"):
        for shape in ((128, 256, 128), (200, 136, 304), (77, 131, 261)):
            options = {"out_dtype": kinds[2]}
            arrays = factors(*shape, kinds, layout)
            if "e" in kinds[0]:  # the tensor cores keep 13 bits of such sums
                expected, size = exact(*arrays)
                target = Device(np.full(expected.shape, 7, TYPES[kinds[2]]))
                matmul(*map(Device, arrays), target, config=SMALL, **options)
                error = np.abs(target.get().astype(float) - expected)
                assert (error <= 2.0**-8 * np.abs(expected) + 2.0**-10 * size).all(), (kinds, shape)
            else:
                check(*arrays, out=kinds[2], config=SMALL, what=str(kinds), **options)


def gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


ACTIVATIONS = {
    None: lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": gelu,
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


@pytest.mark.parametrize("out", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("name", ACTIVATIONS)
@on_gpu(limit=LIMIT)
def test_what_follows(name, out):
    """All steps at once, where TMA stores and where threads do, and in parts of K."""
    for (m, n, k), config in (
        ((300, 264, 136), Config(cluster=2)),
        ((129, 263, 72), SMALL),
        ((70, 264, 1000), Config(64, 64, splits=3)),
        ((1, 77, 512), Config(64, 32)),
    ):
        a, b = factors(m, n, k, (out if out != "f32" else "bf16",) * 2)
        expected, size = exact(a, b)
        bias, old, added = (values(s, out, 3 + i) for i, s in enumerate((n, (m, n), (m, n))))
        rows, columns = values(m, "f32", 6), values(n, "f32", 7)
        wide = [x.astype(np.float64) for x in (bias, old, added, rows, columns)]
        scale = 0.375 * wide[3][:, None] * wide[4]
        before = scale * expected - 0.5 * wide[1] + wide[0]
        expected = ACTIVATIONS[name](before) + wide[2]
        # No activation is steeper than 1.13, and the fast ones are a quarter of an ulp wrong.
        slack = (
            1.2 * (2 * k + 8) * EPS32 * (np.abs(scale) * size + np.abs(wide[1]) + np.abs(wide[0]))
        )
        slack = slack + (2e-6 + 0.3 * (name == "gelu") * ulp(before, np.dtype(TYPES[out]))) + 1e-6
        target, given = Device(old.copy()), {"alpha": 0.375, "beta": -0.5, "activation": name}
        terms = {"bias": bias, "residual": added, "row_scale": rows, "column_scale": columns}
        given |= {key: Device(value) for key, value in terms.items()}
        matmul(Device(a), Device(b), target, config=config, **given)
        assert_close(target.get(), expected, np.dtype(TYPES[out]), slack, 0.5, f"{name} {m} x {n}")


@pytest.mark.parametrize("kind", ["f32", "bf16", "f16"])
@on_gpu(limit=LIMIT)
def test_a_bias_of_any_type(kind):
    a, b = factors(300, 264, 136, ("bf16", "bf16"))
    expected, size = exact(a, b)
    bias, out = values((264,), kind, 3), Device(np.full((300, 264), 7, np.float32))
    matmul(Device(a), Device(b), out, bias=Device(bias), alpha=0.375)
    expected = 0.375 * expected + bias.astype(float)
    np.testing.assert_allclose(out.get(), expected, 1e-5, 300 * EPS32 * size.max())


@on_gpu(limit=LIMIT)
def test_a_residual_in_place_again_and_again():
    a, b = factors(1000, 1032, 64, ("bf16", "bf16"))
    expected, out = exact(a, b)[0], Device(np.zeros((1000, 1032), np.float32))
    device = [Device(x) for x in (a, b)]
    for _ in range(5):
        matmul(*device, out, residual=out, config=Config(cluster=2))
    np.testing.assert_allclose(out.get(), 5 * expected, 1e-5, 1e-3)
    for _ in range(5):
        matmul(*device, out, beta=1, alpha=-1)
    np.testing.assert_allclose(out.get(), 0, 0, 2e-3)


@on_gpu(limit=LIMIT)
def test_batches():
    for shape in ((3, 100, 72), (2, 128, 256), (5, 1, 64)):
        batch, m, n = shape
        a, b = factors(m, n, 136, ("bf16", "bf16"), batch=(batch,))
        for left, right in ((a, b), (a, b[0]), (a[0], b), (a[:, ::2], b[1:2])):
            for config in (None, SMALL, Config(cluster=2)):
                check(left, right, config=config)
        a, b = factors(m, n, 136, ("bf16", "bf16"), "NT", (2, batch))
        check(a, b)
        rows = values((batch, m), "f32", 3)
        a, b = factors(m, n, 136, ("bf16", "bf16"), batch=(batch,))
        for right in (b, b[0]):
            out = Device(np.zeros((batch, m, n), np.float32))
            matmul(Device(a), Device(right), out, row_scale=Device(rows))
            expected = rows[..., None] * exact(a, right)[0]
            np.testing.assert_allclose(out.get(), expected, 1e-4, 1e-3)


@on_gpu(limit=LIMIT)
def test_views_leave_what_is_around_them():
    memory = values((300, 400), "bf16", 1)
    for start, width in ((0, 128), (8, 128), (3, 128), (8, 77)):
        a, b = memory[5:205, start : start + width], values((width, 140), "bf16", 2)[:, 1:131]
        for columns in (slice(8, 138), slice(3, 133)):
            for kind in ("bf16", "f32"):
                whole = np.full((220, 144), 7, TYPES[kind])
                target = Device(whole[10:210, columns])
                expected, size = exact(a, b)
                matmul(Device(a), Device(b), target)
                slack = 2 * width * EPS32 * size
                what = f"{start} {width} {columns} {kind}"
                assert_close(target.get(), expected, whole.dtype, slack, 0.5, what)
                around = target.memory.copy_to_host().view(whole.dtype)
                around[10:210, columns] = 7
                assert (around == 7).all(), what


@on_gpu(limit=LIMIT)
def test_arrays_that_are_expanded():
    """Steps of 0 B: of a whole matrix, of its rows, and of a batch."""
    a, b = factors(70, 136, 200, ("bf16", "bf16"))
    row, one = np.broadcast_to(a[:1], a.shape), np.broadcast_to(a[:1, :1], a.shape)
    check(row, b)
    check(np.ascontiguousarray(one), b)
    check(np.broadcast_to(a, (3, *a.shape)), factors(70, 136, 200, ("bf16",) * 2, batch=(3,))[1])
    check(np.broadcast_to(a, (3, *a.shape)), b)


@on_gpu(limit=LIMIT)
def test_parts_of_k():
    for splits in (2, 3, 7, 16):
        for shape in ((64, 64, 4096), (70, 131, 1000), (16, 1024, 2048), (1, 1, 64)):
            check(*factors(*shape, ("bf16", "bf16")), config=Config(64, 64, splits=splits))
    a, b = factors(3, 72, 2048, ("f16", "f16"), batch=(4,))
    check(a, b, out="f16", config=Config(64, 32, splits=4))


@on_gpu(limit=LIMIT)
def test_what_is_chosen():
    """Few rows, few columns, few of both with a long K, and whatever else is chosen by itself."""
    for shape in (
        *((1, 4096, 4096), (16, 1024, 8192), (64, 512, 16384), (4096, 16, 1024), (128, 128, 8192)),
        *((1, 1, 100_000), (2048, 2048, 256), (777, 1234, 345)),
    ):
        check(*factors(*shape, ("bf16", "bf16")))


@on_gpu(limit=LIMIT)
def test_nothing_to_add_up():
    old = values((100, 72), "bf16", 1)
    a, b = Device(np.empty((100, 8), TYPES["bf16"])[:, :0]), np.empty((8, 72), TYPES["bf16"])[:0]
    out = Device(old.copy())
    matmul(a, Device(b), out, beta=1)
    np.testing.assert_array_equal(out.get(), old)
    matmul(a, Device(b), out)
    assert (out.get() == 0).all()


@on_gpu(limit=LIMIT)
def test_arrays_of_numba():
    a, b = (np.random.default_rng(0).standard_normal((64, 64)).astype("f2") for _ in range(2))
    expected = a.astype(float) @ b.astype(float)
    got = matmul(cuda.to_device(a), cuda.to_device(b))
    np.testing.assert_allclose(got.copy_to_host().astype(float), expected, 2e-3, 1e-2)
    a, b = (x.astype(TYPES["bf16"]) for x in (a, b))
    bits = [cuda.to_device(x.view(np.uint16)) for x in (a, b)]
    got = matmul(*bits, dtype="bf16").copy_to_host().view(a.dtype)
    np.testing.assert_allclose(got.astype(float), expected, 2e-2, 5e-2)


@on_gpu(limit=LIMIT)
def test_infinities_and_nan_stay_in_their_rows():
    a, b = factors(130, 72, 80, ("bf16", "bf16"))
    a[3, 5], a[64, 79], a[129, 0] = np.inf, np.nan, -np.inf
    got = Device(np.zeros((130, 72), np.float32))
    matmul(Device(a), Device(b), got)
    bad = ~np.isfinite(got.get()).all(axis=1)
    assert set(np.flatnonzero(bad)) == {3, 64, 129}


@on_gpu(limit=600)
def test_tuning():
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NUMBA_TMA_CACHE"] = folder
        a, b = factors(64, 320, 2048, ("bf16", "bf16"))
        check(a, b, tune=True)
        out = Device(np.ones((64, 320), np.float32))
        matmul(Device(a), Device(b), out, beta=2, tune=True)  # measured, and out is as before
        np.testing.assert_allclose(out.get(), exact(a, b)[0] + 2, 1e-4, 1e-3)
        assert len(json.loads(Path(folder, "matmul.json").read_text())) == 2


@on_gpu(limit=LIMIT)
def test_the_same_bits_again():
    """A stage that is refilled too early changes few elements, and seldom."""
    a, b = map(Device, factors(4096, 4096, 4096, ("bf16", "bf16")))
    residual = Device(values((4096, 4096), "bf16", 3))
    for config in (Config(), Config(cluster=2), Config(128, 128, 2), Config(64, 64, splits=2)):
        for options in ({}, {"residual": residual}):
            out = Device(np.full((4096, 4096), 7, TYPES["bf16"]))
            first = matmul(a, b, out, config=config, **options).get().view(np.uint16).copy()
            for _ in range(20):
                again = matmul(a, b, out, config=config, **options)
            np.testing.assert_array_equal(again.get().view(np.uint16), first)
