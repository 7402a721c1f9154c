"""Kernels that hand accumulators over, from the warps that make them to an epilogue.

Each copies `n` tiles of `x` to `out`, transposed, so that a thread reads what others wrote. In
tensor memory, stores by threads stand for the matrix multiplications. The same kernels run in the
simulator and, those in shared memory, on a GPU; those with arguments for the compiler have a
golden, and each of these is written by hand as well.
"""

from __future__ import annotations

import functools

import numpy as np
from numba import cuda, types

import numba_tma as tma
from numba_tma import ptx
from numba_tma.backend.interface import u32

ROWS, COLUMNS = 16, 8
W = tma.Warps


def roles(mma=None, epilogue=None):
    """Return the roles of a block: four warps each unless it is said otherwise."""
    return tma.Roles(mma=mma or W(4), epilogue=epilogue or W(4))


def in_shared(stages, groups=(None, None), dtype="f32"):
    """Return roles and pipeline with accumulators in shared memory."""
    ROLES = roles(*groups)
    tile = tma.Tile((ROWS, COLUMNS), dtype)
    return ROLES, tma.OutputTilePipeline(stages, tile, mma=ROLES.mma, epilogue=ROLES.epilogue)


def in_tensor_memory(stages, columns=32, dtype="f32"):
    """Return roles and pipeline with accumulators in tensor memory."""
    ROLES = roles()
    return ROLES, tma.OutputTilePipeline(
        stages,
        tma.Tile((128, columns), dtype),
        mma=ROLES.mma,
        epilogue=ROLES.epilogue,
        memory="tensor",
    )


# -------------------------------------------------------------------- in shared memory


@functools.cache
def shared_loop(stages, groups=(None, None), dtype="f32"):
    """Return roles and kernel: the loops."""
    ROLES, OUT = in_shared(stages, groups, dtype)
    size, writers, readers = ROWS * COLUMNS, ROLES.mma.members, ROLES.epilogue.members

    @cuda.jit
    def kernel(x, out, n):
        pipe = OUT.start()
        if ROLES.mma.is_member():
            for tile, stage in pipe.produce(0, n):
                for i in range(ROLES.mma.thread(), size, writers):
                    row, column = i // COLUMNS, i % COLUMNS
                    stage.acc[row, column] = x[tile, row, column]
        elif ROLES.epilogue.is_member():
            for tile, stage in pipe.consume(0, n):
                for i in range(ROLES.epilogue.thread(), size, readers):
                    column, row = i // ROWS, i % ROWS
                    out[tile, column, row] = stage.acc[row, column]
        pipe.close()

    return ROLES, kernel


@functools.cache
def shared_explicit(stages, groups=(None, None), dtype="f32"):
    """Return roles and kernel: the four names of the explicit form."""
    ROLES, OUT = in_shared(stages, groups, dtype)
    size, writers, readers = ROWS * COLUMNS, ROLES.mma.members, ROLES.epilogue.members

    @cuda.jit
    def kernel(x, out, n):
        pipe = OUT.start()
        if ROLES.mma.is_member():
            for tile in range(n):
                stage = pipe.acquire_for_mma()
                for i in range(ROLES.mma.thread(), size, writers):
                    row, column = i // COLUMNS, i % COLUMNS
                    stage.acc[row, column] = x[tile, row, column]
                pipe.release_from_mma(stage)
        elif ROLES.epilogue.is_member():
            for tile in range(n):
                stage = pipe.acquire_for_epilogue()
                for i in range(ROLES.epilogue.thread(), size, readers):
                    column, row = i // ROWS, i % ROWS
                    out[tile, column, row] = stage.acc[row, column]
                pipe.release_from_epilogue()
        pipe.close()

    return ROLES, kernel


@functools.cache
def shared_scopes(stages, groups=(None, None), dtype="f32"):
    """Return roles and kernel: with scopes."""
    ROLES, OUT = in_shared(stages, groups, dtype)
    size, writers, readers = ROWS * COLUMNS, ROLES.mma.members, ROLES.epilogue.members

    @cuda.jit
    @tma.scopes
    def kernel(x, out, n):
        with OUT.start() as pipe:
            if ROLES.mma.is_member():
                with pipe.producer() as producer:
                    for tile in range(n):
                        with producer.acquire() as stage:
                            for i in range(ROLES.mma.thread(), size, writers):
                                row, column = i // COLUMNS, i % COLUMNS
                                stage.acc[row, column] = x[tile, row, column]
            elif ROLES.epilogue.is_member():
                with pipe.consumer() as consumer:
                    for tile in range(n):
                        with consumer.acquire() as stage:
                            for i in range(ROLES.epilogue.thread(), size, readers):
                                column, row = i // ROWS, i % ROWS
                                out[tile, column, row] = stage.acc[row, column]

    return ROLES, kernel


@functools.cache
def shared_handles(stages, groups=(None, None), dtype="f32"):
    """Return roles and kernel: the handles, and the stages that a break leaves."""
    ROLES, OUT = in_shared(stages, groups, dtype)
    size, writers, readers = ROWS * COLUMNS, ROLES.mma.members, ROLES.epilogue.members

    @cuda.jit
    def kernel(x, out, n):
        pipe = OUT.start()
        if ROLES.mma.is_member():
            producer = pipe.producer()
            for tile in range(n):
                stage = producer.acquire()  # which commits the one before
                for i in range(ROLES.mma.thread(), size, writers):
                    row, column = i // COLUMNS, i % COLUMNS
                    stage.acc[row, column] = x[tile, row, column]
            producer.close()
        elif ROLES.epilogue.is_member():
            consumer = pipe.consumer()
            for tile in range(n):
                stage = consumer.acquire()
                for i in range(ROLES.epilogue.thread(), size, readers):
                    column, row = i // ROWS, i % ROWS
                    out[tile, column, row] = stage.acc[row, column]
                consumer.sync()
                if tile == n - 1:
                    break
                consumer.release()
            consumer.close()
        pipe.close()

    return ROLES, kernel


@functools.cache
def stored_by_a_copy(stages):
    """Return roles, tile and kernel: stmatrix fills a stage, which a copy stores as it is."""
    ROLES = roles(W(2), W(2))
    ACC = tma.Tile((16, 16), "u16")
    OUT = tma.OutputTilePipeline(stages, ACC, mma=ROLES.mma, epilogue=ROLES.epilogue)

    @cuda.jit
    def kernel(x, y, n):
        pipe = OUT.start()
        if ROLES.mma.is_member():
            warp, lane = ROLES.mma.thread() // 32, ROLES.mma.thread() % 32
            for tile, stage in pipe.produce(0, n):
                # Each warp stores one column of 8x8 matrices.
                row = stage.acc.address_of((lane % 16, 8 * warp))
                ptx.stmatrix_x2(row, (x[tile, warp, 0, lane], x[tile, warp, 1, lane]))
        else:
            consumer = pipe.consumer()
            for tile in range(n):
                stage = consumer.acquire()
                consumer.store(y, stage.acc, (16 * tile, 0), written=False)
                consumer.release()
        pipe.close()

    return ROLES, ACC, kernel


# -------------------------------------------------------------------- in tensor memory


@functools.cache
def tensor_loop(stages, dtype="f32"):
    """Return roles and kernel: the loops; columns are loaded 8 at a time."""
    ROLES, OUT = in_tensor_memory(stages, 16, dtype)

    @cuda.jit
    def kernel(x, out, n):
        pipe = OUT.start()
        if ROLES.mma.is_member():
            row = ROLES.mma.thread()
            for tile, stage in pipe.produce(0, n):
                for c in range(0, 16, 2):
                    stage.store(c, (x[tile, row, c], x[tile, row, c + 1]))
        elif ROLES.epilogue.is_member():
            row = ROLES.epilogue.thread()
            for tile, stage in pipe.consume(0, n):
                for c in range(0, 16, 8):
                    values = stage.load(c, 8)
                    for i in range(8):
                        out[tile, c + i, row] = values[i]
        pipe.close()

    return ROLES, kernel


@functools.cache
def tensor_explicit(stages, dtype="f32"):
    """Return roles and kernel: the explicit form, with tcgen05 instructions of the user's."""
    ROLES, OUT = in_tensor_memory(stages, 16, dtype)

    @cuda.jit
    def kernel(x, out, n):
        pipe = OUT.start()
        lanes = u32(cuda.threadIdx.x // 32 % 4 << 21)
        if ROLES.mma.is_member():
            row = ROLES.mma.thread()
            for tile in range(n):
                stage = pipe.acquire_for_mma()
                for c in range(16):
                    ptx.tcgen05_st_32x32b(u32(stage.address + lanes + c), (x[tile, row, c],), 1)
                ptx.tcgen05_wait_st()
                ptx.tcgen05_fence_before_thread_sync()
                pipe.release_from_mma(stage)
        elif ROLES.epilogue.is_member():
            row = ROLES.epilogue.thread()
            for tile in range(n):
                stage = pipe.acquire_for_epilogue()
                values = ptx.tcgen05_ld_32x32b(u32(stage.address + lanes), 16)
                ptx.tcgen05_wait_ld()
                for c in range(16):
                    out[tile, c, row] = values[c]
                pipe.release_from_epilogue()
        pipe.close()

    return ROLES, kernel


@functools.cache
def tensor_scopes(stages, dtype="f32"):
    """Return roles and kernel: with scopes."""
    ROLES, OUT = in_tensor_memory(stages, 16, dtype)

    @cuda.jit
    @tma.scopes
    def kernel(x, out, n):
        with OUT.start() as pipe:
            if ROLES.mma.is_member():
                row = ROLES.mma.thread()
                with pipe.producer() as producer:
                    for tile in range(n):
                        with producer.acquire() as stage:
                            for c in range(16):
                                stage.store(c, (x[tile, row, c],))
            elif ROLES.epilogue.is_member():
                row = ROLES.epilogue.thread()
                with pipe.consumer() as consumer:
                    for tile in range(n):
                        with consumer.acquire() as stage:
                            values = stage.load(0, 16)
                            for c in range(16):
                                out[tile, c, row] = values[c]

    return ROLES, kernel


# ------------------------------------------------------------- what the compiler is shown

ARRAY = types.float32[:, :, ::1]
SIGNATURE = (ARRAY, ARRAY, types.int64)
STAGES, WIDTH = 2, 32


def output_pipeline():
    """Return kernel and signature: accumulators of 128 x 32 through shared memory."""
    ROLES = roles()
    ACC = tma.Tile((128, WIDTH), "f32")
    OUT = tma.OutputTilePipeline(STAGES, ACC, mma=ROLES.mma, epilogue=ROLES.epilogue)

    @cuda.jit
    def kernel(x, out, n):
        pipe = OUT.start()
        if ROLES.mma.is_member():
            row = ROLES.mma.thread()
            for tile, stage in pipe.produce(cuda.blockIdx.x, n, cuda.gridDim.x):
                for c in range(WIDTH):
                    stage.acc[row, c] = x[tile, row, c]
        else:
            row = ROLES.epilogue.thread()
            for tile, stage in pipe.consume(cuda.blockIdx.x, n, cuda.gridDim.x):
                for c in range(WIDTH):
                    out[tile, row, c] = stage.acc[row, c]
        pipe.close()

    return kernel, SIGNATURE


def output_pipeline_by_hand():
    """Return kernel and signature: the shortest kernel that does what `output_pipeline` does."""
    ACC = tma.Tile((128, WIDTH), "f32")
    SPACE = tma.Tile((STAGES * 128, WIDTH), "f32")
    BARRIERS = tma.Tile(4 * STAGES, "u32")

    @cuda.jit
    def kernel(x, out, n):
        space = tma.shared_tile(SPACE)
        full = u32(tma.shared_tile(BARRIERS).address)
        empty = u32(full + 8 * STAGES)
        thread = ptx.tid_x()
        if thread == 0:
            for stage in range(STAGES):
                ptx.mbarrier_init(full + 8 * stage, 4)
                ptx.mbarrier_init(empty + 8 * stage, 4)
            ptx.fence_mbarrier_init()
        ptx.barrier_sync(0, 256)
        tile, step = types.int64(cuda.blockIdx.x), cuda.gridDim.x
        index, phase = u32(0), u32(0)
        if thread < 128:
            phase = u32(1)
            while tile < n:
                while not ptx.mbarrier_try_wait_parity(empty + 8 * index, phase):
                    pass
                row = u32(index * 128 + thread)
                for c in range(WIDTH):
                    space[row, c] = x[tile, thread, c]
                ptx.fence_proxy_async()
                ptx.bar_warp_sync()
                if ptx.elect_sync():
                    ptx.mbarrier_arrive(full + 8 * index)
                tile += step
                index = u32(index + 1)
                if index == STAGES:
                    index = u32(0)
                    phase = u32(phase ^ 1)
        else:
            thread = u32(thread - 128)
            while tile < n:
                while not ptx.mbarrier_try_wait_parity(full + 8 * index, phase):
                    pass
                row = u32(index * 128 + thread)
                for c in range(WIDTH):
                    out[tile, thread, c] = space[row, c]
                ptx.bar_warp_sync()
                if ptx.elect_sync():
                    ptx.mbarrier_arrive(empty + 8 * index)
                tile += step
                index = u32(index + 1)
                if index == STAGES:
                    index = u32(0)
                    phase = u32(phase ^ 1)

    assert ACC.nbytes * STAGES == SPACE.nbytes
    return kernel, SIGNATURE


def output_pipeline_tmem():
    """Return kernel and signature: accumulators of 128 x 32 through tensor memory."""
    ROLES, OUT = in_tensor_memory(STAGES, WIDTH)

    @cuda.jit
    def kernel(x, out, n):
        pipe = OUT.start()
        first, step = types.int64(cuda.blockIdx.x), cuda.gridDim.x
        if ROLES.mma.is_member():
            row = ROLES.mma.thread()
            producer = pipe.producer()
            tile = first
            while tile < n:
                stage = producer.acquire()
                stage.store(0, (x[tile, row, 0], x[tile, row, 1]))
                producer.commit()
                tile += step
        else:
            row = ROLES.epilogue.thread()
            consumer = pipe.consumer()
            tile = first
            while tile < n:
                stage = consumer.acquire()
                values = stage.load(0, 2)
                out[tile, row, 0] = values[0]
                out[tile, row, 1] = values[1]
                consumer.release()
                tile += step
        pipe.close()

    return kernel, SIGNATURE


def output_pipeline_tmem_by_hand():
    """Return kernel and signature: the shortest kernel that does what the one above does.

    It has no bits of floats, which only `OutputStage` turns round: they cost no instruction.
    """
    HELD, BARRIERS = tma.Tile(4, "u32"), tma.Tile(4 * STAGES, "u32")

    @cuda.jit
    def kernel(x, out, n):
        held = tma.shared_tile(HELD)
        full = u32(tma.shared_tile(BARRIERS).address)
        empty = u32(full + 8 * STAGES)
        thread = ptx.tid_x()
        if thread // u32(32) == u32(4):
            ptx.tcgen05_alloc(held, STAGES * WIDTH, 1)
            ptx.tcgen05_relinquish_alloc_permit(1)
        if thread == 0:
            for stage in range(STAGES):
                ptx.mbarrier_init(full + 8 * stage, 4)
                ptx.mbarrier_init(empty + 8 * stage, 4)
            ptx.fence_mbarrier_init()
        ptx.barrier_sync(0, 256)
        base = ptx.ld_shared_u32(held.address)
        lanes = u32((thread & u32(96)) << u32(16))
        tile, step = types.int64(cuda.blockIdx.x), cuda.gridDim.x
        index, phase = u32(0), u32(0)
        if thread < 128:
            phase = u32(1)
            while tile < n:
                while not ptx.mbarrier_try_wait_parity(empty + 8 * index, phase):
                    pass
                ptx.tcgen05_fence_after_thread_sync()
                taddr = u32(base + index * WIDTH + lanes)
                ptx.tcgen05_st_32x32b(taddr, (x[tile, thread, 0], x[tile, thread, 1]), 2)
                ptx.tcgen05_wait_st()
                ptx.tcgen05_fence_before_thread_sync()
                ptx.bar_warp_sync()
                if ptx.elect_sync():
                    ptx.tcgen05_commit(full + 8 * index, 1)
                tile += step
                index = u32(index + 1)
                if index == STAGES:
                    index = u32(0)
                    phase = u32(phase ^ 1)
        else:
            row = u32(thread - 128)
            while tile < n:
                while not ptx.mbarrier_try_wait_parity(full + 8 * index, phase):
                    pass
                ptx.tcgen05_fence_after_thread_sync()
                taddr = u32(base + index * WIDTH + lanes)
                values = ptx.tcgen05_ld_32x32b(taddr, 2)
                ptx.tcgen05_wait_ld()
                out[tile, row, 0] = values[0]
                out[tile, row, 1] = values[1]
                ptx.tcgen05_fence_before_thread_sync()
                ptx.bar_warp_sync()
                if ptx.elect_sync():
                    ptx.mbarrier_arrive(empty + 8 * index)
                tile += step
                index = u32(index + 1)
                if index == STAGES:
                    index = u32(0)
                    phase = u32(phase ^ 1)
            ptx.barrier_sync(2, 128)
            ptx.tcgen05_fence_after_thread_sync()
            if thread // u32(32) == u32(4):
                ptx.tcgen05_dealloc(base, STAGES * WIDTH, 1)

    return kernel, (types.uint32[:, :, ::1], types.uint32[:, :, ::1], types.int64)


#: What has a golden: kernel, signature and architecture.
GOLDEN = {
    "output_pipeline": (output_pipeline, (9, 0, "a")),
    "output_pipeline_tmem": (output_pipeline_tmem, (10, 0, "a")),
}

# ------------------------------------------------------------------------------- cases

SHARED = (shared_loop, shared_explicit, shared_scopes, shared_handles)
TENSOR = (tensor_loop, tensor_explicit, tensor_scopes)


class Case:
    """Runs a kernel on arrays; the simulator takes them as they are."""

    def __init__(self, to_device=lambda array: array, to_host=lambda array: array):
        self.to_device, self.to_host = to_device, to_host

    def shared(self, build, stages, groups, dtype, n):
        """Hand `n` accumulators over; a bf16 one rounds what it is given."""
        ROLES, kernel = build(stages, groups, dtype)
        x = np.random.default_rng(n).standard_normal((max(1, n), ROWS, COLUMNS), np.float32)
        out = self.launch(kernel, ROLES, x, n)
        expected = x.astype(tma.Tile(1, dtype).dtype.numpy).astype(np.float32)
        np.testing.assert_array_equal(out[:n], expected[:n].transpose(0, 2, 1))
        assert np.isnan(out[n:]).all()

    def launch(self, kernel, ROLES, x, n):
        """Return what a kernel writes; the rest of it is NaN, or the largest integer."""
        poison = np.nan if x.dtype.kind == "f" else np.iinfo(x.dtype).max
        out = np.full((len(x), x.shape[2], x.shape[1]), poison, x.dtype)
        given, made = self.to_device(x), self.to_device(out)
        kernel[1, ROLES.threads](given, made, n)
        return self.to_host(made)

    def copied(self, stages, n):
        """Let stmatrix fill stages that the copy engine stores."""
        ROLES, ACC, kernel = stored_by_a_copy(stages)
        tiles = np.random.default_rng(n).integers(0, 2**16, (max(1, n), 16, 16), np.uint16)
        # A fragment: thread l of matrix m has elements 2 (l mod 4) and the next of row l // 4.
        rows = tiles.reshape(-1, 2, 8, 2, 4, 2)  # tile, matrix, row, warp, pair, element
        pairs = np.ascontiguousarray(rows.transpose(0, 3, 1, 2, 4, 5)).view(np.uint32)
        x = self.to_device(pairs.reshape(-1, 2, 2, 32))
        y = self.to_device(np.full((16 * max(1, n), 16), 0xABAB, np.uint16))
        kernel[1, ROLES.threads](x, tma.tensor_map(y, ACC), n)
        got = self.to_host(y).reshape(-1, 16, 16)
        np.testing.assert_array_equal(got[:n], tiles[:n])
        assert (got[n:] == 0xABAB).all()
