"""A matmul in Triton's Gluon: persistent, one warp loads, two warpgroups multiply and store."""

# mypy: ignore-errors
from __future__ import annotations

from numba_tma.host.annotations import DeviceArray
from numba_tma.tools.bench.timing import Run

try:
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.hopper import (
        fence_async_shared,
        mbarrier,
        tma,
        warpgroup_mma,
        warpgroup_mma_wait,
    )
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
except ImportError:  # then there is nothing to run
    gluon = None

#: Rows and columns of a tile, stages, and rows of tiles in a group.
PLANS = ((128, 256, 3, 8), (128, 256, 3, 16), (256, 128, 3, 8))
K_BYTES = 128  # of a row of a tile: the widest swizzle


def candidates(a: DeviceArray, w: DeviceArray, c: DeviceArray, sms: int) -> dict[str, Run]:
    """Return what multiplies a by w.T, by the names of the plans, each into a copy of c."""
    if gluon is None:
        raise ImportError("no Gluon of Triton 3.6 is installed")
    return {f"Gluon, {plan}": _run(a, w, c.clone(), sms, *plan) for plan in PLANS}


def _described(array, rows, columns):
    swizzled = gl.NVMMASharedLayout(
        swizzle_byte_width=128, element_bitwidth=8 * array.element_size(), rank=2
    )
    return TensorDescriptor.from_tensor(array, [rows, columns], swizzled)


def _run(a, w, c, sms, rows, columns, stages, group):
    (M, K), N = a.shape, w.shape[0]
    deep = K_BYTES // a.element_size()
    maps = _described(a, rows, deep), _described(w, columns, deep), _described(c, rows, columns)
    launch = specialised_matmul[(min(-(-M // rows) * -(-N // columns), sms),)]

    def run():
        launch(*maps, M, N, K, STAGES=stages, GROUP=group, num_warps=8)
        return c

    return run


if gluon is not None:

    @gluon.jit
    def corner(tile, M, N, BM: gl.constexpr, BN: gl.constexpr, GROUP: gl.constexpr):
        """Return the first row and column of a tile; rows are done in groups, for L2."""
        high, wide = gl.cdiv(M, BM), gl.cdiv(N, BN)
        group = tile // (GROUP * wide)
        within = tile % (GROUP * wide)
        rows = gl.minimum(high - group * GROUP, GROUP)
        return (group * GROUP + within % rows) * BM, within // rows * BN

    @gluon.jit
    def load(a, b, M, N, K, a_tiles, b_tiles, full, empty, GROUP: gl.constexpr):
        """Fill the stages, one after another, for all tiles of this program."""
        STAGES: gl.constexpr = a_tiles.shape[0]
        BM: gl.constexpr = a.block_shape[0]
        BN: gl.constexpr = b.block_shape[0]
        BK: gl.constexpr = a.block_shape[1]
        BYTES: gl.constexpr = (BM + BN) * BK * a.dtype.primitive_bitwidth // 8
        count = 0
        for tile in range(gl.program_id(0), gl.cdiv(M, BM) * gl.cdiv(N, BN), gl.num_programs(0)):
            row, column = corner(tile, M, N, BM, BN, GROUP)
            for k in range(0, K, BK):
                stage = count % STAGES
                mbarrier.wait(empty.index(stage), (count // STAGES & 1) ^ 1)
                filled = full.index(stage)
                mbarrier.expect(filled, BYTES)
                tma.async_copy_global_to_shared(a, [row, k], filled, a_tiles.index(stage))
                tma.async_copy_global_to_shared(b, [column, k], filled, b_tiles.index(stage))
                count += 1

    @gluon.jit
    def multiply(c, M, N, K, a_tiles, b_tiles, full, empty, staged, GROUP: gl.constexpr):
        """Multiply what the stages bring; a tile is stored while the next is multiplied."""
        STAGES: gl.constexpr = a_tiles.shape[0]
        BM: gl.constexpr = a_tiles.shape[1]
        BN: gl.constexpr = b_tiles.shape[1]
        BK: gl.constexpr = a_tiles.shape[2]
        SUMS: gl.constexpr = gl.NVMMADistributedLayout(
            version=[3, 0],
            warps_per_cta=[8, 1],
            instr_shape=[16, BN, 256 // a_tiles.dtype.primitive_bitwidth],
        )
        count = 0
        for tile in range(gl.program_id(0), gl.cdiv(M, BM) * gl.cdiv(N, BN), gl.num_programs(0)):
            row, column = corner(tile, M, N, BM, BN, GROUP)
            sums = gl.zeros((BM, BN), gl.float32, SUMS)
            for k in range(0, K, BK):
                stage = count % STAGES
                mbarrier.wait(full.index(stage), count // STAGES & 1)
                transposed = b_tiles.index(stage).permute((1, 0))
                sums = warpgroup_mma(a_tiles.index(stage), transposed, sums, is_async=True)
                sums = warpgroup_mma_wait(num_outstanding=1, deps=(sums,))
                # Of the two that were under way only the one before is surely done.
                mbarrier.arrive(empty.index((count + STAGES - 1) % STAGES), pred=k > 0)
                count += 1
            sums = warpgroup_mma_wait(num_outstanding=0, deps=(sums,))
            mbarrier.arrive(empty.index((count + STAGES - 1) % STAGES))
            tma.store_wait(pendings=0)
            staged.store(sums.to(c.dtype))
            fence_async_shared()
            tma.async_copy_shared_to_global(c, [row, column], staged)
        tma.store_wait(pendings=0)

    @gluon.jit
    def specialised_matmul(a, b, c, M, N, K, STAGES: gl.constexpr, GROUP: gl.constexpr):
        """Multiply a by b.T, a tile after another for each program."""
        a_tiles = gl.allocate_shared_memory(a.dtype, [STAGES] + a.block_shape, a.layout)
        b_tiles = gl.allocate_shared_memory(b.dtype, [STAGES] + b.block_shape, b.layout)
        staged = gl.allocate_shared_memory(c.dtype, c.block_shape, c.layout)
        full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        for stage in gl.static_range(STAGES):
            mbarrier.init(full.index(stage), count=1)
            mbarrier.init(empty.index(stage), count=1)
        gl.warp_specialize(
            [
                (multiply, (c, M, N, K, a_tiles, b_tiles, full, empty, staged, GROUP)),
                (load, (a, b, M, N, K, a_tiles, b_tiles, full, empty, GROUP)),
            ],
            [1],
            [24],
        )
