"""The README's example, as it stands there, and two other forms of its loop over elements."""

from __future__ import annotations

import functools
from types import ModuleType

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma.host.annotations import Kernel
from numba_tma.tools.bench.results import Cases, Measured, rate
from numba_tma.tools.bench.timing import worse_of_two

KERNEL = "scale"
ROWS, COLUMNS = 541_000, 128  #: 277 MB of float32; the last tile is not full
TILE = tma.Tile((64, 128), np.float32)
PIPE = tma.TilePipeline(4, x=TILE)


@cuda.jit
def scale(x, y, factor, n_tiles):  # type: ignore[no-untyped-def]
    """Multiply an array; a test holds the kernel to the README's."""
    pipe = PIPE.start()
    first, step = cuda.blockIdx.x, cuda.gridDim.x
    if pipe.is_producer():
        for tile, stage in pipe.produce(first, n_tiles, step):
            x.load(stage.x, (tile * 64, 0), stage.barrier)
    else:
        for tile, stage in pipe.consume(first, n_tiles, step):
            for i, j in pipe.indices(stage.x):
                stage.x[i, j] *= factor
            pipe.store(y, stage.x, (tile * 64, 0))


@cuda.jit
def by_vectors(x, y, factor, n_tiles):  # type: ignore[no-untyped-def]
    """Multiply an array, 16 bytes at a time."""
    pipe = PIPE.start()
    first, step = cuda.blockIdx.x, cuda.gridDim.x
    if pipe.is_producer():
        for tile, stage in pipe.produce(first, n_tiles, step):
            x.load(stage.x, (tile * 64, 0), stage.barrier)
    else:
        for tile, stage in pipe.consume(first, n_tiles, step):
            for index in pipe.vectors(stage.x):
                stage.x.write_vector(index, stage.x.read_vector(index) * factor)
            pipe.store(y, stage.x, (tile * 64, 0))


@cuda.jit
def by_range(x, y, factor, n_tiles):  # type: ignore[no-untyped-def]
    """Multiply an array, with a range that is divided by hand."""
    pipe = PIPE.start()
    first, step = cuda.blockIdx.x, cuda.gridDim.x
    if pipe.is_producer():
        for tile, stage in pipe.produce(first, n_tiles, step):
            x.load(stage.x, (tile * 64, 0), stage.barrier)
    else:
        for tile, stage in pipe.consume(first, n_tiles, step):
            for i in range(cuda.threadIdx.x, 64 * 128, pipe.num_consumers()):
                stage.x[i // 128, i % 128] *= factor
            pipe.store(y, stage.x, (tile * 64, 0))


FORMS: dict[str, Kernel] = {"indices": scale, "vectors": by_vectors, "range": by_range}
#: Threads of a block; None has those of `suggest_launch`.
CASE_THREADS = {"indices": (None, 160), "vectors": (None, 160), "range": (None, 160)}


def bench(torch: ModuleType, form: str, threads: int | None) -> Measured:
    """Time a form, beside a copy and torch's multiplication; the result is checked."""
    x = torch.randn(ROWS, COLUMNS, device="cuda")
    y, z = torch.zeros_like(x), torch.empty_like(x)
    maps = tma.tensor_map(x, TILE), tma.tensor_map(y, TILE)
    arguments = (*maps, np.float32(2), -(-ROWS // TILE.shape[0]))
    advice = tma.suggest_launch(FORMS[form], arguments)
    print(f"{KERNEL} {form}: {advice}", flush=True)
    launch = tma.launcher(FORMS[form], advice.grid, threads or advice.block)
    launch(*arguments)
    assert torch.equal(y, 2 * x)
    times = worse_of_two(
        {
            "numba_tma": lambda: launch(*arguments),
            "torch": lambda: torch.mul(x, 2, out=z),
            "copy": lambda: z.copy_(x),
        }
    )
    return rate(2 * x.nbytes, times)


CASES: Cases = {
    (KERNEL, f"f32 {form}, {f'{threads} threads' if threads else 'suggested block'}"):
    functools.partial(bench, form=form, threads=threads)
    for form, each in CASE_THREADS.items()
    for threads in each
}
