"""The block-scaled matmul against float64: sizes, tiles, types, views, the same bits again.

The tensor cores keep about 13 bits of the sums of a block of K; the bound allows for this.
"""

import numpy as np
import pytest

from numba_tma.kernels.matmul.block_scaled import block_scaled_matmul
from numba_tma.kernels.matmul.block_scaled_plan import ScaledConfig
from tests.gpu.kernels.test_matmul import LIMIT, TYPES, Device, values
from tests.gpu.worker import on_gpu

CONFIGS = {
    "chosen": None,
    "64 x 64": ScaledConfig(64, 64),
    "64 x 128": ScaledConfig(64, 128),
    "128 x 64": ScaledConfig(128, 64),
    "128 x 128": ScaledConfig(128, 128),
    "128 x 96, pairs": ScaledConfig(128, 96, cluster=2),
    "128 x 128, fours": ScaledConfig(128, 128, cluster=4),
    "128 x 160, pairs": ScaledConfig(128, 160, cluster=2),
    "128 x 192, pairs": ScaledConfig(128, 192, cluster=2, out_stages=1),
    "256 x 128, pairs": ScaledConfig(256, 128, cluster=2, out_stages=1),
    "128 x 192": ScaledConfig(128, 192, out_stages=1),
    "256 x 96": ScaledConfig(256, 96, out_stages=1),
    "256 x 128": ScaledConfig(256, 128, group=8, out_bytes=64, out_stages=3),
    "64 x 64, parts of K": ScaledConfig(64, 64, splits=3),
}
SHAPES = [
    *((1, 1, 1), (64, 128, 128), (129, 257, 272), (130, 384, 1040), (1000, 1000, 1000)),
    *((300, 1288, 4096), (2049, 520, 384), (300, 520, 8320)),
]


def operands(m, n, k, kinds=("e4m3", "e4m3"), seed=1):
    """Return a, b, and their scales, as DeepSeek-V3 has them: b and a's scales transposed."""
    rng = np.random.default_rng(seed)
    blocks = -(-k // 128)
    a, b = values((m, k), kinds[0], seed), values((n, k), kinds[1], seed + 1).T
    a_scales = rng.uniform(0.1, 2, (blocks, m)).astype(np.float32).T
    b_scales = rng.uniform(-2, 2, (-(-n // 128), blocks)).astype(np.float32).T
    return a, b, a_scales, b_scales


def exact(a, b, a_scales, b_scales):
    """Return the product and the sums of magnitudes, in float64."""
    by_row = a_scales.astype(np.float64).repeat(128, 1)[:, : a.shape[1]]
    by_block = b_scales.astype(np.float64).repeat(128, 0).repeat(128, 1)
    x = a.astype(np.float64) * by_row
    y = b.astype(np.float64) * by_block[: b.shape[0], : b.shape[1]]
    return x @ y, np.abs(x) @ np.abs(y)


def check(*given, out="bf16", what="", target=None, **options):
    expected, size = exact(*given)
    target = Device(np.full(expected.shape, 7, TYPES[out])) if target is None else target
    assert block_scaled_matmul(*map(Device, given), target, **options) is target
    error = np.abs(target.get().astype(np.float64) - expected)
    last = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 2.0**-23}[out]
    wrong = error > last * np.abs(expected) + 2.0**-10 * size + 1e-30
    assert not wrong.any(), (what, given[0].shape, given[1].shape, np.argwhere(wrong)[:5])


@pytest.mark.parametrize("name", CONFIGS)
@on_gpu(limit=LIMIT)
def test_configurations(name):
    for i, shape in enumerate(SHAPES):
        check(*operands(*shape, seed=i), config=CONFIGS[name], what=name)


@pytest.mark.parametrize("kinds", [(x, y) for x in ("e4m3", "e5m2") for y in ("e4m3", "e5m2")])
@on_gpu(limit=LIMIT)
def test_types(kinds):
    for out in ("bf16", "f16", "f32"):
        check(*operands(200, 136, 304, kinds), out=out, what=f"{kinds} {out}")


@on_gpu(limit=LIMIT)
def test_each_block_has_its_scale():
    """Small integers, whose products are exact: no scale may be that of another block."""
    for config in CONFIGS.values():
        a, b = np.ones((300, 640), TYPES["e4m3"]), np.ones((700, 640), TYPES["e4m3"]).T
        a_scales = 1 + np.arange(300 * 5, dtype=np.float32).reshape(300, 5) % 97
        b_scales = 1 + np.arange(5 * 6, dtype=np.float32).reshape(5, 6)
        out = Device(np.full((300, 700), 7, np.float32))
        block_scaled_matmul(*map(Device, (a, b, a_scales, b_scales)), out, config=config)
        expected = 128 * a_scales.astype(np.float64) @ b_scales.repeat(128, 1)[:, :700]
        np.testing.assert_array_equal(out.get(), expected, str(config))


@on_gpu(limit=LIMIT)
def test_sums_of_a_long_k_keep_their_bits():
    """Fast accumulation would drop what is 2^-13 of the sum; a block of K is added up apart."""
    a, b = np.ones((128, 65536), TYPES["e4m3"]), np.ones((128, 65536), TYPES["e4m3"]).T
    a_scales, b_scales = np.ones((128, 512), np.float32), np.ones((512, 1), np.float32)
    a_scales[:, 1:] = 2.0**-12
    out = Device(np.full((128, 128), 7, np.float32))
    block_scaled_matmul(*map(Device, (a, b, a_scales, b_scales)), out)
    assert (out.get() == 128 + 511 / 32).all()


@on_gpu(limit=LIMIT)
def test_what_is_copied_or_transposed_first():
    a, b, a_scales, b_scales = operands(131, 261, 300)
    check(a, np.ascontiguousarray(b), np.ascontiguousarray(a_scales), b_scales)
    check(np.ascontiguousarray(a.T).T, b, a_scales, np.ascontiguousarray(b_scales))
    a, b, a_scales, b_scales = operands(128, 256, 512)
    check(a, b, np.ascontiguousarray(a_scales), b_scales.repeat(2, 1)[:, ::2])


@on_gpu(limit=LIMIT)
def test_views_leave_what_is_around_them():
    for columns in (slice(8, 138), slice(3, 133)):
        for out in ("bf16", "f32"):
            whole = np.full((220, 144), 7, TYPES[out])
            target = Device(whole[10:210, columns])
            check(*operands(200, 130, 256), out=out, target=target)
            around = target.memory.copy_to_host().view(whole.dtype)
            around[10:210, columns] = 7
            assert (around == 7).all()


@on_gpu(limit=LIMIT)
def test_nothing_to_add_up():
    a = Device(np.empty((100, 128), TYPES["e4m3"])[:, :0])
    b = Device(np.empty((72, 128), TYPES["e4m3"])[:, :0].T)
    scales = Device(np.empty((100, 1), "f4")[:, :0]), Device(np.empty((1, 1), "f4")[:0])
    out = Device(np.full((100, 72), 7, np.float32))
    block_scaled_matmul(a, b, *scales, out)
    assert (out.get() == 0).all()


@on_gpu(limit=LIMIT)
def test_the_same_bits_again():
    """A stage that is refilled too early changes few elements, and seldom."""
    given = [Device(x) for x in operands(4096, 4096, 4096)]
    for name, config in CONFIGS.items():
        out = Device(np.full((4096, 4096), 7, TYPES["bf16"]))
        block_scaled_matmul(*given, out, config=config)
        first = out.get().view(np.uint16).copy()
        for _ in range(20):
            block_scaled_matmul(*given, out, config=config)
        np.testing.assert_array_equal(out.get().view(np.uint16), first, name)
