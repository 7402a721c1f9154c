"""Attention's kernel: FlashAttention's recurrence over tiles of keys, on Hopper's tensor cores.

One warpgroup loads. Each of the others has 64 queries of the block, whose output and row statistics
it keeps in registers. With S = Q K', m the maxima of its rows so far, P = exp(S - m), l the sums of
P's rows and O = P V, a step of the recurrence is::

    m' = max(m, S);  P = exp(S - m');  l' = l exp(m - m') + sum(P);  O' = O exp(m - m') + P V

m cancels in O / l, so it could stay while it is near the maximum, and O would seldom be decayed.
But weights are rounded, and that of m itself is 1, which loses nothing: it is always the maximum.

Both products of a step, S of the next keys and P V of the last, are started before the softmax of
the next keys, so that the tensor cores work while exponentials are computed. Warpgroups take no
turns at them: that was measured to be slower.

Of inputs of 16 bits the tensor cores add P V to O. Of sums of 8 bits they keep about 14, too few
for many keys: there they compute P V of a tile, and threads add it to O, while S is computed.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from numba import cuda

from numba_tma import ptx
from numba_tma.backend.interface import device_function, i32
from numba_tma.device.arithmetic import larger
from numba_tma.device.causal_scheduler import CausalLPTScheduler
from numba_tma.device.fragment_moves import store_rows
from numba_tma.device.mma import fragment, rows, wgmma, wgmma_wait
from numba_tma.device.shared import shared_tile
from numba_tma.host.environment import simulated
from numba_tma.host.layout import Tile
from numba_tma.host.mma_rules import ROWS, THREADS
from numba_tma.kernels.attention.masks import masking, next_tile
from numba_tma.kernels.attention.plan import Plan, Problem, replaces_queries
from numba_tma.kernels.attention.sequences import PackedSchedule, copying
from numba_tma.kernels.attention.weights import (
    decay_of,
    inverse,
    log_of_sum,
    scaling,
    weighing,
    weight,
)
from numba_tma.pipeline import KVPipeline, Roles, StorePipeline, TilePipeline, Warpgroups

ALL_LANES = 0xFFFFFFFF


class More(NamedTuple):
    """What only some problems have. An empty tuple takes no place among a kernel's arguments."""

    lse: Any = ()  #: the address of float32 (batch, heads, queries, splits), or (heads, queries)
    left: Any = ()  #: how many keys before its own place a query sees
    right: Any = ()  #: and how many behind it
    softcap: Any = ()  #: the scale over the cap; the scale is the cap then. float32
    q_scale: Any = ()  #: float32, what the queries of each head are to be multiplied with
    k_scale: Any = ()  #: and the keys
    v_scale: Any = ()  #: and the values
    starts_q: Any = ()  #: int32: where each packed sequence begins, and the last one ends
    starts_k: Any = ()
    splits: Any = ()  #: parts that the keys of each block of queries are shared out to
    parts: Any = ()  #: the address of their results, float32 (batch, heads, queries, splits, depth)


@device_function
def any_rises(before: Any, top: Any) -> Any:
    """Return whether a row of the warp has a larger maximum than before."""
    return cuda.any_sync(ALL_LANES, before[0] != top[0] or before[1] != top[1])


# ---------------------------------------------------------------------------------- loads


@device_function
def load_keys(loads: Any, k: Any, here: Any, key: Any, head: Any) -> None:
    """Load a tile of K when its stage is empty."""
    loads.acquire_k()
    barrier, tile = loads.get_k()
    k.load(tile, (here.batch, here.key + key, head, 0), barrier)
    loads.commit_step()


# --------------------------------------------------------------------------------- stores


@device_function
def store_numbers(numbers: Any, address: Any, apart: Any, count: Any) -> None:
    """Store the first `count` of a fragment's rows, float32 so many bytes `apart`."""
    first, second = i32(numbers.coords(0)), i32(numbers.coords(1))
    if cuda.threadIdx.x % 4 == 0:  # the four threads of a quad have the same
        if first < count:
            ptx.st_global_f32(address + apart * first, numbers[0])
        if second < count:
            ptx.st_global_f32(address + apart * second, numbers[1])


# --------------------------------------------------------------------------------- kernel


@functools.cache
def attention_kernel(problem: Problem, plan: Plan) -> Any:
    """Return the kernel of a problem. It takes maps, lengths, heads, the scale and `More`."""
    DEPTH, LSE = problem.depth, problem.lse
    BLOCK_Q, BLOCK_K, WARPGROUPS = plan.block_q, plan.block_k, plan.warpgroups
    MATH = {f"math{i}": Warpgroups(1) for i in range(plan.warpgroups)}
    ROLES = Roles(**MATH, load=Warpgroups(1, registers=plan.load_registers))
    MATH_ROLES = tuple(getattr(ROLES, name) for name in MATH)
    LOAD, FIRST = ROLES.load, MATH_ROLES[0]
    of: dict[str, Any] = {"producer": LOAD, "consumer": MATH_ROLES}
    # The queries of each warpgroup are a tile of its own, and so is what it stores.
    HELD, RESULT = problem.tile(ROWS), problem.output(ROWS)
    STORED, OUT_DTYPE = Tile((ROWS, DEPTH), RESULT.dtype, RESULT.swizzle), RESULT.dtype.name
    Q = TilePipeline(1, q=HELD, k_group=plan.warpgroups, **of)
    ring: tuple[Any, ...] = (plan.stages, (1, BLOCK_K, 1), DEPTH, problem.dtype)
    K = KVPipeline(*ring, holds="k", swizzle=problem.swizzle, **of)
    if problem.is_narrow:  # turned values lie as keys do: rows of what is summed over
        turned = (plan.stages, (1, DEPTH, 1), BLOCK_K, problem.dtype)
        V = KVPipeline(*turned, holds="k", swizzle=problem.values(BLOCK_K).swizzle, **of)
    else:
        V = KVPipeline(*ring, holds="v", swizzle=problem.swizzle, **of)
    OUT = StorePipeline(1, o=RESULT, role=MATH_ROLES)
    QUERIES, REPLACES = problem.tile(plan.block_q), replaces_queries(problem, plan)
    RELEASES, SPLITS = not REPLACES, problem.splits
    span, edges, seen = masking(problem, plan)
    place, load_values, store_result = copying(problem, plan)
    scales, SCALES_V = scaling(problem), problem.v_scale
    # Whether threads add P V of each tile to O, or the tensor cores go on with it.
    BY_TILE, GOES_ON = problem.is_narrow, not problem.is_narrow
    VOTES = plan.votes
    shift_of, operand = weighing(problem)
    PACKED = problem.packed
    SCHEDULER = CausalLPTScheduler(BLOCK_Q, BLOCK_K, plan.heads_together or None)

    def attend(q, k, v, out, queries, keys, heads, batch, sharing, factor, more):  # type: ignore[no-untyped-def]
        memory = shared_tile(QUERIES)
        q_pipe = Q.start(tiles=memory, sync=False)
        if REPLACES:
            store = OUT.start(tiles=memory)
        elif not SPLITS:
            store = OUT.start()
        k_loads, k_works = K.start(sync=False)
        v_loads, v_works = V.start()
        if PACKED:
            schedule: Any = PackedSchedule(BLOCK_Q, more.starts_q, more.starts_k, heads, batch)
        else:
            schedule = SCHEDULER.over(queries, keys, heads, batch)
        if LOAD.is_member():
            LOAD.set_registers()
            q_loads = q_pipe.producer()
            if q_loads.enters():
                for tile in schedule.tiles():
                    head, here = tile.head // sharing, place(tile, queries, keys, more)
                    key, steps = span(tile, here, more)
                    load_keys(k_loads, k, here, key, head)
                    held = q_loads.acquire()
                    for i in range(WARPGROUPS):
                        row = here.query + tile.query_block * BLOCK_Q + i * ROWS
                        q.load(held.tile(i).q, (here.batch, row, tile.head, 0), held.barrier)
                    for _ in range(1, steps):
                        load_keys(k_loads, k, here, key + BLOCK_K, head)
                        load_values(v_loads, v, here, key, head)
                        key = i32(key + BLOCK_K)
                    load_values(v_loads, v, here, key, head)
        else:
            FIRST.set_registers()
            # The same register for the whole warp, so that descriptors are computed once a warp.
            mine = cuda.shfl_sync(ALL_LANES, cuda.threadIdx.x // THREADS, 0)
            q_works = q_pipe.consumer()
            for tile in schedule.tiles():
                row = i32(tile.query_block * BLOCK_Q + mine * ROWS)
                here = place(tile, queries, keys, more)
                key, steps = span(tile, here, more)
                sees = edges(row, key, here.queries, here.keys, more)
                scale, softcap, of_values = scales(
                    factor, more, here.batch, tile.head, heads, sharing
                )
                if SPLITS:
                    # Where this part is among all: one register while keys are gone through.
                    at = queries * (here.batch * heads + tile.head) * more.splits + here.part
                    number = cuda.shfl_sync(ALL_LANES, i32(at), 0)
                queries_ = q_works.wait().tile(mine).q.matrix_descriptor()
                k_works.wait_k()
                scores = wgmma(fragment(BLOCK_K), queries_, k_works.get_k(), scale_d=False)
                scores = wgmma_wait(scores)
                k_works.release_k()
                scores = seen(scores, sees, softcap)
                top = scores.row_max()
                shift = top.map(shift_of, scale)
                weights = scores.map(weight, scale, shift)
                sums = weights.row_sum(quad=False)
                p, acc, decay = operand(weights), fragment(DEPTH), rows(1)
                if BY_TILE:
                    total = fragment(DEPTH)
                rises = not VOTES
                if steps > 1:
                    k_works.wait_k()
                for step in range(1, steps):
                    scores = wgmma(fragment(BLOCK_K), queries_, k_works.get_k(), scale_d=False)
                    if BY_TILE:
                        total += acc
                    if rises:
                        if BY_TILE:
                            total *= decay
                        else:
                            acc *= decay
                    v_works.wait()
                    acc = wgmma(acc, p, v_works.get(), scale_d=GOES_ON)
                    scores = wgmma_wait(scores, 1)
                    k_works.release_k()
                    sees = next_tile(sees, BLOCK_K)
                    scores = seen(scores, sees, softcap)
                    before, top = top, scores.row_max().map(larger, top)
                    if VOTES:
                        rises = any_rises(before, top)
                    shift = top.map(shift_of, scale)
                    weights = scores.map(weight, scale, shift)
                    decay = before.map(decay_of, top, scale)
                    sums = sums * decay + weights.row_sum(quad=False)
                    if step + 1 < steps:
                        k_works.wait_k()
                    acc, p = wgmma_wait((acc, p))
                    v_works.release()
                    p = operand(weights)
                if RELEASES:
                    q_works.release()
                if BY_TILE:
                    total = (total + acc) * decay
                else:
                    acc *= decay
                v_works.wait()
                acc = wgmma(acc, p, v_works.get(), scale_d=GOES_ON)
                acc, p = wgmma_wait((acc, p))
                v_works.release()
                if BY_TILE:
                    acc += total
                sums = sums.quad_sum()
                acc *= sums.map(inverse)
                if SCALES_V:
                    acc *= of_values
                count = i32(here.queries - row)  # of rows that there are
                if SPLITS:
                    at, apart = number + row * more.splits, more.splits
                    store_rows(acc, more.parts + 4 * DEPTH * at, 4 * DEPTH * apart, count)
                else:
                    at, apart = queries * (here.batch * heads + tile.head) + here.query + row, 1
                    stage = store.acquire()
                    acc.to(OUT_DTYPE).store(stage.o.view(STORED), (0, 0))
                    store_result(store, out, stage, here, row, tile.head)
                    store.commit()
                if REPLACES:  # all its warpgroup's products have read the queries
                    store.tail(read=True)
                    q_works.release()
                if LSE:
                    logs = sums.map(log_of_sum, shift)
                    store_numbers(logs, more.lse + 4 * at, 4 * apart, count)
            if not SPLITS:
                store.tail(read=True)
        q_pipe.close()

    bounds = {} if simulated() else {"launch_bounds": ROLES.launch_bounds}
    return cuda.jit(**bounds)(attend)
