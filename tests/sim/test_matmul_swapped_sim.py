"""Matmul for few rows, whose factors change places, in the simulator."""

import numpy as np
import pytest

from numba_tma.kernels._matmul_plan import SwappedConfig
from tests.sim.test_matmul_sim import BF16, E4M3, E5M2, assert_close, check, exact, factors, values
from tests.tiers import quick

ONE = SwappedConfig(64, 8, k=128, stages=2)
PARTS = SwappedConfig(64, 8, cluster=4, k=128, stages=2)
WIDE = SwappedConfig(128, 16, cluster=2, k=128, stages=3)


@pytest.mark.parametrize(
    ("shape", "config"),
    quick(
        [((1, 72, 136), ONE), ((5, 66, 330), PARTS)],
        [
            *(((1, 72, 136), ONE), ((5, 66, 330), PARTS), ((8, 64, 64), PARTS)),
            *(((16, 128, 256), WIDE), ((21, 150, 100), WIDE), ((3, 300, 70), ONE)),
        ],
    ),
)
def test_shapes(shape, config):
    m, n, k = shape
    check(*factors(m, n, k), config=config)


def test_writes_nothing_else():
    memory = np.full((9, 80), 7, BF16)
    a, b = factors(3, 70, 72)
    check(a, b, out=memory[2:5, 5:75], config=PARTS)
    outside = np.ones(memory.shape, bool)
    outside[2:5, 5:75] = False
    assert (memory[outside] == 7).all()
