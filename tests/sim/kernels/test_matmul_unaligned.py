"""Matmul of operands that TMA cannot address, whose threads load them, in the simulator."""

from types import SimpleNamespace

import numpy as np
import pytest
from numba import cuda

from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels.matmul import matmul, unaligned_kernel
from numba_tma.kernels.matmul.plan import UnalignedConfig
from numba_tma.kernels.matmul.unaligned_plan import UnalignedPlan
from numba_tma.ptx import global_memory
from tests.sim.kernels.test_matmul import (
    BF16,
    check,
    check_everything_at_once,
    exact,
    factors,
    values,
)
from tests.tiers import quick

ONE = UnalignedConfig("a", 16, stages=2)
SWAPPED = UnalignedConfig("b", 8, stages=2)
PARTS = UnalignedConfig("b", 16, cluster=4, stages=2)
LONG = UnalignedConfig("a", 24, cluster=2, k=256, stages=2)


def placed(array, phase, gap):
    """Return the same matrix `phase` elements behind a multiple of 16 B, with a gap between rows.

    All around it lies NaN. It is contiguous along the axis along which `array` is.
    """
    turned = array.strides[-1] != array.itemsize
    rows = array.swapaxes(-1, -2) if turned else array
    pitch = rows.shape[-1] + gap
    memory = np.full(64 + rows[..., 0].size * pitch + phase, np.nan, array.dtype)
    start = -memory.ctypes.data // array.itemsize % 8 + phase
    found = memory[start:][: rows[..., 0].size * pitch]
    found = found.reshape(*rows.shape[:-1], pitch)[..., : rows.shape[-1]]
    found[...] = rows
    return found.swapaxes(-1, -2) if turned else found


@pytest.mark.parametrize(
    ("shape", "config"),
    quick(
        [((70, 19, 75), ONE), ((3, 31, 261), PARTS)],
        [
            *(((70, 19, 75), ONE), ((3, 31, 261), PARTS), ((1, 130, 7), SWAPPED)),
            *(((129, 50, 259), LONG), ((1, 1, 1), ONE), ((64, 16, 64), ONE), ((3, 66, 330), PARTS)),
        ],
    ),
)
def test_shapes(shape, config):
    check(*factors(*shape), config=config)


@pytest.mark.parametrize("layout", quick(["NT", "TT"], ["TN", "TT", "NN", "NT"]))
@pytest.mark.parametrize("config", quick([SWAPPED], [SWAPPED, ONE, LONG]))
def test_layouts(layout, config):
    rows = 19 if config is SWAPPED else 67  # more than a tile has
    check(*factors(rows, 29, 71, layout=layout), config=config)


PHASES = [(phase, (3 * phase + 5) % 8, gap) for phase in range(8) for gap in (0, 3)]


@pytest.mark.parametrize("layout", quick(["TT"], ["TN", "TT", "NN", "NT"]))
@pytest.mark.parametrize(("of_a", "of_b", "gap"), quick(PHASES[3:12:8], PHASES))
def test_every_phase_of_both_operands(of_a, of_b, gap, layout):
    """Rows begin at each multiple of 2 B, and what lies around the operands adds nothing."""
    a, b = factors(21, 11, 69, layout=layout)
    expected = exact(a, b)
    check(placed(a, of_a, gap), placed(b, of_b, gap), expected, config=ONE)


@pytest.mark.parametrize("config", quick([ONE], [ONE, SWAPPED, LONG]))
@pytest.mark.parametrize("layout", ["TN", "NT"])
def test_no_word_behind_an_operand_is_read(monkeypatch, config, layout):
    """An operand may be all of an allocation, which begins at a multiple of 16 B."""
    read, words = global_memory._read, set()

    def noted(what, source, offset, kind, count, condition):
        if condition is None or condition:
            start = int(source) + (offset or 0)
            words.add((start, start + np.dtype(kind).itemsize * count))
        return read(what, source, offset, kind, count, condition)

    monkeypatch.setattr(global_memory, "_read", noted)
    a, b = (placed(x, 0, 0) for x in factors(35, 19, 131, np.float16, layout))
    check(a, b, config=config)
    ranges = [(x.ctypes.data, x.ctypes.data + x.nbytes) for x in (a, b)]
    assert words and all(any(i <= w and e <= j for i, j in ranges) for w, e in words)


@pytest.mark.parametrize("major", ["K", "MN"])
@pytest.mark.parametrize("config", [ONE, LONG])
def test_a_stage_is_filled_without_checks_if_eight_more_elements_follow_it(
    monkeypatch, config, major
):
    """A chunk of 16 B lies in two words, the second of which may reach so far behind it."""
    plan = UnalignedPlan(as_dtype("bf16"), as_dtype("bf16"), major, "K", as_dtype("bf16"), config)

    def stage_fill(moves, at_once):
        last = moves[0]

        @cuda.jit(device=True)
        def note(a, b, at, stage, loader):
            stage.append(last)

        return note

    monkeypatch.setattr(unaligned_kernel, "chunk_moves", lambda plan, side, *, last: [last])
    monkeypatch.setattr(unaligned_kernel, "stage_fill", stage_fill)
    fill, extent = unaligned_kernel.tile_fill(plan), "columns" if major == "K" else "lines"
    for length in (plan.k, plan.k + 7, plan.k + 8, 2 * plan.k + 7, 2 * plan.k + 8, 3 * plan.k):
        filled = []
        for k in (0, plan.k):
            fill(SimpleNamespace(**{extent: length}), None, (0, 0, k, 0, 0), filled, 0)
        assert filled == [k + plan.k + 8 > length for k in (0, plan.k)]


@pytest.mark.parametrize("config", quick([SWAPPED], [SWAPPED, ONE, PARTS]))
def test_writes_nothing_else(config):
    memory = np.full((9, 83), 7, BF16)
    a, b = factors(3, 71, 73)
    check(a, b, out=memory[2:5, 5:76], config=config)
    outside = np.ones(memory.shape, bool)
    outside[2:5, 5:76] = False
    assert (memory[outside] == 7).all()


@pytest.mark.parametrize("config", quick([ONE], [ONE, PARTS]))
def test_everything_at_once(config):
    check_everything_at_once(10, 31, 141, config)


def test_types():
    for dtype, out in ((np.float16, np.float16), (BF16, np.float32)):
        got = check(*factors(9, 33, 65, dtype), config=SWAPPED, out_dtype=out)
        assert got.dtype == out


def test_batches():
    a, b = factors(3, 19, 71, batch=(2,))
    rows = values((2, 3), np.float32, 3)
    check(a, b[0], config=SWAPPED)
    check(a[1], b, rows[..., None] * exact(a[1], b), config=ONE, row_scale=rows)


@pytest.mark.slow
def test_batches_in_parts():
    a, b = factors(3, 41, 71, batch=(2,))
    for left, right, config in ((a, b, PARTS), (a, b[0], PARTS), (a[1], b, ONE)):
        check(left, right, config=config)


def test_nothing_to_add_up():
    check(np.empty((3, 0), BF16), np.empty((0, 39), BF16), np.zeros((3, 39)), config=PARTS)


def test_infinities_stay_in_their_rows():
    """What a chunk has beyond the matrix is 0, which adds no NaN to other rows."""
    a, b = factors(5, 9, 65)
    a = a.copy()
    a[2] = np.inf
    got = matmul(a, np.abs(b), config=ONE)
    assert np.isinf(got[2].astype(float)).all() and np.isfinite(np.delete(got, 2, 0)).all()


def test_aligned_operands_are_loaded_the_same_way():
    check(*factors(9, 24, 136), config=SWAPPED)


def test_other_types_are_refused():
    for dtype in (np.int8, np.float32):
        with pytest.raises(ValueError, match="whose kernel reads f16 and bf16, but a is"):
            matmul(*factors(3, 64, 64, dtype), config=ONE)
