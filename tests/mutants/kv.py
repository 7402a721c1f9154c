"""`KVPipeline`, broken: the ring of keys and values."""

from __future__ import annotations

from numba import cuda

import numba_tma as tma
from numba_tma.pipeline import kv
from tests.mutants import mistakes as m
from tests.mutants.table import OVER_BUDGET, TILES, Impossible, Mutant, Program, over_budget

KEYS, DEPTH = 16, 64
K_TILE, V_TILE = (tma.Tile((KEYS, d), "f16", tma.Swizzle.B32) for d in (DEPTH // 2, DEPTH))


def keys_and_values():
    ROLES = tma.Roles(mma=tma.Warps(1), load=tma.Warps(1))
    KV = tma.KVPipeline(
        3, KEYS, DEPTH, "f16", 2, swizzle=tma.Swizzle.B32, producer=ROLES.load, consumer=ROLES.mma
    )

    @cuda.jit
    def kernel(k, v, y, n):
        pipe = KV.start()
        load, work = pipe.producer(), pipe.consumer()
        lane = cuda.threadIdx.x % 32
        if ROLES.load.is_member():
            if load.enters():
                for t in range(n):
                    for part in range(2):
                        load.acquire_k(part)
                        k_barrier, k_part = load.get_k(part)
                        k.load(k_part, (t * KEYS, part * 32), k_barrier)
                    load.commit_step()
                    load.acquire_v()
                    v_barrier, v_whole = load.get_v()
                    v.load(v_whole, ((n - 1 - t) * KEYS, 0), v_barrier)
                    load.commit_step()
        elif ROLES.mma.is_member():
            for t in range(n):
                for part in range(2):
                    work.wait_k(part)
                    k_tile = work.get_k_tile(part)
                    for key in range(KEYS):
                        y[t * KEYS + key, part * 32 + lane] = k_tile[key, lane]
                    work.release_k(part)
                work.wait_v()
                v_tile = work.get_v_tile()
                for key in range(KEYS):
                    y[t * KEYS + key, lane] += v_tile[key, lane]
                    y[t * KEYS + key, 32 + lane] += v_tile[key, 32 + lane]
                work.release_v()

    return kernel, 1, ROLES.threads


def _sum(x):
    values = x.reshape(TILES, KEYS, DEPTH)[::-1].reshape(-1, DEPTH)
    return x.astype("f4") + values.astype("f4")


KV = Program(
    "KVPipeline", keys_and_values, (K_TILE, V_TILE), None, _sum,
    shapes=((DEPTH, "f2"), (DEPTH, "f4")), rows=KEYS,
)  # fmt: skip

ROLES = "ROLES = tma.Roles(mma=tma.Warps(1), load=tma.Warps(1))"
START = "load, work = pipe.producer(), pipe.consumer()"
RELEASE_K = "work.release_k(part)"
LOAD_V = "v.load(v_whole, ((n - 1 - t) * KEYS, 0), v_barrier)"
UNREAD = ("UninitializedRead EarlyRead", "wait for the load's barrier first")

KEYS_AND_VALUES = [
    Mutant(KV, "dropped wait", m.NO_WAIT, (("work.wait_v()", ""),),
        {"simulator": ("EarlyRead UninitializedRead", "wait for that phase first")}),
    Mutant(
        KV, "dropped wait", m.NO_WAIT_FOR_EMPTY, (("load.acquire_v()", ""),),
        {"simulator": ("BarrierMisuse EarlyOverwrite", "or one arrived twice in a phase")},
    ),
    Mutant(
        KV, "dropped arrival", m.SOMETIMES_RELEASED,
        ((RELEASE_K, f"if part == 1:\n    {RELEASE_K}"),),
        {"simulator": ("Deadlock", "1 of 1 arrivals pending"),
         "debug": ("PipelineTimeout", "'k/v.empty' stage 0 sub-stage 0 phase 0")},
    ),
    Impossible(
        KV.pipeline, "dropped fence",
        "Accesses through the tiles are fenced when the tiles are released, and all other accesses "
        "of the threads with them. Products read by descriptors, which need no fence.",
    ),
    Mutant(
        KV, "wrong parity", m.PHASE_BEFORE,
        ((START, f"{START}\nfor _ in range(3):\n    work.step()"),), {"simulator": UNREAD},
    ),
    Mutant(
        KV, "wrong bytes", m.MISSING_LOAD, ((LOAD_V, ""),),
        {"simulator": ("Deadlock", "2048 bytes missing"),
         "debug": ("PipelineTimeout", "on 'v.full' stage 1 phase 0")},
    ),
    Mutant(
        KV, "early release", m.EARLY_RELEASE,
        (("work.wait_v()", "work.wait_v()\nvalues = work.get_v_tile()\nwork.release_v()"),
         ("v_tile = work.get_v_tile()", "v_tile = values"), ("work.release_v()", "")),
        {"simulator": ("EarlyOverwrite", "nothing orders that read before this load")},
    ),
    Mutant(
        KV, "missing sync after init", m.NO_INIT_SYNC, (),
        {"simulator": ("BarrierMisuse", "there is no mbarrier here yet")},
        ((kv, "barrier_sync", lambda number, threads: None),),
    ),
    Mutant(
        KV, "exit with something outstanding", m.LOADS_OUTSTANDING,
        (("work.wait_v()", "if t == n - 1:\n    break\nwork.wait_v()"),),
        {"simulator": ("UnfinishedCopy", "no thread has waited for")},
    ),
    Mutant(
        KV, "setmaxnreg over budget", m.REGISTERS, over_budget(ROLES, "mma", "load"),
        {"host": ("ValueError", OVER_BUDGET)},
    ),
]  # fmt: skip
