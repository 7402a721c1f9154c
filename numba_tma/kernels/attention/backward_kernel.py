"""The gradients of attention: for a block of keys, a walk over the queries that see them.

With S = Q K' times the scale, P = exp(S - lse) are the weights that the forward pass had, and with
dP = dO V' and D the sums of dO * O along rows::

    dS = P * (dP - D);  dV = P' dO;  dK = dS' Q;  dQ = dS K

One warpgroup loads. Each of the others has 64 keys of the block, whose dK and dV it keeps in
registers. It computes S and dP transposed, keys by queries: so P' and dS' are in the registers from
which the next products take them. dQ alone sums over the keys of all; dS goes to shared memory for
it, and each warpgroup computes half of it, which the copy engine adds up in float32 in global
memory.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import cuda

from numba_tma import ptx
from numba_tma.backend.interface import device_function, i32
from numba_tma.device.fragment_moves import row_fragment, store_by_thread
from numba_tma.device.mma import fragment, wgmma, wgmma_wait
from numba_tma.device.shared import shared_tile
from numba_tma.host.environment import simulated
from numba_tma.host.layout import Swizzle, Tile
from numba_tma.host.mma_rules import ROWS, THREADS
from numba_tma.kernels.attention.backward_plan import BLOCK_K, WARPGROUPS, Plan, block_q
from numba_tma.kernels.attention.plan import Problem
from numba_tma.pipeline import Roles, StorePipeline, TilePipeline, Warpgroups
from numba_tma.pipeline.roles import FIRST_FREE_BARRIER, NamedBarrier
from numba_tma.pipeline.staged import StagedPipeline
from numba_tma.pipeline.stages import ConsumerStage
from numba_tma.pipeline.state import PipelineState

MINUS_INFINITY = np.float32(-np.inf)
ALL_LANES = 0xFFFFFFFF
PART = Tile((1, 16, 256), "f32")  #: of dQ, what a warpgroup computes in a step: 64 x 64
STEP_K = 16  # elements that one instruction multiplies along K


# ------------------------------------------------------------- numbers, element by element


@device_function
def weight(score: Any, scale: Any, lse: Any) -> Any:
    """Return exp(score - lse); both factors of log2(e) are in `scale` and `lse`."""
    return ptx.ex2_approx_ftz_f32(score * scale - lse)


@device_function
def gradient(product: Any, weight: Any, delta: Any) -> Any:
    """Return the gradient of a score."""
    return weight * (product - delta)


@device_function
def of_key(score: Any, row: Any, column: Any, limit: Any) -> Any:
    """Return the score of a key before `limit`; -inf behind it."""
    return score if row < limit else MINUS_INFINITY


@device_function
def of_seen_key(score: Any, row: Any, column: Any, limit: Any) -> Any:
    """Return the score of a key before `limit`, which goes up by one from query to query."""
    return score if np.int32(row - column) < limit else MINUS_INFINITY


# ---------------------------------------------------------------------- whose turn it is


@device_function
def await_turn(sums: Any, turns: Any, part: Any, block: Any) -> None:
    """Wait until the blocks before this one have added to a part of dQ.

    The blocks of lower numbers have all started, as the hardware starts blocks in their order.
    """
    if sums.thread == 0:
        while cuda.atomic.cas(turns, part, block, block) != block:
            pass
        ptx.fence_acq_rel("gpu")
        ptx.fence_proxy_async_all()


@device_function
def pass_turn(sums: Any, turns: Any, part: Any) -> None:
    """Let the next block add to a part of dQ, when what this one adds is there."""
    if sums.thread == 0:
        ptx.cp_async_bulk_wait_group(0)
        ptx.fence_proxy_async_all()
        ptx.fence_acq_rel("gpu")
        cuda.atomic.add(turns, part, 1)


# --------------------------------------------------------------------------------- kernel


@functools.cache
def backward_kernel(problem: Problem, plan: Plan, deterministic: bool = False) -> Any:
    """Return the kernel for a problem. It takes maps, lengths, numbers of heads and the scales.

    If `deterministic`, blocks add to dQ in the order of their keys, as `turns` count.
    """
    DEPTH, DTYPE, CAUSAL = problem.depth, problem.dtype.name, problem.causal
    BLOCK_Q, TOGETHER = block_q(DEPTH), plan.heads_together
    MATH = {f"math{i}": Warpgroups(1) for i in range(WARPGROUPS)}
    ROLES = Roles(**MATH, load=Warpgroups(1, registers=24))
    MATH_ROLES = tuple(getattr(ROLES, name) for name in MATH)
    LOAD, FIRST = ROLES.load, MATH_ROLES[0]
    of: dict[str, Any] = {"producer": LOAD, "consumer": MATH_ROLES}
    BLOCK, HELD = problem.tile(BLOCK_K), problem.tile(ROWS)
    STORED = Tile((ROWS, DEPTH), problem.dtype, problem.swizzle)
    NUMBERS = Tile((1, BLOCK_Q), "f32")
    KEYS = TilePipeline(1, k=BLOCK, v=BLOCK, **of)
    ROWS_OF_Q, STAGES = problem.tile(BLOCK_Q), plan.stages
    QUERIES = TilePipeline(STAGES, q=ROWS_OF_Q, dout=ROWS_OF_Q, lse=NUMBERS, delta=NUMBERS, **of)
    # dS of this step and of the one before: while one warpgroup writes, the other still multiplies.
    SCORES = Tile((2 * BLOCK_K, BLOCK_Q), problem.dtype, Swizzle.B128)
    SUMS = StorePipeline(plan.sum_stages, dq=PART, role=MATH_ROLES)
    OUT = StorePipeline(1, o=HELD, role=MATH_ROLES)
    BOTH = NamedBarrier(FIRST_FREE_BARRIER, WARPGROUPS * THREADS)
    # Where each warpgroup's part of dQ begins: among the queries, or the columns.
    SPLITS_DEPTH = BLOCK_Q == ROWS
    K_STEPS, DETERMINISTIC = BLOCK_K // STEP_K, deterministic

    def attend_backward(  # type: ignore[no-untyped-def]
        q,
        k,
        v,
        dout,
        lse,
        delta,
        dq,
        dk,
        dv,
        turns,
        queries,
        keys,
        kv_heads,
        batch,
        sharing,
        scale,
        scale_log2,
    ):
        # In this order, since behind barriers there is a gap up to the next swizzled tile.
        q_pipe, scores_tile = QUERIES.start(sync=False), shared_tile(SCORES)
        k_pipe = KEYS.start()
        sums, out = SUMS.start(), OUT.start(scores_tile)
        # In 32 bits: registers are scarce.
        q_tiles = i32((queries + BLOCK_Q - 1) // BLOCK_Q)
        blocks = i32((keys + BLOCK_K - 1) // BLOCK_K)
        # Heads in groups, in each the first blocks of keys first: under a mask most queries see
        # them.
        group = i32(cuda.blockIdx.x // (TOGETHER * blocks))
        inside = i32(cuda.blockIdx.x - group * TOGETHER * blocks)
        width = i32(min(TOGETHER, batch * kv_heads - group * TOGETHER))
        block = i32(inside // width)
        pair = i32(group * TOGETHER + inside - block * width)
        sequence = i32(pair // kv_heads)
        kv_head = i32(pair - sequence * kv_heads)
        key, head = i32(block * BLOCK_K), i32(pair * sharing)  # counted through the batch
        first = i32(0)
        if CAUSAL:
            first = i32(max(i32(0), i32(key - keys + queries)) // BLOCK_Q)
        if LOAD.is_member():
            LOAD.set_registers()
            k_loads, q_loads = k_pipe.producer(), q_pipe.producer()
            if k_loads.enters():
                kept = k_loads.acquire()
                k.load(kept.k, (sequence, key, kv_head, 0), kept.barrier)
                v.load(kept.v, (sequence, key, kv_head, 0), kept.barrier)
                for i in range(sharing):
                    one = kv_head * sharing + i
                    for tile in range(first, q_tiles):
                        row = tile * BLOCK_Q
                        filled = q_loads.acquire()
                        q.load(filled.q, (sequence, row, one, 0), filled.barrier)
                        lse.load(filled.lse, (head + i, row), filled.barrier)
                        dout.load(filled.dout, (sequence, row, one, 0), filled.barrier)
                        delta.load(filled.delta, (head + i, row), filled.barrier)
        else:
            FIRST.set_registers()
            # The same register for the whole warp, so that descriptors are computed once a warp.
            mine = cuda.shfl_sync(ALL_LANES, cuda.threadIdx.x // THREADS, 0)
            # One walk round the ring, which holds two stages at a time.
            works = q_pipe.consumer()
            ring = StagedPipeline(STAGES, 1, works.barriers, PipelineState(STAGES))
            # Keys before the limit are seen: by column 0 of the tile, and one more by each.
            limit, tile = i32(keys - key - mine * ROWS), first
            if CAUSAL:
                limit = i32(limit - queries + first * BLOCK_Q + 1)
            part = i32((head * q_tiles + first) * WARPGROUPS + mine)
            added_last = part
            steps, buffer = i32((q_tiles - first) * sharing), i32(0)
            dk_sum, dv_sum = fragment(DEPTH), fragment(DEPTH)
            held = k_pipe.consumer().wait()
            block_k, block_v = held.k, held.v
            my_keys = block_k.matrix_descriptor().advance(row=mine * ROWS)
            ring.consumer_wait()
            loaded = ConsumerStage(works, ring.state.index).q.matrix_descriptor()
            scores = wgmma_wait(wgmma(fragment(BLOCK_Q), my_keys, loaded, scale_d=False))
            for step in range(steps):
                # Again, or LLVM would keep a register for each step of each descriptor.
                mine = cuda.shfl_sync(ALL_LANES, cuda.threadIdx.x // THREADS, 0)
                my_keys = block_k.matrix_descriptor().advance(row=mine * ROWS)
                my_values = block_v.matrix_descriptor().advance(row=mine * ROWS)
                stage = ConsumerStage(works, ring.state.index)
                loaded = stage.dout.matrix_descriptor()
                grads = wgmma(fragment(BLOCK_Q), my_values, loaded, scale_d=False)
                if limit < ROWS:
                    if CAUSAL:
                        scores = scores.map_coords(of_seen_key, limit)
                    else:
                        scores = scores.map_coords(of_key, limit)
                weights = scores.map(weight, scale_log2, row_fragment(stage.lse))
                p = weights.to(DTYPE)
                grads = wgmma_wait(grads)
                grads = grads.map(gradient, weights, row_fragment(stage.delta))
                ds = grads.to(DTYPE)
                dv_sum = wgmma(dv_sum, p, stage.dout.matrix_descriptor("MN"))
                ds.store(scores_tile, (buffer * BLOCK_K + mine * ROWS, 0))
                ptx.fence_proxy_async()
                BOTH.sync()
                dq_rows, columns = i32(0), i32(0)
                if SPLITS_DEPTH:
                    columns = i32(mine * ROWS)
                else:
                    dq_rows = i32(mine * ROWS)
                dq_part = wgmma(
                    fragment(ROWS),
                    scores_tile.matrix_descriptor("MN").advance(buffer * K_STEPS, dq_rows),
                    block_k.matrix_descriptor("MN").advance(row=columns),
                    scale_d=False,
                    k_steps=K_STEPS,
                )
                dk_sum = wgmma(dk_sum, ds, stage.q.matrix_descriptor("MN"))
                dv_sum, p, dq_part = wgmma_wait((dv_sum, p, dq_part), 1)
                if DETERMINISTIC:
                    # A step late: by now it has been added, and nobody waits here.
                    if step > 0:
                        pass_turn(sums, turns, added_last)
                    added_last = part
                added = sums.acquire()
                store_by_thread(dq_part, added.dq)
                if DETERMINISTIC:
                    await_turn(sums, turns, part, block)
                sums.reduce(dq, added.dq, (part, 0, 0), "add")
                sums.commit()
                # After the last step the scores are those of its queries again, for nothing: a
                # product on one branch alone would have to be waited for there.
                left = ring.step()
                now = left
                if step + 1 < steps:
                    ring.consumer_wait()
                    now = ring.state.index
                loaded = ConsumerStage(works, now).q.matrix_descriptor()
                scores = wgmma(fragment(BLOCK_Q), my_keys, loaded, scale_d=False)
                dk_sum, ds = wgmma_wait((dk_sum, ds), 1)
                ring.consumer_release_at(left)
                scores = wgmma_wait(scores)
                buffer = i32(1 - buffer)
                part, tile = i32(part + WARPGROUPS), i32(tile + 1)
                if CAUSAL:
                    limit = i32(limit + BLOCK_Q)
                    if tile == q_tiles:  # the next head
                        limit = i32(limit - (q_tiles - first) * BLOCK_Q)
                        part, tile = i32(part + first * WARPGROUPS), first
            if DETERMINISTIC:
                pass_turn(sums, turns, added_last)
            BOTH.sync()  # nobody reads dS any more, in whose place the results go
            row = i32(key + mine * ROWS)
            result = out.acquire()
            dv_sum.to(DTYPE).store(result.o.view(STORED), (0, 0))
            out.store(dv, result.o, (sequence, row, kv_head, 0))
            out.commit()
            dk_sum *= scale
            result = out.acquire()
            dk_sum.to(DTYPE).store(result.o.view(STORED), (0, 0))
            out.store(dk, result.o, (sequence, row, kv_head, 0))
            out.commit()
            out.tail(read=True)
        k_pipe.close()
        q_pipe.close()

    bounds = {} if simulated() else {"launch_bounds": ROLES.launch_bounds}
    return cuda.jit(**bounds)(attend_backward)
