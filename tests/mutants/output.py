"""`OutputTilePipeline`, broken: accumulators in shared and in tensor memory."""

from __future__ import annotations

from numba import cuda

import numba_tma as tma
from numba_tma.pipeline import consumer, output, producer, start
from tests.mutants import mistakes as m
from tests.mutants.table import (
    COLUMNS,
    OVER_BUDGET,
    ROWS,
    TILE,
    Impossible,
    Mutant,
    Program,
    over_budget,
)


def accumulators():
    ROLES = tma.Roles(mma=tma.Warps(1), epilogue=tma.Warps(1))
    OUT = tma.OutputTilePipeline(2, TILE, mma=ROLES.mma, epilogue=ROLES.epilogue)

    @cuda.jit
    def kernel(x, y, n):
        pipe, column = OUT.start(), cuda.threadIdx.x % COLUMNS
        if ROLES.mma.is_member():
            mma = pipe.producer()
            for t in range(n):
                stage = mma.acquire()
                for row in range(ROWS):
                    stage.acc[row, column] = x[t * ROWS + row, column]
                mma.commit()
        elif ROLES.epilogue.is_member():
            epilogue = pipe.consumer()
            for t in range(n):
                stage = epilogue.acquire()
                for row in range(ROWS):
                    stage.acc[row, column] += x[t * ROWS + row, COLUMNS + column]
                epilogue.store(y, stage.acc, (t * ROWS, 0))
                epilogue.release()
        pipe.close()

    return kernel, 1, ROLES.threads


def columns():
    ROLES = tma.Roles(mma=tma.Warps(4), epilogue=tma.Warps(4))
    ACC = tma.Tile((128, 32), "u32")
    OUT = tma.OutputTilePipeline(2, ACC, mma=ROLES.mma, epilogue=ROLES.epilogue, memory="tensor")

    @cuda.jit
    def kernel(x, y, n):
        pipe = OUT.start()
        row, column = cuda.threadIdx.x % 128 // COLUMNS, cuda.threadIdx.x % COLUMNS
        if ROLES.mma.is_member():
            mma = pipe.producer()
            for t in range(n):
                stage = mma.acquire()
                left, right = x[t * ROWS + row, column], x[t * ROWS + row, COLUMNS + column]
                stage.store(0, (left, right))
                mma.commit()
        elif ROLES.epilogue.is_member():
            epilogue = pipe.consumer()
            for t in range(n):
                stage = epilogue.acquire()
                left, right = stage.load(0, 2)
                y[t * ROWS + row, column] = left + right
                epilogue.release()
        pipe.close()

    return kernel, 1, ROLES.threads


SHARED = Program("OutputTilePipeline", accumulators, (None,), TILE)
TENSOR = Program("OutputTilePipeline, memory='tensor'", columns, (None,), on_hopper=False)

ACQUIRE, RELEASE = "stage = epilogue.acquire()", "epilogue.release()"
LINES = {
    SHARED: "ROLES = tma.Roles(mma=tma.Warps(1), epilogue=tma.Warps(1))",
    TENSOR: "ROLES = tma.Roles(mma=tma.Warps(4), epilogue=tma.Warps(4))",
}
NEVER = {"simulator": ("Deadlock", "empty[")}


def of_both(
    program: Program,
    waits: dict,
    early: dict,
    unseen: tuple[str, str] = ("BarrierMisuse", "there is no mbarrier here yet"),
) -> list[Mutant | Impossible]:
    """Return the mutants in either memory."""
    hangs = {"debug": ("PipelineTimeout", ".empty' stage")} if program.on_hopper else {}
    return [
        Mutant(
            program, "dropped wait", m.NO_WAIT, (), waits,
            ((consumer.TileConsumer, "_await_full", lambda self: None),),
        ),
        Mutant(program, "dropped arrival", m.FORGOTTEN_RELEASE, ((RELEASE, ""),), NEVER | hangs),
        Mutant(
            program, "early release", m.EARLY_RELEASE,
            ((ACQUIRE, f"{ACQUIRE}\n{RELEASE}"), (RELEASE, "")), early,
        ),
        Mutant(
            program, "missing sync after init", m.NO_INIT_SYNC, (),
            {"simulator": unseen},
            ((start, "barrier_sync", lambda number, threads: None),),
        ),
        Mutant(
            program, "setmaxnreg over budget", m.REGISTERS,
            over_budget(LINES[program], "mma", "epilogue"),
            {"host": ("ValueError", OVER_BUDGET)},
        ),
        Impossible(program.pipeline, "wrong parity", "The phases are internal: no call names one."),
    ]  # fmt: skip


OUTPUT = [
    *of_both(
        SHARED,
        {"simulator": ("UninitializedRead", "read before all of it was written")},
        {"simulator": ("MissingFence EarlyOverwrite DataRace", "nothing orders that write")},
    ),
    Mutant(
        SHARED, "dropped fence", m.NO_FENCE, (),
        {"simulator": ("MissingFence", "fence_proxy_async()")},
        ((producer, "fence_proxy_async", lambda: None),),
    ),
    Mutant(
        SHARED, "wrong bytes", m.PARTLY_FILLED,
        (("stage.acc[row, column] = x[t * ROWS + row, column]",
          "if column % 2 == 0:\n    stage.acc[row, column] = x[t * ROWS + row, column]"),),
        {"simulator": ("UninitializedRead", "read before all of it was written")},
    ),
    Impossible(
        SHARED.pipeline, "exit with something outstanding",
        "Threads write and read; nothing is in flight at their end.",
    ),
    *of_both(
        TENSOR,
        {"simulator": ("UninitializedRead EarlyRead", "loaded before all of it was written")},
        {"simulator": ("EarlyOverwrite", "before the tcgen05_ld of warp")},
        ("UninitializedRead", "read before all of it was written"),
    ),
    Mutant(
        TENSOR, "dropped fence", m.NO_TENSOR_FENCE, (),
        {"simulator": ("MissingFence", "must execute tcgen05_fence_after_thread_sync()")},
        ((output.OutputTilePipeline, "_fence_after", lambda self: None),),
    ),
    Mutant(
        TENSOR, "wrong bytes", m.PARTLY_FILLED,
        (("stage.store(0, (left, right))", "stage.store(0, (left,))"),),
        {"simulator": ("UninitializedRead", "loaded before all of it was written")},
    ),
    Mutant(
        TENSOR, "exit with something outstanding", m.COLUMNS_KEPT, (("pipe.close()", ""),),
        {"simulator": ("TensorMemoryMisuse", "ended without tcgen05_dealloc")},
    ),
]  # fmt: skip
