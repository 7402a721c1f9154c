"""Loads of CTA pairs beside `TensorMap.load`: rows by number, pixels and sequences."""

import re

import pytest
from numba import cuda, types
from numba.core.errors import TypingError
from numba.cuda.core.errors import TypingError as CudaTypingError

import numba_tma as tma
from numba_tma import Swizzle, Tile
from numba_tma.backend.lowering.types import RaggedTensorMapType, TensorMapType
from numba_tma.tools.testing import compile_ptx, ptxas
from tests.tiers import quick

SM_90A, SM_100A, SM_100F, SM_120A = (9, 0, "a"), (10, 0, "a"), (10, 0, "f"), (12, 0, "a")
SM_103A, SM_110A = (10, 3, "a"), (11, 0, "a")
TILE = Tile((8, 64), "f16", Swizzle.B128)
ROWS = TensorMapType(2, TILE, mode="gather")
PIXELS = TensorMapType(4, TILE, mode="im2col")
ALONG_W = TensorMapType(4, TILE, mode="im2col_w")
TALL = Tile((128, 64), "f16", Swizzle.B128)
ALONG_128 = TensorMapType(4, TALL, mode="im2col_w128")
RAGGED = RaggedTensorMapType(2, TILE, 0, "wrap", 1 << 30)


@tma.cluster((2, 1))
def gather(x):
    tile, full = tma.shared_tile(TILE), tma.shared_barrier()
    x.gather(tile, (0, 1, 2, 3, 4, 5, 6, -1), 64, full, cta_group=2)


@tma.cluster((2, 1))
def gather_listed(x, rows):
    tile, full = tma.shared_tile(TILE), tma.shared_barrier()
    x.gather(tile, rows, 64, full, multicast=3, cta_group=2)


@tma.cluster((2, 1))
def pixels(x):
    tile, full = tma.shared_tile(TILE), tma.shared_barrier()
    x.load_im2col(tile, (0, 1, 1, 0), (2, 2), full, cta_group=2)


@tma.cluster((2, 1))
def along_w(x):
    tile, full = tma.shared_tile(TILE), tma.shared_barrier()
    x.load_im2col(tile, (0, 1, 1, 0), (2,), full, cta_group=2)


@tma.cluster((2, 1))
def along_w128(x):
    tile, full = tma.shared_tile(TALL), tma.shared_barrier()
    x.load_im2col(tile, (0, 1, 1, 0), (2,), full, multicast=1, cta_group=2)


@tma.cluster((2, 1))
def ragged(x):
    tile, full = tma.shared_tile(TILE), tma.shared_barrier()
    x.sequence(3, 5).load(tile, (0, 64), full, cta_group=2)


@tma.cluster((2, 1))
def ragged_shared(x):
    tile, full = tma.shared_tile(TILE), tma.shared_barrier()
    x.sequence(3, 5).load(tile, (0, 64), full, None, 3, 2)


@tma.cluster((2, 1))
def partitioned(x):
    tma.load_partitioned(x, tma.shared_tile(TALL), (0, 64), tma.shared_barrier(), 1, cta_group=2)


LIST = types.int32[::1]
SLICES = TensorMapType(2, Tile((64, 64), "f16", Swizzle.B128))
LOADS = [
    (gather, (ROWS,), "2d", ".tile::gather4", 2),
    (gather_listed, (ROWS, LIST), "2d", ".tile::gather4", None),
    (pixels, (PIXELS,), "4d", ".im2col", 1),
    (along_w, (ALONG_W,), "4d", ".im2col::w", 1),
    (along_w128, (ALONG_128,), "4d", ".im2col::w::128", 1),
    (ragged, (RAGGED,), "4d", ".tile", 1),
    (ragged_shared, (RAGGED,), "4d", ".tile", 1),
    (partitioned, (SLICES,), "2d", ".tile", 1),
]
NAMES = [load[0].__name__ for load in LOADS]


@pytest.mark.parametrize(("kernel", "signature", "rank", "mode", "count"), LOADS, ids=NAMES)
def test_the_bytes_count_on_the_even_blocks_barrier(kernel, signature, rank, mode, count):
    text = compile_ptx(cuda.jit(kernel), signature, cc=SM_100A)
    shared = ".multicast::cluster" if kernel.__name__ in MULTICAST else ""
    form = (
        f"cp.async.bulk.tensor.{rank}.shared::cluster.global{mode}.mbarrier::complete_tx::bytes"
        f"{shared}.cta_group::2 "
    )
    assert "mapa" in text
    assert text.count(form) == count if count else text.count(form) >= 1
    assert text.count(".cta_group::2 ") == text.count("complete_tx::bytes")


MULTICAST = ("gather_listed", "along_w128", "ragged_shared", "partitioned")


@pytest.mark.parametrize("cc", quick([(SM_100F,)], [(SM_100F,), (SM_103A,), (SM_110A,)]))
@pytest.mark.parametrize("load", LOADS, ids=NAMES)
def test_ptxas_takes_them(load, cc):
    assert not ptxas(compile_ptx(cuda.jit(load[0]), load[1], cc=cc)).warnings


@pytest.mark.parametrize("cc", [SM_90A, SM_120A])
@pytest.mark.parametrize(
    "load", LOADS[:3] + LOADS[5:6] + LOADS[7:], ids=NAMES[:3] + NAMES[5:6] + NAMES[7:]
)
def test_a_target_without_pairs(load, cc):
    names = "gather4|im2col_load_cta_group|load_cta_group"
    with pytest.raises((TypingError, CudaTypingError), match=rf"({names})\(\).* sm_\d+a"):
        compile_ptx(cuda.jit(load[0]), load[1], cc=cc)


def alone(x):
    tile, full = tma.shared_tile(TILE), tma.shared_barrier()
    x.gather(tile, (0, 1, 2, 3, 4, 5, 6, 7), 64, full, cta_group=2)


@tma.cluster((2, 1))
def three(x):
    tile, full = tma.shared_tile(TILE), tma.shared_barrier()
    x.gather(tile, (0, 1, 2, 3, 4, 5, 6, 7), 64, full, cta_group=3)


@tma.cluster((2, 1))
def three_pixels(x):
    tile, full = tma.shared_tile(TILE), tma.shared_barrier()
    x.load_im2col(tile, (0, 1, 1, 0), (2, 2), full, cta_group=3)


@tma.cluster((2, 1))
def three_rows(x):
    tile, full = tma.shared_tile(TILE), tma.shared_barrier()
    x.sequence(3, 5).load(tile, (0, 64), full, cta_group=3)


@tma.cluster((2, 1))
def three_slices(x):
    tma.load_partitioned(x, tma.shared_tile(TALL), (0, 64), tma.shared_barrier(), 1, cta_group=3)


@pytest.mark.parametrize(
    ("kernel", "signature", "text"),
    [
        (three_slices, (SLICES,), "load_partitioned(cta_group=...) is part of the instruction"),
        (alone, (ROWS,), "load(cta_group=2): the two blocks of a CTA pair lie along x"),
        (three, (ROWS,), "GatherMap.gather(cta_group=...) is part of the instruction"),
        (three_pixels, (PIXELS,), "TensorMap.load_im2col(cta_group=...) is part of"),
        (three_rows, (RAGGED,), "RaggedTensorMap.load(cta_group=...) is part of the"),
    ],
)
def test_kernel_errors(kernel, signature, text):
    with pytest.raises((TypingError, CudaTypingError), match=re.escape(text)):
        compile_ptx(cuda.jit(kernel), signature, cc=SM_100A)
