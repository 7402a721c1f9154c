"""Matmul of operands that TMA cannot address, against float64, and the same bits again."""

import numpy as np
import pytest

from numba_tma.kernels.matmul.dense import matmul
from numba_tma.kernels.matmul.plan import UnalignedConfig
from tests.gpu.kernels.test_kernels import EPS32, assert_close
from tests.gpu.kernels.test_matmul import LIMIT, TYPES, Device, check, exact, factors, values
from tests.gpu.worker import on_gpu

CONFIGS = {
    "few columns": UnalignedConfig("a", 24),
    "few rows": UnalignedConfig("b", 8, 4, k=256),
    "wide": UnalignedConfig("a", 128, 2),
    "eight": UnalignedConfig("b", 32, 8),
    "three": UnalignedConfig("a", 48, 3),
    "two stages": UnalignedConfig("b", 64, 1, stages=2),
}
SHAPES = (
    *((1, 1, 1), (1, 7, 13), (1, 6145, 4097), (5, 1000, 1003), (8, 131, 65), (2000, 19, 521)),
    *((17, 512, 2048), (33, 263, 7), (64, 9001, 261), (131, 201, 333), (300, 77, 0)),
)
LAYOUTS = ("TN", "TT", "NN", "NT")


def placed(array, phase, gap):
    """Return the same matrix `phase` elements behind a multiple of 16 B, with a gap between rows.

    All around it lies NaN. It is contiguous along the axis along which `array` is.
    """
    turned = array.strides[-1] != array.itemsize
    rows = array.T if turned else array
    pitch = rows.shape[1] + gap
    memory = np.full(phase + rows.shape[0] * pitch + 16, np.nan, array.dtype)
    found = memory[phase:][: rows.shape[0] * pitch].reshape(-1, pitch)[:, : rows.shape[1]]
    found[...] = rows
    return found.T if turned else found


@pytest.mark.parametrize("name", CONFIGS)
@on_gpu(limit=LIMIT)
def test_configurations(name):
    for shape in SHAPES:
        for layout in LAYOUTS:
            arrays = factors(*shape, ("f16", "f16"), layout)
            check(*arrays, out="f16", config=CONFIGS[name], what=layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@on_gpu(limit=LIMIT)
def test_every_phase_of_both_operands(layout):
    a, b = factors(70, 45, 203, ("bf16", "bf16"), layout)
    for phase in range(8):
        for gap in (0, 1, 3):
            given = placed(a, phase, gap), placed(b, (3 * phase + 5) % 8, gap)
            for name in ("few columns", "eight"):
                check(*given, out="f32", config=CONFIGS[name], what=f"{name} {phase} {gap}")


@on_gpu(limit=LIMIT)
def test_what_is_chosen():
    for m, n, k in ((1, 10377, 1161), (1848, 19, 6839), (283, 2699, 203), (145, 88, 107)):
        for layout in LAYOUTS:
            check(*factors(m, n, k, ("bf16", "bf16"), layout), what=layout)


@on_gpu(limit=LIMIT)
def test_batches():
    for batch, m, n in ((3, 10, 71), (5, 1, 203)):
        a, b = factors(m, n, 137, ("bf16", "bf16"), batch=(batch,))
        for left, right in ((a, b), (a, b[0]), (a[0], b), (a[:, ::2], b[1:2])):
            for config in CONFIGS.values():
                check(left, right, config=config)


@on_gpu(limit=LIMIT)
def test_what_follows():
    m, n, k = 69, 131, 333
    a, b = factors(m, n, k, ("bf16", "bf16"))
    expected, size = exact(a, b)
    bias, old, added = (values(s, "bf16", 3 + i) for i, s in enumerate((n, (m, n), (m, n))))
    wide = [x.astype(np.float64) for x in (bias, old, added)]
    expected = np.maximum(0.5 * expected - 2 * wide[1] + wide[0], 0) + wide[2]
    slack = 1.2 * (2 * k + 8) * EPS32 * (size + 2 * np.abs(wide[1]) + np.abs(wide[0])) + 3e-6
    for name, config in CONFIGS.items():
        target = Device(old.copy())
        given = {"alpha": 0.5, "beta": -2, "activation": "relu"}
        given |= {"bias": Device(bias), "residual": Device(added)}
        matmul(Device(a), Device(b), target, config=config, **given)
        assert_close(target.get(), expected, np.dtype(TYPES["bf16"]), slack, 0.5, name)


@on_gpu(limit=LIMIT)
def test_the_same_bits_again():
    """A stage that is refilled too early, or a part that comes late, changes few elements."""
    a, b = map(Device, factors(61, 20011, 2049, ("bf16", "bf16"), "NT"))
    for name, config in CONFIGS.items():
        out = Device(np.full((61, 20011), 7, TYPES["bf16"]))
        first = matmul(a, b, out, config=config).get().view(np.uint16).copy()
        for _ in range(10):
            again = matmul(a, b, out, config=config)
        np.testing.assert_array_equal(again.get().view(np.uint16), first, name)
