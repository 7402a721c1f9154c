"""The grouped matmul against float64: group sizes, types, tiles, and rows outside the groups."""

import numpy as np
import pytest

from numba_tma.kernels.matmul.grouped import grouped_matmul
from numba_tma.kernels.matmul.plan import Config
from tests.gpu.kernels.test_kernels import EPS32, assert_close
from tests.gpu.kernels.test_matmul import LIMIT, TYPES, Device, values
from tests.gpu.worker import on_gpu

CONFIGS = {
    "chosen": None,
    "64 x 64": Config(64, 64, stages=3),
    "128 x 128, pairs": Config(128, 128, cluster=2),
    "128 x 256": Config(),
    "64 x 256, fours": Config(64, 256, cluster=4),
    "64 x 32, long stages": Config(64, 32, k=256),
}
SIZES = {
    "one group": [300],
    "odd": [5, 66, 1, 129, 77],
    "none": [0, 0, 0],
    "some empty": [0, 130, 0, 0, 1, 0],
    "all in one": [0, 0, 1000, 0],
    "even": [128, 128, 128, 128],
    "many": [i * 7 % 33 for i in range(150)],
}


def check(sizes, n, k, kinds=("bf16", "bf16"), out="bf16", layout="N", by_ends=False, **options):
    """Multiply groups of these sizes; rows behind the last are left alone."""
    sizes = np.array(sizes)
    ends = np.cumsum(sizes)
    a = values((ends[-1] + 70, k), kinds[0], 1)
    b = values((len(sizes), n, k) if layout == "N" else (len(sizes), k, n), kinds[1], 2)
    b = b.swapaxes(1, 2) if layout == "N" else b
    target = Device(np.full((len(a), n), 7, TYPES[out]))
    rows = Device((ends if by_ends else sizes).astype(np.int32))
    scales, alpha = options.pop("scales", None), options.get("alpha", 1)
    given = {"offsets" if by_ends else "group_sizes": rows}
    if scales is not None:
        given["scales"] = Device(scales)
    assert grouped_matmul(Device(a), Device(b), out=target, **given, **options) is target
    got = target.get()
    assert (got[ends[-1] :] == 7).all()
    for g, (start, end) in enumerate(zip(ends - sizes, ends)):
        scale = alpha * (1 if scales is None else float(scales[g]))
        compare(got[start:end], a[start:end], b[g], scale, f"group {g} of {sizes}")


def compare(got, a, b, scale=1.0, what=""):
    """Hold the result of a group to float64; the tensor cores keep 13 bits of sums of fp8."""
    if not len(got):
        return
    x, y = a.astype(np.float64), b.astype(np.float64)
    expected, size = scale * (x @ y), abs(scale) * (np.abs(x) @ np.abs(y))
    slack = (2.0**-10 if a.itemsize == 1 else 2 * a.shape[1] * EPS32) * size + 1e-30
    assert_close(got, expected, got.dtype, slack, 0.5, what)


@pytest.mark.parametrize("by_ends", [False, True])
@pytest.mark.parametrize("name", SIZES)
@on_gpu(limit=LIMIT)
def test_sizes(name, by_ends):
    for config in CONFIGS.values():
        check(SIZES[name], 264, 136, by_ends=by_ends, config=config)
    check(SIZES[name], 1024, 512, by_ends=by_ends)


@pytest.mark.parametrize(
    "kinds", [("bf16", "bf16"), ("f16", "f16"), ("e4m3", "e4m3"), ("e4m3", "e5m2")]
)
@on_gpu(limit=LIMIT)
def test_types(kinds):
    outs = {"bf16": ("bf16", "f32", "f16"), "f16": ("f16", "f32"), "e4m3": ("bf16", "f32")}
    for out in outs[kinds[0]]:
        for layout in ("N", "T"):
            check(SIZES["odd"], 264, 208, kinds, out, layout)


@on_gpu(limit=LIMIT)
def test_scales():
    scales = np.array([0.5, 3, -2, 0.125, 7], np.float32)
    check(SIZES["odd"], 264, 136, scales=scales)
    check(SIZES["odd"], 264, 136, scales=scales, alpha=-0.25)
    check(SIZES["odd"], 264, 144, ("e4m3", "e4m3"), scales=scales)
    check(SIZES["odd"], 261, 136, alpha=3.0)


@on_gpu(limit=LIMIT)
def test_rows_that_tma_cannot_address():
    for n, k in ((261, 136), (264, 131), (1, 1)):
        check(SIZES["odd"], n, k)


@on_gpu(limit=LIMIT)
def test_each_group_in_its_place():
    sizes = np.array([200, 0, 77, 1, 128], np.int32)
    a = values((5, 200, 136), "bf16", 1)
    for n in (264, 261):
        b = values((5, 136, n), "bf16", 2)
        for config in CONFIGS.values():
            target = Device(np.full((5, 200, n), 7, TYPES["bf16"]))
            grouped_matmul(Device(a), Device(b), Device(sizes), target, config=config)
            got = target.get()
            for g, size in enumerate(sizes):
                compare(got[g, :size], a[g, :size], b[g], what=f"group {g}, {config}")
                assert (got[g, size:] == 7).all()


@on_gpu(limit=LIMIT)
def test_the_device_alone_knows_the_sizes():
    """The same call again with other numbers in the same array: nothing of the first is kept."""
    a, b = values((300, 136), "bf16", 1), values((3, 136, 264), "bf16", 2)
    arrays, rows = [Device(a), Device(b)], Device(np.zeros(3, np.int32))
    for sizes in ([100, 100, 100], [0, 300, 0], [1, 0, 299]):
        rows.memory.copy_to_device(np.array(sizes, np.int32).view(np.uint32))
        out = Device(np.full((300, 264), 7, TYPES["bf16"]))
        grouped_matmul(*arrays, rows, out)
        got, ends = out.get(), np.cumsum(sizes)
        for g, (start, end) in enumerate(zip(ends - sizes, ends)):
            compare(got[start:end], a[start:end], b[g], what=f"group {g} of {sizes}")


@on_gpu(limit=LIMIT)
def test_the_same_bits_again():
    """A stage that is refilled too early changes few elements, and seldom."""
    sizes = np.random.default_rng(1).multinomial(4096, np.ones(32) / 32).astype(np.int32)
    a = Device(values((4096, 2048), "bf16", 1))
    b = Device(values((32, 1024, 2048), "bf16", 2).swapaxes(1, 2))
    for config in CONFIGS.values():
        out = Device(np.full((4096, 1024), 7, TYPES["bf16"]))
        grouped_matmul(a, b, Device(sizes), out, config=config)
        first = out.get().view(np.uint16).copy()
        for _ in range(20):
            grouped_matmul(a, b, Device(sizes), out, config=config)
        np.testing.assert_array_equal(out.get().view(np.uint16), first)
