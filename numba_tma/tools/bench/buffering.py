"""What circular buffering is worth: nvFuser's issue 2197 as a table.

Two kernels read a matrix by TMA and write another: SiLU, which is pointwise, and RMSNorm, which
reduces rows. Each has four forms of the same loop over tiles, written as a user writes them:

- synchronous: a tile is loaded, waited for and worked on; nothing overlaps within a block;
- circular, barrier: `CircularBuffer` with ``war="sync"``; all threads meet (__syncthreads) before a
  stage is loaded again;
- circular, mbarrier: `CircularBuffer` with ``war="mbarrier"``; warps arrive on a stage's mbarrier;
- warp-specialised: `TilePipeline`; a warp loads while four others work.

All have the same tiles, blocks and threads that work, so that the table shows the loop alone. A
matrix has `COLUMNS` columns and any multiple of `ROWS` rows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

import numba_tma as tma
from numba_tma import ptx
from numba_tma.host.annotations import DeviceFunction, Kernel
from numba_tma.tools.bench.results import Cases, Measured, Results, rate
from numba_tma.tools.bench.timing import worse_of_two

KERNEL = "buffering"
ROWS, COLUMNS = 4, 1024  #: of a tile; a warp has a row
TILE = tma.Tile((ROWS, COLUMNS), np.float32)  #: 16 KiB, in four copies of 256 columns
WARP, THREADS = 32, 128  #: THREADS work; a warp-specialised block has a warp more
BLOCKS_PER_SM = 2
EPS: Any = np.float32(1e-6)
ONE: Any = np.float32(1)
MEAN: Any = np.float32(1 / COLUMNS)
MINUS_LOG2_E: Any = np.float32(-1 / math.log(2))

# ------------------------------------------------------- the work on a tile, by THREADS threads


@cuda.jit(device=True)
def silu(tile, out, first, thread):  # type: ignore[no-untyped-def]
    """Compute x / (1 + exp(-x)); a thread takes every 128th column."""
    for k in range(COLUMNS // THREADS):
        column = k * THREADS + thread
        for row in range(ROWS):
            x = tile[row, column]
            e = ptx.ex2_approx_ftz_f32(x * MINUS_LOG2_E)
            out[first + row, column] = x * ptx.rcp_approx_ftz_f32(ONE + e)


@cuda.jit(device=True)
def rmsnorm(tile, out, first, thread):  # type: ignore[no-untyped-def]
    """Compute x / sqrt(mean(x * x) + EPS) of each row; a warp takes a row."""
    row, lane = thread // WARP, thread % WARP
    squares: Any = np.float32(0)
    for k in range(COLUMNS // WARP):
        x = tile[row, k * WARP + lane]
        squares += x * x
    for step in (16, 8, 4, 2, 1):
        squares += ptx.shfl_sync_bfly_f32(squares, step)
    scale = ONE / math.sqrt(squares * MEAN + EPS)
    for k in range(COLUMNS // WARP):
        out[first + row, k * WARP + lane] = tile[row, k * WARP + lane] * scale


WORK: dict[str, DeviceFunction] = {"silu": silu, "rmsnorm": rmsnorm}

# -------------------------------------------------------------------- the loops over tiles


def synchronous(work: DeviceFunction, stages: int) -> Kernel:
    """Return the kernel in which a block has one tile in flight, and waits for it."""

    @cuda.jit(launch_bounds=(THREADS, BLOCKS_PER_SM))
    def synchronous(x, out, tiles):  # type: ignore[no-untyped-def]
        tile, full = tma.shared_tile(TILE), tma.shared_barrier()
        loads = cuda.threadIdx.x == 0
        if loads:
            full.init(1)
            tma.fence_mbarrier_init()
        cuda.syncthreads()
        parity = 0
        for t in range(cuda.blockIdx.x, tiles, cuda.gridDim.x):
            if loads:
                full.arrive_expect_tx(TILE.nbytes)
                x.load(tile, (t * ROWS, 0), full)
            full.wait(parity)
            parity ^= 1
            work(tile, out, t * ROWS, cuda.threadIdx.x)
            cuda.syncthreads()  # all have read the tile

    return synchronous


def circular(work: DeviceFunction, stages: int, war: Any) -> Kernel:
    """Return the kernel whose threads load `stages` - 1 tiles ahead of the tile they work on."""
    BUFFER = tma.CircularBuffer(stages, war=war, x=TILE)

    @cuda.jit(launch_bounds=(THREADS, BLOCKS_PER_SM))
    def circular(x, out, tiles):  # type: ignore[no-untyped-def]
        ring = BUFFER.start()
        for t, stage in ring.tiles(cuda.blockIdx.x, tiles, cuda.gridDim.x):
            for ahead, slot in ring.loads():
                x.load(slot.x, (ahead * ROWS, 0), slot.barrier)
            full = stage.wait()
            work(full.x, out, t * ROWS, ring.thread())
        ring.close()

    return circular


def warp_specialised(work: DeviceFunction, stages: int) -> Kernel:
    """Return the kernel in which the last warp loads, and the others work."""
    PIPE = tma.TilePipeline(stages, x=TILE)

    @cuda.jit(launch_bounds=(THREADS + WARP, BLOCKS_PER_SM))
    def warp_specialised(x, out, tiles):  # type: ignore[no-untyped-def]
        pipe = PIPE.start()
        if pipe.is_producer():
            for t, stage in pipe.produce(cuda.blockIdx.x, tiles, cuda.gridDim.x):
                x.load(stage.x, (t * ROWS, 0), stage.barrier)
        else:
            for t, stage in pipe.consume(cuda.blockIdx.x, tiles, cuda.gridDim.x):
                work(stage.x, out, t * ROWS, cuda.threadIdx.x)

    return warp_specialised


Make = Callable[[DeviceFunction, int], Kernel]
#: By the form's name: what makes its kernel, the stages it is measured with, and its block.
FORMS: dict[str, tuple[Make, tuple[int, ...], int]] = {
    "synchronous": (synchronous, (1,), THREADS),
    "circular, barrier": (functools.partial(circular, war="sync"), (1, 2, 4), THREADS),
    "circular, mbarrier": (functools.partial(circular, war="mbarrier"), (1, 2, 4), THREADS),
    "warp-specialised": (warp_specialised, (1, 2, 4), THREADS + WARP),
}
STAGES = (1, 2, 4)


@functools.cache
def kernel_of(work: str, form: str, stages: int) -> Kernel:
    """Return a kernel of the table. It takes a map of `TILE`, an array, and the number of tiles."""
    make, _, _ = FORMS[form]
    return make(WORK[work], stages)


def exact(work: str, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the result of a kernel in float64, by NumPy."""
    wide: Any = x.astype(np.float64)
    if work == "silu":
        divisor = 1 + np.exp(-wide)
    else:
        divisor = np.sqrt((wide * wide).mean(axis=1, keepdims=True) + EPS)
    result: np.ndarray[Any, Any] = wide / divisor
    return result


def check(work: str, x: np.ndarray[Any, Any], got: np.ndarray[Any, Any]) -> None:
    """Raise an AssertionError unless `got` is the result of a kernel for `x`."""
    np.testing.assert_allclose(got, exact(work, x), rtol=1e-5, atol=1e-6)


# --------------------------------------------------------------------------- on a GPU


def bench(torch: Any, work: str, form: str, stages: int, rows: int = 1 << 17) -> Measured:
    """Time one kernel of the table, beside a copy; its first and last rows are checked."""
    x = torch.randn(rows, COLUMNS, device="cuda")
    out, z = torch.zeros_like(x), torch.empty_like(x)
    kernel, threads = kernel_of(work, form, stages), FORMS[form][2]
    blocks = BLOCKS_PER_SM * cuda.get_current_device().MULTIPROCESSOR_COUNT
    launch = tma.launcher(kernel, blocks, threads)
    arguments = tma.tensor_map(x, TILE), cuda.as_cuda_array(out), rows // ROWS
    launch(*arguments)
    for part in (slice(None, 4096), slice(-4096, None)):
        check(work, x[part].cpu().numpy(), out[part].cpu().numpy())
    times = worse_of_two({"numba_tma": lambda: launch(*arguments), "copy": lambda: z.copy_(x)})
    return rate(2 * x.nbytes, times)


def _case(work: str, form: str, stages: int) -> str:
    return f"{work} {form} {stages}"


CASES: Cases = {
    (KERNEL, _case(work, form, stages)): functools.partial(
        bench, work=work, form=form, stages=stages
    )
    for work in WORK
    for form, (_, measured, _) in FORMS.items()
    for stages in measured
}


def table(results: Results) -> str:
    """Return the Markdown table of the measured cases; a line that says so if there are none."""
    rows = {row["case"]: row for row in results["rows"] if row["kernel"] == KERNEL}
    if not rows:
        return "Not measured yet: `python -m numba_tma bench --only buffering` fills this table."
    lines = [
        f"GB/s on an {results['gpu']}; in brackets the ratio to torch's copy of the same bytes.",
        "",
        "| kernel | form | " + " | ".join(_stages(n) for n in STAGES) + " |",
        "|---|---|" + "---|" * len(STAGES),
    ]
    for work in WORK:
        for form in FORMS:
            shown = [_cell(rows.get(_case(work, form, stages))) for stages in STAGES]
            lines.append(f"| {work} | {form} | {' | '.join(shown)} |")
    return "\n".join(lines)


def _stages(count: int) -> str:
    return f"{count} stage{'s' * (count > 1)}"


def _cell(row: dict[str, Any] | None) -> str:
    return "" if row is None else f"{row['numba_tma']:,g} ({row['numba_tma'] / row['copy']:.2f} x)"
