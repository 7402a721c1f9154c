"""Tensor memory: values, ordering, and errors."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma import simulator as sim
from tests.kernels.accumulators import COLUMNS, THREADS, hand_over
from tests.tiers import quick

HELD = tma.Tile(4, np.uint32)
LOADS = {
    "32x32b": ptx.tcgen05_ld_32x32b,
    "16x64b": ptx.tcgen05_ld_16x64b,
    "16x128b": ptx.tcgen05_ld_16x128b,
    "16x256b": ptx.tcgen05_ld_16x256b,
}
STORES = {
    "32x32b": ptx.tcgen05_st_32x32b,
    "16x64b": ptx.tcgen05_st_16x64b,
    "16x128b": ptx.tcgen05_st_16x128b,
    "16x256b": ptx.tcgen05_st_16x256b,
}


# ------------------------------------------------------------------------------- values


@pytest.mark.parametrize("count", quick([0, 3], [0, 1, 3, 5]))
def test_accumulators_reach_the_epilogue(count):
    tiles = np.random.default_rng(count).integers(0, 2**32, (count, 128, COLUMNS), np.uint32)
    for seed in range(2):
        sim.seed(seed)
        out = np.zeros_like(tiles)
        hand_over[1, THREADS](tiles, out)
        np.testing.assert_array_equal(out, tiles)


def bits(shape, num):
    """Return (lane, column) by thread and register, from the bit where each register begins."""
    thread, register = np.meshgrid(np.arange(32), np.arange(4 * num), indexing="ij")
    quad, pair = thread // 4, register // 2
    width = 64 * num if shape == "16x64b" else 128 * num if shape == "16x128b" else 256 * num
    if shape == "16x64b":
        register, thread, quad = register[:, :num], thread[:, :num], quad[:, :num]
        bit = width * (quad + 8 * (thread & 1)) + 32 * (thread >> 1 & 1) + 64 * register
    elif shape == "16x128b":
        bit = width * (quad + 8 * (register & 1)) + 32 * (thread % 4) + 128 * (register // 2)
        bit = bit[:, : 2 * num]
    else:
        bit = width * (quad + 8 * (pair & 1)) + 64 * (thread % 4) + 32 * (register & 1)
        bit += 256 * (pair // 2)
    return bit // width, bit % width // 32


@pytest.mark.parametrize("num", [1, 2, 8])
@pytest.mark.parametrize("shape", ["16x64b", "16x128b", "16x256b"])
def test_shapes_of_16_lanes(shape, num):
    lanes, columns = bits(shape, num)
    assert len({*zip(lanes.flat, columns.flat)}) == lanes.size, "each cell once"
    values = np.random.default_rng(num).integers(0, 2**32, (2, *lanes.shape), np.uint32)
    expected = np.zeros((32, columns.max() + 1), np.uint32)
    expected[lanes, columns] = values[0]
    expected[lanes + 16, columns] = values[1]
    cells, back = np.zeros_like(expected), np.zeros_like(values)

    @cuda.jit
    def kernel(values, cells, back):
        held, thread = tma.shared_tile(HELD), cuda.threadIdx.x
        ptx.tcgen05_alloc(held, 128, 1)
        base = ptx.ld_shared_u32(held.address)
        for half in range(2):
            STORES[shape](base + (16 * half << 16), tuple(values[half, thread]), num)
        ptx.tcgen05_wait_st()
        row = ptx.tcgen05_ld_32x32b(base, cells.shape[1])
        halves = [LOADS[shape](base + (16 * half << 16), num) for half in range(2)]
        ptx.tcgen05_wait_ld()
        cells[thread] = row
        back[0, thread], back[1, thread] = halves
        ptx.tcgen05_dealloc(base, 128, 1)

    kernel[1, 32](values, cells, back)
    np.testing.assert_array_equal(cells, expected)
    np.testing.assert_array_equal(back, values)


def test_registers_are_integers_after_the_wait():
    out = np.zeros(32, np.float32)

    @cuda.jit
    def kernel(out):
        held, lane = tma.shared_tile(HELD), cuda.laneid
        ptx.tcgen05_alloc(held, 32, 1)
        base = ptx.ld_shared_u32(held.address)
        ptx.tcgen05_st_32x32b(base, (lane, lane + 1), 2)
        ptx.tcgen05_wait_st()
        a, b = ptx.tcgen05_ld_32x32b(base, 2)
        ptx.tcgen05_wait_ld()
        assert (a + 1, 1 + a, b - a, a | b) == (lane + 1, lane + 1, 1, lane | lane + 1)
        assert a == lane and a < b and [*range(64)][b] == lane + 1 and f"{a!r}" == f"{lane}"
        assert np.uint32(b) == lane + 1 and bool(b) and -a == -lane and hash(a) == hash(lane)
        out[lane] = b
        out[lane] += a
        ptx.tcgen05_dealloc(base, 32, 1)

    kernel[1, 32](out)
    np.testing.assert_array_equal(out, 2 * np.arange(32) + 1)


def test_stores_land_late():
    seen = set()

    @cuda.jit
    def kernel():
        held = tma.shared_tile(HELD)
        ptx.tcgen05_alloc(held, 32, 1)
        base = ptx.ld_shared_u32(held.address)
        ptx.tcgen05_st_32x32b(base, (7,), 1)
        cuda.nanosleep(1)
        data = sim.thread.current().cta.tensor_memory.data
        seen.add(bool((data[:32, base] == 7).all()))
        ptx.tcgen05_wait_st()
        assert (data[:32, base] == 7).all()
        ptx.tcgen05_dealloc(base, 32, 1)

    for seed in range(8):
        sim.seed(seed)
        kernel[1, 32]()
    assert False in seen


# --------------------------------------------------------------------------- allocation


def run(body, threads=32, columns=32, cluster=None):
    """Run `body(base, warp)` in a kernel whose first warp allocates, and frees at the end."""

    def kernel():
        held = tma.shared_tile(HELD)
        warp = cuda.threadIdx.x // 32
        if warp == 0:
            ptx.tcgen05_alloc(held, columns, 1)
        cuda.syncthreads()
        base = ptx.ld_shared_u32(held.address)
        body(base, warp)
        ptx.tcgen05_fence_before_thread_sync()
        cuda.syncthreads()
        if warp == 0:
            ptx.tcgen05_dealloc(base, columns, 1)

    cuda.jit(kernel)[1, threads]()


def fails(error, text, body, **options):
    with pytest.raises(error, match=text):
        run(body, **options)


def held_address():
    return tma.shared_tile(HELD).address


def test_an_allocation_waits_for_columns():
    order = []

    @cuda.jit
    def kernel():
        held, warp = tma.shared_tile(HELD), cuda.threadIdx.x // 32
        if warp == 0:
            ptx.tcgen05_alloc(held, 512, 1)
            order.append(ptx.ld_shared_u32(held.address))
        cuda.syncthreads()
        if warp == 1:
            ptx.tcgen05_alloc(held.address + 4, 256, 1)
            order.append("second")
            ptx.tcgen05_alloc(held.address + 8, 256, 1)
            first, second = (ptx.ld_shared_u32(held.address + at) for at in (4, 8))
            assert {first, second} == {0, 256}
            ptx.tcgen05_dealloc(first, 256, 1)
            ptx.tcgen05_dealloc(second, 256, 1)
        else:
            cuda.nanosleep(1)
            order.append("freed")
            ptx.tcgen05_dealloc(0, 512, 1)

    for seed in range(5):
        sim.seed(seed)
        order.clear()
        kernel[1, 64]()
        assert order.index("second") > order.index("freed")


def test_columns_that_nobody_frees():
    def body(base, warp):
        ptx.tcgen05_alloc(held_address(), 512, 1)

    fails(
        sim.Deadlock,
        r"tcgen05.alloc of 512 columns, with columns 0 to 511 of tensor memory not deallocated",
        body,
        columns=512,
    )


def test_the_address_is_not_always_0():
    def body(base, warp):
        assert base == 512 - 64

    run(body, columns=64)


@pytest.mark.parametrize("columns", [0, 16, 48, 1024])
def test_a_number_of_columns_that_there_is_not(columns):
    text = f"tcgen05_alloc of {columns} columns; it must be a power of two from 32 to 512"
    fails(sim.TensorMemoryMisuse, text, lambda base, warp: None, columns=columns)


def test_an_allocation_after_the_permit_was_given_back():
    def body(base, warp):
        ptx.tcgen05_relinquish_alloc_permit(1)
        ptx.tcgen05_alloc(held_address(), 32, 1)

    fails(sim.TensorMemoryMisuse, "relinquish_alloc_permit: allocate everything before", body)


def test_allocations_do_not_grow():
    def body(base, warp):
        ptx.tcgen05_alloc(held_address(), 64, 1)

    fails(sim.TensorMemoryMisuse, "64 columns after one of 32: allocate the largest first", body)


def test_one_cta_group_in_a_kernel():
    def body(base, warp):
        ptx.tcgen05_relinquish_alloc_permit(2)

    fails(sim.TensorMemoryMisuse, "cta_group is 2, and was 1 before", body)


def test_half_a_warp():
    def kernel():
        ptx.tcgen05_alloc(held_address(), 32, 1)

    with pytest.raises(sim.BadOperand, match="16 threads of the warp execute it; it takes all 32"):
        cuda.jit(kernel)[1, 16]()


def test_a_leak():
    def kernel():
        ptx.tcgen05_alloc(held_address(), 32, 1)

    with pytest.raises(
        sim.TensorMemoryMisuse,
        match=r"ended without tcgen05_dealloc of columns 480 to 511 of tensor memory, allocated at "
        r"test_tensor_memory.py:\d+: .*execute tcgen05_dealloc after the last access",
    ):
        cuda.jit(kernel)[1, 32]()


@pytest.mark.parametrize(("offset", "columns"), [(0, 64), (32, 32)])
def test_what_was_not_allocated_is_not_freed(offset, columns):
    text = rf"of {columns} columns at address {448 + offset}, .* there is 64 at 448"
    if (offset, columns) == (0, 64):
        with pytest.raises(sim.TensorMemoryMisuse, match="there is nothing. Give address and size"):
            run(lambda base, warp: ptx.tcgen05_dealloc(base, 64, 1), columns=64)
    else:
        fails(
            sim.TensorMemoryMisuse,
            text,
            lambda base, warp: ptx.tcgen05_dealloc(base + offset, columns, 1),
            columns=64,
        )


def test_columns_are_freed_after_every_access():
    def body(base, warp):
        if warp == 1:
            ptx.tcgen05_st_32x32b(base + (32 << 16), (1,), 1)
            ptx.tcgen05_wait_st()
        else:
            cuda.nanosleep(1)
            for _ in range(100):
                ptx.nanosleep(1)
            ptx.tcgen05_dealloc(base, 32, 1)

    found = set()
    for seed in range(10):
        sim.seed(seed)
        with pytest.raises(sim.TensorMemoryMisuse) as caught:
            run(body, threads=64)
        found.add(str(caught.value))
    assert all("lanes 0 to 127, columns 480 to 511: " in text for text in found)
    assert any("deallocated before the tcgen05_st of warp 1 there is known" in f for f in found)


@pytest.mark.parametrize("blocks", [2, 6])
def test_a_pair_of_blocks_allocates_together(blocks):
    bases = []

    @cuda.jit
    @tma.cluster(blocks)
    def kernel():
        held = held_address()
        ptx.tcgen05_alloc(held, 128, 2)
        base = ptx.ld_shared_u32(held)
        bases.append(base)
        ptx.tcgen05_relinquish_alloc_permit(2)
        ptx.tcgen05_dealloc(base, 128, 2)

    kernel[blocks, 32]()
    assert bases == [384] * (32 * blocks)


@pytest.mark.parametrize("alone", range(6))
def test_half_a_pair_waits_for_ever(alone):
    @cuda.jit
    @tma.cluster(6)
    def kernel():
        if cuda.blockIdx.x == alone:
            ptx.tcgen05_alloc(held_address(), 128, 2)

    pair = rf"\({alone & ~1}, 0, 0\) and \({alone | 1}, 0, 0\)"
    with pytest.raises(sim.Deadlock, match=rf"of 128 columns of blocks {pair}: 1 of 2 threads"):
        kernel[6, 32]()


def test_a_block_without_a_pair():
    def kernel():
        ptx.tcgen05_alloc(held_address(), 128, 2)

    with pytest.raises(sim.BadOperand, match="for pairs of blocks, and the cluster has 1"):
        cuda.jit(kernel)[1, 32]()


# ------------------------------------------------------------------------------- places


def test_a_warp_has_its_own_lanes():
    def body(base, warp):
        ptx.tcgen05_ld_32x32b(base, 1)

    text = (
        r"begins at lane 0; warp 1 reaches lanes 32 to 63 alone, and this access of 32 lanes "
        r"begins at 32: add \(lane << 16\)"
    )
    fails(sim.TensorMemoryMisuse, text, lambda b, w: body(b, w) if w else None, threads=64)


def test_16_lanes_begin_at_two_places():
    def body(base, warp):
        ptx.tcgen05_st_16x64b(base + (8 << 16), (0,), 1)

    fails(sim.TensorMemoryMisuse, "this access of 16 lanes begins at 0 or 16", body)


def test_beyond_the_columns():
    def body(base, warp):
        ptx.tcgen05_st_32x32b(base - 32, (0,) * 64, 64)

    text = "column 448 is not allocated .there is columns 480 to 511 of tensor memory"
    fails(sim.TensorMemoryMisuse, text, body)


def test_beyond_the_memory():
    def body(base, warp):
        ptx.tcgen05_st_32x32b(base + 31, (0, 0), 2)

    fails(sim.TensorMemoryMisuse, "column 512 is not allocated", body)


def test_two_allocations_side_by_side_are_one_space():
    def body(base, warp):
        ptx.tcgen05_alloc(held_address(), 32, 1)
        ptx.tcgen05_st_32x32b(base - 32, (0,) * 64, 64)
        ptx.tcgen05_wait_st()
        ptx.tcgen05_dealloc(base - 32, 32, 1)

    run(body)


def test_before_the_allocation():
    def kernel():
        ptx.tcgen05_st_32x32b(0, (0,), 1)

    with pytest.raises(sim.TensorMemoryMisuse, match="column 0 is not allocated .there is nothing"):
        cuda.jit(kernel)[1, 32]()


def test_after_the_deallocation():
    def kernel():
        held = held_address()
        ptx.tcgen05_alloc(held, 32, 1)
        base = ptx.ld_shared_u32(held)
        ptx.tcgen05_dealloc(base, 32, 1)
        ptx.tcgen05_st_32x32b(base, (0,), 1)

    with pytest.raises(sim.TensorMemoryMisuse, match="have been deallocated; do that after the la"):
        cuda.jit(kernel)[1, 32]()


def test_an_allocation_that_the_warp_has_not_synchronised_with():
    def kernel():
        if cuda.threadIdx.x < 32:
            ptx.tcgen05_alloc(held_address(), 512, 1)
        else:
            while not sim.thread.current().cta.tensor_memory.live:
                cuda.nanosleep(1)
            ptx.tcgen05_st_32x32b(32 << 16, (0,), 1)

    with pytest.raises(sim.TensorMemoryMisuse, match="not synchronised with their tcgen05_alloc"):
        cuda.jit(kernel)[1, 64]()


def test_an_allocation_that_is_freed_by_a_warp_that_has_not_synchronised_with_it():
    def kernel():
        if cuda.threadIdx.x < 32:
            ptx.tcgen05_alloc(held_address(), 512, 1)
        else:
            while not sim.thread.current().cta.tensor_memory.live:
                cuda.nanosleep(1)
            ptx.tcgen05_dealloc(0, 512, 1)

    with pytest.raises(sim.TensorMemoryMisuse, match="not synchronised with their tcgen05_alloc"):
        cuda.jit(kernel)[1, 64]()


def test_lanes_that_disagree():
    def body(base, warp):
        ptx.tcgen05_st_32x32b(base + cuda.laneid, (0,), 1)

    fails(sim.BadOperand, "lane 0 gives address 480 and lane 1 gives 481; all threads of", body)


def test_the_number_of_registers():
    def body(base, warp):
        ptx.tcgen05_st_16x256b(base, (0,) * 4, 2)

    text = r"tcgen05_st_16x256b\(values=...\) takes a tuple of 8 numbers, not 4"
    fails(sim.BadOperand, text, body)


def test_cells_that_nobody_has_written():
    def body(base, warp):
        ptx.tcgen05_st_32x32b(base, (0,), 1)
        ptx.tcgen05_wait_st()
        ptx.tcgen05_ld_32x32b(base, 2)

    fails(sim.UninitializedRead, "lanes 0 to 31, columns 480 to 481: loaded before all", body)


# ------------------------------------------------------------------------- waits and fences


@pytest.mark.parametrize(
    "use",
    [
        lambda register, out: int(register),
        lambda register, out: register + 1,
        lambda register, out: register == 5,
        lambda register, out: out.__setitem__(0, register),
        lambda register, out: np.uint32(register),
        lambda register, out: f"{register!r}",
    ],
)
def test_a_register_before_the_wait(use):
    def body(base, warp):
        ptx.tcgen05_st_32x32b(base, (5, 6), 2)
        ptx.tcgen05_wait_st()
        _, register = ptx.tcgen05_ld_32x32b(base, 2)
        for _ in range(50):
            cuda.nanosleep(1)
        use(register, np.zeros(1, np.uint32))

    text = r"register 1 of the tcgen05_ld .*: execute tcgen05_wait_ld\(\) first"
    fails(sim.EarlyRead, text, body)


OWN = "execute tcgen05_wait_{}\\(\\) before"


def store_and_load(base, warp):
    ptx.tcgen05_st_32x32b(base, (0,), 1)
    ptx.tcgen05_ld_32x32b(base, 1)


def store_twice(base, warp):
    ptx.tcgen05_st_32x32b(base, (0,) * 4, 4)
    ptx.tcgen05_st_32x32b(base + 3, (0,), 1)


def store_over_a_load(base, warp):
    ptx.tcgen05_st_32x32b(base, (0,), 1)
    ptx.tcgen05_wait_st()
    ptx.tcgen05_ld_32x32b(base, 1)
    ptx.tcgen05_st_32x32b(base, (0,), 1)


@pytest.mark.parametrize(
    ("error", "text", "body"),
    [
        (sim.EarlyRead, OWN.format("st"), store_and_load),
        (sim.EarlyOverwrite, OWN.format("st"), store_twice),
        (sim.EarlyOverwrite, OWN.format("ld"), store_over_a_load),
    ],
)
def test_a_warp_waits_for_itself(error, text, body):
    fails(error, text, body)


def test_other_lanes_need_no_wait():
    def body(base, warp):
        for half in range(2):
            ptx.tcgen05_st_16x64b(base + (16 * half << 16), (0,), 1)
        ptx.tcgen05_wait_st()

    run(body)


STEPS = ("wait", "before", "barrier", "after")


def exchange(missing, load_first):
    """Let warp 0 access what warp 4 does then, with the steps between but for one."""

    def access(load, at):
        if load:
            ptx.tcgen05_ld_32x32b(at, 1)
        else:
            ptx.tcgen05_st_32x32b(at, (1,), 1)

    def body(base, warp):
        barrier = tma.shared_barrier()
        if warp == 0:
            ptx.tcgen05_st_32x32b(base, (0,), 1)
            ptx.tcgen05_wait_st()
            ptx.tcgen05_fence_before_thread_sync()
            if cuda.laneid == 0:
                barrier.init(32)
        cuda.syncthreads()
        ptx.tcgen05_fence_after_thread_sync()
        if warp == 0:
            access(load_first, base)
            if missing != "wait":
                (ptx.tcgen05_wait_ld if load_first else ptx.tcgen05_wait_st)()
            if missing != "before":
                ptx.tcgen05_fence_before_thread_sync()
            barrier.arrive()
        elif warp == 4:
            if missing != "barrier":
                barrier.wait(0)
            if missing != "after":
                ptx.tcgen05_fence_after_thread_sync()
            access(not load_first, base)
            (ptx.tcgen05_wait_st if load_first else ptx.tcgen05_wait_ld)()

    return body


SAID = {
    "wait": r"warp 0 there is known to be over: it must execute tcgen05_wait_{}\(\), then",
    "before": r"must execute tcgen05_fence_before_thread_sync\(\) between that and",
    "after": r"must execute tcgen05_fence_after_thread_sync\(\) after the wait",
}


@pytest.mark.parametrize("load_first", [False, True])
@pytest.mark.parametrize("missing", ["wait", "before", "after", None])
def test_a_warp_waits_for_another(missing, load_first):
    body = exchange(missing, load_first)
    for seed in range(3):
        sim.seed(seed)
        if missing is None:
            run(body, threads=160)
            continue
        early = sim.EarlyOverwrite if load_first else sim.EarlyRead
        error = early if missing == "wait" else sim.MissingFence
        fails(error, SAID[missing].format("ld" if load_first else "st"), body, threads=160)


@pytest.mark.parametrize("load_first", [False, True])
def test_without_a_barrier_it_is_found_in_any_order(load_first):
    said = set()
    for seed in range(8):
        sim.seed(seed)
        with pytest.raises(sim.SimulatorError, match="known to be over") as caught:
            run(exchange("barrier", load_first), threads=160)
        said.add(type(caught.value))
    assert said & {sim.EarlyOverwrite, sim.EarlyRead}


# ------------------------------------------------------------------------------- commit


def commit(waits=True, lanes=1, count=1, multicast=None, repeat=1):
    """Let warp 0 store and commit, and warp 4 wait and load; return what it gets."""
    out = np.zeros(32, np.uint32)

    def body(base, warp):
        barrier = tma.shared_barrier()
        if cuda.threadIdx.x == 0:
            barrier.init(count)
        cuda.syncthreads()
        if warp == 0:
            ptx.tcgen05_st_32x32b(base, (cuda.laneid,), 1)
            if waits:
                ptx.tcgen05_wait_st()
            for _ in range(repeat):
                if cuda.laneid < lanes:
                    ptx.tcgen05_commit(barrier, 1, multicast)
        elif warp == 4:
            barrier.wait(0)
            ptx.tcgen05_fence_after_thread_sync()
            values = ptx.tcgen05_ld_32x32b(base, 1)
            ptx.tcgen05_wait_ld()
            out[cuda.laneid] = values[0]

    run(body, threads=160)
    return out


def test_a_commit_tells_what_its_thread_has_waited_for():
    for seed in range(5):
        sim.seed(seed)
        np.testing.assert_array_equal(commit(), np.arange(32))
    np.testing.assert_array_equal(commit(multicast=1), np.arange(32))


def test_a_commit_does_not_wait_for_stores():
    for seed in range(5):
        sim.seed(seed)
        with pytest.raises(sim.EarlyRead, match=r"warp 0 .* it must execute tcgen05_wait_st\(\)"):
            commit(waits=False)


def test_a_commit_by_all_lanes_arrives_32_times():
    with pytest.raises(
        sim.UnfinishedCopy, match="no thread has waited for the arrival of the last"
    ):
        commit(lanes=32, count=31)


def test_a_commit_lands_late():
    states = set()

    def body(base, warp):
        barrier = tma.shared_barrier()
        if cuda.laneid == 0:
            barrier.init(1)
            ptx.tcgen05_commit(barrier, 1)
            states.add(barrier.test_wait(0))
            barrier.wait(0)

    for seed in range(20):
        sim.seed(seed)
        run(body)
    assert states == {True, False}


def test_a_commit_that_nobody_has_waited_for():
    text = (
        r"no thread has waited for the arrival of the last tcgen05_commit of thread \(0, 0, 0\) of "
        r"block \(0, 0, 0\) \(warp 0 lane 0\) on mbarrier at \d+ \(issued at "
        r"test_tensor_memory.py:\d+\): wait for its phase before the end"
    )
    for seed in range(5):
        sim.seed(seed)
        with pytest.raises(sim.UnfinishedCopy, match=text):
            commit(count=2, repeat=3)


def test_a_commit_to_a_barrier_that_is_gone():
    def body(base, warp):
        barrier = tma.shared_barrier()
        if cuda.laneid == 0:
            barrier.init(2)
            ptx.tcgen05_commit(barrier, 1)
            barrier.inval()
        for _ in range(200):
            cuda.nanosleep(1)

    found = set()
    for seed in range(10):
        sim.seed(seed)
        with pytest.raises((sim.BarrierMisuse, sim.UnfinishedCopy)) as caught:
            run(body)
        found.add(type(caught.value))
    assert sim.BarrierMisuse in found


def test_a_commit_to_the_blocks_of_a_mask():
    arrived = []

    @cuda.jit
    @tma.cluster(4)
    def kernel():
        barrier, rank = tma.shared_barrier(), ptx.cluster_ctarank()
        if cuda.threadIdx.x == 0:
            barrier.init(1)
        tma.cluster_sync()
        if rank == 0 and cuda.threadIdx.x == 0:
            ptx.tcgen05_commit(barrier, 1, 0b1011)
        if rank != 2:
            barrier.wait(0)
            arrived.append(rank)
        tma.cluster_sync()
        assert (sim.thread.current().cta.barriers[barrier.address].model.phase == 0) == (rank == 2)

    kernel[4, 32]()
    assert {*arrived} == {0, 1, 3}


def test_a_commit_to_another_block():
    @cuda.jit
    @tma.cluster(2)
    def kernel():
        barrier, rank = tma.shared_barrier(), ptx.cluster_ctarank()
        if cuda.threadIdx.x == 0:
            barrier.init(1)
        tma.cluster_sync()
        if rank == 0 and cuda.threadIdx.x == 0:
            ptx.tcgen05_commit(ptx.mapa(barrier, 1), 1)
        if rank == 1:
            barrier.wait(0)
        tma.cluster_sync()

    kernel[2, 32]()


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (0, "multicast is 0b0; its bits are ranks of the cluster, which has the blocks 0 to 0"),
        (2, "tcgen05_commit: multicast is 0b10; its bits are ranks of the cluster, which has"),
        (1 << 16, "multicast is 0b10000000000000000; its bits are ranks of the cluster"),
        (-1, "multicast is -0b1; its bits are ranks of the cluster"),
    ],
)
def test_a_commit_to_blocks_that_there_are_not(mask, text):
    with pytest.raises(sim.BadOperand, match=text):
        commit(multicast=mask)
