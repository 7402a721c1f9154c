"""The matmul kernel of Blackwell's tensor cores in the simulator, against NumPy."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from numba_tma import simulator
from numba_tma.kernels._host import launch
from numba_tma.kernels.matmul import Tcgen05Config, matmul
from tests.sim.kernels.test_matmul import (
    BF16,
    E4M3,
    E5M2,
    assert_close,
    check,
    check_everything_at_once,
    exact,
    factors,
    values,
)
from tests.tiers import quick

NARROW = Tcgen05Config(32, stages=2)
WIDE = Tcgen05Config(64, stages=3)
PAIR = Tcgen05Config(32, stages=2, cta_group=2)
WIDE_PAIR = Tcgen05Config(64, stages=3, cta_group=2)
STATIC = replace(NARROW, scheduler="static")
STATIC_PAIR = replace(PAIR, scheduler="static")


@pytest.mark.parametrize(
    ("shape", "config"),
    quick(
        [((70, 40, 136), NARROW), ((300, 40, 136), PAIR)],
        [
            *(((128, 64, 64), WIDE), ((70, 40, 136), NARROW), ((300, 72, 72), NARROW)),
            *(((256, 64, 64), WIDE_PAIR), ((300, 40, 136), PAIR), ((5, 3, 7), PAIR)),
        ],
    ),
)  # fmt: skip
def test_shapes(shape, config):
    check(*factors(*shape), config=config)


@pytest.mark.slow
@pytest.mark.parametrize("config", [NARROW, PAIR])
def test_more_tiles_than_blocks_reuse_both_accumulators(config):
    check(*factors(385, 200, 200), config=config)


@pytest.mark.parametrize(
    ("config", "blocks"),
    quick([(NARROW, 6), (STATIC, 2)], [(NARROW, 6), (STATIC, 2), (PAIR, 8), (STATIC_PAIR, 2)]),
)
def test_a_block_for_each_tile_or_for_each_sm(config, blocks, monkeypatch):
    launched = []

    def record(kernel, grid, *rest, **options):
        launched.append(grid)
        return launch.launch(kernel, grid, *rest, **options)

    monkeypatch.setattr("numba_tma.kernels.matmul.launch.launch", record)
    rows = 130 * config.cta_group
    check(*factors(rows, 72, 8) if blocks == 6 else factors(rows, 40, 8), config=config)
    assert launched == [blocks]


@pytest.mark.slow
@pytest.mark.parametrize("config", [NARROW, PAIR])
def test_integers_in_bf16_are_exact_in_any_order_of_the_threads(config):
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-4, 5, shape).astype(BF16) for shape in ((300, 136), (136, 72)))
    expected = a.astype(np.float32) @ b.astype(np.float32)
    for seed in range(4):
        simulator.seed(seed)
        got = matmul(a, b, config=config, out_dtype=np.float32)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.slow
@pytest.mark.parametrize("config", [WIDE, WIDE_PAIR])
@pytest.mark.parametrize("layout", ["TT", "NN", "NT"])
def test_layouts(layout, config):
    check(*factors(70, 66, 75, layout=layout), config=config)


@pytest.mark.parametrize(
    ("layout", "kinds", "config"),
    quick(
        [("NT", (E4M3, E5M2), WIDE)],
        [
            *(("NT", (E4M3, E5M2), WIDE), ("NT", (E5M2, E4M3), WIDE_PAIR)),
            *(("TT", (E4M3, E4M3), WIDE_PAIR), ("NN", (E5M2, E5M2), WIDE)),
            ("NT", (E4M3, E4M3), PAIR),  # whose halves of b are narrower than a swizzle
        ],
    ),
)
def test_layouts_of_8_bits(layout, kinds, config):
    a, b = factors(80, 80, 96, kinds[0], layout, b_dtype=kinds[1])
    check(a, b, config=config, out_dtype=np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("config", [WIDE, WIDE_PAIR])
@pytest.mark.parametrize(
    ("kinds", "out"),
    [
        ((np.float16, np.float16), np.float16),
        ((BF16, BF16), np.float32),
        ((E4M3, E5M2), BF16),
        ((E5M2, E5M2), np.float32),
    ],
)
def test_types(kinds, out, config):
    a, b = factors(64, 64, 160, kinds[0], b_dtype=kinds[1])
    got = matmul(a, b, config=config, out_dtype=out)
    assert got.dtype == out
    assert_close(got, exact(a, b))


@pytest.mark.slow
@pytest.mark.parametrize("config", [WIDE, WIDE_PAIR])
def test_float32_is_rounded_to_tf32(config):
    a, b = factors(64, 64, 70, np.float32)
    near = [(x.view(np.uint32) + 0x1000 & 0xFFFFE000).view(np.float32) for x in (a, b.T)]
    check(a, b, exact(near[0], near[1].T), config=config)


@pytest.mark.slow
@pytest.mark.parametrize("config", [NARROW, PAIR])
@pytest.mark.parametrize("n", [72, 71])
def test_everything_at_once(n, config):
    check_everything_at_once(160, n, 72, config)


@pytest.mark.slow
@pytest.mark.parametrize("config", [NARROW, PAIR])
def test_a_batch_of_an_odd_result_that_threads_store(config):
    a, b = factors(5, 35, 40, batch=(3,))
    check(a, b, config=config)


@pytest.mark.parametrize("config", quick([NARROW], [NARROW, PAIR]))
def test_a_sum_of_nothing_is_the_bias(config):
    a, b, bias = np.zeros((3, 0), BF16), np.zeros((0, 8), BF16), values(8, BF16, 1)
    got = matmul(a, b, bias=bias, config=config)
    np.testing.assert_array_equal(got, np.broadcast_to(bias, (3, 8)))
    assert got.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(matmul(a, b, config=config), np.zeros((3, 8), BF16))


def test_integers_are_refused():
    a, b = factors(8, 8, 32, np.int8)
    with pytest.raises(ValueError, match="adds up float32, but a is i8"):
        matmul(a, b, config=NARROW)
