"""Launch control, right and broken: blocks add the tiles of blocks that have not begun."""

from __future__ import annotations

from numba import cuda

import numba_tma as tma
from numba_tma.pipeline import launch_control_handle
from tests.mutants import mistakes as m
from tests.mutants.table import (
    COLUMNS,
    OVER_BUDGET,
    ROWS,
    SIZE,
    TILE,
    TILES,
    Impossible,
    Mutant,
    Program,
    over_budget,
)

SCHEDULER = tma.GridStridedScheduler()


def taken():
    ROLES = tma.Roles(add=tma.Warps(2), load=tma.Warps(1))
    PIPE = tma.TilePipeline(2, a=TILE, b=TILE, producer=ROLES.load, consumer=ROLES.add)
    WORK = tma.LaunchControl(ROLES, asks=ROLES.load, slots=1)

    @cuda.jit
    def kernel(x, y, n):
        pipe = PIPE.start(sync=False)
        work = WORK.start()
        schedule = SCHEDULER.over(n, 1)
        if pipe.is_producer():
            for tile in work.tiles(schedule):
                for _, stage in pipe.produce(0, 1):
                    x.load(stage.a, (tile.row * ROWS, 0), stage.barrier)
                    x.load(stage.b, (tile.row * ROWS, COLUMNS), stage.barrier)
        else:
            for t, _, _ in work.tiles(schedule):
                for _, stage in pipe.consume(0, 1):
                    for i in range(pipe.consumer_thread(), SIZE, pipe.num_consumers()):
                        stage.a[i // COLUMNS, i % COLUMNS] += stage.b[i // COLUMNS, i % COLUMNS]
                    pipe.store(y, stage.a, (t * ROWS, 0))

    return kernel, TILES, ROLES.threads


TAKEN = Program("LaunchControl", taken, output=TILE, on_hopper=False)
LOADS, STORES = "for tile in work.tiles(schedule):", "for t, _, _ in work.tiles(schedule):"
LOADS_LEFT = (LOADS, f"{LOADS}\n    if tile.row > 3:\n        break")
STORES_LEFT = (STORES, f"{STORES}\n    if t > 3:\n        break")
LEFT = {"compile": ("TypingError", "is left by the `break` at line")}
HANDLE = launch_control_handle.LaunchControlHandle

LAUNCH_CONTROL = [
    Mutant(
        TAKEN, "dropped wait", m.NO_WAIT, (),
        {"simulator": ("UninitializedRead EarlyRead", "answer[0]")},
        ((launch_control_handle, "wait_for", lambda *given: None),),
    ),
    Mutant(
        TAKEN, "dropped arrival", m.LEFT_TILES, (STORES_LEFT,),
        LEFT | {"simulator": ("BarrierMisuse Deadlock UnfinishedCopy", "some threads have not")},
        some_orders=True,
    ),
    Mutant(
        TAKEN, "exit with something outstanding", m.LOADS_OUTSTANDING, (LOADS_LEFT, STORES_LEFT),
        LEFT | {"simulator": ("UnfinishedCopy", "and no thread has waited for 1 load(s)")},
        some_orders=True,
    ),
    Mutant(
        TAKEN, "dropped fence", m.NO_FENCE, (),
        {"simulator": ("MissingFence", "fence_proxy_async()")},
        ((launch_control_handle, "fence_proxy_async", lambda: None),),
        some_orders=True,
    ),
    Impossible(TAKEN.pipeline, "wrong parity", "The phases are internal: no call names one."),
    Impossible(TAKEN.pipeline, "wrong bytes", "The 16 bytes of an answer follow from the handle."),
    Mutant(
        TAKEN, "early release", m.EARLY_RELEASE, (),
        {"simulator": ("EarlyOverwrite EarlyRead BarrierMisuse MissingFence", "answer[0]")},
        ((HANDLE, "_await_readers", lambda self: None),),
        some_orders=True,
    ),
    Mutant(
        TAKEN, "missing sync after init", m.NO_INIT_SYNC,
        (("work = WORK.start()", "work = WORK.start(sync=False)"),),
        {"simulator": ("BarrierMisuse", "there is no mbarrier here yet")},
    ),
    Mutant(
        TAKEN, "setmaxnreg over budget", m.REGISTERS,
        over_budget("ROLES = tma.Roles(add=tma.Warps(2), load=tma.Warps(1))", "add", "load"),
        {"host": ("ValueError", OVER_BUDGET)},
    ),
]  # fmt: skip
