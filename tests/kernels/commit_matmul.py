"""A matmul through a ring that commits release, and accumulators that they hand over.

D = A B' of bf16 operands, both K-major, with the rows of `numba_tma.ptx`. A block, or a CTA pair of
blocks, makes tiles of D one after the other: 128 rows of a block x `N` columns.
"""

from __future__ import annotations

import functools

from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma.host.tcgen05_descriptor import InstructionDescriptor, instruction_descriptor

W = tma.Warps
ROLES = tma.Roles(epilogue=W(4), mma=W(1), load=W(1))
ROWS, N, K = 128, 32, 64
STEP = 16  #: of K, in one product
#: The upper bits of a descriptor of a K-major B128 tile: SBO 1,024 B, version 1, swizzle 2.
TEMPLATE = 1 << 16 | 64 << 32 | 1 << 46 | 2 << 61


def tiles(group):
    """Return the tiles of A and B that a block loads into a stage."""
    swizzle = tma.Swizzle.B128
    return tma.Tile((ROWS, K), "bf16", swizzle), tma.Tile((N // group, K), "bf16", swizzle)


@functools.cache
def matmul(group, stages=2, release=True, waits=True):
    """Return the kernel of a block (1) or a pair (2); without `release` or `waits` a mutant."""
    A, B = tiles(group)
    PIPE = tma.TilePipeline(
        stages, a=A, b=B, producer=ROLES.load, consumer=ROLES.mma, released_by="tcgen05",
        cta_group=group,
    )  # fmt: skip
    OUT = tma.OutputTilePipeline(
        2, tma.Tile((ROWS, N), "f32"), mma=ROLES.mma, epilogue=ROLES.epilogue, memory="tensor",
        cta_group=group,
    )  # fmt: skip
    described = InstructionDescriptor("f16", ROWS * group, N, "bf16", "bf16", "f32")
    idesc, share = int(instruction_descriptor(described)), N // group

    @cuda.jit(device=True)
    def multiply(d, stage, k):
        a = (stage.a.address >> 4) | TEMPLATE
        b = (stage.b.address >> 4) | TEMPLATE
        for step in range(K // STEP):
            more = k > 0 or step > 0
            ptx.tcgen05_mma(d, a + 2 * step, b + 2 * step, idesc, more, "f16", group)

    @cuda.jit
    @tma.cluster((group, 1))
    def kernel(a, b, out, num_tiles, num_k):
        pipe, accumulators = PIPE.start(sync=False), OUT.start()
        rank = cuda.blockIdx.x
        if pipe.is_producer():
            for i, stage in pipe.produce(0, num_tiles * num_k):
                tile, k = i // num_k, i % num_k
                row = ROWS * (group * tile + rank)
                a.load(stage.a, (row, K * k), stage.barrier, cta_group=group)
                b.load(stage.b, (share * rank, K * k), stage.barrier, cta_group=group)
        elif pipe.is_consumer():
            for _, accumulator in accumulators.produce(0, num_tiles):
                consumer = pipe.consumer()
                if consumer.enters():
                    for k in range(num_k):
                        stage = consumer.wait() if waits else consumer.wait_if_needed(True)
                        multiply(accumulator.address, stage, k)
                        if release:
                            consumer.release()
        else:
            for tile, accumulator in accumulators.consume(0, num_tiles):
                row = ROWS * (group * tile + rank) + ROLES.epilogue.thread()
                values = accumulator.load(0, N)
                for column in range(N):
                    out[row, column] = values[column]
        accumulators.close()
        pipe.close()

    return kernel
