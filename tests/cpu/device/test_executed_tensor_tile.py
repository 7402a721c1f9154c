"""Matrices in tensor memory in compiled kernels, executed: their rows, and what is stored."""

import numpy as np
import pytest
from numba import cuda, types

from numba_tma.backend.interface import u32
from numba_tma.device.tensor_tile import TensorTile
from numba_tma.host.dtypes import as_dtype
from numba_tma.host.tensor_tiles import Accumulator, tensor_operand
from numba_tma.tools.testing import compile_ptx
from tests.ptx_machine import Machine

F32, F16, E4M3 = as_dtype("f32"), as_dtype("f16"), as_dtype("e4m3").numpy


def compiled(body):
    return compile_ptx(cuda.jit(body), (types.int64[::1],), cc=(10, 0, "a"))


def executed(ptx, thread=0, **special):
    """Return what a thread of a kernel writes to `out`, and what it tells the hardware."""
    out = np.zeros(4, np.int64)
    return out, Machine(ptx, out, block=(256, 1, 1)).run(thread, **special)


@pytest.mark.parametrize(
    ("layout", "row"),
    [
        (Accumulator(128, 64, F32), lambda lane, rank: lane),
        (Accumulator(256, 64, F32, 2), lambda lane, rank: lane + 128 * rank),
        (Accumulator(128, 64, F32, 2), lambda lane, rank: lane % 64 + 64 * rank),
        (Accumulator(64, 64, F32, ws=True), lambda lane, rank: lane % 64),
        (Accumulator(32, 64, F32, ws=True), lambda lane, rank: lane % 32),
        (tensor_operand(128, 64, "bf16", 1), lambda lane, rank: lane),
    ],
    ids=["128", "256", "a pair's 128", "64", "32", "operand"],
)
def test_the_row_of_a_thread_s_lane(layout, row):
    def kernel(out):
        out[0] = TensorTile(layout, u32(0)).row

    ptx = compiled(kernel)
    for thread in (0, 37, 69, 127, 128 + 70):
        for rank in range(4):  # a pair is two neighbours of the cluster
            out, _ = executed(ptx, thread, cluster_ctarank=rank, cluster_nctarank=4)
            assert out[0] == row(thread % 128, rank % 2)


def bits(*values, dtype=np.float16):
    return [int(word) for word in np.array(values, dtype).view(f"u{np.dtype(dtype).itemsize}")]


@pytest.mark.parametrize(
    ("layout", "column", "cell", "words"),
    [
        (Accumulator(128, 64, F32), 3, 3, bits(1.5, -2, 3, 4, dtype=np.float32)),
        # Of an accumulator of 16 bits an element is in the lower half of its cell.
        (Accumulator(128, 64, F16), 3, 3, bits(1.5, -2, 3, 4)),
        (
            tensor_operand(128, 64, "f16", 1), 6, 3,
            [low | high << 16 for low, high in (bits(1.5, -2), bits(3, 4))],
        ),
        (
            tensor_operand(128, 64, "e4m3", 1), 12, 3,
            [sum(byte << 8 * i for i, byte in enumerate(bits(1.5, -2, 3, 4, dtype=E4M3)))],
        ),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_store_tells_tensor_memory(layout, column, cell, words):
    def kernel(out):
        one, three = np.float32(1.5), np.float32(3)
        TensorTile(layout, u32(32)).store(column, (one, np.float32(-2), three, np.float32(4)))

    ptx = compiled(kernel)
    for thread in (0, 70, 128 + 32):
        _, log = executed(ptx, thread)
        ((address, stored),) = [given for name, given in log if name.startswith("tcgen05.st")]
        assert address == 32 + cell + (thread // 32 % 4 * 32 << 16)
        assert list(stored) == words
        assert [n for n, _ in log if "wait::st" in n or "before_thread_sync" in n] == [
            "tcgen05.wait::st.sync.aligned", "tcgen05.fence::before_thread_sync"
        ]  # fmt: skip
