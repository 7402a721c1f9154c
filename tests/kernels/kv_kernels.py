"""Kernels over rings of keys and values, in the orders in which attention uses them.

Each writes what it reads, use by use, to ``out[role, use, thread]``; `Case` compares that with the
tiles that were loaded, in the order that the kernel is meant to have. The same kernels run in the
simulator and on a GPU. `kv_pipeline` and `kv_pipeline_by_hand` are counted against each other.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import cuda, types, uint32, uint64

import numba_tma as tma
from numba_tma import ptx
from numba_tma.host.environment import simulated

BN, DEPTH, SWIZZLE = 16, 64, tma.Swizzle.B32  # a depth of four spans
Kernel = tuple[Any, tuple[Any, ...]]


def map_of(tile: tma.Tile) -> Any:
    """Return the type of a map that copies `tile`; the simulator has no types."""
    return None if simulated() else tma.TensorMapType(tile.ndim, tile)


# ------------------------------------------------------------------ what the two sides do


@cuda.jit(device=True)
def load_k(load, k, n, parts):
    for part in range(parts):
        load.acquire_k(part)
        barrier, tile = load.get_k(part)
        k.load(tile, (n * BN, part * load.BK), barrier)
    load.commit_step()


@cuda.jit(device=True)
def load_v(load, v, n):
    load.acquire_v()
    barrier, tile = load.get_v()
    v.load(tile, (n * BN, 0), barrier)
    load.commit_step()


@cuda.jit(device=True)
def use_k(tile, out, use, thread):
    """Write one element of a sub-stage of K, another one for each thread and use."""
    out[use, thread] = tile[(thread + use) % BN, (thread // BN * 5 + use) % tile.tile.shape[1]]
    return use + 1


@cuda.jit(device=True)
def use_v(tile, out, use, thread):
    out[use, thread] = tile[(thread + use) % BN, (thread // BN * 5 + use) % DEPTH]
    return use + 1


def element(kind: str, n: int, part: int, use: int, threads: int, width: int) -> tuple[Any, Any]:
    """Return rows and columns of K or V that the threads write for a use."""
    thread = np.arange(threads)
    column = (thread // BN * 5 + use) % (width if kind == "k" else DEPTH)
    return n * BN + (thread + use) % BN, column + part * width


# -------------------------------------------- S0 <- Q0 K', O1 += P1 V, S1 <- Q1 K', O0 += P0 V


@cuda.jit(device=True)
def two_tiles_load(k_load, v_load, k, v, tiles, parts):
    for n in range(tiles):
        load_k(k_load, k, n, parts)
        load_v(v_load, v, n)


@cuda.jit(device=True)
def two_tiles_work(k_work, v_work, out, tiles, parts, thread):
    """Use K(n) for Q0 and Q1, V(n - 1) for P1 between the two, V(n) for P0 after them."""
    use, before = 0, uint32(0)
    for n in range(tiles):
        for part in range(parts):
            k_work.wait_k(part)
            use = use_k(k_work.get_k_tile(part), out, use, thread)
        if n > 0:
            use = use_v(v_work.get_v_tile(before), out, use, thread)
            v_work.release_at(before)
        for part in range(parts):
            use = use_k(k_work.get_k_tile(part), out, use, thread)
            k_work.release_k(part)
        v_work.wait_v()
        use = use_v(v_work.get_v_tile(), out, use, thread)
        before = v_work.step()
    if tiles > 0:
        use = use_v(v_work.get_v_tile(before), out, use, thread)
        v_work.release_at(before)


def two_tiles_uses(tiles, parts):
    uses = []
    for n in range(tiles):
        k = [("k", n, part) for part in range(parts)]
        uses += [*k, *([("v", n - 1, 0)] if n else []), *k, ("v", n, 0)]
    return uses + ([("v", tiles - 1, 0)] if tiles else [])


# ------------------- Q K(n)' is under way when P V(n - 1) is: within a warpgroup


@cuda.jit(device=True)
def overlapped_load(k_load, v_load, k, v, tiles, parts):
    for n in range(tiles):
        load_k(k_load, k, n, parts)
        if n > 0:
            load_v(v_load, v, n - 1)
    if tiles > 0:
        load_v(v_load, v, tiles - 1)


@cuda.jit(device=True)
def overlapped_work(k_work, v_work, out, tiles, parts, thread):
    """Release K(n) when its product is done, V(n - 1) a step later, by their indices."""
    use, k_left, v_left = 0, uint32(0), uint32(0)
    for n in range(tiles):
        for part in range(parts):
            k_work.wait_k(part)
            use = use_k(k_work.get_k_tile(part), out, use, thread)
        if n > 1:
            v_work.release_at(v_left)  # P V(n - 2), which softmax(n - 1) ran beside
        k_left = k_work.step()
        if n > 0:
            v_work.wait_v()
            use = use_v(v_work.get_v_tile(), out, use, thread)
            v_left = v_work.step()
        for part in range(parts):
            k_work.release_at(k_left, part)  # wait_group 1: Q K(n)' is done, P V(n - 1) is not
    if tiles > 1:
        v_work.release_at(v_left)
    if tiles > 0:
        v_work.wait_v()
        use = use_v(v_work.get_v_tile(), out, use, thread)
        v_work.release_v()


def overlapped_uses(tiles, parts):
    uses = []
    for n in range(tiles):
        uses += [("k", n, part) for part in range(parts)]
        uses += [("v", n - 1, 0)] if n else []
    return uses + ([("v", tiles - 1, 0)] if tiles else [])


# --------------------------------------------- each tile is handed back before the next is needed


@cuda.jit(device=True)
def plain_work(k_work, v_work, out, tiles, parts, thread):
    """K(n), then V(n): all that a single stage allows; election by hand."""
    use = 0
    for _ in range(tiles):
        for part in range(parts):
            k_work.wait_k(part)
            use = use_k(k_work.get_k_tile(part), out, use, thread)
            k_work.release_k(part, tma.elect_sync())
        v_work.wait_v()
        use = use_v(v_work.get_v_tile(), out, use, thread)
        v_work.release_v(e=tma.elect_sync())


def plain_uses(tiles, parts):
    return [u for n in range(tiles) for u in (*(("k", n, p) for p in range(parts)), ("v", n, 0))]


#: By name: what loads, what works, the uses in their order, and the stages that it needs.
ORDERS = {
    "two tiles": (two_tiles_load, two_tiles_work, two_tiles_uses, 2),
    "overlapped": (overlapped_load, overlapped_work, overlapped_uses, 2),
    "plain": (two_tiles_load, plain_work, plain_uses, 1),
}


def stages_needed(order, shared):
    return ORDERS[order][3] if shared else 1


@functools.cache
def order_kernel(order, stages, parts, shared, consumers=1, warps=1):
    """Return roles, rings and kernel: K and V from one ring or from two, in one of the `ORDERS`."""
    load, work, _, _ = ORDERS[order]
    named = {f"c{i}": tma.Warps(warps) for i in range(consumers)}
    ROLES = tma.Roles(**named, load=tma.Warps(1))
    both = tuple(getattr(ROLES, name) for name in named)
    C0, C1 = both[0], both[-1]
    ring = functools.partial(
        tma.KVPipeline, stages, BN, DEPTH, "f16", parts,
        swizzle=SWIZZLE, producer=ROLES.load, consumer=both,
    )  # fmt: skip
    if shared:
        KV = ring()

        @cuda.jit
        def kernel(k, v, out, tiles):
            pipe = KV.start()
            loads, works = pipe.producer(), pipe.consumer()
            if ROLES.load.is_member():
                if loads.enters():
                    load(loads, loads, k, v, tiles, parts)
            else:
                role = 0 if C0.is_member() else 1
                thread = C0.thread() if C0.is_member() else C1.thread()
                work(works, works, out[role], tiles, parts, thread)

        return ROLES, (KV,), kernel
    K, V = ring(holds="k"), ring(holds="v")

    @cuda.jit
    def kernel(k, v, out, tiles):
        k_pipe = K.start(sync=False)
        v_pipe = V.start()
        if ROLES.load.is_member():
            if k_pipe.producer().enters():
                load(k_pipe.producer(), v_pipe.producer(), k, v, tiles, parts)
        else:
            role = 0 if C0.is_member() else 1
            thread = C0.thread() if C0.is_member() else C1.thread()
            work(k_pipe.consumer(), v_pipe.consumer(), out[role], tiles, parts, thread)

    return ROLES, (K, V), kernel


@functools.cache
def landing_kernel(stages, parts):
    """Return roles, rings and kernel: a part of K is loaded when the one before it has been used.

    The whole warp of the producer goes along, and its elected lane does the work.
    """
    ROLES = tma.Roles(c0=tma.Warps(1), load=tma.Warps(1))
    KV = tma.KVPipeline(
        stages, BN, DEPTH, "f16", parts,
        swizzle=SWIZZLE, holds="k", producer=ROLES.load, consumer=ROLES.c0,
    )  # fmt: skip

    @cuda.jit
    def kernel(k, v, out, tiles):
        used = tma.shared_barrier()
        if cuda.threadIdx.x == 0:
            used.init(1)
        pipe = KV.start()
        loads, works = pipe.producer(), pipe.consumer()
        parity = uint32(1)
        if ROLES.load.is_member():
            e = tma.elect_sync()
            for n in range(tiles):
                for part in range(parts):
                    used.wait(parity)
                    parity ^= uint32(1)
                    loads.acquire(part)
                    barrier, tile = loads.get_tile(part, e)
                    if e:
                        k.load(tile, (n * BN, part * loads.BK), barrier)
                loads.commit_step()
        else:
            thread, use = ROLES.c0.thread(), 0
            for _ in range(tiles):
                for part in range(parts):
                    works.wait(part)
                    use = use_k(works.get_tile(part), out[0], use, thread)
                    ptx.bar_warp_sync()
                    if thread == 0:
                        used.arrive()
                    works.release(part)

    return ROLES, (KV,), kernel


def landing_uses(tiles, parts):
    return [("k", n, part) for n in range(tiles) for part in range(parts)]


# ------------------------------------------------------------------------------- cases


def halves(tiles, seed):
    """Return random bits that are f16 numbers."""
    numbers = np.random.default_rng(seed).standard_normal((max(1, tiles) * BN, DEPTH))
    return numbers.astype(np.float16)


class Case:
    """Runs a kernel on arrays; the simulator takes them as they are."""

    def __init__(self, to_device=lambda array: array, to_host=lambda array: array):
        self.to_device, self.to_host = to_device, to_host

    def run(self, made, uses, tiles, parts, consumers=1):
        """Hold what each role read, use by use, to the tiles that were loaded."""
        ROLES, rings, kernel = made
        threads = ROLES.c0.members
        k, v = halves(tiles, 1), halves(tiles, 2)
        out = np.full((consumers, len(uses) + 1, threads), np.nan, np.float32)
        maps = [
            tma.tensor_map(self.to_device(x), tile)
            for x, tile in ((k, rings[0].k_tile), (v, rings[-1].v_tile))
        ]
        device = self.to_device(out)
        kernel[1, ROLES.threads](*maps, device, tiles)
        got = self.to_host(device)
        width = DEPTH // parts
        for use, (kind, n, part) in enumerate(uses):
            at = element(kind, n, part, use, threads, width)
            expected = np.float32((k if kind == "k" else v)[at])
            for role in range(consumers):
                np.testing.assert_array_equal(got[role, use], expected, f"use {use}: {kind}({n})")
        assert np.isnan(got[:, len(uses) :]).all(), "more was used than there is"

    def order(self, order, stages, parts, shared, consumers, warps, tiles):
        made = order_kernel(order, stages, parts, shared, consumers, warps)
        self.run(made, ORDERS[order][2](tiles, parts), tiles, parts, consumers)

    def landing(self, stages, parts, tiles):
        self.run(landing_kernel(stages, parts), landing_uses(tiles, parts), tiles, parts)


# ---------------------------------------------------------------- counted against each other

STAGES, PARTS, KEYS, HEAD = 4, 2, 128, 128
ATTENTION = tma.Roles(mma=tma.Warpgroups(2), load=tma.Warps(1))
RING = tma.KVPipeline(
    STAGES, KEYS, HEAD, "bf16", PARTS, producer=ATTENTION.load, consumer=ATTENTION.mma
)
NBYTES, PART_NBYTES = RING.full_kv_bytes, RING.staged_k_bytes


def kv_pipeline() -> Kernel:
    """Return the kernel that writes the descriptors of the tiles in the order of attention."""

    @cuda.jit
    def kernel(k, v, out, tiles):
        pipe = RING.start()
        if ATTENTION.load.is_member():
            loads = pipe.producer()
            if loads.enters():
                row = uint32(0)
                while row < tiles * KEYS:
                    for part in range(PARTS):
                        loads.acquire_k(part)
                        barrier, tile = loads.get_k(part)
                        k.load(tile, (row, part * loads.BK), barrier)
                    loads.commit_step()
                    loads.acquire_v()
                    barrier, tile = loads.get_v()
                    v.load(tile, (row, 0), barrier)
                    loads.commit_step()
                    row += uint32(KEYS)
        else:
            works = pipe.consumer()
            for n in range(tiles):
                works.wait_k(0)
                out[n, 0] = works.get_k(0).value
                works.wait_k(1)
                out[n, 1] = works.get_k(1).value
                left = works.step()
                works.wait_v()
                out[n, 2] = works.get_v().value
                works.release_at(left)
                works.release_v()

    return kernel, (map_of(RING.k_tile), map_of(RING.v_tile), types.uint64[:, ::1], types.int64)


def kv_pipeline_by_hand() -> Kernel:
    """Return the shortest loops that do the same."""
    memory = tma.Tile((RING.nbytes // 128, 128), "u8", tma.Swizzle.B128)
    first = ATTENTION.load.first
    K_LAYOUT = tma.MatrixLayout(RING.k_tile)
    V_LAYOUT = tma.MatrixLayout(RING.v_tile, "MN")
    K_LOW, K_HIGH = K_LAYOUT.low, K_LAYOUT.high
    V_LOW, V_HIGH = V_LAYOUT.low, V_LAYOUT.high
    arrivals, barriers = RING.empty_arrivals, RING.storage_nbytes
    EMPTY = 8 * STAGES * PARTS

    @cuda.jit
    def kernel(k, v, out, tiles):
        base = tma.shared_tile(memory).address
        full = uint32(base + barriers)
        thread = ptx.tid_x()
        if thread == 0:
            for i in range(STAGES * PARTS):
                ptx.mbarrier_init(full + 8 * i, 1)
                ptx.mbarrier_init(full + EMPTY + 8 * i, arrivals)
            ptx.fence_mbarrier_init()
        ptx.barrier_sync(0, ptx.ntid_x())
        index, phase, phases = uint32(0), uint32(0), uint32(0)
        if thread >= first:
            if ptx.elect_sync():
                phase = uint32(1)
                row = uint32(0)
                while row < tiles * KEYS:
                    for part in range(PARTS):
                        barrier = uint32(full + 8 * (index * PARTS + part))
                        while not ptx.mbarrier_try_wait_parity(barrier + EMPTY, phase):
                            pass
                        ptx.mbarrier_arrive_expect_tx(barrier, PART_NBYTES)
                        k.load(
                            uint32(base + index * NBYTES + part * PART_NBYTES),
                            (row, part * HEAD // PARTS),
                            tma.Barrier(barrier),
                        )
                    index = uint32(index + 1)
                    if index == STAGES:
                        index, phase = uint32(0), uint32(phase ^ 1)
                    barrier = uint32(full + 8 * index * PARTS)
                    for part in range(PARTS):
                        while not ptx.mbarrier_try_wait_parity(barrier + EMPTY + 8 * part, phase):
                            pass
                    ptx.mbarrier_arrive_expect_tx(barrier, NBYTES)
                    v.load(uint32(base + index * NBYTES), (row, 0), tma.Barrier(barrier))
                    index = uint32(index + 1)
                    if index == STAGES:
                        index, phase = uint32(0), uint32(phase ^ 1)
                    row += uint32(KEYS)
        else:
            for n in range(tiles):
                barrier = uint32(full + 8 * index * PARTS)
                for part in range(PARTS):
                    # V does not come to the other barriers: their phases are those of K.
                    parity = phase if part == 0 else uint32(phases >> index & 1)
                    while not ptx.mbarrier_try_wait_parity(barrier + 8 * part, parity):
                        pass
                    address = uint32(base + index * NBYTES + part * PART_NBYTES)
                    low = uint32(address >> 4 & 0x3FFF | K_LOW)
                    out[n, part] = uint64(K_HIGH) << uint64(32) | uint64(low)
                left = uint32(barrier + EMPTY)
                phases ^= uint32(1 << index)
                index = uint32(index + 1)
                if index == STAGES:
                    index, phase = uint32(0), uint32(phase ^ 1)
                barrier = uint32(full + 8 * index * PARTS)
                while not ptx.mbarrier_try_wait_parity(barrier, phase):
                    pass
                low = uint32(uint32(base + index * NBYTES) >> 4 & 0x3FFF | V_LOW)
                out[n, 2] = uint64(V_HIGH) << uint64(32) | uint64(low)
                ptx.bar_warp_sync()
                if ptx.elect_sync():
                    for part in range(PARTS):
                        ptx.mbarrier_arrive(left + 8 * part)
                ptx.bar_warp_sync()
                if ptx.elect_sync():
                    for part in range(PARTS):
                        ptx.mbarrier_arrive(barrier + EMPTY + 8 * part)
                index = uint32(index + 1)
                if index == STAGES:
                    index, phase = uint32(0), uint32(phase ^ 1)

    return kernel, (map_of(RING.k_tile), map_of(RING.v_tile), types.uint64[:, ::1], types.int64)


#: What has a golden in ptx/kernels, and the same by hand.
PIPELINES = {"kv_pipeline": (kv_pipeline, kv_pipeline_by_hand)}
