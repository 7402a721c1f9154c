"""Every byte that a tile load or store moves agrees with the NumPy model."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numba import cuda

import numba_tma as tma
from numba_tma.host.dtypes import as_dtype, byte_names
from tests.gpu import copies
from tests.gpu.copies import GUARD_BYTES, SHARED_BYTES, SWIZZLES, Tensor
from tests.gpu.worker import on_gpu

TILE_BYTES = SHARED_BYTES - GUARD_BYTES
TENSOR_BYTES = 1 << 19
FAR = 1 << 20

# For each of 85 combinations of type and rank, so many loads and as many stores.
twenty = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@dataclass(frozen=True)
class Case:
    """One copy: the tile, the tensor, where the tile lies in it, the map's options, the data."""

    tile: tma.Tile
    tensor: Tensor
    coords: tuple[int, ...]
    element_strides: tuple[int, ...]
    oob_fill: str
    l2_promotion: int | None
    normal: bool
    seed: int

    def memory(self):
        """Return the block of memory in which the tensor lies: noise, or normal floats."""
        rng, dtype = np.random.default_rng(self.seed), self.tile.dtype.numpy
        if self.normal:
            values = rng.standard_normal(self.tensor.nbytes // dtype.itemsize)
            return values.astype(dtype).view(np.uint8)
        return rng.integers(0, 256, self.tensor.nbytes, np.uint8)

    def map(self, memory):
        """Return the map of the tensor in a block of device memory."""
        return tma.tensor_map(
            self.tensor.on_device(memory),
            self.tile,
            dtype=self.tile.dtype,
            element_strides=self.element_strides,
            oob_fill=self.oob_fill,
            l2_promotion=self.l2_promotion,
        )


@st.composite
def cases(draw, dtype, rank):
    dtype = as_dtype(dtype)
    tile, steps = draw(tiles(dtype, rank))
    tensor = draw(tensors(tile, steps))
    return Case(
        tile=tile,
        tensor=tensor,
        coords=draw(coordinates(tile, steps, tensor)),
        element_strides=steps,
        oob_fill=draw(st.sampled_from(["zeros", "nan"])) if dtype.is_float else "zeros",
        l2_promotion=draw(st.sampled_from([None, 64, 128, 256])),
        normal="int" not in dtype.numpy.name and draw(st.booleans()),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


@st.composite
def tiles(draw, dtype, rank):
    """A tile and its element strides."""
    swizzle = draw(st.sampled_from(SWIZZLES))
    chunk = 16 // dtype.itemsize
    if swizzle is tma.Swizzle.NONE:
        inner = chunk * draw(st.integers(1, 256 // chunk))
        rows = TILE_BYTES // (inner * dtype.itemsize)
    else:
        most = swizzle.span // 16
        inner = chunk * draw(st.one_of(st.just(most), st.integers(1, most)))
        rows = TILE_BYTES // swizzle.span
    shape, steps = [inner], [1]
    for _ in range(rank - 1):
        step = draw(st.one_of(st.just(1), st.just(1), st.integers(1, 8)))
        extent = draw(st.integers(1, min(256 // step, rows, 256 if rank < 4 else 12)))
        rows //= extent
        shape.insert(0, extent)
        steps.insert(0, step)
    return tma.Tile(tuple(shape), dtype, swizzle), tuple(steps)


@st.composite
def tensors(draw, tile, steps):
    """A tensor with gaps between its rows, whose outer axes lie in memory in any order."""
    itemsize, rank = tile.itemsize, tile.ndim
    inner = draw(st.integers(1, 2 * tile.shape[-1] + 3))
    shape, strides = [1] * (rank - 1) + [inner], [itemsize] * rank
    stride = inner * itemsize
    rows = TENSOR_BYTES // (stride + 64)
    for axis in draw(st.permutations(range(rank - 1))):
        stride = -(-stride // 16) * 16 + 16 * draw(st.integers(0, 3))
        extent = draw(st.integers(1, max(1, min(2 * tile.shape[axis] * steps[axis] + 3, rows))))
        shape[axis], strides[axis] = extent, stride
        rows //= extent
        stride *= extent
    return Tensor(tuple(shape), tuple(strides), itemsize, 16 * draw(st.integers(0, 9)))


@st.composite
def coordinates(draw, tile, steps, tensor):
    """Where the tile starts: within the tensor, across its edges, or outside of it."""
    spans = [extent * step for extent, step in zip(tile.shape, steps)]
    place = draw(st.sampled_from(["within", "across", "across", "across", "outside"]))
    coords = []
    for span, length in zip(spans, tensor.shape):
        inside, meeting = st.integers(0, max(0, length - span)), st.integers(1 - span, length - 1)
        coords.append(draw(inside if place == "within" else meeting))
    if place == "outside":
        axis = draw(st.integers(0, tile.ndim - 1))
        coords[axis] = draw(st.sampled_from([-spans[axis], tensor.shape[axis], -FAR, FAR]))
    unit = 16 // tile.itemsize  # any other innermost coordinate is an illegal instruction
    coords[-1] = coords[-1] // unit * unit
    return tuple(coords)


@pytest.mark.parametrize("rank", range(1, 6))
@pytest.mark.parametrize("dtype", byte_names)
@twenty
@given(data=st.data())
def test_loads(dtype, rank, data):
    check_load(data.draw(cases(dtype, rank)))


@pytest.mark.parametrize("rank", range(1, 6))
@pytest.mark.parametrize("dtype", byte_names)
@twenty
@given(data=st.data())
def test_stores(dtype, rank, data):
    case = data.draw(cases(dtype, rank))
    # A store that starts before the tensor is illegal (tests/gpu/tools/test_measured.py).
    check_store(replace(case, coords=tuple(max(c, 0) for c in case.coords)))


@on_gpu
def check_load(case):
    memory = case.memory()
    tensor, tile, steps = case.tensor.of(memory), case.tile, case.element_strides
    expected = copies.canaries(tile.shared_nbytes + GUARD_BYTES)
    copied = copies.copied_bytes(tile)
    expected[: copied.size][copied] = tma.reference_tile(
        tensor, tile, case.coords, oob_fill=case.oob_fill, element_strides=steps
    )[copied]
    tensor_map = case.map(cuda.to_device(memory))
    image, completed = copies.load(tensor_map, case.coords, tile.nbytes, expected.size)
    assert completed, f"the barrier expected {tile.nbytes} B, and that is not what came"
    np.testing.assert_array_equal(image, expected)


@on_gpu
def check_store(case):
    memory, tile = case.memory(), case.tile
    image = np.random.default_rng(case.seed + 1).integers(0, 256, tile.shared_nbytes, np.uint8)
    device = cuda.to_device(memory)
    copies.store(case.map(device), case.coords, image)
    # Rows end where their last 16-byte chunk does.
    chunk = 16 // tile.itemsize
    *outer, inner = case.tensor.shape
    whole = replace(case.tensor, shape=(*outer, -(-inner // chunk) * chunk))
    tma.reference_store(whole.of(memory), image, tile, case.coords, case.element_strides)
    np.testing.assert_array_equal(device.copy_to_host(), memory)
