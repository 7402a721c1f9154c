"""Launches of the small kernels: blocks that cover their work and no more."""

import math

import numpy as np
import pytest

from numba_tma.host import ragged
from numba_tma.host.arrays import Array as Read
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.layout import Tile
from numba_tma.kernels._host import fill as fills
from numba_tma.kernels.attention import arrays
from numba_tma.kernels.rows import backward, columns
from numba_tma.kernels.rows.plan import RowPlan
from tests.cpu.kernels.test_matmul_host import Array

SMS = 132


@pytest.fixture
def launches(monkeypatch):
    """Note launches: (kernel, blocks, threads, stream, arguments); a kernel is what it is of."""
    noted = []
    for module in (fills, columns):
        monkeypatch.setattr(
            module, "launch", lambda kernel, blocks, threads, stream, *given:
            noted.append((kernel, blocks, threads, stream, given))
        )  # fmt: skip
    monkeypatch.setattr(fills, "fill_kernel", lambda: "fill")
    monkeypatch.setattr(columns, "partial_sums_kernel", lambda *of: of)
    monkeypatch.setattr(columns, "add_rows_kernel", lambda *of: of)
    monkeypatch.setattr(columns.device, "sm_count", lambda: SMS)
    monkeypatch.setattr(
        columns, "float_workspace", lambda *shape: Array(9, shape, np.float32)
    )
    return noted


def read(*given, **options):
    return Read.read("f", "x", Array(*given, **options))


@pytest.mark.parametrize(
    ("dtype", "value", "bits"), [(np.float32, 1.0, 0x3F800000), (np.float16, -np.inf, 0xFC00)]
)
@pytest.mark.parametrize("size", [1, 128, 129, 1000])
def test_a_thread_fills_a_word(launches, size, dtype, value, bits):
    fills.fill(read(1, (size,), dtype), value, 7)
    ((kernel, blocks, threads, stream, (words, given)),) = launches
    assert (kernel, stream, given, words.shape) == ("fill", 7, bits, (size,))
    assert words.dtype.name == f"u{8 * np.dtype(dtype).itemsize}"
    assert threads == 128 and blocks == math.ceil(size / 128)
    launches.clear()
    fills.fill(None, 0, 7)
    fills.fill(read(1, (0,), dtype), 0, 7)
    assert not launches


@pytest.mark.parametrize("rows", [1, 3, 100, 5000])
@pytest.mark.parametrize(("width", "start"), [(8, 0), (64, 0), (1000, 0), (4096, 0), (63, 4)])
def test_partial_sums_have_rows_of_whole_blocks(launches, rows, width, start):
    """Up to 128 neighbours across, the rest below each other; 16 blocks an SM at most."""
    x = read(1, (rows, width), np.float32, start=start)
    sums = columns.partial_sums(x, 7)
    ((kernel, blocks, threads, stream, given),) = launches
    (share, across), accesses = kernel, width * 4 // (4 if start or width == 63 else 16)
    assert across == min(128, 2 ** math.ceil(math.log2(accesses))) and threads == 128
    assert (share.width * accesses, share.count, share.step) == (4 * width, 1, across)
    tiles, down = math.ceil(accesses / across), 128 // across
    parts = min(512, rows, 16 * SMS * down // tiles)
    groups = max(1, math.ceil(parts / down))
    assert (blocks, stream, sums.shape) == (groups * tiles, 7, (groups * down, width))
    address, pitch, *rest, where, padded, across_all = given
    assert (address, pitch) == (x.address, 4 * width)
    assert rest == [rows, accesses, 4 * width]
    assert (padded, across_all) == (groups * down, tiles)


def test_sums_have_as_many_parts_as_are_asked_for(launches):
    assert columns.partial_sums(read(1, (50, 64), np.float32), 7, 9).shape == (16, 64)
    assert launches[0][1] == 2  # a block has eight rows of 16 accesses


@pytest.mark.parametrize("width", [1, 128, 129, 1000])
def test_a_thread_adds_up_a_column(launches, width):
    sums, out = read(1, (9, width), np.float32), read(2, (width,), np.float16)
    columns.add_rows(sums, out, 7)
    (((dtype,), blocks, threads, stream, given),) = launches
    assert (dtype, threads, stream) == (as_dtype("f16"), 128, 7)
    assert blocks == math.ceil(width / 128) and given == (sums.address, 9, width, out.address)


def test_axes_of_one_element_have_strides_that_tma_takes(monkeypatch):
    noted = []
    monkeypatch.setattr(arrays, "tensor_map", lambda array, tile, fold: noted.append((array, fold)))
    monkeypatch.setattr(ragged, "ragged_tensor_map", lambda array, tile: noted.append((array, 0)))
    tile = Tile((1, 64, 1, 64), "f16")
    given = read(1, (1, 70, 1, 64), np.float16, strides=(7, 256, 3, 2))
    arrays.map_of(given, tile)
    several = read(1, (2, 70, 3, 64), np.float16, strides=(80000, 256, 1024, 2))
    arrays.map_of(several, tile)
    arrays.ragged_map_of(given, Tile((64, 1, 64), "f16"))
    (one, folds), (same, _), (rows, _) = noted
    assert folds is True and one.shape == given.shape and one.strides == (8960, 256, 128, 2)
    assert same.strides == several.strides
    assert (rows.shape, rows.strides) == ((70, 1, 64), (256, 128, 2))


def test_views_of_the_last_positions_and_of_shared_heads():
    given = read(1, (2, 70, 6, 64), np.float16)
    last = arrays.last_positions(given, 3)
    assert (last.shape, last.strides) == ((2, 3, 6, 64), given.strides)
    assert last.address == given.address + 67 * given.strides[1]
    one = read(1, (2, 1, 6, 64), np.float16)
    queries = arrays.heads_as_queries(one, 3)
    assert queries.shape == (2, 3, 2, 64) and queries.strides == (768, 128, 384, 2)


@pytest.mark.parametrize("rows", [1, 32, 33, 263, 264, 5000])
@pytest.mark.parametrize("cluster", [1, 2, 8])
@pytest.mark.parametrize("name", ["rmsnorm_backward", "layernorm_backward"])
def test_gradients_of_norms_have_two_blocks_an_sm(launches, monkeypatch, name, rows, cluster):
    """A cluster has a row at a time, and its sums are a row of a workspace."""
    for fake in ("launch", "float_workspace"):
        monkeypatch.setattr(backward, fake, getattr(columns, fake))
    monkeypatch.setattr(backward, "backward_kernel", lambda *of, **options: options["sums"])
    shapes = [*[(rows, 512)] * 3, (512,), (rows,), (rows,), (512,), (512,)]
    arrays = [Array(i, shape, np.float32) for i, shape in enumerate(shapes)]
    if name == "rmsnorm_backward":
        arrays[4] = arrays[7] = None
    spaces = backward._prepare(arrays, 7, (), name, None, RowPlan(64, 1, cluster))
    (sums, blocks, threads, stream, _), *added = launches
    groups = min(rows, 2 * SMS // cluster)
    assert (blocks, threads, stream) == (groups * cluster, 64, 7)
    assert sums == len(spaces) == len(added) == (1 if name == "rmsnorm_backward" else 2)
    assert {space.shape for space in spaces} == {(groups, 512)}
