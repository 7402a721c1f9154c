"""Transposes bit by bit: every element size, odd shapes, batches, rows with gaps, odd starts."""

import numpy as np
import pytest
from numba import cuda

from numba_tma.kernels.transpose.api import PLANS, Plan, transpose
from tests.gpu.worker import on_gpu

SHAPES = [
    *((1, 1), (1, 7), (5, 3), (8, 8), (16, 16), (33, 65), (128, 128), (256, 64), (64, 256)),
    *(
        (144, 272),
        (1000, 1008),
        (1024, 1040),
        (257, 511),
        (3, 40, 72),
        (2, 3, 64, 48),
        (2, 2, 7, 5),
    ),
]


def bits(shape, itemsize):
    numbers = np.random.default_rng(0).integers(0, 2**31, shape)
    return numbers.astype(f"u{itemsize}")


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
@on_gpu
def test_every_shape(itemsize):
    for shape in SHAPES:
        x = bits(shape, itemsize)
        out = cuda.to_device(np.full((*shape[:-2], shape[-1], shape[-2]), 7, x.dtype))
        assert transpose(cuda.to_device(x), out=out) is out
        np.testing.assert_array_equal(out.copy_to_host(), np.swapaxes(x, -1, -2), str(shape))
        again = transpose(cuda.to_device(x)).copy_to_host()
        np.testing.assert_array_equal(again, np.swapaxes(x, -1, -2), str(shape))


@pytest.mark.parametrize("itemsize", [2, 4, 8])
@on_gpu(limit=60)
def test_every_plan(itemsize):
    x = bits((1040, 784), itemsize)
    device = cuda.to_device(x)
    for plan in (
        PLANS[itemsize],
        *(Plan(1, 1, 64, 1), Plan(1, 2, 128, 32), Plan(2, 1, 64, 3), Plan(2, 2, 256, 8)),
        *(Plan(2, 1, 128, 8, "registers"), Plan(4, 1, 256, 1, "registers")),
    ):
        out = cuda.to_device(np.full(x.T.shape, 7, x.dtype))
        transpose(device, out=out, plan=plan)
        np.testing.assert_array_equal(out.copy_to_host(), x.T, str(plan))


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
@on_gpu
def test_rows_with_gaps_and_odd_starts(itemsize):
    x = bits((200, 400), itemsize)
    device = cuda.to_device(x)
    for start, columns in ((0, 400), (16, 256), (1, 100), (16, 61)):
        for rows in (200, 144, 33):
            for pitch, offset in ((rows, 0), (rows + 16 - rows % 16, 0), (rows + 3, 2)):
                target = np.full((columns, pitch + offset), 7, x.dtype)
                out = cuda.to_device(target)
                view = device[:rows, start : start + columns]
                transpose(view, out=out[:, offset : offset + rows])
                target[:, offset : offset + rows] = x[:rows, start : start + columns].T
                what = f"{start} {columns} {rows} {pitch} {offset}"
                np.testing.assert_array_equal(out.copy_to_host(), target, what)


@on_gpu
def test_a_stream_of_its_own():
    stream = cuda.stream()
    x = bits((512, 256), 4)
    out = cuda.to_device(np.zeros((256, 512), np.uint32), stream=stream)
    transpose(cuda.to_device(x, stream=stream), out=out, stream=stream)
    stream.synchronize()
    np.testing.assert_array_equal(out.copy_to_host(), x.T)
