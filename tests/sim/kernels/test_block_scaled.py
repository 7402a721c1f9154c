"""The block-scaled matmul in the simulator: sizes, types, tiles, layouts of scales."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from numba import cuda

from numba_tma.device.scheduler import TileCoord
from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels.matmul import block_scaled_kernel
from numba_tma.kernels.matmul.block_scaled import block_scaled_matmul
from numba_tma.kernels.matmul.block_scaled_plan import ScaledConfig, ScaledPlan
from numba_tma.simulator.hazards import Hazards
from tests.sim.kernels.test_matmul import BF16, E4M3, E5M2, assert_close, values
from tests.tiers import quick

ONE = ScaledConfig(64, 64, stages=2)


@pytest.fixture(autouse=True)
def fenced_reads(monkeypatch):
    """Threads read scales from the stages, which TMA fills again: a fence comes between them."""
    monkeypatch.setattr(Hazards, "fenced_reads", True)


def operands(m, n, k, kinds=(E4M3, E4M3)):
    """Return a, b, and their scales, as DeepSeek-V3 has them: b and a's scales transposed."""
    rng = np.random.default_rng(3)
    blocks = -(-k // 128)
    a, b = values((m, k), kinds[0], 1), values((n, k), kinds[1], 2).T
    a_scales = rng.uniform(0.1, 2, (blocks, m)).astype(np.float32).T
    b_scales = rng.uniform(-2, 2, (-(-n // 128), blocks)).astype(np.float32).T
    return a, b, a_scales, b_scales


def exact(a, b, a_scales, b_scales):
    """Return the product in float64."""
    by_row = np.repeat(a_scales.astype(np.float64), 128, 1)[:, : a.shape[1]]
    by_block = b_scales.astype(np.float64).repeat(128, 0).repeat(128, 1)
    wide = b.astype(np.float64) * by_block[: b.shape[0], : b.shape[1]]
    return (a.astype(np.float64) * by_row) @ wide


def check(*given, config=ONE, **options):
    got = block_scaled_matmul(*given, config=config, **options)
    assert_close(got, exact(*given))
    return got


@pytest.mark.parametrize(
    ("shape", "config"),
    [
        pytest.param((64, 64, 256), ONE, marks=pytest.mark.slow),
        ((100, 72, 200), ONE),
        ((70, 200, 272), ScaledConfig(128, 96, stages=2)),  # tiles of columns of two blocks
        pytest.param((130, 260, 272), ScaledConfig(128, 96, stages=2), marks=pytest.mark.slow),
        pytest.param((200, 320, 144), ScaledConfig(128, 160, stages=2), marks=pytest.mark.slow),
        ((200, 100, 272), ScaledConfig(256, 128, stages=2)),
        ((130, 70, 256), ScaledConfig(64, 64, cluster=2, stages=2)),
        pytest.param((130, 330, 256), ScaledConfig(64, 192, stages=2), marks=pytest.mark.slow),
        pytest.param(
            (300, 64, 304), ScaledConfig(256, 64, cluster=2, stages=2), marks=pytest.mark.slow
        ),
        pytest.param(
            (70, 90, 528), ScaledConfig(64, 64, stages=2, splits=2), marks=pytest.mark.slow
        ),
        ((40, 90, 208), ScaledConfig(64, 64, stages=2, splits=5)),  # of two blocks
        pytest.param(
            (150, 64, 256), ScaledConfig(64, 64, cluster=2, stages=2), marks=pytest.mark.slow
        ),
        ((64, 64, 4304), ONE),  # lanes load scales of b a second time
    ],
)
def test_shapes(shape, config):
    check(*operands(*shape), config=config)


@pytest.mark.parametrize("n", [32, 64, 96, 160, 192])
@pytest.mark.parametrize(("columns", "splits"), [(128, 1), (700, 3)])
def test_a_column_has_the_scales_of_its_block(monkeypatch, n, columns, splits):
    """A tile has columns of one block of b, or of two, the second of which begins at its edge."""
    config, bf16 = ScaledConfig(64, n, stages=2), as_dtype("bf16")
    plan = ScaledPlan(as_dtype("e4m3"), as_dtype("e4m3"), "K", "K", bf16, config)
    passed_on = cuda.jit(device=True)(lambda *given: given)
    monkeypatch.setattr(block_scaled_kernel, "b_scales_load", lambda plan: passed_on)
    prepare = block_scaled_kernel.work_of(plan)
    scales = SimpleNamespace(column=400, k=4, last=-(-columns // 128) - 1)
    extents = SimpleNamespace(splits=splits, steps=20)
    for split, row, tile in itertools.product(range(splits), range(2), range(-(-columns // n))):
        work, loaded = prepare(TileCoord(row, tile, split), 0, extents, scales)
        assert (work.batch, work.row, work.column) == (split, 64 * row, n * tile)
        begin, end = 20 * split // splits, 20 * (split + 1) // splits
        assert work.steps == end - begin and loaded == (scales, work.scales, 0, work.steps)
        left, right, edge = work.scales
        for column in range(n * tile, min(n * tile + n, columns)):
            place = left if column - n * tile < edge else right
            assert place == column // 128 * scales.column + begin * scales.k
        assert 0 <= right <= scales.last * scales.column + begin * scales.k


@pytest.mark.parametrize("kinds", [(E4M3, E5M2), (E5M2, E4M3), (E5M2, E5M2)])
def test_types(kinds):
    check(*operands(64, 64, 128, kinds))


@pytest.mark.parametrize("out", quick([np.float16], [np.float32, np.float16]))
def test_results(out):
    given = operands(40, 130, 128)
    assert check(*given, out_dtype=out).dtype == out
    target = np.full((40, 137), 7, out)
    check(*given, out=target[:, 3:133])
    assert (target[:, :3] == 7).all() and (target[:, 133:] == 7).all()


def test_scales_and_factors_that_are_moved_first():
    a, b, a_scales, b_scales = operands(37, 29, 156)
    check(
        a, np.ascontiguousarray(b), np.ascontiguousarray(a_scales), np.ascontiguousarray(b_scales)
    )
    check(np.asfortranarray(a), b, a_scales, np.repeat(b_scales, 2, 1)[:, ::2])


def test_nothing_to_add_up():
    a, b = np.empty((64, 0), E4M3), np.empty((0, 64), E4M3)
    scales = np.empty((64, 0), np.float32), np.empty((0, 1), np.float32)
    assert (block_scaled_matmul(a, b, *scales, config=ONE) == 0).all()
    assert block_scaled_matmul(a[:0], b, scales[0][:0], scales[1]).shape == (0, 64)


def test_each_block_has_its_scale():
    a, b = np.ones((64, 384), E4M3), np.ones((192, 384), E4M3).T
    a_scales = np.arange(3 * 64, dtype=np.float32).reshape(64, 3)
    b_scales = np.array([[1, 3], [5, 7], [11, 13]], np.float32)
    expected = 128 * a_scales.astype(np.float64) @ b_scales.repeat(128, 1)[:, :192]
    for config in (ScaledConfig(64, 192, stages=2), ScaledConfig(64, 96, stages=2)):
        got = block_scaled_matmul(a, b, a_scales, b_scales, out_dtype="f32", config=config)
        np.testing.assert_allclose(got, expected, 1e-6)


def test_bits_of_another_type():
    a, b, *scales = operands(64, 64, 128)
    out = np.zeros((64, 64), np.uint16)
    got = block_scaled_matmul(
        a.view(np.uint8), b.T.view(np.uint8).T, *scales, out, dtype="e4m3", out_dtype="bf16"
    )
    assert got is out
    assert_close(out.view(BF16), exact(a, b, *scales))
