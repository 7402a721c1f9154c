"""The mutants: every pipeline with every mutation, and the errors that catch it."""

from __future__ import annotations

from typing import Any

from numba_tma.pipeline import store_handle
from tests.mutants import mistakes as m
from tests.mutants import programs as p
from tests.mutants.circular import CIRCULAR
from tests.mutants.kv import KEYS_AND_VALUES
from tests.mutants.launch_control import LAUNCH_CONTROL
from tests.mutants.output import OUTPUT
from tests.mutants.table import DEDENT, OVER_BUDGET, Impossible, Mutant, Program, over_budget

WAIT, RELEASE = "stage = consumer.wait()", "consumer.release()"
CONSUMER = "consumer = pipe.consumer()"
CONSUMER_AND_COLUMN = "consumer, column = pipe.consumer(), pipe.consumer_thread()"
ROLES = "ROLES = tma.Roles(add=tma.Warps(2), load=tma.Warps(1))"
UNTRACKED = (
    "stage.a[row, column] += stage.b[row, column]",
    "place = stage.a.address_of((row, column))\n"
    "total = ptx.ld_shared_u32(place) + ptx.ld_shared_u32(stage.b.address_of((row, column)))\n"
    "ptx.st_shared_u32(place, total)",
)


def of_every_ring(
    program: Program,
    roles: tuple[str, ...],
    consumer: str = CONSUMER,
    early: str = "EarlyOverwrite EarlyRead MissingFence DataRace",
) -> list[Mutant]:
    """Return the mutants of any ring."""
    # The compiler cannot exclude that a `close` at the end releases the forgotten stage.
    forgotten = sometimes = {"debug": ("PipelineTimeout", ".empty' stage")}
    if "pipe.close()" not in program.source:
        forgotten = {"compile": ("TypingError", "consumer.wait() acquires a stage that no")}
        sometimes = {"compile": ("TypingError", "is not released when the `if` at line")}
    line = next(s.strip() for s in program.source.splitlines() if "ROLES = " in s)
    return [
        Mutant(
            program, "dropped wait", m.NO_WAIT, ((WAIT, "stage = consumer.wait_if_needed(True)"),),
            {"simulator": ("UninitializedRead EarlyRead", "wait for the load's barrier first")},
        ),
        Mutant(
            program, "dropped arrival", m.FORGOTTEN_RELEASE, ((RELEASE, ""),),
            {**forgotten, "simulator": ("Deadlock", "empty[")},
        ),
        Mutant(
            program, "dropped arrival", m.SOMETIMES_RELEASED,
            ((RELEASE, f"if t > 3:\n    {RELEASE}"),),
            {**sometimes, "simulator": ("Deadlock", "empty[")},
        ),
        Mutant(
            program, "wrong parity", m.PHASE_BEFORE, ((consumer, f"{consumer}\nconsumer.skip(2)"),),
            {"simulator": ("UninitializedRead EarlyRead", "wait for the load's barrier first")},
        ),
        Mutant(
            program, "early release", m.EARLY_RELEASE,
            ((WAIT, f"{WAIT}\n{RELEASE}"), (RELEASE, "")),
            {"simulator": (early, "nothing orders that")},
        ),
        Mutant(
            program, "missing sync after init", m.NO_INIT_SYNC,
            (("pipe = PIPE.start()", "pipe = PIPE.start(sync=False)"),),
            {"simulator": ("BarrierMisuse", "there is no mbarrier here yet")},
        ),
        Mutant(
            program, "setmaxnreg over budget", m.REGISTERS, over_budget(line, *roles),
            {"host": ("ValueError", OVER_BUDGET)},
        ),
    ]  # fmt: skip


LOADS = ("for t, stage in pipe.produce(0, n):", "for t, stage in pipe.produce(0, n + 1):")
FEWER = ("for t, stage in pipe.produce(0, n):", "for t, stage in pipe.produce(0, n - 1):")
LOAD_A = "x.load(stage.a, (t * ROWS, 0), stage.barrier)"
LOAD_B = "x.load(stage.b, (t * ROWS, COLUMNS), stage.barrier)"


FEWER_THREADS = ("return kernel, 1, ROLES.threads", "return kernel, 1, ROLES.threads - 32")


def of_tma_rings(program: Program, load_b: str = LOAD_B) -> list[Mutant]:
    """Return the mutants of a ring that the copy engine fills."""
    return [
        Mutant(
            program, "wrong bytes", m.MISSING_LOAD, ((load_b, ""),),
            {"simulator": ("Deadlock", "bytes missing"),
             "debug": ("PipelineTimeout", "a load of this stage is missing")},
        ),
        Mutant(
            program, "wrong bytes", m.LOADED_TWICE, ((load_b, f"{load_b}\n{load_b}"),),
            {"simulator": ("EarlyOverwrite", "overwritten by another load")},
        ),
    ]  # fmt: skip


TOO_FEW = (
    "dropped arrival", m.TOO_FEW_TILES, (FEWER,),
    {"simulator": ("Deadlock", "full["),
     "debug": ("PipelineTimeout", "goes through fewer tiles than the consumers")},
)  # fmt: skip

STORE_A = "pipe.store(y, stage.a, (t * ROWS, 0))"
UNFENCED = (
    "dropped fence", m.NO_FENCE,
    ((STORE_A, "pipe.store(y, stage.a, (t * ROWS, 0), written=False)"),),
    {"simulator": ("MissingFence", "fence_proxy_async()")},
)  # fmt: skip


def behind(row: str) -> Any:
    """Return the mutant that reads and writes by address, and stores the sums in `y`."""
    stored = f"y[{row}, column] = "
    edits = (UNTRACKED, (f"{stored}stage.a[row, column]", f"{stored}total"))
    caught = {"simulator": ("MissingFence", "fence_proxy_async()")}
    return "dropped fence", m.UNSEEN_WRITE, edits, caught


BEHIND = behind("t * ROWS + row")
ENDS_EARLY = (
    "exit with something outstanding", m.LOADS_OUTSTANDING, (LOADS,),
    {"simulator": ("UnfinishedCopy", "no thread has waited for")},
)  # fmt: skip

EXPLICIT = (
    "for t, stage in pipe.produce(0, n):",
    "producer = pipe.producer()\n"
    "elected = producer.enters()\n"
    "for t in range(n if elected else 0):\n"
    "    stage = producer.acquire_if_needed(True)",
)

STAGES = "PIPE = tma.TilePipeline(2, a=TILE, b=TILE, producer=ROLES.load, consumer=ROLES.add)"
RING = [
    *of_every_ring(p.RING, ("add", "load")),
    *of_tma_rings(p.RING),
    Mutant(p.RING, *TOO_FEW),
    Mutant(p.RING, *UNFENCED),
    Mutant(p.RING, *ENDS_EARLY),
    Mutant(
        p.RING, "dropped wait", m.NO_WAIT_FOR_EMPTY, (EXPLICIT,),
        {"simulator": ("BarrierMisuse EarlyOverwrite", "or one arrived twice in a phase")},
    ),
    Mutant(
        p.RING, "dropped arrival", m.MISSING_WARP, (FEWER_THREADS,),
        {"launch": ("ValueError", "the roles of the kernel's pipeline have 96 threads"),
         "simulator": ("BadOperand", "the roles of the kernel's pipeline have 96 threads")},
    ),
    Mutant(
        p.RING, "wrong bytes", m.OTHER_BYTES, ((LOAD_A, f"stage.expect_bytes(NBYTES)\n{LOAD_A}"),),
        {"compile": ("TypingError", "512 (a) + 512 (b) = 1,024 B"),
         "simulator": ("BadOperand", "512 (a) + 512 (b) = 1,024 B")},
    ),
    Mutant(
        p.RING, "wrong bytes", m.OTHER_TILE,
        ((STAGES, STAGES.replace("b=TILE", "b=SLICE")),),
        {"compile": ("TypingError", "the map copies")},
    ),
    Mutant(
        p.RING, "wrong bytes", m.OFF_16_BYTES,
        ((LOAD_B, "x.load(stage.b, (t * ROWS, COLUMNS + t), stage.barrier)"),),
        {"simulator": ("BadCoordinate", "innermost coordinate"),
         "debug": ("CoordinateError", "innermost coordinate 33 x 4 B is not a multiple of 16 B")},
    ),
]  # fmt: skip

SEVERAL = [
    *of_every_ring(p.SEVERAL, ("top", "bottom", "load"), CONSUMER_AND_COLUMN),
    *of_tma_rings(p.SEVERAL),
    Mutant(p.SEVERAL, *TOO_FEW),
    Mutant(p.SEVERAL, *BEHIND),
    Mutant(p.SEVERAL, *ENDS_EARLY),
    Mutant(
        p.SEVERAL, "dropped arrival", m.ONE_CONSUMER_KEEPS,
        (("for t in range(n):", "for t in range(n - first // HALF * 3):"),),
        {"simulator": ("Deadlock", "1 of 2 arrivals pending"),
         "debug": ("PipelineTimeout", "1 of 2 arrivals are pending")},
    ),
]  # fmt: skip

ALTERNATE = [
    *[x for x in of_every_ring(p.ALTERNATE, ("even", "odd", "load"), CONSUMER_AND_COLUMN)
      if x.mistake is not m.PHASE_BEFORE],
    *of_tma_rings(p.ALTERNATE),
    Mutant(p.ALTERNATE, *TOO_FEW),
    Mutant(p.ALTERNATE, *BEHIND),
    Mutant(p.ALTERNATE, *ENDS_EARLY),
    Mutant(
        p.ALTERNATE, "wrong parity", m.PHASE_BEFORE, (("consumer.skip(1)", "consumer.skip(3)"),),
        {"simulator": ("EarlyOverwrite", "nothing orders that read before this load")},
    ),
]  # fmt: skip

MULTICAST = [
    *of_every_ring(p.MULTICAST, ("add", "load"), CONSUMER_AND_COLUMN),
    *of_tma_rings(p.MULTICAST, "x.load(stage.b, ((first + t) * ROWS, COLUMNS), stage.barrier)"),
    Mutant(p.MULTICAST, *TOO_FEW),
    Mutant(p.MULTICAST, *behind("(first + t) * ROWS + row")),
    Mutant(
        p.MULTICAST, "exit with something outstanding", m.PEERS_OUTSTANDING,
        (("pipe.close()", ""),),
        {"simulator": ("MissingClusterSync", "the memory may be gone by then")},
    ),
]  # fmt: skip

K_LOOP = "for t, stage in pipe.produce(0, n // 2):"
K_STORE = "pipe.store(y, a, ((2 * t + j) * ROWS, 0))"
K_GROUP = [
    *of_every_ring(p.K_GROUP, ("add", "load")),
    *of_tma_rings(p.K_GROUP, "x.load(part.b, (row, COLUMNS), stage.barrier)"),
    Mutant(
        p.K_GROUP, "dropped arrival", m.TOO_FEW_TILES,
        ((K_LOOP, K_LOOP.replace("n // 2", "n // 2 - 1")),),
        TOO_FEW[3],
    ),
    Mutant(
        p.K_GROUP, "dropped fence", m.NO_FENCE, ((K_STORE, f"{K_STORE[:-1]}, written=False)"),),
        UNFENCED[3],
    ),
    Mutant(
        p.K_GROUP, "exit with something outstanding", m.LOADS_OUTSTANDING,
        ((K_LOOP, K_LOOP.replace("n // 2", "n // 2 + 1")),),
        ENDS_EARLY[3],
    ),
]  # fmt: skip

SCOPE = "with pipe.consumer() as consumer:"
OPEN = "with consumer.acquire() as stage:"
SCOPES = [
    Mutant(
        p.SCOPES, "dropped wait", m.NO_WAIT,
        ((OPEN, "with consumer.wait_if_needed(True) as stage:"),),
        {"simulator": ("UninitializedRead EarlyRead", "wait for the load's barrier first")},
    ),
    Mutant(
        p.SCOPES, "dropped arrival", m.FORGOTTEN_RELEASE,
        ((OPEN, "stage = consumer.acquire()\nif stage.enters():"),),
        {"simulator": ("Deadlock", "empty["), "debug": ("PipelineTimeout", ".empty' stage")},
        note="The consumer's scope releases the stages still held, but only at its own end.",
    ),
    Mutant(p.SCOPES, *UNFENCED),
    Mutant(
        p.SCOPES, "wrong parity", m.PHASE_BEFORE,
        ((SCOPE, f"{SCOPE}\n    consumer.skip(2)"),),
        {"simulator": ("UninitializedRead EarlyRead", "wait for the load's barrier first")},
    ),
    *of_tma_rings(p.SCOPES),
    Mutant(
        p.SCOPES, "early release", m.EARLY_RELEASE, ((STORE_A, DEDENT + STORE_A),),
        {"simulator": ("EarlyRead EarlyOverwrite", "wait for that phase first")},
    ),
    Mutant(
        p.SCOPES, "missing sync after init", m.NO_INIT_SYNC,
        (("pipe = PIPE.start()", "pipe = PIPE.start(sync=False)"),),
        {"simulator": ("BarrierMisuse", "there is no mbarrier here yet")},
    ),
    Mutant(
        p.SCOPES, "exit with something outstanding", m.LOADS_OUTSTANDING,
        ((OPEN, f"if t == n - 1:\n    break\n{OPEN}"),), ENDS_EARLY[3],
    ),
    Mutant(
        p.SCOPES, "setmaxnreg over budget", m.REGISTERS, over_budget(ROLES, "add", "load"),
        {"host": ("ValueError", OVER_BUDGET)},
    ),
]  # fmt: skip


def of_filled_rings(program: Program, overwritten: str, said: str) -> list[Mutant]:
    """Return the mutants of a ring that threads fill."""
    return [
        Mutant(program, *UNFENCED),
        Mutant(
            program, "dropped arrival", m.NOT_COMMITTED,
            (("producer.commit()", ""), ("producer.close()", "")),
            {"simulator": ("Deadlock", "full["),
             "debug": ("PipelineTimeout", ".full' stage 1")},
        ),
        Mutant(
            program, "dropped wait", m.NO_WAIT_FOR_EMPTY,
            (("stage = producer.acquire()", "stage = producer.acquire_if_needed(True)"),),
            {"simulator": (overwritten, said)},
        ),
    ]  # fmt: skip


CP_ASYNC = [
    *of_every_ring(p.CP_ASYNC, ("add", "load")),
    *of_filled_rings(p.CP_ASYNC, "EarlyOverwrite", "overwritten by another cp.async"),
    Mutant(
        p.CP_ASYNC, "wrong bytes", m.PARTLY_FILLED,
        (("ptx.cp_async_cg(stage.b.address_of((row, column)), right, 16)",
          "ptx.cp_async_ca(stage.b.address_of((row, column)), right, 8)"),),
        {"simulator": ("UninitializedRead", "read before all of it was written")},
    ),
    Mutant(
        p.CP_ASYNC, "early release", m.EARLY_COMMIT,
        (("stage = producer.acquire()", "stage = producer.acquire()\nproducer.commit()"),
         ("producer.commit()", "")),
        {"simulator": ("EarlyRead", "that thread must pass cp_async_wait_group()")},
    ),
    Mutant(
        p.CP_ASYNC, "exit with something outstanding", m.LOADS_OUTSTANDING,
        (("producer.commit()", "if t < n - 1:\n    producer.commit()"), ("producer.close()", ""),
         (WAIT, f"if t == n - 1:\n    break\n{WAIT}")),
        ENDS_EARLY[3],
    ),
]  # fmt: skip

THREADS = [
    *of_every_ring(
        p.THREADS, ("add", "fill"), early="MissingFence EarlyRead EarlyOverwrite DataRace"
    ),
    *of_filled_rings(p.THREADS, "EarlyOverwrite MissingFence DataRace", "may still be reading"),
    Mutant(
        p.THREADS, "wrong bytes", m.PARTLY_FILLED,
        (("stage.b[row, column] = x[t * ROWS + row, COLUMNS + column]",
          "if column % 2 == 0:\n    stage.b[row, column] = x[t * ROWS + row, COLUMNS + column]"),),
        {"simulator": ("UninitializedRead", "read before all of it was written")},
    ),
    Impossible(
        p.THREADS.pipeline, "exit with something outstanding",
        "Threads write and read; nothing is in flight at their end.",
    ),
]  # fmt: skip

ACQUIRE = "stage = out.acquire()"
OUT_STORE = "out.store(y, stage.s, (t * ROWS, 0))"
OUT_REDUCE = 'out.reduce(y, stage.s, (t * ROWS, 0), "add")'


def of_stores(program: Program, start: str) -> list[Mutant | Impossible]:
    """Return the mutants of a store pipeline; `start` is the line that starts a store."""
    return [
        Mutant(
            program, "dropped wait", m.NO_WAIT_FOR_READ, (),
            {"simulator": ("EarlyOverwrite", "may still be reading")},
            ((store_handle.StorePipelineHandle, "_await_read", lambda self: None),),
        ),
        Mutant(
            program, "dropped fence", m.NO_FENCE, (),
            {"simulator": ("MissingFence", "fence_proxy_async()")},
            ((store_handle, "fence_proxy_async", lambda: None),),
        ),
        Mutant(
            program, "early release", m.EARLY_COMMIT,
            ((start, f"{start}\nout.commit()"), ("out.commit()", "stage.s[0, column] = 0")),
            {"simulator": ("MissingFence EarlyOverwrite", "after its last write")},
        ),
        Mutant(
            program, "exit with something outstanding", m.STORES_OUTSTANDING,
            (("out.tail()", ""),),
            {"simulator": ("UnfinishedCopy", "shared memory may be gone before they have read it")},
        ),
        Impossible(
            program.pipeline, "wrong parity",
            "There are no mbarriers: bulk groups are counted, not phases.",
        ),
        Impossible(
            program.pipeline, "missing sync after init",
            "There are no mbarriers to initialise.",
        ),
    ]  # fmt: skip


STORE = [
    *of_stores(p.STORE, OUT_STORE),
    Impossible(
        p.STORE.pipeline, "dropped arrival",
        "The whole block meets, and the block's barrier ignores threads that have exited.",
    ),
    Mutant(
        p.STORE, "wrong bytes", m.OTHER_TILE,
        (("OUT = tma.StorePipeline(2, s=TILE)", "OUT = tma.StorePipeline(2, s=SLICE)"),),
        {"compile": ("TypingError", "the map copies")},
    ),
    Impossible(
        p.STORE.pipeline, "setmaxnreg over budget",
        "All threads of the block are one group, and none releases registers for another.",
    ),
]  # fmt: skip

REDUCE = [
    *of_stores(p.REDUCE, OUT_REDUCE),
    Mutant(
        p.REDUCE, "dropped arrival", m.LEFT_ALONE,
        ((ACQUIRE, f"if t == 2 and first > 0:\n    return\n{ACQUIRE}"),),
        {"simulator": ("Deadlock", "32 of 64 threads have arrived"),
         "debug": ("PipelineTimeout", "store() of 's'; 32 of 64 arrivals are pending")},
    ),
    Mutant(
        p.REDUCE, "wrong bytes", m.OTHER_TILE,
        (("OUT = tma.StorePipeline(2, s=TILE, role=ROLES.left)",
          "OUT = tma.StorePipeline(2, s=SLICE, role=ROLES.left)"),),
        {"compile": ("TypingError", "the map copies")},
    ),
    Mutant(
        p.REDUCE, "setmaxnreg over budget", m.REGISTERS,
        over_budget("ROLES = tma.Roles(left=tma.Warps(2), other=tma.Warps(1))", "left", "other"),
        {"host": ("ValueError", OVER_BUDGET)},
    ),
]  # fmt: skip

ORDERED = [
    Mutant(
        p.ORDERED, "dropped wait", m.NO_TURN, (("order.wait()", ""),),
        {"simulator": ("BarrierMisuse EarlyOverwrite MissingFence DataRace",
                       "has not waited for this")},
    ),
    Mutant(
        p.ORDERED, "dropped arrival", m.TURN_KEPT, (("order.arrive()", ""),),
        {"simulator": ("BarrierMisuse", "the role still has its turn"),
         "debug": ("PipelineTimeout", "a turn of an OrderedSequenceBarrier")},
    ),
    Mutant(
        p.ORDERED, "early release", m.EARLY_TURN,
        (("order.wait()", "order.wait()\norder.arrive()"), ("order.arrive()", "")),
        {"simulator": ("EarlyOverwrite MissingFence DataRace", "may still be reading")},
    ),
    Mutant(
        p.ORDERED, "dropped fence", m.NO_FENCE, (("tma.fence_proxy_async()", ""),),
        {"simulator": ("MissingFence", "fence_proxy_async()")},
    ),
    Mutant(
        p.ORDERED, "missing sync after init", m.NO_INIT_SYNC,
        (("order, column = ORDER.start(), cuda.threadIdx.x % COLUMNS",
          "order, column = ORDER.start(sync=False), cuda.threadIdx.x % COLUMNS"),),
        {"simulator": ("BarrierMisuse", "there is no mbarrier here yet")},
    ),
    Mutant(
        p.ORDERED, "wrong bytes", m.OTHER_TILE,
        (("tile = tma.shared_tile(TILE)", "tile = tma.shared_tile(SLICE)"),),
        {"compile": ("TypingError", "the map copies")},
    ),
    Mutant(
        p.ORDERED, "exit with something outstanding", m.STORES_OUTSTANDING,
        (("ptx.cp_async_bulk_wait_group_read(0)", ""),),
        {"simulator": ("EarlyOverwrite UnfinishedCopy", "may still be reading")},
    ),
    Mutant(
        p.ORDERED, "setmaxnreg over budget", m.REGISTERS,
        over_budget("ROLES = tma.Roles(even=tma.Warps(1), odd=tma.Warps(1))", "even", "odd"),
        {"host": ("ValueError", OVER_BUDGET)},
    ),
    Impossible(p.ORDERED.pipeline, "wrong parity", "The phases are internal: no call names one."),
]  # fmt: skip

MOVED = "if thread < 256:\n    ptx.setmaxnreg_inc(240)\nelse:\n    ptx.setmaxnreg_dec(40)"


def moved(bounds: str, lines: str) -> tuple[tuple[str, str], ...]:
    """Return the edit: 3 warpgroups move registers after the barriers' initialisation."""
    return (
        ("@cuda.jit", f"@cuda.jit{bounds}"),
        ("cuda.syncthreads()", f"cuda.syncthreads()\n{lines}"),
        ("return kernel, 1, 64", "return kernel, 1, 384"),
    )


BY_HAND = [
    Mutant(
        p.BY_HAND, "dropped wait", m.NO_WAIT, (("full.wait(t & 1)", ""),),
        {"simulator": ("UninitializedRead EarlyRead", "wait for the load's barrier first")},
    ),
    Mutant(
        p.BY_HAND, "dropped wait", m.NO_WAIT_FOR_EMPTY, (("empty.wait(t & 1 ^ 1)", ""),),
        {"simulator": ("BarrierMisuse EarlyOverwrite", "or one arrived twice in a phase")},
    ),
    Mutant(
        p.BY_HAND, "dropped arrival", m.FORGOTTEN_RELEASE, (("empty.arrive()", ""),),
        {"simulator": ("Deadlock", "32 of 32 arrivals pending"),
         "debug": ("PipelineTimeout", "32 of 32 arrivals")},
    ),
    Mutant(
        p.BY_HAND, "dropped arrival", m.WRONG_COUNT, (("empty.init(32)", "empty.init(33)"),),
        {"simulator": ("Deadlock", "1 of 33 arrivals pending"),
         "debug": ("PipelineTimeout", "1 of 33 arrivals")},
    ),
    Mutant(
        p.BY_HAND, "dropped fence", m.NO_FENCE, (("tma.fence_proxy_async()", ""),),
        {"simulator": ("MissingFence", "fence_proxy_async()")},
    ),
    Mutant(
        p.BY_HAND, "wrong parity", m.PHASE_TO_COME,
        (("empty.wait(t & 1 ^ 1)", "empty.wait(t & 1)"),),
        {"simulator": ("Deadlock", "32 of 32 arrivals pending"),
         "debug": ("PipelineTimeout", "the wait names the wrong parity")},
    ),
    Mutant(
        p.BY_HAND, "wrong parity", m.PHASE_BEFORE, (("full.wait(t & 1)", "full.wait(t & 1 ^ 1)"),),
        {"simulator": ("UninitializedRead EarlyRead", "wait for the load's barrier first")},
    ),
    Mutant(
        p.BY_HAND, "wrong bytes", m.MISSING_LOAD,
        (("x.load(right, (t * ROWS, COLUMNS), full)", ""),),
        {"simulator": ("Deadlock", "512 bytes missing"),
         "debug": ("PipelineTimeout", "512 bytes outstanding: fewer bytes were copied")},
    ),
    Mutant(
        p.BY_HAND, "wrong bytes", m.SHORT_EXPECTATION,
        (("full.arrive_expect_tx(2 * NBYTES)", "full.arrive_expect_tx(NBYTES)"),),
        {"simulator": ("WrongByteCount EarlyRead", "512 expected, 1024 issued")},
    ),
    Mutant(
        p.BY_HAND, "early release", m.EARLY_RELEASE,
        (("full.wait(t & 1)", "full.wait(t & 1)\nempty.arrive()"), ("empty.arrive()", "")),
        {"simulator": ("EarlyOverwrite EarlyRead", "nothing orders that read before this load")},
    ),
    Mutant(
        p.BY_HAND, "missing sync after init", m.NO_INIT_SYNC, (("cuda.syncthreads()", ""),),
        {"simulator": ("BarrierMisuse", "there is no mbarrier here yet")},
    ),
    Mutant(
        p.BY_HAND, "exit with something outstanding", m.LOADS_OUTSTANDING,
        (("full.wait(t & 1)", "if t == n - 1:\n    break\nfull.wait(t & 1)"),), ENDS_EARLY[3],
    ),
    Mutant(
        p.BY_HAND, "setmaxnreg over budget", m.REGISTERS,
        moved("(launch_bounds=(384, 1))", MOVED),
        {"simulator": ("Deadlock", "setmaxnreg_inc(240) of warpgroup")},
    ),
    Mutant(
        p.BY_HAND, "setmaxnreg over budget", m.NOTHING_GIVEN_BACK,
        moved("(launch_bounds=(384, 1))", "if thread < 256:\n    ptx.setmaxnreg_inc(232)"),
        {"compile": ("TypingError", "setmaxnreg.inc to 232 can never"),
         "simulator": ("Deadlock", "setmaxnreg_inc(232) of warpgroup")},
    ),
    Mutant(
        p.BY_HAND, "setmaxnreg over budget", m.NO_BOUNDS,
        moved("", MOVED.replace("240", "232")),
        {"compile": ("TypingError", "has no launch bounds of its own")},
    ),
]  # fmt: skip

TABLE = [*RING, *CP_ASYNC, *THREADS, *SEVERAL, *ALTERNATE, *MULTICAST, *K_GROUP, *SCOPES]
TABLE += [*STORE, *REDUCE, *ORDERED, *OUTPUT, *KEYS_AND_VALUES, *CIRCULAR]
TABLE += [*LAUNCH_CONTROL, *BY_HAND]
MUTANTS = [row for row in TABLE if isinstance(row, Mutant)]
IMPOSSIBLE = [row for row in TABLE if isinstance(row, Impossible)]
PROGRAMS = list({row.program.pipeline: row.program for row in MUTANTS}.values())
