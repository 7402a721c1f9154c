"""Reductions, copies within a cluster, multicast and prefetches: values and errors."""

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import ptx, simulator
from numba_tma import simulator as sim
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.reference import reference_reduce, reference_tile
from numba_tma.ptx.reduce import ClusterReduction, GlobalReduction

SEEDS = range(12)
NUMPY = {
    "u32": np.uint32, "s32": np.int32, "u64": np.uint64, "s64": np.int64, "b32": np.uint32,
    "b64": np.uint64, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32,
    "f64": np.float64,
}  # fmt: skip
FORMULAS = {
    "add": lambda a, b: a + b,
    "min": lambda a, b: np.where(a < b, a, b),
    "max": lambda a, b: np.where(a > b, a, b),
    "inc": lambda a, b: np.where(a >= b, a.dtype.type(0), a + a.dtype.type(1)),
    "dec": lambda a, b: np.where((a == 0) | (a > b), b, a - a.dtype.type(1)),
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}


def choices(alias):
    return alias.__args__


def values(numpy, count, seed):
    rng = np.random.default_rng(seed)
    if np.dtype(numpy).kind in "ui":
        near = rng.integers(0, 5, count)
        far = rng.integers(0, 256, count * np.dtype(numpy).itemsize, np.uint8).view(numpy)
        return np.where(rng.random(count) < 0.5, near.astype(numpy), far)
    return rng.integers(-50, 50, count).astype(numpy)  # sums of these are exact


def wait(barrier, parity=0):
    while not ptx.mbarrier_try_wait_parity(barrier, parity):
        pass


# ---------------------------------------------------------------------- to global memory


@cuda.jit
def reduce_bulk(total, operands, operation):
    """Each thread combines its row of `operands` with the total."""
    size, thread = total.size, cuda.threadIdx.x
    tile = sim.allocate_shared("tile", 4 * total.nbytes, 128) + thread * total.nbytes
    sim.shared_write(tile, np.asarray(operands[thread]))
    ptx.fence_proxy_async()
    ptx.cp_reduce_async_bulk_store(total, tile, size * total.itemsize, operation)
    ptx.cp_async_bulk_commit_group()
    ptx.cp_async_bulk_wait_group(0)


@pytest.mark.parametrize("operation", choices(GlobalReduction))
def test_bulk_reductions(operation):
    name, *_, kind = operation.split(".")
    old, operands = values(NUMPY[kind], 32, 1), values(NUMPY[kind], 32, 2)
    total = old.copy()
    reduce_bulk[1, 1](total, operands[None], operation)
    expected = FORMULAS[name](old, operands).astype(old.dtype)
    np.testing.assert_array_equal(total.view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize("operation", ["add.u32", "add.noftz.bf16", "max.s64", "xor.b32"])
def test_no_contribution_of_many_threads_is_lost(operation):
    name, *_, kind = operation.split(".")
    for seed in SEEDS:
        sim.seed(seed)
        total, operands = values(NUMPY[kind], 16, 3), values(NUMPY[kind], 64, seed).reshape(4, 16)
        expected = total
        for row in operands:
            expected = FORMULAS[name](expected, row).astype(total.dtype)
        total = total.copy()
        reduce_bulk[1, 4](total, operands, operation)
        np.testing.assert_array_equal(total.view(np.uint8), expected.view(np.uint8))


PAIRS = [
    (name, operation)
    for name in ("u32", "i32", "u64", "i64", "f16", "bf16", "f32", "f64")
    for operation in as_dtype(name).reductions
]


def reduction_of(TILE):
    @cuda.jit
    def kernel(y, x, origins, op):
        tile = tma.shared_tile(TILE)
        barrier = tma.shared_barrier()
        barrier.init(1)
        tma.fence_mbarrier_init()
        for i, origin in enumerate(origins):
            barrier.arrive_expect_tx(TILE.nbytes)
            x.load(tile, (0, 0), barrier)
            barrier.wait(i % 2)
            y.reduce(tile, origin, op)
            ptx.cp_async_bulk_commit_group()
            ptx.cp_async_bulk_wait_group(0)

    return kernel


@pytest.mark.parametrize("name, op", PAIRS)
def test_tensor_reductions(name, op):
    dtype = as_dtype(name)
    tile = tma.Tile((4, 32 // dtype.itemsize), dtype, tma.Swizzle.B32)
    shape = (10, 64 // dtype.itemsize)
    old = values(dtype.numpy, 10 * shape[1], 4).reshape(shape)
    x = values(dtype.numpy, tile.size, 5).reshape(tile.shape)
    step = 16 // dtype.itemsize
    origins = [(0, 0), (7, step), (8, shape[1] - step), (20, 0)]
    y = old.copy()
    reduction_of(tile)[1, 1](tma.tensor_map(y, tile), tma.tensor_map(x, tile), origins, op)
    expected = old.copy()
    for row, column in origins:
        part = expected[row : row + tile.shape[0], column : column + tile.shape[1]]
        operand = x[: part.shape[0], : part.shape[1]]
        part[...] = FORMULAS[op](part, operand).astype(old.dtype)
    np.testing.assert_array_equal(y.view(np.uint8), expected.view(np.uint8))
    assert (y != old).any()
    again = old.copy()
    for origin in origins:
        reference_reduce(again, reference_tile(x, tile, (0, 0)), tile, origin, op)
    np.testing.assert_array_equal(y.view(np.uint8), again.view(np.uint8))


# ------------------------------------------------------------------- within the cluster


@cuda.jit
def through_the_cluster(x, total, operation, seen):
    """Load x, give it to this very block by way of the cluster, and look."""
    tile, there = tma.shared_tile(TILE), tma.shared_tile(TILE)
    full, given = tma.shared_barrier(), tma.shared_barrier()
    full.init(1)
    given.init(1)
    tma.fence_mbarrier_init()
    full.arrive_expect_tx(2 * TILE.nbytes)
    ptx.cp_async_bulk_load(tile, x, TILE.nbytes, full)
    ptx.cp_async_bulk_load(there, total, TILE.nbytes, full)
    full.wait(0)
    given.arrive_expect_tx(TILE.nbytes)
    target = simulator.cluster.mapa(there.address, 0)
    barrier = simulator.cluster.mapa(given.address, 0)
    if operation is None:
        ptx.cp_async_bulk_copy_cluster(target, tile, TILE.nbytes, barrier)
    else:
        ptx.cp_reduce_async_bulk_cluster(target, tile, TILE.nbytes, barrier, operation)
    given.wait(0)
    tile[0] = 0  # the source has been read
    seen[:] = [there[i] for i in range(TILE.size)]


TILE = tma.Tile(32, "u64")


@pytest.mark.parametrize("operation", [None, *choices(ClusterReduction)])
def test_copies_and_reductions_within_a_cluster(operation):
    kind = "u64" if operation is None else operation.split(".")[1]
    numpy = NUMPY[kind]
    count = TILE.nbytes // np.dtype(numpy).itemsize
    x, total = values(numpy, count, 6), values(numpy, count, 7)
    expected = x if operation is None else FORMULAS[operation.split(".")[0]](total, x)
    for seed in SEEDS:
        sim.seed(seed)
        seen = np.zeros(TILE.size, np.uint64)
        through_the_cluster[1, 1](x, total, operation, seen)
        np.testing.assert_array_equal(seen.view(np.uint8), expected.view(np.uint8))


class Cluster:
    """A block of 4 threads with a tile of 64 words, a word each of its own, and two barriers."""

    def __init__(self, fence=True):
        self.t = cuda.threadIdx.x
        self.tile = sim.allocate_shared("tile", 256, 128)
        self.words = sim.allocate_shared("words", 4 * 256, 128)
        self.own = self.words + 256 * self.t
        self.full = sim.allocate_shared("full", 8, 8)
        self.other = sim.allocate_shared("other", 8, 8)
        sim.label(self.tile, "sum")
        sim.label(self.words, "source")
        if self.t == 0:
            sim.mbarrier_init(self.full, 1)
            sim.mbarrier_init(self.other, 1)
            sim.fence_mbarrier_init()
            sim.shared_write(self.tile, np.zeros(64, np.uint32))
        sim.shared_write(self.own, np.full(64, self.t + 1, np.uint32))
        if fence:
            sim.fence_proxy_async()
        cuda.syncthreads()

    def expect(self, nbytes, barrier=None):
        sim.mbarrier_arrive_expect_tx(self.full if barrier is None else barrier, nbytes)

    def reduce(self, barrier=None):
        barrier = self.full if barrier is None else barrier
        sim.cp_reduce_async_bulk_cluster(self.tile, self.own, 256, barrier, "add.u32")

    def copy(self, barrier=None):
        sim.cp_async_bulk_copy_cluster(self.tile, self.own, 256, barrier or self.full)

    def wait(self, barrier=None):
        while not sim.mbarrier_try_wait_parity(self.full if barrier is None else barrier, 0):
            pass

    def read(self):
        return sim.shared_read(self.tile, np.dtype(np.uint32), 64)


def run(body, threads=4, seeds=SEEDS, fence=True):
    for seed in seeds:
        sim.seed(seed)
        cuda.jit(lambda: body(Cluster(fence)))[1, threads]()


def test_reductions_of_many_threads_may_be_under_way_together():
    def body(c):
        if c.t == 0:
            c.expect(4 * 256)
        c.reduce()
        c.wait()
        assert (c.read() == 1 + 2 + 3 + 4).all()
        sim.shared_write(c.own, np.zeros(64, np.uint32))

    run(body)


def test_reductions_that_complete_on_different_barriers():
    def body(c):
        if c.t == 0:
            c.expect(512)
            c.expect(512, c.other)
        c.reduce(c.full if c.t < 2 else c.other)
        c.wait()
        c.wait(c.other)
        assert (c.read() == 10).all()

    run(body)


MISUSE = {
    "read before the reduction": (
        lambda c: (c.expect(256), c.reduce(), c.read()),
        sim.EarlyRead,
        "sum, bytes 0 to 255: read before a reduction into them is known to be complete. It "
        "completes on mbarrier",
    ),
    "write before the reduction": (
        lambda c: (c.expect(256), c.reduce(), sim.shared_write(c.tile, np.uint32(1))),
        sim.EarlyOverwrite,
        "sum, bytes 0 to 3: overwritten before a reduction into them",
    ),
    "load over the reduction": (
        lambda c: (c.expect(512), c.reduce(), c.copy()),
        sim.EarlyOverwrite,
        "overwritten by a load before a reduction into them",
    ),
    "store of the reduction": (
        lambda c: (c.expect(256), c.reduce(), sim.cp_async_bulk_store(Y, c.tile)),
        sim.EarlyRead,
        "stored before a reduction into them",
    ),
    "one of two barriers": (
        lambda c: (
            c.expect(256), c.expect(256, c.other), c.reduce(), c.reduce(c.other), c.wait(), c.read()
        ),
        sim.EarlyRead,
        "read before a reduction into them",
    ),
    "reduction of what is loaded": (
        lambda c: (c.expect(512), c.copy(), c.reduce()),
        sim.EarlyOverwrite,
        "changed by a reduction before the load that fills them is known to be complete",
    ),
    "source written": (
        lambda c: (c.expect(256), c.copy(), sim.shared_write(c.own, np.uint32(1))),
        sim.EarlyOverwrite,
        "source, bytes 0 to 3: a write to bytes that a copy to a block of the cluster may still "
        "be reading",
    ),
    "source loaded": (
        lambda c: (c.expect(256), c.copy(), sim.cp_async_bulk_load(c.own, Y, c.other)),
        sim.EarlyOverwrite,
        "a load into bytes that a copy to a block of the cluster may still be reading",
    ),
    "nobody wrote the source": (
        lambda c: sim.cp_async_bulk_copy_cluster(
            c.tile, sim.allocate_shared(T, 256, 128), 256, c.full
        ),
        sim.UninitializedRead,
        "copied to another block, but it was never written",
    ),
    "nobody wrote the destination": (
        lambda c: sim.cp_reduce_async_bulk_cluster(
            sim.allocate_shared(T, 256, 128), c.own, 256, c.full, "add.u32"
        ),
        sim.UninitializedRead,
        "a reduction combines them with its source, but not all of them were written",
    ),
    "no fence": (
        lambda c: (sim.shared_write(c.own, np.uint32(1)), c.copy()),
        sim.MissingFence,
        "source, bytes 0 to 15: a copy reads bytes that thread (0, 0, 0)",
    ),
    "no fence of the destination": (
        lambda c: (sim.shared_write(c.tile, np.uint32(1)), c.reduce()),
        sim.MissingFence,
        "sum, bytes 0 to 15: a reduction overwrites bytes that",
    ),
    "size": (
        lambda c: sim.cp_async_bulk_copy_cluster(c.tile, c.own, 24, c.full),
        sim.BadOperand,
        "cp_async_bulk_copy_cluster: the size is 24 bytes",
    ),
    "destination": (
        lambda c: sim.cp_async_bulk_copy_cluster(c.tile + 8, c.own, 16, c.full),
        sim.BadOperand,
        "dst is shared address",
    ),
    "source past the end": (
        lambda c: sim.cp_async_bulk_copy_cluster(c.tile, c.words + 1008, 32, c.full),
        sim.BadOperand,
        "src: shared bytes",
    ),
    "bytes that nobody expects": (
        lambda c: (sim.mbarrier_arrive(c.other), c.expect(16), c.copy(), c.wait()),
        sim.WrongByteCount,
        "240 bytes more than the phase expects",
    ),
    "no wait": (lambda c: (c.expect(256), c.copy()), sim.UnfinishedCopy, "no thread has waited"),
}  # fmt: skip
Y = np.zeros(256, np.uint8)
T = tma.Tile(64, "u32")  # memory of which reads before a write are reported


@pytest.mark.parametrize("name", MISUSE)
def test_misuse_within_a_cluster(name):
    body, kind, text = MISUSE[name]
    with pytest.raises(kind) as caught:
        run(body, threads=1, seeds=[0])
    assert text in str(caught.value)


# --------------------------------------------------------------------- refused operands


def one_thread(body, *args):
    def kernel(*args):
        tile = tma.shared_tile(BOX)
        barrier = tma.shared_barrier()
        barrier.init(1)
        tma.fence_mbarrier_init()
        body(tile, barrier, *args)

    cuda.jit(kernel)[1, 1](*args)


BOX = tma.Tile((8, 16), "f32")
MAP = tma.tensor_map(np.zeros((64, 16), np.float32), BOX)
SLICE = tma.tensor_map(np.zeros((64, 16), np.float32), tma.Tile((4, 16), "f32"))
X = np.zeros(64, np.uint8)

REFUSED = {
    "operation of the type": (
        lambda t, b: MAP.reduce(t, (0, 0), "min"),
        sim.BadOperand,
        "cp_reduce_async_bulk_tensor: the copy engine has no reduction 'min' of f32",
    ),
    "operation": (
        lambda t, b: MAP.reduce(t, (0, 0), "mul"),
        sim.BadOperand,
        "operation=...) is part of the instruction: one of 'add', 'min'",
    ),
    "bulk operation": (
        lambda t, b: ptx.cp_reduce_async_bulk_store(X, t, 16, "add.f16"),
        sim.BadOperand,
        "not 'add.f16'",
    ),
    "cluster operation": (
        lambda t, b: ptx.cp_reduce_async_bulk_cluster(t.address, t, 16, b.address, "add.f32"),
        sim.BadOperand,
        "not 'add.f32'",
    ),
    "before the tensor": (
        lambda t, b: MAP.reduce(t, (-1, 0), "add"),
        sim.BadCoordinate,
        "a reduction starts inside or past the tensor, never before it",
    ),
    "prefetch off 16 bytes": (
        lambda t, b: MAP.prefetch_tile((0, 1)),
        sim.BadCoordinate,
        "cp_async_bulk_prefetch_tensor: the innermost coordinate (axis 1) is 1",
    ),
    "prefetch with three coordinates": (
        lambda t, b: MAP.prefetch_tile((0, 0, 0)),
        sim.BadOperand,
        "3 coordinates for TensorMap(",
    ),
    "prefetch of 24 bytes": (
        lambda t, b: ptx.cp_async_bulk_prefetch(X, 24),
        sim.BadOperand,
        "cp_async_bulk_prefetch: the size is 24 bytes",
    ),
    "prefetch of a part": (
        lambda t, b: ptx.cp_async_bulk_prefetch(X[8:], 16),
        sim.BadOperand,
        "src starts 8 bytes into its allocation",
    ),
    "multicast to nobody": (
        lambda t, b: MAP.load(t, (0, 0), b, multicast=0),
        sim.BadOperand,
        "cp_async_bulk_tensor_load: multicast is 0b0; its bits are ranks of the cluster",
    ),
    "multicast past the cluster": (
        lambda t, b: ptx.cp_async_bulk_load(t, X, 64, b, multicast=0b11),
        sim.BadOperand,
        "cp_async_bulk_load: multicast is 0b11; its bits are ranks of the cluster, which has the "
        "blocks 0 to 0",
    ),
    "rank": (
        lambda t, b: tma.load_partitioned(SLICE, t, (0, 0), b, 2),
        sim.BadOperand,
        "load_partitioned: rank is 2; the tile has the slices 0 to 1",
    ),
    "slices without a cluster": (
        lambda t, b: tma.load_partitioned(SLICE, t, (0, 0), b, 0),
        sim.BadOperand,
        "multicast is 0b11",
    ),
    "no slice": (
        lambda t, b: tma.load_partitioned(MAP, tma.shared_tile(T), (0, 0), b, 0),
        sim.BadOperand,
        "load_partitioned: Tile((64,), u32, NONE) is not cut along its first axis",
    ),
    "rows of a tiled map": (
        lambda t, b: ptx.cp_async_bulk_tensor_gather4(t, MAP, 0, 1, 2, 3, 0, b),
        sim.BadOperand,
        "maps of gather_map are copied by row numbers",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    body, kind, text = REFUSED[name]
    with pytest.raises(kind) as caught:
        one_thread(body)
    assert text in str(caught.value)


def test_prefetches_and_a_cluster_of_one_block():
    x = np.arange(64 * 16, dtype=np.float32).reshape(64, 16)

    def body(tile, barrier, x_map, x):
        x_map.prefetch_tile((-3, 0), tma.CachePolicy.EVICT_LAST)
        ptx.cp_async_bulk_prefetch(x, 64)
        barrier.arrive_expect_tx(2 * BOX.nbytes)
        x_map.load(tile, (8, 0), barrier, multicast=1)
        tma.load_partitioned(x_map, tma.shared_tile(BOX), (8, 0), barrier, 0)
        barrier.wait(0)
        for row in range(8):
            for column in range(16):
                assert tile[row, column] == x[8 + row, column]

    one_thread(body, tma.tensor_map(x, BOX), x)
