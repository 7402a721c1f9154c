"""Barriers, election and cache policies behave on the hardware as documented."""

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from tests.gpu.worker import on_gpu


def zeros(shape, dtype=np.int32):
    return cuda.to_device(np.zeros(shape, dtype))


# ----------------------------------------------------------------------------- Barrier


@cuda.jit
def barrier_phases(source, seen, copied):
    barrier, chunk = tma.shared_barrier(), tma.shared_tile(CHUNK)
    barrier.init(2)
    tma.fence_mbarrier_init()
    seen[0] = barrier.test_wait(0)
    seen[1] = barrier.test_wait(1)
    state = barrier.arrive()
    seen[2] = barrier.test_wait(0)
    seen[3] = ptx.mbarrier_test_wait(barrier, state)
    seen[4] = ptx.mbarrier_try_wait(barrier, state)
    same = barrier.arrive()
    seen[5] = barrier.test_wait(0)
    seen[6] = barrier.try_wait(0)
    seen[7] = ptx.mbarrier_test_wait(barrier, state)
    seen[8] = ptx.mbarrier_try_wait(barrier, same)
    barrier.wait(0)
    # The second phase: both arrivals are made, and bytes are missing.
    seen[9] = barrier.test_wait(1)
    barrier.expect_tx(16)
    barrier.arrive()
    state = barrier.arrive_expect_tx(CHUNK.nbytes - 16)
    seen[10] = barrier.try_wait(1)
    ptx.cp_async_bulk_load(chunk, source, CHUNK.nbytes, barrier)
    barrier.wait(1)
    for i in range(CHUNK.size):
        copied[i] = chunk[i]
    seen[11] = ptx.mbarrier_test_wait(barrier, state)
    seen[12] = barrier.test_wait(0)
    # A second life.
    barrier.inval()
    barrier.init(1)
    seen[13] = barrier.test_wait(0)
    barrier.arrive()
    seen[14] = barrier.test_wait(0)


CHUNK = tma.Tile(64, "u32")


@on_gpu
def test_barrier_phases_by_parity_and_by_state():
    seen = zeros(15)
    source = np.arange(64, dtype=np.uint32)
    copied = zeros(64, np.uint32)
    barrier_phases[1, 1](cuda.to_device(source), seen, copied)
    expected = [0, 1, 0, 0, 0, 1, 1, 1, 1, 0, 0, 1, 0, 0, 1]
    np.testing.assert_array_equal(seen.copy_to_host(), expected)
    np.testing.assert_array_equal(copied.copy_to_host(), source)


@cuda.jit
def pass_round(rounds, out):
    """In each round every thread takes its neighbour's number, plus one."""
    full, empty = tma.shared_barrier(), tma.shared_barrier()
    numbers = cuda.shared.array(96, np.int32)
    thread = cuda.threadIdx.x
    if thread == 0:
        full.init(96)
        empty.init(96)
        tma.fence_mbarrier_init()
    cuda.syncthreads()
    number = thread
    for k in range(rounds):
        cuda.nanosleep((thread * 7 + k * 3) % 11 * 20)
        numbers[thread] = number
        full.arrive()
        full.wait(k % 2)
        number = numbers[(thread + 1) % 96] + 1
        empty.arrive()
        empty.wait(k % 2)
    out[thread] = number


@on_gpu
def test_barriers_order_the_memory_of_their_threads():
    for rounds in (0, 1, 2, 97, 500):
        out = zeros(96)
        pass_round[1, 96](rounds, out)
        expected = (np.arange(96) + rounds) % 96 + rounds
        np.testing.assert_array_equal(out.copy_to_host(), expected)


# ---------------------------------------------------------------- named barriers, warps


@cuda.jit
def hand_over(out):
    """Warp 0 writes and arrives at named barriers 1 to 15; warp 1 waits there and reads."""
    numbers = cuda.shared.array((16, 32), np.int32)
    warp, lane = cuda.threadIdx.x // 32, ptx.laneid()
    for name in range(1, 16):
        if warp == 0:
            cuda.nanosleep(lane * 30)
            numbers[name, lane] = name * 1000 + lane
            ptx.barrier_arrive(name, 64)
        else:
            ptx.barrier_sync(name, 64)
            out[name, lane] = numbers[name, 31 - lane]


@on_gpu
def test_named_barriers():
    out = zeros((16, 32))
    hand_over[1, 64](out)
    expected = 1000 * np.arange(16)[:, None] + np.arange(31, -1, -1)
    expected[0] = 0
    np.testing.assert_array_equal(out.copy_to_host(), expected)


@cuda.jit
def elect(whole, part):
    thread = cuda.threadIdx.x
    for i in range(3):
        if tma.elect_sync():
            whole[i, thread] = 1
    if thread % 32 >= 20:
        if tma.elect_sync(0xFFF00000):
            part[thread] = 1


@on_gpu
def test_elect_sync_takes_one_thread_of_the_mask():
    whole, part = zeros((3, 96)), zeros(96)
    elect[1, 96](whole, part)
    whole, part = whole.copy_to_host(), part.copy_to_host().reshape(3, 32)
    np.testing.assert_array_equal(whole.reshape(3, 3, 32).sum(-1), np.ones((3, 3)))
    np.testing.assert_array_equal(whole, [whole[0]] * 3)
    np.testing.assert_array_equal(part[:, 20:].sum(-1), [1, 1, 1])
    assert not part[:, :20].any()


@cuda.jit
def own_registers(out):
    i = ptx.ctaid_x() * ptx.ntid_x() + ptx.tid_x()
    out[i, 0], out[i, 1] = ptx.tid_x(), ptx.ctaid_x()
    out[i, 2], out[i, 3], out[i, 4] = ptx.ntid_x(), ptx.nctaid_x(), ptx.laneid()


@on_gpu
def test_special_registers():
    out = zeros((3 * 64, 5))
    own_registers[3, 64](out)
    expected = [(t, block, 64, 3, t % 32) for block in range(3) for t in range(64)]
    np.testing.assert_array_equal(out.copy_to_host(), expected)


# ------------------------------------------------------------------------------- cache


@cuda.jit
def created_policies(out):
    out[0] = ptx.createpolicy_evict_normal()
    out[1] = ptx.createpolicy_evict_first()
    out[2] = ptx.createpolicy_evict_last()


@on_gpu
def test_named_policies_are_what_createpolicy_makes():
    out = zeros(3, np.uint64)
    created_policies[1, 1](out)
    policy = tma.CachePolicy
    named = [policy.EVICT_NORMAL, policy.EVICT_FIRST, policy.EVICT_LAST]
    assert [hex(p) for p in out.copy_to_host()] == [hex(p) for p in named]


TILE = tma.Tile((16, 64), "u32")


@cuda.jit
def copy_with_hints(x, y, x_bytes, y_bytes):
    """Copy a tile and some bytes, with a hint of each kind on every copy."""
    tile, barrier = tma.shared_tile(TILE), tma.shared_barrier()
    made = ptx.createpolicy_evict_last()
    barrier.init(1)
    tma.fence_mbarrier_init()
    barrier.arrive_expect_tx(TILE.nbytes)
    x.load(tile, (16, 0), barrier, cache_hint=tma.CachePolicy.EVICT_FIRST)
    barrier.wait(0)
    y.store(tile, (0, 0), cache_hint=made)
    ptx.cp_async_bulk_commit_group()
    ptx.cp_async_bulk_wait_group_read(0)
    barrier.arrive_expect_tx(TILE.nbytes)
    ptx.cp_async_bulk_load(tile, x_bytes, TILE.nbytes, barrier, made)
    barrier.wait(1)
    ptx.cp_async_bulk_store(y_bytes, tile, TILE.nbytes, tma.CachePolicy.EVICT_NORMAL)
    ptx.cp_async_bulk_commit_group()
    ptx.cp_async_bulk_wait_group(0)


@on_gpu
def test_cache_hints_leave_the_copies_as_they_are():
    x = np.random.default_rng(0).integers(0, 2**32, (32, 64), np.uint32)
    y, flat = zeros((16, 64), np.uint32), zeros(TILE.nbytes, np.uint8)
    source = cuda.to_device(x)
    maps = tma.tensor_map(source, TILE), tma.tensor_map(y, TILE)
    copy_with_hints[1, 1](*maps, cuda.to_device(x.view(np.uint8).reshape(-1)), flat)
    np.testing.assert_array_equal(y.copy_to_host(), x[16:])
    np.testing.assert_array_equal(flat.copy_to_host(), x[:16].view(np.uint8).reshape(-1))


# -------------------------------------------------------------------------- bulk groups


@cuda.jit
def store_in_groups(out):
    """Write one buffer 8 times over, each time after the store that reads it has read it."""
    chunk = tma.shared_tile(CHUNK)
    for k in range(8):
        chunk[cuda.threadIdx.x] = k * 64 + cuda.threadIdx.x
        tma.fence_proxy_async()
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            ptx.cp_async_bulk_store(out[k * 64 :], chunk, CHUNK.nbytes)
            ptx.cp_async_bulk_commit_group()
            ptx.cp_async_bulk_wait_group_read(0)
        cuda.syncthreads()


@on_gpu
def test_wait_group_read_frees_the_source():
    out = zeros(8 * 64, np.uint32)
    store_in_groups[1, 64](out)
    np.testing.assert_array_equal(out.copy_to_host(), np.arange(8 * 64))


@cuda.jit
def double_in_array(x, y):
    """Copy a tile to and from an array of Numba's own."""
    space, barrier = cuda.shared.array((16, 64), np.uint32, 128), tma.shared_barrier()
    thread = cuda.threadIdx.x
    if thread == 0:
        barrier.init(1)
        tma.fence_mbarrier_init()
        barrier.arrive_expect_tx(TILE.nbytes)
        x.load(space, (0, 0), barrier)
    cuda.syncthreads()
    barrier.wait(0)
    for row in range(16):
        space[row, thread] *= 2
    tma.fence_proxy_async()
    cuda.syncthreads()
    if thread == 0:
        y.store(space, (0, 0))
        ptx.cp_async_bulk_commit_group()
        ptx.cp_async_bulk_wait_group(0)


@on_gpu
def test_a_shared_array_of_numba_is_a_tile_too():
    x, y = np.random.default_rng(0).integers(0, 2**31, (16, 64), np.uint32), zeros((16, 64), "u4")
    double_in_array[1, 64](tma.tensor_map(cuda.to_device(x), TILE), tma.tensor_map(y, TILE))
    np.testing.assert_array_equal(y.copy_to_host(), 2 * x)


@cuda.jit
def swap_words(words):
    """Exchange words of shared memory by address."""
    tile, thread = tma.shared_tile(CHUNK), cuda.threadIdx.x
    ptx.st_shared_u32(tile.address + 4 * thread, words[thread])
    cuda.syncthreads()
    words[thread] = ptx.ld_shared_u32(tile.address + 4 * (63 - thread))


@on_gpu
def test_words_of_shared_memory():
    words = np.random.default_rng(0).integers(0, 2**32, 64, np.uint32)
    device = cuda.to_device(words)
    swap_words[1, 64](device)
    np.testing.assert_array_equal(device.copy_to_host(), words[::-1])
