"""Matmul against float64: shapes, layouts, types, epilogues, views, and the bits again and again.

Sums of K products in float32 are within K EPS32 of the sum of their magnitudes; the tensor cores
add with a few bits less, so that twice that is allowed.
"""

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

from numba_tma.kernels._matmul_plan import Config
from numba_tma.kernels.matmul import matmul
from tests.gpu.test_kernels import EPS32, assert_close
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
@pytest.mark.parametrize("config", ["64 x 64", "128 x 256, pairs", "128 x 192, pairs"])
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


@on_gpu(limit=LIMIT)
def test_a_bias_and_alpha():
    a, b = factors(300, 264, 136, ("bf16", "bf16"))
    expected, size = exact(a, b)
    for kind in ("f32", "bf16", "f16"):
        bias = values((264,), kind, 3)
        out = Device(np.full((300, 264), 7, TYPES["f32"]))
        matmul(Device(a), Device(b), out, bias=Device(bias), alpha=0.375)
        np.testing.assert_allclose(
            out.get(), 0.375 * expected + bias.astype(float), 1e-5, 300 * EPS32 * size.max()
        )


@on_gpu(limit=LIMIT)
def test_the_same_bits_again():
    """A stage that is refilled too early changes few elements, and seldom."""
    a, b = map(Device, factors(4096, 4096, 4096, ("bf16", "bf16")))
    for config in (Config(), Config(cluster=2), Config(128, 128, cluster=2)):
        out = Device(np.full((4096, 4096), 7, TYPES["bf16"]))
        first = matmul(a, b, out, config=config).get().view(np.uint16).copy()
        for _ in range(30):
            again = matmul(a, b, out, config=config)
        np.testing.assert_array_equal(again.get().view(np.uint16), first)
