"""Clusters: their shapes and registers, their barrier, and what blocks write to each other."""

import functools

import numpy as np
import pytest
from cuda.bindings import driver
from numba import cuda, types

import numba_tma as tma
from numba_tma import ptx
from tests.gpu.worker import on_gpu

SIZES = (1, 2, 4, 8)
SHAPES = (*((n, 1, 1) for n in SIZES), (2, 2, 1), (1, 2, 4), (2, 1, 2), (1, 8, 1), (2, 2, 2))
#: Polls until a wait is given up: far more than anything here takes.
POLLS = 1 << 22


@cuda.jit(device=True)
def wait(barrier, parity):
    """Return whether a phase completes in time; a mistake must not become a hang."""
    for _ in range(POLLS):
        if barrier.test_wait(parity):
            return True
    return False


def filled(shape, dtype=np.int32):
    """Return a device array that is nowhere what a test expects."""
    return cuda.to_device(np.full(shape, 99, dtype))


def random(shape, dtype, seed=0):
    high = 2 ** (8 * np.dtype(dtype).itemsize)
    return np.random.default_rng(seed).integers(0, high, shape, np.uint64).astype(dtype)


# -------------------------------------------------------------------- shapes, registers


@functools.cache
def registers(size):
    """Return a kernel in which every block writes down its registers."""

    def kernel(out):
        i = (cuda.blockIdx.z * cuda.gridDim.y + cuda.blockIdx.y) * cuda.gridDim.x + cuda.blockIdx.x
        out[i, 0] = ptx.cluster_ctaid_x()
        out[i, 1] = ptx.cluster_ctaid_y()
        out[i, 2] = ptx.cluster_ctaid_z()
        out[i, 3] = ptx.cluster_nctaid_x()
        out[i, 4] = ptx.cluster_nctaid_y()
        out[i, 5] = ptx.cluster_nctaid_z()
        out[i, 6] = ptx.clusterid_x()
        out[i, 7] = ptx.clusterid_y()
        out[i, 8] = ptx.clusterid_z()
        out[i, 9] = ptx.nclusterid_x()
        out[i, 10] = ptx.nclusterid_y()
        out[i, 11] = ptx.nclusterid_z()
        out[i, 12] = ptx.cluster_ctarank()
        out[i, 13] = ptx.cluster_nctarank()
        out[i, 14] = ptx.is_explicit_cluster()

    return cuda.jit(tma.cluster(size)(kernel) if size else kernel)


def expected_registers(size, grid):
    extents = np.array(size or (1, 1, 1))
    rows = []
    for z, y, x in np.ndindex(*reversed(grid)):
        inside, outside = np.divmod((x, y, z), extents)[::-1]
        rank = inside @ (1, extents[0], extents[0] * extents[1])
        rest = [rank, extents.prod(), size is not None]
        rows.append([*inside, *extents, *outside, *(grid // extents), *rest])
    return np.array(rows)


@pytest.mark.parametrize("size", [None, *SHAPES])
@on_gpu
def test_registers(size):
    for factors in ((1, 1, 1), (3, 1, 1), (2, 3, 5)):
        grid = tuple(int(n * f) for n, f in zip(size or (1, 1, 1), factors))
        out = filled((int(np.prod(grid)), 15))
        registers(size)[grid, 1](out)
        np.testing.assert_array_equal(out.copy_to_host(), expected_registers(size, grid))


@on_gpu
def test_a_grid_that_is_not_divisible_is_refused_and_costs_nothing():
    out = filled((4, 15))
    with pytest.raises(ValueError, match="3 blocks along x are not a multiple of 2: launch 4"):
        registers((2, 1, 1))[3, 1](out)
    np.testing.assert_array_equal(out.copy_to_host(), 99)
    registers((2, 1, 1))[4, 1](out)  # the context is as good as before
    np.testing.assert_array_equal(
        out.copy_to_host(), expected_registers((2, 1, 1), np.array((4, 1, 1)))
    )


# -------------------------------------------------------------------------- the barrier


@functools.cache
def ring(size, arrive=None, leave=None):
    """Return a kernel: in each round every thread takes its number from the next block, plus 1."""

    @cuda.jit
    @tma.cluster(size)
    def kernel(rounds, out):
        numbers = cuda.shared.array(96, types.int32)
        thread, rank = cuda.threadIdx.x, ptx.cluster_ctarank()
        number = 1000 * cuda.blockIdx.x + thread
        source = ptx.mapa(numbers, (rank + 1) % ptx.cluster_nctarank()) + 4 * ((thread + 1) % 96)
        for k in range(rounds):
            cuda.nanosleep((thread * 7 + rank * 13 + k * 3) % 11 * 20)
            numbers[thread] = number
            ptx.barrier_cluster_arrive(arrive)
            ptx.barrier_cluster_wait(leave)
            number = types.int32(ptx.ld_shared_cluster_u32(source)) + 1
            ptx.barrier_cluster_arrive(arrive)
            ptx.barrier_cluster_wait(leave)
        out[cuda.blockIdx.x, thread] = number

    return kernel


def check_ring(kernel, size, rounds=97, stream=0):
    out = filled((16, 96))
    cuda.synchronize()
    kernel[16, 96, stream](rounds, out)
    block, thread = np.mgrid[:16, :96]
    source = block // size * size + (block % size + rounds) % size
    expected = 1000 * source + (thread + rounds) % 96 + rounds
    cuda.synchronize()
    np.testing.assert_array_equal(out.copy_to_host(), expected)


@pytest.mark.parametrize("size", SIZES)
@on_gpu
def test_the_barrier_orders_the_memory_of_the_cluster(size):
    for rounds in (0, 1, 2, 97):
        check_ring(ring(size), size, rounds)


@pytest.mark.parametrize(
    ("arrive", "leave"),
    [
        ("release", "acquire"),
        ("aligned", "aligned"),
        ("release.aligned", "acquire.aligned"),
        ("release", None),
    ],
)
@on_gpu
def test_the_barrier_with_its_words(arrive, leave):
    check_ring(ring(4, arrive, leave), 4)


@cuda.jit
@tma.cluster(4)
def meet_relaxed(rounds, counter, out):
    """Count arrivals with atomics, which need no ordering to be seen."""
    for k in range(rounds):
        cuda.atomic.add(counter, cuda.blockIdx.x // 4, 1)
        cuda.threadfence()
        if k % 2:
            ptx.barrier_cluster_arrive("relaxed")
            ptx.barrier_cluster_wait()
        else:
            ptx.barrier_cluster_arrive("relaxed.aligned")
            ptx.barrier_cluster_wait("aligned")
        seen = cuda.atomic.add(counter, cuda.blockIdx.x // 4, 0)
        if seen < 4 * 64 * (k + 1):
            out[cuda.grid(1)] += 1
        tma.cluster_sync()


@on_gpu
def test_a_relaxed_barrier_still_waits_for_everybody():
    out = cuda.to_device(np.zeros(8 * 64, np.int32))
    counter = cuda.to_device(np.zeros(2, np.int32))
    meet_relaxed[8, 64](50, counter, out)
    np.testing.assert_array_equal(counter.copy_to_host(), 50 * 4 * 64)
    np.testing.assert_array_equal(out.copy_to_host(), 0)


@cuda.jit
@tma.cluster(2)
def sync_after_some_left(out):
    thread = cuda.threadIdx.x
    if thread >= 32 and ptx.cluster_ctarank() == 1:
        return
    tma.cluster_sync()
    out[cuda.grid(1)] = thread


@on_gpu
def test_threads_that_exited_are_not_waited_for():
    out = filled(4 * 96)
    sync_after_some_left[4, 96](out)
    expected = np.tile(np.arange(96), (4, 1))
    expected[1::2, 32:] = 99
    np.testing.assert_array_equal(out.copy_to_host(), expected.ravel())


# --------------------------------------------------------------- loads, stores, addresses


@functools.cache
def addresses(size):
    @cuda.jit
    @tma.cluster(size)
    def kernel(out):
        numbers, barrier = cuda.shared.array(8, types.float64), tma.shared_barrier()
        for rank in range(size):
            out[cuda.blockIdx.x, rank, 0] = ptx.getctarank(ptx.mapa(numbers, rank))
            out[cuda.blockIdx.x, rank, 1] = ptx.getctarank(ptx.mapa(barrier, rank))
            out[cuda.blockIdx.x, rank, 2] = ptx.getctarank(barrier.address)
        tma.cluster_sync()

    return kernel


@pytest.mark.parametrize("size", SIZES)
@on_gpu
def test_addresses(size):
    out = filled((8, size, 3))
    addresses(size)[8, 1](out)
    found = out.copy_to_host()
    for column in (0, 1):
        np.testing.assert_array_equal(found[..., column], np.tile(np.arange(size), (8, 1)))
    np.testing.assert_array_equal(found[..., 2], (np.arange(8) % size)[:, None].repeat(size, 1))


@cuda.jit
@tma.cluster((2, 2))
def pass_on(words, longs, floats, words_out, longs_out, floats_out):
    """Write every width to one block of the cluster, and read it from another."""
    quads = cuda.shared.array((32, 4), types.uint32, alignment=16)
    single = cuda.shared.array(32, types.uint32)
    double = cuda.shared.array(32, types.uint64)
    real = cuda.shared.array(32, types.float32)
    thread, rank = cuda.threadIdx.x, ptx.cluster_ctarank()
    block = cuda.blockIdx.y * cuda.gridDim.x + cuda.blockIdx.x
    to, source = (rank + 1) % 4, (rank + 2) % 4
    tma.cluster_sync()
    w = words[block, thread]
    ptx.st_shared_cluster_v4_u32(ptx.mapa(quads, to) + 16 * thread, (w, w + 1, w + 2, w + 3))
    ptx.st_shared_cluster_u32(ptx.mapa(single, to) + 4 * thread, w ^ 5)
    ptx.st_shared_cluster_u64(ptx.mapa(double, to) + 8 * thread, longs[block, thread])
    ptx.st_shared_cluster_f32(ptx.mapa(real, to) + 4 * thread, floats[block, thread])
    tma.cluster_sync()
    a, b, c, d = ptx.ld_shared_cluster_v4_u32(ptx.mapa(quads, source) + 16 * thread)
    words_out[block, thread, 0] = a
    words_out[block, thread, 1] = b
    words_out[block, thread, 2] = c
    words_out[block, thread, 3] = d
    words_out[block, thread, 4] = ptx.ld_shared_cluster_u32(ptx.mapa(single, source) + 4 * thread)
    longs_out[block, thread] = ptx.ld_shared_cluster_u64(ptx.mapa(double, source) + 8 * thread)
    floats_out[block, thread] = ptx.ld_shared_cluster_f32(ptx.mapa(real, source) + 4 * thread)
    tma.cluster_sync()


@on_gpu
def test_every_width_of_loads_and_stores():
    grid = (4, 2)  # two clusters of 2 x 2
    words, longs = random((8, 32), np.uint32), random((8, 32), np.uint64, 1)
    floats = np.random.default_rng(2).standard_normal((8, 32), np.float32)
    out = filled((8, 32, 5), np.uint32), filled((8, 32), np.uint64), filled((8, 32), np.float32)
    pass_on[grid, 32](*map(cuda.to_device, (words, longs, floats)), *out)
    found = [array.copy_to_host() for array in out]
    writer = np.zeros(8, int)
    for y, x in np.ndindex(2, 4):
        rank = (x % 2 + y * 2 + 1) % 4  # what rank + 2 has was written by the rank before it
        writer[4 * y + x] = rank // 2 * 4 + x // 2 * 2 + rank % 2
    w = words[writer]
    expected = np.stack([w, w + 1, w + 2, w + 3, w ^ 5], axis=-1)
    np.testing.assert_array_equal(found[0], expected.astype(np.uint32))
    np.testing.assert_array_equal(found[1], longs[writer])
    np.testing.assert_array_equal(found[2], floats[writer])


@cuda.jit
@tma.cluster(2)
def add_to_both(out):
    """Add the block's rank + 1 to a word of both blocks, by every thread."""
    word = cuda.shared.array(1, types.uint32)
    if cuda.threadIdx.x == 0:
        word[0] = types.uint32(0xFFFFFFFF)  # the sum wraps
    tma.cluster_sync()
    for rank in range(2):
        ptx.red_shared_cluster_add_u32(ptx.mapa(word, rank), 1 + ptx.cluster_ctarank())
    tma.cluster_sync()
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = word[0]


@on_gpu
def test_a_reduction_adds_to_a_word_of_each_block():
    out = filled(8, np.uint32)
    add_to_both[8, 96](out)
    np.testing.assert_array_equal(out.copy_to_host(), 3 * 96 - 1)


# ------------------------------------------------------------------ asynchronous writes

MAILBOX = 16  #: words that a thread writes


@functools.cache
def mail(size):
    """Return a kernel whose threads write every width of st.async to the next block."""

    @cuda.jit
    @tma.cluster(size)
    def kernel(words, floats, out):
        box = cuda.shared.array((32, MAILBOX), types.uint32, alignment=16)
        barrier = tma.shared_barrier()
        thread, block, rank = cuda.threadIdx.x, cuda.blockIdx.x, ptx.cluster_ctarank()
        for i in range(MAILBOX):
            box[thread, i] = 7
        if thread == 0:
            barrier.init(1)
            tma.fence_mbarrier_init()
        tma.cluster_sync()
        there = ptx.mapa(box, (rank + 1) % size) + 4 * MAILBOX * thread
        full = ptx.mapa(barrier, (rank + 1) % size)
        for phase in range(3):
            if thread == 0:
                barrier.arrive_expect_tx(32 * 56)
            w = words[phase, block, thread]
            long = types.uint64(w) << types.uint64(32) | types.uint64(w ^ 1)
            ptx.st_async_b32(there, w, full)
            ptx.st_async_f32(there + 4, floats[phase, block, thread], full)
            ptx.st_async_b64(there + 8, long, full)
            ptx.st_async_v2_b32(there + 16, (w + 1, w + 2), full)
            ptx.st_async_v4_b32(there + 32, (w + 3, w + 4, w + 5, w + 6), full)
            ptx.st_async_v2_b64(there + 48, (long, ~long), full)
            if wait(barrier, phase % 2):
                for i in range(MAILBOX):
                    out[phase, block, thread, i] = box[thread, i]
            tma.cluster_sync()

    return kernel


@pytest.mark.parametrize("size", SIZES[1:])
@on_gpu
def test_st_async_of_every_width(size):
    words = random((3, 16, 32), np.uint32)
    floats = np.random.default_rng(1).standard_normal((3, 16, 32), np.float32)
    out = filled((3, 16, 32, MAILBOX), np.uint32)
    mail(size)[16, 32](cuda.to_device(words), cuda.to_device(floats), out)
    block = np.arange(16)
    sender = block // size * size + (block % size - 1) % size
    w, f = words[:, sender], floats[:, sender].view(np.uint32)
    low, seven = w ^ 1, np.full_like(w, 7)
    rows = [w, f, low, w, w + 1, w + 2, seven, seven, w + 3, w + 4, w + 5, w + 6, low, w, ~low, ~w]
    np.testing.assert_array_equal(out.copy_to_host(), np.stack(rows, axis=-1).astype(np.uint32))


REDUCTIONS = {
    "u32": ("inc", "dec", "min", "max", "add"),
    "s32": ("min", "max", "add"),
    "b32": ("and", "or", "xor"),
    "u64": ("add",),
}
DTYPES = {"u32": np.uint32, "s32": np.int32, "b32": np.uint32, "u64": np.uint64}


@functools.cache
def reduction(row, operation, size):
    """Return a kernel in which all other blocks of a cluster reduce into the words of block 0."""
    element = types.uint64 if row == "u64" else types.int32 if row == "s32" else types.uint32
    item = 8 if row == "u64" else 4
    instruction = getattr(ptx, f"red_async_{row}")

    @cuda.jit
    @tma.cluster(size)
    def kernel(first, values, out, rounds):
        words, barrier = cuda.shared.array(32, element), tma.shared_barrier()
        thread, block, rank = cuda.threadIdx.x, cuda.blockIdx.x, ptx.cluster_ctarank()
        words[thread] = first[block // size, thread]
        if thread == 0:
            barrier.init(1)
            tma.fence_mbarrier_init()
        tma.cluster_sync()
        if rank == 0:
            if thread == 0:
                barrier.arrive_expect_tx((size - 1) * rounds * 32 * item)
            if wait(barrier, 0):
                out[block // size, thread] = words[thread]
        else:
            there, full = ptx.mapa(words, 0) + item * thread, ptx.mapa(barrier, 0)
            for k in range(rounds):
                instruction(there, values[block, k, thread], full, operation)
        tma.cluster_sync()

    return kernel


def reduced(operation, first, values):
    """Return what NumPy makes of it; `values` has the reductions along its first axis."""
    result = first.copy()
    for value in values:
        if operation == "inc":
            result = np.where(result >= value, 0, result + 1).astype(np.uint32)
        elif operation == "dec":
            result = np.where((result == 0) | (result > value), value, result - 1).astype(np.uint32)
        else:
            names = {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}
            names |= {"min": "minimum", "max": "maximum"}
            result = getattr(np, names.get(operation, operation))(result, value)
    return result


@pytest.mark.parametrize(("row", "operation"), [(r, o) for r in REDUCTIONS for o in REDUCTIONS[r]])
@on_gpu
def test_red_async(row, operation):
    for size in SIZES[1:]:
        rounds, clusters = 5, 3
        first = random((clusters, 32), DTYPES[row], size)
        values = random((clusters * size, rounds, 32), DTYPES[row], size + 1)
        if operation in ("inc", "dec"):  # in no order: one limit per word, small enough to wrap
            first %= np.uint32(9)
            values[:] = 3 + np.arange(32) % 4
        out = filled((clusters, 32), DTYPES[row])
        kernel = reduction(row, operation, size)
        kernel[clusters * size, 32](cuda.to_device(first), cuda.to_device(values), out, rounds)
        found = out.copy_to_host()
        for c in range(clusters):
            applied = values[c * size + 1 : (c + 1) * size].reshape(-1, 32)
            np.testing.assert_array_equal(found[c], reduced(operation, first[c], applied))


@cuda.jit
@tma.cluster(8)
def count_hits(out):
    """All threads of 7 blocks hit one word of block 0."""
    word, barrier = cuda.shared.array(1, types.uint32), tma.shared_barrier()
    rank = ptx.cluster_ctarank()
    if cuda.threadIdx.x == 0:
        word[0] = 0
        barrier.init(1)
        tma.fence_mbarrier_init()
    tma.cluster_sync()
    if rank:
        ptx.red_async_u32(ptx.mapa(word, 0), rank, ptx.mapa(barrier, 0), "add")
    elif cuda.threadIdx.x == 0:
        barrier.arrive_expect_tx(7 * 256 * 4)
        if wait(barrier, 0):
            out[cuda.blockIdx.x // 8] = word[0]
    tma.cluster_sync()


@on_gpu
def test_reductions_of_many_threads_into_one_word():
    out = filled(4)
    count_hits[32, 256](out)
    np.testing.assert_array_equal(out.copy_to_host(), 256 * 28)


# ------------------------------------------------------------------------------ launches


@on_gpu
def test_on_a_stream():
    check_ring(ring(2), 2, stream=cuda.stream())


def call(function, *args):
    """Call a function of the driver; return what it gives besides its status."""
    status, *values = function(*args)
    assert status == driver.CUresult.CUDA_SUCCESS, status
    return values[0] if values else None


@on_gpu
def test_in_a_graph():
    kernel, out = registers((2, 2, 1)), filled((16, 15))
    kernel[(4, 4), 1](out)  # compile before the capture
    out.copy_to_device(np.full((16, 15), 99, np.int32))
    stream = cuda.stream()
    handle = driver.CUstream(int(stream))
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    cuda.synchronize()
    call(driver.cuStreamBeginCapture, handle, mode)
    kernel[(4, 4), 1, stream](out)
    graph = call(driver.cuStreamEndCapture, handle)
    np.testing.assert_array_equal(out.copy_to_host(), 99)  # it was captured, and has not run
    executable = call(driver.cuGraphInstantiate, graph, 0)
    call(driver.cuGraphLaunch, executable, handle)
    stream.synchronize()
    expected = expected_registers((2, 2, 1), np.array((4, 4, 1)))
    np.testing.assert_array_equal(out.copy_to_host(), expected)
    call(driver.cuGraphExecDestroy, executable)
    call(driver.cuGraphDestroy, graph)
