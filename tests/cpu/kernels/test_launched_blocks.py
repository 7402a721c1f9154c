"""Launches of the small kernels: blocks that cover their work and no more."""

import importlib
import math
import pkgutil

import numpy as np
import pytest

from numba_tma import kernels
from numba_tma.host import ragged
from numba_tma.host.arrays import Array as Read
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
    monkeypatch.setattr(columns, "column_sums_kernel", lambda *of: of)
    monkeypatch.setattr(columns, "few_rows_kernel", lambda *of: of)
    monkeypatch.setattr(columns, "zero_counters", lambda count: Array(8, (count,), np.uint32))
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
@pytest.mark.parametrize("plan", [RowPlan(64), RowPlan(256), RowPlan(512, 1, 2), RowPlan(1024)])
@pytest.mark.parametrize("name", ["rmsnorm_backward", "layernorm_backward"])
def test_gradients_of_norms_have_512_threads_an_sm(launches, monkeypatch, name, rows, plan):
    """A cluster has a row at a time, and its sums are a row of a workspace."""
    for fake in ("launch", "float_workspace"):
        monkeypatch.setattr(backward, fake, getattr(columns, fake))
    monkeypatch.setattr(backward, "backward_kernel", lambda *of, **options: options["sums"])
    shapes = [*[(rows, 512)] * 3, (512,), (rows,), (rows,), (512,), (512,)]
    arrays = [Array(i, shape, np.float32) for i, shape in enumerate(shapes)]
    if name == "rmsnorm_backward":
        arrays[4] = arrays[7] = None
    spaces = backward._prepare(arrays, 7, (), name, None, plan)
    (sums, blocks, threads, stream, _), *added = launches
    groups = min(rows, max(1, 512 // plan.threads) * SMS // plan.cluster)
    assert (blocks, threads, stream) == (groups * plan.cluster, plan.threads, 7)
    assert sums == len(added) == (1 if name == "rmsnorm_backward" else 2)
    assert [space.shape for space in spaces[:sums]] == [(groups, 512)] * sums
    places = [Read.read("f", "", space).address for space in spaces[:sums]]
    assert [given[0].address for *_, given in added] == places


def test_blocks_are_whole_warps():
    """The constants that say how many threads blocks have: no lanes are idle."""
    found = {}
    for module in pkgutil.walk_packages(kernels.__path__, "numba_tma.kernels."):
        for name, value in vars(importlib.import_module(module.name)).items():
            counts = name.endswith(("THREADS", "LOADERS")) and name != "BY_THREADS"  # bytes
            if counts and isinstance(value, int):
                found[module.name, name] = value
    assert len(found) > 15
    assert {of: n for of, n in found.items() if n % 32 or not 32 <= n <= 1024} == {}
