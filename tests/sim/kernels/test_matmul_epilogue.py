"""The epilogues of matmul's kernels element by element, and where their tiles are stored."""

import itertools
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels.matmul import kernel as wgmma_kernel
from numba_tma.kernels.matmul import mma_kernel, tcgen05_epilogue
from numba_tma.kernels.matmul.arguments import (
    REDUCTION_THREADS,
    Epilogue,
    MatrixBytes,
    ReductionExtents,
    Terms,
)
from numba_tma.kernels.matmul.epilogue import split_k_kernel
from numba_tma.kernels.matmul.mma_plan import MmaPlan
from numba_tma.kernels.matmul.plan import Config, MatmulPlan, MmaConfig, Tcgen05Config
from numba_tma.kernels.matmul.tcgen05_plan import Tcgen05Plan

BF16 = ml_dtypes.bfloat16
BATCH, ROWS, COLUMNS = 2, 5, 7
EVERYTHING = Epilogue(True, True, True, True, as_dtype("bf16"), "relu", True)
PLANS = {Config: MatmulPlan, MmaConfig: MmaPlan, Tcgen05Config: Tcgen05Plan}
EXTENTS = SimpleNamespace(rows=ROWS, columns=COLUMNS, batch=BATCH)


def matrices(seed, dtype=BF16, batch=BATCH):
    """Return matrices with gaps between rows and matrices, and their memory."""
    memory = np.random.default_rng(seed).standard_normal((batch, ROWS + 2, COLUMNS + 3))
    memory = memory.astype(dtype)
    bits = memory.reshape(-1).view(np.uint8)
    return memory[:, :ROWS, :COLUMNS], MatrixBytes(bits, *memory.strides[:2]), memory


def plan_of(config, out="bf16", epilogue=EVERYTHING, addressable=True):
    operand = as_dtype("bf16")
    more = as_dtype(out), config, epilogue, addressable
    return PLANS[type(config)](operand, operand, "K", "K", *more)


def bytes_of(shape, dtype, seed):
    values = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
    return values, values.reshape(-1).view(np.uint8)


class Case:
    """What may follow a product, and what it makes of an element."""

    def __init__(self):
        (self.old, old, _), (self.residual, residual, _) = matrices(1), matrices(2)
        self.sources = old, residual
        self.row_scale, row_scale = bytes_of((BATCH, ROWS), np.float32, 3)
        self.column_scale, column_scale = bytes_of(COLUMNS, np.float32, 4)
        self.bias, bias = bytes_of(COLUMNS, BF16, 5)
        self.terms = Terms(np.float32(0.5), np.float32(-2), row_scale, column_scale, bias)

    def expected(self, value, batch, row, column):
        """Return the result; outside the matrix that with the terms of the last row or column."""
        row, column = min(row, ROWS - 1), min(column, COLUMNS - 1)
        value = 0.5 * value * self.row_scale[batch, row] * self.column_scale[column]
        value += float(self.bias[column]) - 2 * float(self.old[batch, row, column])
        return max(value, 0) + float(self.residual[batch, row, column])


@pytest.mark.parametrize("batch", range(BATCH))
@pytest.mark.parametrize("kernel", ["mma", "tcgen05"])
def test_everything_at_once(kernel, batch):
    case, top, left = Case(), 2, 3
    places = itertools.product(range(4), range(6))  # some are outside the matrix
    if kernel == "mma":
        finish = mma_kernel.sum_epilogue(plan_of(MmaConfig()))
        found = {}

        class Fragment:
            def to(self, name):
                assert name == "f32"
                return self

            def map_coords(self, element, *more):
                for down, right in places:
                    value = np.float32(1 + down + 10 * right)
                    found[down, right] = element(value, down, right, *more)

        finish(Fragment(), case.sources, (batch, top, left), EXTENTS, case.terms)
    else:
        finish = tcgen05_epilogue.column_epilogue(plan_of(Tcgen05Config()))
        found = {
            (down, right): finish(
                np.float32(1 + down + 10 * right), right, (batch, top + down, left),
                case.sources, EXTENTS, case.terms,
            )
            for down, right in places
        }  # fmt: skip
    assert len(found) == 24
    for (down, right), got in found.items():
        expected = case.expected(1 + down + 10 * right, batch, top + down, left + right)
        assert got == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("splits", [2, 3])
def test_parts_are_added_up_and_finished(splits):
    """Rows of parts end at whole chunks; what lies between rows of the result is left alone."""
    case = Case()
    parts, memory, _ = matrices(6, np.float32, BATCH * splits)
    got, out, whole = matrices(1)
    kernel = split_k_kernel(EVERYTHING, as_dtype("bf16"))
    blocks = -(-got.size // REDUCTION_THREADS)
    extents = ReductionExtents(BATCH, ROWS, COLUMNS, splits)
    kernel[blocks, REDUCTION_THREADS](memory, out, case.sources[1], extents, case.terms)
    sums = parts.reshape(BATCH, splits, ROWS, COLUMNS).sum(axis=1, dtype=np.float64)
    for place in np.ndindex(got.shape):
        expected = case.expected(sums[place], *place)
        assert float(got[place]) == pytest.approx(expected, rel=2.0**-8, abs=1e-4)
    untouched = matrices(1)[2]
    whole[:, :ROWS, :COLUMNS] = untouched[:, :ROWS, :COLUMNS]
    np.testing.assert_array_equal(whole.view(np.uint16), untouched.view(np.uint16))


class Sums:
    """Sums that tell which columns of which 64 rows are taken."""

    def __init__(self, block=0):
        self.block = block

    def columns(self, start, count):
        part = SimpleNamespace(place=(self.block, start, count))
        part.map_coords = lambda element, *more: part
        part.to = lambda name: part
        return part


class Noted(list):
    """Calls of what is no function, whose code the simulator would check."""

    def __call__(self, *given):
        self.append(given)


def noted_write(monkeypatch, module):
    written = Noted()
    monkeypatch.setattr(module, "tile_write", lambda plan: written)
    return written


def places(written):
    return [(fragment.place, *at) for fragment, _, _, *at in written]


@pytest.mark.parametrize(
    "config", [MmaConfig(256, 64, out_bytes=32), MmaConfig(64, 32), MmaConfig(128, 64)], ids=str
)
def test_each_part_of_the_sums_by_mma_is_stored_in_its_place(monkeypatch, config):
    written, plan = noted_write(monkeypatch, mma_kernel), plan_of(config)
    wide, parts = plan.out_columns, plan.columns // plan.out_columns
    store = mma_kernel.sums_store(plan, plan.blocks * parts - 1)
    store([Sums(i) for i in range(plan.blocks)], None, None, None, (1, 300, 70), EXTENTS, None)
    assert places(written) == [
        ((block, part * wide, wide), 1, 300 + 64 * block, 70 + part * wide)
        for block in range(plan.blocks)
        for part in range(parts)
    ]


@pytest.mark.parametrize("config", [Config(64, 160, out_bytes=64), Config(128, 64)], ids=str)
def test_each_part_of_the_sums_by_wgmma_is_stored_in_its_place(monkeypatch, config):
    written = noted_write(monkeypatch, wgmma_kernel)
    plan = plan_of(config, epilogue=Epilogue())
    store = wgmma_kernel.tile_store(plan, plan.epilogue_tiles - 1)
    store(Sums(), None, None, None, (1, 300, 70), 0, EXTENTS, None)
    wide = plan.out_columns
    assert places(written) == [
        ((0, start, wide), 1, 300, 70 + start) for start in range(0, config.n, wide)
    ]


@pytest.mark.parametrize(("group", "cluster"), [(1, 1), (1, 2), (3, 2), (16, 1), (16, 2), (16, 8)])
def test_a_group_of_tile_rows_is_counted_in_clusters(group, cluster):
    plan = plan_of(Config(128, 256, cluster, group=group), epilogue=Epilogue())
    assert wgmma_kernel.scheduler(plan).group == max(1, group // cluster)


@pytest.mark.parametrize("by_tma", [True, False])
def test_each_column_by_tcgen05_is_stored_in_its_place(monkeypatch, by_tma):
    """An epilogue tile has 64 columns of bf16, which a thread loads 32 at a time."""
    done = Noted()
    monkeypatch.setattr(tcgen05_epilogue, "columns_write", lambda plan: done)
    plan = plan_of(Tcgen05Config(128), addressable=by_tma)
    results = SimpleNamespace(
        acquire=lambda: SimpleNamespace(result="tile"),
        store=lambda out, tile, at: done.append(("store", out, tile, at)),
        commit=lambda: done.append("commit"),
    )
    acc = SimpleNamespace(load=lambda column, count: (column, count))
    store = tcgen05_epilogue.tile_store(plan)
    store(acc, results, (1, 256, 384), 17, "out", "sources", EXTENTS, "terms")
    columns = []
    for piece in (0, 64):
        for i in (0, 32):
            values, _, place, out, at, *rest = done.pop(0)
            assert (values, place) == ((piece + i, 32), (17, i))
            assert (out, at, rest) == (
                "out", (1, 273, 384 + piece + i), ["sources", EXTENTS, "terms"]
            )  # fmt: skip
            columns.append(piece + i)
        if by_tma:
            assert done.pop(0) == ("store", "out", "tile", (1, 256, 384 + piece))
        assert done.pop(0) == "commit"
    assert columns == [0, 32, 64, 96] and not done


@pytest.mark.parametrize("out", ["bf16", "f32"])
def test_threads_store_elements_of_the_matrix_alone(out):
    plan = plan_of(Tcgen05Config(32), out, Epilogue(), addressable=False)
    dtype = {"bf16": BF16, "f32": np.float32}[out]
    got, memory, whole = matrices(1, dtype)
    whole[:] = 7
    write, values = tcgen05_epilogue.elements_write(plan), np.arange(32, dtype=np.float32)
    for batch, row in itertools.product(range(BATCH), range(ROWS + 2)):
        write(values + 8 * row, None, (row, 0), memory, (batch, row, 2), (), EXTENTS, None)
    expected = np.full_like(whole, 7)
    expected[:, :ROWS, 2:COLUMNS] = 8 * np.arange(ROWS)[:, None] + np.arange(COLUMNS - 2)
    np.testing.assert_array_equal(whole.astype(np.float32), expected.astype(np.float32))
