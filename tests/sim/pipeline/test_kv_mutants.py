"""Mutants of a kernel with a ring of keys and values, and the errors that catch them."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import simulator as sim
from tests.tiers import seeds

BN, DEPTH, STAGES, PARTS, TILES = 16, 64, 3, 2, 6
ROLES = tma.Roles(c0=tma.Warps(2), load=tma.Warps(1))
KV = tma.KVPipeline(
    STAGES, BN, DEPTH, "f16", PARTS,
    swizzle=tma.Swizzle.B64, producer=ROLES.load, consumer=ROLES.c0,
)  # fmt: skip
SEEDS = range(4)


@cuda.jit
def attend(k, v, out, mutation):
    """K(n), then V(n) while K(n) is still held; K is handed back by its index."""
    pipe = KV.start()
    loads, works = pipe.producer(), pipe.consumer()
    if ROLES.load.is_member():
        if loads.enters():
            for n in range(TILES):
                load(loads, k, v, n, mutation)
    else:
        work(works, out, mutation)


def load(loads, k, v, n, mutation):
    for part in range(PARTS):
        loads.acquire_k(part)
        barrier, tile = loads.get_k(part)
        if mutation == "a sub-stage is loaded into the other":
            tile = loads._k_tile(1 - part)
        if not (mutation == "a sub-stage is not loaded" and part == 1):
            k.load(tile, (n * BN, part * loads.BK), barrier)
    loads.commit_step()
    if mutation != "no wait for an empty stage":
        loads.acquire_v()
    barrier, tile = loads.get_v()
    if mutation == "bytes of V are expected twice":
        loads.get_v()
    if mutation == "V on the second barrier":
        barrier = loads.pipeline.full(1)
    v.load(tile, (n * BN, 0), barrier)
    if not (mutation == "the producer does not step" and n == 1):
        loads.commit_step()


def work(works, out, mutation):
    thread = cuda.threadIdx.x
    for n in range(TILES):
        for part in range(PARTS):
            if not (mutation == "no wait for a sub-stage" and part == 1):
                works.wait_k(part)
            if mutation == "released before its use":
                works.release_at(works.pipeline.state.index, part)
            out[n, part, thread] = works.get_k_tile(part)[thread % BN, thread // BN]
        if mutation == "the last sub-stage is released first":
            works.release_k(1)
            works.release_k(0)
            left = None
        elif mutation == "one sub-stage is not released":
            works.release_k()
            left = None
        else:
            left = works.pipeline.state.index if mutation == "no step" else works.step()
        if mutation != "no wait for V":
            works.wait_v()
        out[n, PARTS, thread] = works.get_v_tile()[thread % BN, thread // BN]
        if mutation == "release_at the next stage":
            left = (left + 1) % STAGES
        if mutation == "one warp keeps K" and n == 2 and thread // 32 == 1:
            left = None
        if mutation == "release_at again" and n == 0:
            works.release_at(left)
        if left is not None and mutation != "released before its use":
            works.release_at(left)
        if mutation == "V is released and used again":
            works.release_v()
            out[n, PARTS, thread] += works.get_v_tile((left + 1) % STAGES)[thread % BN, 0]
        else:
            works.release_v()


def run(mutation, seed):
    sim.seed(seed)
    rows = np.random.default_rng(7).standard_normal((2, TILES * BN, DEPTH)).astype(np.float16)
    out = np.zeros((TILES, PARTS + 1, ROLES.c0.members), np.float32)
    maps = tma.tensor_map(rows[0], KV.k_tile), tma.tensor_map(rows[1], KV.v_tile)
    attend[1, ROLES.threads](*maps, out, mutation)
    thread = np.arange(ROLES.c0.members)
    for n in range(TILES):
        at = n * BN + thread % BN
        for part in range(PARTS):
            expected = rows[0][at, part * KV.BK + thread // BN]
            np.testing.assert_array_equal(out[n, part], np.float32(expected))
        np.testing.assert_array_equal(out[n, PARTS], np.float32(rows[1][at, thread // BN]))


def test_the_kernel_is_right_without_a_mutation():
    for seed in SEEDS:
        run(None, seed)


#: The errors that a mistake shows itself as, and what each of their texts has in it.
MUTANTS = {
    "no wait for a sub-stage": ((sim.EarlyRead, sim.UninitializedRead), "sub-stage 1 of"),
    "no wait for V": ((sim.EarlyRead, sim.UninitializedRead), f"of {KV}"),
    "no wait for an empty stage": ((sim.EarlyOverwrite, sim.BarrierMisuse), f"of {KV}"),
    "released before its use": ((sim.EarlyOverwrite,), f"of {KV}"),
    "the last sub-stage is released first": ((sim.Deadlock,), "sub-stage 0 of"),
    "one sub-stage is not released": ((sim.Deadlock,), "sub-stage 0 of"),
    "no step": ((sim.BarrierMisuse, sim.EarlyOverwrite, sim.Deadlock), f"of {KV}"),
    "the producer does not step": ((sim.BarrierMisuse, sim.EarlyOverwrite), f"of {KV}"),
    "release_at the next stage": ((sim.Deadlock,), "empty[0] of sub-stage 0 of"),
    "release_at again": ((sim.Deadlock, sim.EarlyOverwrite, sim.BarrierMisuse), f"of {KV}"),
    "one warp keeps K": ((sim.Deadlock,), "1 of 2 arrivals pending"),
    "V is released and used again": ((sim.EarlyOverwrite,), f"of {KV}"),
    "a sub-stage is not loaded": ((sim.Deadlock,), "1024 bytes missing (1024 expected, 0 issued)"),
    "a sub-stage is loaded into the other": (
        (sim.EarlyRead, sim.UninitializedRead), "sub-stage 0 of",
    ),
    "bytes of V are expected twice": (
        (sim.BarrierMisuse,), "arrive with count 1 in phase 0, where 0 of 1 arrivals are pending",
    ),
    "V on the second barrier": (
        (sim.Deadlock,), "2048 bytes missing (2048 expected, 0 issued)",
    ),
}  # fmt: skip


@seeds(1, 4)
@pytest.mark.parametrize("mutation", MUTANTS)
def test_every_mutant_is_caught_under_any_seed(mutation, seeds):
    kinds, text = MUTANTS[mutation]
    for seed in seeds:
        with pytest.raises(kinds) as caught:
            run(mutation, seed)
        assert text in str(caught.value), f"seed {seed}"


# ------------------------------------------------------- what the compiler refuses on a GPU


ALONE = {
    holds: tma.KVPipeline(
        2, BN, DEPTH, "f16", PARTS,
        holds=holds, swizzle=tma.Swizzle.B64, producer=ROLES.load, consumer=ROLES.c0,
    )
    for holds in "kv"
}  # fmt: skip
REFUSED = {
    "a sub-stage that is not there": (
        "k", lambda loads, works: works.wait(2),
        "wait(qk_stage=2): the ring has num_qk_stages = 2 sub-stage(s) to a stage, "
        "numbered 0 to 1",
    ),
    "a negative sub-stage": ("k", lambda loads, works: works.release(-1), "release(qk_stage=-1)"),
    "a sub-stage of V": (
        "v", lambda loads, works: loads.acquire(1), "num_qk_stages = 1 sub-stage(s)",
    ),
    "a sub-stage to release later": (
        "k", lambda loads, works: works.release_at(0, 2), "release_at(qk_stage=2)",
    ),
    "a sub-stage to load": ("k", lambda loads, works: loads.get_k(2), "get_k(qk_stage=2)"),
    "V from a ring of K": (
        "k", lambda loads, works: works.get_v(),
        "holds K alone, whose tiles are K-major, but get_v is for MN-major tiles of V: use the "
        "ring of V, or one with holds='kv'",
    ),
    "K from a ring of V": (
        "v", lambda loads, works: works.get_k(),
        "holds V alone, whose tiles are MN-major, but get_k is for K-major tiles of K",
    ),
    "a wait for V": ("k", lambda loads, works: works.wait_v(), "wait_v: "),
    "a release of K": ("v", lambda loads, works: works.release_k(), "release_k: "),
    "a load of V": ("k", lambda loads, works: loads.acquire_v(), "acquire_v: "),
    "the tile of K": ("v", lambda loads, works: works.get_k_tile(), "get_k_tile: "),
}  # fmt: skip


@pytest.mark.parametrize("mistake", REFUSED)
def test_what_a_ring_does_not_have(mistake):
    holds, body, text = REFUSED[mistake]

    @cuda.jit
    def kernel():
        pipe = ALONE[holds].start()
        loads, works = pipe.producer(), pipe.consumer()
        if cuda.threadIdx.x == 0:
            body(loads, works)

    with pytest.raises(sim.BadOperand) as caught:
        kernel[1, ROLES.threads]()
    assert text in str(caught.value)


def test_a_block_has_the_threads_of_the_roles():
    @cuda.jit
    def kernel():
        KV.start()

    with pytest.raises(sim.BadOperand, match="block 64: the roles .* have 96 threads in all"):
        kernel[1, 64]()


@pytest.mark.parametrize("tiles", [True, False])
def test_memory_that_is_too_small(tiles):
    @cuda.jit
    def kernel():
        if tiles:
            KV.start(tiles=tma.shared_tile(KV.v_tile))
        else:
            KV.start(barriers=tma.shared_barriers(3))

    text = "it has 2,048 B .* needs 6,144 B" if tiles else "it has 24 B .* needs 96 B"
    with pytest.raises(sim.BadOperand, match=text):
        kernel[1, ROLES.threads]()
