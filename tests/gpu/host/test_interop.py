"""Arrays, maps and streams of other libraries, and maps as arguments of device functions."""

import functools
import gc
import importlib.util
import weakref

import numpy as np
import pytest
from numba import cuda, types

import numba_tma as tma
from numba_tma import ptx
from numba_tma.kernels.copy.api import copy as copy_array
from numba_tma.kernels.rows.rmsnorm import rmsnorm
from tests.gpu.worker import IMPORT_SECONDS, on_gpu

needs_torch = pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="no torch here")
needs_cupy = pytest.mark.skipif(not importlib.util.find_spec("cupy"), reason="no CuPy here")

SHAPE = (48, 64)


@functools.cache
def copy_kernel(tile):
    """Return the kernel whose blocks copy a tile each."""
    rows = tile.shape[0]

    @cuda.jit
    def copy_tile(x, y):
        space, barrier = tma.shared_tile(tile), tma.shared_barrier()
        row = cuda.blockIdx.x * rows
        barrier.init(1)
        tma.fence_mbarrier_init()
        barrier.arrive_expect_tx(tile.nbytes)
        x.load(space, (row, 0), barrier)
        barrier.wait(0)
        y.store(space, (row, 0))
        ptx.cp_async_bulk_commit_group()
        ptx.cp_async_bulk_wait_group(0)

    return copy_tile


def tile_of(dtype):
    return tma.Tile((16, SHAPE[1]), dtype)


def copy(x, y, dtype, stream=0):
    """Copy an array of SHAPE by tiles; `dtype` is what its bits are."""
    tile = tile_of(dtype)
    maps = [tma.tensor_map(array, tile, dtype=dtype) for array in (x, y)]
    copy_kernel(tile)[SHAPE[0] // 16, 1, stream](*maps)


def noise(dtype):
    return np.random.default_rng(0).integers(0, 100, SHAPE).astype(dtype)


# ------------------------------------------------------------------------------ arrays


@pytest.mark.parametrize("name", ["u8", "f16", "f32", "f64", "bf16", "e4m3", "e5m2"])
@needs_torch
@on_gpu(limit=IMPORT_SECONDS)
def test_torch(name):
    import torch

    dtype = {
        "u8": torch.uint8, "f16": torch.float16, "f32": torch.float32, "f64": torch.float64,
        "bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2,
    }[name]  # fmt: skip
    x = torch.from_numpy(noise(np.float32)).cuda().to(dtype)
    y = torch.zeros(SHAPE, device="cuda").to(dtype)
    tile = tma.Tile((16, SHAPE[1]), dtype)
    assert tile.dtype.name == name
    copy_kernel(tile)[3, 1](tma.tensor_map(x, tile), tma.tensor_map(y, tile))
    torch.cuda.synchronize()
    assert y.float().abs().sum() > 0
    assert torch.equal(x.view(torch.uint8), y.view(torch.uint8))


@pytest.mark.parametrize(
    ("stored", "name"),
    [("u1", "u8"), ("f2", "f16"), ("f4", "f32"), ("i8", "i64"), ("u2", "bf16"), ("u1", "e4m3")],
)
@needs_cupy
@on_gpu(limit=IMPORT_SECONDS)
def test_cupy(stored, name):
    import cupy

    x, y = cupy.asarray(noise(stored)), cupy.zeros(SHAPE, stored)
    cupy.cuda.Device().synchronize()
    copy(x, y, name)
    cuda.synchronize()
    np.testing.assert_array_equal(cupy.asnumpy(y), noise(stored))


@pytest.mark.parametrize(
    ("stored", "name"),
    [("u1", "u8"), ("f2", "f16"), ("f4", "f32"), ("f8", "f64"), ("u2", "bf16"), ("u1", "e5m2")],
)
@on_gpu
def test_numba(stored, name):
    x, y = cuda.to_device(noise(stored)), cuda.to_device(np.zeros(SHAPE, stored))
    copy(x, y, name)
    np.testing.assert_array_equal(y.copy_to_host(), noise(stored))


class OnlyInterface:
    """An array of which only ``__cuda_array_interface__`` is known."""

    def __init__(self, array):
        self.__cuda_array_interface__ = array.__cuda_array_interface__
        self.owner = array


class OnlyDLPack:
    """An array of which only DLPack is known."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@needs_torch
@on_gpu(limit=IMPORT_SECONDS)
def test_protocols():
    import torch

    x = torch.from_numpy(noise(np.float32)).cuda()
    for wrap in (OnlyInterface, OnlyDLPack):
        y = torch.zeros_like(x)
        copy(wrap(x), wrap(y), "f32")
        torch.cuda.synchronize()
        assert torch.equal(x, y), wrap


@needs_torch
@on_gpu(limit=IMPORT_SECONDS)
def test_a_map_keeps_its_tensor_and_the_cache_does_not():
    import torch

    values = noise(np.float32)
    x, y = torch.from_numpy(values).cuda(), torch.zeros(SHAPE, device="cuda")
    tile, alive = tile_of("f32"), weakref.ref(x)
    x_map, y_map = tma.tensor_map(x, tile), tma.tensor_map(y, tile)
    del x
    others = [torch.full(SHAPE, -1.0, device="cuda") for _ in range(8)]  # would take freed memory
    copy_kernel(tile)[3, 1](x_map, y_map)
    np.testing.assert_array_equal(y.cpu().numpy(), values)
    assert x_map.array is alive() and len(others) == 8
    del x_map
    gc.collect()
    assert alive() is None


# -------------------------------------------------------------------------------- maps


@needs_torch
@on_gpu(limit=IMPORT_SECONDS)
def test_descriptors_of_cuda_core():
    import torch
    from cuda.core import Device
    from cuda.core.utils import StridedMemoryView

    Device(0).set_current()
    x = torch.from_numpy(noise(np.float32)).cuda()
    y, tile = torch.zeros_like(x), tile_of("f32")
    maps = [
        StridedMemoryView.from_any_interface(array, stream_ptr=-1).as_tensor_map(tile.shape)
        for array in (x, y)
    ]
    copy_kernel(tile)[3, 1](*maps)
    torch.cuda.synchronize()
    assert torch.equal(x, y)


NARROW, WIDE = tma.Tile((16, 32), "f32"), tma.Tile((16, 64), "f32")


@cuda.jit(device=True)
def fetch(tensor_map, tile, coords, barrier):
    tensor_map.load(tile, coords, barrier)


@cuda.jit
def add_through_tuples(pair, mixed, out):
    """Sum tiles of two like maps and of a wider third one, into a map in a tuple."""
    a, b, c = tma.shared_tile(NARROW), tma.shared_tile(NARROW), tma.shared_tile(WIDE)
    barrier = tma.shared_barrier()
    lane = cuda.threadIdx.x
    if lane == 0:
        barrier.init(1)
        tma.fence_mbarrier_init()
        barrier.arrive_expect_tx(2 * NARROW.nbytes + WIDE.nbytes)
        fetch(pair[0], a, (0, 0), barrier)
        fetch(pair[1], b, (16, 32), barrier)
        fetch(mixed[0], c, (32, 0), barrier)
    cuda.syncthreads()
    barrier.wait(0)
    for row in range(16):
        a[row, lane] += b[row, lane] + c[row, 2 * lane] * mixed[1]
    tma.fence_proxy_async()
    cuda.syncthreads()
    if lane == 0:
        out[0].store(a, (0, 0))
        ptx.cp_async_bulk_commit_group()
        ptx.cp_async_bulk_wait_group(0)


@on_gpu
def test_maps_in_tuples_and_device_functions():
    values, out = noise(np.float32), cuda.to_device(np.zeros((16, 32), np.float32))
    x = cuda.to_device(values)
    like = tma.tensor_map(x, NARROW)
    pair, mixed = (like, tma.tensor_map(x, NARROW)), (tma.tensor_map(x, WIDE), 3)
    add_through_tuples[1, 32](pair, mixed, (tma.tensor_map(out, NARROW),))
    expected = values[:16, :32] + values[16:32, 32:] + 3 * values[32:, ::2]
    np.testing.assert_array_equal(out.copy_to_host(), expected)


@functools.cache
def generic_kernel(tile):
    """Return a kernel over a device function that takes any map of rank 2."""
    (rows, columns), u32, i32 = tile.shape, types.uint32, types.int32

    @cuda.jit(types.void(tma.TensorMapType(2), u32, i32, i32, u32), device=True)
    def fetch_any(tensor_map, tile, row, column, barrier):
        ptx.cp_async_bulk_tensor_load(tile, tensor_map, (row, column), barrier)

    @cuda.jit
    def sum_tile(x, row, total):
        space, barrier = tma.shared_tile(tile), tma.shared_barrier()
        barrier.init(1)
        tma.fence_mbarrier_init()
        barrier.arrive_expect_tx(tile.nbytes)
        fetch_any(x, space.address, row, 0, barrier.address)
        barrier.wait(0)
        for i in range(rows):
            for j in range(columns):
                total[0] += space[i, j]

    return sum_tile


@on_gpu
def test_a_device_function_for_any_map_of_a_rank():
    for tile in (NARROW, tma.Tile((8, 32), "i32", tma.Swizzle.B128)):
        values = noise(tile.dtype.numpy)
        total = cuda.to_device(np.zeros(1))
        x = tma.tensor_map(cuda.to_device(values), tile)
        generic_kernel(tile)[1, 1](x, 9, total)
        assert total.copy_to_host()[0] == values[9 : 9 + tile.shape[0], :32].sum()


# ----------------------------------------------------------------------------- streams

LATE = 30_000_000  # clock cycles for which a stream is held up, about 15 ms


def check_order(torch_stream, launch):
    """Launch behind a late copy: only on the same stream does the kernel see what it brings."""
    import torch

    x, y = torch.zeros(SHAPE, device="cuda"), torch.zeros(SHAPE, device="cuda")
    launch(x, y)  # compile and load before anything is held up
    ones = torch.ones(SHAPE, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(torch_stream):
        torch.cuda._sleep(LATE)
        x.copy_(ones)
    launch(x, y)
    torch_stream.synchronize()
    assert torch.equal(y, ones)


@needs_torch
@on_gpu(limit=IMPORT_SECONDS)
def test_streams_of_torch():
    import torch

    stream = torch.cuda.Stream()
    numba_stream = cuda.external_stream(stream.cuda_stream)
    check_order(stream, lambda x, y: copy(x, y, "f32", numba_stream))
    check_order(stream, lambda x, y: copy_array(x, y, stream=stream))


@needs_torch
@on_gpu(limit=IMPORT_SECONDS)
def test_streams_of_numba():
    import torch

    stream = cuda.stream()
    torch_stream = torch.cuda.ExternalStream(int(stream.handle))
    check_order(torch_stream, lambda x, y: copy(x, y, "f32", stream))
    check_order(torch_stream, lambda x, y: copy_array(x, y, stream=stream))


@needs_cupy
@needs_torch
@on_gpu(limit=IMPORT_SECONDS)
def test_streams_of_cupy():
    import cupy
    import torch

    stream = cupy.cuda.Stream(non_blocking=True)
    torch_stream = torch.cuda.ExternalStream(stream.ptr)
    check_order(torch_stream, lambda x, y: copy_array(x, y, stream=stream))


@needs_torch
@on_gpu(limit=IMPORT_SECONDS)
def test_cuda_graphs():
    import torch

    x = torch.zeros(SHAPE, device="cuda")
    y, z, w = torch.zeros_like(x), torch.zeros_like(x), torch.ones(SHAPE[1], device="cuda")
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()

    def launch():
        copy(x, y, "f32", cuda.external_stream(stream.cuda_stream))
        rmsnorm(y, w, out=z, stream=stream)

    launch()  # compile before the capture
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        launch()
    for seed in range(3):
        x.copy_(torch.from_numpy(np.random.default_rng(seed).standard_normal(SHAPE, np.float32)))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(x, y)
        torch.testing.assert_close(z, torch.nn.functional.rms_norm(x, SHAPE[1:], w, 1e-6))
