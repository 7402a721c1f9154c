"""Reductions of the copy engine agree with NumPy: integers bit for bit, floats rounded once."""

import functools

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.reference import reduce_elements
from numba_tma.ptx.reduce import GlobalReduction, TensorReduction
from tests.gpu import copies
from tests.gpu.worker import on_gpu

CHUNK = tma.Tile(16384, "u8")
TYPES = {"s32": "i32", "s64": "i64", "b32": "u32", "b64": "u64"}
PAIRS = [
    (name, op)
    for name in ("u32", "i32", "u64", "i64", "f16", "bf16", "f32", "f64")
    for op in as_dtype(name).reductions
]
BULK = GlobalReduction.__args__
SIGNED_BITS = [("i32", "and"), ("i32", "or"), ("i32", "xor")]


def values(dtype, count, rng):
    """Return integers of any size, the edges among them, or floats that are no NaN or subnormal."""
    if not dtype.is_float:
        bounds = np.iinfo(dtype.numpy)
        far = rng.integers(bounds.min, bounds.max, count, dtype.numpy, endpoint=True)
        near = rng.integers(0, 6, count).astype(dtype.numpy)
        edge = rng.choice(np.array([bounds.min, bounds.max, 0, 1], dtype.numpy), count)
        return np.choose(rng.integers(0, 3, count), [far, near, edge])
    scale = 6 if dtype.name == "f16" else 20
    drawn = rng.standard_normal(count) * 2.0 ** rng.integers(-scale, scale, count)
    return np.where(np.abs(drawn) < 1e-6, 1, drawn).astype(dtype.numpy)


def same_for_any_order(dtype, count, rng):
    """Return values whose sums are exact, so that the order in which they come does not show."""
    if not dtype.is_float:
        return values(dtype, count, rng)
    return rng.integers(1, 5, count).astype(dtype.numpy)


def assert_same(actual, expected, what):
    bits = f"u{expected.dtype.itemsize}"
    wrong = np.flatnonzero(actual.view(bits).reshape(-1) != expected.view(bits).reshape(-1))
    assert not wrong.size, (
        f"{what}: {wrong.size} of {expected.size} differ, first at {wrong[0]}: "
        f"{actual.reshape(-1)[wrong[0]]!r} and not {expected.reshape(-1)[wrong[0]]!r}"
    )


# ------------------------------------------------------------------------------- bytes


@functools.cache
def bulk_kernel(operation, hint):
    """Return the kernel in which each block combines its row of operands with the total."""

    @cuda.jit
    def reduce_bytes(total, operands, completed):
        chunk, barrier = tma.shared_tile(CHUNK), tma.shared_barrier()
        block, nbytes = cuda.blockIdx.x, total.size
        barrier.init(1)
        tma.fence_mbarrier_init()
        barrier.arrive_expect_tx(nbytes)
        ptx.cp_async_bulk_load(chunk, operands[block * nbytes :], nbytes, barrier)
        done = False
        for _ in range(copies.TRIES):
            if barrier.test_wait(0):
                done = True
                break
        if done:
            ptx.cp_reduce_async_bulk_store(total, chunk, nbytes, operation, hint)
            ptx.cp_async_bulk_commit_group()
            ptx.cp_async_bulk_wait_group(0)
            completed[block] = 1

    return reduce_bytes


def reduce_bytes(total, operands, operation, hint=None):
    """Return what becomes of `total` when each row of `operands` is reduced into it."""
    device = cuda.to_device(np.ascontiguousarray(total).view(np.uint8))
    rows = cuda.to_device(np.ascontiguousarray(operands).view(np.uint8).reshape(-1))
    completed = cuda.to_device(np.zeros(len(operands), np.int32))
    bulk_kernel(operation, hint)[len(operands), 1](device, rows, completed)
    assert completed.copy_to_host().all()
    return device.copy_to_host().view(total.dtype)


@pytest.mark.parametrize("operation", BULK)
@on_gpu
def test_bulk_reductions(operation):
    name, *_, kind = operation.split(".")
    dtype = as_dtype(TYPES.get(kind, kind))
    rng = np.random.default_rng(BULK.index(operation))
    for nbytes in (16, 48, 1040, 16384, 16384, 16384):
        old, operands = (values(dtype, nbytes // dtype.itemsize, rng) for _ in range(2))
        actual = reduce_bytes(old, operands[None], operation)
        assert_same(actual, reduce_elements(name, old, operands), f"{operation} of {nbytes} B")


@pytest.mark.parametrize("operation", BULK)
@on_gpu
def test_bulk_reductions_of_many_blocks(operation):
    name, *_, kind = operation.split(".")
    dtype = as_dtype(TYPES.get(kind, kind))
    rng = np.random.default_rng(100 + BULK.index(operation))
    count, blocks = 2048 // dtype.itemsize, 50
    old = same_for_any_order(dtype, count, rng)
    operands = same_for_any_order(dtype, blocks * count, rng).reshape(blocks, count)
    if name in ("inc", "dec"):
        operands[:] = operands[0]  # counting is the same in any order only up to one limit
    actual = reduce_bytes(old, operands, operation, tma.CachePolicy.EVICT_LAST)
    assert_same(actual, functools.reduce(functools.partial(reduce_elements, name), operands, old),
                operation)  # fmt: skip


def subnormals(dtype):
    """Return pairs of f32 that are subnormal, or whose sums are."""
    tiny = np.finfo(np.float32).tiny
    old = np.array([tiny / 2, -tiny / 2, 1, 1.5 * tiny, -0.0, 0, tiny, tiny / 4], np.float32)
    operand = np.array([tiny / 2, -tiny / 4, tiny / 2, -tiny, 0, -0.0, tiny, 1], np.float32)
    return old, operand


@on_gpu
def test_bulk_sums_of_f32_keep_subnormals():
    old, operand = subnormals("f32")
    actual = reduce_bytes(old, operand[None], "add.f32")
    assert_same(actual, reduce_elements("add", old, operand), "add.f32")


@pytest.mark.parametrize("operation", ["add.noftz.f16", "add.noftz.bf16"])
@on_gpu
def test_bulk_sums_of_halves_keep_subnormals(operation):
    dtype = as_dtype(operation.rpartition(".")[2])
    old = np.arange(1, 65, dtype=np.uint16).view(dtype.numpy)  # all of them subnormal
    operand = np.arange(65, 1, -1, dtype=np.uint16).view(dtype.numpy)
    actual = reduce_bytes(old, operand[None], operation)
    assert_same(actual, reduce_elements("add", old, operand), operation)


# ------------------------------------------------------------------------------- tiles


@functools.cache
def tensor_kernel(operation, hint=None):
    """Return the kernel that reduces one box; it serves every tile of a rank."""

    @cuda.jit
    def reduce_box(tensor_map, coords, image):
        space = tma.shared_tile(copies.SPACE)
        thread = cuda.threadIdx.x
        copies.prepare_store(space.address, image)
        if thread == 0:
            ptx.cp_reduce_async_bulk_tensor(tensor_map, coords, space, operation, hint)
            ptx.cp_async_bulk_commit_group()
            ptx.cp_async_bulk_wait_group(0)

    return reduce_box


def check(dtype, op, tile, tensor, coords, rng, hint=None):
    """Reduce once on the GPU and in NumPy, and compare all of the memory, padding included."""
    memory = values(dtype, tensor.nbytes // dtype.itemsize, rng).view(np.uint8)
    image = values(dtype, tile.shared_nbytes // dtype.itemsize, rng).view(np.uint8)
    device = cuda.to_device(memory)
    y = tma.tensor_map(tensor.on_device(device), tile, dtype=dtype)
    words = cuda.to_device(image.view(np.uint32))
    tensor_kernel(op, hint)[1, copies.THREADS](y.value, coords, words)
    cuda.synchronize()
    expected = memory.copy()
    tma.reference_reduce(tensor.of(expected), image, tile, coords, op)
    actual = device.copy_to_host().view(dtype.numpy)
    assert_same(actual, expected.view(dtype.numpy), f"{op} of {tile} at {coords} of {tensor}")
    return not np.array_equal(memory, expected)


@pytest.mark.parametrize("name, op", PAIRS)
@on_gpu
def test_tensor_reductions(name, op):
    dtype = as_dtype(name)
    rng = np.random.default_rng(PAIRS.index((name, op)))
    step = 16 // dtype.itemsize
    changed = 0
    for swizzle in copies.SWIZZLES:
        tile = tma.Tile((8, (swizzle.span if swizzle else 64) // dtype.itemsize), dtype, swizzle)
        shape = (20, 256 // dtype.itemsize)
        pitch = 256 + 16 * int(rng.integers(0, 4))
        tensor = copies.Tensor(shape, (pitch, dtype.itemsize), dtype.itemsize, 64)
        origins = [(0, 0), (5, 3 * step), (17, 0), (3, shape[1] - step), (19, shape[1] - step)]
        for coords in [*origins, (100, 0), (0, 10 * shape[1])]:
            changed += check(dtype, op, tile, tensor, coords, rng)
    assert changed >= 12  # the reductions did something


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
@on_gpu
def test_tensor_reductions_of_every_rank(rank):
    dtype, rng = as_dtype("u32"), np.random.default_rng(rank)
    for i in range(40):
        extents = tuple(int(n) for n in rng.integers(1, {1: 200, 2: 20, 3: 6}.get(rank, 4), rank))
        tile = tma.Tile((*extents[:-1], 4 * int(rng.integers(1, 9))), dtype)
        shape = tuple(int(n) for n in rng.integers(1, 24, rank - 1)) + (
            4 * int(rng.integers(1, 20)),
        )
        strides, stride = [dtype.itemsize], 4 * shape[-1]
        for n in reversed(shape[:-1]):
            stride += 16 * int(rng.integers(0, 3))
            strides.insert(0, stride)
            stride *= n
        tensor = copies.Tensor(shape, tuple(strides), dtype.itemsize, 16 * int(rng.integers(0, 4)))
        coords = tuple(int(rng.integers(0, n + 1)) for n in shape)
        coords = (*coords[:-1], coords[-1] // 4 * 4)
        hint = tma.CachePolicy.EVICT_LAST if i % 2 else None
        check(dtype, "add", tile, tensor, coords, rng, hint)


@on_gpu
def test_tensor_sums_of_f32_keep_subnormals():
    old, operand = subnormals("f32")
    tile = tma.Tile((1, 8), "f32")
    device = cuda.to_device(old.reshape(1, 8))
    y = tma.tensor_map(device, tile)
    tensor_kernel("add")[1, copies.THREADS](y.value, (0, 0), cuda.to_device(operand.view("u4")))
    assert_same(device.copy_to_host()[0], reduce_elements("add", old, operand), "add of f32")


# ------------------------------------------------------------------------- the methods

TILE = tma.Tile((16, 32), "f32", tma.Swizzle.B128)
COUNTS = tma.Tile((4, 16), "u32")


@cuda.jit
def add_tiles(x, y, counts):
    """Every block adds its tile of x to the one tile of y, and counts itself."""
    tile, ones, barrier = tma.shared_tile(TILE), tma.shared_tile(COUNTS), tma.shared_barrier()
    thread = cuda.threadIdx.x
    if thread == 0:
        barrier.init(1)
        tma.fence_mbarrier_init()
        barrier.arrive_expect_tx(TILE.nbytes)
        x.load(tile, (cuda.blockIdx.x * 16, 0), barrier)
    for row in range(4):
        if thread < 16:
            ones[row, thread] = 1
    cuda.syncthreads()
    done = False
    for _ in range(copies.TRIES):
        if barrier.test_wait(0):
            done = True
            break
    if done:
        for row in range(16):
            tile[row, thread] *= 2
    tma.fence_proxy_async()
    cuda.syncthreads()
    if thread == 0:
        y.reduce(tile, (0, 0), "add", cache_hint=tma.CachePolicy.EVICT_LAST)
        counts.reduce(ones, (2, 0), "add")
        ptx.cp_async_bulk_commit_group()
        ptx.cp_async_bulk_wait_group(0)


@on_gpu
def test_blocks_add_their_tiles():
    blocks = 200
    x = np.random.default_rng(0).integers(-99, 99, (blocks * 16, 32)).astype(np.float32)
    y = cuda.to_device(np.zeros((16, 32), np.float32))
    counts = cuda.to_device(np.zeros((5, 16), np.uint32))
    maps = [tma.tensor_map(cuda.to_device(x), TILE), tma.tensor_map(y, TILE)]
    add_tiles[blocks, 32](*maps, tma.tensor_map(counts, COUNTS))
    assert_same(y.copy_to_host(), 2 * x.reshape(blocks, 16, 32).sum(0), "the sum of all tiles")
    expected = np.zeros((5, 16), np.uint32)
    expected[2:] = blocks
    np.testing.assert_array_equal(counts.copy_to_host(), expected)


def test_every_operation_and_type_is_here():
    assert {op for _, op in PAIRS} == set(TensorReduction.__args__)
    bulk = {(TYPES.get(o.split(".")[-1], o.split(".")[-1]), o.split(".")[0]) for o in BULK}
    # Through a map and, or, xor have a sign in their type, i32.
    assert bulk == {(name, op) for name, op in PAIRS if (name, op) not in SIGNED_BITS}
