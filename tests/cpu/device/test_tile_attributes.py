"""Attributes of tiles and maps in compiled kernels: constants, which take no instruction."""

import numpy as np
import pytest
from numba import cuda, types

import numba_tma as tma
from numba_tma import TensorMapType, Tile
from numba_tma.backend.lowering.types import RaggedTensorMapType
from numba_tma.tools.testing import compile_ptx, instructions
from tests.kernels.tile_attributes import TILES, expected, reading
from tests.ptx_machine import Machine


@pytest.mark.parametrize("tile", TILES[2:], ids=str)
def test_tiles_and_maps_have_the_attributes_of_arrays(tile):
    numbers, one = expected(tile)
    element = getattr(types, str(one.dtype))
    kinds = TensorMapType(tile.ndim, tile), types.int64[::1], element[::1]
    ptx = compile_ptx(reading(tile), kinds)
    out, result = np.zeros_like(numbers), np.zeros_like(one)
    Machine(ptx, bytes(128), out, result).run()
    np.testing.assert_array_equal(out, numbers)
    assert result == one


def test_attributes_are_literals():
    tile = Tile((2, 8), "f32")

    def kernel(x, out):
        held = tma.shared_tile(tile)
        own = cuda.local.array(held.size, x.dtype)
        for i in range(x.tile.size):
            own[i] = held[0, i] + held.ndim
        out[0] = own[0] + own[3]

    body = instructions(compile_ptx(kernel, (TensorMapType(2, tile), types.float32[::1])))
    assert not any(".local" in line or "bra" in line for line in body)


@pytest.mark.parametrize(
    ("kind", "expression", "text"),
    [
        (TensorMapType(2), "x.tile.nbytes", "TensorMap.tile: nothing is known of it for"),
        (TensorMapType(2), "x.dtype.type(0)", "TensorMap.dtype: nothing is known of it for"),
        (TensorMapType(2, TILES[3]), "x.shape[0]", "TensorMap.shape is for the host: read it befo"),
        (TensorMapType(2, TILES[3]), "PACKED().dtype.type(0)", "kernels hold no element of e2m1"),
        (TensorMapType(2, TILES[3]), "TILE.dtype.bits", "DType.bits is for the host: read it bef"),
    ],
)
def test_what_a_kernel_does_not_know(kind, expression, text):
    tile = Tile((8, 128), "e2m1")
    packed = cuda.jit(device=True)(lambda: tma.shared_tile(tile))
    names = {"cuda": cuda, "PACKED": packed, "TILE": tile}
    exec(f"def kernel(x, out):\n    out[0] = {expression}", names)
    with pytest.raises(Exception, match=text.replace("(", r"\(")):
        compile_ptx(names["kernel"], (kind, types.int64[::1]))


@pytest.mark.parametrize(
    "kind",
    [
        *(TensorMapType(2, TILES[3], mode="gather"), TensorMapType(2, TILES[3]).in_array),
        RaggedTensorMapType(2, TILES[3], 0, "wrap", 1 << 20),
    ],
    ids=str,
)
def test_maps_of_every_kind_have_them(kind):
    def kernel(x, out):
        out[0] = x.ndim + x.tile.nbytes

    body = instructions(compile_ptx(kernel, (kind, types.int64[::1])))
    assert any(str(2 + TILES[3].nbytes) in line for line in body)
