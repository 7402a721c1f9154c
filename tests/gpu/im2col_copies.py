"""One im2col copy on the GPU, from and to plain bytes, as `copies` does for tiled maps."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from tests.gpu.copies import SPACE, THREADS, Tensor, finish_load, prepare_load, prepare_store


@cuda.jit
def load_raw(tensor_map, coords, offsets, nbytes, image, completed):
    """Load one column of pixels over canaries and copy out the words of shared memory."""
    space, barrier = tma.shared_tile(SPACE), tma.shared_barrier()
    thread = cuda.threadIdx.x
    prepare_load(space.address, barrier, image.size)
    if thread == 0:
        barrier.arrive_expect_tx(nbytes)
        ptx.cp_async_bulk_prefetch_tensor_im2col(tensor_map, coords, offsets)
        ptx.cp_async_bulk_tensor_im2col_load(space, tensor_map, coords, barrier, offsets)
    finish_load(space.address, barrier, image, completed)


@cuda.jit
def store_raw(tensor_map, coords, image):
    """Fill shared memory with the words of `image` and store one column of pixels from it."""
    space = tma.shared_tile(SPACE)
    thread = cuda.threadIdx.x
    prepare_store(space.address, image)
    if thread == 0:
        ptx.cp_async_bulk_tensor_im2col_store(tensor_map, coords, space)
        ptx.cp_async_bulk_commit_group()
        ptx.cp_async_bulk_wait_group(0)


def _reduction(operation: str) -> Any:
    @cuda.jit
    def reduce_raw(tensor_map, coords, image):
        space = tma.shared_tile(SPACE)
        thread = cuda.threadIdx.x
        prepare_store(space.address, image)
        if thread == 0:
            ptx.cp_reduce_async_bulk_tensor_im2col(tensor_map, coords, space, operation)
            ptx.cp_async_bulk_commit_group()
            ptx.cp_async_bulk_wait_group(0)

    return reduce_raw


OPERATIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
REDUCTIONS = {operation: _reduction(operation) for operation in OPERATIONS}


@dataclass(frozen=True)
class Case:
    """One copy: the tile, the tensor, its pixel box, where the copy starts, the data."""

    tile: tma.Tile
    tensor: Tensor
    box: tma.PixelBox
    coords: tuple[int, ...]
    offsets: tuple[int, ...]
    oob_fill: str = "zeros"
    l2_promotion: int | None = 128
    seed: int = 0

    def memory(self) -> Any:
        """Return the block of memory in which the tensor lies: noise."""
        rng = np.random.default_rng(self.seed)
        return rng.integers(0, 256, self.tensor.nbytes, np.uint8)

    def map(self, memory: Any) -> tma.Im2colMap:
        """Return the map of the tensor in a block of device memory."""
        return tma.im2col_map(
            self.tensor.on_device(memory),
            self.tile,
            lower_corner=self.box.lower,
            upper_corner=self.box.upper,
            stride=self.box.stride,
            dtype=self.tile.dtype,
            oob_fill=self.oob_fill,
            l2_promotion=self.l2_promotion,
        )


def load(case: Case, memory: Any, window: int) -> tuple[Any, bool]:
    """Return `window` bytes of shared memory after the load of a case, and if its bytes came."""
    image, completed = cuda.device_array(window // 4, np.uint32), cuda.device_array(1, np.uint32)
    tensor_map = case.map(memory)
    offsets = tuple(np.uint16(o) for o in case.offsets)
    load_raw[1, THREADS](tensor_map.value, case.coords, offsets, case.tile.nbytes, image, completed)
    return image.copy_to_host().view(np.uint8), bool(completed.copy_to_host()[0])


def store(case: Case, memory: Any, image: Any, operation: str | None = None) -> None:
    """Store the bytes `image` through the map of a case, or reduce with them."""
    words = cuda.to_device(np.ascontiguousarray(image).view(np.uint32))
    kernel = store_raw if operation is None else REDUCTIONS[operation]
    kernel[1, THREADS](case.map(memory).value, case.coords, words)
    cuda.synchronize()
