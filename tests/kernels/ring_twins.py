"""Every kind of ring beside the same protocol written by hand, in calls of `numba_tma.ptx` alone.

A function per pipeline returns (ours, by_hand, signature). The threads do next to nothing with a
stage, so that what is counted is the protocol: by hand, each side is the shortest loop that does
the same. Both step before they wait, as a pipeline does, or after, whichever is shorter. Where a
block of a cluster waits for its peers at the end, that is the ``for`` over the stages that one
writes, and that NVVM unrolls.
"""

import functools

from numba import cuda, int64, types, uint32

import numba_tma as tma
from numba_tma import ptx
from numba_tma.backend.interface import device_function
from numba_tma.backend.lowering.types import TensorMapType
from numba_tma.device.shared import shared_tile
from numba_tma.tools.testing import compile_ptx

STAGES = 4
A, B = tma.Tile((2, 256), "u32"), tma.Tile((4, 256), "u32")
SCALES = tma.Tile((1, 256), "u32")
BYTES_A, BYTES_B, BYTES_SF = A.nbytes, B.nbytes, SCALES.nbytes
ROWS_A, ROWS_B = 2, 4

WORDS = types.uint32[::1]
MAP_A, MAP_B = TensorMapType(2, A), TensorMapType(2, B)
MAP_SF = TensorMapType(2, SCALES)
INT = types.int64


def memory(nbytes):
    """Return a tile for the stages of a ring and its barriers: full ones, then empty ones."""
    return tma.Tile(STAGES * (nbytes + 16), "u8")


@device_function
def initialise(full, empty, full_arrivals, empty_arrivals, threads):
    if ptx.tid_x() == 0:
        for stage in range(STAGES):
            ptx.mbarrier_init(full + stage * 8, full_arrivals)
            ptx.mbarrier_init(empty + stage * 8, empty_arrivals)
        ptx.fence_mbarrier_init()
    ptx.barrier_sync(0, threads)


@device_function
def initialise_cluster(full, empty, full_arrivals, empty_arrivals):
    if ptx.tid_x() == 0:
        for stage in range(STAGES):
            ptx.mbarrier_init(full + stage * 8, full_arrivals)
            ptx.mbarrier_init(empty + stage * 8, empty_arrivals)
        ptx.fence_mbarrier_init()
    ptx.barrier_cluster_arrive()
    ptx.barrier_cluster_wait()


@device_function
def wait(barrier, phase):
    while not ptx.mbarrier_try_wait_parity(barrier, phase):
        pass


@device_function
def wait_cluster(barrier, phase):
    while not ptx.mbarrier_try_wait_parity(barrier, phase, None, "acquire.cluster"):
        pass


@device_function
def release(barrier):
    ptx.bar_warp_sync()
    if ptx.elect_sync():
        ptx.mbarrier_arrive(barrier)


@device_function
def release_read(barrier):
    """Hand back a stage that the copy engine fills, and that the thread has read."""
    ptx.fence_proxy_async()
    release(barrier)


# ------------------------------------------------------------------ roles and registers


def registers():
    """A producer warpgroup that gives registers back, and two that work."""
    ROLES = tma.Roles(mma=tma.Warpgroups(2), load=tma.Warpgroups(1, registers=40))
    PIPE = tma.TilePipeline(STAGES, a=A, producer=ROLES.load, consumer=ROLES.mma)
    MEMORY = memory(BYTES_A)

    @cuda.jit
    def ours(a, out, n_tiles):
        pipe = PIPE.start()
        first, step = cuda.blockIdx.x, cuda.gridDim.x
        if pipe.is_producer():
            ROLES.load.set_registers()
            for tile, stage in pipe.produce(first, n_tiles, step):
                a.load(stage.a, (tile * ROWS_A, 0), stage.barrier)
        else:
            ROLES.mma.set_registers()
            thread, total = ROLES.mma.thread(), uint32(0)
            for _, stage in pipe.consume(first, n_tiles, step):
                total = uint32(total + stage.a[0, thread])
            out[thread] = total

    @cuda.jit(launch_bounds=(384, 1))
    def by_hand(a, out, n_tiles):
        stages = shared_tile(MEMORY).address
        full = uint32(stages + STAGES * BYTES_A)
        empty = uint32(full + STAGES * 8)
        initialise(full, empty, 1, 8, ptx.ntid_x())
        thread = ptx.tid_x()
        tile, step = int64(cuda.blockIdx.x), cuda.gridDim.x
        index, phase = uint32(0), uint32(0)
        if thread >= 256:
            ptx.setmaxnreg_dec(40)
            if thread < 288 and ptx.elect_sync():
                phase = uint32(1)
                while tile < n_tiles:
                    wait(empty + index * 8, phase)
                    ptx.mbarrier_arrive_expect_tx(full + index * 8, BYTES_A)
                    ptx.cp_async_bulk_tensor_load(
                        stages + index * BYTES_A, a, (tile * ROWS_A, 0), full + index * 8
                    )
                    tile += step
                    index = uint32(index + 1)
                    if index == STAGES:
                        index, phase = uint32(0), uint32(phase ^ 1)
        else:
            ptx.setmaxnreg_inc(232)
            total = uint32(0)
            while tile < n_tiles:
                wait(full + index * 8, phase)
                total = uint32(total + ptx.ld_shared_u32(stages + index * BYTES_A + 4 * thread))
                release_read(empty + index * 8)
                tile += step
                index = uint32(index + 1)
                if index == STAGES:
                    index, phase = uint32(0), uint32(phase ^ 1)
            out[thread] = total

    return ours, by_hand, (MAP_A, WORDS, INT)


# ----------------------------------------------------------------------------- payloads


def k_group():
    """Two tiles of a and two of b in a stage; the last warp of the block produces."""
    PIPE = tma.TilePipeline(STAGES, tma.StandardTilePayload(A, B), k_group=2)
    STAGE_A, STAGE_B = 2 * BYTES_A, 2 * BYTES_B
    MEMORY = memory(STAGE_A + STAGE_B)

    @cuda.jit
    def ours(a, b, out, n_tiles):
        pipe = PIPE.start()
        first, step = cuda.blockIdx.x, cuda.gridDim.x
        if pipe.is_producer():
            for tile, stage in pipe.produce(first, n_tiles, step):
                for j in range(2):
                    tiles = stage.tile(j)
                    a.load(tiles.a, ((2 * tile + j) * ROWS_A, 0), stage.barrier)
                    b.load(tiles.b, ((2 * tile + j) * ROWS_B, 0), stage.barrier)
        else:
            thread, total = pipe.consumer_thread(), uint32(0)
            for _, stage in pipe.consume(first, n_tiles, step):
                for j in range(2):
                    tile_a, tile_b = stage.get_tile(j)
                    total = uint32(total + tile_a[0, thread] + tile_b[0, thread])
            out[thread] = total

    @cuda.jit
    def by_hand(a, b, out, n_tiles):
        stages_a = shared_tile(MEMORY).address
        stages_b = uint32(stages_a + STAGES * STAGE_A)
        full = uint32(stages_b + STAGES * STAGE_B)
        empty = uint32(full + STAGES * 8)
        thread = ptx.tid_x()
        consumers = uint32(ptx.ntid_x() - 32)
        initialise(full, empty, 1, consumers >> 5, ptx.ntid_x())
        tile, step = int64(cuda.blockIdx.x), cuda.gridDim.x
        index, phase = uint32(0), uint32(0)
        if thread >= consumers:
            if ptx.elect_sync():
                phase = uint32(1)
                while tile < n_tiles:
                    wait(empty + index * 8, phase)
                    ptx.mbarrier_arrive_expect_tx(full + index * 8, STAGE_A + STAGE_B)
                    for j in range(2):
                        ptx.cp_async_bulk_tensor_load(
                            stages_a + index * STAGE_A + j * BYTES_A, a,
                            ((2 * tile + j) * ROWS_A, 0), full + index * 8,
                        )  # fmt: skip
                        ptx.cp_async_bulk_tensor_load(
                            stages_b + index * STAGE_B + j * BYTES_B, b,
                            ((2 * tile + j) * ROWS_B, 0), full + index * 8,
                        )  # fmt: skip
                    tile += step
                    index = uint32(index + 1)
                    if index == STAGES:
                        index, phase = uint32(0), uint32(phase ^ 1)
        else:
            total = uint32(0)
            while tile < n_tiles:
                wait(full + index * 8, phase)
                tile_a = uint32(stages_a + index * STAGE_A + 4 * thread)
                tile_b = uint32(stages_b + index * STAGE_B + 4 * thread)
                for j in range(2):
                    total = uint32(total + ptx.ld_shared_u32(tile_a + j * BYTES_A))
                    total = uint32(total + ptx.ld_shared_u32(tile_b + j * BYTES_B))
                release_read(empty + index * 8)
                tile += step
                index = uint32(index + 1)
                if index == STAGES:
                    index, phase = uint32(0), uint32(phase ^ 1)
            out[thread] = total

    return ours, by_hand, (MAP_A, MAP_B, WORDS, INT)


def block_scaled():
    """Tiles with their block scales: four copies to a stage."""
    PIPE = tma.TilePipeline(STAGES, tma.BlockScaledTilePayload(A, B, SCALES, SCALES))
    NBYTES = BYTES_A + BYTES_B + 2 * BYTES_SF
    MEMORY = memory(NBYTES)

    @cuda.jit
    def ours(a, b, sfa, sfb, out, n_tiles):
        pipe = PIPE.start()
        first, step = cuda.blockIdx.x, cuda.gridDim.x
        if pipe.is_producer():
            for tile, stage in pipe.produce(first, n_tiles, step):
                a.load(stage.a, (tile * ROWS_A, 0), stage.barrier)
                b.load(stage.b, (tile * ROWS_B, 0), stage.barrier)
                sfa.load(stage.sfa, (tile, 0), stage.barrier)
                sfb.load(stage.sfb, (tile, 0), stage.barrier)
        else:
            thread, total = pipe.consumer_thread(), uint32(0)
            for _, stage in pipe.consume(first, n_tiles, step):
                total = uint32(total + stage.a[0, thread] * stage.sfa[0, thread])
                total = uint32(total + stage.b[0, thread] * stage.sfb[0, thread])
            out[thread] = total

    @cuda.jit
    def by_hand(a, b, sfa, sfb, out, n_tiles):
        stages_a = shared_tile(MEMORY).address
        stages_b = uint32(stages_a + STAGES * BYTES_A)
        stages_sfa = uint32(stages_b + STAGES * BYTES_B)
        stages_sfb = uint32(stages_sfa + STAGES * BYTES_SF)
        full = uint32(stages_a + STAGES * NBYTES)
        empty = uint32(full + STAGES * 8)
        thread = ptx.tid_x()
        consumers = uint32(ptx.ntid_x() - 32)
        initialise(full, empty, 1, consumers >> 5, ptx.ntid_x())
        tile, step = int64(cuda.blockIdx.x), cuda.gridDim.x
        index, phase = uint32(0), uint32(0)
        if thread >= consumers:
            if ptx.elect_sync():
                phase = uint32(1)
                while tile < n_tiles:
                    wait(empty + index * 8, phase)
                    barrier = uint32(full + index * 8)
                    ptx.mbarrier_arrive_expect_tx(barrier, NBYTES)
                    ptx.cp_async_bulk_tensor_load(
                        stages_a + index * BYTES_A, a, (tile * ROWS_A, 0), barrier
                    )
                    ptx.cp_async_bulk_tensor_load(
                        stages_b + index * BYTES_B, b, (tile * ROWS_B, 0), barrier
                    )
                    ptx.cp_async_bulk_tensor_load(
                        stages_sfa + index * BYTES_SF, sfa, (tile, 0), barrier
                    )
                    ptx.cp_async_bulk_tensor_load(
                        stages_sfb + index * BYTES_SF, sfb, (tile, 0), barrier
                    )
                    tile += step
                    index = uint32(index + 1)
                    if index == STAGES:
                        index, phase = uint32(0), uint32(phase ^ 1)
        else:
            total = uint32(0)
            while tile < n_tiles:
                wait(full + index * 8, phase)
                tile_a = ptx.ld_shared_u32(stages_a + index * BYTES_A + 4 * thread)
                scale_a = ptx.ld_shared_u32(stages_sfa + index * BYTES_SF + 4 * thread)
                total = uint32(total + tile_a * scale_a)
                tile_b = ptx.ld_shared_u32(stages_b + index * BYTES_B + 4 * thread)
                scale_b = ptx.ld_shared_u32(stages_sfb + index * BYTES_SF + 4 * thread)
                total = uint32(total + tile_b * scale_b)
                release_read(empty + index * 8)
                tile += step
                index = uint32(index + 1)
                if index == STAGES:
                    index, phase = uint32(0), uint32(phase ^ 1)
            out[thread] = total

    return ours, by_hand, (MAP_A, MAP_B, MAP_SF, MAP_SF, WORDS, INT)


# --------------------------------------------------------------------- several consumers


def two_consumers():
    """Two consumer roles that both work on every stage."""
    ROLES = tma.Roles(c0=tma.Warps(4), c1=tma.Warps(4), load=tma.Warps(1))
    PIPE = tma.TilePipeline(STAGES, a=A, producer=ROLES.load, consumer=(ROLES.c0, ROLES.c1))
    MEMORY = memory(BYTES_A)

    @cuda.jit
    def ours(a, out, n_tiles):
        pipe = PIPE.start()
        first, step = cuda.blockIdx.x, cuda.gridDim.x
        if pipe.is_producer():
            for tile, stage in pipe.produce(first, n_tiles, step):
                a.load(stage.a, (tile * ROWS_A, 0), stage.barrier)
        else:
            row = 1 if ROLES.c1.is_member() else 0
            thread, total = pipe.consumer_thread(), uint32(0)
            for _, stage in pipe.consume(first, n_tiles, step):
                total = uint32(total + stage.a[row, thread])
            out[row, thread] = total

    @cuda.jit
    def by_hand(a, out, n_tiles):
        stages = shared_tile(MEMORY).address
        full = uint32(stages + STAGES * BYTES_A)
        empty = uint32(full + STAGES * 8)
        initialise(full, empty, 1, 8, ptx.ntid_x())
        thread = ptx.tid_x()
        tile, step = int64(cuda.blockIdx.x), cuda.gridDim.x
        index, phase = uint32(0), uint32(0)
        if thread >= 256:
            if ptx.elect_sync():
                phase = uint32(1)
                while tile < n_tiles:
                    wait(empty + index * 8, phase)
                    ptx.mbarrier_arrive_expect_tx(full + index * 8, BYTES_A)
                    ptx.cp_async_bulk_tensor_load(
                        stages + index * BYTES_A, a, (tile * ROWS_A, 0), full + index * 8
                    )
                    tile += step
                    index = uint32(index + 1)
                    if index == STAGES:
                        index, phase = uint32(0), uint32(phase ^ 1)
        else:
            row, column = thread >> 7, thread & 127
            mine = uint32(stages + 1024 * row + 4 * column)
            total = uint32(0)
            while tile < n_tiles:
                wait(full + index * 8, phase)
                total = uint32(total + ptx.ld_shared_u32(mine + index * BYTES_A))
                release_read(empty + index * 8)
                tile += step
                index = uint32(index + 1)
                if index == STAGES:
                    index, phase = uint32(0), uint32(phase ^ 1)
            out[row, column] = total

    return ours, by_hand, (MAP_A, types.uint32[:, ::1], INT)


def alternate():
    """Two consumer roles that are dealt the stages in turn."""
    ROLES = tma.Roles(c0=tma.Warps(4), c1=tma.Warps(4), load=tma.Warps(1))
    PIPE = tma.TilePipeline(
        STAGES, a=A, producer=ROLES.load, consumer=(ROLES.c0, ROLES.c1), alternate=True
    )
    MEMORY = memory(BYTES_A)

    @cuda.jit
    def ours(a, out, n_tiles):
        pipe = PIPE.start()
        if pipe.is_producer():
            for tile, stage in pipe.produce(0, n_tiles):
                a.load(stage.a, (tile * ROWS_A, 0), stage.barrier)
        else:
            consumer = pipe.consumer()
            turn = 1 if ROLES.c1.is_member() else 0
            thread, total = pipe.consumer_thread(), uint32(0)
            consumer.skip(turn)
            tile = int64(turn)
            while tile < n_tiles:
                stage = consumer.wait()
                total = uint32(total + stage.a[0, thread])
                consumer.release()
                consumer.skip(1)
                tile += 2
            out[turn, thread] = total

    @cuda.jit
    def by_hand(a, out, n_tiles):
        stages = shared_tile(MEMORY).address
        full = uint32(stages + STAGES * BYTES_A)
        empty = uint32(full + STAGES * 8)
        initialise(full, empty, 1, 4, ptx.ntid_x())
        thread = ptx.tid_x()
        tile, index, phase = int64(0), uint32(0), uint32(0)
        if thread >= 256:
            if ptx.elect_sync():
                phase = uint32(1)
                while tile < n_tiles:
                    wait(empty + index * 8, phase)
                    ptx.mbarrier_arrive_expect_tx(full + index * 8, BYTES_A)
                    ptx.cp_async_bulk_tensor_load(
                        stages + index * BYTES_A, a, (tile * ROWS_A, 0), full + index * 8
                    )
                    tile += 1
                    index = uint32(index + 1)
                    if index == STAGES:
                        index, phase = uint32(0), uint32(phase ^ 1)
        else:
            turn, thread = thread >> 7, thread & 127
            tile, index, total = int64(turn), uint32(turn), uint32(0)
            while tile < n_tiles:
                wait(full + index * 8, phase)
                total = uint32(total + ptx.ld_shared_u32(stages + index * BYTES_A + 4 * thread))
                release_read(empty + index * 8)
                tile += 2
                index = uint32(index + 2)
                if index >= STAGES:
                    index, phase = uint32(index - STAGES), uint32(phase ^ 1)
            out[turn, thread] = total

    return ours, by_hand, (MAP_A, types.uint32[:, ::1], INT)


# ----------------------------------------------------------------- who fills the stages

CHUNKS = tma.Tile((128, 4), "u32")  # 16 B for each thread of a producer


def cp_async():
    """A producer role whose threads copy 16 bytes each by cp.async."""
    ROLES = tma.Roles(work=tma.Warps(4), load=tma.Warps(4))
    PIPE = tma.TilePipeline(
        STAGES, a=CHUNKS, producer=ROLES.load, consumer=ROLES.work, filled_by="cp_async"
    )
    MEMORY, NBYTES = memory(CHUNKS.nbytes), CHUNKS.nbytes

    @cuda.jit
    def ours(a, out, n_tiles):
        pipe = PIPE.start()
        first, step = cuda.blockIdx.x, cuda.gridDim.x
        if pipe.is_producer():
            thread = ROLES.load.thread()
            for tile, stage in pipe.produce(first, n_tiles, step):
                ptx.cp_async_cg(stage.a.address_of((thread, 0)), a[tile, thread], 16)
            pipe.close()
        else:
            thread, total = ROLES.work.thread(), uint32(0)
            for _, stage in pipe.consume(first, n_tiles, step):
                total = uint32(total + stage.a[thread, 0])
            out[thread] = total

    @cuda.jit
    def by_hand(a, out, n_tiles):
        stages = shared_tile(MEMORY).address
        full = uint32(stages + STAGES * NBYTES)
        empty = uint32(full + STAGES * 8)
        initialise(full, empty, 128, 4, ptx.ntid_x())
        thread = ptx.tid_x()
        tile, step = int64(cuda.blockIdx.x), cuda.gridDim.x
        index, phase = uint32(0), uint32(0)
        if thread >= 128:
            phase, thread = uint32(1), uint32(thread - 128)
            while tile < n_tiles:
                wait(empty + index * 8, phase)
                ptx.cp_async_cg(stages + index * NBYTES + 16 * thread, a[tile, thread], 16)
                ptx.cp_async_mbarrier_arrive_noinc(full + index * 8)
                tile += step
                index = uint32(index + 1)
                if index == STAGES:
                    index, phase = uint32(0), uint32(phase ^ 1)
        else:
            total = uint32(0)
            while tile < n_tiles:
                wait(full + index * 8, phase)
                total = uint32(total + ptx.ld_shared_u32(stages + index * NBYTES + 16 * thread))
                release(empty + index * 8)
                tile += step
                index = uint32(index + 1)
                if index == STAGES:
                    index, phase = uint32(0), uint32(phase ^ 1)
            out[thread] = total

    return ours, by_hand, (types.uint32[:, :, ::1], WORDS, INT)


def threads():
    """A producer role whose threads write what they have read or computed."""
    ROLES = tma.Roles(work=tma.Warps(4), load=tma.Warps(8))
    PIPE = tma.TilePipeline(
        STAGES, a=SCALES, producer=ROLES.load, consumer=ROLES.work, filled_by="threads"
    )
    MEMORY = memory(BYTES_SF)

    @cuda.jit
    def ours(a, out, n_tiles):
        pipe = PIPE.start()
        first, step = cuda.blockIdx.x, cuda.gridDim.x
        if pipe.is_producer():
            thread = ROLES.load.thread()
            for tile, stage in pipe.produce(first, n_tiles, step):
                stage.a[0, thread] = a[tile, thread]
            pipe.close()
        else:
            thread, total = ROLES.work.thread(), uint32(0)
            for _, stage in pipe.consume(first, n_tiles, step):
                total = uint32(total + stage.a[0, thread])
            out[thread] = total

    @cuda.jit
    def by_hand(a, out, n_tiles):
        stages = shared_tile(MEMORY).address
        full = uint32(stages + STAGES * BYTES_SF)
        empty = uint32(full + STAGES * 8)
        initialise(full, empty, 8, 4, ptx.ntid_x())
        thread = ptx.tid_x()
        tile, step = int64(cuda.blockIdx.x), cuda.gridDim.x
        index, phase = uint32(0), uint32(0)
        if thread >= 128:
            phase, thread = uint32(1), uint32(thread - 128)
            while tile < n_tiles:
                wait(empty + index * 8, phase)
                ptx.st_shared_u32(stages + index * BYTES_SF + 4 * thread, a[tile, thread])
                ptx.fence_proxy_async()
                release(full + index * 8)
                tile += step
                index = uint32(index + 1)
                if index == STAGES:
                    index, phase = uint32(0), uint32(phase ^ 1)
        else:
            total = uint32(0)
            while tile < n_tiles:
                wait(full + index * 8, phase)
                total = uint32(total + ptx.ld_shared_u32(stages + index * BYTES_SF + 4 * thread))
                release(empty + index * 8)
                tile += step
                index = uint32(index + 1)
                if index == STAGES:
                    index, phase = uint32(0), uint32(phase ^ 1)
            out[thread] = total

    return ours, by_hand, (types.uint32[:, ::1], WORDS, INT)


# ----------------------------------------------------------------------------- clusters


def cluster_2x1():
    """Two blocks that share tile a, each loading half of it for both."""
    ROLES = tma.Roles(work=tma.Warps(4), load=tma.Warps(1))
    PIPE = tma.TilePipeline(
        STAGES, a=A, b=B, producer=ROLES.load, consumer=ROLES.work,
        cluster=(2, 1), multicast={"a": "x"},
    )  # fmt: skip
    MEMORY, NBYTES, HALF = memory(BYTES_A + BYTES_B), BYTES_A + BYTES_B, BYTES_A // 2

    @cuda.jit
    @tma.cluster((2, 1))
    def ours(a, b, out, n_tiles):
        pipe = PIPE.start()
        block = cuda.blockIdx.x
        if pipe.is_producer():
            group, producer = pipe.multicast_group("a"), pipe.producer()
            if producer.enters():
                tile = int64(0)
                while tile < n_tiles:
                    stage = producer.acquire()
                    tma.load_partitioned(
                        a, stage.a, (tile * ROWS_A, 0), stage.barrier,
                        group.rank, multicast=group.mask,
                    )  # fmt: skip
                    b.load(stage.b, (tile * ROWS_B, block), stage.barrier)
                    tile += 1
                producer.tail()
        else:
            thread, total = ROLES.work.thread(), uint32(0)
            for _, stage in pipe.consume(0, n_tiles):
                total = uint32(total + stage.a[0, thread] + stage.b[0, thread])
            out[block, thread] = total

    @cuda.jit
    @tma.cluster((2, 1))
    def by_hand(a, b, out, n_tiles):
        stages_a = shared_tile(MEMORY).address
        stages_b = uint32(stages_a + STAGES * BYTES_A)
        full = uint32(stages_a + STAGES * NBYTES)
        empty = uint32(full + STAGES * 8)
        initialise_cluster(full, empty, 1, 8)
        thread, block = ptx.tid_x(), cuda.blockIdx.x
        tile, index, phase = int64(0), uint32(0), uint32(0)
        if thread >= 128:
            if ptx.elect_sync():
                phase, rank = uint32(1), ptx.cluster_ctaid_x()
                while tile < n_tiles:
                    wait_cluster(empty + index * 8, phase)
                    barrier = uint32(full + index * 8)
                    ptx.mbarrier_arrive_expect_tx(barrier, NBYTES)
                    ptx.cp_async_bulk_tensor_load(
                        stages_a + index * BYTES_A + rank * HALF, a, (tile * ROWS_A + rank, 0),
                        barrier, None, 3,
                    )  # fmt: skip
                    ptx.cp_async_bulk_tensor_load(
                        stages_b + index * BYTES_B, b, (tile * ROWS_B, block), barrier
                    )
                    tile += 1
                    index = uint32(index + 1)
                    if index == STAGES:
                        index, phase = uint32(0), uint32(phase ^ 1)
                for _ in range(STAGES):
                    wait_cluster(empty + index * 8, phase)
                    index = uint32(index + 1)
                    if index == STAGES:
                        index, phase = uint32(0), uint32(phase ^ 1)
        else:
            lane, total = ptx.laneid(), uint32(0)
            while tile < n_tiles:
                wait(full + index * 8, phase)
                tile_a = ptx.ld_shared_u32(stages_a + index * BYTES_A + 4 * thread)
                tile_b = ptx.ld_shared_u32(stages_b + index * BYTES_B + 4 * thread)
                total = uint32(total + tile_a + tile_b)
                ptx.fence_proxy_async()
                ptx.bar_warp_sync()
                if lane < 2:
                    ptx.mbarrier_arrive_remote(ptx.mapa(empty + index * 8, lane))
                tile += 1
                index = uint32(index + 1)
                if index == STAGES:
                    index, phase = uint32(0), uint32(phase ^ 1)
            out[block, thread] = total

    half = TensorMapType(2, tma.Tile((1, 256), "u32"))
    return ours, by_hand, (half, MAP_B, types.uint32[:, ::1], INT)


def cluster_loops():
    """The same two blocks in ``for`` loops, which `close` ends."""
    ROLES = tma.Roles(work=tma.Warps(4), load=tma.Warps(1))
    PIPE = tma.TilePipeline(
        STAGES, a=A, b=B, producer=ROLES.load, consumer=ROLES.work,
        cluster=(2, 1), multicast={"a": "x"},
    )  # fmt: skip

    @cuda.jit
    @tma.cluster((2, 1))
    def ours(a, b, out, n_tiles):
        pipe = PIPE.start()
        block = cuda.blockIdx.x
        if pipe.is_producer():
            group = pipe.multicast_group("a")
            for tile, stage in pipe.produce(0, n_tiles):
                tma.load_partitioned(
                    a, stage.a, (tile * ROWS_A, 0), stage.barrier,
                    group.rank, multicast=group.mask,
                )  # fmt: skip
                b.load(stage.b, (tile * ROWS_B, block), stage.barrier)
        else:
            thread, total = ROLES.work.thread(), uint32(0)
            for _, stage in pipe.consume(0, n_tiles):
                total = uint32(total + stage.a[0, thread] + stage.b[0, thread])
            out[block, thread] = total
        pipe.close()

    _, by_hand, signature = cluster_2x1()
    return ours, by_hand, signature


def cluster_2x2():
    """Four blocks: tile a is shared along x and tile b along y, as in a matmul."""
    ROLES = tma.Roles(work=tma.Warps(4), load=tma.Warps(1))
    PIPE = tma.TilePipeline(
        STAGES, a=A, b=B, producer=ROLES.load, consumer=ROLES.work,
        cluster=(2, 2), multicast={"a": "x", "b": "y"},
    )  # fmt: skip
    MEMORY, NBYTES = memory(BYTES_A + BYTES_B), BYTES_A + BYTES_B
    HALF_A, HALF_B = BYTES_A // 2, BYTES_B // 2

    @cuda.jit
    @tma.cluster((2, 2))
    def ours(a, b, out, n_tiles):
        pipe = PIPE.start()
        row, column = cuda.blockIdx.y, cuda.blockIdx.x
        if pipe.is_producer():
            in_row, in_column = pipe.multicast_group("a"), pipe.multicast_group("b")
            producer = pipe.producer()
            if producer.enters():
                tile = int64(0)
                while tile < n_tiles:
                    stage = producer.acquire()
                    tma.load_partitioned(
                        a, stage.a, (tile * ROWS_A, row), stage.barrier,
                        in_row.rank, multicast=in_row.mask,
                    )  # fmt: skip
                    tma.load_partitioned(
                        b, stage.b, (tile * ROWS_B, column), stage.barrier,
                        in_column.rank, multicast=in_column.mask,
                    )  # fmt: skip
                    tile += 1
                producer.tail()
        else:
            thread, total = ROLES.work.thread(), uint32(0)
            for _, stage in pipe.consume(0, n_tiles):
                total = uint32(total + stage.a[0, thread] + stage.b[0, thread])
            out[row, column, thread] = total

    @cuda.jit
    @tma.cluster((2, 2))
    def by_hand(a, b, out, n_tiles):
        stages_a = shared_tile(MEMORY).address
        stages_b = uint32(stages_a + STAGES * BYTES_A)
        full = uint32(stages_a + STAGES * NBYTES)
        empty = uint32(full + STAGES * 8)
        x, y = ptx.cluster_ctaid_x(), ptx.cluster_ctaid_y()
        in_row, in_column = uint32(3 << 2 * y), uint32(5 << x)
        initialise_cluster(full, empty, 1, 12)
        thread, row, column = ptx.tid_x(), cuda.blockIdx.y, cuda.blockIdx.x
        tile, index, phase = int64(0), uint32(0), uint32(0)
        if thread >= 128:
            if ptx.elect_sync():
                phase = uint32(1)
                while tile < n_tiles:
                    wait_cluster(empty + index * 8, phase)
                    barrier = uint32(full + index * 8)
                    ptx.mbarrier_arrive_expect_tx(barrier, NBYTES)
                    ptx.cp_async_bulk_tensor_load(
                        stages_a + index * BYTES_A + x * HALF_A, a, (tile * ROWS_A + x, row),
                        barrier, None, in_row,
                    )  # fmt: skip
                    ptx.cp_async_bulk_tensor_load(
                        stages_b + index * BYTES_B + y * HALF_B, b, (tile * ROWS_B + 2 * y, column),
                        barrier, None, in_column,
                    )  # fmt: skip
                    tile += 1
                    index = uint32(index + 1)
                    if index == STAGES:
                        index, phase = uint32(0), uint32(phase ^ 1)
                for _ in range(STAGES):
                    wait_cluster(empty + index * 8, phase)
                    index = uint32(index + 1)
                    if index == STAGES:
                        index, phase = uint32(0), uint32(phase ^ 1)
        else:
            lane, total = ptx.laneid(), uint32(0)
            is_peer = (in_row | in_column) >> lane & 1
            while tile < n_tiles:
                wait(full + index * 8, phase)
                tile_a = ptx.ld_shared_u32(stages_a + index * BYTES_A + 4 * thread)
                tile_b = ptx.ld_shared_u32(stages_b + index * BYTES_B + 4 * thread)
                total = uint32(total + tile_a + tile_b)
                ptx.fence_proxy_async()
                ptx.bar_warp_sync()
                if is_peer:
                    ptx.mbarrier_arrive_remote(ptx.mapa(empty + index * 8, lane))
                tile += 1
                index = uint32(index + 1)
                if index == STAGES:
                    index, phase = uint32(0), uint32(phase ^ 1)
            out[row, column, thread] = total

    halves = [TensorMapType(2, tma.Tile((n, 256), "u32")) for n in (1, 2)]
    return ours, by_hand, (*halves, types.uint32[:, :, ::1], INT)


# ------------------------------------------------------------------------- forms of use


def asking():
    """Both sides ask for the next stage as soon as they have this one, and wait only if needed."""
    PIPE = tma.TilePipeline(STAGES, a=A)
    MEMORY = memory(BYTES_A)

    @cuda.jit
    def ours(a, out, n_tiles):
        pipe = PIPE.start()
        tile, step = int64(cuda.blockIdx.x), cuda.gridDim.x
        if pipe.is_producer():
            producer = pipe.producer()
            if producer.enters():
                ready = producer.try_acquire()
                while tile < n_tiles:
                    stage = producer.acquire_if_needed(ready)
                    a.load(stage.a, (tile * ROWS_A, 0), stage.barrier)
                    producer.commit()
                    ready = producer.try_acquire()
                    tile += step
        else:
            consumer = pipe.consumer()
            thread, total = pipe.consumer_thread(), uint32(0)
            full = consumer.try_wait()
            while tile < n_tiles:
                stage = consumer.wait_if_needed(full)
                total = uint32(total + stage.a[0, thread])
                consumer.release()
                full = consumer.try_wait()
                tile += step
            out[thread] = total

    @cuda.jit
    def by_hand(a, out, n_tiles):
        stages = shared_tile(MEMORY).address
        full = uint32(stages + STAGES * BYTES_A)
        empty = uint32(full + STAGES * 8)
        thread = ptx.tid_x()
        consumers = uint32(ptx.ntid_x() - 32)
        initialise(full, empty, 1, consumers >> 5, ptx.ntid_x())
        tile, step = int64(cuda.blockIdx.x), cuda.gridDim.x
        index, phase = uint32(0), uint32(0)
        if thread >= consumers:
            if ptx.elect_sync():
                phase = uint32(1)
                ready = ptx.mbarrier_try_wait_parity(empty, phase)
                while tile < n_tiles:
                    if not ready:
                        wait(empty + index * 8, phase)
                    ptx.mbarrier_arrive_expect_tx(full + index * 8, BYTES_A)
                    ptx.cp_async_bulk_tensor_load(
                        stages + index * BYTES_A, a, (tile * ROWS_A, 0), full + index * 8
                    )
                    index = uint32(index + 1)
                    if index == STAGES:
                        index, phase = uint32(0), uint32(phase ^ 1)
                    ready = ptx.mbarrier_try_wait_parity(empty + index * 8, phase)
                    tile += step
        else:
            total = uint32(0)
            ready = ptx.mbarrier_try_wait_parity(full, phase)
            while tile < n_tiles:
                if not ready:
                    wait(full + index * 8, phase)
                total = uint32(total + ptx.ld_shared_u32(stages + index * BYTES_A + 4 * thread))
                release_read(empty + index * 8)
                index = uint32(index + 1)
                if index == STAGES:
                    index, phase = uint32(0), uint32(phase ^ 1)
                ready = ptx.mbarrier_try_wait_parity(full + index * 8, phase)
                tile += step
            out[thread] = total

    return ours, by_hand, (MAP_A, WORDS, INT)


def in_flight():
    """A consumer role that hands each stage back one tile later."""
    ROLES = tma.Roles(load=tma.Warps(1), work=tma.Warps(4))
    PIPE = tma.TilePipeline(STAGES, a=A, producer=ROLES.load, consumer=ROLES.work)
    MEMORY = memory(BYTES_A)

    @cuda.jit
    def ours(a, out, n_tiles):
        pipe = PIPE.start()
        first, step = cuda.blockIdx.x, cuda.gridDim.x
        if pipe.is_producer():
            for tile, stage in pipe.produce(first, n_tiles, step):
                a.load(stage.a, (tile * ROWS_A, 0), stage.barrier)
        else:
            for tile, stage in pipe.consume(first, n_tiles, step, in_flight=1):
                pipe.store(out, stage.a, (tile * ROWS_A, 0), written=False)
            pipe.release_pending()

    @cuda.jit
    def by_hand(a, out, n_tiles):
        stages = shared_tile(MEMORY).address
        full = uint32(stages + STAGES * BYTES_A)
        empty = uint32(full + STAGES * 8)
        initialise(full, empty, 1, 4, ptx.ntid_x())
        thread = ptx.tid_x()
        tile, step = int64(cuda.blockIdx.x), cuda.gridDim.x
        index, phase = uint32(0), uint32(0)
        if thread < 32:
            if ptx.elect_sync():
                phase = uint32(1)
                while tile < n_tiles:
                    wait(empty + index * 8, phase)
                    ptx.mbarrier_arrive_expect_tx(full + index * 8, BYTES_A)
                    ptx.cp_async_bulk_tensor_load(
                        stages + index * BYTES_A, a, (tile * ROWS_A, 0), full + index * 8
                    )
                    tile += step
                    index = uint32(index + 1)
                    if index == STAGES:
                        index, phase = uint32(0), uint32(phase ^ 1)
        else:
            previous = uint32(STAGES)  # none yet
            while tile < n_tiles:
                wait(full + index * 8, phase)
                if thread == 32:
                    ptx.cp_async_bulk_tensor_store(
                        out, (tile * ROWS_A, 0), stages + index * BYTES_A
                    )
                    ptx.cp_async_bulk_commit_group()
                    ptx.cp_async_bulk_wait_group_read(1)
                if previous < STAGES:
                    release(empty + previous * 8)
                previous = index
                tile += step
                index = uint32(index + 1)
                if index == STAGES:
                    index, phase = uint32(0), uint32(phase ^ 1)
            if previous < STAGES:
                if thread == 32:
                    ptx.cp_async_bulk_wait_group_read(0)
                release(empty + previous * 8)

    return ours, by_hand, (MAP_A, MAP_A, INT)


TWINS = {
    twin.__name__: twin
    for twin in (
        registers, k_group, block_scaled, two_consumers, alternate, cp_async, threads,
        cluster_2x1, cluster_loops, cluster_2x2, asking, in_flight,
    )
}  # fmt: skip


#: By name of the golden: the name of the twins.
@functools.cache
def _twins(name):
    return TWINS[name]()


@functools.cache
def compiled(name, cc, by_hand=False):
    """Return the PTX of a ring's kernel, or of the one by hand."""
    ours, hand, signature = _twins(name)
    return compile_ptx(hand if by_hand else ours, signature, cc=cc)
