"""What Numba, with the library's shortcuts in it, makes of kernels without the library."""

import json
import re
import subprocess
import sys

from numba_tma.tools.testing import instructions

PROGRAM = """
import json, math
from types import SimpleNamespace
from unittest import mock
from numba import cuda, types
from numba.cuda.core.postproc import PostProcessor

def kernels():
    @cuda.jit(device=True)
    def clamp(value, low, high):
        if value < low:
            return low
        return high if value > high else value

    def histogram(values, counts, scale):
        shared = cuda.shared.array(64, types.int32)
        shared[cuda.threadIdx.x % 64] = 0
        cuda.syncthreads()
        for i in range(cuda.grid(1), values.size, cuda.gridsize(1)):
            place = clamp(int(math.floor(values[i] * scale)), 0, 63)
            if not (place % 7 == 0 and i > 2):
                cuda.atomic.add(shared, place, 1)
        cuda.syncthreads()
        while counts[0] > 3 and scale != 2:
            counts[0] -= 1
        cuda.atomic.add(counts, 1, shared[1])

    def powers(values, counts, scale):
        total = 0
        for i in range(3):
            pair = values[i], values[i + 1]
            total += counts[i]
            values[i] = pair[0] ** 2 + abs(pair[1]) if i else -pair[0]
        cuda.atomic.max(values, 0, scale + total)

    return histogram, powers

def compiled():
    signature = types.void(types.float64[::1], types.int32[::1], types.float64)
    return [cuda.compile_ptx(kernel, signature, cc=(9, 0))[0] for kernel in kernels()]

hopper = SimpleNamespace(compute_capability=(9, 0))
with mock.patch("numba.cuda.dispatcher.get_current_device", lambda: hopper):
    before, run = compiled(), PostProcessor.run
    import numba_tma.backend.numba_cuda
    assert PostProcessor.run is not run
    print(json.dumps([before, compiled()]))
"""


def test_kernels_without_the_library_compile_to_the_same():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    before, after = json.loads(done.stdout.splitlines()[-1])
    for one, other in zip(before, after, strict=True):
        found, expected = (
            instructions(re.sub(r"_cudapy_smem_\d+", "shared", text)) for text in (other, one)
        )
        assert found == expected and len(found) > 30
