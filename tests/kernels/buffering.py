"""The kernels of the table of circular buffering, on small matrices, against NumPy."""

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma.tools.bench import buffering

CASES = [
    (work, form, stages)
    for work in buffering.WORK
    for form, (_, measured, _) in buffering.FORMS.items()
    for stages in measured
]


def run(work, form, stages, tiles, blocks=2):
    """Run a kernel on `tiles` tiles and hold its result to NumPy's."""
    rng = np.random.default_rng(tiles)
    x = rng.standard_normal((tiles * buffering.ROWS, buffering.COLUMNS)).astype(np.float32)
    there, out = cuda.to_device(x), cuda.to_device(np.zeros_like(x))
    kernel, threads = buffering.kernel_of(work, form, stages), buffering.FORMS[form][2]
    kernel[blocks, threads](tma.tensor_map(there, buffering.TILE), out, tiles)
    buffering.check(work, x, out.copy_to_host())
