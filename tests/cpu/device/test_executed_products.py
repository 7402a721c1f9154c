"""Products in compiled kernels, executed: what mma.sync multiplies, and wgmma's descriptors."""

import numpy as np
import pytest
from numba import cuda, types

import numba_tma as tma
from numba_tma.device.warp_products import load_part, mma_sync
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.mma_rules import fragment_coords, num_elements
from numba_tma.tools.testing import compile_ptx
from tests.kernels.matrix_operands import Operand, operands
from tests.ptx_machine import Machine
from tests.tiers import every

I32 = types.int32
WARPGROUP = range(128)
NONE = tma.Swizzle.NONE


def small(dtype, shape, seed):
    """Return a matrix of small integers, whose products are exact."""
    low = 0 if dtype == "u8" else -3
    numbers = np.random.default_rng(seed).integers(low, 4, shape)
    return numbers.astype(as_dtype(dtype).numpy)


def fill(machine, number, tile, tensor):
    """Write an array to the shared tile of a number, where the layout has its elements."""
    places = tile.offset(*np.indices(tile.shape)).ravel().tolist()
    for at, element in zip(places, tensor.ravel()):
        machine.poke_shared(machine.shared[number] + at, element.tobytes())


PRODUCTS = [
    (a, b, major, swizzle)
    for a, b in [
        *(("f16", "f16"), ("bf16", "bf16"), ("tf32", "tf32")),
        *(("e4m3", "e5m2"), ("e5m2", "e4m3"), ("i8", "u8"), ("u8", "i8")),
    ]
    for major in ("K", "MN")
    for swizzle in (tma.Swizzle.B32, tma.Swizzle.B64, tma.Swizzle.B128)
    if major == "K" or as_dtype(a).itemsize == 2
]


@pytest.mark.parametrize(("a", "b", "major", "swizzle"), every(6, PRODUCTS), ids=str)
def test_mma_sync_multiplies_the_parts_of_tiles(a, b, major, swizzle):
    unit = 32 // as_dtype(a).itemsize  # elements of a step along K
    span = swizzle.span // as_dtype(a).itemsize
    k = span if major == "K" else 2 * unit
    # ldmatrix loads MN-major rows of A from a span of 128 bytes alone.
    left = Operand(192, k, a, major, tma.Swizzle.B128 if major == "MN" else swizzle)
    right = Operand(2 * span + 64, k, b, major, swizzle)
    x_tile, y_tile = left.tile, right.tile
    step = k // unit - 1
    row, column = (8, 16) if major == "K" else (64, 2 * span)
    kind = "i32" if a in ("i8", "u8") else "f32"

    def kernel(out, first, other):
        x, y = tma.shared_tile(x_tile), tma.shared_tile(y_tile)
        part = load_part("a", x, first, 128, step, major)
        columns = load_part("b", y, other, 32, step, major)
        sums = tma.fragment(32, kind) + 1, tma.fragment(32, kind) + 2
        upper, lower = mma_sync(sums, part, columns)
        upper.store_global(out, 0, 0)
        lower.store_global(out, 64, 0)

    x, y = small(a, (left.rows, k), 0), small(b, (right.rows, k), 1)
    number = np.int32 if kind == "i32" else np.float32
    out = np.zeros((128, 32), number)
    array = (types.int32 if kind == "i32" else types.float32)[:, ::1]
    ptx = compile_ptx(cuda.jit(kernel), (array, I32, I32), cc=(9, 0, "a"))
    machine = Machine(ptx, out, row, column)
    fill(machine, 0, x_tile, left.as_tensor(x))
    fill(machine, 1, y_tile, right.as_tensor(y))
    machine.run_together(WARPGROUP)
    x, y = x[row : row + 128, step * unit :], y[column : column + 32, step * unit :]
    x, y = x.astype(np.float64), y.astype(np.float64)
    expected = x @ y.T + np.repeat([1, 2], 64)[:, None]
    np.testing.assert_array_equal(out, expected)


def pairs():
    """List an operand of A and one of B of each form that wgmma reads, with different layouts."""
    found = {}
    for operand in operands("wgmma", dtypes=("bf16", "tf32", "e4m3", "i8")):
        if operand.rows >= 64:
            found.setdefault((operand.dtype, operand.k), []).append(operand)
    return [(group[i], group[-1 - i]) for group in found.values() for i in range(len(group))]


@pytest.mark.parametrize(("a", "b"), every(8, pairs()), ids=str)
def test_wgmma_gets_the_descriptor_of_each_step(a, b):
    kind = "i32" if a.dtype == "i8" else "f32"
    x_layout, y_layout = a.layout(), b.layout()
    x_tile, y_tile, x_major, y_major = a.tile, b.tile, a.major, b.major

    def kernel(out, row, other):
        x, y = tma.shared_tile(x_tile), tma.shared_tile(y_tile)
        left = x.matrix_descriptor(x_major).advance(row=row)
        right = y.matrix_descriptor(y_major).advance(row=other)
        acc = tma.wgmma_wait(tma.wgmma(tma.fragment(8, kind), left, right))
        acc.store_global(out, 0, 0)

    array = (types.int32 if kind == "i32" else types.float32)[:, ::1]
    ptx = compile_ptx(cuda.jit(kernel), (array, I32, I32), cc=(9, 0, "a"))
    out = np.zeros((64, 8), np.int32)
    for row, other in [(0, 0), (x_layout.row_unit, 2 * y_layout.row_unit)]:
        if row >= a.rows or other >= b.rows:
            continue
        machine = Machine(ptx, out, row, other)
        log = machine.run()
        (x_base, y_base) = machine.shared
        found = [given[1:3] for name, given in log if name.startswith("wgmma.mma_async")]
        assert found == [
            (x_layout.descriptor(x_base, k, row), y_layout.descriptor(y_base, k, other))
            for k in range(x_layout.num_k_steps)
        ]


@pytest.mark.parametrize("dtype", ["f16", "e4m3"])
def test_wgmma_gets_a_from_registers(dtype):
    k = 3 * 32 // as_dtype(dtype).itemsize
    source, columns = tma.Tile((64, k), dtype), Operand(16, k, dtype, "K", NONE)
    y_tile = columns.tile

    def kernel(out, fresh):
        a = tma.load_fragment(tma.shared_tile(source), (0, 0), k)
        y = tma.shared_tile(y_tile).matrix_descriptor()
        acc = tma.wgmma(tma.fragment(16), a, y, scale_d=fresh == 0, commit=False)
        tma.wgmma_wait(tma.wgmma(acc, a, y, fence=False)).store_global(out, 0, 0)

    matrix = small(dtype, source.shape, 2)
    ptx = compile_ptx(cuda.jit(kernel), (types.float32[:, ::1], I32), cc=(9, 0, "a"))
    for fresh in (0, 1):
        machine = Machine(ptx, np.zeros((64, 16), np.float32), fresh)
        fill(machine, 0, source, matrix)
        logs = machine.run_together(WARPGROUP)
        i, thread = np.indices((num_elements(k), 128))
        held = matrix[fragment_coords(i, thread, as_dtype(dtype).itemsize)]
        words = np.ascontiguousarray(held.T).view(np.uint32)
        for own, log in zip(words, logs, strict=True):
            products = [given for name, given in log if name.startswith("wgmma.mma")]
            left, right, scaled = zip(*(given[1:4] for given in products))
            assert left == 2 * tuple(map(tuple, own.reshape(3, 4).tolist()))
            assert list(right) == 2 * [
                columns.layout().descriptor(machine.shared[1], step) for step in range(3)
            ]
            assert scaled == (1 - fresh, 1, 1, 1, 1, 1)
            names = [name.split(".")[1] for name, _ in log if name.startswith("wgmma")]
            product = ["mma_async"] * 3
            assert names == ["fence", *product, *product, "commit_group", "wait_group"]
