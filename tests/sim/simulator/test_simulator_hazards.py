"""Each hazard in the smallest kernel that has it, and the corrected kernel."""

import numpy as np
import pytest
from numba import cuda

from numba_tma import simulator as sim

F32 = np.dtype(np.float32)
NBYTES = 256
SEEDS = range(8)


def wait(barrier, parity=0):
    while not sim.mbarrier_try_wait_parity(barrier, parity):
        pass


class Block:
    """What the bodies below work with: two tiles, four barriers of one arrival, global arrays."""

    def __init__(self, x, y, done):
        self.x, self.y, self.done = x, y, done
        self.t = cuda.threadIdx.x
        self.tile = sim.allocate_shared("tiles", 2 * NBYTES, 128)
        self.other = self.tile + NBYTES
        self.barriers = [sim.allocate_shared("barriers", 8, 8) for _ in range(4)]
        sim.label(self.tile, "tile A")
        sim.label(self.other, "tile B")
        if self.t == 0:
            for barrier in self.barriers:
                sim.mbarrier_init(barrier, 1)
            sim.fence_mbarrier_init()
        cuda.syncthreads()

    def say_done(self):
        self.done.append(self.t)

    def after(self, count):
        """Go on when so many have said that they are done, without any ordering of memory."""
        while len(self.done) < count:
            cuda.nanosleep(1)

    def load(self, tile, barrier):
        sim.mbarrier_arrive_expect_tx(barrier, NBYTES)
        sim.cp_async_bulk_load(tile, self.x, barrier)

    def write(self, tile, start, stop):
        for i in range(start, stop):
            sim.shared_write(tile + 4 * i, np.float32(i))

    def store(self, tile):
        sim.cp_async_bulk_store(self.y, tile)
        sim.cp_async_bulk_commit_group()

    def stored(self, tile):
        self.store(tile)
        sim.cp_async_bulk_wait_group_read(0)

    def read(self, tile):
        return sim.shared_read(tile, F32, NBYTES // 4)


def run(body, threads, seed):
    sim.seed(seed)
    x = np.arange(NBYTES // 4, dtype=np.float32)
    y = np.zeros_like(x)
    done = []
    cuda.jit(lambda x, y: body(Block(x, y, done)))[1, threads](x, y)


def passes(body, threads=64):
    for seed in SEEDS:
        run(body, threads, seed)


def fails(kind, body, *texts, threads=64):
    for seed in SEEDS:
        with pytest.raises(kind) as caught:
            run(body, threads, seed)
        for text in texts:
            assert text in str(caught.value), f"seed {seed}"


# EarlyRead. Thread 0 waits for the load; the others know of it through ... what `tell` does.


def told_by(tell, threads=64):
    def body(b):
        if b.t == 0:
            b.load(b.tile, b.barriers[0])
            wait(b.barriers[0])
        tell(b)
        assert (b.read(b.tile) == np.arange(NBYTES // 4)).all()

    return body


def chain_of_mbarriers(b):
    if b.t == 0:
        sim.mbarrier_arrive(b.barriers[1])
    elif b.t == 1:
        wait(b.barriers[1])
        sim.mbarrier_arrive(b.barriers[2])
    else:
        wait(b.barriers[2])


def arrive_without_waiting(b):
    if b.t < 32:
        sim.barrier_arrive(2, 64)
    else:
        sim.barrier_sync(2, 64)
    if b.t < 32:
        sim.syncwarp()


TELL = {
    "own wait": lambda b: wait(b.barriers[0]),
    "syncthreads": lambda b: cuda.syncthreads(),
    "syncthreads_count": lambda b: cuda.syncthreads_count(1),
    "named barrier": lambda b: sim.barrier_sync(1, 64),
    "arrival on a named barrier": arrive_without_waiting,
    "mbarriers": chain_of_mbarriers,
}


@pytest.mark.parametrize("how", TELL)
def test_a_reader_may_learn_of_the_load_from_another(how):
    passes(told_by(TELL[how]))


def test_a_reader_may_learn_of_the_load_in_its_warp():
    passes(told_by(lambda b: sim.syncwarp()), threads=32)


NOT_TOLD = {
    "a shuffle": lambda b: sim.shfl("idx", 0, 0, 0xFFFFFFFF),
    "an elected thread": lambda b: sim.elect_sync(0xFFFFFFFF),
    "a vote": lambda b: cuda.all_sync(0xFFFFFFFF, True),
}


@pytest.mark.parametrize("how", NOT_TOLD)
def test_what_orders_no_memory(how):
    def body(b):
        if b.t == 0:
            b.load(b.tile, b.barriers[0])
            sim.mbarrier_try_wait_parity(b.barriers[0], 0)
        sim.syncwarp()
        if b.t == 0:
            wait(b.barriers[0])
            b.load(b.other, b.barriers[1])
            wait(b.barriers[1])
        NOT_TOLD[how](b)
        b.read(b.other)

    fails(sim.EarlyRead, body, "tile B, bytes 0 to 255", "phase 0 (parity 0)", threads=32)


def test_one_who_arrives_without_waiting_learns_nothing():
    def body(b):
        if b.t == 32:
            b.load(b.tile, b.barriers[0])
            wait(b.barriers[0])
            b.say_done()  # and arrives below, before any other thread runs
        if b.t < 32:
            b.after(1)
            sim.barrier_arrive(2, 64)
            b.read(b.tile)
        else:
            sim.barrier_sync(2, 64)

    fails(sim.EarlyRead, body, "tile A")


def test_a_load_tells_what_its_issuer_knew():
    def body(b):
        if b.t == 1:
            sim.mbarrier_arrive_expect_tx(b.barriers[1], NBYTES)
        if b.t == 0:
            b.load(b.tile, b.barriers[0])
            wait(b.barriers[0])
            sim.cp_async_bulk_load(b.other, b.x, b.barriers[1])
        if b.t == 40:
            wait(b.barriers[1])
            b.read(b.tile)

    passes(body)


def test_a_failed_wait_tells_nothing():
    def body(b):
        if b.t == 0:
            sim.mbarrier_arrive_expect_tx(b.barriers[0], 2 * NBYTES)
            sim.cp_async_bulk_load(b.tile, b.x, b.barriers[0])
            assert not sim.mbarrier_try_wait_parity(b.barriers[0], 0)
            b.read(b.tile)

    fails(sim.EarlyRead, body, "tile A", "mbarrier at", threads=1)


def test_the_phase_before_is_not_enough():
    def body(b):
        if b.t == 0:
            for phase in range(2):
                b.load(b.tile, b.barriers[0])
                wait(b.barriers[0], 0)  # the second time this passes at once: wrong parity
                assert sim.shared_read(b.tile, F32) == 0
                if phase:
                    wait(b.barriers[0], 1)

    def right(b):
        if b.t == 0:
            for phase in range(4):
                b.load(b.tile, b.barriers[0])
                wait(b.barriers[0], phase & 1)
                assert sim.shared_read(b.tile, F32) == 0

    passes(right)
    # Where the load lands at once, the parity is that of a running phase, and nothing comes.
    with pytest.raises((sim.EarlyRead, sim.Deadlock)):
        passes(body)


def test_reading_what_nobody_wrote():
    def half(b):
        if b.t == 0:
            b.write(b.tile, 0, 32)
            b.read(b.tile)

    def all_of_it(b):
        if b.t == 0:
            b.write(b.tile, 0, 64)
            b.read(b.tile)

    passes(all_of_it)
    fails(sim.UninitializedRead, half, "tile A, bytes 0 to 255", "before all of it was written")


# EarlyOverwrite.


def readers_then_load(tell):
    def body(b):
        if b.t == 0:
            b.load(b.tile, b.barriers[0])
        wait(b.barriers[0])
        b.read(b.tile)
        b.say_done()
        tell(b)
        if b.t == 0:
            b.load(b.tile, b.barriers[0])
            wait(b.barriers[0], 1)

    return body


def test_loading_over_what_others_have_read():
    def nothing_known(b):
        sim.barrier_sync(1 + b.t // 32, 32)
        b.after(64)

    passes(readers_then_load(lambda b: cuda.syncthreads()))
    fails(
        sim.EarlyOverwrite, readers_then_load(nothing_known), "tile A, bytes 0 to 255",
        "after thread (32, 0, 0) of block (0, 0, 0) (warp 1 lane 0) has read them",
        "'empty' barrier",
    )  # fmt: skip


def writer_then_load(sync, fence=sim.fence_proxy_async):
    def body(b):
        if b.t == 40:
            b.write(b.tile, 3, 5)
            fence()
            b.say_done()
            sim.mbarrier_arrive(b.barriers[1])
        sync(b)
        if b.t == 0:
            b.load(b.tile, b.barriers[0])
            wait(b.barriers[0])

    return body


def test_loading_over_what_others_have_written():
    passes(writer_then_load(lambda b: cuda.syncthreads()))
    passes(writer_then_load(lambda b: wait(b.barriers[1])))
    fails(
        sim.MissingFence, writer_then_load(lambda b: cuda.syncthreads(), lambda: None),
        "tile A, bytes 0 to 31", "a load overwrites bytes that thread (40, 0, 0)",
    )  # fmt: skip
    fails(
        sim.EarlyOverwrite, writer_then_load(lambda b: b.after(1)), "tile A, bytes 0 to 31",
        "after thread (40, 0, 0) of block (0, 0, 0) (warp 1 lane 8) has written them",
    )  # fmt: skip


def test_two_loads_into_the_same_bytes():
    def overlapping(b):
        if b.t == 0:
            b.load(b.tile, b.barriers[0])
            b.load(b.tile + 128, b.barriers[1])
            wait(b.barriers[0])
            wait(b.barriers[1])

    def in_turn(b):
        if b.t == 0:
            b.load(b.tile, b.barriers[0])
            wait(b.barriers[0])
            b.load(b.tile + 128, b.barriers[1])
            wait(b.barriers[1])

    def side_by_side(b):
        if b.t == 0:
            b.load(b.tile, b.barriers[0])
            b.load(b.other, b.barriers[1])
            wait(b.barriers[0])
            wait(b.barriers[1])

    passes(in_turn)
    passes(side_by_side)
    fails(sim.EarlyOverwrite, overlapping, "overwritten by another load")


def test_writing_where_a_load_is_under_way():
    def early(b):
        if b.t == 0:
            b.load(b.tile, b.barriers[0])
            b.write(b.tile, 0, 1)
            wait(b.barriers[0])

    def late(b):
        if b.t == 0:
            b.load(b.tile, b.barriers[0])
            wait(b.barriers[0])
            b.write(b.tile, 0, 1)

    passes(late)
    fails(sim.EarlyOverwrite, early, "tile A, bytes 0 to 3: overwritten before the load")


def test_writing_what_a_store_still_reads():
    def early(b):
        if b.t == 0:
            b.write(b.tile, 0, 64)
            sim.fence_proxy_async()
            b.store(b.tile)
            b.write(b.tile, 5, 6)
            sim.cp_async_bulk_wait_group_read(0)

    def another_thread(b):
        if b.t == 0:
            b.write(b.tile, 0, 64)
            sim.fence_proxy_async()
            b.stored(b.tile)
            b.say_done()
        b.after(1)
        if b.t == 1:
            b.write(b.tile, 5, 6)

    def synchronised(b):
        if b.t == 0:
            b.write(b.tile, 0, 64)
            sim.fence_proxy_async()
            b.stored(b.tile)
        cuda.syncthreads()
        if b.t == 1:
            b.write(b.tile, 5, 6)
            assert (b.read(b.tile) == np.arange(64)).all()

    passes(synchronised)
    texts = "tile A, bytes 16 to 31", "a store of thread (0, 0, 0)", "wait_group_read()"
    fails(sim.EarlyOverwrite, early, *texts)
    fails(sim.EarlyOverwrite, another_thread, *texts)


def test_the_newest_store_is_still_reading():
    def body(allowed):
        def inner(b):
            if b.t == 0:
                b.write(b.tile, 0, 64)
                b.write(b.other, 0, 64)
                sim.fence_proxy_async()
                b.store(b.other)
                b.store(b.tile)
                sim.cp_async_bulk_wait_group_read(allowed)
                b.write(b.other, 0, 1)
                sim.cp_async_bulk_wait_group_read(0)
                b.write(b.tile, 0, 1)

        return inner

    passes(body(1))
    passes(body(0))
    fails(sim.EarlyOverwrite, body(2), "tile B, bytes 0 to 15")


# MissingFence.


def test_storing_what_others_wrote():
    def body(mistake):
        def inner(b):
            if mistake == "fence first":
                sim.fence_proxy_async()
            b.write(b.tile, b.t, b.t + 1)
            if mistake is None or mistake == "write after":
                sim.fence_proxy_async()
            if mistake == "write after" and b.t == 33:
                b.write(b.tile, b.t, b.t + 1)
            if mistake == "fence too late":
                cuda.syncthreads()
                sim.fence_proxy_async()
                if b.t == 0:
                    b.stored(b.tile)
                return
            cuda.syncthreads()
            if b.t == 0:
                b.stored(b.tile)

        return inner

    passes(body(None))
    fails(sim.MissingFence, body("fence first"), "a store reads bytes that thread (0, 0, 0)",
          "tile A, bytes 0 to 15")  # fmt: skip
    fails(sim.MissingFence, body("write after"), "bytes that thread (33, 0, 0)")
    fails(sim.MissingFence, body("fence too late"), "a store reads bytes that thread (1, 0, 0)")


def test_storing_ones_own_writes():
    def body(fence):
        def inner(b):
            if b.t == 0:
                b.write(b.tile, 0, 64)
                fence()
                b.stored(b.tile)

        return inner

    passes(body(sim.fence_proxy_async))
    fails(sim.MissingFence, body(lambda: None), "thread (0, 0, 0)")
    fails(sim.MissingFence, body(sim.fence_mbarrier_init), "thread (0, 0, 0)")


def test_storing_what_a_load_brought_needs_no_fence():
    def body(b):
        if b.t == 0:
            b.load(b.tile, b.barriers[0])
            wait(b.barriers[0])
            b.stored(b.tile)

    def early(b):
        if b.t == 0:
            b.load(b.tile, b.barriers[0])
            b.stored(b.tile)
            wait(b.barriers[0])

    passes(body)
    fails(sim.EarlyRead, early, "tile A, bytes 0 to 255: stored before the load")


def test_storing_what_nobody_wrote():
    def body(written):
        def inner(b):
            if b.t == 0:
                b.write(b.tile, 0, written)
                sim.fence_proxy_async()
                b.stored(b.tile)

        return inner

    passes(body(64))
    fails(sim.UninitializedRead, body(63), "stored to global memory, but it was never written")


# The use of barriers.


def test_a_barrier_that_another_thread_initialised():
    def body(b, sync, fence):
        barrier = sim.allocate_shared("late", 8, 8)
        if b.t == 0:
            sim.mbarrier_init(barrier, 64)
            fence()
            b.say_done()
        sync(b)
        if b.t == 40:
            sim.mbarrier_expect_tx(barrier, NBYTES)
            sim.cp_async_bulk_load(b.tile, b.x, barrier)
        sim.mbarrier_arrive(barrier)
        wait(barrier)

    def sync(b):
        cuda.syncthreads()

    passes(lambda b: body(b, sync, sim.fence_mbarrier_init))
    passes(lambda b: body(b, sync, sim.fence_proxy_async))
    fails(sim.MissingFence, lambda b: body(b, sync, lambda: None), "mbarrier at",
          "fence_mbarrier_init()")  # fmt: skip
    fails(sim.BarrierMisuse, lambda b: body(b, lambda b: b.after(1), sim.fence_mbarrier_init),
          "has not synchronised with its mbarrier_init by thread (0, 0, 0)", "syncthreads",
          )  # fmt: skip


# The end.


def test_a_load_that_nobody_waits_for():
    def body(b):
        sim.label(b.barriers[2], "full[0] of Pipe")
        if b.t == 0:
            b.load(b.tile, b.barriers[2])

    fails(sim.UnfinishedCopy, body, "block (0, 0, 0) ended", "full[0] of Pipe", "tile A",
          "test_simulator_hazards.py:")  # fmt: skip


def test_a_store_that_is_not_finished_with():
    def body(end):
        def inner(b):
            if b.t == 0:
                b.write(b.tile, 0, 64)
                sim.fence_proxy_async()
                sim.cp_async_bulk_store(b.y, b.tile)
                end()

        return inner

    def committed():
        sim.cp_async_bulk_commit_group()

    def waited_too_little():
        sim.cp_async_bulk_commit_group()
        sim.cp_async_bulk_wait_group_read(1)

    def waited(wait_group):
        def end():
            sim.cp_async_bulk_commit_group()
            wait_group(0)

        return end

    passes(body(waited(sim.cp_async_bulk_wait_group_read)))
    passes(body(waited(sim.cp_async_bulk_wait_group)))
    fails(sim.UnfinishedCopy, body(lambda: None), "tid=[0, 0, 0]", "never committed",
          "test_simulator_hazards.py:")  # fmt: skip
    fails(sim.UnfinishedCopy, body(lambda: sim.cp_async_bulk_wait_group(0)), "never committed")
    fails(sim.UnfinishedCopy, body(committed), "has not waited for")
    fails(sim.UnfinishedCopy, body(waited_too_little), "has not waited for")


def test_wrong_byte_counts():
    def body(expected, loads):
        def inner(b):
            if b.t == 0:
                sim.mbarrier_arrive_expect_tx(b.barriers[0], expected)
                for i in range(loads):
                    sim.cp_async_bulk_load(b.tile + i * NBYTES, b.x, b.barriers[0])
            wait(b.barriers[0])

        return inner

    passes(body(NBYTES, 1))
    passes(body(2 * NBYTES, 2))
    fails(sim.Deadlock, body(2 * NBYTES, 1), "256 bytes missing (512 expected, 256 issued)")
    with pytest.raises(sim.WrongByteCount, match="bytes"):
        passes(body(NBYTES - 64, 1))
    with pytest.raises(sim.SimulatorError):
        passes(body(NBYTES, 2))


def test_a_phase_that_completes_with_a_load_under_way():
    def body(b):
        if b.t == 0:
            sim.mbarrier_expect_tx(b.barriers[0], NBYTES)
            sim.cp_async_bulk_load(b.tile, b.x, b.barriers[0])
            sim.cp_async_bulk_load(b.other, b.x, b.barriers[0])
            for _ in range(1000):
                cuda.nanosleep(1)
            sim.mbarrier_arrive(b.barriers[0])
        wait(b.barriers[0])

    fails(sim.WrongByteCount, body, "256 expected, 512 issued", threads=1)
