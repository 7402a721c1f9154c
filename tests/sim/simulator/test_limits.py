"""The last number that an operand may be, and the first one that it may not."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import simulator as sim
from numba_tma.simulator.copy_rules import check_inside, global_view, parse_reduction
from numba_tma.simulator.memory import BASE

TILE, BAR = BASE, BASE + 1024
X = np.zeros(512, np.uint8)
MAP = tma.tensor_map(X.view(np.uint32).reshape(16, 8), tma.Tile((4, 8), "u32"))
BYTES = tma.tensor_map(X.reshape(16, 32), tma.Tile((4, 32), "u8"))
ROWS = tma.gather_map(X.reshape(16, 32), tma.Tile((4, 32), "u8"))
FOUR = (0, 1, 2, 3)
U32 = np.dtype(np.uint32)
LAST = 2**31 - 1

#: A call of one operand, numbers that it may be, and numbers that it may not be.
LIMITS = {
    "src_size": (lambda n: sim.cp_async("cp", TILE, X[: max(n, 0)], 8, n), (0, 1, 8), (-1, 9)),
    "cp_async address": (lambda n: sim.cp_async("cp", TILE + n, X[:8], 8, 8), (0, 8), (4, 12)),
    "ignored left": (lambda n: sim.cp_async_bulk_load_ignore_oob(TILE, X[:32], 32, (n, 0), BAR),
                     (0, 15), (-1, 16)),
    "ignored right": (lambda n: sim.cp_async_bulk_load_ignore_oob(TILE, X[:32], 32, (0, n), BAR),
                      (0, 15), (-1, 16)),
    "bytes of a part": (lambda n: sim.cp_async_bulk_load_ignore_oob(TILE, X[:n], 32, (0, 8), BAR),
                        (24, 32, 48), (16, 23)),
    "bytes of a load": (lambda n: sim.cp_async_bulk_load(TILE, X[:n], BAR), (16, 32), (0, 8, 24)),
    "load address": (lambda n: sim.cp_async_bulk_load(TILE + n, X[:16], BAR), (0, 16), (4, 8, 24)),
    "load source": (lambda n: sim.cp_async_bulk_load(TILE, X[n : n + 16], BAR), (0, 16), (4, 8)),
    "store address": (lambda n: sim.cp_async_bulk_store(X[:16], TILE + n), (0, 16), (4, 8, 24)),
    "tensor address": (lambda n: sim.cp_async_bulk_tensor_load(TILE + n, MAP, (0, 0), BAR),
                       (0, 128), (16, 64)),
    "coordinate": (lambda n: sim.cp_async_bulk_tensor_load(TILE, MAP, (n, 0), BAR),
                   (-(2**31), -1, 0, LAST), (-(2**31) - 1, LAST + 1)),
    "first axis of a store": (lambda n: sim.cp_async_bulk_tensor_store(MAP, (n, 0), TILE),
                              (0, 1, 15, LAST), (-1, LAST + 1)),
    "last axis of a store": (lambda n: sim.cp_async_bulk_tensor_store(MAP, (0, n), TILE),
                             (0, 4, 8), (-4, 1, 2)),
    "last axis of a load": (lambda n: sim.cp_async_bulk_tensor_load(TILE, MAP, (0, n), BAR),
                            (-4, 0, 4), (-2, 1, 2, 6)),
    "last axis of bytes": (lambda n: sim.cp_async_bulk_tensor_load(TILE, BYTES, (0, n), BAR),
                           (-16, 0, 16), (4, 8, 24)),
    "rows": (lambda n: sim.cp_async_bulk_tensor_gather4(TILE, ROWS, (0, 1, 2, n), 0, BAR),
             (-1, 99, LAST), (LAST + 1, -(2**31) - 1)),
    "stored rows": (lambda n: sim.cp_async_bulk_tensor_scatter4(ROWS, (0, 1, n, 2), 0, TILE),
                    (0, 15, 99), (-1,)),
    "column": (lambda n: sim.cp_async_bulk_tensor_gather4(TILE, ROWS, FOUR, n, BAR),
               (-16, 0, 16), (LAST + 1,)),
    "coordinates": (lambda n: sim.cp_async_bulk_tensor_load(TILE, MAP, (0,) * n, BAR),
                    (2,), (1, 3)),
    "groups": (lambda n: sim.cp_async_bulk_wait_group(n), (0, 1, 9), (-1,)),
    "groups read": (lambda n: sim.cp_async_bulk_wait_group_read(n), (0, 1, 9), (-1,)),
    "groups of cp.async": (lambda n: sim.cp_async_wait_group(n), (0, 1, 9), (-1,)),
    "groups of wgmma": (lambda n: sim.wgmma_wait_group(n), (0, 7), (-1, 8)),
    "rank": (lambda n: sim.mapa(BAR, n), (0,), (-1, 1)),
    "multicast": (lambda n: sim.cp_async_bulk_load(TILE, X[:16], BAR, n), (1, None), (0, 2, 3)),
    "cluster address": (lambda n: sim.shared_cluster_read(TILE + (n << 24), U32), (0, 1), (2,)),
    "address of a word": (lambda n: sim.shared_read(TILE + n, U32), (0, 4), (1, 2, 6)),
    "address of a remote word": (lambda n: sim.shared_cluster_write(TILE + n, np.uint32(1)),
                                 (0, 4), (2, 6)),
    "address of a remote vector": (lambda n: sim.shared_cluster_read(TILE + n, U32, 4),
                                   (0, 16), (4, 8)),
    "vector to read": (lambda n: sim.shared_read_vector(TILE + n, U32, 4), (0, 16), (4, 8)),
    "vector to write": (lambda n: sim.shared_write_vector(TILE + n, np.zeros(2, np.uint32)),
                        (0, 8), (4, 12)),
    "named barrier": (lambda n: sim.barrier_arrive(n, 32), (0, 8, 15), (-1, 16)),
    "threads of one": (lambda n: sim.barrier_arrive(8, n), (32, 64, 128), (0, 16, 48, 160, -32)),
    "registers": (lambda n: sim.setmaxnreg("dec", n), (24, 256), (16, 23, 28, 264)),
    "lane of a mask": (lambda n: sim.ballot_sync(n, 1), (1, 0x80000001, 1 << 32 | 1), (2, 0)),
}  # fmt: skip


#: Threads of the block, where one is not enough.
THREADS = {"named barrier": 32, "threads of one": 128, "registers": 128}


class Done(Exception):
    """Ends a kernel, whatever is under way."""


def kernel_of(call):
    def kernel(number):
        sim.allocate_shared("tile", 1024, 128)
        sim.allocate_shared("barrier", 8, 8)
        if cuda.threadIdx.x == 0:
            sim.mbarrier_init(BAR, 1)
            sim.fence_mbarrier_init()
            sim.shared_write(TILE, np.zeros(1024, np.uint8))
            sim.fence_proxy_async()
        cuda.syncthreads()
        if cuda.threadIdx.x == 0 or call is LIMITS["registers"][0]:
            call(number)
            raise Done

    return cuda.jit(kernel)


@pytest.mark.parametrize("name", LIMITS)
def test_limits_of_an_operand(name):
    call, legal, wrong = LIMITS[name]
    kernel = kernel_of(call)[1, THREADS.get(name, 1)]
    for number in legal:
        with pytest.raises(Done):
            kernel(number)
    for number in wrong:
        with pytest.raises((sim.BadOperand, sim.BadCoordinate)):
            kernel(number)


@pytest.mark.parametrize(
    ("operation", "name", "dtype"),
    [
        ("add.f32", "add", "f32"), ("add.noftz.f16", "add", "f16"), ("min.s32", "min", "i32"),
        ("max.s64", "max", "i64"), ("and.b32", "and", "u32"), ("xor.b64", "xor", "u64"),
        ("inc.u32", "inc", "u32"), ("max.noftz.bf16", "max", "bf16"),
    ],
)  # fmt: skip
def test_the_words_of_a_reduction(operation, name, dtype):
    found, its = parse_reduction(operation)
    assert (found, its.name) == (name, dtype)


@pytest.mark.parametrize("origin", [(0, 0), (0, 5), (-1, 0), (3, -4), (-1, -1)])
@pytest.mark.parametrize(("what", "kind"), [("tensor_store", "store"), ("reduce_x", "reduction")])
def test_a_store_begins_inside(origin, what, kind):
    if min(origin) >= 0:
        check_inside(what, origin)
        return
    with pytest.raises(sim.BadCoordinate, match=f"^{what}: .*; a {kind} starts inside"):
        check_inside(what, origin)


def test_what_is_plain_bytes():
    array = np.arange(64, dtype=np.uint16).reshape(8, 8)
    for given, nbytes in ((array, 128), (array[2:4], 32), (array[1], 16), (array[:0], 0)):
        found = global_view("it", "src", given, 16)
        assert found.dtype == np.uint8 and found.shape == (nbytes,)
        np.testing.assert_array_equal(found, given.ravel().view(np.uint8))
    for given in (array[:, 1:], array.T, array[0, 0], np.array(1), 7, [1, 2], array[::2]):
        with pytest.raises(sim.BadOperand, match="^it: src must be a contiguous array, not "):
            global_view("it", "src", given, 2)
    for alignment in (2, 4, 8):
        global_view("it", "src", array[0, 4:], alignment)
    with pytest.raises(sim.BadOperand, match="^it: src starts 8 bytes into its alloc.* of 16"):
        global_view("it", "src", array[0, 4:], 16)


OTHER_MODES = [
    lambda: sim.cp_async_bulk_tensor_load(TILE, ROWS, (0, 0), BAR),
    lambda: sim.cp_async_bulk_tensor_gather4(TILE, MAP, FOUR, 0, BAR),
    lambda: sim.cp_async_bulk_tensor_im2col_load(TILE, MAP, (0, 0), BAR, ()),
]


@pytest.mark.parametrize("number", range(len(OTHER_MODES)))
def test_a_map_of_another_mode_is_refused(number):
    with pytest.raises(sim.BadOperand, match=r"_load: |_gather4: "):
        kernel_of(lambda _: OTHER_MODES[number]())[1, 1](0)
