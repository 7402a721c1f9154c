"""Maps of rows by number: their rules, what each target emits, and every error."""

import collections
import re

import numpy as np
import pytest
from numba import types
from numba.core.errors import TypingError
from numba.cuda.core.errors import TypingError as CudaTypingError

import numba_tma as tma
from numba_tma import Swizzle, TensorMapType, Tile
from numba_tma.backend.lowering.types import type_of
from numba_tma.host import encoding as _encoding
from numba_tma.host import gather as host
from numba_tma.tools.testing import compile_ptx, ptxas

SM_90A, SM_100A, SM_100 = (9, 0, "a"), (10, 0, "a"), (10, 0)
TILE = Tile((8, 128), "f16", Swizzle.B128)  # two slabs
MAP = TensorMapType(2, TILE, mode="gather")
LIST, I64 = types.int32[::1], types.int64


class Array:
    """Device memory that only knows the CUDA array interface."""

    def __init__(self, shape, dtype=np.float16, strides=None):
        self.__cuda_array_interface__ = {
            "shape": shape,
            "strides": strides,
            "typestr": np.dtype(dtype).str,
            "data": (0x7F00_0000_0000, False),
            "version": 3,
        }


@pytest.fixture(autouse=True)
def encoded(monkeypatch):
    """Capture what the driver would be asked to encode."""
    calls = []

    def encode_tiled(*arguments):
        calls.append(arguments)
        return f"map {len(calls)}"

    monkeypatch.setattr(_encoding, "encode_tiled", encode_tiled)
    monkeypatch.setattr(host, "current_device", lambda: 0)
    _encoding.encode.cache_clear()
    yield calls
    _encoding.encode.cache_clear()


def test_a_map_has_a_box_of_one_row_of_a_slab(encoded):
    x = tma.gather_map(Array((1000, 512)), TILE)
    (call,) = encoded
    assert call[2:6] == ((1000, 512), (1024, 2), (1, 64), (1, 1))
    assert set(x.copies.element_strides) == {1}  # no copy skips rows or columns
    assert (x.mode, x.tile, x.box, x.copies.count, x.value) == ("gather", TILE, (1, 64), 4, "map 1")
    starts = [(0, (0, 0)), (1024, (0, 64)), (512, (4, 0)), (1536, (4, 64))]
    assert list(x.copies.starts) == starts
    again = tma.gather_map(Array((1000, 512)), TILE)
    assert len(encoded) == 1 and type_of(again) is type_of(x) and type_of(x) == MAP
    assert type_of(x) != type_of(tma.tensor_map(Array((1000, 512)), TILE))
    assert "of 4 rows of 64 columns each" in x.explain() and repr(x).startswith("GatherMap(f16")


@pytest.mark.parametrize(
    ("shape", "tile", "options", "message"),
    [
        ((9, 9, 64), TILE, {}, "array has rank 3; rows are numbered in a matrix: pass array.resh"),
        ((9, 64), Tile((6, 64), "f16"), {}, "tile.shape[0] is 6 rows; an instruction moves 4: use"),
        ((9, 64), Tile((64,), "f16"), {}, "has 1 axes; it is (rows, columns)"),
        ((9, 64), Tile((4, 24), "f16"), {}, "takes 48 B in shared memory; 4 rows must start at a"),
        ((9, 64), Tile((4, 8), "f16"), {}, "use rows of a multiple of 32 B, which are 16 f16"),
        (
            (9, 600),
            Tile((4, 512), "f16"),
            {},
            "tile.shape[1] is 512 columns; a copy takes 1 to 256",
        ),
        ((9, 64), Tile((4, 64), "bf16"), {}, "holds bf16, the array f16"),
        ((9, 64), TILE, {"l2_promotion": 7}, "l2_promotion is 7"),
        ((9, 64), Tile((4, 64), "e2m1"), {}, "has elements of 4 bits; rows by number have whole"),
        ((9, 63), TILE, {}, "gather_map: 1 rule is broken"),  # the stride of a row
    ],
)
def test_a_rule_of_the_maps(shape, tile, options, message):
    with pytest.raises(ValueError, match="gather_map: .* broken") as caught:
        tma.gather_map(Array(shape), tile, **options)
    assert message in str(caught.value)


def test_what_is_no_tile_is_said():
    with pytest.raises(TypeError, match=r"gather_map: tile is \(4, 64\); give a Tile"):
        tma.gather_map(Array((9, 64)), (4, 64))
    with pytest.raises(RuntimeError, match="gather runs inside a @cuda.jit kernel"):
        tma.gather_map(Array((9, 64)), TILE).gather(None, (0,) * 8, 0, None)


def test_stores_beside_the_tensor_are_refused():
    assert (
        "a row of the tensor is 60 f16"
        in tma.gather_map(Array((9, 60), strides=(128, 2)), Tile((4, 32), "f16")).partial_rows
    )
    wide = tma.gather_map(Array((9, 256)), Tile((4, 80), "f16", Swizzle.B128))
    assert "columns 80 to 127 past the tile's start would be overwritten" in wide.partial_rows


# ------------------------------------------------------------------------------ emission


def by_tuple(x, rows, n):
    tile, full = tma.shared_tile(TILE), tma.shared_barrier()
    x.gather(tile, (0, 1, 2, 3, 4, n, n, -1), 64, full, tma.CachePolicy.EVICT_FIRST)
    x.scatter(tile, (0, 1, 2, 3, 4, n, n, 7), 64)
    x.prefetch_rows((0, 1, 2, 3, 4, n, n, 7), 64)


def by_list(x, rows, n):
    tile, full = tma.shared_tile(TILE), tma.shared_barrier()
    tma.gather_rows(tile, x, rows, full, 64)
    tma.scatter_rows(tile, x, rows, 64)


def multicast(x, rows, n):
    x.gather(tma.shared_tile(TILE), (n, n, n, n, n, n, n, n), 0, tma.shared_barrier(), multicast=3)


LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
GATHER = "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes"
HINTED = f"{GATHER}.L2::cache_hint"
SCATTER = "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group"
STORE = "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group"
FETCH = "cp.async.bulk.prefetch.tensor.2d.L2.global"


def copies(kernel, cc):
    text = compile_ptx(kernel, (MAP, LIST, I64), cc=cc)
    report = ptxas(text)
    assert report.spill_stores == 0
    return re.findall(r"^\s*(cp\.async\.bulk\S+)", text, re.M)


@pytest.mark.parametrize(
    ("cc", "expected"),
    [
        (SM_100A, {HINTED: 4, SCATTER: 4, f"{FETCH}.tile::gather4": 4}),
        (SM_90A, {f"{LOAD}.L2::cache_hint": 16, STORE: 16, FETCH: 16}),
        (SM_100, {HINTED: 4, STORE: 16, FETCH: 16}),  # without tensor memory: gather4 alone
    ],
)
def test_each_target_moves_4_rows_or_one(cc, expected):
    assert collections.Counter(copies(by_tuple, cc)) == expected


def test_lists_are_read_in_a_loop_or_unrolled():
    found = copies(by_list, SM_100A)
    assert set(found) == {GATHER, SCATTER}
    assert set(copies(by_list, SM_90A)) == {LOAD, STORE}


def test_a_multicast_is_for_the_cluster():
    cluster = GATHER.replace("cta", "cluster") + ".multicast::cluster"
    assert copies(multicast, SM_100A) == [cluster] * 4
    assert copies(multicast, SM_90A) == [f"{LOAD}.multicast::cluster"] * 16


def test_where_the_rows_go():
    """The second group of the second slab: 128 * 8 + 4 * 128 B on, 64 columns on."""
    text = compile_ptx(by_tuple, (MAP, LIST, I64), cc=SM_100A)
    *_, last = re.findall(r"gather4\S* \[(%\w+)\], \[%\w+, \{(.*?)\}\]", text)
    values = dict(re.findall(r"mov\.\w+\s+(%\w+), (-?\d+);", text))
    assert re.search(rf"add\.s32\s+{last[0]}, %r\d+, 1536;", text)
    column, row4, *_, row7 = last[1].split(", ")
    assert (values[column], values[row4], values[row7]) == ("128", "4", "-1")


PLAIN = Tile((8, 64), "f32")


def of_an_array(x, rows, n):
    tile, full = tma.shared_tile(PLAIN), tma.shared_barrier()
    tma.gather_rows(tile, x, rows, full, 64)
    tma.gather_rows(tile, x, n, full)
    tma.scatter_rows(tile, x, (n, n, 1, 2, 3, 4, 5, 6))
    tma.scatter_rows(tile, x, n, count=n)


def test_rows_of_an_array_are_bulk_copies():
    text = compile_ptx(of_an_array, (types.float32[:, ::1], LIST, I64), cc=SM_90A)
    assert ptxas(text).spill_stores == 0
    names = set(re.findall(r"^\s*(cp\.async\.bulk\S+)", text, re.M))
    load = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
    assert names == {load, "cp.async.bulk.global.shared::cta.bulk_group"}


# ------------------------------------------------------------------------------ errors


def message(kernel, *arguments, cc=SM_100A):
    with pytest.raises((TypingError, CudaTypingError)) as caught:
        compile_ptx(kernel, arguments, cc=cc)
    return re.sub(r"\s+", " ", str(caught.value))


def gathers(rows, column, tile=TILE):
    def kernel(x, n):
        x.gather(tma.shared_tile(tile), rows, column, tma.shared_barrier())

    return kernel


def scatters(rows):
    def kernel(x, n):
        x.scatter(tma.shared_tile(TILE), rows, 0)

    return kernel


def loads(x, n):
    x.load(tma.shared_tile(TILE), (0, 0), tma.shared_barrier())


def of_rows(x, n):
    tma.gather_rows(tma.shared_tile(TILE), x, n, tma.shared_barrier())


def rows_of_array(rows, tile=PLAIN):
    def kernel(x, n):
        tma.gather_rows(tma.shared_tile(tile), x, rows, tma.shared_barrier())

    return kernel


def counted(x, n):
    tma.scatter_rows(tma.shared_tile(TILE), x, (0, 1, 2, 3, 4, 5, 6, 7), count=n)


NARROW = Tile((8, 16), "f16")
EIGHT = (0, 1, 2, 3, 4, 5, 6, 7)
PARTIAL = TensorMapType(2, TILE, None, "short rows", mode="gather")


@pytest.mark.parametrize(
    ("kernel", "x", "cc", "part"),
    [
        (gathers((0, 1, 2), 0), MAP, SM_100A, "3 row numbers for a tile of 8 rows"),
        (gathers((), 0), MAP, SM_100A, "0 row numbers for a tile of 8 rows"),
        (gathers(EIGHT, 4), MAP, SM_100A, "the column is 4, which is 8 B into the row"),
        (gathers(EIGHT, 0, PLAIN), MAP, SM_100A, "make the map with gather_map(array, Tile((8, 6"),
        (gathers(EIGHT, 0), TensorMapType(2, TILE), SM_100A, "a tiled one: use its load"),
        (gathers(1.5, 0), MAP, SM_100A, "(rows=...) takes a tuple of integers, or an array"),
        (gathers(EIGHT, 0.5), MAP, SM_100A, "(column=...) takes an integer, not float64"),
        (scatters((-1, *EIGHT[1:])), MAP, SM_100A, "row 0 is -1; a store never starts before"),
        (scatters(EIGHT), PARTIAL, SM_100A, "GatherMap.scatter: short rows"),
        (loads, MAP, SM_90A, "one of rows by number: use gather(tile, rows, column, barrier)"),
        (
            gathers(EIGHT, 0, NARROW),
            TensorMapType(2, NARROW, mode="gather"),
            SM_90A,
            "a row of Tile((8, 16), f16, NONE) takes 32 B in shared memory",
        ),
        (of_rows, types.float16[:, ::1], SM_90A, "is swizzled, and an array's rows are moved by"),
        (of_rows, types.float32[::1], SM_90A, "both are matrices"),
        (of_rows, TensorMapType(2, TILE), SM_90A, "takes a map of gather_map, or the array, not"),
        (of_rows, MAP, SM_90A, "(rows=...) takes a tuple of integers, or an array of one axis"),
        (rows_of_array(1.5), types.float32[:, ::1], SM_90A, "(rows=...) takes a tuple of integers"),
        (rows_of_array((0.5,) * 8), types.float32[:, ::1], SM_90A, "(rows=...) takes a tuple of"),
        (rows_of_array(EIGHT[1:]), types.float32[:, ::1], SM_90A, "7 row numbers for Tile((8, 64)"),
        (rows_of_array("x"), types.float32[:, ::1], SM_90A, "(rows=...) takes a tuple of integers"),
        (counted, MAP, SM_90A, "scatter_rows(count=...) is for an array"),
    ],
)
def test_what_does_not_compile(kernel, x, cc, part):
    assert part in message(kernel, x, I64, cc=cc)


@pytest.mark.parametrize(
    ("tile", "wide"),
    [(Tile((8, 3), "f32"), 32), (Tile((8, 72), "u8"), 128), (Tile((8, 65), "bf16"), 64)],
)
def test_rows_that_are_copied_one_by_one_start_at_128_bytes(tile, wide):
    said = host.row_pitch_violation(tile)
    assert f"a row of {tile} takes {tile.pitch} B in shared memory" in said
    assert f"unswizzled rows of a multiple of {wide} {tile.dtype};" in said
    assert host.row_pitch_violation(Tile((8, wide), tile.dtype)) == ""
