"""Tiles of 4- and 6-bit elements in compiled kernels: bytes expected, addresses, refusals."""

import re

import pytest
from numba import types

import numba_tma as tma
from numba_tma import Swizzle, Tile
from numba_tma.tools.testing import compile_ptx

A = Tile((8, 256), "e2m1", Swizzle.B128)
B = Tile((8, 128), "e2m3", Swizzle.B128)
SCALES = Tile((1, 1, 2, 256), "ue4m3")
PIPE = tma.TilePipeline(2, a=A, b=B, sfa=SCALES)
BLACKWELL = (10, 0, "a")


def test_a_stage_of_packed_unpacked_and_scale_tiles():
    def kernel(a, b, sfa, out):
        pipe = PIPE.start()
        if pipe.is_producer():
            for t, stage in pipe.produce(0, 4):
                a.load(stage.a, (0, 256 * t), stage.barrier)
                b.load(stage.b, (0, 128 * t), stage.barrier)
                sfa.load(stage.sfa, (0, t, 0, 0), stage.barrier)
        else:
            for _, stage in pipe.consume(0, 4):
                out[0] = stage.a.address_of((3, 84)) - stage.a.address_of((0, 0))
                out[1] = stage.b.address_of((5, 26)) - stage.b.address_of((0, 0))
                out[2] = stage.sfa[0, 0, 1, 3]
            pipe.close()

    maps = [tma.TensorMapType(t.ndim, t) for t in (A, B, SCALES)]
    ptx = compile_ptx(kernel, (*maps, types.uint32[::1]), cc=BLACKWELL)
    assert A.nbytes + B.nbytes + SCALES.nbytes == 1024 + 768 + 512
    constants = set(map(int, re.findall(r" (\d+);", ptx)))
    assert {2304, A.offset(3, 84), B.offset(5, 26)} <= constants
    assert A.offset(3, 84) == 3 * 128 + 42 ^ 3 << 4 and B.offset(5, 26) == 5 * 128 + 23 ^ 5 << 4


def read_element(x, out):
    out[0] = tma.shared_tile(A)[0, 0]


def write_element(x, out):
    tma.shared_tile(A)[0, 0] = out[0]


def read_vector(x, out):
    out[0] = tma.shared_tile(A).read_vector((0, 0))[0]


def store_unpacked(x, out):
    x.store(tma.shared_tile(B), (0, 0))


@pytest.mark.parametrize(
    ("kernel", "argument", "said"),
    [
        (read_element, types.uint8[::1], "elements of 4 bits, which kernels neither read nor"),
        (write_element, types.uint8[::1], "elements of 4 bits, which kernels neither read nor"),
        (read_vector, types.uint8[::1], "elements of 4 bits, which kernels neither read nor"),
        (store_unpacked, tma.TensorMapType(2, B), "loaded and never stored"),
    ],
)
def test_refusals(kernel, argument, said):
    with pytest.raises(Exception, match=said):
        compile_ptx(kernel, (argument, types.float32[::1]), cc=BLACKWELL)
