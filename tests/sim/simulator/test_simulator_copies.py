"""Copies: values, groups, and operands that are errors."""

import re

import numpy as np
import pytest
from numba import cuda

from numba_tma import simulator as sim
from numba_tma.backend import primitives
from numba_tma.host.layout import Swizzle, Tile
from numba_tma.host.reference import reference_store, reference_tile
from numba_tma.host.tensor_map import tensor_map

SEEDS = range(8)


def wait(barrier, parity=0):
    while not sim.mbarrier_try_wait_parity(barrier, parity):
        pass


def one_thread(body, *args):
    """Run `body(shared, barrier, *args)` with 4 KiB of shared memory and a barrier of count 1."""

    def kernel(*args):
        shared = sim.allocate_shared("shared", 4096, 1024)
        barrier = sim.allocate_shared("barrier", 8, 8)
        sim.mbarrier_init(barrier, 1)
        sim.fence_mbarrier_init()
        body(shared, barrier, *args)

    cuda.jit(kernel)[1, 1](*args)


def store_and_wait(copy):
    sim.fence_proxy_async()
    copy()
    sim.cp_async_bulk_commit_group()
    sim.cp_async_bulk_wait_group(0)


def test_bulk_copies_there_and_back():
    def body(shared, barrier, x, y):
        sim.mbarrier_arrive_expect_tx(barrier, 2048)
        sim.cp_async_bulk_load(shared + 16, x[16:528], barrier)
        wait(barrier)
        assert (sim.shared_read(shared + 16, np.dtype(np.float32), 512) == np.arange(16, 528)).all()
        store_and_wait(lambda: sim.cp_async_bulk_store(y[4:8], shared + 32))
        assert (np.asarray([y[4], y[7]]) == [20, 23]).all()

    for seed in SEEDS:
        sim.seed(seed)
        x, y = np.arange(1024, dtype=np.float32), np.zeros(16, np.float32)
        one_thread(body, x, y)
        np.testing.assert_array_equal(y, [0] * 4 + [20, 21, 22, 23] + [0] * 8)


def test_loads_complete_late_and_in_any_order():
    def body(shared, barrier, order):
        sim.mbarrier_arrive_expect_tx(barrier, 64)
        for i in range(4):
            sim.cp_async_bulk_load(shared + 16 * i, np.zeros(16, np.uint8), barrier)
        wait(barrier)

    orders = set()
    for seed in SEEDS:
        sim.seed(seed)
        with sim.record() as trace:
            one_thread(body, np.zeros(1))
        kinds = [e.kind for e in trace.events if e.kind in ("issue", "landed")]
        assert kinds.count("landed") == 4
        orders.add(tuple(kinds))
    assert ("issue",) * 4 + ("landed",) * 4 in orders
    assert len(orders) > 1


def test_a_load_sees_global_memory_as_it_is_when_it_lands():
    def body(shared, barrier, x):
        x[0] = 1
        sim.mbarrier_arrive_expect_tx(barrier, 16)
        sim.cp_async_bulk_load(shared, x, barrier)
        x[0] = 2
        wait(barrier)
        seen.add(int(sim.shared_read(shared, np.dtype(np.int32))))

    seen = set()
    for seed in SEEDS:
        sim.seed(seed)
        one_thread(body, np.zeros(4, np.int32))
    assert seen == {1, 2}


def test_what_the_two_waits_for_groups_promise():
    def body(shared, barrier, y, wait_group):
        sim.shared_write(shared, np.ones(4, np.int32))
        sim.fence_proxy_async()
        sim.cp_async_bulk_store(y, shared)
        sim.cp_async_bulk_commit_group()
        wait_group(0)
        written.add(int(y[0]))

    for wait_group, promised in [
        (sim.cp_async_bulk_wait_group, {1}),
        (sim.cp_async_bulk_wait_group_read, {0, 1}),
    ]:
        written = set()
        for seed in SEEDS:
            sim.seed(seed)
            y = np.zeros(4, np.int32)
            one_thread(body, y, wait_group)
            assert y[0] == 1  # at the end of the kernel in any case
        assert written == promised


def test_groups_are_counted_from_the_newest():
    def body(shared, barrier, y):
        sim.shared_write(shared, np.arange(16, dtype=np.int32))
        sim.fence_proxy_async()
        for i in range(4):
            sim.cp_async_bulk_store(y[4 * i : 4 * i + 4], shared + 16 * i)
            sim.cp_async_bulk_commit_group()
            sim.cp_async_bulk_wait_group(1)
            if i:
                assert y[4 * i - 1] == 4 * i - 1
        sim.cp_async_bulk_commit_group()  # an empty group is a group
        sim.cp_async_bulk_wait_group(1)
        assert y[15] == 15
        sim.cp_async_bulk_wait_group(0)

    for seed in SEEDS:
        sim.seed(seed)
        one_thread(body, np.zeros(16, np.int32))


TILES = [
    (Tile((8, 32), np.float32, Swizzle.B128), (20, 64)),
    (Tile((8, 32), np.float32), (20, 64)),
    (Tile((16, 16), np.float16, Swizzle.B32), (20, 40)),
    (Tile((3, 4, 32), np.uint8, Swizzle.NONE), (5, 6, 48)),
    (Tile((256,), np.int64), (300,)),
]


@pytest.mark.parametrize("tile, shape", TILES, ids=str)
def test_tensor_copies(tile, shape):
    """Loads and stores in and out of bounds give what layout.py says, fill and swizzle included."""
    rng = np.random.default_rng(0)
    size = int(np.prod(shape))
    x = rng.integers(0, 100, size).astype(tile.dtype.numpy).reshape(shape)
    step = 16 // tile.itemsize
    origins = [
        (0,) * len(shape),
        tuple(n - 1 for n in shape[:-1]) + (shape[-1] // step * step - step,),
        (-1,) * (len(shape) - 1) + (-step,),
        (1000,) * len(shape),
    ]
    origins = [o[:-1] + (o[-1] // step * step,) for o in origins]

    def body(shared, barrier, x_map, y_map):
        for i, origin in enumerate(origins):
            sim.prefetch_tensormap(x_map)
            sim.mbarrier_arrive_expect_tx(barrier, tile.nbytes)
            sim.cp_async_bulk_tensor_load(shared, x_map, origin, barrier)
            wait(barrier, i & 1)
            image = sim.shared_read(shared, np.dtype(np.uint8), tile.nbytes)
            np.testing.assert_array_equal(image, reference_tile(x, tile, origin))
            if min(origin) >= 0:
                store_and_wait(lambda o=origin: sim.cp_async_bulk_tensor_store(y_map, o, shared))

    y, expected = np.zeros_like(x), np.zeros_like(x)
    one_thread(body, tensor_map(x, tile), tensor_map(y, tile))
    for origin in (o for o in origins if min(o) >= 0):
        reference_store(expected, reference_tile(x, tile, origin), tile, origin)
    np.testing.assert_array_equal(y, expected)
    assert y.any()


@pytest.mark.parametrize("origin", [(-1, 0), (0, -16)])
def test_a_store_before_the_tensor_is_an_error(origin):
    y_map = tensor_map(np.zeros((8, 32), np.uint8), Tile((8, 32), np.uint8))
    with pytest.raises(sim.BadCoordinate, match="never before it. On a GPU this is an illegal"):
        one_thread(lambda s, b: sim.cp_async_bulk_tensor_store(y_map, origin, s))


def test_nan_fill_and_element_strides():
    x = np.ones((8, 64), np.float32)

    def body(shared, barrier, x_map):
        sim.mbarrier_arrive_expect_tx(barrier, x_map.tile.nbytes)
        sim.cp_async_bulk_tensor_load(shared, x_map, (4, 0), barrier)
        wait(barrier)
        rows = sim.shared_read(shared, np.dtype(np.float32), x_map.tile.size)
        rows = rows.reshape(x_map.tile.shape)
        assert (rows[:2] == 1).all() and np.isnan(rows[2:]).all()

    one_thread(body, tensor_map(x, (8, 32), oob_fill="nan", element_strides=(2, 1)))


def test_a_tensor_store_may_clip_what_nobody_wrote():
    tile = Tile((8, 32), np.float32)

    def body(shared, barrier, y_map, rows):
        if rows:
            sim.shared_write(shared, np.ones(32 * rows, np.float32))
        store_and_wait(lambda: sim.cp_async_bulk_tensor_store(y_map, (6, 0), shared))

    y = np.zeros((8, 32), np.float32)
    one_thread(body, tensor_map(y, tile), 2)
    assert y[6:].all() and not y[:6].any()
    with pytest.raises(sim.UninitializedRead, match="it was never written"):
        one_thread(body, tensor_map(y, tile), 0)


# Operands.

X = np.zeros(4096, np.uint8)
X_MAP = tensor_map(np.zeros((16, 32), np.float32), Tile((8, 32), np.float32, Swizzle.B128))

BULK_LOADS = {
    "size": (lambda s, b: sim.cp_async_bulk_load(s, X[:24], b), "the size is 24 bytes"),
    "empty": (lambda s, b: sim.cp_async_bulk_load(s, X[:0], b), "positive multiple of 16"),
    "dst": (lambda s, b: sim.cp_async_bulk_load(s + 8, X[:16], b), "dst is shared address 1032"),
    "src": (lambda s, b: sim.cp_async_bulk_load(s, X[8:24], b), "src starts 8 bytes into"),
    "strided": (lambda s, b: sim.cp_async_bulk_load(s, X[::2], b), "contiguous array"),
    "past the end": (
        lambda s, b: sim.cp_async_bulk_load(s + 4080, X[:32], b),
        "shared bytes 5104 to 5135 are out of range: past the end of shared, which has 4096 bytes",
    ),
    "nowhere": (lambda s, b: sim.cp_async_bulk_load(0, X[:16], b), "not in any allocation"),
    "over the barrier": (
        lambda s, b: sim.cp_async_bulk_load(b, X[:16], b),
        "out of range: past the end of barrier",
    ),
    "store size": (lambda s, b: sim.cp_async_bulk_store(X[:8], s), "the size is 8 bytes"),
    "store src": (lambda s, b: sim.cp_async_bulk_store(X[:16], s + 4), "src is shared address"),
    "store dst": (lambda s, b: sim.cp_async_bulk_store(X[1:17], s), "dst starts 1 bytes into"),
    "store past the end": (lambda s, b: sim.cp_async_bulk_store(X, s + 16), "past the end"),
    "group": (lambda s, b: sim.cp_async_bulk_wait_group(-1), "must not be negative"),
    "tensor dst": (
        lambda s, b: sim.cp_async_bulk_tensor_load(s + 64, X_MAP, (0, 0), b),
        "dst is shared address 1088; a tensor copy needs a multiple of 128",
    ),
    "swizzle": (
        lambda s, b: sim.cp_async_bulk_tensor_load(s + 512, X_MAP, (0, 0), b),
        "not a multiple of 1024: swizzle B128 follows address bits",
    ),
    "tensor src": (
        lambda s, b: sim.cp_async_bulk_tensor_store(X_MAP, (0, 0), s + 256),
        "src is shared address 1280, not a multiple of 1024",
    ),
    "prefetch": (lambda s, b: sim.prefetch_tensormap(X), "is not a TensorMap"),
    "read misaligned": (
        lambda s, b: sim.shared_read(s + 2, np.dtype(np.float32)),
        "shared address 1026 is not a multiple of the 4 bytes of float32",
    ),
    "read past the end": (
        lambda s, b: sim.shared_read(s + 4092, np.dtype(np.float32), 2),
        "shared_read: shared bytes 5116 to 5123 are out of range",
    ),
    "write nowhere": (lambda s, b: sim.shared_write(0, np.float32(1)), "not in any allocation"),
}


@pytest.mark.parametrize("name", BULK_LOADS)
def test_bad_operands(name):
    body, text = BULK_LOADS[name]
    with pytest.raises(sim.BadOperand) as caught:
        one_thread(body)
    assert text in str(caught.value)


def test_a_load_over_a_barrier():
    def body(shared, barrier):
        sim.label(shared + 1024, "empty[1] of Pipe")
        sim.mbarrier_init(shared + 1024, 1)
        sim.cp_async_bulk_load(shared + 1008, X[:32], barrier)

    with pytest.raises(
        sim.BarrierMisuse, match="lie over empty\\[1\\] of Pipe, a live mbarrier at 2048"
    ):
        one_thread(body)


def test_a_write_needs_a_dtype():
    with pytest.raises(TypeError, match="pass a NumPy scalar or array"):
        one_thread(lambda s, b: sim.shared_write(s, 1.0))


@pytest.mark.parametrize(
    "coords, text",
    [
        ((0, 1), "the innermost coordinate (axis 1) is 1, which is 4 bytes; it must be a multiple "
         "of 4 (16 bytes). On a GPU this is an illegal instruction that loses the context"),
        ((0, -2), "is -2, which is -8 bytes"),
        ((0,), "1 coordinates for Tile((8, 32), f32, B128), which has 2 axes"),
        ((0, 0, 0), "3 coordinates"),
        ((2**31, 0), "the coordinate of axis 0 is 2147483648; the hardware takes 32 bits"),
    ],
)  # fmt: skip
def test_bad_coordinates(coords, text):
    for body in (
        lambda s, b: sim.cp_async_bulk_tensor_load(s, X_MAP, coords, b),
        lambda s, b: sim.cp_async_bulk_tensor_store(X_MAP, coords, s),
    ):
        with pytest.raises(sim.BadCoordinate) as caught:
            one_thread(body)
        assert text in str(caught.value)


def test_good_coordinates():
    def body(shared, barrier):
        for i, coords in enumerate([(0, 4), (3, -4), (-5, 32), (2**31 - 1, 0)]):
            sim.mbarrier_arrive_expect_tx(barrier, 1024)
            sim.cp_async_bulk_tensor_load(shared, X_MAP, tuple(np.array(coords)), barrier)
            wait(barrier, i & 1)

    one_thread(body)


# Shared memory.


def test_allocations():
    @cuda.jit
    def kernel(found):
        first = sim.allocate_shared("a", 100, 64)
        second = sim.allocate_shared("a", 8, 8)
        third = sim.allocate_shared("b", 16, 1024)
        found[cuda.threadIdx.x] = first, second, third

    found = np.zeros((5, 3), np.int64)
    kernel[1, 5](found)
    assert (found == found[0]).all()
    first, second, third = found[0]
    assert first == 1024 and second >= first + 100 and third >= second + 8
    assert first % 64 == second % 8 == third % 1024 == 0


def test_all_of_shared_memory_and_one_byte_more():
    def body(nbytes):
        cuda.jit(lambda: sim.allocate_shared("big", nbytes, 16))[1, 1]()

    body(227 * 1024)
    with pytest.raises(sim.OutOfSharedMemory, match="232449 of 232448 would be in use"):
        body(227 * 1024 + 1)


def test_too_much_together_lists_what_there_is():
    def kernel():
        sim.allocate_shared("the first", 200 * 1024, 128)
        sim.allocate_shared("the second", 100 * 1024, 128)

    with pytest.raises(sim.OutOfSharedMemory) as caught:
        cuda.jit(kernel)[1, 1]()
    assert "the second: 102400 shared bytes" in str(caught.value)
    assert "204800 bytes at 1024: the first" in str(caught.value)


def test_memory_is_named_by_its_owner_and_what_it_is_for():
    def kernel():
        primitives.allocate_shared("pipeline", 128, 128)
        primitives.allocate_shared("pipeline", 16, 8, "barriers")
        sim.allocate_shared("big", 227 * 1024, 16)

    with pytest.raises(sim.OutOfSharedMemory) as caught:
        cuda.jit(kernel)[1, 1]()
    assert re.findall(r"\n +(\d+) bytes at \d+: (.*)", str(caught.value)) == [
        ("128", "pipeline"), ("16", "('pipeline', 'barriers')")
    ]  # fmt: skip


@pytest.mark.parametrize(
    "nbytes, alignment, text", [(-1, 8, "nbytes is -1"), (8, 3, "alignment is 3"), (8, 0, "is 0")]
)
def test_bad_allocations(nbytes, alignment, text):
    with pytest.raises(sim.BadOperand, match=text):
        cuda.jit(lambda: sim.allocate_shared("a", nbytes, alignment))[1, 1]()


def test_threads_that_ask_for_different_memory():
    with pytest.raises(sim.BadOperand, match="all threads of a block must ask for the same"):
        cuda.jit(lambda: sim.allocate_shared("a", 8 + cuda.threadIdx.x, 8))[1, 2]()


def test_blocks_do_not_see_each_others_memory():
    @cuda.jit
    def kernel():
        cell = sim.allocate_shared("cell", 4, 4)
        if cuda.blockIdx.x == 0:
            sim.shared_write(cell, np.int32(1))
        else:
            sim.shared_read(cell, np.dtype(np.int32))

    with pytest.raises(sim.UninitializedRead, match="ctaid=\\[1, 0, 0\\]"):
        kernel[2, 1]()


def test_atomic_inc():
    @cuda.jit
    def kernel(counter, seen):
        seen[cuda.threadIdx.x] = sim.atomic_inc(counter._ary.view(np.uint8), 6)

    counter, seen = np.zeros(1, np.uint32), np.zeros(10)
    kernel[1, 10](counter, seen)
    assert sorted(seen) == [0, 0, 1, 1, 2, 2, 3, 4, 5, 6]


def test_check_block():
    kernel = cuda.jit(lambda: sim.check_block("TilePipeline", minimum=64))
    kernel[1, 96]()
    for threads in (32, 65):
        with pytest.raises(sim.BadOperand, match=f"the block has {threads} threads"):
            kernel[1, threads]()


class Operand:
    def __init__(self, kind, tile=None):
        self.shared_kind = kind
        if tile is not None:
            self.tile = tile


def test_check_copy():
    tile, barrier = Operand("tile", X_MAP.tile), Operand("barrier")
    sim.check_copy(X_MAP, tile, (0, 0), barrier)
    sim.check_copy(X_MAP, 1024, (0, 0))
    with pytest.raises(sim.BadOperand, match="a barrier is given where the tile belongs"):
        sim.check_copy(X_MAP, barrier, (0, 0))
    with pytest.raises(sim.BadOperand, match="a tile is given where the barrier belongs"):
        sim.check_copy(X_MAP, tile, (0, 0), tile)
    with pytest.raises(sim.BadOperand, match="1 coordinates for .* rank 2"):
        sim.check_copy(X_MAP, tile, (0,))
    with pytest.raises(sim.BadOperand, match="but the tile in shared memory is Tile\\(\\(4, 32\\)"):
        sim.check_copy(X_MAP, Operand("tile", Tile((4, 32), np.float32)), (0, 0))
