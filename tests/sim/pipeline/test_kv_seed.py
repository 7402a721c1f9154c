"""Every member and method of Mojo's K/V pipelines, by the name that it has there.

The parameters that Mojo writes in brackets are arguments here, ``release[qk_stage=1](e)`` being
``release(1, e)``.
"""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import simulator
from numba_tma.device.shared import TileAccesses
from numba_tma.pipeline import Warps
from tests.tiers import every

BN, DEPTH, STAGES, PARTS = 16, 64, 2, 2
ROLES = tma.Roles(c0=Warps(2), load=Warps(1))
WARPS = ROLES.c0.arrivals


def ring(holds="k", stages=STAGES, parts=PARTS):
    return tma.KVPipeline(
        stages, BN, DEPTH, "f16", parts, holds=holds, swizzle=tma.Swizzle.B64,
        producer=ROLES.load, consumer=ROLES.c0,
    )  # fmt: skip


K, V, KV = ring(), ring("v"), ring("kv")
RINGS = {"k": K, "v": V, "kv": KV}


def numbers(tiles):
    return np.arange(tiles * BN * DEPTH, dtype=np.float16).reshape(-1, DEPTH) % 2048


def fill(loads, maps, plan):
    """Load the tiles of `plan`, "k" or "v" each, in its order; number n starts at row n BN."""
    for n, kind in enumerate(plan):
        if kind == "k":
            for part in range(loads.num_qk_stages_effective):
                loads.acquire_k(part)
                barrier, tile = loads.get_k(part)
                maps["k"].load(tile, (n * BN, part * loads.BK), barrier)
        else:
            loads.acquire_v()
            barrier, tile = loads.get_v()
            maps["v"].load(tile, (n * BN, 0), barrier)
        loads.commit_step()


def launch(kv, plan, work, load=fill):
    """Let the first thread of the producer load what `plan` says, and the consumers work."""
    x = numbers(max(1, len(plan)))
    maps = {"k": tma.tensor_map(x, kv.k_tile), "v": tma.tensor_map(x, kv.v_tile)}
    seen = {}

    @cuda.jit
    def kernel():
        pipe = kv.start()
        loads, works = pipe.producer(), pipe.consumer()
        if ROLES.load.is_member():
            if loads.enters():
                load(loads, maps, plan)
        else:
            seen[cuda.threadIdx.x] = work(works)

    for seed in range(2):
        simulator.seed(seed)
        seen.clear()
        kernel[1, ROLES.threads]()
    assert len(seen) == ROLES.c0.members
    return [seen[t] for t in sorted(seen)], x


def arrivals(kv, plan, work, load=fill):
    """Return what the warps released under the last seed: barrier (with sub-stage), lane."""
    with simulator.record() as trace:
        launch(kv, plan, work, load)
    last = max(e.run for e in trace.events)
    made = [e for e in trace.events if e.kind == "release" and e.run == last]
    return sorted((e.label.split(f" of {kv}")[0], e.thread[0] % 32) for e in made)


# -------------------------------------------------------------------- TMAConsumerPipeline


@pytest.mark.parametrize("holds", RINGS)
def test_TMAConsumerPipeline_init_from_a_pipeline_and_memory(holds):
    kv = RINGS[holds]

    @cuda.jit
    def kernel(out):
        memory = tma.shared_tile(STORAGE)
        barriers = tma.shared_barriers(kv.num_barriers)
        state = tma.PipelineState(STAGES)
        pipeline = tma.StagedPipeline(STAGES, kv.num_qk_stages_effective, barriers.address, state)
        works = tma.TMAConsumerPipeline(kv, pipeline, memory.address, TileAccesses())
        out[0] = works.get(1).value - works.get(0).value
        out[1] = works.pipeline.num_mbars

    out = np.zeros(2, np.uint64)
    kernel[1, ROLES.threads](out)
    assert out.tolist() == [kv.full_kv_bytes // 16, kv.num_barriers]


STORAGE = tma.Tile((STAGES * BN * DEPTH // 32, 32), "f16", tma.Swizzle.B64)


@pytest.mark.parametrize("by_address", [True, False])
def test_TMAConsumerPipeline_init_from_barriers_and_memory(by_address):
    x, out = numbers(3), np.zeros((3, ROLES.c0.members), np.float32)
    k = tma.tensor_map(x, K.k_tile)

    @cuda.jit
    def kernel():
        smem, mbar = tma.shared_tile(STORAGE), tma.shared_barriers(K.num_barriers)
        if by_address:
            pipe = K.start(smem.address, mbar.address)
        else:
            pipe = K.start(tiles=smem, barriers=mbar)
        loads, works = pipe.producer(), pipe.consumer()
        assert works.base == smem.address and works.pipeline.barriers == mbar.address
        if ROLES.load.is_member():
            if loads.enters():
                fill(loads, {"k": k}, "kkk")
        else:
            for n in range(3):
                works.wait_k(0)
                works.release_k(0)
                works.wait_k(1)
                out[n, cuda.threadIdx.x] = works.get_k_tile(1)[cuda.threadIdx.x % BN, 3]
                works.release_k(1)

    kernel[1, ROLES.threads]()
    rows = np.arange(ROLES.c0.members) % BN
    np.testing.assert_array_equal(out, [x[n * BN + rows, 32 + 3] for n in range(3)])


MEMBERS = {
    "k": {"BK": 32, "BMN": 16, "is_k_major": True, "num_qk_stages_effective": 2},
    "v": {"BK": 16, "BMN": 64, "is_k_major": False, "num_qk_stages_effective": 1},
    "kv": {"BK": 32, "BMN": 16, "is_k_major": True, "num_qk_stages_effective": 2},
}


def member(name, holds):
    """Return a member as the host, the producer and the consumer have it."""
    kv, seen = RINGS[holds], {"host": getattr(RINGS[holds], name)}

    @cuda.jit
    def kernel():
        pipe = kv.start()
        seen["producer"], seen["consumer"] = (
            getattr(pipe.producer(), name),
            getattr(pipe.consumer(), name),
        )

    kernel[1, ROLES.threads]()
    assert seen["host"] == seen["producer"] == seen["consumer"]
    return seen["host"]


@pytest.mark.parametrize("holds", RINGS)
def test_BK(holds):
    assert member("BK", holds) == MEMBERS[holds]["BK"]


@pytest.mark.parametrize("holds", RINGS)
def test_BMN(holds):
    assert member("BMN", holds) == MEMBERS[holds]["BMN"]


@pytest.mark.parametrize("holds", RINGS)
def test_full_kv_bytes(holds):
    assert member("full_kv_bytes", holds) == 16 * 64 * 2


@pytest.mark.parametrize("holds", RINGS)
def test_staged_k_bytes(holds):
    assert member("staged_k_bytes", holds) == 16 * 32 * 2


@pytest.mark.parametrize("holds", RINGS)
def test_num_qk_stages_effective(holds):
    expected = MEMBERS[holds]["num_qk_stages_effective"]
    assert member("num_qk_stages_effective", holds) == expected


@pytest.mark.parametrize("holds", RINGS)
def test_is_k_major(holds):
    assert member("is_k_major", holds) is MEMBERS[holds]["is_k_major"]


def descriptor_of(tile, major, works, offset):
    return tma.MatrixLayout(tile, major).descriptor(works.base + offset)


@pytest.mark.parametrize("holds", RINGS)
def test_get(holds):
    kv = RINGS[holds]
    expected = (kv.v_tile, "MN") if holds == "v" else (kv.k_stage, "K")

    def work(works):
        found = works.get().value == descriptor_of(*expected, works, 0)
        works.step()
        found &= works.get().value == descriptor_of(*expected, works, kv.full_kv_bytes)
        return found & (works.get(0).value == descriptor_of(*expected, works, 0))

    assert all(launch(kv, "", work)[0])


def test_MMASmemDescriptorPair():
    """The two words alone, made by hand and moved to the next stage."""

    def work(works):
        made = works.get()
        pair = tma.MatrixDescriptorPair(made.lo, made.hi) + K.full_kv_bytes
        works.step()
        return pair == works.get().pair

    assert all(launch(K, "", work)[0])


def test_get_k():
    def work(works):
        whole, parts = works.get_k(), [works.get_k(part) for part in range(PARTS)]
        assert whole.layout.tile == K.k_stage and parts[1].layout.tile == K.k_tile
        assert parts[1].value == descriptor_of(K.k_tile, "K", works, K.staged_k_bytes)
        # the steps of a part are those of the whole
        steps = parts[0].layout.num_k_steps
        return whole.advance(steps).value == parts[1].value

    assert all(launch(K, "", work)[0])


def test_get_v():
    def work(works):
        return works.get_v().value == descriptor_of(V.v_tile, "MN", works, 0)

    assert all(launch(V, "", work)[0]) and all(launch(KV, "", work)[0])


def read_all(works, kind, parts, read):
    """Wait for, read and release one stage, and return what `read` made of its tiles."""
    if kind == "v":
        works.wait_v()
        seen = [read(works.get_v_tile())]
        works.release_v()
        return seen
    seen = []
    for part in range(parts):
        works.wait_k(part)
        seen.append(read(works.get_k_tile(part)))
        works.release_k(part)
    return seen


def corner(tile):
    return float(tile[BN - 1, tile.tile.shape[-1] - 1])


def check_corners(kv, plan, parts, work):
    seen, x = launch(kv, plan, work)
    for thread in seen:
        for n, (kind, values) in enumerate(zip(plan, thread)):
            ends = [DEPTH] if kind == "v" else [DEPTH // parts * (p + 1) for p in range(parts)]
            assert values == [x[(n + 1) * BN - 1, end - 1] for end in ends]


def test_wait():
    def work(works):
        seen = []
        for _ in range(3):
            works.wait()
            first = corner(works.get_tile())
            works.release()
            works.wait(qk_stage=1)
            seen.append([first, corner(works.get_tile(1))])
            works.release(qk_stage=1)
        return seen

    check_corners(K, "kkk", PARTS, work)


def test_release():
    def work(works):
        works.wait(1)
        works.wait(0)
        works.release(qk_stage=0)
        assert works.pipeline.state.index == 0  # only the last one steps
        works.release(qk_stage=1, e=cuda.threadIdx.x % 32 == 5)
        return works.pipeline.state.index

    seen, _ = launch(K, "k", work)
    assert set(seen) == {1}
    elected = [("empty[0] of sub-stage 0", 0)] * WARPS  # where no lane is given
    assert arrivals(K, "k", work) == elected + [("empty[0] of sub-stage 1", 5)] * WARPS


def test_wait_k():
    def work(works):
        return [read_all(works, "k", PARTS, corner) for _ in range(3)]

    check_corners(K, "kkk", PARTS, work)


def test_wait_k_and_release_k_mean_the_last_sub_stage():
    def work(works):
        works.wait_k(0)
        works.release_k(0)
        works.wait_k()
        seen = corner(works.get_k_tile(PARTS - 1))
        works.release_k()
        return seen, works.pipeline.state.index

    seen, x = launch(K, "k", work)
    assert set(seen) == {(x[BN - 1, DEPTH - 1], 1)}


def test_release_k():
    def work(works):
        works.wait_k(0)
        works.wait_k(1)
        works.release_k(0)
        works.release_k()

    made = arrivals(K, "k", work)
    assert made == [(f"empty[0] of sub-stage {p}", 0) for p in range(PARTS) for _ in range(WARPS)]


def test_wait_v():
    def work(works):
        return [read_all(works, "v", 1, corner) for _ in range(3)]

    check_corners(V, "vvv", 1, work)


def test_release_v():
    def work(works):
        works.wait_v()
        works.release_v(e=cuda.threadIdx.x % 32 == 31)
        return works.pipeline.state.index

    assert set(launch(V, "v", work)[0]) == {1}
    assert arrivals(V, "v", work) == [("empty[0]", 31)] * WARPS


@pytest.mark.parametrize("plan", ["kvkv", "kkvkvv", "vkvvk", "kkkkk"])
@pytest.mark.parametrize("stages", [1, 3])
def test_k_and_v_share_a_ring_in_any_order(plan, stages):
    kv = ring("kv", stages)
    work = lambda works: [read_all(works, kind, PARTS, corner) for kind in plan]  # noqa: E731
    check_corners(kv, plan, PARTS, work)


def walk(works, plan, choices):
    """Go through a plan; hand stages back at once, by index and later, or unread, as drawn."""
    seen, left = [], []
    for kind, choice in zip(plan, choices):
        if choice == "unread":
            if kind == "v":
                works.wait_v()
                works.release_v()
            else:
                for part in range(PARTS):
                    works.wait_k(part)
                    works.release_k(part)
            seen.append(None)
        elif choice == "at once":
            seen.append(read_all(works, kind, PARTS, corner))
        elif kind == "v":
            works.wait_v()
            works.wait_v()  # again changes nothing
            seen.append([corner(works.get_v_tile())])
            left.append((works.step(), [None]))
        else:
            for part in range(PARTS):
                works.wait_k(part)
            works.wait_k(PARTS - 1)
            seen.append([corner(works.get_k_tile(part)) for part in range(PARTS)])
            left.append((works.step(), list(range(PARTS))))
        if len(left) > 1 or choice != "later":
            for index, parts in left:
                for part in parts:
                    works.release_at(index, part)
            left = []
    for index, _ in left:
        works.release_at(index)
    return seen


@pytest.mark.parametrize("seed", every(6, range(6)))
def test_phases_hold_in_drawn_orders_of_keys_and_values(seed):
    """The barriers of K's other parts complete no phase when V takes their stage."""
    draw = np.random.default_rng(seed)
    plan = "".join(draw.choice(["k", "v"], 14))
    choices = draw.choice(["at once", "later", "unread"], len(plan), p=[0.4, 0.45, 0.15])
    kv = ring("kv", int(draw.integers(3, 6)))
    seen, x = launch(kv, plan, lambda works: walk(works, plan, choices))
    for thread in seen:
        for n, (kind, values) in enumerate(zip(plan, thread)):
            ends = [DEPTH] if kind == "v" else [DEPTH // PARTS * (p + 1) for p in range(PARTS)]
            assert values in (None, [x[(n + 1) * BN - 1, end - 1] for end in ends])


def test_a_stage_of_v_that_is_left_without_a_word_is_reported():
    def work(works):
        works.wait(0)  # of K
        works.release_at(works.step())
        return read_all(works, "k", PARTS, corner)

    with pytest.raises(simulator.SimulatorError, match=r"\[0\] of sub-stage 1 of KVPipeline"):
        launch(ring("kv", 1), "vk", work)


# --------------------------------------------------------------------- TMAProducerPipeline


def test_TMAProducerPipeline():
    def load(loads, maps, plan):
        assert (loads.pipeline.state.index, loads.pipeline.state.phase) == (0, 1)
        fill(loads, maps, plan)
        loads.tail()  # ends when all is released, and stands where it stood
        assert loads.pipeline.state.count == len(plan) + STAGES

    work = lambda works: [read_all(works, "k", PARTS, corner) for _ in range(3)]  # noqa: E731
    launch(K, "kkk", work, load)


def test_TMAProducerPipeline_get_tile():
    def load(loads, maps, plan):
        for part in range(PARTS):
            loads.acquire(part)
            barrier, tile = loads.get_tile(part)
            assert tile.address == loads.base + part * loads.staged_k_bytes
            assert barrier.address == loads.pipeline.barriers + 8 * part
            maps["k"].load(tile, (0, part * loads.BK), barrier)
        loads.commit_step()

    seen, x = launch(K, "k", lambda works: read_all(works, "k", PARTS, corner), load)
    assert seen[0] == [x[BN - 1, 31], x[BN - 1, 63]]


def test_TMAProducerPipeline_get_k_get_v_and_commit_step():
    def load(loads, maps, plan):
        for part in range(PARTS):
            loads.acquire_k(part)
            barrier, tile = loads.get_k(part)
            assert loads.pipeline.state.index == 0
            maps["k"].load(tile, (0, part * loads.BK), barrier)
        loads.commit_step()
        assert loads.pipeline.state.index == 1
        loads.acquire_v()
        barrier, tile = loads.get_v(True)
        assert tile.tile == KV.v_tile and tile.address == loads.base + KV.full_kv_bytes
        maps["v"].load(tile, (BN, 0), barrier)
        loads.commit_step()

    def work(works):
        return [read_all(works, kind, PARTS, corner) for kind in "kv"]

    seen, x = launch(KV, "kv", work, load)
    assert seen[0] == [[x[BN - 1, 31], x[BN - 1, 63]], [x[2 * BN - 1, 63]]]
