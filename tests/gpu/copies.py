"""One tensor copy on the GPU, from and to plain bytes: what the tile tests and measurements share.

The kernels take a bare descriptor and coordinates and move raw words of shared memory, so that one
compilation per rank serves every tile.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma import ptx

SHARED_BYTES = 48 * 1024
SPACE = tma.Tile((SHARED_BYTES // 128, 128), "u8", tma.Swizzle.B128)  # aligned for any swizzle
SWIZZLES = [s for s in tma.Swizzle if s.atom == 16]  # those of compute capability 9.0
CANARY = 0xA5C3E187
GUARD_BYTES = 1024  # shared memory past the tile that a load must leave alone
THREADS = 128
TRIES = 100_000  # milliseconds; a copy takes microseconds


@cuda.jit(device=True)
def prepare_load(address, barrier, words):
    """Put canaries at `address`, which the copy engine then may overwrite, and make the barrier."""
    for i in range(cuda.threadIdx.x, words, THREADS):
        ptx.st_shared_u32(address + 4 * i, CANARY)
    tma.fence_proxy_async()
    if cuda.threadIdx.x == 0:
        barrier.init(1)
        tma.fence_mbarrier_init()
    cuda.syncthreads()


@cuda.jit(device=True)
def finish_load(address, barrier, image, completed):
    """Wait for the barrier's first phase, not for ever, and copy out the words at `address`."""
    if cuda.threadIdx.x == 0:
        done = False
        for _ in range(TRIES):
            if barrier.test_wait(0):
                done = True
                break
        completed[0] = 1 if done else 0
    cuda.syncthreads()
    for i in range(cuda.threadIdx.x, image.size, THREADS):
        image[i] = ptx.ld_shared_u32(address + 4 * i)


@cuda.jit(device=True)
def prepare_store(address, image):
    """Put the words of `image` at `address`, where the copy engine then may read them."""
    for i in range(cuda.threadIdx.x, image.size, THREADS):
        ptx.st_shared_u32(address + 4 * i, image[i])
    tma.fence_proxy_async()
    cuda.syncthreads()


@cuda.jit
def load_raw(tensor_map, coords, nbytes, image, completed):
    """Load one box over canaries and copy out the words of shared memory."""
    space, barrier = tma.shared_tile(SPACE), tma.shared_barrier()
    thread = cuda.threadIdx.x
    prepare_load(space.address, barrier, image.size)
    if thread == 0:
        barrier.arrive_expect_tx(nbytes)
        ptx.cp_async_bulk_tensor_load(space, tensor_map, coords, barrier)
    finish_load(space.address, barrier, image, completed)


@cuda.jit
def store_raw(tensor_map, coords, image):
    """Fill shared memory with the words of `image` and store one box from it."""
    space = tma.shared_tile(SPACE)
    thread = cuda.threadIdx.x
    prepare_store(space.address, image)
    if thread == 0:
        ptx.cp_async_bulk_tensor_store(tensor_map, coords, space)
        ptx.cp_async_bulk_commit_group()
        ptx.cp_async_bulk_wait_group(0)


@dataclass(frozen=True)
class Tensor:
    """A strided tensor inside a block of memory: `start` bytes in, `strides` in bytes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    start: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the memory block, the padding after the tensor included."""
        extents = zip(self.shape, self.strides)
        end = self.start + sum((n - 1) * s for n, s in extents) + self.itemsize
        return -(-end // 64) * 64 + 64

    def of(self, memory: Any) -> Any:
        """Return the tensor in a NumPy block of bytes, as unsigned integers."""
        return np.ndarray(self.shape, f"u{self.itemsize}", memory.data, self.start, self.strides)

    def on_device(self, memory: Any) -> "DeviceTensor":
        """Return the tensor in a block of device memory."""
        return DeviceTensor(self, memory)


class DeviceTensor:
    """What `tensor_map` takes: memory that only knows the CUDA array interface."""

    def __init__(self, tensor: Tensor, memory: Any) -> None:
        self.memory = memory
        self.__cuda_array_interface__ = {
            "shape": tensor.shape,
            "strides": tensor.strides,
            "typestr": f"<u{tensor.itemsize}" if tensor.itemsize > 1 else "|u1",
            "data": (memory.device_ctypes_pointer.value + tensor.start, False),
            "version": 3,
        }


def load(tensor_map: Any, coords: tuple[int, ...], nbytes: int, window: int) -> tuple[Any, bool]:
    """Return `window` bytes of shared memory after a load that expects `nbytes`, and if they came.

    The copied bytes lie at its start; canaries are left where nothing was copied.
    """
    image, completed = cuda.device_array(window // 4, np.uint32), cuda.device_array(1, np.uint32)
    load_raw[1, THREADS](tensor_map.value, coords, nbytes, image, completed)
    return image.copy_to_host().view(np.uint8), bool(completed.copy_to_host()[0])


def store(tensor_map: Any, coords: tuple[int, ...], image: Any) -> None:
    """Store the bytes `image` through the map."""
    words = cuda.to_device(np.ascontiguousarray(image).view(np.uint32))
    store_raw[1, THREADS](tensor_map.value, coords, words)
    cuda.synchronize()


def copied_bytes(tile: tma.Tile) -> Any:
    """Return for each byte of a tile's image whether a load writes it; padding stays as it was."""
    bits = f"u{tile.itemsize}"
    ones = np.full(tile.shape, -1).astype(bits)
    plain = tma.Tile(tile.shape, f"u{8 * tile.itemsize}", tile.swizzle)
    return tma.reference_tile(ones, plain, (0,) * tile.ndim) != 0


def canaries(nbytes: int) -> Any:
    """Return what shared memory holds where nothing was copied."""
    return np.full(nbytes // 4, CANARY, np.uint32).view(np.uint8)
