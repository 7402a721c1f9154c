"""Warps that take different numbers of stages: in a role, and on the two sides of a pipeline."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import simulator as sim
from tests.tiers import seeds

ROW = tma.Tile((1, 32), "f32")
ROLES = tma.Roles(add=tma.Warps(2), load=tma.Warps(1))
TWO = tma.TilePipeline(2, x=ROW, producer=ROLES.load, consumer=ROLES.add)
PLAIN = tma.TilePipeline(3, x=ROW)


def run(kernel, n=5, threads=96):
    x = tma.tensor_map(np.zeros((n + 2, 32), np.float32), ROW)
    cuda.jit(kernel)[1, threads](x, n)


def ring(pipeline, more=0, fewer=0, skipped=-1, warp=1, explicit=False):
    """Return a kernel whose warp `warp` takes fewer tiles, and whose producer makes more."""

    def kernel(x, n):
        pipe = pipeline.start()
        if pipe.is_producer():
            for tile, stage in pipe.produce(0, n + more):
                x.load(stage.x, (tile, 0), stage.barrier)
        elif pipe.is_consumer():
            mine = cuda.threadIdx.x // 32 == warp
            if explicit:
                consumer = pipe.consumer()
                for tile in range(n):
                    if mine and tile == skipped:
                        continue
                    consumer.wait()
                    consumer.release()
            else:
                for _ in pipe.consume(0, n - (fewer if mine else 0)):
                    pass

    return kernel


@seeds(2, 6)
@pytest.mark.parametrize("pipeline", [TWO, PLAIN], ids=["roles", "no roles"])
@pytest.mark.parametrize("fewer", [0, 1])
def test_a_warp_stops_one_tile_early(pipeline, fewer, seeds):
    for seed in seeds:
        sim.seed(seed)
        if not fewer:
            run(ring(pipeline))
            continue
        with pytest.raises(sim.UnequalTurns) as caught:
            run(ring(pipeline, fewer=fewer))
        text = str(caught.value)
        name = " (add)" if pipeline is TWO else ""
        loads = " (load)" if pipeline is TWO else ""
        assert f"Stages of TilePipeline: filled by warp 2{loads}: 5" in text
        assert f"released by warp 0{name}: 5 and warp 1{name}: 4" in text
        assert "has 1 of the 2 arrivals of its last phase" in text
        assert "Every warp of a role takes every tile" in text


@seeds(2, 6)
def test_a_warp_skips_a_tile(seeds):
    for seed in seeds:
        sim.seed(seed)
        run(ring(TWO, explicit=True))
        with pytest.raises(sim.UnequalTurns, match=r"warp 0 \(add\): 5 and warp 1 \(add\): 4"):
            run(ring(TWO, skipped=2, explicit=True))


@seeds(2, 6)
def test_a_warp_stops_two_tiles_early_and_the_producer_waits(seeds):
    for seed in seeds:
        sim.seed(seed)
        with pytest.raises(sim.Deadlock) as caught:
            run(ring(TWO, fewer=3))
        assert "released by warp 0 (add): 4 and warp 1 (add): 2" in str(caught.value)


@seeds(2, 6)
def test_the_producer_stops_one_tile_early(seeds):
    for seed in seeds:
        sim.seed(seed)
        with pytest.raises(sim.Deadlock) as caught:
            run(ring(TWO, more=-1))
        text = str(caught.value)
        assert "filled by warp 2 (load): 4, waited for by warps 0, 1 (add): 4" in text
        assert "the producer has filled fewer stages than its consumers wait for" in text


FEWER_FILLED, FEWER_RELEASED = (
    "the producer has filled fewer stages than its consumers wait for",
    "the consumers have released fewer stages than the producer fills: release each stage on every",
)


@seeds(2, 6)
def test_the_cause_of_a_hang_is_named_once(seeds):
    """A consumer that keeps stages waits for the producer, too, and no range is wrong."""

    def keeps(x, n):
        pipe = TWO.start()
        if pipe.is_producer():
            for tile, stage in pipe.produce(0, n):
                x.load(stage.x, (tile, 0), stage.barrier)
        else:
            consumer = pipe.consumer()
            for tile in range(n):
                consumer.wait()
                if tile % 2:
                    continue
                consumer.release()

    for seed in seeds:
        sim.seed(seed)
        with pytest.raises(sim.Deadlock) as caught:
            run(keeps)
        assert FEWER_RELEASED in str(caught.value) and FEWER_FILLED not in str(caught.value)


@seeds(2, 6)
def test_a_load_that_is_missing_is_no_difference_of_ranges(seeds):
    def misses(x, n):
        pipe = TWO.start()
        if pipe.is_producer():
            for tile, stage in pipe.produce(0, n):
                if tile != 3:
                    x.load(stage.x, (tile, 0), stage.barrier)
        else:
            for _ in pipe.consume(0, n):
                pass

    for seed in seeds:
        sim.seed(seed)
        with pytest.raises(sim.Deadlock, match="128 bytes missing") as caught:
            run(misses)
        assert FEWER_FILLED not in str(caught.value)


@seeds(2, 6)
def test_the_producer_makes_one_tile_too_many(seeds):
    for seed in seeds:
        sim.seed(seed)
        with pytest.raises(sim.UnfinishedCopy) as caught:
            run(ring(TWO, more=1))
        text = str(caught.value)
        assert "filled by warp 2 (load): 6, waited for by warps 0, 1 (add): 5" in text


THREE = tma.Roles(add=tma.Warps(1), load=tma.Warps(1), spare=tma.Warps(1))
SPARE = tma.TilePipeline(2, x=ROW, producer=THREE.load, consumer=THREE.add)


@seeds(2, 6)
@pytest.mark.parametrize("right", [True, False])
def test_a_third_role_falls_into_the_consumer(right, seeds):
    def kernel(x, n):
        pipe = SPARE.start()
        if pipe.is_producer():
            for tile, stage in pipe.produce(0, n):
                x.load(stage.x, (tile, 0), stage.barrier)
        elif pipe.is_consumer() or not right:
            consumer = pipe.consumer()
            for _ in range(n):
                consumer.wait()
                consumer.release()

    for seed in seeds:
        sim.seed(seed)
        if right:
            run(kernel)
            continue
        with pytest.raises(sim.BarrierMisuse) as caught:
            run(kernel)
        assert "consumer.wait() of TilePipeline(2" in str(caught.value)
        assert "a plain `else` takes in the threads of every other role" in str(caught.value)
