"""A block-scaled matmul (mxfp8) with tcgen05 in raw rows, as a test program.

One block, a ring of stages with the scale factors of their tiles, which commits release.
"""

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma.host.scale_factors import scale_tile, to_blocked
from numba_tma.host.scale_layout import ScaleLayout
from numba_tma.host.tcgen05_descriptor import InstructionDescriptor, instruction_descriptor
from tests.kernels.tensor_matmul import Simulated

HELD = tma.Tile(4, np.uint32)
STAGES, BLOCKS = 2, 5
M, N, K = 128, 16, 128  #: of a stage
A, B = tma.Tile((M, K), "e4m3", tma.Swizzle.B128), tma.Tile((N, K), "e4m3", tma.Swizzle.B128)
SF = scale_tile(128, K)  #: one atom, of a or of b
STAGES_OF_A = tma.Tile((STAGES * M, K), "e4m3", tma.Swizzle.B128)
STAGES_OF_B = tma.Tile((STAGES * N, K), "e4m3", tma.Swizzle.B128)
ATOMS = tma.Tile((2 * STAGES, 1, 2, 256), "ue8m0")  #: of a and b, stage by stage
LAYOUT_A, LAYOUT_B = (Simulated(tile, "K", "tcgen05") for tile in (A, B))
SCALES = ScaleLayout(SF)
NBYTES = A.nbytes + B.nbytes + 2 * SF.nbytes
STEPS = LAYOUT_A.num_k_steps
IDESC = [
    instruction_descriptor(
        InstructionDescriptor(
            "mxf8f6f4", M, N, "e4m3", "e4m3", scale_type="ue8m0", scale_a_id=i, scale_b_id=i
        )
    )
    for i in range(STEPS)
]
SCALED = "mxf8f6f4.block_scale.block32"
WARPX4 = "32x128b.warpx4"
#: Columns of tensor memory: the accumulator, and the factors of a and b.
ACC, SFA, SFB, COLUMNS = 0, 16, 20, 32
FULL, EMPTY, DONE = 0, STAGES, 2 * STAGES
THREADS = 192
LOADER, MULTIPLIER = 128, 160


def scaled(x, y, xs, ys, out):
    held, bars = tma.shared_tile(HELD), tma.shared_barriers(2 * STAGES + 1)
    a, b, sf = tma.shared_tile(STAGES_OF_A), tma.shared_tile(STAGES_OF_B), tma.shared_tile(ATOMS)
    t, warp = cuda.threadIdx.x, cuda.threadIdx.x // 32
    if t == 0:
        for i in range(2 * STAGES + 1):
            bars[i].init(1)
        ptx.fence_mbarrier_init()
    if warp == 5:
        ptx.tcgen05_alloc(held, COLUMNS, 1)
        ptx.tcgen05_relinquish_alloc_permit(1)
    ptx.tcgen05_fence_before_thread_sync()
    cuda.syncthreads()
    ptx.tcgen05_fence_after_thread_sync()
    taddr = ptx.ld_shared_u32(held.address)
    if t == LOADER:
        for i in range(BLOCKS):
            s = i % STAGES
            bars[EMPTY + s].wait(i // STAGES & 1 ^ 1)
            bars[FULL + s].arrive_expect_tx(NBYTES)
            x.load(a.address + s * A.nbytes, (0, K * i), bars[FULL + s])
            y.load(b.address + s * B.nbytes, (0, K * i), bars[FULL + s])
            xs.load(sf.address + 2 * s * SF.nbytes, (0, i, 0, 0), bars[FULL + s])
            ys.load(sf.address + (2 * s + 1) * SF.nbytes, (0, i, 0, 0), bars[FULL + s])
    if t == MULTIPLIER:
        for i in range(BLOCKS):
            s = i % STAGES
            bars[FULL + s].wait(i // STAGES & 1)
            atoms = sf.address + 2 * s * SF.nbytes
            ptx.tcgen05_cp(taddr + SFA, SCALES.descriptor(atoms), WARPX4, 1)
            ptx.tcgen05_cp(taddr + SFB, SCALES.descriptor(atoms + SF.nbytes), WARPX4, 1)
            for step in range(STEPS):
                da = LAYOUT_A.descriptor(a.address + s * A.nbytes, step)
                db = LAYOUT_B.descriptor(b.address + s * B.nbytes, step)
                ptx.tcgen05_mma_block_scaled(
                    taddr + ACC,
                    da,
                    db,
                    IDESC[step],
                    taddr + SFA,
                    taddr + SFB,
                    i + step > 0,
                    SCALED,
                    1,
                )
            ptx.tcgen05_commit(bars[EMPTY + s], 1)
        ptx.tcgen05_commit(bars[DONE], 1)
    if warp < 4:
        bars[DONE].wait(0)
        ptx.tcgen05_fence_after_thread_sync()
        values = ptx.tcgen05_ld_32x32b(taddr + ACC + (warp << 21), N)
        ptx.tcgen05_wait_ld()
        for c in range(N):
            out[t, c] = values[c]
    cuda.syncwarp()
    ptx.tcgen05_fence_before_thread_sync()
    cuda.syncthreads()
    ptx.tcgen05_fence_after_thread_sync()
    if warp == 5:
        ptx.tcgen05_dealloc(taddr, COLUMNS, 1)


def launch(kernel):
    """Run `scaled`, or a mutant; return the result and the one of NumPy."""
    rng = np.random.default_rng(3)
    x, y = (rng.integers(-3, 4, (rows, BLOCKS * K)).astype(A.dtype.numpy) for rows in (M, N))
    powers = [rng.integers(-2, 3, (rows, BLOCKS * K // 32)) for rows in (M, N)]
    factors = [np.exp2(p).astype(SF.dtype.numpy) for p in powers]
    maps = [tma.tensor_map(x, A), tma.tensor_map(y, B)]
    maps += [tma.tensor_map(to_blocked(each), SF) for each in factors]
    out = np.zeros((M, N), np.uint32)
    cuda.jit(kernel)[1, THREADS](*maps, out)
    wide = [v.astype(np.float64) * np.repeat(2.0**p, 32, 1) for v, p in zip((x, y), powers)]
    return out.view(np.float32), wide[0] @ wide[1].T
