"""Copies in compiled kernels, executed: addresses, coordinates, masks and barriers of each copy."""

import pytest
from numba import cuda, types

import numba_tma as tma
from numba_tma import Swizzle, TensorMapType, Tile
from numba_tma.host.boxes import Copies, copies_of
from numba_tma.tools.testing import compile_ptx
from tests.ptx_machine import Machine

I32 = types.int32
B32, B64, B128 = Swizzle.B32, Swizzle.B64, Swizzle.B128
MAP = bytes(128)
RANK_BIT = 24  # of a shared address: the machine's own


def compiled(kernel, *kinds, cc=(9, 0, "a")):
    """Return a function that executes thread 0 of a kernel with the values of its parameters.

    It returns what each copy is given, and the addresses of the shared variables.
    """
    ptx = compile_ptx(cuda.jit(kernel), kinds, cc=cc)

    def execute(*values, **special):
        machine = Machine(ptx, *values)
        log = machine.run(**special)
        return [given for name, given in log if name.startswith("cp.")], machine.shared

    return execute


TILES = [
    *(
        Tile((16, 32), "f32"),
        Tile((64, 160), "bf16", B128),
        Tile((300, 48), "i32"),
        Tile(512, "f64"),
    ),
    *(Tile((8, 80), "f32", B128), Tile((2, 8, 40), "f32", B64), Tile((3, 4, 5, 16), "f32", B32)),
    *(Tile((16, 24), "c64"), Tile((8, 40), "c64", B128), Tile((2, 4, 256), "c128")),
]
FOLDED = [
    *(Tile((64, 256), "bf16", B128), Tile((3, 64, 32), "f32", B64), Tile((8, 1024), "f16")),
    *(Tile((32, 96), "f32", B32), Tile((64, 64), "c64", B128), Tile((8, 384), "c128")),
]
STRIDED = [Tile((16, 160), "f32"), Tile((200, 32), "f32", B128)]
COPIES = [
    *(copies_of(tile) for tile in TILES),
    *(Copies(tile, (1,) * tile.ndim, fold=True) for tile in FOLDED),
    *(copies_of(tile, (2,) + (1,) * (tile.ndim - 1)) for tile in STRIDED),
]


@pytest.mark.parametrize("copies", COPIES, ids=lambda c: f"{c.summary}{c.tile}")
def test_each_box_is_copied_where_the_layout_says(copies):
    tile, rank = copies.tile, copies.tile.ndim
    kind = TensorMapType(rank, tile, copies=copies)

    def kernel(x, start):
        held, barrier = tma.shared_tile(tile), tma.shared_barrier()
        x.load(held, start, barrier)
        x.store(held, start)
        x.reduce(held, start, "add")
        x.prefetch_tile(start)

    column = 3 * copies.part if copies.fold else 24
    start = (*range(5, 5 + rank - 1), column)
    found, (held, barrier) = compiled(kernel, kind, types.UniTuple(I32, rank))(MAP, *start)
    each = [(held + offset, coords[::-1]) for offset, coords in copies.each(start)]
    x = found[0][1][0]
    loads = [(address, (x, coords), barrier) for address, coords in each]
    stores = [((x, coords), address) for address, coords in each]
    fetched = [((x, coords),) for _, coords in each]
    assert found == [*loads, *stores, *stores, *fetched]


@pytest.mark.parametrize("tile", [FOLDED[0], FOLDED[-1]], ids=str)
def test_a_column_inside_of_a_part_is_no_copy(tile):
    copies = Copies(tile, (1, 1), fold=True)
    kind = TensorMapType(2, copies.tile, copies=copies)

    def kernel(x, start):
        x.load(tma.shared_tile(tile), start, tma.shared_barrier())

    execute = compiled(kernel, kind, types.UniTuple(I32, 2))
    for column in range(-copies.part, 2 * copies.part, copies.part // 4):
        loads, _ = execute(MAP, 0, column)
        assert {coords[0] for _, (_, coords), _ in loads} == {column % copies.part != 0}


def test_options_of_loads():
    tile = TILES[1]

    def kernel(x, mask, hint):
        held, barrier = tma.shared_tile(tile), tma.shared_barrier()
        x.load(held, (0, 0), barrier, multicast=mask)
        x.load(held, (0, 0), barrier, hint)
        x.load(held, (0, 0), barrier, hint, mask)

    execute = compiled(kernel, TensorMapType(2, tile), types.uint16, types.uint64)
    found, (_, barrier) = execute(MAP, 0xABCD, 1 << 60 | 5)
    per_load = [given[2:] for given in found]
    options = [(0xABCD,), (1 << 60 | 5,), (0xABCD, 1 << 60 | 5)]
    assert per_load == [(barrier, *each) for each in options for _ in range(3)]


@pytest.mark.parametrize("rank", range(4))
def test_a_pair_counts_on_the_barrier_of_its_even_block(rank):
    tile = TILES[0]

    @tma.cluster((4, 1))
    def kernel(x):
        x.load(tma.shared_tile(tile), (0, 32), tma.shared_barrier(), cta_group=2)

    ((destination, _, home),), (held, barrier) = compiled(
        kernel, TensorMapType(2, tile), cc=(10, 0, "a")
    )(MAP, cluster_ctarank=rank)
    assert destination == held
    assert home == barrier | rank // 2 * 2 << RANK_BIT


SLICES = [(Tile((64, 32), "f32", B128), 4), (Tile((48, 24), "f32"), 3), (Tile((8, 16, 8), "u8"), 8)]
SLICES += [(Tile((64, 16), "c64", B128), 4)]


@pytest.mark.parametrize(("tile", "count"), SLICES, ids=str)
def test_each_block_loads_its_slice_for_all(tile, count):
    part = Tile((tile.shape[0] // count, *tile.shape[1:]), tile.dtype, tile.swizzle)
    axes = tile.ndim

    def kernel(x, start, rank, mask):
        held, barrier = tma.shared_tile(tile), tma.shared_barrier()
        tma.load_partitioned(x, held, start, barrier, rank)
        tma.load_partitioned(x, held, start, barrier, rank, multicast=mask)

    execute = compiled(
        kernel, TensorMapType(axes, part), types.UniTuple(I32, axes), I32, types.uint16
    )
    start = (7, 4, 16)[:axes]
    for rank in range(count):
        loads, (held, barrier) = execute(MAP, *start, rank, 0x8421)
        coords = copies_of(part).in_words((7 + rank * part.shape[0], *start[1:]))[::-1]
        address = held + tile.offset(rank * part.shape[0], *(0,) * (axes - 1))
        (x, _) = loads[0][1]
        assert loads == [
            (address, (x, coords), barrier, mask) for mask in ((1 << count) - 1, 0x8421)
        ]
