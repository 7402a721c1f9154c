"""Matrix multiplications with tcgen05 in raw rows, persistent, as test programs.

`matmul`: one block, a ring of stages that commits release, one accumulator for several tiles of the
result. `paired`: the same for a pair of blocks, whose leader multiplies.
"""

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma.host.matrix_layout import MatrixLayout
from numba_tma.host.tcgen05_descriptor import InstructionDescriptor, instruction_descriptor

HELD = tma.Tile(4, np.uint32)
STAGES, BLOCKS, TILES = 2, 3, 2
M, N, K = 128, 16, 64  #: of a block's stage; a pair has twice as many rows of A and of B
A = tma.Tile((M, K), "bf16", tma.Swizzle.B128)
B = tma.Tile((N, K), "bf16", tma.Swizzle.B128)
STAGES_OF_A = tma.Tile((STAGES * M, K), "bf16", tma.Swizzle.B128)
STAGES_OF_B = tma.Tile((STAGES * N, K), "bf16", tma.Swizzle.B128)


class Simulated(MatrixLayout):
    """A layout whose descriptors a kernel computes on the host: in the simulator alone."""

    def descriptor(self, address, k_step=0, row=0):
        return super().descriptor(address, k_step, row)


LAYOUT_A, LAYOUT_B = (Simulated(tile, "K", "tcgen05") for tile in (A, B))
NBYTES = A.nbytes + B.nbytes
STEPS = LAYOUT_A.num_k_steps
IDESC = instruction_descriptor(InstructionDescriptor("f16", M, N, "bf16", "bf16"))
IDESC_PAIR = instruction_descriptor(InstructionDescriptor("f16", 2 * M, 2 * N, "bf16", "bf16"))
FULL, EMPTY, ACC_FULL, ACC_EMPTY = 0, STAGES, 2 * STAGES, 2 * STAGES + 1
THREADS = 192
LOADER, MULTIPLIER = 128, 160


def matmul(x, y, out):
    held, bars = tma.shared_tile(HELD), tma.shared_barriers(2 * STAGES + 2)
    a, b = tma.shared_tile(STAGES_OF_A), tma.shared_tile(STAGES_OF_B)
    t, warp = cuda.threadIdx.x, cuda.threadIdx.x // 32
    if t == 0:
        for i in range(ACC_EMPTY):
            bars[i].init(1)
        bars[ACC_EMPTY].init(128)
        ptx.fence_mbarrier_init()
    if warp == 5:
        ptx.tcgen05_alloc(held, 32, 1)
        ptx.tcgen05_relinquish_alloc_permit(1)
    ptx.tcgen05_fence_before_thread_sync()
    cuda.syncthreads()
    ptx.tcgen05_fence_after_thread_sync()
    taddr = ptx.ld_shared_u32(held.address)
    if t == LOADER:
        for i in range(TILES * BLOCKS):
            tile, k, s = i // BLOCKS, i % BLOCKS, i % STAGES
            bars[EMPTY + s].wait(i // STAGES & 1 ^ 1)
            bars[FULL + s].arrive_expect_tx(NBYTES)
            x.load(a.address + s * A.nbytes, (M * tile, K * k), bars[FULL + s])
            y.load(b.address + s * B.nbytes, (0, K * k), bars[FULL + s])
    if t == MULTIPLIER:
        for i in range(TILES * BLOCKS):
            tile, k, s = i // BLOCKS, i % BLOCKS, i % STAGES
            if k == 0:
                bars[ACC_EMPTY].wait(tile & 1 ^ 1)
                ptx.tcgen05_fence_after_thread_sync()  # of the multiplier
            bars[FULL + s].wait(i // STAGES & 1)
            for step in range(STEPS):
                da = LAYOUT_A.descriptor(a.address + s * A.nbytes, step)
                db = LAYOUT_B.descriptor(b.address + s * B.nbytes, step)
                enable = k + step > 0
                ptx.tcgen05_mma(taddr, da, db, IDESC, enable, "f16", 1)
            ptx.tcgen05_commit(bars[EMPTY + s], 1)
            if k == BLOCKS - 1:
                ptx.tcgen05_commit(bars[ACC_FULL], 1)
    if warp < 4:
        for tile in range(TILES):
            bars[ACC_FULL].wait(tile & 1)
            ptx.tcgen05_fence_after_thread_sync()  # of the epilogue
            values = ptx.tcgen05_ld_32x32b(taddr + (warp << 21), N)
            ptx.tcgen05_wait_ld()
            ptx.tcgen05_fence_before_thread_sync()  # of the epilogue
            bars[ACC_EMPTY].arrive()
            for c in range(N):
                out[M * tile + t, c] = values[c]
    cuda.syncwarp()
    ptx.tcgen05_fence_before_thread_sync()
    cuda.syncthreads()
    ptx.tcgen05_fence_after_thread_sync()
    if warp == 5:
        ptx.tcgen05_dealloc(taddr, 32, 1)


def paired(x, y, out):
    held, bars = tma.shared_tile(HELD), tma.shared_barriers(2 * STAGES + 2)
    a, b = tma.shared_tile(STAGES_OF_A), tma.shared_tile(STAGES_OF_B)
    t, warp, rank = cuda.threadIdx.x, cuda.threadIdx.x // 32, ptx.cluster_ctarank()
    if t == 0:
        for i in range(ACC_EMPTY):
            bars[i].init(1)
        bars[ACC_EMPTY].init(256)
        ptx.fence_mbarrier_init()
    if warp == 5:
        ptx.tcgen05_alloc(held, 32, 2)
        ptx.tcgen05_relinquish_alloc_permit(2)
    ptx.tcgen05_fence_before_thread_sync()
    tma.cluster_sync()
    ptx.tcgen05_fence_after_thread_sync()
    taddr = ptx.ld_shared_u32(held.address)
    if t == LOADER:
        for i in range(TILES * BLOCKS):
            tile, k, s = i // BLOCKS, i % BLOCKS, i % STAGES
            bars[EMPTY + s].wait(i // STAGES & 1 ^ 1)
            if rank == 0:
                bars[FULL + s].arrive_expect_tx(2 * NBYTES)
            leader = ptx.mapa(bars[FULL + s], 0)
            row = M * (2 * tile + rank)
            into_a, into_b = a.address + s * A.nbytes, b.address + s * B.nbytes
            ptx.cp_async_bulk_tensor_load_cta_group(into_a, x, (row, K * k), leader, 2)
            ptx.cp_async_bulk_tensor_load_cta_group(into_b, y, (N * rank, K * k), leader, 2)
    if t == MULTIPLIER and rank == 0:
        for i in range(TILES * BLOCKS):
            tile, k, s = i // BLOCKS, i % BLOCKS, i % STAGES
            if k == 0:
                bars[ACC_EMPTY].wait(tile & 1 ^ 1)
                ptx.tcgen05_fence_after_thread_sync()  # of the multiplier
            bars[FULL + s].wait(i // STAGES & 1)
            for step in range(STEPS):
                da = LAYOUT_A.descriptor(a.address + s * A.nbytes, step)
                db = LAYOUT_B.descriptor(b.address + s * B.nbytes, step)
                enable = k + step > 0
                ptx.tcgen05_mma(taddr, da, db, IDESC_PAIR, enable, "f16", 2)
            ptx.tcgen05_commit(bars[EMPTY + s], 2, 3)
            if k == BLOCKS - 1:
                ptx.tcgen05_commit(bars[ACC_FULL], 2, 3)
    if warp < 4:
        for tile in range(TILES):
            bars[ACC_FULL].wait(tile & 1)
            ptx.tcgen05_fence_after_thread_sync()  # of the epilogue
            values = ptx.tcgen05_ld_32x32b(taddr + (warp << 21), 2 * N)
            ptx.tcgen05_wait_ld()
            ptx.tcgen05_fence_before_thread_sync()  # of the epilogue
            ptx.mbarrier_arrive_remote(ptx.mapa(bars[ACC_EMPTY], 0))
            for c in range(2 * N):
                out[M * (2 * tile + rank) + t, c] = values[c]
    cuda.syncwarp()
    ptx.tcgen05_fence_before_thread_sync()
    tma.cluster_sync()
    ptx.tcgen05_fence_after_thread_sync()
    if warp == 5:
        ptx.tcgen05_dealloc(taddr, 32, 2)


def launch(kernel):
    """Run `matmul` or `paired`, or a mutant; return the result and the one of NumPy."""
    blocks = 2 if kernel.__name__ == "paired" else 1
    rng = np.random.default_rng(blocks)
    x = rng.integers(-3, 4, (TILES * blocks * M, BLOCKS * K)).astype(A.dtype.numpy)
    y = rng.integers(-3, 4, (blocks * N, BLOCKS * K)).astype(B.dtype.numpy)
    out = np.zeros((TILES * blocks * M, blocks * N), np.uint32)
    compiled = cuda.jit(tma.cluster(2)(kernel) if blocks == 2 else kernel)
    compiled[blocks, THREADS](tma.tensor_map(x, A), tma.tensor_map(y, B), out)
    return out.view(np.float32), x.astype(np.float32) @ y.astype(np.float32).T
