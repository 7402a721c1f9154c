"""Stream-K in the simulator: the parts of tiles, who adds them up, and their order in memory."""

import numpy as np
import pytest

from numba_tma import ptx, simulator
from numba_tma.kernels.matmul import StreamKConfig, launch, matmul, stream_k_kernel, stream_k_plan
from tests.sim.kernels.test_matmul import (
    BF16,
    check,
    check_everything_at_once,
    exact,
    factors,
    values,
)
from tests.tiers import quick

ONE = StreamKConfig(64, 32, stages=2)
TWO = StreamKConfig(128, 32, stages=2)
PAIRS = StreamKConfig(64, 32, cluster=2, stages=2)
STAGE = 64  #: elements of bf16


@pytest.fixture
def clusters(monkeypatch):
    """Return the function that sets how many clusters run at once; parts have a stage or more."""
    monkeypatch.setattr(stream_k_plan, "SHORTEST", 1)
    for module in (stream_k_kernel, stream_k_plan):
        monkeypatch.setattr(module, "FEWEST", 1)
    return lambda most: monkeypatch.setattr(launch, "resident_clusters", lambda *of: most)


#: Tiles, stages of a tile, and clusters.
CASES = {
    "a tile of three parts": (1, 3, 3),
    "tiles of two parts and of three": (2, 4, 3),
    "a tile between two parts": (3, 2, 2),
    "a whole wave first": (5, 2, 2),
    "no tile is divided": (4, 1, 2),
}


@pytest.mark.parametrize("name", quick([*CASES][1:4:2], CASES))
def test_parts(clusters, name):
    tiles, stages, most = CASES[name]
    clusters(most)
    check(*factors(64, 32 * tiles, STAGE * stages - 7), config=ONE)


def test_what_blocks_hand_over_is_ordered(clusters, monkeypatch):
    clusters(2)
    arrays = factors(64, 32, STAGE * 2)
    with simulator.global_races():
        check(*arrays, config=ONE)
        monkeypatch.setattr(stream_k_kernel, "wait_for_flag", lambda flag, site: None)
        monkeypatch.setattr(ptx, "atom_exch_b32", lambda flag, value: 0)
        with pytest.raises(simulator.DataRace, match="nothing orders the two"):
            matmul(*arrays, config=ONE)


@pytest.mark.parametrize("config", quick([PAIRS], [TWO, PAIRS]))
def test_each_warpgroup_and_block_has_its_own_slot(clusters, config):
    clusters(2)
    check(*factors(100, 30, STAGE * 3), config=config)


def test_batches_and_sources(clusters):
    """The owner of a tile alone reads its sources."""
    clusters(2)
    a, b = factors(40, 30, STAGE * 2, layout="NT", batch=(3,))
    old = values((3, 40, 30), BF16, 3)
    expected = exact(a, b) + 0.5 * old.astype(float)
    check(a, b, expected, old.copy(), ONE, beta=0.5)


@pytest.mark.slow
def test_everything_at_once(clusters):
    clusters(3)
    check_everything_at_once(100, 72, STAGE * 3, TWO)


def test_integers_are_added_up_exactly(clusters):
    clusters(2)
    a, b = factors(33, 36, 128 * 2, np.int8)
    np.testing.assert_array_equal(matmul(a, b, config=ONE), exact(a, b))


def test_nothing_to_divide():
    a, b = np.empty((64, 0), BF16), np.empty((0, 32), BF16)
    check(a, b, np.zeros((64, 32)), config=ONE)


def test_flags_are_as_before(clusters, monkeypatch):
    """A second launch finds the flags that the first one found: 0."""
    clusters(2)
    found = []
    monkeypatch.setattr(
        launch, "zero_counters", lambda count: found.append(np.zeros(count, np.uint32)) or found[0]
    )
    a, b = factors(64, 32, STAGE * 2)
    first = check(a, b, config=ONE)
    assert not found[0].any()
    np.testing.assert_array_equal(check(a, b, config=ONE), first)


def test_sums_are_added_in_the_order_of_the_parts(clusters):
    """2**24, then 1 and 1 from parts of their own: float32 loses each 1, and would not lose 2."""
    clusters(3)
    a, b = np.zeros((1, STAGE * 3), np.float16), np.ones((STAGE * 3, 8), np.float16)
    a[0, 0], b[0], a[0, [STAGE, 2 * STAGE]] = 2.0**12, 2.0**12, 1
    assert (matmul(a, b, config=ONE, out_dtype="f32") == 2.0**24).all()
    a[0, 0] = 0
    assert (matmul(a, b, config=ONE, out_dtype="f32") == 2).all()
