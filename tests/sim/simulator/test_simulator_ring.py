"""A producer/consumer ring written by hand, and one mutant of it per mistake."""

import numpy as np
import pytest
from numba import cuda

from numba_tma import simulator as sim
from tests.tiers import seeds

STAGES, VALUES, THREADS = 2, 128, 96
BYTES = 4 * VALUES
F32 = np.dtype(np.float32)


def wait(barrier, parity):
    while not sim.mbarrier_try_wait_parity(barrier, parity):
        pass


@cuda.jit
def doubled(x, y, tiles, mutation):
    """Warp 0 loads; warps 1 and 2 double each tile in place; one thread of them stores it."""
    stage_0 = sim.allocate_shared("ring", STAGES * BYTES, 128)
    full = sim.allocate_shared("full", 8 * STAGES, 8)
    empty = sim.allocate_shared("empty", 8 * STAGES, 8)
    thread = sim.thread_index()[0]
    for s in range(STAGES):
        sim.label(stage_0 + s * BYTES, f"x[{s}] of Ring")
        sim.label(full + 8 * s, f"full[{s}] of Ring")
        sim.label(empty + 8 * s, f"empty[{s}] of Ring")
    if thread == 0:
        for s in range(STAGES):
            sim.mbarrier_init(full + 8 * s, 1)
            sim.mbarrier_init(empty + 8 * s, 64)
        if mutation != "no fence after init":
            sim.fence_mbarrier_init()
    if mutation != "no sync after init":
        cuda.syncthreads()
    if sim.warp_id() == 0:
        if sim.elect_sync(0xFFFFFFFF):
            produce(x, tiles, stage_0, full, empty, mutation)
    else:
        consume(y, tiles, stage_0, full, empty, mutation, thread - 32)


def produce(x, tiles, stage_0, full, empty, mutation):
    armed = {"armed for less": BYTES - 16, "armed for more": BYTES + 16}.get(mutation, BYTES)
    for i in range(tiles):
        s, parity = i % STAGES, i // STAGES & 1
        if mutation != "no wait for empty":
            wait(empty + 8 * s, parity ^ 1)
        if mutation != "never armed":
            sim.mbarrier_arrive_expect_tx(full + 8 * s, armed)
        sim.cp_async_bulk_load(stage_0 + s * BYTES, x[i * VALUES : (i + 1) * VALUES], full + 8 * s)


def consume(y, tiles, stage_0, full, empty, mutation, worker):
    for i in range(tiles):
        s, parity = i % STAGES, i // STAGES & 1
        tile = stage_0 + s * BYTES
        if mutation != "no wait for full":
            wait(full + 8 * s, parity)
        if mutation == "release before the last access":
            sim.mbarrier_arrive(empty + 8 * s)
        for j in range(worker, VALUES, 64):
            value = sim.shared_read(tile + 4 * j, F32)
            sim.shared_write(tile + 4 * j, np.float32(2 * value))
        if mutation not in ("no fence before store", "only the storing thread fences"):
            sim.fence_proxy_async()
        if mutation != "no sync before store":
            sim.barrier_sync(1, 64)
        if worker == 0:
            if mutation == "only the storing thread fences":
                sim.fence_proxy_async()
            sim.cp_async_bulk_store(y[i * VALUES : (i + 1) * VALUES], tile)
            if mutation != "no commit":
                sim.cp_async_bulk_commit_group()
            if mutation != "no wait for the store":
                sim.cp_async_bulk_wait_group_read(0)
        if mutation == "one thread never releases" and worker == 5:
            continue
        if mutation != "release before the last access":
            sim.mbarrier_arrive(empty + 8 * s)
        if mutation == "two releases" and worker == 5:
            sim.mbarrier_arrive(empty + 8 * s)


def run(tiles, mutation, seed):
    sim.seed(seed)
    x = np.arange(tiles * VALUES, dtype=np.float32)
    y = np.zeros_like(x)
    doubled[1, THREADS](x, y, tiles, mutation)
    np.testing.assert_array_equal(y, 2 * x)


@seeds(3, 8)
@pytest.mark.parametrize("tiles", [1, 2, 5])
def test_the_ring_is_right_under_any_seed(tiles, seeds):
    for seed in seeds:
        run(tiles, None, seed)


#: The error, what it says, and what else the mistake may show itself as in another order.
MUTANTS = {
    "no wait for full": (sim.EarlyRead, ["x[0] of Ring"], ()),
    "no wait for empty": (sim.EarlyOverwrite, ["x[0] of Ring"], (sim.BarrierMisuse,)),
    "release before the last access": (sim.EarlyOverwrite, ["of Ring, bytes"], ()),
    "no fence before store": (sim.MissingFence, ["x[0] of Ring", "fence_proxy_async()"], ()),
    "only the storing thread fences": (sim.MissingFence, ["x[0] of Ring", "warp 1 lane 1"], ()),
    "no sync before store": (sim.MissingFence, ["x[0] of Ring", "nothing orders"], ()),
    "no commit": (sim.EarlyOverwrite, ["may still be reading", "wait_group_read()"], ()),
    "no wait for the store": (sim.EarlyOverwrite, ["may still be reading", "wait_group_read"], ()),
    "armed for less": (sim.WrongByteCount, ["full[", "16 bytes more"], ()),
    "armed for more": (
        sim.Deadlock,
        ["full[0] of Ring", "16 bytes missing (528 expected, 512 issued)", "parity 0 wanted",
         "block (0, 0, 0): warps 1-2 lanes 0-31", "exited: block (0, 0, 0): warp 0 lanes 1-31"],
        (),
    ),
    "never armed": (sim.Deadlock, ["full[0] of Ring", "1 of 1 arrivals pending, 512 bytes"], ()),
    "one thread never releases": (
        sim.Deadlock,
        ["empty[0] of Ring is in phase 0 (parity 0): 1 of 64 arrivals pending, 0 bytes missing",
         "parity 0 wanted", "warp 0 lane 0\n"],
        (),
    ),
    "two releases": (
        sim.EarlyOverwrite,
        ["of Ring, bytes"],
        (sim.BarrierMisuse, sim.EarlyRead),
    ),
    "no fence after init": (sim.MissingFence, ["full[0] of Ring", "fence_mbarrier_init()"], ()),
    "no sync after init": (sim.BarrierMisuse, ["syncthreads"], ()),
}  # fmt: skip


@seeds(3, 8)
@pytest.mark.parametrize("mutation", MUTANTS)
def test_every_mutant_is_caught_under_any_seed(mutation, seeds):
    kind, texts, others = MUTANTS[mutation]
    seen = 0
    for seed in seeds:
        with pytest.raises((kind, *others)) as caught:
            run(12, mutation, seed)
        if isinstance(caught.value, kind):
            seen += 1
            for text in texts:
                assert text in str(caught.value), f"seed {seed}"
    assert seen >= (len(seeds) if not others else 1)
