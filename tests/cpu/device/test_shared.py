"""Shared tiles in compiled kernels: their addresses, the cost of an access, the fences."""

import operator
import re
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from numba import cuda, types
from numba.core.errors import TypingError
from numba.cuda import extending
from numba.cuda.core.errors import TypingError as CudaTypingError

import numba_tma as tma
from numba_tma import Tile, TilePipeline
from numba_tma.device.barrier import Barrier, BarrierArray
from numba_tma.device.shared import SharedTile, TileAccesses
from numba_tma.host import dtypes
from numba_tma.host.layout import Swizzle
from numba_tma.tools.testing import compile_ptx, instructions, ptxas
from tests.tiers import every

I64, U32, FLOATS = types.int64, types.uint32, types.float32[::1]
TILE, FLAT = Tile((8, 32), "f32"), Tile(256, "f32")
PIPE = TilePipeline(2, x=TILE)
MAP = tma.TensorMapType(2, TILE)


def tile_of(name, swizzle, rows=(10,)):
    """Return a tile whose swizzle pattern wraps round for every item size."""
    dtype = dtypes.as_dtype(name)
    return Tile((*rows, max(swizzle.span, 32) // dtype.itemsize), dtype, swizzle)


EVERY_TILE = [tile_of(name, swizzle) for name in dtypes.byte_names for swizzle in Swizzle]
COMPLEX = [tile_of(name, swizzle) for name in dtypes.complex_names for swizzle in Swizzle]
#: Rows narrower than the span of their swizzle, which are padded to it.
PADDED = [Tile((10, swizzle.span // 8), "f32", swizzle) for swizzle in list(Swizzle)[1:]]


def lines(kernel, *arguments):
    return instructions(compile_ptx(kernel, arguments))


def count(body, start):
    return sum(line.startswith(start) for line in body)


# --------------------------------------------------------------------------- addresses

OPERATIONS = {
    "add": operator.add,
    "and": operator.and_,
    "cvt": lambda a: a,
    "mad": lambda a, b, c: a * b + c,
    "mov": lambda a: a,
    "mul": operator.mul,
    "or": operator.or_,
    "shl": operator.lshift,
    "shr": operator.rshift,
    "sub": operator.sub,
    "xor": operator.xor,
}


def integers(body, known=None):
    """Execute the integer instructions of a kernel; return what its registers hold.

    `known` are the values of parameters: arrays, so that this is done for many calls at once.
    Allocations of shared memory are at 0. Instructions with other inputs are left out.
    """
    known = dict(known or {})
    for line in body:
        name, _, rest = line.partition(" ")
        target, *sources = re.sub(r"[\[\]]", "", rest).split(", ")
        values = [known.get(s, 0 if "numba_tma_" in s else s) for s in sources]
        values = [int(v) if re.fullmatch(r"-?\d+", str(v)) else v for v in values]
        if sources and not any(isinstance(v, str) for v in values) and ".shared" not in name:
            operation = "mov" if name.startswith("ld.param") else name.partition(".")[0]
            if operation in OPERATIONS:
                known[target] = OPERATIONS[operation](*values) & 0xFFFFFFFF
    return known


def shared_addresses(body, indices):
    """Return the addresses at which a kernel, whose last parameters are `indices`, uses a tile."""
    last = max(int(n) for n in re.findall(r"param_(\d+)", " ".join(body)))
    held = integers(body, {f"param_{last - back}": i for back, i in enumerate(indices[::-1])})
    operands = [re.search(r"\[(%\w+)\+?(\d*)\]", line) for line in body if ".shared." in line]
    return [held[operand[1]] + int(operand[2] or 0) for operand in operands]


def check_addresses(body, tile, step=1):
    indices = np.indices(tile.shape)[..., ::step]
    (found,) = shared_addresses(body, indices)
    np.testing.assert_array_equal(found, tile.offset(*indices))


@pytest.mark.parametrize("tile", every(3, PADDED + EVERY_TILE + COMPLEX), ids=str)
def test_an_element_is_at_the_offset_of_the_tile(tile):
    def kernel(out, index):
        out[0] = tma.shared_tile(tile)[index]

    out = getattr(types, tile.dtype.compute)[::1]
    check_addresses(lines(kernel, out, types.UniTuple(I64, 2)), tile)


@pytest.mark.parametrize("tile", every(3, PADDED + EVERY_TILE), ids=str)
def test_a_vector_is_at_the_offset_of_the_tile(tile):
    def kernel(out, index):
        out[0] = tma.shared_tile(tile).read_vector(index)[0]

    out = getattr(types, tile.dtype.compute)[::1]
    body = lines(kernel, out, types.UniTuple(types.int32, 2))
    check_addresses(body, tile, step=16 // tile.itemsize)
    assert count(body, "ld.shared.v") == 1


@pytest.mark.parametrize("swizzle", Swizzle, ids=lambda s: s.name)
@pytest.mark.parametrize("rows", [(), (7,), (3, 5), (2, 3, 4), (2, 1, 3, 2)], ids=str)
def test_every_rank_and_type_of_index(rows, swizzle):
    tile = tile_of("f16", swizzle, rows)
    kinds = [types.uint32, types.int32, I64, types.uint64, types.int16][: tile.ndim]

    def kernel(out, index):
        tma.shared_tile(tile)[index] = out[0]

    check_addresses(lines(kernel, FLOATS, types.Tuple(kinds)), tile)


def test_a_literal_index_is_a_constant_address():
    tile = Tile((64, 64), "bf16", Swizzle.B128)

    def kernel(out):
        t = tma.shared_tile(tile)
        out[0] = t[5, 7] + t[63, 63] + t[9, 33]

    body = lines(kernel, FLOATS)
    where = [(5, 7), (63, 63), (9, 33)]
    assert sorted(shared_addresses(body, ())) == sorted(tile.offset(*at) for at in where)


# ------------------------------------------------------------------- what an access costs


@pytest.mark.parametrize("tile", every(7, EVERY_TILE), ids=str)
def test_reads_and_writes_of_every_type_assemble_without_local_memory(tile):
    last = 16 // tile.itemsize - 1

    def kernel(values, i, j):
        a, b = tma.shared_tile(tile), tma.shared_tile(tile)
        a[i, j] = values[0]
        a[i, j + 1] += values[1]
        v = a.read_vector((i, j))
        w = v * values[2] + b.read_vector((i, j)) - 1
        w += v
        b.write_vector((i, j), w)
        values[3] = b[i, j]
        values[4] = w.sum() + w.max() - w.min()
        values[5] = v[0] + w[last]

    ptx = compile_ptx(kernel, (getattr(types, tile.dtype.compute)[::1], I64, I64))
    report = ptxas(ptx)
    assert ".local" not in ptx and report.stack_frame == report.spill_stores == 0
    assert not report.warnings
    body = instructions(ptx)
    assert count(body, "ld.shared.v") == 2 and count(body, "st.shared.v") == 1
    assert not count(body, "call")


@pytest.mark.parametrize("name", dtypes.complex_names)
def test_a_complex_element_is_one_access(name):
    tile = tile_of(name, Swizzle.B128)

    def kernel(values, i, j):
        held = tma.shared_tile(tile)
        held[i, j] += values[0] * held[j, i].conjugate()
        held[j, 0] = held[i, 0].imag  # a real number, as NumPy takes it

    ptx = compile_ptx(kernel, (getattr(types, tile.dtype.compute)[::1], I64, I64))
    report, body = ptxas(ptx), instructions(ptx)
    assert ".local" not in ptx and report.stack_frame == report.spill_stores == 0
    assert count(body, "ld.shared.v2") == count(body, "ld.shared") == 3
    assert count(body, "st.shared.v2") == count(body, "st.shared") == 2


@pytest.mark.parametrize("name", dtypes.complex_names)
@pytest.mark.parametrize("access", [
    "held.read_vector((0, 0))", "held.write_vector((0, 0), v)", "held.vectors(i, 32)",
])  # fmt: skip
def test_complex_tiles_have_no_vectors(name, access):
    tile = tile_of(name, Swizzle.B128)
    source = f"def kernel(v, i):\n    held = tma.shared_tile(tile)\n    {access}"
    names = {"tma": tma, "tile": tile}
    exec(compile(source, "vectors", "exec"), names)
    words = re.escape(f"tile.view(Tile((10, {2 * tile.shape[1]}), {tile.dtype.word}, B128))")
    with pytest.raises(Exception, match=rf"elements of 2 words, and .* or vectors of {words}"):
        compile_ptx(names["kernel"], (types.float32, types.int32))


@pytest.mark.parametrize("swizzle", Swizzle, ids=lambda s: s.name)
def test_a_swizzle_costs_one_xor(swizzle):
    tile = Tile((64, swizzle.span // 4), "f32", swizzle)

    def kernel(out, i, j):
        out[0] = tma.shared_tile(tile)[i, j]

    body = lines(kernel, FLOATS, I64, I64)
    assert count(body, "xor") == (swizzle is not Swizzle.NONE)
    assert len(body) <= 15 + 3 * (swizzle is not Swizzle.NONE)


def test_an_augmented_assignment_is_one_load_and_one_store():
    def kernel(values, i):
        tma.shared_tile(TILE)[i, i] += values[0]

    body = lines(kernel, FLOATS, I64)
    assert (count(body, "ld.shared.f32"), count(body, "st.shared.f32")) == (1, 1)


def test_a_view_costs_nothing():
    def viewed(out, i):
        out[0] = tma.shared_tile(TILE).view(FLAT)[i]

    def plain(out, i):
        out[0] = tma.shared_tile(FLAT)[i]

    assert normal(lines(viewed, FLOATS, I64)) == normal(lines(plain, FLOATS, I64))


def normal(body):
    """Drop the names of allocations, which hold the name of their kernel."""
    return [re.sub(r"numba_tma_\w+", "tile", line) for line in body]


def test_a_read_after_a_wait_is_done_again():
    def kernel(out):
        tile, full = tma.shared_tile(TILE), tma.shared_barrier()
        out[0] = tile[0, 0]
        full.wait(0)
        out[1] = tile[0, 0]

    assert count(lines(kernel, FLOATS), "ld.shared.f32") == 2


def test_a_write_stays_before_the_fence_and_the_arrival():
    def kernel(values):
        tile, full = tma.shared_tile(TILE), tma.shared_barrier()
        tile[0, 0] = values[0]
        tma.fence_proxy_async()
        full.arrive()
        tile[0, 0] = values[1]

    order = [
        name
        for line in lines(kernel, FLOATS)
        for name in ("st.shared", "fence.proxy.async", "mbarrier.arrive")
        if line.startswith(name)
    ]
    assert order == ["st.shared", "fence.proxy.async", "mbarrier.arrive", "st.shared"]


# ------------------------------------------------------------------------- allocation


def shared_variables(ptx):
    """List (alignment, bytes) of a module's shared memory."""
    found = re.findall(r"\.shared \.align (\d+) \.b8 \w+\[(\d+)\]", ptx)
    return sorted((int(alignment), int(nbytes)) for alignment, nbytes in found)


@cuda.jit(device=True)
def scratch(values):
    tile = tma.shared_tile(TILE)
    tile[0, 0] = values[0]


@cuda.jit(device=True)
def more_scratch(values):
    tile = tma.shared_tile(TILE)
    tile[0, 0] = values[1]


def test_each_call_is_an_allocation_aligned_to_its_swizzle():
    a, b, c, d = (Tile((64, 8), "f32", swizzle) for swizzle in list(Swizzle)[:4])

    def kernel(values):
        tma.shared_barrier().init(1)
        tma.shared_tile(a)[0, 0] = values[0]
        tma.shared_tile(b)[0, 0] = values[0]
        tma.shared_tile(c)[0, 0] = values[0]
        tma.shared_tile(d)[0, 0] = values[0]
        tma.shared_tile(d)[0, 0] = values[0]

    variables = shared_variables(compile_ptx(kernel, (FLOATS,)))
    sizes = [tile.shared_nbytes for tile in (a, b, c, d, d)]
    assert variables == [(8, 8), *zip((128, 256, 512, 1024, 1024), sizes)]


def test_device_functions_have_allocations_of_their_own():
    def kernel(values):
        scratch(values)
        more_scratch(values)
        tma.shared_tile(TILE)[0, 0] = values[2]

    ptx = compile_ptx(kernel, (FLOATS,))
    assert shared_variables(ptx) == [(128, TILE.nbytes)] * 3
    assert ptxas(ptx).shared == 3 * TILE.nbytes


# --------------------------------------------------------------------------- the fence


@cuda.jit(device=True)
def increment(tile, i):
    tile[0, i] += 1


@cuda.jit(device=True, inline="always")
def add_one(value):
    return value + np.float32(1)


def identity(value):
    return value


@cuda.jit(device=True)
def total(tile, i):
    return tile[0, i] + tile.read_vector((0, i))[1]


def consumer(work, *arguments):
    """Return the instructions of a kernel whose consumer does `work` on each stage."""

    def kernel(x, out, n):
        pipe = PIPE.start()
        if pipe.is_producer():
            for t, stage in pipe.produce(0, n):
                x.load(stage.x, (t, 0), stage.barrier)
        else:
            for t, stage in pipe.consume(0, n):
                work(pipe, x, stage.x, out, t)

    return lines(kernel, MAP, FLOATS, I64)


@cuda.jit(device=True, forceinline=True)
def read_only(pipe, x, tile, out, t):
    out[t] = tile[0, cuda.threadIdx.x] + total(tile, 4)


@cuda.jit(device=True, forceinline=True)
def read_and_store(pipe, x, tile, out, t):
    out[t] = tile[0, cuda.threadIdx.x]
    pipe.store(x, tile, (t, 0), written=False)


@cuda.jit(device=True, forceinline=True)
def write_an_element(pipe, x, tile, out, t):
    tile[0, cuda.threadIdx.x] = out[t]


@cuda.jit(device=True, forceinline=True)
def write_a_vector(pipe, x, tile, out, t):
    tile.write_vector((0, 4), tile.read_vector((0, 0)))


@cuda.jit(device=True, forceinline=True)
def write_in_a_function(pipe, x, tile, out, t):
    increment(tile, t)


@cuda.jit(device=True, forceinline=True)
def write_in_a_view(pipe, x, tile, out, t):
    tile.view(FLAT)[t] = out[t]


@cuda.jit(device=True, forceinline=True)
def write_now_and_then(pipe, x, tile, out, t):
    if out[t] > 0:
        tile[0, t] = 0


@cuda.jit(device=True, forceinline=True)
def write_and_store(pipe, x, tile, out, t):
    tile[0, cuda.threadIdx.x] = out[t]
    pipe.store(x, tile, (t, 0))


@pytest.mark.parametrize("work", [read_only, read_and_store], ids=lambda f: f.__name__)
def test_a_consumer_that_only_reads_fences_before_it_hands_the_stage_back(work):
    body = consumer(work)
    assert count(body, "mbarrier.arrive.shared") == 1 and count(body, "ld.shared")
    assert count(body, "fence.proxy.async") == 1


@pytest.mark.parametrize(
    "work",
    [write_an_element, write_a_vector, write_in_a_function, write_in_a_view, write_now_and_then],
    ids=lambda f: f.__name__,
)
def test_a_consumer_that_writes_fences_before_it_hands_the_stage_back(work):
    body = consumer(work)
    assert count(body, "st.shared") and count(body, "fence.proxy.async")


GROUP = tma.Roles(load=tma.Warps(1), use=tma.Warpgroups(1))


@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize("writes", [True, False], ids=["stored", "loaded"])
def test_a_consumer_of_fragments_fences_before_it_hands_the_stage_back(writes, dtype):
    """By stmatrix and ldmatrix, or by words of 32 bits."""
    roles = {"producer": GROUP.load, "consumer": GROUP.use}
    pipeline = tma.TilePipeline(2, x=tma.Tile((64, 32), dtype), **roles)

    def kernel(out, n):
        pipe = pipeline.start()
        if GROUP.use.is_member():
            for _, stage in pipe.consume(0, n):
                if writes:
                    tma.fragment(32, dtype).store(stage.x, (0, 0))
                else:
                    tma.load_fragment(stage.x, (0, 0), 32).store_global(out, 0, 0)

    array = {"f16": types.float16, "f32": types.float32}[dtype][:, ::1]
    assert count(lines(kernel, array, I64), "fence.proxy.async") == 1


def test_a_store_fences_once():
    assert count(consumer(write_and_store), "fence.proxy.async") == 1


@extending.overload(identity, inline="always")
def _overload_identity(value):
    return lambda value: value


def beside_an_inlined_helper(values, n):
    pipe = PIPE.start()
    for t, stage in pipe.consume(0, n):
        tile = stage.x
        tile[0, t] = add_one(values[t])
        stage.x[1, t] = values[t]
        stage.x.view(FLAT)[t + 64] = add_one(values[0])
        stage.x.write_vector((4, 0), stage.x.read_vector((4, 0)) * values[t])


def beside_an_inlined_overload(values, n):
    pipe = PIPE.start()
    for t, stage in pipe.consume(0, n):
        tile = stage.x
        tile[0, t] = identity(values[t])
        stage.x[1, t] = values[t]
        stage.x.view(FLAT)[t + 64] = identity(values[0])
        stage.x.write_vector((4, 0), stage.x.read_vector((4, 0)) * values[t])


def beside_a_closure(values, n):
    def twice(value):
        return value + value

    pipe = PIPE.start()
    for t, stage in pipe.consume(0, n):
        tile = stage.x
        tile[0, t] = twice(values[t])
        stage.x[1, t] = values[t]
        stage.x.view(FLAT)[t + 64] = twice(values[0])
        stage.x.write_vector((4, 0), stage.x.read_vector((4, 0)) * values[t])


@pytest.mark.parametrize(
    "kernel", [beside_an_inlined_helper, beside_an_inlined_overload, beside_a_closure]
)
def test_writes_survive_what_numba_inlines(kernel):
    # Numba's own dead-code elimination runs after some of it, and takes a tile for an array that
    # nobody reads any more.
    body = lines(kernel, FLOATS, I64)
    assert (count(body, "st.shared.f32"), count(body, "st.shared.v")) == (3, 1)
    assert count(body, "fence.proxy.async")


VALUES = {
    "a tile": lambda: tma.shared_tile(TILE),
    "a barrier": lambda: tma.shared_barrier(),
    "barriers": lambda: tma.shared_barriers(3),
}


@pytest.mark.parametrize("what", VALUES)
def test_an_address_is_not_assigned_to(what):
    make = cuda.jit(device=True, forceinline=True)(VALUES[what])

    def kernel(out):
        made = make()
        made.address = 0

    with pytest.raises((TypingError, CudaTypingError), match="its address is not assigned to"):
        compile_ptx(cuda.jit(kernel), (FLOATS,))


@pytest.mark.parametrize(
    "value",
    [SharedTile(TILE, 0, TileAccesses()), Barrier(0), BarrierArray(3, 0)],
    ids=lambda value: type(value).__name__,
)
def test_an_address_is_not_assigned_to_in_the_simulator(value):
    with pytest.raises(FrozenInstanceError):
        value.address = 8
