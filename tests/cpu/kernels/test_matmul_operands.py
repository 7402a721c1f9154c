"""How a matmul reads its operands: as one matrix, as many, and as the source of a tensor map."""

import itertools

import numpy as np
import pytest

from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels.matmul import operands as module
from numba_tma.kernels.matmul.operands import as_one, is_one, map_source, move, repeats
from tests.cpu.kernels.test_matmul_host import Array as Given


def matrices(shape, strides):
    return module.Array.read("matmul", "a", Given(1, shape, strides=strides))


SHAPES = list(itertools.product((1, 3), (1, 4), (8, 1)))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("pitch", [16, 32])
@pytest.mark.parametrize("gap", [0, 16])
def test_rows_that_lie_equally_far_apart_are_one_matrix(shape, pitch, gap):
    """Whatever the strides of axes of one element are."""
    batch, rows, columns = shape
    each = rows * pitch + gap
    given = matrices(shape, (each if batch > 1 else 4800, pitch if rows > 1 else 6400, 2))
    starts = {i * each + j * pitch for i in range(batch) for j in range(rows)}
    steps = set(np.diff(sorted(starts)))
    assert is_one(given) == (len(steps) <= 1)
    if is_one(given):
        one = as_one(given)
        assert one.shape == (1, batch * rows, columns) and one.address == given.address
        if batch * rows > 1:
            assert {j * one.strides[1] for j in range(batch * rows)} == starts
        assert one.strides[2] == 2


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_strides_that_tma_takes(shape):
    """Those of axes with more than one element stay."""
    batch, rows, columns = shape
    given = matrices(shape, (96 if batch != 1 else 7, 48 if rows > 1 else 5, 2))
    source = map_source(given)
    assert source.shape == shape
    each, pitch, step = source.strides
    assert step == 2 and pitch == (48 if rows > 1 else -(-columns * 2 // 16) * 16)
    assert each == (96 if batch != 1 else rows * pitch)
    assert map_source(given, as_dtype("f16")).dtype.name == "f16"


@pytest.mark.parametrize("shape", [(2, 0, 8), (1, 4, 0), (1, 0, 0)], ids=str)
def test_a_map_of_nothing_is_one_of_an_element(shape):
    source = map_source(matrices(shape, (96, 48, 2)))
    assert source.shape == tuple(max(1, n) for n in shape)
    assert source.strides[2] == 2 and source.strides[1] % 16 == 0


def test_axes_that_repeat_elements():
    assert repeats(matrices((2, 3, 8), (0, 16, 2))) and repeats(matrices((2, 3, 8), (48, 0, 2)))
    assert not repeats(matrices((1, 3, 8), (0, 16, 2)))


def test_matrices_that_are_not_one_are_moved_one_by_one(monkeypatch):
    moved = []
    monkeypatch.setattr(module, "copy", lambda *given, stream: moved.append((*given, stream)))
    source, target = matrices((3, 4, 8), (64, 16, 2)), matrices((3, 4, 8), (160, 32, 2))
    move(source, source, 7)
    ((one, other, stream),) = moved
    assert one.shape == other.shape == (1, 12, 8) and stream == 7
    moved.clear()
    move(source, target, 7)
    assert [(x.address - source.address, y.address - target.address) for x, y, _ in moved] == [
        (64 * i, 160 * i) for i in range(3)
    ]
    for x, y, stream in moved:
        assert (x.shape, x.strides, y.shape, y.strides) == ((4, 8), (16, 2), (4, 8), (32, 2))
        assert x.dtype.name == y.dtype.name == "u16" and stream == 7
    moved.clear()
    move(matrices((3, 0, 8), (0, 16, 2)), matrices((3, 0, 8), (0, 16, 2)), 7)
    assert not moved
