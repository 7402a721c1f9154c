"""Maps that a kernel edits: while a copy uses them, without a sync, without a fence."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma import simulator as sim
from tests.tiers import seeds

TILE = tma.Tile((4, 8), "f32")


def arrays():
    x, y = (np.full((4, 8), n, np.float32) for n in (1, 2))
    return tma.tensor_map(x, TILE), tma.TensorMapArray([tma.tensor_map(x, TILE)]), y


@cuda.jit
def edit_after_load(template, maps, y, waits, out):
    scratch, full, tile = (
        tma.shared_tile(tma.DESCRIPTOR),
        tma.shared_barrier(),
        tma.shared_tile(TILE),
    )
    if cuda.threadIdx.x == 0:
        full.init(1)
        tma.fence_mbarrier_init()
        full.arrive_expect_tx(TILE.nbytes)
        maps[0].load(tile, (0, 0), full)
    cuda.syncthreads()
    if waits:
        full.wait(0)
    tma.edit_map(maps[0], template, scratch, y)
    full.wait(0)
    maps[0].fence_acquire()
    if cuda.threadIdx.x == 0:
        out[0] = tile[0, 0]


@cuda.jit
def edit_after_store(template, maps, y, waits, adds):
    scratch, tile = tma.shared_tile(tma.DESCRIPTOR), tma.shared_tile(TILE)
    if cuda.threadIdx.x == 0:
        for i in range(32):
            tile[i // 8, i % 8] = np.float32(5)
        tma.fence_proxy_async()
        if adds:
            maps[0].reduce(tile, (0, 0), "add")
        else:
            maps[0].store(tile, (0, 0))
        ptx.cp_async_bulk_commit_group()
        if waits:
            ptx.cp_async_bulk_wait_group(0)
        else:
            ptx.cp_async_bulk_wait_group_read(0)
    cuda.syncwarp()
    tma.edit_map(maps[0], template, scratch, y)


@seeds(2, 8)
def test_a_map_is_edited_while_a_load_uses_it(seeds):
    for seed in seeds:
        sim.seed(seed)
        template, maps, y = arrays()
        out = np.zeros(1, np.float32)
        edit_after_load[1, 32](template, maps, y, True, out)
        assert out == 1
        template, maps, y = arrays()
        with pytest.raises(sim.EarlyOverwrite, match="edited while a load through it may"):
            edit_after_load[1, 32](template, maps, y, False, out)


@pytest.mark.parametrize("adds", [False, True], ids=["store", "reduction"])
@seeds(2, 8)
def test_a_map_is_edited_while_a_store_uses_it(seeds, adds):
    for seed in seeds:
        sim.seed(seed)
        template, maps, y = arrays()
        edit_after_store[1, 32](template, maps, y, True, adds)
        template, maps, y = arrays()
        with pytest.raises(sim.EarlyOverwrite, match="pass cp_async_bulk_wait_group.0., not"):
            edit_after_store[1, 32](template, maps, y, False, adds)


@cuda.jit
def other_warp_acquires(template, maps, y, flag, synced):
    scratch = tma.shared_tile(tma.DESCRIPTOR)
    if cuda.threadIdx.x < 32:
        tma.edit_map(maps[0], template, scratch, y)
        flag[0] = 1
    while flag[0] == 0:
        cuda.nanosleep(1)
    if synced:
        cuda.syncthreads()
    maps[0].fence_acquire()


@seeds(2, 8)
def test_a_map_is_acquired_without_a_sync_with_its_editor(seeds):
    for seed in seeds:
        sim.seed(seed)
        template, maps, y = arrays()
        other_warp_acquires[1, 64](template, maps, y, np.zeros(1), True)
        template, maps, y = arrays()
        with pytest.raises(sim.MissingFence, match="nothing orders the edit before this acquire"):
            other_warp_acquires[1, 64](template, maps, y, np.zeros(1), False)


@cuda.jit
def in_place(maps, address, released):
    if cuda.threadIdx.x == 0:
        ptx.tensormap_replace_global_address(maps[0], "global", address)
        if released:
            ptx.fence_proxy_tensormap_release("gpu")
    cuda.syncthreads()
    maps[0].fence_acquire()


def test_an_edit_in_place_is_released():
    _, maps, y = arrays()
    in_place[1, 32](maps, y.ctypes.data, True)
    _, maps, y = arrays()
    with pytest.raises(sim.MissingFence, match="has not published the edit"):
        in_place[1, 32](maps, y.ctypes.data, False)


@cuda.jit
def edit_alone(template, maps, y):
    tma.edit_map(maps[0], template, tma.shared_tile(tma.DESCRIPTOR), y)


def test_a_warp_edits_a_map_once():
    template, maps, y = arrays()
    edit_alone[1, 32](template, maps, y)
    assert maps.maps[0].edits == 1
