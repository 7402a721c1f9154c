"""Block-scaled matmul on a GPU: exact values where it has a kernel, the error elsewhere."""

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma.host.scale_factors import FORMATS
from numba_tma.kernels._host.device import has_tcgen05
from numba_tma.kernels.matmul import Tcgen05Config, matmul
from tests.gpu.kernels.test_matmul import LIMIT, Device
from tests.gpu.worker import on_gpu

CONFIGS = [Tcgen05Config(n, cta_group=group) for group in (1, 2) for n in (64, 128, 192, 256)]


def operand(format, rows, k, seed):
    """Return what `matmul` takes, atoms of scales, and values: integers and powers of two."""
    kind, rng = FORMATS[format], np.random.default_rng(seed)
    values = rng.integers(-2, 3, (rows, k)).astype(kind.element.numpy)
    scales = np.exp2(rng.integers(-2, 3, (rows, k // kind.block))).astype(kind.scale.numpy)
    wide = values.astype(np.float64) * scales.astype(np.float64).repeat(kind.block, 1)
    given = tma.pack(values) if kind.element.is_packed else values
    return given, tma.to_blocked(scales), wide


def multiply(format, m, n, k, config=None):
    """Multiply two operands of a format on the GPU; return the result and the exact one."""
    a, a_scales, left = operand(format, m, k, 1)
    b, b_scales, right = operand(format, n, k, 2)
    element = FORMATS[format].element
    out = Device(np.full((m, n), 7, np.float32))
    held = [Device(x) for x in (a, b.T, a_scales, b_scales)]
    matmul(
        *held[:2], out, a_scales=held[2], b_scales=held[3], config=config,
        dtype=element.name if element.is_packed else None,
    )  # fmt: skip
    return out.get(), left @ right.T


@on_gpu
def gpu_has_kernels():
    return has_tcgen05()


def test_a_gpu_without_kernels_is_named():
    if gpu_has_kernels():
        pytest.skip("this GPU has block-scaled kernels")
    name_the_gpu()


@on_gpu(limit=LIMIT)
def name_the_gpu():
    device = cuda.get_current_device()
    cc = ".".join(map(str, device.compute_capability))
    for format in FORMATS:
        with pytest.raises(ValueError, match=rf"{device.name} has compute capability {cc}, and"):
            multiply(format, 128, 128, 256)


@pytest.mark.parametrize("format", FORMATS)
def test_integers_and_powers_of_two_are_exact(format):
    if not gpu_has_kernels():
        pytest.skip("this GPU has no block-scaled kernels")
    check_exact(format)


@on_gpu(limit=LIMIT)
def check_exact(format):
    for config in CONFIGS:
        for shape in ((1, 1, 128), (257, 390, 1152), (1000, 1000, 4096)):
            got, expected = multiply(format, *shape, config)
            np.testing.assert_array_equal(got, expected, f"{config} {shape}")


@on_gpu(limit=LIMIT)
def test_arrays_of_ml_dtypes_say_their_types():
    """Kernels or not, the arrays are read and checked first."""
    a, b = (Device(np.zeros((128, 128), ml_dtypes.float8_e4m3fn)) for _ in "ab")
    scales = [Device(np.zeros(512, ml_dtypes.float8_e4m3fn)) for _ in "ab"]
    out = Device(np.zeros((128, 128), np.float32))
    with pytest.raises(ValueError, match="a_scales of ue4m3"):
        matmul(a, b, out, a_scales=scales[0], b_scales=scales[1])
