"""A kernel of one tcgen05 product for each kind, and the same product in NumPy.

The operands are images: bytes that threads write to shared memory, and descriptors of them.
"""

import ml_dtypes
import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma import simulator as sim
from numba_tma.host.tcgen05_descriptor import InstructionDescriptor, instruction_descriptor

HELD = tma.Tile(4, np.uint32)
TYPES = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "u8": np.uint8,
    "i8": np.int8, "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
    "e2m3": ml_dtypes.float6_e2m3fn, "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
}  # fmt: skip
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e2m3": 6, "e3m2": 6, "e2m1": 4}


def integers(rng, name, shape):
    """Return small numbers that the type holds, as float64."""
    least, most = (0, 5) if name == "u8" else (-2, 3)
    return rng.integers(least, most, shape).astype(np.float64)


def codes(values, name):
    """Return the elements' bits, a row of bytes or words each."""
    stored = values.astype(TYPES[name])
    return stored.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[stored.itemsize])


def row_bytes(values, name, kind="f8f6f4"):
    """Return the 32 bytes of each row of a K-major operand."""
    rows, bits = len(values), BITS.get(name, 8)
    elements = codes(values, name)
    if bits >= 8:
        return np.ascontiguousarray(elements).view(np.uint8).reshape(rows, -1)
    if kind.startswith("mxf4"):
        return elements[:, ::2] | elements[:, 1::2] << 4
    out = np.full((rows, len(values[0]) // 16, 16), 0xEE, np.uint8)  # the gaps hold anything
    for i in range(16):
        for bit in range(bits):
            place = bits * i + bit
            group = elements.reshape(rows, -1, 16)[..., i] >> bit & 1
            out[..., place // 8] &= np.uint8(0xFF ^ 1 << place % 8)
            out[..., place // 8] |= (group << place % 8).astype(np.uint8)
    return out.reshape(rows, -1)


def chunked(rows_of_32_bytes):
    """Return the unswizzled K-major image: chunks of 16 B, each an axis of all rows."""
    return np.concatenate([rows_of_32_bytes[:, :16].ravel(), rows_of_32_bytes[:, 16:].ravel()])


def descriptor(address, rows):
    """Return the descriptor of an unswizzled K-major image of `rows` rows."""
    return address // 16 | rows << 16 | 8 << 32 | 1 << 46  # LBO 16 rows, SBO 128


def idesc(kind, m, n, a, b, d="f32", **fields):
    return instruction_descriptor(InstructionDescriptor(kind, m, n, a, b, d, **fields))


def run(body, images, columns=512, threads=128, cluster=1):
    """Run `body(rank, base, at, barrier)` in warp 0; return each block's columns from `base` on.

    `images` are arrays of bytes, by block or for all blocks; `at` has their shared addresses.
    """
    memories = {}
    sizes = [image.shape[-1] for image in images]
    # aligned to 1024 B, as the patterns of swizzles are
    tiles = [tma.Tile((-(-size // 128), 128), np.uint8, tma.Swizzle.B128) for size in sizes]

    def kernel():
        held, barrier, rank = tma.shared_tile(HELD), tma.shared_barrier(), 0
        places = [tma.shared_tile(tile).address for tile in tiles]
        t = cuda.threadIdx.x
        if cluster > 1:
            rank = ptx.cluster_ctarank()
        if t == 0:
            barrier.init(1)
            for place, image in zip(places, images):
                data = image[rank] if image.ndim == 2 else image
                sim.shared_write(place, np.ascontiguousarray(data))
            ptx.fence_mbarrier_init()
            ptx.fence_proxy_async()
        if t < 32:
            cuda.syncwarp()
            ptx.tcgen05_alloc(held, columns, cluster)
        ptx.tcgen05_fence_before_thread_sync()
        cuda.syncthreads()
        if cluster > 1:
            tma.cluster_sync()
        ptx.tcgen05_fence_after_thread_sync()
        base = ptx.ld_shared_u32(held.address)
        if t < 32:
            body(rank, base, places, barrier)
        ptx.tcgen05_fence_before_thread_sync()
        cuda.syncthreads()
        if cluster > 1:
            tma.cluster_sync()
        ptx.tcgen05_fence_after_thread_sync()
        if t == 0:
            cta = sim.thread.current().cta
            memories[rank] = cta.tensor_memory.data[:, base:].copy()
        if t < 32:
            cuda.syncwarp()
            ptx.tcgen05_dealloc(base, columns, cluster)

    if cluster > 1:
        kernel = tma.cluster(cluster)(kernel)
    cuda.jit(kernel)[cluster, threads]()
    return [memories[rank] for rank in range(cluster)]


def as_type(cells, d):
    """Return cells of tensor memory as numbers."""
    if d == "f16":
        return (cells & 0xFFFF).astype(np.uint16).view(np.float16).astype(np.float64)
    return cells.view(np.float32 if d == "f32" else np.int32).astype(np.float64)
