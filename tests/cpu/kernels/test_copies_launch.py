"""Which kernel copies or transposes arrays, and with how many blocks, without a GPU."""

import itertools
import math

import numpy as np
import pytest

from numba_tma.host.arrays import Array
from numba_tma.kernels._host.limits import BY_THREADS
from numba_tma.kernels.copy import copy
from numba_tma.kernels.copy.plan import CopyPlan
from numba_tma.kernels.pointwise import add, gelu
from numba_tma.kernels.pointwise.plan import PointwisePlan, plan_for
from numba_tma.kernels.transpose import transpose
from numba_tma.kernels.transpose.api import PLANS
from tests.cpu.host.test_launcher import device_array
from tests.cpu.kernels.test_wrappers import gpu  # noqa: F401 (a fixture)
from tests.gpu.kernels.test_kernels import TYPES, BFloat16Array
from tests.gpu.kernels.test_units import Part

_places = itertools.count(1)


def view(shape, dtype, gap=0, start=0):
    """Return an array whose rows are `gap` elements apart, on a place of its own."""
    size = np.dtype(dtype).itemsize
    pitch = (shape[-1] + gap) * size
    strides = (*(pitch * math.prod(shape[i + 1 : -1]) for i in range(len(shape) - 1)), size)
    address = (1 << 41) + (next(_places) << 28) + start * size
    return device_array(shape, dtype, strides, address)


def by_tma(columns, dtype, gap, start):
    """Return whether TMA stores such rows: all that is aligned has 16 B."""
    size = np.dtype(dtype).itemsize
    return not any(n * size % 16 for n in (columns, columns + gap, start))


#: Gap between rows and first element, in elements.
PLACES = [(0, 0), (8, 0), (16, 16), (3, 0), (16, 1)]


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32])
@pytest.mark.parametrize("source", PLACES)
@pytest.mark.parametrize("target", PLACES)
@pytest.mark.parametrize(("batch", "rows", "columns"), [(1, 64, 128), (3, 160, 320), (2, 33, 70)])
def test_tiles_are_transposed_if_tma_can_load_and_store(
    gpu,  # noqa: F811
    batch,
    rows,
    columns,
    source,
    target,
    dtype,
):
    x, out = (
        view((batch, rows, columns), dtype, *source),
        view((batch, columns, rows), dtype, *target),
    )
    assert transpose(x, out=out) is out
    ((kernel, blocks, threads, *_),) = gpu.launches
    if by_tma(columns, dtype, *source) and by_tma(rows, dtype, *target):
        plan, side = PLANS[x.dtype.itemsize], 128 // x.dtype.itemsize
        assert kernel.__name__ == "transpose_tiles" and threads == plan.threads
        height, width = plan.rows * side, plan.columns * side
    else:
        assert kernel.__name__ == "transpose_patches" and threads == 256
        height = width = 64
        gap, start = target
        at_sectors = all(n * x.dtype.itemsize % 32 == 0 for n in (start, rows + gap))
        rows += 0 if at_sectors else 32 // x.dtype.itemsize  # the halo
    assert blocks == batch * math.ceil(rows / height) * math.ceil(columns / width)


def test_a_row_has_no_transpose(gpu):  # noqa: F811
    x = view((64,), np.float32)
    for out in (None, view((64,), np.float32)):
        with pytest.raises(ValueError, match=r"x has shape \(64,\); a matrix has two axes or more"):
            transpose(x, out=out)


def test_rows_that_are_not_contiguous_are_not_transposed(gpu):  # noqa: F811
    apart = device_array((8, 16), np.float32, (128, 8), (1 << 41) + (next(_places) << 28))
    with pytest.raises(ValueError, match="x .*last axis must be contiguous"):
        transpose(apart, out=view((16, 8), np.float32))


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("nbytes", [40 * 96, 96 << 20])
@pytest.mark.parametrize("source", PLACES)
@pytest.mark.parametrize("target", PLACES)
@pytest.mark.parametrize("plan", [None, CopyPlan()], ids=["chosen", "given"])
def test_bytes_are_copied_if_nothing_lies_between_and_rows_if_tma_can(
    gpu,  # noqa: F811
    plan,
    source,
    target,
    nbytes,
    dtype,
):
    columns, size = 96, np.dtype(dtype).itemsize
    rows = nbytes // columns // size
    x, out = view((rows, columns), dtype, *source), view((rows, columns), dtype, *target)
    copy(x, out, plan=plan)
    ((kernel, blocks, threads, *_),) = gpu.launches
    aligned = source[1] * size % 16 == target[1] * size % 16 == 0
    large = plan is not None or 2 * x.nbytes >= BY_THREADS
    if source[0] == target[0] == 0 and aligned and large:
        assert kernel.__name__ == "copy_chunks"
    elif large and by_tma(columns, dtype, *source) and by_tma(columns, dtype, *target):
        assert kernel.__name__ == "copy_tiles" and blocks <= min(4 * 132, math.ceil(rows / 8))
    else:
        assert kernel.__name__ == "copy_units"
        gap, start = target
        if source[0] == gap == 0:
            units = math.ceil((start * size + rows * columns * size) / 16)
        elif (columns + gap) * size % 16 == 0:
            units = rows * math.ceil((start * size % 16 + columns * size) / 16)
        else:
            units = rows * math.ceil((16 - size + columns * size) / 16)
        assert threads == 256 and blocks == math.ceil(units / threads)


@pytest.mark.parametrize("columns", [64, 320, 1024])
@pytest.mark.parametrize("rows", [2, 33, 100, 5000])
def test_rows_are_added_by_a_block_a_tile(gpu, rows, columns):  # noqa: F811
    out, *arrays = (view((rows, columns), np.float32, 16) for _ in range(3))
    plan = plan_for(2)
    add(*arrays, out=out, plan=plan)
    ((kernel, blocks, threads, _, *given),) = gpu.launches
    *_, tile = given[0]
    height, width = tile.shape
    assert kernel.__name__ == "pointwise_ring"
    assert width == min(256, columns) and height * width * 4 <= plan.tile_bytes < 2 * tile.nbytes
    tiles = math.ceil(rows / height) * math.ceil(columns / width)
    assert blocks == min(tiles, 132 * plan.blocks_per_sm) and threads == plan.threads + 32


#: Rows and columns, gap and first element, and the kernels of gelu and add.
SIZES = {
    "small": ((64, 1024), (0, 0), "pointwise_units", "pointwise_units"),
    "small rows": ((64, 1024), (8, 8), "pointwise_units", "pointwise_units"),
    "large": ((1 << 15, 1024), (0, 0), "pointwise_chunk", "pointwise_ring"),
    "large and odd": ((32771, 1025), (0, 0), "pointwise_chunk", "pointwise_chunk"),
    "large rows": ((1 << 15, 1024), (8, 8), "pointwise_ring", "pointwise_ring"),
    "large, anywhere": ((1 << 15, 1024), (0, 1), "pointwise_units", "pointwise_units"),
    "large rows, anywhere": ((1 << 15, 1024), (3, 0), "pointwise_units", "pointwise_units"),
}


@pytest.mark.parametrize("case", SIZES)
def test_large_arrays_are_computed_by_tma_where_it_can_and_small_ones_by_threads(gpu, case):  # noqa: F811
    shape, place, *names = SIZES[case]
    out, x, y = (view(shape, np.float32, *place) for _ in range(3))
    gelu(x, out=out)
    add(x, y, out=out)
    assert [kernel.__name__ for kernel, *_ in gpu.launches] == names
    assert ((x.nbytes, 2 * x.nbytes) >= (BY_THREADS,) * 2) == ("large" in case)


def test_a_plan_is_kept_at_any_size(gpu):  # noqa: F811
    x, out = (view((1 << 15, 1024), np.float32, 8) for _ in range(2))
    add(x, x, out=out, plan=PointwisePlan("vector"))
    x, out = (view((64, 256), np.float32) for _ in range(2))
    for kernel in ("vector", "chunk", "ring"):
        add(x, x, out=out, plan=PointwisePlan(kernel))
    names = [kernel.__name__ for kernel, *_ in gpu.launches]
    assert names == [f"pointwise_{kernel}" for kernel in ("units", "units", "chunk", "ring")]


@pytest.mark.parametrize("name", TYPES)
def test_the_parts_of_a_vector_that_a_gpu_adds(name):
    """A GPU's tests pass them: each type is read, from its first element on."""
    memory = view((64,), "u2" if name == "bf16" else TYPES[name])
    whole = BFloat16Array(memory) if name == "bf16" else memory
    found = Array.read("add", "x", Part(whole, 3, (2, 5), 1))
    size = found.itemsize
    assert (found.dtype.name, found.shape, found.strides) == (name, (2, 5), (6 * size, size))
    assert found.address == memory.device_ctypes_pointer.value + 3 * size
