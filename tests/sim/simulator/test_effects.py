"""What each instruction leaves in the records: turns of others, events, operations, a trace."""

from dataclasses import dataclass

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import simulator as sim
from numba_tma.simulator.memory import BASE
from numba_tma.simulator.protocol import (
    Arrive,
    ArriveAfterCopies,
    AwaitCopies,
    AwaitMeeting,
    AwaitStores,
    ByteSpan,
    CopyAsync,
    CountBytes,
    Init,
    Inval,
    Issue,
    IssueStore,
    Meet,
    Transfer,
    Unmodelled,
    Wait,
    recorded_protocol,
)
from numba_tma.simulator.thread import current

TILE, BAR = BASE, BASE + 1024
X, Y = np.arange(256).astype(np.uint8), np.zeros(256, np.uint8)
MAP = tma.tensor_map(X.view(np.uint32).reshape(8, 8), tma.Tile((4, 8), "u32"))
ROWS = tma.gather_map(X.reshape(8, 32), tma.Tile((4, 32), "u8"))

PLACE, NAME = (0, BAR), f"mbarrier at {BAR}"
READ, WRITTEN = (0, 128, False), (0, 128, True)  #: accesses of a thread to the tile
SPAN, SOURCE = ByteSpan(0, TILE, TILE + 128), "tile, bytes 0 to 127"
FIRST = (1 << 32) + 2  #: the content that the first copy of the first thread brings


class Done(Exception):
    """Ends a kernel, whatever is under way."""


@dataclass
class Effects:
    """What a call leaves: turns of other threads, events, writes, operations, and a trace."""

    turns: int = 1
    events: int = 0
    writes: int = 0
    operations: tuple = ()
    trace: tuple = ()
    accesses: frozenset = frozenset()


def effects_of(call, before, blocks=1):
    """Return the effects of a call in the first block of one thread, after other calls of all."""
    found = []

    def kernel():
        sim.allocate_shared("tile", 1024, 128)
        sim.allocate_shared("barrier", 16, 8)
        scheduler, log = current().cta.scheduler, current().log
        events = current().cta._trace.events
        scheduler._landing_rate = 0  # copies land while the thread waits
        for each in before:
            each()
        if blocks > 1:
            sim.barrier_cluster_arrive("release")
            sim.barrier_cluster_wait("acquire")
            if sim.cluster_rank() > 0:
                return
        log.touches[-1].clear()
        was = scheduler.step, scheduler._events, scheduler._writes
        operations, traced = len(log.operations), len(events)
        call()
        now = scheduler.step, scheduler._events, scheduler._writes
        touches = set().union(*log.touches[operations:])
        found.append(
            Effects(
                *(after - earlier for earlier, after in zip(was, now)),
                tuple(log.operations[operations:]),
                tuple((event.kind, event.label, event.nbytes) for event in events[traced:]),
                frozenset((t.span.start - TILE, t.span.stop - TILE, t.writes) for t in touches),
            )
        )
        raise Done

    kernel = cuda.jit(tma.cluster(blocks)(kernel) if blocks > 1 else kernel)
    with sim.record(), recorded_protocol(), pytest.raises(Done):
        kernel[blocks, 1]()
    return found[0]


def init(count=4):
    return lambda: (sim.mbarrier_init(BAR, count), sim.fence_mbarrier_init())


def filled():
    sim.shared_write(TILE, np.zeros(128, np.uint8))
    sim.fence_proxy_async()


def arrive():
    return sim.mbarrier_arrive(BAR)


def wait():
    assert sim.mbarrier_try_wait_parity(BAR, 0)


def store():
    sim.cp_async_bulk_store(Y[:128], TILE)


def copy():
    sim.cp_async("cp_async", TILE, X[:16], 16, 16)


def arrives(*fields, nbytes=0):
    return Effects(1, 1, 0, (Arrive(PLACE, *fields),), (("arrive", NAME, nbytes),))


def loads():
    transfer = Transfer(FIRST, SPAN, PLACE, 128, None)
    return Effects(operations=(Issue((transfer,)),), trace=(("issue", NAME, 128),))


def stores():
    operation, trace = IssueStore(1, SPAN), ("store", SOURCE, 128)
    return Effects(operations=(operation,), trace=(trace,), accesses={READ})


def counts(nbytes):
    return Effects(1, 1, operations=(CountBytes(PLACE, nbytes),))


def meets(key, name):
    return Effects(1, 1, operations=(Meet((0, key), 0, True, name, None),))


AWAITED, DRAINED = ("awaited", NAME, 0), ("drained", "", 0)
BARRIERS = [
    (lambda: sim.mbarrier_init(BAR, 4), Effects(1, 1, operations=(Init(PLACE, 4),))),
    (lambda: sim.mbarrier_inval(BAR), Effects(1, 1, operations=(Inval(PLACE),)), init()),
    (arrive, arrives(1, None, False, False), init()),
    (lambda: sim.mbarrier_arrive(BAR, 3), arrives(3, None, False, False), init()),
    (lambda: sim.mbarrier_arrive_no_complete(BAR, 2), arrives(2, None, False, True), init()),
    (lambda: sim.mbarrier_arrive_drop(BAR), arrives(1, None, True, False), init()),
    (lambda: sim.mbarrier_arrive_drop_no_complete(BAR, 2), arrives(2, None, True, True), init()),
    (lambda: sim.mbarrier_arrive_expect_tx(BAR, 64), arrives(1, 64, False, False, nbytes=64),
     init()),
    (lambda: sim.mbarrier_arrive_drop_expect_tx(BAR, 64), arrives(1, 64, True, False, nbytes=64),
     init()),
    (lambda: sim.mbarrier_arrive_remote(BAR, 2), arrives(2, None, False, False), init()),
    (lambda: sim.mbarrier_arrive_drop_remote(BAR, 2), arrives(2, None, True, False), init()),
    (lambda: sim.mbarrier_arrive_expect_tx_remote(BAR, 8), arrives(1, 8, False, False, nbytes=8),
     init()),
    (lambda: sim.mbarrier_arrive_drop_expect_tx_remote(BAR, 8),
     arrives(1, 8, True, False, nbytes=8), init()),
    (arrive, Effects(1, 1, 0, (Arrive(PLACE, 1, None, False, False),),
     (("arrive", NAME, 0), ("complete", NAME, 0))), init(1)),
    (lambda: sim.mbarrier_expect_tx(BAR, 64), counts(64), init()),
    (lambda: sim.mbarrier_expect_tx_remote(BAR, 64), counts(64), init()),
    (lambda: sim.mbarrier_complete_tx(BAR, 64), counts(-64), init()),
    (lambda: sim.mbarrier_complete_tx_remote(BAR, 64), counts(-64), init()),
    (wait, Effects(1, 1, 0, (Wait(PLACE, 0, False),), (AWAITED, ("wait", NAME, 0))), init(1),
     arrive),
    (wait, Effects(operations=(Wait(PLACE, 0, False),), trace=(AWAITED,)), init(1), arrive, wait),
    (lambda: sim.mbarrier_test_wait(BAR, BAR),
     Effects(operations=(Wait(PLACE, 0, True),), trace=(AWAITED,)), init(1), arrive, wait),
    (lambda: sim.mbarrier_test_wait_parity(BAR, 0), Effects(), init()),
]  # fmt: skip
COPIES = [
    (lambda: sim.cp_async_bulk_load(TILE, X[:128], BAR), loads(), init()),
    (lambda: sim.cp_async_bulk_load_ignore_oob(TILE, X, 128, (3, 5), BAR), loads(), init()),
    (lambda: sim.cp_async_bulk_tensor_load(TILE, MAP, (0, 0), BAR), loads(), init()),
    (lambda: sim.cp_async_bulk_tensor_gather4(TILE, ROWS, (0, 1, 2, 3), 0, BAR), loads(), init()),
    (store, stores(), filled),
    (lambda: sim.cp_reduce_async_bulk_store(Y[:128], TILE, "add.u32"), stores(), filled),
    (lambda: sim.cp_async_bulk_tensor_store(MAP, (0, 0), TILE), stores(), filled),
    (lambda: sim.cp_reduce_async_bulk_tensor(MAP, (0, 0), TILE, "add"), stores(), filled),
    (lambda: sim.cp_async_bulk_tensor_scatter4(ROWS, (0, 1, 2, 3), 0, TILE), stores(), filled),
    (sim.cp_async_bulk_commit_group, Effects()),
    (lambda: sim.cp_async_bulk_wait_group(0), Effects(1, 2, 0, (AwaitStores(1),),
     (("store_read", SOURCE, 128), ("store_done", SOURCE, 128), DRAINED)), filled, store,
     sim.cp_async_bulk_commit_group),
    (lambda: sim.cp_async_bulk_wait_group_read(0), Effects(1, 1, 0, (AwaitStores(1),),
     (("store_read", SOURCE, 128), DRAINED)), filled, store, sim.cp_async_bulk_commit_group),
    (lambda: sim.cp_async_bulk_wait_group(1), Effects(operations=(AwaitStores(0),)), filled,
     store, sim.cp_async_bulk_commit_group),
    (copy, Effects(operations=(CopyAsync(1, FIRST, ByteSpan(0, TILE, TILE + 16)),))),
    (sim.cp_async_commit_group, Effects(), copy),
    (sim.cp_async_wait_all, Effects(1, 1, operations=(AwaitCopies(1),)), copy),
    (sim.cp_async_wait_all, Effects(operations=(AwaitCopies(0),))),
    (lambda: sim.cp_async_wait_group(0), Effects(1, 1, operations=(AwaitCopies(1),)), copy,
     sim.cp_async_commit_group),
    (lambda: sim.cp_async_wait_group(0), Effects(operations=(AwaitCopies(0),)), copy),
    (lambda: sim.cp_async_mbarrier_arrive(BAR),
     Effects(1, 1, operations=(ArriveAfterCopies(PLACE, 1, True),)), init(), copy),
    (lambda: sim.cp_async_mbarrier_arrive_noinc(BAR),
     Effects(operations=(ArriveAfterCopies(PLACE, 1, False),)), init(), copy),
]  # fmt: skip


def copies(*before, block=0):
    """Return what a copy from shared memory to a block's leaves."""
    into, source = ByteSpan(block, TILE, TILE + 128), ByteSpan(0, TILE + 512, TILE + 640)
    issued = Issue((Transfer(FIRST, into, (block, BAR), 128, source),))
    read = {(512, 640, False)}
    return Effects(1, 0, 0, (*before, issued), (("issue", NAME, 128),), read)


def to_block(address, rank=1):
    return sim.mapa(address, rank)


def filled_source():
    sim.shared_write(TILE, np.zeros(1024, np.uint8))
    sim.fence_proxy_async()


REDUCES = Unmodelled("cp_reduce_async_bulk_cluster")
WORD = Issue((Transfer(FIRST, ByteSpan(1, TILE, TILE + 4), (1, BAR), 4, None),))
OF_PAIRS = [
    (lambda: sim.cp_async_bulk_copy_cluster(to_block(TILE), TILE + 512, 128, to_block(BAR)),
     copies(block=1), init(), filled_source),
    (lambda: sim.cp_async_bulk_copy_cluster(TILE, TILE + 512, 128, BAR), copies(), init(),
     filled_source),
    (lambda: sim.cp_reduce_async_bulk_cluster(
        to_block(TILE), TILE + 512, 128, to_block(BAR), "add.u32"),
     copies(REDUCES, block=1), init(), filled_source),
    (lambda: sim.st_async(to_block(TILE), np.uint32(1), to_block(BAR)),
     Effects(1, 0, 0, (WORD,), (("issue", NAME, 4),)), init()),
    (lambda: sim.red_async(to_block(TILE), np.uint32(1), to_block(BAR), "add"),
     Effects(1, 0, 0, (Unmodelled("red_async add"), WORD), (("issue", NAME, 4),)), init(),
     filled_source),
    (lambda: sim.shared_cluster_write(to_block(TILE), np.uint32(1)),
     Effects(1, 0, 1, accesses={(0, 4, True)}), init()),
    (lambda: sim.shared_cluster_read(to_block(TILE), np.dtype(np.uint32)),
     Effects(1, accesses={(0, 4, False)}), init(), filled_source),
    (lambda: sim.shared_cluster_reduce(to_block(TILE), np.uint32(1), "add"),
     Effects(1, 0, 1, accesses={(0, 4, False), (0, 4, True)}), init(), filled_source),
    (lambda: sim.mbarrier_arrive_remote(to_block(BAR)),
     Effects(1, 1, 0, (Arrive((1, BAR), 1, None, False, False),), (("arrive", NAME, 0),)), init()),
]  # fmt: skip
CLUSTER = "barrier.cluster of blocks (0, 0, 0) to (0, 0, 0)"
OTHERS = [
    (sim.fence_mbarrier_init, Effects()), (sim.fence_proxy_async, Effects()),
    (lambda: sim.fence_proxy_async("global"), Effects()), (sim.fence_acq_rel, Effects()),
    (lambda: sim.fence_proxy_tensormap_acquire(MAP), Effects()),
    (sim.fence_proxy_tensormap_release, Effects()),
    (sim.tcgen05_fence_before_thread_sync, Effects()),
    (sim.tcgen05_fence_after_thread_sync, Effects()), (sim.wgmma_fence, Effects(0)),
    (lambda: sim.shared_write(TILE, np.zeros(128, np.uint8)), Effects(0, 0, 1, accesses={WRITTEN})),
    (lambda: sim.shared_write_pieces(TILE + 16 * np.arange(8), np.zeros((8, 4), np.float32)),
     Effects(0, 0, 1, accesses={(16 * i, 16 * i + 16, True) for i in range(8)})),
    (lambda: sim.shared_read(TILE, np.dtype(np.float32), 32), Effects(0, accesses={READ}), filled),
    (lambda: sim.setmaxnreg("dec", 24), Effects(1, 2, 0, meets(
        ("warpgroup", 0), "setmaxnreg_dec(24) of warpgroup 0").operations)),
    (sim.yield_turn, Effects()), (lambda: sim.nanosleep(5), Effects()),
    (sim.clock, Effects(1, 1)), (sim.global_time, Effects(1, 1)),
    (lambda: sim.atomic_inc(Y, 3), Effects(1, 0, 1)), (lambda: sim.relaxed_read(Y), Effects()),
    (lambda: current().syncthreads(), meets(("barrier", 0), "syncthreads")),
    (sim.syncwarp, meets(("warp", 0, 0xFFFFFFFF), "syncwarp of warp 0 with mask 0xffffffff")),
    (sim.elect_sync, meets(("warp", 0, 0xFFFFFFFF), "elect_sync of warp 0 with mask 0xffffffff")),
    (lambda: sim.barrier_cluster_arrive("release"),
     Effects(1, 1, operations=(Meet((0, "cluster"), 0, False, CLUSTER, None),))),
    (lambda: sim.barrier_cluster_wait("acquire"),
     Effects(operations=(AwaitMeeting((0, "cluster"), 0),)),
     lambda: sim.barrier_cluster_arrive("release")),
]  # fmt: skip


CASES = {"barriers": BARRIERS, "copies": COPIES, "of pairs": OF_PAIRS, "others": OTHERS}


@pytest.mark.parametrize("name", CASES)
def test_what_an_instruction_leaves(name):
    for number, (call, expected, *before) in enumerate(CASES[name]):
        assert effects_of(call, before, 1 + (name == "of pairs")) == expected, number


#: Calls that do nothing to the block, some of them with operands that a kernel may not give.
FOR_KERNELS = [
    sim.sm_registers, sim.wgmma_fence, lambda: sim.prefetch_tensormap(MAP),
    lambda: sim.cp_async_bulk_prefetch(X), lambda: sim.mbarrier_pending_count(7),
    lambda: sim.cp_async_bulk_prefetch_tensor(MAP, (0, 0)), lambda: sim.first_ctaid((0, 1 << 63)),
    lambda: sim.cp_async_bulk_prefetch_tensor_gather4(ROWS, (0, 1, 2, 3), 0),
    lambda: sim.cp_async_bulk_prefetch_tensor_im2col(MAP, (0, 0), ()),
    lambda: sim.cp_async_bulk_prefetch_tensor_im2col_w(MAP, (0, 0), 0, 0, "w"),
    lambda: sim.cp_reduce_async_bulk_tensor_im2col(MAP, (0, 0), 0, "wrong"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(FOR_KERNELS)))
def test_an_instruction_is_for_kernels(number):
    with pytest.raises(RuntimeError, match="^this is for kernels"):
        FOR_KERNELS[number]()


def test_a_product_reads_its_operands_until_its_threads_have_waited():
    tile, seen = tma.Tile((64, 16), "f16", tma.Swizzle.B32), {}

    @cuda.jit
    def kernel():
        a, thread = tma.shared_tile(tile), current()
        if thread.row == 0:
            sim.shared_write(a.address, np.zeros(tile.nbytes, np.uint8))
            sim.fence_proxy_async()
        current().syncthreads()
        acc = tma.wgmma(tma.fragment(64), a.matrix_descriptor(), a.matrix_descriptor())
        issued = len(thread.log.touches) - 1
        current().syncthreads()
        tma.wgmma_wait(acc)
        slots = [thread.log.touches[i] for i in (issued, issued + 1)]
        seen[thread.row] = [{(t.span, t.writes) for t in touches} for touches in slots]

    with recorded_protocol():
        kernel[1, 128]()
    operand = ByteSpan(0, BASE, BASE + tile.nbytes), False
    assert seen == {row: [{operand}, {operand}] for row in range(128)}
