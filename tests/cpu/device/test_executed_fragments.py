"""Tiles and fragments in compiled kernels, executed: the addresses and the words of each thread."""

import numpy as np
import pytest
from numba import cuda, typeof, types

import numba_tma as tma
from numba_tma import Swizzle, Tile
from numba_tma.device.fragment_moves import (
    add_global_by_thread,
    packed_e4m3,
    row_fragment,
    store_by_thread,
    store_global_by_thread,
    store_rows,
)
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.mma_rules import fragment_coords, num_elements
from numba_tma.tools.testing import compile_ptx
from tests.kernels.matrix_operands import noise
from tests.ptx_machine import Machine
from tests.tiers import every

I32 = types.int32
INTS = types.int32[:, ::1]
WARPGROUP = range(128)


def compiled(body, *signature, cc=(9, 0, "a")):
    return compile_ptx(cuda.jit(body), signature, cc=cc)


def tiles():
    """List tiles of each swizzle and size of element, with rows of one slab and of several."""
    found = []
    for swizzle in Swizzle:
        for dtype in ("u8", "bf16", "f32", "f64"):
            span = max(swizzle.span, 32) // as_dtype(dtype).itemsize
            found += [
                Tile((24, span), dtype, swizzle),
                Tile((5, 3, 2 * span + span // 2), dtype, swizzle),
            ]
    return found


def places(tile, count=12, step=1):
    """Return random indices of a tile, the corners among them."""
    rng = np.random.default_rng(0)
    last = [n - 1 for n in tile.shape]
    chosen = [[0] * tile.ndim, last] + [rng.integers(tile.shape).tolist() for _ in range(count)]
    return [(*outer, inner - inner % step) for *outer, inner in chosen]


@pytest.mark.parametrize("tile", every(5, tiles()), ids=str)
def test_elements_of_a_tile_are_where_the_layout_says(tile):
    chunk, two = tile.dtype.chunk, tile.ndim == 2

    def kernel(out, i, j, k):
        held = tma.shared_tile(tile)
        if two:
            index, vector = (i, k), (i, k - k % chunk)
        else:
            index, vector = (i, j, k), (i, j, k - k % chunk)
        out[0, 0] = held.address_of(index)
        held[index] = held[index] + 1
        vectors = held.read_vector(vector)
        held.write_vector(vector, vectors + vectors)

    out = np.zeros((1, 1), np.int32)
    ptx = compiled(kernel, INTS, I32, I32, I32)
    for index in places(tile):
        given = index if tile.ndim == 3 else (index[0], 0, index[1])
        machine = Machine(ptx, out, *given)
        machine.run()
        (base,) = machine.shared
        address = base + tile.offset(*index)
        vector = base + tile.offset(*index[:-1], index[-1] // chunk * chunk)
        assert out[0, 0] == address
        found = {(name[:2], *at) for name, *at in machine.accesses if ".shared" in name}
        accesses = ((address, tile.itemsize), (vector, 16))
        assert found == {(kind, *access) for access in accesses for kind in ("ld", "st")}


# --------------------------------------------------------------------------- fragments


@pytest.mark.parametrize("dtype", ["f32", "bf16", "e4m3"])
def test_coordinates_of_elements(dtype):
    n = 48

    def kernel(out):
        thread = cuda.threadIdx.x
        held = tma.fragment(n, dtype)
        for i in range(held.num_elements):
            out[thread, 2 * i], out[thread, 2 * i + 1] = held.coords(i)

    out = np.zeros((128, n), np.int32)
    machine = Machine(compiled(kernel, INTS), out)
    machine.run_together(WARPGROUP)
    i, thread = np.indices((num_elements(n), 128))
    expected = fragment_coords(i, thread, as_dtype(dtype).itemsize)
    np.testing.assert_array_equal(out.reshape(128, -1, 2).transpose(2, 1, 0), expected)


def test_coordinates_of_rows():
    def kernel(out):
        held = tma.rows(np.float32(0))
        for i in range(2):
            out[cuda.threadIdx.x, i] = held.coords(i)

    out = np.zeros((128, 2), np.int32)
    Machine(compiled(kernel, INTS), out).run_together(WARPGROUP)
    i, thread = np.indices((2, 128))
    np.testing.assert_array_equal(out.T, fragment_coords(2 * i, thread)[0])


def bits_of(dtype):
    return np.dtype(f"u{as_dtype(dtype).itemsize}") if dtype != "f32" else np.dtype(np.float32)


def fill(machine, number, tile, matrix):
    """Write a matrix to the shared tile of a number, where the layout has its elements."""
    base = machine.shared[number]
    rows, columns = np.indices(tile.shape)
    for at, element in zip(tile.offset(rows, columns).ravel().tolist(), matrix.ravel()):
        machine.poke_shared(base + at, element.tobytes())


def held(machine, number, tile, dtype):
    """Return the elements of a shared tile as a matrix."""
    base = machine.shared[number]
    places = tile.offset(*np.indices(tile.shape)).ravel().tolist()
    raw = b"".join(machine.peek_shared(base + at, tile.itemsize) for at in places)
    return np.frombuffer(raw, dtype).reshape(tile.shape)


FORMS = [
    (dtype, swizzle, n)
    for dtype in ("f32", "i32", "f16", "e4m3", "u8")
    for swizzle in Swizzle
    for n in (32, 8 if as_dtype(dtype).itemsize > 1 else 16)
]


@pytest.mark.parametrize(("dtype", "swizzle", "n"), every(11, FORMS), ids=str)
def test_a_fragment_goes_from_tile_to_tile_and_to_an_array(dtype, swizzle, n):
    size = as_dtype(dtype).itemsize
    span = max(swizzle.span, 32) // size
    source = Tile((72, 2 * span + n), dtype, swizzle)
    target = Tile((80, 96), dtype, swizzle)
    number = np.dtype(as_dtype(dtype).numpy)
    bits = number if dtype in ("f32", "i32") else np.dtype(f"u{size}")

    def kernel(out, row, column, to_row, to_column):
        taken, given = tma.shared_tile(source), tma.shared_tile(target)
        moved = tma.load_fragment(taken, (row, column), n)
        moved.store(given, (to_row, to_column))
        moved.store_global(out, to_row, to_column)

    matrix = noise(dtype, source.shape)
    unit = 16 // size
    array = getattr(types, bits.name)[:, ::1]
    ptx = compiled(kernel, array, I32, I32, I32, I32)
    for row, column, to_row, to_column in [(5, span + unit, 11, unit), (8, 0, 0, 3 * unit)]:
        out = np.zeros(target.shape, bits)
        machine = Machine(ptx, out, row, column, to_row, to_column)
        fill(machine, 0, source, matrix)
        machine.run_together(WARPGROUP)
        expected = np.zeros(target.shape, number)
        moved = matrix[row : row + 64, column : column + n]
        expected[to_row : to_row + 64, to_column : to_column + n] = moved
        np.testing.assert_array_equal(held(machine, 1, target, bits), expected.view(bits))
        np.testing.assert_array_equal(out, expected.view(bits))


def executed(body, *arguments, start=None):
    """Execute a kernel by a warpgroup; `start` fills the machine's shared memory before."""
    kinds = [typeof(a) if isinstance(a, np.ndarray) else I32 for a in arguments]
    machine = Machine(compiled(body, *kinds), *arguments)
    if start:
        start(machine)
    machine.run_together(WARPGROUP)
    return machine


ROWS, COLUMNS = np.indices((64, 32))
SOURCE = Tile((64, 32), "f32")
NUMBERS = (ROWS * 37 % 64 - COLUMNS * 11 % 32).astype(np.float32)


def fill_numbers(machine):
    fill(machine, 0, SOURCE, NUMBERS)


ARRAYS = {
    "contiguous": lambda: np.zeros((80, 40), np.float32),
    "Fortran order": lambda: np.zeros((80, 40), np.float32, "F"),
    "odd rows": lambda: np.zeros((80, 41), np.float32),
    "smaller": lambda: np.zeros((50, 21), np.float32),
}


@pytest.mark.parametrize("array", ARRAYS)
def test_elements_outside_of_an_array_are_not_written(array):
    def kernel(out, row, column):
        tma.load_fragment(tma.shared_tile(SOURCE), (0, 0), 32).store_global(out, row, column)

    ptx = compiled(kernel, typeof(ARRAYS[array]()), I32, I32)
    for row, column in [(0, 0), (3, 4), (-9, 2), (20, -7)]:
        out = ARRAYS[array]()
        rows, columns = ROWS + row, COLUMNS + column
        inside = (rows >= 0) & (rows < out.shape[0]) & (columns >= 0) & (columns < out.shape[1])
        expected = out.copy()
        expected[rows[inside], columns[inside]] = NUMBERS[inside]
        machine = Machine(ptx, out, row, column)
        fill_numbers(machine)
        machine.run_together(WARPGROUP)
        np.testing.assert_array_equal(out, expected)


def test_a_map_gets_the_row_and_the_column():
    def number(value, row, column, other, each):
        return value + np.float32(100 * row + 10000 * column) + each - other

    number = cuda.jit(device=True, forceinline=True)(number)

    def kernel(out):
        held = tma.load_fragment(tma.shared_tile(SOURCE), (0, 0), 32)
        scale = tma.load_rows(tma.shared_tile(SCALES), 16)
        held.map_coords(number, held, scale).store_global(out, 0, 0)

    SCALES = Tile((80,), "f32")
    scales = np.arange(80, dtype=np.float32)

    def start(machine):
        fill_numbers(machine)
        machine.poke_shared(machine.shared[1], scales.tobytes())

    out = np.zeros((64, 32), np.float32)
    executed(kernel, out, start=start)
    np.testing.assert_array_equal(out, 100 * ROWS + 10000 * COLUMNS + scales[16:, None])


@pytest.mark.parametrize("quad", [True, False])
def test_reductions_of_rows(quad):
    def kernel(out, both):
        held = tma.load_fragment(tma.shared_tile(SOURCE), (0, 0), 32)
        most, total = held.row_max(quad), held.row_sum(quad)
        if not quad:
            most, total = most.quad_max(), total.quad_sum()
        both[most.coords(0), 0], both[most.coords(0), 1] = most[0], total[0]
        both[most.coords(1), 0], both[most.coords(1), 1] = most[1], total[1]
        (held * 0 + most - total).store_global(out, 0, 0)

    out, both = np.zeros((64, 32), np.float32), np.zeros((64, 2), np.float32)
    executed(kernel, out, both, start=fill_numbers)
    most, total = NUMBERS.max(1), NUMBERS.sum(1)
    np.testing.assert_array_equal(both, np.stack([most, total], 1))
    np.testing.assert_array_equal(out, np.broadcast_to((most - total)[:, None], out.shape))


@pytest.mark.parametrize("dtype", ["f16", "bf16", "e4m3", "e5m2"])
def test_conversions(dtype):
    def kernel(out):
        held = tma.load_fragment(tma.shared_tile(SOURCE), (0, 0), 32)
        held.to(dtype).columns(16, 16).store_global(out, 0, 0)

    number = as_dtype(dtype).numpy
    out = np.zeros((64, 16), f"u{as_dtype(dtype).itemsize}")
    executed(kernel, out, start=fill_numbers)
    np.testing.assert_array_equal(out.view(number), NUMBERS[:, 16:].astype(number))


def test_moves_of_attention():
    ROW, COPY = Tile((32,), "f32"), Tile((64, 32), "f32")

    def kernel(out, packed, firsts, count):
        held = tma.load_fragment(tma.shared_tile(SOURCE), (0, 0), 32)
        row_fragment(tma.shared_tile(ROW)).store_global(out, 0, 0)
        store_by_thread(held, tma.shared_tile(COPY))
        packed_e4m3(held).store_global(packed, 0, 0)
        store_rows(held, firsts.ctypes.data, 160, count)

    row = np.arange(32, dtype=np.float32)

    def start(machine):
        fill_numbers(machine)
        machine.poke_shared(machine.shared[1], row.tobytes())

    out, packed = np.zeros((64, 32), np.float32), np.zeros((64, 32), np.uint8)
    firsts = np.zeros((64, 40), np.float32)
    machine = executed(kernel, out, packed, firsts, 37, start=start)
    np.testing.assert_array_equal(out, np.broadcast_to(row, out.shape))
    # Slots of 16 bytes: elements 4 i to 4 i + 3 of thread t are in slot 128 i + t.
    slots = np.frombuffer(machine.peek_shared(machine.shared[2], COPY.nbytes), np.float32)
    element, thread = np.indices((16, 128))
    found = slots.reshape(4, 128, 4).transpose(0, 2, 1).reshape(16, 128)
    np.testing.assert_array_equal(found, NUMBERS[fragment_coords(element, thread)])
    order = [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15]
    turned = NUMBERS[:, order + [16 + i for i in order]].astype(as_dtype("e4m3").numpy)
    np.testing.assert_array_equal(packed, turned.view(np.uint8))
    np.testing.assert_array_equal(firsts[:37, :32], NUMBERS[:37])
    assert not firsts[37:].any() and not firsts[:, 32:].any()


@pytest.mark.parametrize("columns", [0, 128, 129])
def test_columns_in_the_order_of_the_threads_are_moved_by_pieces_of_128(columns):
    """A column takes 256 bytes; what is added to it was written in the same order."""

    def kernel(out, added, columns):
        ones = tma.fragment(256) + np.float32(1)
        store_global_by_thread(ones, out.ctypes.data, columns)
        twos = add_global_by_thread(ones, out.ctypes.data, columns)
        store_global_by_thread(twos, added.ctypes.data, 256)

    out, added = np.zeros((2, 256, 64), np.float32)
    executed(kernel, out, added, columns)
    moved = np.arange(256)[:, None] < -(-columns // 128) * 128
    np.testing.assert_array_equal(out, np.broadcast_to(moved, out.shape))
    np.testing.assert_array_equal(added, 1 + out)
