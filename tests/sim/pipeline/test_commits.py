"""Rings that tcgen05 commits release, alone and in CTA pairs, in the simulator."""

import re

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma import simulator as sim
from tests.tiers import seeds

TILE = tma.Tile((4, 32), "u32")
ROLES = tma.Roles(mma=tma.Warps(1), load=tma.Warps(1))
ONE_WARP = {"producer": ROLES.load, "consumer": ROLES.mma}


def ring(stages=2, **options):
    """Return a ring of one tile a that commits release."""
    return tma.TilePipeline(stages, **({"released_by": "tcgen05", "a": TILE} | ONE_WARP | options))


def rows(tiles, seed=0):
    return np.random.default_rng(seed).integers(0, 2**31, (4 * tiles, 32)).astype(np.uint32)


# ----------------------------------------------------- stages that threads commit, at the end


@pytest.mark.parametrize("end", ["close", "commit"])
def test_the_end_of_a_producer_commits_its_open_stage(end):
    """Of threads alone: the bytes of copies complete a stage that TMA fills."""
    roles = tma.Roles(read=tma.Warps(1), write=tma.Warps(1))
    PIPE = tma.TilePipeline(
        2, a=TILE, producer=roles.write, consumer=roles.read, filled_by="threads"
    )

    @cuda.jit
    def kernel(out):
        pipe, lane = PIPE.start(), cuda.laneid
        if pipe.is_producer():
            producer = pipe.producer()
            for k in range(2):  # the second commits the first
                stage = producer.acquire()
                stage.a[0, lane] = np.uint32(lane + 32 * k)
            getattr(producer, end)()
        elif pipe.is_consumer():
            consumer = pipe.consumer()
            for k in range(2):
                stage = consumer.wait()
                out[k, lane] = stage.a[0, lane]
                consumer.release()

    out = np.zeros((2, 32), np.uint32)
    kernel[1, 64](out)
    np.testing.assert_array_equal(out, np.arange(64).reshape(2, 32))


# --------------------------------------------------------------------------- one block


@pytest.mark.parametrize("consumer", [tma.Warps(1), tma.Warps(3), tma.Warpgroups(1)], ids=str)
def test_one_thread_of_all_warps_consumes(consumer):
    """Of the role's first warp; where threads arrive each of them consumes."""
    roles = tma.Roles(mma=consumer, load=tma.Warps(1))
    held = {"a": TILE, "producer": roles.load, "consumer": roles.mma}
    for released_by, entering in (("tcgen05", 1), ("threads", consumer.threads)):
        PIPE = tma.TilePipeline(2, released_by=released_by, **held)

        @cuda.jit
        def kernel(out):
            pipe = PIPE.start()  # noqa: B023 (it runs in this turn)
            if pipe.is_consumer():
                if pipe.consumer().enters():
                    out[cuda.threadIdx.x] += 1

        out = np.zeros(roles.threads, np.int32)
        kernel[1, roles.threads](out)
        (threads,) = np.nonzero(out)
        assert len(threads) == entering and threads[-1] - threads[0] == entering - 1
        first = roles.mma.first
        assert first <= threads[0] < first + 32 and (out[threads] == 1).all()



def loops(PIPE):
    @cuda.jit
    def kernel(a, order, n):
        pipe = PIPE.start()
        if pipe.is_producer():
            for k, stage in pipe.produce(0, n):
                a.load(stage.a, (4 * k, 0), stage.barrier)
        elif pipe.is_consumer():
            for k, stage in pipe.consume(0, n):
                order[k] = stage.index + 1
        pipe.close()

    return kernel


def by_hand(PIPE):
    @cuda.jit
    def kernel(a, order, n):
        pipe = PIPE.start()
        if pipe.is_producer():
            for k, stage in pipe.produce(0, n):
                a.load(stage.a, (4 * k, 0), stage.barrier)
        else:
            consumer = pipe.consumer()
            if consumer.enters():
                for k in range(n):
                    ready = consumer.try_wait()
                    stage = consumer.wait_if_needed(ready)
                    order[k] = stage.index + 1
                    consumer.release()
        pipe.close()

    return kernel


def scopes(PIPE):
    @cuda.jit
    @tma.scopes
    def kernel(a, order, n):
        with PIPE.start() as pipe:
            if pipe.is_producer():
                with pipe.producer() as producer:
                    for k in range(n):
                        with producer.acquire() as stage:
                            a.load(stage.a, (4 * k, 0), stage.barrier)
            else:
                with pipe.consumer() as consumer:
                    for k in range(n):
                        with consumer.acquire() as stage:
                            order[k] = stage.index + 1
                            if k % 3 == 1:
                                continue
                            order[k] = stage.index + 1

    return kernel


@seeds(1, 4)
@pytest.mark.parametrize("form", [loops, by_hand, scopes])
def test_every_form_walks_round_the_ring(form, seeds):
    for seed in seeds:
        sim.seed(seed)
        for stages, n in ((1, 3), (2, 0), (3, 8)):
            order = np.zeros(max(1, n), np.int64)
            form(ring(stages))[1, ROLES.threads](tma.tensor_map(rows(9), TILE), order, n)
            np.testing.assert_array_equal(order[:n], np.arange(n) % stages + 1)


def test_two_consumers_commit_each_and_a_return_releases():
    BOTH = tma.Roles(one=tma.Warps(1), two=tma.Warps(2), load=tma.Warps(1))
    PIPE = ring(producer=BOTH.load, consumer=(BOTH.one, BOTH.two))
    assert PIPE.empty_arrivals == 2

    @cuda.jit(device=True)
    @tma.scopes
    def some(consumer, counts, n):
        with consumer.acquire():
            counts[0] += 1
            if n > 2:
                return

    @cuda.jit
    def kernel(a, counts, n):
        pipe = PIPE.start()
        if pipe.is_producer():
            for k, stage in pipe.produce(0, n):
                a.load(stage.a, (4 * k, 0), stage.barrier)
        elif BOTH.one.is_member():
            for _, _ in pipe.consume(0, n):
                counts[1] += 1
        else:
            consumer = pipe.consumer()
            if consumer.enters():
                for k in range(n):
                    some(consumer, counts, k)
        pipe.close()

    counts = np.zeros(2, np.int64)
    kernel[1, BOTH.threads](tma.tensor_map(rows(7), TILE), counts, 7)
    assert counts.tolist() == [7, 7]


# ------------------------------------------------------------------------- CTA pairs


def pair_kernel(PIPE, cluster, sharing=False):
    """Each block loads its own rows; the even one notes in which order stages were full."""

    @cuda.jit
    @tma.cluster(cluster)
    def kernel(a, order, n):
        pipe, rank = PIPE.start(), ptx.cluster_ctarank()
        if pipe.is_producer():
            for k, stage in pipe.produce(0, n):
                if sharing:
                    group = pipe.multicast_group("a")
                    tma.load_partitioned(
                        a, stage.a, (4 * k, 0), stage.barrier, group.rank,
                        multicast=group.mask, cta_group=2,
                    )  # fmt: skip
                else:
                    a.load(stage.a, (4 * (2 * k + rank % 2), 0), stage.barrier, cta_group=2)
        else:
            for k, stage in pipe.consume(0, n):
                order[rank, k] = stage.index + 1
        pipe.close()

    return kernel


@seeds(2, 6)
def test_the_even_block_of_a_pair_consumes_what_both_load(seeds):
    for seed in seeds:
        sim.seed(seed)
        order = np.zeros((2, 5), np.int64)
        kernel = pair_kernel(ring(cta_group=2), (2, 1))
        kernel[(2, 1), ROLES.threads](tma.tensor_map(rows(10), TILE), order, 5)
        np.testing.assert_array_equal(order, [np.arange(5) % 2 + 1, np.zeros(5)])


@seeds(1, 4)
@pytest.mark.parametrize(("cluster", "axis"), [((4, 1), "x"), ((2, 2), "y")])
def test_pairs_share_a_tile(cluster, axis, seeds):
    for seed in seeds:
        sim.seed(seed)
        PIPE = ring(cta_group=2, cluster=cluster, multicast={"a": axis})
        order = np.zeros((4, 5), np.int64)
        half = tma.tensor_map(rows(5), tma.Tile((2, 32), "u32"))
        pair_kernel(PIPE, cluster, sharing=True)[cluster, ROLES.threads](half, order, 5)
        assert (order[::2] == np.arange(5) % 2 + 1).all() and not order[1::2].any()


# ----------------------------------------------------------------------------- mutants


def consumer_kernel(PIPE, body):
    @cuda.jit
    def kernel(a, n):
        pipe = PIPE.start()
        if pipe.is_producer():
            for k, stage in pipe.produce(0, n):
                a.load(stage.a, (4 * k, 0), stage.barrier)
        else:
            body(pipe.consumer(), n)
        pipe.close()

    return kernel


def never(consumer, n):
    if consumer.enters():
        for _ in range(n):
            consumer.wait()


def by_a_whole_warp(consumer, n):
    for _ in range(n):
        consumer.wait()
        consumer.release()


def early(consumer, n):
    if consumer.enters():
        for _ in range(n):
            stage = consumer.wait()
            consumer.release()
            ptx.ld_shared_u32(stage.a.address)


def without_a_wait(consumer, n):
    if consumer.enters():
        for _ in range(n):
            consumer.wait_if_needed(True)
            consumer.release()


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (never, "Deadlock: .*empty"),
        (
            by_a_whole_warp,
            "EarlyOverwrite: .*overwritten by another load before|BarrierMisuse|Deadlock",
        ),
        (early, "EarlyOverwrite: .*has read them, and nothing orders that read before this load"),
        (
            without_a_wait,
            "BarrierMisuse: .*full|Deadlock|EarlyOverwrite: .*overwritten by another load",
        ),
    ],
)
def test_mistakes_of_a_consumer(body, text):
    found = []
    for seed in range(3):
        sim.seed(seed)
        try:
            consumer_kernel(ring(), body)[1, ROLES.threads](tma.tensor_map(rows(10), TILE), 6)
        except sim.SimulatorError as error:
            found.append(f"{type(error).__name__}: {error}")
    assert found and all(re.match(text, error, re.S) for error in found), found
