"""In the simulator debug mode changes nothing: a deadlock is reported there anyway."""

import pytest
from numba import cuda

import numba_tma as tma
from numba_tma._environment import debugging
from numba_tma.simulator import SimulatorError

TILE = tma.Tile((8, 32), "f32")


def test_the_variable_changes_nothing(monkeypatch):
    monkeypatch.setenv("NUMBA_TMA_DEBUG", "1")
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
