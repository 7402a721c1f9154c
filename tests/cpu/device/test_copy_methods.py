"""A map's methods, multicast and the partitioned load: their PTX and their errors."""

import re
from types import SimpleNamespace

import pytest
from numba import types
from numba.core.errors import TypingError
from numba.cuda.core.errors import TypingError as CudaTypingError

import numba_tma as tma
from numba_tma import TensorMapType, Tile, ptx
from numba_tma.backend.lowering.types import TensorMapArrayType
from numba_tma.device.copy_rules import check_copy
from numba_tma.device.multicast import count_slices
from numba_tma.host import tensor_map as tensor_maps
from numba_tma.host.boxes import Copies, copies_of
from numba_tma.simulator import BadOperand
from numba_tma.simulator.checks import check_coordinates
from numba_tma.tools.testing import compile_ptx, ptxas

TILE, SLICE, COUNTS = Tile((64, 32), "f32"), Tile((16, 32), "f32"), Tile((16, 32), "u32")
MAP, SLICES, COUNTERS = (TensorMapType(2, t) for t in (TILE, SLICE, COUNTS))
I64 = types.int64
LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
REDUCE = "cp.reduce.async.bulk.tensor.2d.global.shared::cta"


def copies(kernel, *arguments):
    """Compile and assemble; return the bulk copies without their operands."""
    text = compile_ptx(kernel, arguments)
    assert ptxas(text).warnings == ()
    return re.findall(r"^\s*(cp\.\S+)", text, re.M)


def message(kernel, *arguments, cc=(9, 0, "a")):
    with pytest.raises((TypingError, CudaTypingError)) as caught:
        compile_ptx(kernel, arguments, cc=cc)
    return re.sub(r"\s+", " ", str(caught.value))


def every_load(x, mask):
    tile, barrier = tma.shared_tile(TILE), tma.shared_barrier()
    x.load(tile, (0, 0), barrier)
    x.load(tile, (0, 0), barrier, None)
    x.load(tile, (0, 0), barrier, tma.CachePolicy.EVICT_FIRST)
    x.load(tile, (0, 0), barrier, multicast=3)
    x.load(tile, (0, 0), barrier, None, mask)
    x.load(tile, (0, 0), barrier, cache_hint=None, multicast=None)
    x.load(barrier=barrier, coords=(0, 0), tile=tile, multicast=mask, cache_hint=2**60)


def test_loads_with_and_without_options():
    hint, multicast = ".L2::cache_hint", ".multicast::cluster"
    options = ["", "", hint, multicast, multicast, "", multicast + hint]
    assert copies(every_load, MAP, I64) == [LOAD + option for option in options]


def every_other_method(x):
    tile = tma.shared_tile(COUNTS)
    x.prefetch_tile((0, 0))
    x.prefetch_tile((0, 32), cache_hint=tma.CachePolicy.EVICT_LAST)
    x.reduce(tile, (0, 0), "inc")
    x.reduce(tile, (0, 0), op="xor", cache_hint=tma.CachePolicy.EVICT_LAST)
    x.store(tile, (0, 0))
    x.store(tile, (0, 0), tma.CachePolicy.EVICT_LAST)


def test_the_other_methods():
    prefetch = "cp.async.bulk.prefetch.tensor.2d.L2.global"
    store = "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group"
    assert copies(every_other_method, COUNTERS) == [
        prefetch,
        f"{prefetch}.L2::cache_hint",
        f"{REDUCE}.inc.bulk_group",
        f"{REDUCE}.xor.bulk_group.L2::cache_hint",
        store,
        f"{store}.L2::cache_hint",
    ]


def reduce_any(x):
    x.reduce(tma.shared_tile(TILE), (0, 0), "max")


def test_a_map_of_which_only_the_rank_is_known_takes_any_operation():
    assert copies(reduce_any, TensorMapType(2)) == [f"{REDUCE}.max.bulk_group"]


def reduce_by_a_variable(x, op):
    x.reduce(tma.shared_tile(TILE), (0, 0), op)


def reduce_by_something_else(x, op):
    x.reduce(tma.shared_tile(TILE), (0, 0), "mean")


def reduce_before_the_tensor(x, op):
    x.reduce(tma.shared_tile(TILE), (0, -4), "add")


def reduce_another_tile(x, op):
    x.reduce(tma.shared_tile(COUNTS), (0, 0), "add")


def load_to_a_float(x, op):
    x.load(tma.shared_tile(TILE), (0, 0), tma.shared_barrier(), None, (1, 2))


def prefetch_off_16_bytes(x, op):
    x.prefetch_tile((0, 2))


def prefetch_on_one_axis(x, op):
    x.prefetch_tile((0,))


@pytest.mark.parametrize(
    ("kernel", "parts"),
    [
        (reduce_any, ["TensorMap.reduce: the copy engine has no reduction 'max' of f32"]),
        (reduce_by_a_variable, ["no reduction int64 of f32: it has 'add'"]),
        (reduce_by_something_else, ["no reduction 'mean' of f32: it has 'add'"]),
        (reduce_before_the_tensor, ["axis 1 is -4; a reduction starts inside or past"]),
        (reduce_another_tile, ["the map copies Tile((64, 32), f32, NONE) but the tile"]),
        (load_to_a_float, ["(multicast=...) takes an integer (uint16)"]),
        (prefetch_off_16_bytes, ["TensorMap.prefetch_tile: the innermost coordinate is 2"]),
        (prefetch_on_one_axis, ["1 coordinates for", "give one coordinate per axis"]),
    ],
)
def test_what_the_methods_refuse(kernel, parts):
    text = message(kernel, MAP, *[I64] * (kernel is not reduce_any))
    assert all(part in text for part in parts), text


@pytest.mark.parametrize("method", ["reduce", "prefetch_tile"])
def test_the_host_has_no_copies(method):
    arguments = {"reduce": (None, (0, 0), "add"), "prefetch_tile": ((0, 0),)}[method]
    with pytest.raises(RuntimeError, match=f"TensorMap.{method} runs inside a @cuda.jit kernel"):
        getattr(tma.TensorMap, method)(object(), *arguments)


def reduce_bytes(y):
    ptx.cp_reduce_async_bulk_store(y, tma.shared_tile(TILE), 64, "min.f32")


def mask_bytes(y):
    ptx.cp_async_bulk_store_masked(y, tma.shared_tile(TILE), 64, 0xFF)


def gather(x):
    barrier = tma.shared_barrier()
    ptx.cp_async_bulk_tensor_gather4(tma.shared_tile(TILE), x, 0, 1, 2, 3, 0, barrier)


def test_pairs_that_ptx_does_not_have():
    text = message(reduce_bytes, types.uint8[::1])
    assert "one of 'add.u32', 'add.s32'" in text and "not 'min.f32'" in text


def test_forms_of_later_architectures():
    text = message(mask_bytes, types.uint8[::1])
    assert "cp_async_bulk_store_masked() needs compute capability 10.0 or newer" in text
    assert "cp_async_bulk_tensor_gather4() needs sm_100a, 100f" in message(gather, MAP)
    compile_ptx(mask_bytes, (types.uint8[::1],), cc=(10, 0, "a"))
    compile_ptx(gather, (MAP,), cc=(10, 0, "a"))


# ------------------------------------------------------------------------- partitioned


def partitioned(x, rank, mask):
    tile, barrier = tma.shared_tile(TILE), tma.shared_barrier()
    tma.load_partitioned(x, tile, (64, 0), barrier, rank)
    tma.load_partitioned(x, tile, (rank, 32), barrier, rank, multicast=mask)
    tma.load_partitioned(x, tile, (0, 0), barrier, 3, tma.CachePolicy.EVICT_LAST)


def test_a_partitioned_load_is_one_multicast_of_a_slice():
    load = f"{LOAD}.multicast::cluster"
    assert copies(partitioned, SLICES, I64, I64) == [load, load, f"{load}.L2::cache_hint"]


def last_slice(x, out):
    tile, barrier = tma.shared_tile(TILE), tma.shared_barrier()
    tma.load_partitioned(x, tile, (64, 32), barrier, 3)


def test_where_a_slice_goes():
    """Rank 3 of 4 slices of 16 rows of 128 B: 6144 B on, 48 rows on, to the blocks 0 to 3."""
    text = compile_ptx(last_slice, (SLICES, I64))
    operands = re.search(
        r"multicast::cluster \[(\S+)\], \[\S+, \{(\S+), (\S+)\}\], \[\S+\], (\S+);", text
    )
    values = dict(re.findall(r"mov\.\w+\s+(%\w+), (\d+);", text))
    assert [values[operands[i]] for i in (2, 3, 4)] == ["32", "112", "15"]
    assert re.search(rf"add\.s32\s+{operands[1]}, %r\d+, 6144;", text)


def slice_4(x):
    tma.load_partitioned(x, tma.shared_tile(TILE), (0, 0), tma.shared_barrier(), 4)


def slice_of_a_barrier(x):
    tma.load_partitioned(x, tma.shared_barrier(), (0, 0), tma.shared_barrier(), 0)


PIXELS = TensorMapType(4, SLICE, mode="im2col")


def slice_by_a_float(x):
    tma.load_partitioned(x, tma.shared_tile(TILE), (0, 0), tma.shared_barrier(), 1.5)


def slice_at_one_coordinate(x):
    tma.load_partitioned(x, tma.shared_tile(TILE), (0,), tma.shared_barrier(), 3)


def slice_at_a_fraction(x):
    tma.load_partitioned(x, tma.shared_tile(TILE), (0, 0.5), tma.shared_barrier(), 3)


def slice_at_no_tuple(x):
    tma.load_partitioned(x, tma.shared_tile(TILE), 64, tma.shared_barrier(), 3)


def slice_at_an_array(x):
    tma.load_partitioned(x, tma.shared_tile(TILE), x, tma.shared_barrier(), 3)


@pytest.mark.parametrize(
    ("kernel", "argument", "text"),
    [
        (slice_at_one_coordinate, SLICES, "load_partitioned: 1 coordinates for TensorMap("),
        (slice_at_a_fraction, SLICES, "integers in the array's axis order, not"),
        (slice_at_no_tuple, SLICES, "in the array's axis order, not Literal[int](64)"),
        (slice_at_an_array, SLICES, "in the array's axis order, not TensorMap("),
        (slice_4, SLICES, "rank is 4; the tile has the slices 0 to 3"),
        (slice_4, TensorMapType(2), "nothing is known of the tile of TensorMap(2d)"),
        (slice_4, types.float32[:, ::1], "pass tensor_map(array, tile) to the kernel, not the"),
        (slice_4, PIXELS, "load_partitioned: the map is TensorMap(im2col 4d, "),
        (slice_4, TensorMapArrayType(SLICES), "index it: give maps[i]"),
        (slice_4, COUNTERS, "is not cut along its first axis into slices of"),
        (slice_of_a_barrier, SLICES, "load_partitioned(tile=...) takes a SharedTile, not Barrier"),
        (slice_by_a_float, SLICES, "load_partitioned(rank=...) takes an integer, not float64"),
    ],
)
def test_what_a_partitioned_load_refuses(kernel, argument, text):
    assert text in message(kernel, argument)


@pytest.mark.parametrize("held", tensor_maps._MODES)
@pytest.mark.parametrize("wanted", tensor_maps._MODES)
def test_copies_take_maps_of_their_mode(wanted, held):
    """In the compiler, which has types, and in the simulator, which has maps."""
    rank = 2 if held == "gather" else 4
    given = TensorMapType(rank, TILE, copies=copies_of(TILE), mode=held)
    coords = (0,) * rank
    checks = [
        lambda: check_copy("load", given, None, SimpleNamespace(elements=coords), wanted),
        lambda: check_coordinates(given, coords, wanted),
    ]
    for check in checks:
        if wanted == held:
            check()
            continue
        with pytest.raises(BadOperand) as caught:
            check()
        assert tensor_maps.wrong_mode(str(given), held) in str(caught.value)


def test_slices():
    assert count_slices(TILE, copies_of(SLICE)) == 4
    assert count_slices(TILE, copies_of(TILE)) == 1
    swizzled = Tile((32, 32), "f32", tma.Swizzle.B128)
    assert count_slices(swizzled, copies_of(Tile((8, 32), "f32", tma.Swizzle.B128))) == 4
    with pytest.raises(ValueError, match="has 512 B; the next one would not start at a multiple"):
        count_slices(swizzled, copies_of(Tile((4, 32), "f32", tma.Swizzle.B128)))
    for box in (
        Tile((24, 32), "f32"),
        Tile((16, 16), "f32"),
        Tile((16, 32), "u32"),
        Tile((16, 32), "f32", tma.Swizzle.B128),
        Tile((2, 32), "f32"),
    ):
        with pytest.raises(ValueError, match="for a group of n blocks"):
            count_slices(TILE, copies_of(box))
    wide = Tile((4, 512), "f32")
    with pytest.raises(ValueError, match=r"the map moves .* in 8: use a narrower tile"):
        count_slices(Tile((16, 512), "f32"), copies_of(wide))
    with pytest.raises(ValueError, match="in a folded one: use a narrower tile"):
        count_slices(Tile((16, 512), "f32"), Copies(wide, (1, 1), fold=True))
