"""Arrays of maps on the GPU: the right tensor for a dynamic index, and maps of another address."""

import ctypes

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma import Swizzle, TensorMapArray, Tile, ptx, ragged_tensor_map, tensor_map
from numba_tma.host.driver import NBYTES, address_of
from tests.gpu.worker import on_gpu

TILE = Tile((16, 32), "f32", Swizzle.B128)
TRIES = 100_000


@cuda.jit(device=True)
def copy_tile(source, target, at, failed):
    """Copy one tile, by one thread."""
    tile, full = tma.shared_tile(TILE), tma.shared_barrier()
    full.init(1)
    tma.fence_mbarrier_init()
    full.arrive_expect_tx(TILE.nbytes)
    source.load(tile, at, full)
    done = False
    for _ in range(TRIES):
        if full.test_wait(0):
            done = True
            break
    if done:
        target.store(tile, at)
        ptx.cp_async_bulk_commit_group()
        ptx.cp_async_bulk_wait_group(0)
    else:
        failed[0] = 1


@cuda.jit
def permute(sources, targets, order, failed):
    """Copy tile (blockIdx.y) of source order[blockIdx.x] to target blockIdx.x."""
    i = cuda.blockIdx.x
    if cuda.threadIdx.x == 0:
        copy_tile(sources[order[i]], targets[i], (16 * cuda.blockIdx.y, 0), failed)


def matrices(count, rows=64):
    hosts = [
        np.random.default_rng(i).standard_normal((rows, 32)).astype("f4") for i in range(count)
    ]
    return hosts, [cuda.to_device(host) for host in hosts]


@on_gpu
def test_a_dynamic_index_over_tensors_of_other_addresses():
    count = 37
    hosts, xs = matrices(count)
    ys = [cuda.to_device(np.full((64, 32), 7, np.float32)) for _ in range(count)]
    order, failed = np.random.default_rng(9).permutation(count), cuda.to_device(np.zeros(1, "i4"))
    sources, targets = (TensorMapArray([tensor_map(a, TILE) for a in group]) for group in (xs, ys))
    assert sources.address % 128 == 0
    for _ in range(3):
        permute[(count, 4), 32](sources, targets, cuda.to_device(order), failed)
    assert not failed.copy_to_host()[0]
    for i in range(count):
        np.testing.assert_array_equal(ys[i].copy_to_host(), hosts[order[i]])


@on_gpu
def test_maps_of_tensors_of_other_shapes():
    """Rows differ from map to map: each clips at its own tensor's end."""
    hosts = [
        np.random.default_rng(r).standard_normal((r, 32)).astype("f4") for r in (1, 16, 17, 40)
    ]
    memory = [cuda.to_device(np.full((64, 32), 7, np.float32)) for _ in hosts]
    sources = TensorMapArray([tensor_map(cuda.to_device(h), TILE) for h in hosts])
    targets = TensorMapArray([tensor_map(m[: len(h)], TILE) for m, h in zip(memory, hosts)])
    failed = cuda.to_device(np.zeros(1, "i4"))
    permute[(4, 4), 32](sources, targets, cuda.to_device(np.arange(4)), failed)
    assert not failed.copy_to_host()[0]
    for host, padded in zip(hosts, memory):
        expected = np.full((64, 32), 7, np.float32)
        expected[: len(host)] = host
        np.testing.assert_array_equal(padded.copy_to_host(), expected)


@on_gpu
def test_an_array_made_on_the_stream_of_the_kernel():
    hosts, xs = matrices(4)
    ys = [cuda.to_device(np.zeros((64, 32), np.float32)) for _ in range(4)]
    stream = cuda.stream()
    maps = [TensorMapArray([tensor_map(a, TILE) for a in g], stream=stream) for g in (xs, ys)]
    failed, order = cuda.to_device(np.zeros(1, "i4")), cuda.to_device(np.arange(4))
    permute[(4, 4), 32, stream](*maps, order, failed)
    stream.synchronize()
    for i in range(4):
        np.testing.assert_array_equal(ys[i].copy_to_host(), hosts[i])


@cuda.jit
def store_sequences(maps, starts, lengths):
    tile = tma.shared_tile(TILE)
    for i in range(512):
        tile[i // 32, i % 32] = 5
    tma.fence_proxy_async()
    s = cuda.blockIdx.x
    maps[s % 2].sequence(starts[s], lengths[s]).store(tile, (0, 0))
    ptx.cp_async_bulk_commit_group()
    ptx.cp_async_bulk_wait_group(0)


@on_gpu
def test_an_array_of_ragged_maps():
    arrays = [cuda.to_device(np.zeros((100, 32), np.float32)) for _ in range(2)]
    maps = TensorMapArray([ragged_tensor_map(a, TILE) for a in arrays])
    starts, lengths = np.array([3, 50, 40, 99], "i4"), np.array([5, 16, 0, 1], "i4")
    store_sequences[4, 1](maps, cuda.to_device(starts), cuda.to_device(lengths))
    for i, array in enumerate(arrays):
        expected = np.zeros((100, 32), np.float32)
        for s in range(i, 4, 2):
            expected[starts[s] : starts[s] + lengths[s]] = 5
        np.testing.assert_array_equal(array.copy_to_host(), expected)


@cuda.jit
def copy_one(source, target, failed):
    if cuda.threadIdx.x == 0:
        copy_tile(source, target, (16, 0), failed)


@on_gpu
def test_a_replaced_address():
    hosts, xs = matrices(2)
    y = cuda.to_device(np.zeros((64, 32), np.float32))
    failed = cuda.to_device(np.zeros(1, "i4"))
    first = tensor_map(xs[0], TILE)
    second = first.replace_address(xs[1])
    target = tensor_map(y, TILE)
    for source, host in ((second, hosts[1]), (first, hosts[0])):
        copy_one[1, 32](source, target, failed)
        np.testing.assert_array_equal(y.copy_to_host()[16:32], host[16:32])
    # What the driver replaces is all that tells it from a map encoded for that tensor.
    encoded = tensor_map(xs[1], TILE)
    images = [ctypes.string_at(address_of(m.value), NBYTES) for m in (second, encoded)]
    assert images[0] == images[1]
