"""Launch control as a scheduler: every tile once, and what mistakes raise."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import simulator
from numba_tma.pipeline import launch_control_handle
from numba_tma.pipeline.launch_control_handle import LaunchControlHandle
from tests.kernels import launch_control as kernels
from tests.kernels.launch_control import ALONE, BY_ROLES, ROLES, SCHEDULER
from tests.tiers import quick, seeds

#: Blocks of the grid for 12 tiles: as many, fewer, and more.
GRIDS = quick([12, 5], [1, 5, 12, 14])


def counted(kernel, grid, threads, per_tile=(), under=range(3)):
    """Run a kernel over 4 x 3 tiles under several seeds, and return the counts of each."""
    found = []
    for seed in under:
        simulator.seed(seed)
        tiles = np.zeros((4, 3, *per_tile), np.int32)
        kernel[grid, threads](tiles, 4, 3)
        found.append(tiles)
    return np.array(found)


@pytest.mark.parametrize("grid", GRIDS)
def test_every_tile_is_computed_once(grid):
    np.testing.assert_array_equal(counted(kernels.count, grid, 64), 1)


@pytest.mark.parametrize("grid", GRIDS)
def test_roles_of_threads_and_one_slot(grid):
    threads = kernels.MIXED_ROLES.threads
    np.testing.assert_array_equal(counted(kernels.count_by_threads, grid, threads), 1)


@seeds(1, 3)
@pytest.mark.parametrize("grid", GRIDS)
def test_a_cluster_takes_a_tile_as_one(grid, seeds):
    found = counted(kernels.count_in_cluster, 2 * grid, ROLES.threads, (2,), seeds)
    np.testing.assert_array_equal(found, 1)


@seeds(1, 3)
@pytest.mark.parametrize("grid", GRIDS)
def test_loads_run_ahead_of_the_stores(grid, seeds):
    x = np.random.default_rng(1).random((8, 48), np.float32)
    for seed in seeds:
        simulator.seed(seed)
        y = np.zeros_like(x)
        maps = (tma.tensor_map(array, kernels.TILE) for array in (x, y))
        kernels.copy[grid, ROLES.threads](*maps, 4, 3)
        np.testing.assert_array_equal(x, y)


def test_the_tiles_of_a_block_are_in_the_order_of_the_schedule():
    @cuda.jit
    def kernel(order, rows, columns):
        work = ALONE.start()
        number = 0
        for tile in work.tiles(SCHEDULER.over(rows, columns)):
            order[cuda.blockIdx.x, number] = tile.row * columns + tile.column
            number += 1

    simulator.seed(2)
    order = np.full((12, 12), -1)
    kernel[12, 32](order, 4, 3)
    place = {t.row * 3 + t.column: i for i, t in enumerate(SCHEDULER.over(4, 3).tiles(0, 1))}
    walks = [[place[tile] for tile in row if tile >= 0] for row in order]
    assert sorted(sum(walks, [])) == list(range(12)) and max(map(len, walks)) > 1
    assert all(walk == sorted(walk) for walk in walks)
    assert all(walk[0] == block for block, walk in enumerate(walks) if walk)


def test_a_second_loop_has_no_tile_and_asks_for_none():
    @cuda.jit
    def kernel(tiles, rows, columns):
        work = ALONE.start()
        schedule = SCHEDULER.over(rows, columns)
        for _ in range(2):
            for tile in work.tiles(schedule):
                if cuda.threadIdx.x == 0:
                    tiles[tile.row, tile.column] += 1

    np.testing.assert_array_equal(counted(kernel, 12, 32), 1)


def test_the_same_loop_over_a_grid_that_fits():
    grid = tma.PersistentGrid(cluster=2)

    @cuda.jit
    @tma.cluster(2)
    def kernel(tiles, rows, columns):
        work = grid.start()
        for tile in work.tiles(SCHEDULER.over(rows, columns)):
            if cuda.threadIdx.x == 0:
                tiles[tile.row, tile.column, cuda.blockIdx.x % 2] += 1 + cuda.blockIdx.x // 2

    found = counted(kernel, 6, 32, (2,))
    order = SCHEDULER.over(4, 3).tiles(0, 1)
    for number, tile in enumerate(order):
        assert (found[:, tile.row, tile.column] == 1 + number % 3).all()


# ---------------------------------------------------------------------------- mistakes


def walk(*, load=99, work=99, cluster=False):
    """Return a kernel whose roles leave the loop after some tiles; 0 is a role without a loop."""
    control = kernels.IN_CLUSTER if cluster else BY_ROLES

    def kernel(rows, columns):
        started = control.start()
        if cluster and cuda.blockIdx.x % 2 == 0:
            limit = 99
        else:
            limit = load if ROLES.load.is_member() else work
        if limit:
            for _ in started.tiles(SCHEDULER.over(rows, columns)):
                limit -= 1
                if limit == 0:
                    break

    return cuda.jit(tma.cluster(2)(kernel) if cluster else kernel)


@pytest.mark.parametrize("limits", [{"work": 0}, {"work": 1}, {"load": 1}, {"load": 0}])
def test_a_role_that_reads_fewer_answers_than_the_others(limits):
    with pytest.raises(
        (simulator.BarrierMisuse, simulator.Deadlock),
        match=r"(?s)some threads have not read an answer|(full|empty)\[\d\] of LaunchControl\(",
    ):
        walk(**limits)[1, ROLES.threads](4, 3)


def test_a_block_of_a_cluster_that_reads_fewer_answers():
    with pytest.raises((simulator.BarrierMisuse, simulator.Deadlock), match="empty"):
        walk(work=0, load=0, cluster=True)[2, ROLES.threads](4, 3)


def test_answers_that_nobody_reads():
    with pytest.raises(simulator.UnfinishedCopy, match=r"waited for 1 load.*full\[1\] of Launch"):
        simulator.seed(0)
        walk(work=2, load=2)[12, ROLES.threads](4, 3)


def test_no_answer_is_overwritten_before_all_have_read_it(monkeypatch):
    monkeypatch.setattr(LaunchControlHandle, "_await_readers", lambda self: None)
    with pytest.raises(simulator.SimulatorError, match=r"answer\[0\]|empty\[\d\]"):
        counted(kernels.count_by_threads, 12, kernels.MIXED_ROLES.threads)


def test_readers_fence_before_the_slot_is_used_again(monkeypatch):
    monkeypatch.setattr(launch_control_handle, "fence_proxy_async", lambda: None)
    with pytest.raises(simulator.MissingFence, match=r"answer\[0\]"):
        counted(kernels.count_by_threads, 12, kernels.MIXED_ROLES.threads)


def test_the_first_block_of_a_cluster_outlives_the_arrivals_of_the_others(monkeypatch):
    monkeypatch.setattr(LaunchControlHandle, "_drain", lambda self: None)
    with pytest.raises(simulator.MissingClusterSync, match="ended without waiting for"):
        counted(kernels.count_in_cluster, 4, ROLES.threads, (2,))


def test_a_kernel_in_other_clusters():
    @cuda.jit
    def kernel():
        kernels.IN_CLUSTER.start()

    with pytest.raises(simulator.BadOperand, match=r"put @tma.cluster\(\(2, 1\)\) below"):
        kernel[2, ROLES.threads]()
