"""Races in global memory, on request; dependent launches that do not wait for their primary."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma import simulator as sim
from numba_tma.simulator.global_memory import box_of
from tests.tiers import seeds

ROW, FOUR = tma.Tile((1, 32), "f32"), tma.Tile((4, 32), "f32")


@cuda.jit
def read_neighbour(x, out, synced, shift):
    t = cuda.grid(1)
    x[t] = t
    if synced:
        cuda.syncthreads()
    out[t] = x[(t + shift) % x.size]


@seeds(2, 6)
def test_threads_of_a_block(seeds):
    for seed in seeds:
        sim.seed(seed)
        x, out = np.zeros((2, 64), np.float32)
        with sim.global_races():
            read_neighbour[1, 64](x, out, True, 33)
            with pytest.raises(sim.DataRace) as caught:
                read_neighbour[1, 64](x, out, False, 33)
        text = str(caught.value)
        assert "global memory, bytes" in text and text.count("test_global_races.py:") == 2
        read_neighbour[1, 64](x, out, False, 33)  # not looked for without the request


@seeds(2, 6)
def test_threads_of_different_blocks(seeds):
    for seed in seeds:
        sim.seed(seed)
        x, out = np.zeros((2, 128), np.float32)
        with sim.global_races():
            read_neighbour[2, 64](x, out, True, 0)
            with pytest.raises(sim.DataRace, match="blocks hand over by an atomic operation"):
                read_neighbour[2, 64](x, out, True, 64)


@cuda.jit
def last_block_sums(x, parts, counter, total, atomic):
    ticket = cuda.shared.array(1, np.int32)
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    if t == 0:
        parts[b] = x[b]
        cuda.threadfence()
        ticket[0] = cuda.atomic.add(counter, 0, 1) if atomic else b
    cuda.syncthreads()
    if ticket[0] == cuda.gridDim.x - 1 and t == 1:
        cuda.threadfence()
        for i in range(cuda.gridDim.x):
            total[0] += parts[i]


@pytest.mark.parametrize("atomic", [True, False])
def test_the_last_block_reads_what_the_others_wrote(atomic):
    x, parts, total = np.arange(4.0), np.zeros(4), np.zeros(1)
    with sim.global_races():
        if atomic:
            last_block_sums[4, 32](x, parts, np.zeros(1, np.int32), total, atomic)
            assert total[0] == 6
        else:
            with pytest.raises(sim.DataRace):
                last_block_sums[4, 32](x, parts, np.zeros(1, np.int32), total, atomic)


@cuda.jit
def write_at(address, apart):
    if cuda.threadIdx.x == 0:
        ptx.st_global_v4_u32(address + apart * cuda.blockIdx.x, (1, 2, 3, 4))


def test_two_blocks_write_to_one_address():
    y = np.zeros(12, np.uint32)
    with sim.global_races():
        write_at[3, 32](y.ctypes.data, 16)
        with pytest.raises(sim.DataRace, match="written at .* and written by .* of block"):
            write_at[3, 32](y.ctypes.data, 0)


@cuda.jit
def store_rows(y, n, shift):
    tile = tma.shared_tile(ROW)
    tile[0, cuda.threadIdx.x] = np.float32(cuda.blockIdx.x)
    tma.fence_proxy_async()
    cuda.syncwarp()
    if cuda.threadIdx.x == 0:
        y.store(tile, (cuda.blockIdx.x // shift, 0))
        ptx.cp_async_bulk_commit_group()
        ptx.cp_async_bulk_wait_group(0)


def test_two_blocks_store_one_tile():
    y = tma.tensor_map(np.zeros((4, 32), np.float32), ROW)
    with sim.global_races():
        store_rows[4, 32](y, 4, 1)
        with pytest.raises(sim.DataRace, match="written at .* and written by .* of block"):
            store_rows[4, 32](y, 4, 2)


READS = ("read", "load", "gather", "bulk load", "part of a bulk load", "copy of a thread")
WRITES = ("write", "store", "scatter", "bulk store")
COMBINES = ("atomic", "reduce", "bulk reduce")


@cuda.jit
def access_one_row(x, rows, row, operations):
    """Each block accesses the row by its own operation."""
    operation = operations[cuda.blockIdx.x]
    tile, full = tma.shared_tile(FOUR), tma.shared_barrier()
    for i in range(4):
        tile[i, cuda.threadIdx.x] = np.float32(1)
    tma.fence_proxy_async()
    cuda.syncwarp()
    if cuda.threadIdx.x > 0:
        return
    if operation == "read":
        row[3]
    elif operation == "write":
        row[3] = 1
    elif operation == "atomic":
        cuda.atomic.add(row, 3, 1)
    elif operation == "store":
        x.store(tile, (0, 0))
    elif operation == "reduce":
        x.reduce(tile, (0, 0), "add")
    elif operation == "scatter":
        rows.scatter(tile, (0, 1, 2, 3), 0)
    elif operation == "copy of a thread":
        ptx.cp_async_cg(tile, row)
        ptx.cp_async_wait_all()
    elif operation == "bulk store":
        ptx.cp_async_bulk_store(row, tile, ROW.nbytes)
    elif operation == "bulk reduce":
        ptx.cp_reduce_async_bulk_store(row, tile, ROW.nbytes, "add.f32")
    else:
        full.init(1)
        tma.fence_mbarrier_init()
        full.arrive_expect_tx(ROW.nbytes if "bulk" in operation else FOUR.nbytes)
        if operation == "load":
            x.load(tile, (0, 0), full)
        elif operation == "gather":
            rows.gather(tile, (0, -1, -1, -1), 0, full)
        elif operation == "part of a bulk load":
            ptx.cp_async_bulk_load_ignore_oob(tile, row, ROW.nbytes, 8, 0, full)
        else:
            ptx.cp_async_bulk_load(tile, row, ROW.nbytes, full)
        full.wait(0)
    ptx.cp_async_bulk_commit_group()
    ptx.cp_async_bulk_wait_group(0)


@pytest.mark.parametrize("first", READS + WRITES + COMBINES)
def test_accesses_of_two_blocks_race_unless_both_read_or_both_combine(first):
    x = cuda.to_device(np.zeros((4, 32), np.float32))
    maps = tma.tensor_map(x, FOUR), tma.gather_map(x, FOUR)
    for second in READS + WRITES + COMBINES:
        with sim.global_races():
            if any({first, second} <= set(kind) for kind in (READS, COMBINES)):
                access_one_row[2, 32](*maps, x[0], (first, second))
                continue
            with pytest.raises(sim.DataRace):
                access_one_row[2, 32](*maps, x[0], (first, second))


@cuda.jit
def write_after_readers(x, counter, silent, synced):
    """Blocks 0 and 1 read and announce it; block 2 knows of that and writes."""
    b, t = cuda.blockIdx.x, cuda.threadIdx.x
    if b < 2:
        if t == 0:
            x[0]
            if b != silent:
                cuda.threadfence()
                cuda.atomic.add(counter, 0, 1)
    else:
        if t == 0:
            cuda.atomic.add(counter, 0, 1)
        if synced:
            cuda.syncthreads()
        if t == 1:
            x[0] = 1


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_a_write_follows_each_of_its_readers(dtype):
    x = cuda.to_device(np.zeros(8, np.float32))
    with sim.global_races():
        write_after_readers[3, 32](x, np.zeros(1, dtype), None, True)
        for silent, synced in ((0, True), (1, True), (None, False)):
            with pytest.raises(sim.DataRace, match="written at .* and read by"):
                write_after_readers[3, 32](x, np.zeros(1, dtype), silent, synced)


def test_a_race_names_the_bytes_of_a_pitched_array():
    x = np.ndarray((4, 32), np.float32, bytearray(4 * 256), strides=(256, 4))
    y = tma.tensor_map(x, ROW)
    with sim.global_races():
        store_rows[4, 32](y, 4, 1)
        where = r"bytes (0 to 127|256 to 383) of an array of shape \(4, 32\) of float32: written"
        with pytest.raises(sim.DataRace, match=where):
            store_rows[4, 32](y, 4, 2)


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("origin", [(0, 0), (-1, 4), (5, -3), (-4, -3), (9, 16), (-9, 0)])
def test_the_elements_of_a_box_are_those_that_its_copy_reads(step, origin):
    x = np.arange(1.0, 12 * 20 + 1, dtype=np.float32).reshape(12, 20)
    x_map = tma.tensor_map(x, tma.Tile((6, 4), "f32"), element_strides=(step, 1))
    image = tma.reference_tile(x, x_map.tile, origin, element_strides=(step, 1))
    read = image.view(np.float32)
    assert sorted(box_of(x_map, origin).ravel()) == sorted(read[read > 0])


# ------------------------------------------------------------------ dependent launches


@cuda.jit
def primary(x):
    ptx.griddepcontrol_launch_dependents()
    x[cuda.grid(1)] = 1


@cuda.jit
def dependent(x, out, waits):
    out[32 + cuda.threadIdx.x] = 0  # no part of what the primary writes
    if waits == "each" or waits == "one" and cuda.threadIdx.x == 0:
        ptx.griddepcontrol_wait()
    if waits == "one":
        cuda.syncwarp()
    out[cuda.threadIdx.x] = x[cuda.threadIdx.x]


@pytest.mark.parametrize("waits", ["each", "one", "none"])
def test_a_dependent_launch_without_its_wait(waits):
    x, out = cuda.to_device(np.zeros(32)), cuda.to_device(np.zeros(64))
    first = tma.launcher(primary, 1, 32)
    second = tma.launcher(dependent, 1, 32, pdl=True)
    if waits != "none":
        first(x)
        second(x, out, waits)
        assert (out.copy_to_host()[:32] == 1).all()
        return
    first(x)
    with pytest.raises(sim.EarlyRead, match=r"by a dependent launch .pdl=True., before it"):
        second(x, out, waits)


@cuda.jit
def reading_primary(x, out):
    ptx.griddepcontrol_launch_dependents()
    out[cuda.grid(1)] = x[cuda.grid(1)]


@cuda.jit
def early_access(x, writes):
    if writes:
        x[cuda.threadIdx.x] = 1
    else:
        x[cuda.threadIdx.x]


@pytest.mark.parametrize("writes", [True, False])
def test_a_dependent_launch_that_writes_what_its_primary_reads(writes):
    x, out = cuda.to_device(np.zeros(32)), cuda.to_device(np.zeros(32))
    second = tma.launcher(early_access, 1, 32, pdl=True)
    tma.launcher(reading_primary, 1, 32)(x, out)
    if not writes:
        second(x, writes)
        return
    line = reading_primary.py_func.__code__.co_firstlineno + 3
    with pytest.raises(sim.EarlyRead, match=rf"has read them at test_global_races.py:{line} ") as _:
        second(x, writes)


def test_a_dependent_launch_makes_no_other_look_for_races():
    x, out = cuda.to_device(np.zeros(32)), cuda.to_device(np.zeros(64))
    tma.launcher(dependent, 1, 32, pdl=True)(x, out, "each")
    read_neighbour[1, 64](*np.zeros((2, 64), np.float32), False, 33)


@cuda.jit
def dependent_load(x, out, waits):
    tile, full = tma.shared_tile(ROW), tma.shared_barrier()
    if cuda.threadIdx.x == 0:
        full.init(1)
        tma.fence_mbarrier_init()
        full.arrive_expect_tx(ROW.nbytes)
        if waits:
            ptx.griddepcontrol_wait()
        x.load(tile, (0, 0), full)
    cuda.syncwarp()
    full.wait(0)
    out[cuda.threadIdx.x] = tile[0, cuda.threadIdx.x]


@pytest.mark.parametrize("waits", [True, False])
def test_a_dependent_launch_that_loads_too_early(waits):
    x, out = np.zeros((1, 32), np.float32), np.zeros(32)
    x_map = tma.tensor_map(x, ROW)
    second = tma.launcher(dependent_load, 1, 32, pdl=True)
    tma.launcher(store_rows, 1, 32)(x_map, 1, 1)
    if waits:
        second(x_map, out, waits)
        return
    with pytest.raises(sim.EarlyRead, match="call ptx.griddepcontrol_wait"):
        second(x_map, out, waits)


@cuda.jit
def write_through_views(x):
    row = x[0] if cuda.threadIdx.x < 32 else x[0:1][0]
    row[cuda.threadIdx.x] = 1


def test_a_view_of_elements_reads_none_of_them():
    x = np.zeros((2, 64), np.float32)
    with sim.global_races():
        write_through_views[1, 64](x)
    assert x.sum() == 64
