"""Windows of a stream: each tile with its neighbours, for any radius, chunk and stages."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import simulator as sim
from tests.kernels.window_kernels import (
    COLUMNS,
    PLANE,
    TILE,
    expected_sums,
    passed_on,
    stencil,
    window_sums,
)
from tests.tiers import every

RANGES = [[(0, 7)], [(0, 0), (3, 4), (5, 5)], [(4, 6), (0, 7), (6, 2), (2, 3), (0, 2)]]
WINDOWS = [  # before, after, stages, backwards, consumer warps
    (1, 1, 4, False, 3),
    (1, 1, 3, True, 2),
    (0, 1, 3, True, 2),
    (2, 2, 6, True, 1),
    (0, 0, 1, False, 1),
    (2, 0, 3, False, 1),
]


def stream(tiles):
    return np.random.default_rng(0).integers(1, 9, (tiles, COLUMNS)).astype(np.float32)


@pytest.mark.parametrize("chunks", RANGES, ids=str)
@pytest.mark.parametrize(("before", "after", "stages", "backwards", "warps"), every(2, WINDOWS))
def test_each_tile_has_its_neighbours(before, after, stages, backwards, warps, chunks):
    ROLES, kernel = window_sums(before, after, stages, backwards, warps)
    x = stream(7)
    y, order, given = np.zeros_like(x), np.full(20, -1), np.array(chunks)
    kernel[1, ROLES.threads](tma.tensor_map(x, TILE), y, order, given)
    np.testing.assert_array_equal(y, expected_sums(x, before, after, chunks))
    turns = [z for f, s in chunks for z in (range(s - 1, f - 1, -1) if backwards else range(f, s))]
    assert order[order >= 0].tolist() == turns


@pytest.mark.parametrize("by_hand", every(2, [False, True]))
def test_a_stencil_of_planes(by_hand):
    ROLES, kernel = stencil(by_hand, stages=4, warps=2)
    rng = np.random.default_rng(1)
    x = rng.integers(-9, 9, (3, PLANE.shape[1] - 2, PLANE.shape[2] - 8)).astype(np.float32)
    y, sides = np.full_like(x, np.nan), np.pad(x, 1)
    kernel[1, ROLES.threads](tma.tensor_map(x, PLANE), y, 0, 3)
    around = sides[:-2, 1:-1, 1:-1] + sides[2:, 1:-1, 1:-1] + sides[1:-1, :-2, 1:-1]
    around += sides[1:-1, 2:, 1:-1] + sides[1:-1, 1:-1, :-2] + sides[1:-1, 1:-1, 2:]
    np.testing.assert_array_equal(y, around - 6 * x)


def test_variables_pass_stages_on():
    x = stream(7)
    y = np.zeros_like(x)
    passed_on(4)[1, 96](tma.tensor_map(x, TILE), y, 7)
    np.testing.assert_array_equal(y[1:-1], x[:-2] + x[1:-1] + x[2:])


# ---------------------------------------------------------------------------- its ends

TWO = tma.TilePipeline(4, x=TILE)


@cuda.jit
def left_early(x, y, n, last):
    pipe, lane = TWO.start(), cuda.threadIdx.x % 32
    if pipe.is_producer():
        for z, stage in pipe.produce_windows(0, last + 1):
            x.load(stage.x, (z, 0), stage.barrier)
        for z, stage in pipe.produce_windows(0, n, before=2, after=1):
            x.load(stage.x, (z, 0), stage.barrier)
        for z, stage in pipe.produce(0, n):
            x.load(stage.x, (z, 0), stage.barrier)
    else:
        for z, window in pipe.windows(0, n):
            y[0, z, lane] = window[-1].x[0, lane] - window[1].x[0, lane]
            if z == last:
                break
        for z, window in pipe.windows(0, n, before=2, after=1):
            y[1, z, lane] = window[-2].x[0, lane] - window[1].x[0, lane]
        for z, stage in pipe.consume(0, n):
            y[2, z, lane] = stage.x[0, lane]
    pipe.close()


@pytest.mark.parametrize("last", [0, 3])
def test_the_next_loop_releases_what_a_break_holds(last):
    x = stream(6)
    y, sides = np.zeros((3, 6, COLUMNS), np.float32), np.pad(x, ((2, 1), (0, 0)))
    left_early[1, 64](tma.tensor_map(x, TILE), y, 6, last)
    np.testing.assert_array_equal(y[0, : last + 1], (sides[1:-2] - sides[3:])[: last + 1])
    np.testing.assert_array_equal(y[1], sides[:-3] - sides[3:])
    np.testing.assert_array_equal(y[2], x)


@cuda.jit
def stored(x, y, n):
    """Store the tile that leaves the window next."""
    pipe = TWO.start()
    if pipe.is_producer():
        for z, stage in pipe.produce_windows(1, n + 1):
            x.load(stage.x, (z, 0), stage.barrier)
    else:
        for z, window in pipe.windows(1, n + 1):
            pipe.store(y, window[-1].x, (z - 1, 0), written=False)
    pipe.close()


def test_a_stage_is_released_when_stores_have_read_it():
    x = stream(6)
    for seed in range(4):
        sim.seed(seed)
        y = np.zeros_like(x)
        stored[1, 96](tma.tensor_map(x, TILE), tma.tensor_map(y, TILE), 6)
        np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize(("radius", "stages"), every(2, [(1, 3), (1, 4), (2, 5)]))
def test_no_order_goes_wrong(radius, stages, explored):
    ROLES, kernel = window_sums(radius, radius, stages, warps=2)
    x, chunks = tma.tensor_map(stream(3), TILE), np.array([(0, 2), (1, 1), (2, 3)])
    y, order = np.zeros((3, COLUMNS), np.float32), np.full(9, -1)
    explored(lambda: kernel[1, ROLES.threads](x, y, order, chunks))


# ------------------------------------------------------------------------------ mistakes


def wrong(use="0", produced="pipe.produce_windows(0, n)"):
    names = {"TWO": TWO, "cuda": cuda}
    exec(
        f"""
def kernel(x, y, n):
    pipe, lane = TWO.start(), cuda.threadIdx.x % 32
    if pipe.is_producer():
        for z, stage in {produced}:
            x.load(stage.x, (z, 0), stage.barrier)
    else:
        consumer, windows = pipe.consumer(), []
        for z, window in pipe.windows(0, n):
            windows.append(window)
            y[z, lane] = window[0].x[0, lane]
            {use}
    pipe.close()
""",
        names,
    )
    kernel = cuda.jit(names["kernel"])
    x = stream(8)
    kernel[1, 64](tma.tensor_map(x, TILE), np.zeros_like(x), 8)


@pytest.mark.parametrize(
    "use",
    [
        "y[z, lane] = windows[0][-1].x[0, lane]",
        "consumer.release(); y[z, lane] = window[-1].x[0, lane]",
    ],
)
def test_a_stage_is_not_read_after_its_release(use):
    with pytest.raises((sim.EarlyRead, sim.EarlyOverwrite), match=r"x\[\d\] of TilePipeline\("):
        for seed in range(8):
            sim.seed(seed)
            wrong(use)


def test_a_producer_of_the_tiles_alone_is_missed():
    with pytest.raises(sim.SimulatorError, match="pipe.windows a producer with pipe.produce_windo"):
        wrong(produced="pipe.produce(0, n)")
