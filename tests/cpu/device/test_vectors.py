"""Vectors of global memory: one access each, and their errors."""

import math

import numpy as np
import pytest
from numba import cuda, types
from numba.core.errors import TypingError

from numba_tma import Tile
from numba_tma.device.vectors import load_vector, map_lanes, store_vector
from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels.pointwise.api import Plan, chunk_kernel, pointwise
from numba_tma.tools.testing import compile_ptx, instructions

BYTES = types.uint8[::1]
BF16X8, F32X4, F32X2, LONG = Tile(8, "bf16"), Tile(4, "f32"), Tile(2, "f32"), Tile(16, "f32")


@cuda.jit(device=True, forceinline=True)
def square(x):
    return x * x


@pytest.mark.parametrize(
    ("tile", "suffix"),
    [
        *((BF16X8, "v4.u32"), (F32X4, "v4.u32"), (F32X2, "v2.u32"), (Tile(1, "bf16"), "u16")),
        *((Tile(2, "f64"), "v2.u64"), (Tile(4, "u8"), "u32"), (Tile(1, "u8"), "u8")),
    ],
    ids=str,
)
def test_a_vector_is_one_access(tile, suffix):
    @cuda.jit
    def move(x, y, i):
        store_vector(y, i, load_vector(x, i, tile), tile)

    ptx = instructions(compile_ptx(move, (BYTES, BYTES, types.int64), cc=(9, 0, "a")))
    found = [i.split()[0].replace(".b", ".u") for i in ptx if i.startswith(("ld.g", "st.g"))]
    assert found == [f"ld.global.{suffix}", f"st.global.{suffix}"]


def refusal(body, *arguments):
    with pytest.raises(TypingError) as caught:
        compile_ptx(cuda.jit(body), arguments or (BYTES,), cc=(9, 0, "a"))
    return str(caught.value)


REFUSED = {
    "array": (
        lambda x: load_vector(x, 0, F32X4),
        (types.float32[::1],),
        "load_vector(array=...) takes a contiguous array of uint8, not array(float32, 1d, C)",
    ),
    "array stored to": (
        lambda x, y: store_vector(x, 0, load_vector(y, 0, F32X4), F32X4),
        (types.float32[::1], BYTES),
        "store_vector(array=...) takes a contiguous array of uint8, not array(float32, 1d, C)",
    ),
    "size": (
        lambda x: load_vector(x, 0, LONG),
        (BYTES,),
        "a vector has 1, 2, 4, 8 or 16 bytes: use a Tile of 16 bytes or fewer",
    ),
    "values": (
        lambda x: store_vector(x, 0, load_vector(x, 0, F32X2), F32X4),
        (BYTES,),
        "store_vector(values=...) of Tile((4,), f32, NONE) takes Vector(float32, 4), not",
    ),
    "lanes": (
        lambda x: map_lanes(max, (load_vector(x, 0, F32X2), load_vector(x, 0, F32X4))),
        (BYTES,),
        "have different numbers of lanes",
    ),
    "no vectors": (
        lambda x: map_lanes(square, (x,)),
        (BYTES,),
        "map_lanes(vectors=...) takes a tuple of vectors, not",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    body, arguments, message = REFUSED[case]
    assert message in refusal(body, *arguments)


def test_a_function_that_computes_in_float64_is_told_so():
    half = pointwise(lambda x: 0.5 * x)
    kernel = chunk_kernel(half.fn, 1, 0, as_dtype("f32"), Plan("chunk", 32, 512))
    with pytest.raises(TypingError, match="returns float64, and the lanes are float32"):
        compile_ptx(kernel, (BYTES, BYTES, types.int64), cc=(9, 0, "a"))
    root = pointwise(lambda x: np.float32(math.sqrt(x)))
    kernel = chunk_kernel(root.fn, 1, 0, as_dtype("f32"), Plan("chunk", 32, 512))
    compile_ptx(kernel, (BYTES, BYTES, types.int64), cc=(9, 0, "a"))
