"""Clusters in the simulator: whole clusters, accesses between blocks, and errors."""

from types import FunctionType

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma import simulator as sim

SEEDS = range(12)
WORDS = tma.Tile(32, "u32")
LONGS = tma.Tile(16, "u64")


def launch(body, cluster, grid, threads, *args, seeds=SEEDS):
    kernel = cuda.jit(tma.cluster(cluster)(body) if cluster else body)
    for seed in seeds:
        sim.seed(seed)
        kernel[grid, threads](*args)


# ------------------------------------------------------------------ registers, launches


def registers(out):
    block = cuda.blockIdx
    out[block.x, block.y, block.z] = (
        (ptx.cluster_ctaid_x(), ptx.cluster_ctaid_y(), ptx.cluster_ctaid_z()),
        (ptx.cluster_nctaid_x(), ptx.cluster_nctaid_y(), ptx.cluster_nctaid_z()),
        (ptx.clusterid_x(), ptx.clusterid_y(), ptx.clusterid_z()),
        (ptx.nclusterid_x(), ptx.nclusterid_y(), ptx.nclusterid_z()),
        (ptx.cluster_ctarank(), ptx.cluster_nctarank(), ptx.is_explicit_cluster()),
    )


@pytest.mark.parametrize("size", [None, (1, 1, 1), (2, 1, 1), (4, 1, 1), (2, 2, 1), (1, 2, 4)])
def test_registers(size):
    grid = (4, 2, 4)
    out = np.full((*grid, 5, 3), -1)
    # The size of clusters is kept with the function: each case has one of its own.
    kernel = FunctionType(registers.__code__, globals())
    launch(kernel, size, grid, 1, out, seeds=[0])
    extents = np.array(size or (1, 1, 1))
    for block in np.ndindex(*grid):
        inside, cluster = block % extents, block // extents
        rank = inside @ (1, extents[0], extents[0] * extents[1])
        expected = [inside, extents, cluster, grid // extents]
        expected += [(rank, extents.prod(), size is not None)]
        np.testing.assert_array_equal(out[block], expected)


def test_a_function_in_a_kernel_has_no_clusters_of_its_own():
    for options in ({"device": True}, {}):
        helper = cuda.jit(**options)(tma.cluster(4)(lambda x: 2 * x))

        def body(out, helper=helper):
            out[0] = helper(1)

        with pytest.raises(ValueError, match="only a launch has clusters: decorate the kernel"):
            launch(body, 2, 2, 1, np.zeros(1), seeds=[0])


def test_a_grid_that_is_not_divisible_is_refused_before_any_block_runs():
    out = np.zeros(1)

    def body(out):
        out[0] = 1

    with pytest.raises(ValueError, match="5 blocks along x are not a multiple of 2: launch 6"):
        launch(body, 2, 5, 1, out)
    assert out[0] == 0


def test_bad_sizes_are_refused_here_too():
    with pytest.raises(ValueError, match="16 blocks are more than the 8"):
        tma.cluster((4, 4))


# -------------------------------------------------------------------------- the barrier


def hand_round(out, rounds):
    """In each round every thread takes its number from the next block, and adds 1."""
    numbers = tma.shared_tile(WORDS)
    thread, rank, size = cuda.threadIdx.x, ptx.cluster_ctarank(), ptx.cluster_nctarank()
    theirs = ptx.mapa(numbers, (rank + 1) % size) + 4 * thread
    number = 100 * rank + thread
    for _ in range(rounds):
        numbers[thread] = number
        tma.cluster_sync()
        number = ptx.ld_shared_cluster_u32(theirs) + 1
        tma.cluster_sync()
    out[cuda.blockIdx.x, thread] = number


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_the_barrier_orders_the_memory_of_the_cluster(size):
    for rounds in (1, 3):
        out = np.zeros((8, 3), np.int64)
        launch(hand_round, size, 8, 3, out, rounds, seeds=range(4))
        block = np.arange(8)
        ranks = (block % size + rounds) % size
        np.testing.assert_array_equal(out, 100 * ranks[:, None] + np.arange(3) + rounds)


def test_threads_that_exit_are_not_waited_for():
    def body(order):
        if cuda.threadIdx.x == 1 and ptx.cluster_ctarank() == 1:
            return
        order[0] += 1
        ptx.barrier_cluster_arrive()
        if cuda.threadIdx.x == 2:
            return
        ptx.barrier_cluster_wait()
        assert order[0] == 7

    for seed in SEEDS:
        launch(body, 2, 2, 4, np.zeros(1), seeds=[seed])


def test_work_between_arrive_and_wait_runs_while_others_come():
    def body(order):
        if ptx.cluster_ctarank() == 0:
            ptx.barrier_cluster_arrive("release")
            order[0] = 1
            ptx.barrier_cluster_wait("acquire")
        else:
            while order[0] == 0:
                cuda.nanosleep(1)
            tma.cluster_sync()

    launch(body, 2, 2, 1, np.zeros(1), seeds=range(3))


def test_a_relaxed_arrival_passes_on_what_a_fence_has_released():
    def body():
        barrier, words = tma.shared_barrier(), tma.shared_tile(WORDS)
        rank = ptx.cluster_ctarank()
        barrier.init(1)
        tma.fence_mbarrier_init()
        ptx.barrier_cluster_arrive("relaxed")
        ptx.barrier_cluster_wait()
        barrier.arrive_expect_tx(4)
        ptx.st_async_b32(ptx.mapa(words, 1 - rank), rank, ptx.mapa(barrier, 1 - rank))
        barrier.wait(0)
        assert words[0] == 1 - rank

    launch(body, 2, 2, 1)


# --------------------------------------------------------------- loads, stores, addresses


def test_addresses():
    def body():
        words = tma.shared_tile(WORDS)
        for rank in range(4):
            assert ptx.getctarank(ptx.mapa(words, rank)) == rank
        assert ptx.getctarank(words.address) == ptx.cluster_ctarank()

    launch(body, 4, 4, 1)


def test_every_width_of_loads_and_stores():
    tile = tma.Tile(64, "u8")

    def body():
        there = tma.shared_tile(tile)
        other = ptx.mapa(there, 1 - ptx.cluster_ctarank())
        tma.cluster_sync()
        ptx.st_shared_cluster_v4_u32(other, (1, 2, 3, 2**32 - 1))
        ptx.st_shared_cluster_u32(other + 16, 2**31)
        ptx.st_shared_cluster_f32(other + 20, 0.1)
        ptx.st_shared_cluster_u64(other + 24, 2**63 + 5)
        tma.cluster_sync()
        assert ptx.ld_shared_cluster_v4_u32(there.address) == (1, 2, 3, 2**32 - 1)
        assert ptx.ld_shared_cluster_u32(other + 16) == 2**31
        assert ptx.ld_shared_cluster_f32(other + 20) == np.float32(0.1)
        assert ptx.ld_shared_cluster_u64(other + 24) == 2**63 + 5
        tma.cluster_sync()

    launch(body, 2, 2, 1)


def test_a_reduction_adds_to_a_word_of_each_block():
    tile = tma.Tile(1, "u32")

    def body():
        word = tma.shared_tile(tile)
        if ptx.tid_x() == 0:
            word[0] = 2**32 - 1  # the sum wraps
        tma.cluster_sync()
        for rank in range(2):
            there = ptx.mapa(word, rank)
            ptx.red_shared_cluster_add_u32(there, 1 + ptx.cluster_ctarank())
        tma.cluster_sync()
        assert ptx.ld_shared_cluster_u32(word.address) == 3 * 4 - 1

    launch(body, 2, 2, 4)


def test_arrays_of_numba_are_reached():
    def body(out):
        numbers = cuda.shared.array(4, np.float32)
        numbers[:] = 10 * ptx.cluster_ctarank() + np.arange(4)
        tma.cluster_sync()
        for rank in range(2):
            out[rank, :] = [
                ptx.ld_shared_cluster_f32(ptx.mapa(numbers, rank) + 4 * i) for i in range(4)
            ]
        tma.cluster_sync()

    out = np.zeros((2, 4))
    launch(body, 2, 2, 1, out)
    np.testing.assert_array_equal(out, [[0, 1, 2, 3], [10, 11, 12, 13]])


# ------------------------------------------------------------------ asynchronous writes


def exchange(body, check, tile=WORDS, first=None, nbytes=0, size=2):
    """Let every block write to the next one's tile with `body`, which completes `nbytes`."""

    def kernel():
        words, barrier = tma.shared_tile(tile), tma.shared_barrier()
        rank = ptx.cluster_ctarank()
        if cuda.threadIdx.x == 0:
            barrier.init(1)
            tma.fence_mbarrier_init()
            for i in range(0 if first is None else len(first)):
                words[i] = first[i]
        tma.cluster_sync()
        if cuda.threadIdx.x == 0:
            barrier.arrive_expect_tx(nbytes)
        peer = (rank + 1) % size
        body(ptx.mapa(words, peer), ptx.mapa(barrier, peer), rank)
        barrier.wait(0)
        check(words, (rank - 1) % size)

    launch(kernel, size, size, 2)


def test_st_async_of_every_width():
    def write(there, barrier, rank):
        at = there + 64 * cuda.threadIdx.x
        ptx.st_async_b32(at, 10 + rank, barrier)
        ptx.st_async_f32(at + 4, 0.5 + rank, barrier)
        ptx.st_async_b64(at + 8, 2**40 + rank, barrier)
        ptx.st_async_v2_b32(at + 16, (1, rank), barrier)
        ptx.st_async_v4_b32(at + 32, (5, 6, 7, rank), barrier)
        ptx.st_async_v2_b64(at + 48, (2**63, rank), barrier)

    def check(words, sender):
        for at in (0, 16):
            assert [words[at + i] for i in (0, 4, 5)] == [10 + sender, 1, sender]
            assert np.uint32(words[at + 1]).view(np.float32) == 0.5 + sender
            assert [words[at + 2], words[at + 3]] == [sender, 2**8]
            assert [words[at + 8 + i] for i in range(4)] == [5, 6, 7, sender]
            assert [words[at + 12 + i] for i in range(4)] == [0, 2**31, sender, 0]

    exchange(write, check, nbytes=2 * 56, size=4)


REDUCTIONS = {
    # row and operation: first values, values of the two threads, results
    ("u32", "inc"): ([0, 5, 6], [6, 6], [2, 0, 1]),
    ("u32", "dec"): ([0, 1, 9], [6, 6], [5, 6, 5]),
    ("u32", "min"): ([7, 3, 2**31], [5, 4], [4, 3, 4]),
    ("u32", "max"): ([7, 3, 2**31], [5, 4], [7, 5, 2**31]),
    ("u32", "add"): ([7, 2**32 - 1, 0], [5, 4], [16, 8, 9]),
    ("s32", "min"): ([7, 2**32 - 3, 0], [-2, 4], [2**32 - 2, 2**32 - 3, 2**32 - 2]),
    ("s32", "max"): ([7, 2**32 - 3, 0], [-2, 4], [7, 4, 4]),
    ("s32", "add"): ([7, 2**32 - 3, 0], [-2, 4], [9, 2**32 - 1, 2]),
    ("b32", "and"): ([0b111, 0b1010, 0], [0b110, 0b011], [0b010, 0b010, 0]),
    ("b32", "or"): ([0b1000, 0, 1], [0b110, 0b011], [0b1111, 0b111, 0b111]),
    ("b32", "xor"): ([0b1000, 0, 1], [0b110, 0b011], [0b1101, 0b101, 0b100]),
    ("u64", "add"): ([2**63, 2**64 - 1, 0], [2**63, 4], [4, 2**63 + 3, 2**63 + 4]),
}


@pytest.mark.parametrize(("row", "operation"), REDUCTIONS)
def test_red_async(row, operation):
    first, values, expected = REDUCTIONS[row, operation]
    item = 8 if row == "u64" else 4

    def write(there, barrier, rank):
        reduce = getattr(ptx, f"red_async_{row}")
        for i in range(3):
            reduce(there + item * i, values[cuda.threadIdx.x], barrier, operation)

    def check(words, sender):
        assert [words[i] for i in range(3)] == expected

    exchange(write, check, LONGS if item == 8 else WORDS, first, nbytes=2 * 3 * item)


def test_neighbouring_words_are_each_others_business():
    """A mailbox of two words: one is read while the other is written."""

    def body(out):
        words, even, odd = tma.shared_tile(WORDS), tma.shared_barrier(), tma.shared_barrier()
        rank = ptx.cluster_ctarank()
        even.init(1)
        odd.init(1)
        tma.fence_mbarrier_init()
        tma.cluster_sync()
        other = ptx.mapa(words, 1 - rank)
        even.arrive_expect_tx(4)
        odd.arrive_expect_tx(4)
        ptx.st_async_b32(other, 1, ptx.mapa(even, 1 - rank))
        even.wait(0)
        ptx.st_async_b32(other + 4, 2, ptx.mapa(odd, 1 - rank))
        out[rank] = words[0]
        odd.wait(0)
        out[rank] += words[1]

    out = np.zeros(2)
    launch(body, 2, 2, 1, out)
    np.testing.assert_array_equal(out, 3)


# ----------------------------------------------------------------------------- misuse


def peers(run):
    """Make a kernel of clusters of two that initialises a barrier and runs `run` afterwards."""

    def body():
        words, barrier = tma.shared_tile(WORDS), tma.shared_barrier()
        rank = ptx.cluster_ctarank()
        for i in range(32):
            words[i] = 0
        barrier.init(1)
        tma.fence_mbarrier_init()
        tma.cluster_sync()
        run(words, barrier, rank, 1 - rank)

    return body


def read_at_once(words, barrier, rank, peer):
    ptx.ld_shared_cluster_u32(ptx.mapa(words, peer))


def write_last(words, barrier, rank, peer):
    if rank == 0:
        ptx.st_shared_cluster_u32(ptx.mapa(words, peer), 1)


def arrive_last(words, barrier, rank, peer):
    if rank == 0:
        barrier.arrive_expect_tx(4)
        barrier.wait(0)
    else:
        ptx.st_async_b32(ptx.mapa(words, peer), 1, ptx.mapa(barrier, peer))
        ptx.ld_shared_cluster_u32(ptx.mapa(words, peer) + 4)


def read_before_the_wait(words, barrier, rank, peer):
    barrier.arrive_expect_tx(4)
    ptx.st_async_b32(ptx.mapa(words, peer), 1, ptx.mapa(barrier, peer))
    tma.cluster_sync()
    words[0] += 1


def write_before_the_wait(words, barrier, rank, peer):
    barrier.arrive_expect_tx(4)
    ptx.st_async_b32(ptx.mapa(words, peer), 1, ptx.mapa(barrier, peer))
    tma.cluster_sync()
    words[0] = 1


def write_over_what_a_store_reads(words, barrier, rank, peer):
    ptx.fence_proxy_async()
    ptx.cp_async_bulk_store(np.zeros(4, np.int32), words, 16)
    ptx.cp_async_bulk_commit_group()
    barrier.arrive_expect_tx(4)
    tma.cluster_sync()
    ptx.st_async_b32(ptx.mapa(words, peer), 1, ptx.mapa(barrier, peer))
    barrier.wait(0)
    ptx.cp_async_bulk_wait_group(0)


def barrier_of_another(words, barrier, rank, peer):
    ptx.st_async_b32(ptx.mapa(words, peer), 1, barrier.address)


def never_waited_for(words, barrier, rank, peer):
    barrier.arrive_expect_tx(4)
    ptx.st_async_b32(ptx.mapa(words, peer), 1, ptx.mapa(barrier, peer))
    tma.cluster_sync()


def too_few_bytes(words, barrier, rank, peer):
    barrier.arrive_expect_tx(8)
    ptx.st_async_b32(ptx.mapa(words, peer), 1, ptx.mapa(barrier, peer))
    barrier.wait(0)


def misaligned(words, barrier, rank, peer):
    ptx.st_shared_cluster_v4_u32(ptx.mapa(words, peer) + 4, (1, 2, 3, 4))


def misaligned_async(words, barrier, rank, peer):
    ptx.st_async_v2_b32(ptx.mapa(words, peer) + 4, (1, 2), ptx.mapa(barrier, peer))


def out_of_range(words, barrier, rank, peer):
    ptx.ld_shared_cluster_u32(ptx.mapa(words, peer) + 4 * 4096)


def no_such_rank(words, barrier, rank, peer):
    ptx.mapa(words, 2)


def waits_alone(words, barrier, rank, peer):
    ptx.barrier_cluster_wait()


def arrives_twice(words, barrier, rank, peer):
    ptx.barrier_cluster_arrive()
    ptx.barrier_cluster_arrive()


def one_block_does_not_come(words, barrier, rank, peer):
    if rank == 0:
        tma.cluster_sync()
    else:
        barrier.wait(0)


def no_barrier_there(words, barrier, rank, peer):
    ptx.st_async_b32(ptx.mapa(words, peer), 1, ptx.mapa(words, peer) + 8)


MISUSES = {
    read_at_once: (sim.MissingClusterSync, ["ended without waiting for thread (0, 0, 0) of block",
                                            "at test_cluster.py:", "cluster_sync() after"]),
    write_last: (sim.MissingClusterSync, ["block (1, 0, 0) ended without waiting for thread "
                                          "(0, 0, 0) of block (0, 0, 0)"]),
    arrive_last: (sim.MissingClusterSync, ["block (0, 0, 0) ended without waiting"]),
    read_before_the_wait: (sim.EarlyRead, ["read before the write that fills them", "phase 0"]),
    write_before_the_wait: (sim.EarlyOverwrite, ["overwritten before the write that fills them"]),
    write_over_what_a_store_reads: (sim.EarlyOverwrite, [
        "st_async or red_async to bytes that a store of", "may still be reading"]),
    barrier_of_another: (sim.BadOperand, ["lies in block", "map both to the same rank"]),
    never_waited_for: (sim.UnfinishedCopy, ["no thread has waited for 1"]),
    too_few_bytes: (sim.Deadlock, ["of block (0, 0, 0) is in phase 0", "of block (1, 0, 0) is in",
                                   "4 bytes missing"]),
    misaligned: (sim.BadOperand, ["not a multiple of 16 bytes"]),
    misaligned_async: (sim.BadOperand, ["st_async: shared address", "not a multiple of 8 bytes"]),
    out_of_range: (sim.BadOperand, ["ld_shared_cluster", "out of range"]),
    no_such_rank: (sim.BadOperand, ["the cluster has the blocks 0 to 1, not 2"]),
    waits_alone: (sim.BarrierMisuse, ["has not arrived", "barrier_cluster_arrive before"]),
    arrives_twice: (sim.BarrierMisuse, ["arrives twice", "barrier_cluster_wait between"]),
    one_block_does_not_come: (sim.Deadlock, [
        "barrier.cluster of blocks (0, 0, 0) to (1, 0, 0): 1 of 2 threads have arrived; waiting: "
        "block (0, 0, 0): warp 0 lane 0", "of block (1, 0, 0) is in phase 0"]),
    no_barrier_there: (sim.BarrierMisuse, ["no mbarrier here yet", "put a cluster_sync()"]),
}  # fmt: skip


@pytest.mark.parametrize("run", MISUSES, ids=lambda run: run.__name__)
def test_misuse_is_reported_whatever_the_schedule(run):
    kind, words = MISUSES[run]
    for seed in SEEDS:
        with pytest.raises(kind) as caught:
            launch(peers(run), 2, 2, 1, seeds=[seed])
        assert [w for w in words if w not in str(caught.value)] == []


def test_a_block_must_be_known_to_have_started():
    def body():
        words = tma.shared_tile(WORDS)
        ptx.st_shared_cluster_u32(ptx.mapa(words, 1 - ptx.cluster_ctarank()), 1)
        tma.cluster_sync()

    for seed in SEEDS:
        with pytest.raises(
            sim.MissingClusterSync, match="which has not synchronised with its start"
        ):
            launch(body, 2, 2, 1, seeds=[seed])


def test_a_relaxed_arrival_alone_says_that_a_block_has_started_and_no_more():
    def body():
        words, barrier = tma.shared_tile(WORDS), tma.shared_barrier()
        barrier.init(1)
        ptx.barrier_cluster_arrive("relaxed")
        ptx.barrier_cluster_wait()
        peer = 1 - ptx.cluster_ctarank()
        ptx.st_shared_cluster_u32(ptx.mapa(words, peer), 1)
        ptx.st_async_b32(ptx.mapa(words, peer) + 4, 1, ptx.mapa(barrier, peer))

    for seed in SEEDS:
        with pytest.raises(
            sim.BarrierMisuse, match=r"not synchronised .* cluster_sync\(\) between"
        ):
            launch(body, 2, 2, 1, seeds=[seed])


def test_st_async_needs_a_peer():
    def body():
        words, barrier = tma.shared_tile(WORDS), tma.shared_barrier()
        barrier.init(1)
        ptx.st_async_b32(words.address, 1, barrier.address)

    for size in (None, 1):
        with pytest.raises(sim.BadOperand, match="needs at least two"):
            launch(body, size, 1, 1, seeds=[0])


def test_red_async_needs_a_first_value():
    def body():
        words, barrier = tma.shared_tile(WORDS), tma.shared_barrier()
        barrier.init(1)
        tma.cluster_sync()
        peer = 1 - ptx.cluster_ctarank()
        ptx.red_async_u32(ptx.mapa(words, peer), 1, ptx.mapa(barrier, peer), "add")

    with pytest.raises(sim.UninitializedRead, match="Write its first value"):
        launch(body, 2, 2, 1, seeds=[0])


@pytest.mark.parametrize("aligned", ["arrive", "wait"])
def test_aligned_is_for_whole_warps(aligned):
    def body():
        if cuda.threadIdx.x < 16:
            ptx.barrier_cluster_arrive("aligned" if aligned == "arrive" else "release")
            ptx.barrier_cluster_wait("aligned")
        else:
            cuda.syncthreads()

    with pytest.raises(
        sim.Deadlock, match=rf"barrier\.cluster\.{aligned}\.aligned of warp 0 .* 16 of 32"
    ):
        launch(body, 2, 2, 32, seeds=[0])


def test_aligned_for_whole_warps():
    def body(order):
        order[0] += 1
        ptx.barrier_cluster_arrive("release.aligned")
        ptx.barrier_cluster_wait("acquire.aligned")
        assert order[0] == 128

    for seed in range(3):
        launch(body, 2, 2, 64, np.zeros(1), seeds=[seed])


def test_a_copy_lands_in_its_own_block_of_a_cluster():
    """What a single block can do, each block of a cluster can do as well."""
    tile = tma.Tile((8, 8), "f32")

    def body(x, out):
        here, barrier = tma.shared_tile(tile), tma.shared_barrier()
        block, rank = cuda.blockIdx.x, ptx.cluster_ctarank()
        if cuda.threadIdx.x == 0:
            barrier.init(1)
            tma.fence_mbarrier_init()
        tma.cluster_sync()
        if cuda.threadIdx.x == 0:
            barrier.arrive_expect_tx(tile.nbytes)
            x.load(here, (8 * block, 0), barrier)
        barrier.wait(0)
        tma.cluster_sync()
        theirs = ptx.mapa(here, 1 - rank)
        for i in range(8):
            at = theirs + 4 * (8 * i + cuda.threadIdx.x)
            out[8 * block + i, cuda.threadIdx.x] = ptx.ld_shared_cluster_f32(at)
        tma.cluster_sync()

    x = np.random.default_rng(0).random((32, 8), np.float32)
    out = np.zeros_like(x)
    launch(body, 2, 4, 8, tma.tensor_map(x, tile), out, seeds=range(4))
    swapped = x.reshape(2, 2, 8, 8)[:, ::-1].reshape(32, 8)
    np.testing.assert_array_equal(out, swapped)
