"""Debug mode has no effect in the simulator, which reports deadlocks anyway."""

import pytest
from numba import cuda

import numba_tma as tma
from numba_tma.device import waiting
from numba_tma.host.debug import UNCOUNTED, Site
from numba_tma.host.environment import debugging
from numba_tma.simulator import SimulatorError

TILE = tma.Tile((8, 32), "f32")


@pytest.mark.parametrize("value", ["1", "races"])
def test_the_variable_changes_nothing(monkeypatch, value):
    monkeypatch.setenv("NUMBA_TMA_DEBUG", value)
    assert not debugging.__wrapped__()
    assert tma.TilePipeline(2, x=TILE, debug=True) == tma.TilePipeline(2, x=TILE)


def test_a_pipeline_that_asks_for_it_deadlocks_as_ever():
    pipe = tma.TilePipeline(2, x=TILE, debug=True)

    @cuda.jit
    def kernel():
        ring = pipe.start()
        if ring.is_consumer():
            ring.consumer().wait()

    with pytest.raises(SimulatorError, match="full"):
        kernel[1, 64]()


def test_a_ring_of_keys_and_values_changes_nothing():
    roles = tma.Roles(mma=tma.Warps(2), load=tma.Warps(1))
    plain, asked = (
        tma.KVPipeline(2, 64, 128, "bf16", 2, producer=roles.load, consumer=roles.mma, debug=debug)
        for debug in (None, True)
    )
    assert plain == asked and not asked.debug


# The ledger of a stage is two words: bytes, and what they mean. Kernels alone read it; here the
# function that does so reads what a test puts there.


def issued(monkeypatch, words, site, iteration, ledger=16):
    at = 64 + ledger
    monkeypatch.setattr(waiting, "ld_shared_u32", {at: words[0], at + 4: words[1]}.__getitem__)
    return waiting.issued_bytes(tma.Barrier(64, ledger), site, iteration)


@pytest.mark.parametrize(("iteration", "expected"), [(0, 700), (2, 700), (3, 600), (8, 500)])
def test_a_ledger_that_sums_up(monkeypatch, iteration, expected):
    site = Site("'x.full'", "consumer", 100, 3)
    assert issued(monkeypatch, (700, 0), site, iteration) == expected
    assert issued(monkeypatch, (700, 1), site, iteration) == UNCOUNTED


def test_a_ledger_that_is_set_back(monkeypatch):
    site = Site("'k.full'", "consumer", 100, 0)
    assert issued(monkeypatch, (100, 8), site, 8) == 100
    assert issued(monkeypatch, (100, 5), site, 8) == UNCOUNTED  # of a turn before
    assert issued(monkeypatch, (100, 9), site, 8) == UNCOUNTED  # a copy of unknown size


def test_a_barrier_without_a_ledger(monkeypatch):
    counted, plain = Site("'k.full'", "consumer", 100, 0), Site("Barrier.wait")
    assert issued(monkeypatch, (100, 8), counted, 8, 0) == UNCOUNTED
    assert issued(monkeypatch, (100, 8), plain, 8) == 0
