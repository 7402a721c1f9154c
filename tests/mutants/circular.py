"""`CircularBuffer`, broken: one group of threads that loads ahead of its own work."""

from __future__ import annotations

from numba import cuda

import numba_tma as tma
from numba_tma.pipeline import circular_handle as library
from tests.mutants import mistakes as m
from tests.mutants.table import (
    COLUMNS,
    OVER_BUDGET,
    ROWS,
    SIZE,
    TILE,
    Impossible,
    Mutant,
    Program,
    over_budget,
)


def circular_sync():
    ROLES = tma.Roles(work=tma.Warps(2), other=tma.Warps(1))
    BUFFER = tma.CircularBuffer(2, 1, role=ROLES.work, a=TILE, b=TILE)

    @cuda.jit
    def kernel(x, y, n):
        ring = BUFFER.start()
        if ROLES.other.is_member():
            return
        for t, stage in ring.tiles(0, n):
            for ahead, slot in ring.loads():
                x.load(slot.a, (ahead * ROWS, 0), slot.barrier)
                x.load(slot.b, (ahead * ROWS, COLUMNS), slot.barrier)
            full = stage.wait()
            for i in range(ring.thread(), SIZE, ring.num_threads()):
                full.a[i // COLUMNS, i % COLUMNS] += full.b[i // COLUMNS, i % COLUMNS]
                y[t * ROWS + i // COLUMNS, i % COLUMNS] = full.a[i // COLUMNS, i % COLUMNS]
        ring.close()

    return kernel, 1, ROLES.threads


def circular_mbarrier():
    BUFFER = tma.CircularBuffer(3, 1, war="mbarrier", a=TILE, b=TILE)

    @cuda.jit
    def kernel(x, y, n):
        ring = BUFFER.start()
        for t, stage in ring.tiles(0, n):
            for ahead, slot in ring.loads():
                x.load(slot.a, (ahead * ROWS, 0), slot.barrier)
                x.load(slot.b, (ahead * ROWS, COLUMNS), slot.barrier)
            full = stage.wait()
            for i in range(ring.thread(), SIZE, ring.num_threads()):
                full.a[i // COLUMNS, i % COLUMNS] += full.b[i // COLUMNS, i % COLUMNS]
                y[t * ROWS + i // COLUMNS, i % COLUMNS] = full.a[i // COLUMNS, i % COLUMNS]
        ring.close()

    return kernel, 1, 64


SYNC = Program("CircularBuffer", circular_sync)
MBARRIER = Program("CircularBuffer, war='mbarrier'", circular_mbarrier)

LOAD = "x.load(slot.b, (ahead * ROWS, COLUMNS), slot.barrier)"
FULL = "full = stage.wait()"
SUM = "full.a[i // COLUMNS, i % COLUMNS] += full.b[i // COLUMNS, i % COLUMNS]"
UNSEEN = (
    "place = full.a.address_of((i // COLUMNS, i % COLUMNS))\n"
    "other = full.b.address_of((i // COLUMNS, i % COLUMNS))\n"
    "total = tma.ptx.ld_shared_u32(place) + tma.ptx.ld_shared_u32(other)\n"
    "tma.ptx.st_shared_u32(place, total)"
)
STORED = "y[t * ROWS + i // COLUMNS, i % COLUMNS] = "
UNREAD_SUM = (f"{STORED}full.a[i // COLUMNS, i % COLUMNS]", f"{STORED}total")


def of_both(program: Program) -> list[Mutant | Impossible]:
    """Return the mutants of either form."""
    return [
        Mutant(
            program, "dropped wait", m.NO_WAIT, (),
            {"simulator": ("UninitializedRead EarlyRead", "wait for the load's barrier first")},
            ((library.CircularBufferHandle, "_await_full", lambda self, barrier: None),),
        ),
        Mutant(
            program, "dropped fence", m.UNSEEN_WRITE, ((SUM, UNSEEN), UNREAD_SUM),
            {"simulator": ("MissingFence", "fence_proxy_async()")},
        ),
        Mutant(
            program, "wrong bytes", m.MISSING_LOAD, ((LOAD, ""),),
            {"simulator": ("Deadlock", "512 bytes missing"),
             "debug": ("PipelineTimeout", "512 bytes outstanding")},
        ),
        Mutant(
            program, "wrong bytes", m.LOADED_TWICE, ((LOAD, f"{LOAD}\n{LOAD}"),),
            {"simulator": ("EarlyOverwrite", "overwritten by another load")},
        ),
        Mutant(
            program, "missing sync after init", m.NO_INIT_SYNC, (),
            {"simulator": ("BarrierMisuse", "that has not synchronised with its mbarrier_init")},
            ((library, "barrier_sync", lambda number, threads: None),
             (library, "meet", lambda *args: None)),
        ),
        Mutant(
            program, "exit with something outstanding", m.LOADS_OUTSTANDING,
            ((FULL, f"if t == 2:\n    break\n{FULL}"), ("ring.close()", "")),
            {"simulator": ("UnfinishedCopy", "no thread has waited for")},
        ),
        Impossible(program.pipeline, "wrong parity", "The phases are internal: no call names one."),
    ]  # fmt: skip


CIRCULAR = [
    *of_both(SYNC),
    Mutant(
        SYNC, "dropped arrival", m.LEFT_ALONE,
        ((FULL, f"{FULL}\nif t == 2 and ring.thread() >= 32:\n    return"),),
        {"simulator": ("Deadlock", "32 of 64 threads have arrived"),
         "debug": ("PipelineTimeout", "of 'a+b'; 32 of 64 arrivals are pending")},
    ),
    Mutant(
        SYNC, "early release", m.NO_READ_SYNC, (),
        {"simulator": ("EarlyOverwrite", "nothing orders that read before this load")},
        ((library.CircularBufferHandle, "_release_beyond", lambda self, in_flight: self._fence()),),
    ),
    Mutant(
        SYNC, "setmaxnreg over budget", m.REGISTERS,
        over_budget("ROLES = tma.Roles(work=tma.Warps(2), other=tma.Warps(1))", "work", "other"),
        {"host": ("ValueError", OVER_BUDGET)},
    ),
    *of_both(MBARRIER),
    Impossible(
        MBARRIER.pipeline, "setmaxnreg over budget",
        "All threads of the block are one group, and none releases registers for another.",
    ),
    Mutant(
        MBARRIER, "dropped wait", m.NO_WAIT_FOR_EMPTY, (),
        {"simulator": ("EarlyOverwrite", "nothing orders that read before this load")},
        ((library.CircularBufferHandle, "_await_empty", lambda self: None),),
    ),
    Mutant(
        MBARRIER, "dropped arrival", m.LEFT_ALONE,
        ((FULL, f"{FULL}\nif t == 2 and ring.thread() >= 32:\n    return"),),
        {"simulator": ("Deadlock", "1 of 2 arrivals pending"),
         "debug": ("PipelineTimeout", "1 of 2 arrivals")},
    ),
    Mutant(
        MBARRIER, "early release", m.EARLY_RELEASE, ((FULL, f"{FULL}\nring.release_pending()"),),
        {"simulator": ("EarlyOverwrite MissingFence", "nothing orders that read before this load")},
    ),
]  # fmt: skip
