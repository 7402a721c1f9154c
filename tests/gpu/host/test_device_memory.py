"""The library's own device memory on a GPU: launches, captures and threads beside its frees."""

import threading

import numpy as np
import pytest
from numba import cuda

from numba_tma.host import device_memory as module
from numba_tma.host.device_memory import device_memory
from numba_tma.kernels._host import memo
from numba_tma.kernels.rows import column_sum
from tests.gpu.worker import IMPORT_SECONDS, on_gpu


@cuda.jit
def fill_slowly(x, value):
    for _ in range(200):
        for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
            x[i] = value


@on_gpu(limit=60)
def test_memory_is_not_freed_under_a_launch():
    """A launch that writes to freed memory would write to that of the next array."""
    size, stream = 64 << 20, cuda.stream()
    for round_ in range(5):
        one = device_memory((size,), np.uint32)
        fill_slowly[64, 256, stream](one, 0xDEAD)
        del one
        assert module._unused
        others = [device_memory((size,), np.uint32) for _ in range(2)]
        for other in others:
            cuda.as_cuda_array(other).copy_to_device(np.full(size, round_, np.uint32))
        stream.synchronize()
        for other in others:
            assert (cuda.as_cuda_array(other).copy_to_host() == round_).all()


@on_gpu(limit=IMPORT_SECONDS)
def test_memory_that_is_freed_and_allocated_leaves_the_captures_of_others_valid():
    torch = pytest.importorskip("torch")
    x = torch.ones(4096, 64, device="cuda")  # of which any 64 parts or more have a workspace
    outs = torch.empty(2, 64, device="cuda")
    column_sum(x, out=outs[0])
    side, graph, errors = torch.cuda.Stream(), torch.cuda.CUDAGraph(), []

    def work():
        try:
            torch.cuda.set_device(0)
            for n in range(3 * module._MOST_BLOCKS):
                column_sum(x, out=outs[0], parts=64 * (n + 1), stream=side)
                memo.forget_all()
        except Exception as error:
            errors.append(error)

    with torch.cuda.graph(graph):  # in the mode that forbids it to all threads
        y = x * 2
        column_sum(x, out=outs[1], parts=7 * 64, stream=torch.cuda.current_stream())
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        z = y + 1
    assert not errors
    graph.replay()
    torch.cuda.synchronize()
    assert bool((z == 3).all()) and bool((outs == 4096).all())
