"""The backward kernel of attention: for a tile of keys, a walk over the queries that see them.

With S = Q K' times the scale, P = exp(S - lse) are the forward pass's weights. With dP = dO V' and
delta, the row sums of dO * O (`passes.py`)::

    dS = P * (dP - delta)   dV = P' dO   dK = dS' Q   dQ = dS K

A block has 128 keys of one K/V head: a producer warpgroup, of which one thread starts all copies,
and two consumer warpgroups with 64 of the keys each. dK and dV stay in registers for the whole
walk. S and dP are computed transposed, keys x queries, so that P' and dS' are already in the
registers from which wgmma reads its A operand. dQ alone sums over the keys of both warpgroups: dS
goes through shared memory, each warpgroup computes half of dQ, and TMA adds it to float32 sums in
global memory::

    producer thread              each consumer warpgroup
    load_kv                      first:   S' of the first tile of queries
    for each head of Q that      for each tile of queries, step:
    shares this K/V head:            start dP' = V dO'
      for each tile of queries:      P' = exp(S' - lse)                   <- while dP' is computed
        load_q: Q, lse,              wait for dP'; dS' = P' (dP' - delta)
        dO and delta                 start dV += P' dO
                                     dS to shared memory, both warpgroups <- while dV is computed
                                     start half of dQ = dS K, start dK += dS' Q
                                     wait for dV and dQ
                                     dQ to shared memory, TMA adds it     <- while dK is computed
                                     start S' of the next tile of queries
                                     wait for dK, release the stage of Q and dO
                                     wait for S'
                                 finish: store dV and dK

Who waits for whom: the producer waits for an *empty* stage of Q, dO, lse and delta in `load_q`;
each consumer warp releases it when its dK is complete. Consumers wait for *full* right before S'.
They read two stages at a time: S' of the next tile starts before dK of this one is complete. That
is why a `StagedPipeline` walks the ring: it releases a stage that it has stepped past. dS has two
buffers, since one warpgroup may write dS while the other still multiplies the last one; the named
barrier BOTH separates writes of a buffer from its reads.

Variants are functions that take the same place on this page: `mask_end` or `mask_causal`,
`next_queries` or `next_queries_causal`, and for a deterministic dQ `await_turn` and `pass_turn`.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from numba_tma import ptx
from numba_tma.backend.interface import device_function, i32
from numba_tma.device.fragment_moves import row_fragment, store_by_thread
from numba_tma.device.mma import fragment, wgmma, wgmma_wait
from numba_tma.device.shared import shared_tile
from numba_tma.host.layout import Swizzle, Tile
from numba_tma.host.mma_rules import ROWS, THREADS
from numba_tma.kernels.attention.backward.plan import (
    BLOCK_K,
    WARPGROUPS,
    BackwardForm,
    BackwardPlan,
)
from numba_tma.kernels.attention.plan import AttentionProblem
from numba_tma.pipeline import Roles, StorePipeline, TilePipeline, Warpgroups
from numba_tma.pipeline.roles import FIRST_FREE_BARRIER, NamedBarrier
from numba_tma.pipeline.staged import StagedPipeline
from numba_tma.pipeline.stages import ConsumerStage
from numba_tma.pipeline.state import PipelineState

MINUS_INFINITY = np.float32(-np.inf)
ALL_LANES = 0xFFFFFFFF
DQ_PART = Tile((1, 16, 256), "f32")  #: of dQ, what a warpgroup computes in a step: 64 x 64
STEP_K = 16  # elements along K that one wgmma multiplies
K_STEPS = BLOCK_K // STEP_K
#: Where the consumer warpgroups meet.
BOTH = NamedBarrier(FIRST_FREE_BARRIER, WARPGROUPS * THREADS)


class KeyTile(NamedTuple):
    """The tile of keys of a block, int32."""

    block: Any  #: number of the tile in its head
    sequence: Any
    kv_head: Any  #: in its sequence
    head: Any  #: first head of Q that shares it, counted through the batch
    key: Any  #: first key


class Walk(NamedTuple):
    """A consumer warpgroup's place on the walk over tiles of queries, int32."""

    tile: Any  #: tile of queries in its head
    part: Any  #: number of the warpgroup's part of dQ
    limit: Any  #: keys of the warpgroup that query 0 of the tile sees; under a causal mask each
    #: further query sees one more


class GradientState(NamedTuple):
    """What a consumer warpgroup has in registers between two tiles of queries."""

    scores: Any  #: fragment 64 keys x block_q: S' of the tile of queries that comes next
    dk: Any  #: fragment 64 keys x head_dim
    dv: Any  #: fragment 64 keys x head_dim
    walk: Any  #: the tile of queries that comes next
    buffer: Any  #: which of the two buffers of dS comes next
    added: Any  #: the part of dQ that was added last


# ------------------------------------------------------------- numbers, element by element


@device_function
def weight(score: Any, scale: Any, lse: Any) -> Any:
    """Return exp(score - lse); both include the factor log2(e)."""
    return ptx.ex2_approx_ftz_f32(score * scale - lse)


@device_function
def gradient(product: Any, weight: Any, delta: Any) -> Any:
    """Return an element of dS."""
    return weight * (product - delta)


@device_function
def before_limit(score: Any, row: Any, column: Any, limit: Any) -> Any:
    """Return the score of a key (row) before `limit`, else -inf."""
    return score if row < limit else MINUS_INFINITY


@device_function
def before_diagonal(score: Any, row: Any, column: Any, limit: Any) -> Any:
    """Return the score of a key (row) before `limit` + query (column), else -inf."""
    return score if np.int32(row - column) < limit else MINUS_INFINITY


# -------------------------------------------------------------------------------- schedule


@device_function
def key_tile(form: Any, keys: Any, kv_heads: Any, batch: Any, group: Any) -> Any:
    """Return the tile of keys of this block.

    Heads come in groups, in each the first keys first: under a causal mask most queries see them.
    """
    blocks = i32((keys + BLOCK_K - 1) // BLOCK_K)
    # In 32 bits: registers are scarce.
    number = i32(cuda.blockIdx.x // (form.heads_together * blocks))
    inside = i32(cuda.blockIdx.x - number * form.heads_together * blocks)
    width = i32(min(form.heads_together, batch * kv_heads - number * form.heads_together))
    block = i32(inside // width)
    pair = i32(number * form.heads_together + inside - block * width)
    sequence = i32(pair // kv_heads)
    kv_head = i32(pair - sequence * kv_heads)
    return KeyTile(block, sequence, kv_head, i32(pair * group), i32(block * BLOCK_K))


@device_function
def first_q_tile(form: Any, key: Any, queries: Any, keys: Any) -> Any:
    """Return the first tile of queries that sees any of the keys from `key` on."""
    if form.causal:
        return i32(max(i32(0), i32(key - keys + queries)) // form.block_q)
    return i32(0)


@device_function
def first_limit(form: Any, key: Any, queries: Any, keys: Any, first: Any) -> Any:
    """Return the limit of the warpgroup's keys, from `key` on, in the tile of queries `first`."""
    limit = i32(keys - key)
    if form.causal:
        limit = i32(limit - queries + first * form.block_q + 1)
    return limit


@device_function
def next_q_tile(form: Any, walk: Any, first: Any, q_tiles: Any) -> Any:
    """Return the place one tile of queries further. The heads of Q follow each other."""
    tile, part, limit = i32(walk.tile + 1), i32(walk.part + WARPGROUPS), walk.limit
    if form.causal:
        limit = i32(limit + form.block_q)
        if tile == q_tiles:  # the next head, whose walk begins at `first` again
            limit = i32(limit - (q_tiles - first) * form.block_q)
            part, tile = i32(part + first * WARPGROUPS), first
    return Walk(tile, part, limit)


# -------------------------------------------------------------------------------- producer


@device_function
def load_kv(producer: Any, k: Any, v: Any, keys: Any) -> None:
    """Load the block's tile of K and V, once."""
    stage = producer.acquire()
    k.load(stage.k, (keys.sequence, keys.key, keys.kv_head, 0), stage.barrier)
    v.load(stage.v, (keys.sequence, keys.key, keys.kv_head, 0), stage.barrier)


@device_function
def load_q(
    producer: Any,
    q: Any,
    dout: Any,
    lse: Any,
    delta: Any,
    keys: Any,
    number: Any,
    group: Any,
    row: Any,
) -> None:
    """Load Q, dO, lse and delta from `row` on, of one of the Q heads that share the keys' head.

    The producer waits until the consumers have released the stage.
    """
    head = keys.kv_head * group + number
    stage = producer.acquire()
    q.load(stage.q, (keys.sequence, row, head, 0), stage.barrier)
    lse.load(stage.lse, (keys.head + number, row), stage.barrier)
    dout.load(stage.dout, (keys.sequence, row, head, 0), stage.barrier)
    delta.load(stage.delta, (keys.head + number, row), stage.barrier)


# ------------------------------------------------------------------------------- consumers


@device_function
def warpgroup_number() -> Any:
    """Return the number of this thread's warpgroup, in one register of the whole warp.

    Each step asks again: otherwise LLVM keeps a register for each k-step of each descriptor.
    """
    return cuda.shfl_sync(ALL_LANES, cuda.threadIdx.x // THREADS, 0)


@device_function
def first(form: Any, works: Any, ring: Any, k: Any, warpgroup: Any, walk: Any) -> Any:
    """Compute S' of the first tile of queries."""
    my_keys = k.matrix_descriptor().advance(row=warpgroup * ROWS)
    dk, dv = fragment(form.head_dim), fragment(form.head_dim)
    ring.consumer_wait()
    q = ConsumerStage(works, ring.state.index).q.matrix_descriptor()
    scores = wgmma_wait(wgmma(fragment(form.block_q), my_keys, q, scale_d=False))
    return GradientState(scores, dk, dv, walk, i32(0), walk.part)


@device_function
def masked(form: Any, scores: Any, limit: Any) -> Any:
    """Return S' with -inf where a query does not see a key; most tiles need no mask."""
    if limit < ROWS:
        if form.causal:
            scores = scores.map_coords(before_diagonal, limit)
        else:
            scores = scores.map_coords(before_limit, limit)
    return scores


@device_function
def multiply(
    form: Any,
    works: Any,
    ring: Any,
    k: Any,
    v: Any,
    ds_tile: Any,
    warpgroup: Any,
    state: Any,
    scale: Any,
) -> Any:
    """Compute P', dS' and dV += P' dO, half of dQ = dS K, and start dK += dS' Q.

    Returns dK, of which the product is still running, its operand dS', dV and the part of dQ.
    """
    my_values = v.matrix_descriptor().advance(row=warpgroup * ROWS)
    stage = ConsumerStage(works, ring.state.index)
    dout = stage.dout.matrix_descriptor()
    grads = wgmma(fragment(form.block_q), my_values, dout, scale_d=False)  # dP' = V dO'
    scores = masked(form, state.scores, state.walk.limit)
    weights = scores.map(weight, scale, row_fragment(stage.lse))  # while dP' is computed
    p = weights.to(form.dtype)
    grads = wgmma_wait(grads)
    grads = grads.map(gradient, weights, row_fragment(stage.delta))
    ds = grads.to(form.dtype)
    dv = wgmma(state.dv, p, stage.dout.matrix_descriptor("MN"))  # dV += P' dO
    ds.store(ds_tile, (state.buffer * BLOCK_K + warpgroup * ROWS, 0))  # while dV is computed
    ptx.fence_proxy_async()
    BOTH.sync()
    # This warpgroup's half of dQ: 64 of its rows, or where it has no more than 64, of its columns.
    row, column = i32(0), i32(0)
    if form.halves_columns:
        column = i32(warpgroup * ROWS)
    else:
        row = i32(warpgroup * ROWS)
    dq = wgmma(
        fragment(ROWS),
        ds_tile.matrix_descriptor("MN").advance(state.buffer * K_STEPS, row),
        k.matrix_descriptor("MN").advance(row=column),
        scale_d=False,
        k_steps=K_STEPS,
    )
    dk = wgmma(state.dk, ds, stage.q.matrix_descriptor("MN"))  # dK += dS' Q
    dv, _, dq = wgmma_wait((dv, p, dq), 1)  # dV and dQ are complete, dK is still running
    return dk, ds, dv, dq


@device_function
def advance(
    form: Any, works: Any, ring: Any, k: Any, warpgroup: Any, dk: Any, ds: Any, more: Any
) -> Any:
    """Start S' of the next tile of queries, wait for dK, and release the stage that it read.

    After the last tile S' is that of its queries again, which nobody uses: a product on one branch
    alone would have to be waited for there.
    """
    my_keys = k.matrix_descriptor().advance(row=warpgroup * ROWS)
    left = ring.step()
    now = left
    if more:
        ring.consumer_wait()
        now = ring.state.index
    q = ConsumerStage(works, now).q.matrix_descriptor()
    scores = wgmma(fragment(form.block_q), my_keys, q, scale_d=False)
    dk, _ = wgmma_wait((dk, ds), 1)
    ring.consumer_release_at(left)
    return wgmma_wait(scores), dk


@device_function
def store_rows_of(form: Any, out: Any, to: Any, grads: Any, keys: Any, row: Any) -> None:
    """Round a warpgroup's rows of dK or dV into shared memory and store them by TMA."""
    stage = out.acquire()
    grads.to(form.dtype).store(stage.o.view(form.rows), (0, 0))
    out.store(to, stage.o, (keys.sequence, row, keys.kv_head, 0))
    out.commit()


# ----------------------------------------------------- dQ: blocks add to it in any order


@device_function
def add_dq(sums: Any, dq: Any, grads: Any, turns: Any, state: Any, block: Any, more: Any) -> None:
    """Add a part of dQ to the sums in global memory, while dK is computed."""
    stage = sums.acquire()
    store_by_thread(grads, stage.dq)
    sums.reduce(dq, stage.dq, (state.walk.part, 0, 0), "add")
    sums.commit()


@device_function
def end_dq(sums: Any, turns: Any, state: Any) -> None:
    """Do nothing: no block waits for another."""


# ------------------------------------------ deterministic dQ: blocks add to a part in turn


@device_function
def add_dq_in_turn(
    sums: Any, dq: Any, grads: Any, turns: Any, state: Any, block: Any, more: Any
) -> None:
    """Do what `add_dq` does, after the blocks of smaller keys.

    The turn of the part before is passed on here, a step late: by now its addition is complete.
    """
    if more:
        pass_turn(sums, turns, state.added)
    stage = sums.acquire()
    store_by_thread(grads, stage.dq)
    await_turn(sums, turns, state.walk.part, block)
    sums.reduce(dq, stage.dq, (state.walk.part, 0, 0), "add")
    sums.commit()


@device_function
def end_dq_in_turn(sums: Any, turns: Any, state: Any) -> None:
    """Pass on the turn of the last part."""
    pass_turn(sums, turns, state.added)


@device_function
def await_turn(sums: Any, turns: Any, part: Any, block: Any) -> None:
    """Wait until the blocks before this one have added to a part of dQ.

    The hardware starts blocks in the order of their numbers, so those have all started.
    """
    if sums.thread == 0:
        while cuda.atomic.cas(turns, part, block, block) != block:
            pass
        ptx.fence_acq_rel("gpu")
        ptx.fence_proxy_async_all()


@device_function
def pass_turn(sums: Any, turns: Any, part: Any) -> None:
    """Let the next block add to a part of dQ, when this block's addition is complete."""
    if sums.thread == 0:
        ptx.cp_async_bulk_wait_group(0)
        ptx.fence_proxy_async_all()
        ptx.fence_acq_rel("gpu")
        cuda.atomic.add(turns, part, 1)


# --------------------------------------------------------------------------------- kernel


@functools.cache
def backward_kernel(
    problem: AttentionProblem, plan: BackwardPlan, deterministic: bool = False
) -> Any:
    """Return the kernel of a problem and a plan. Its blocks have ``plan.threads`` threads.

    Its arguments: the tensor maps of Q, K, V, dO, lse, delta, the sums of dQ, dK and dV; the
    counters of turns; the queries and keys of a sequence; the heads of K; sequences; the heads of Q
    that share one of K and V; the scale; and the scale times log2(e). If `deterministic`, blocks
    add to dQ in the order of their keys.
    """
    FORM = BackwardForm(problem, plan)
    BLOCK_Q, STAGES = FORM.block_q, plan.stages
    # Each consumer warpgroup is a role of its own: it has rows of dK and dV of its own.
    consumers = {f"math{i}": Warpgroups(1) for i in range(WARPGROUPS)}
    ROLES = Roles(**consumers, load=Warpgroups(1, registers=24))
    CONSUMERS = tuple(getattr(ROLES, name) for name in consumers)
    PRODUCER, CONSUMER = ROLES.load, CONSUMERS[0]
    sides: dict[str, Any] = {"producer": PRODUCER, "consumer": CONSUMERS}
    held, of_q, of_row = problem.tile(BLOCK_K), problem.tile(BLOCK_Q), Tile((1, BLOCK_Q), "f32")
    KV = TilePipeline(1, k=held, v=held, **sides)
    Q = TilePipeline(STAGES, q=of_q, dout=of_q, lse=of_row, delta=of_row, **sides)
    DS = Tile((2 * BLOCK_K, BLOCK_Q), problem.dtype, Swizzle.B128)  # two buffers
    DQ = StorePipeline(plan.sum_stages, dq=DQ_PART, role=CONSUMERS)
    OUT = StorePipeline(1, o=problem.tile(ROWS), role=CONSUMERS)

    store_dq, end = (add_dq_in_turn, end_dq_in_turn) if deterministic else (add_dq, end_dq)

    def attention_backward(  # type: ignore[no-untyped-def]
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
        group,
        scale,
        scale_log2,
    ):
        # In this order, since there is a gap between barriers and the next swizzled tile.
        q_pipe, ds_tile = Q.start(sync=False), shared_tile(DS)
        kv_pipe = KV.start()
        sums, out = DQ.start(), OUT.start(ds_tile)
        q_tiles = i32((queries + BLOCK_Q - 1) // BLOCK_Q)
        mine = key_tile(FORM, keys, kv_heads, batch, group)
        first_tile = first_q_tile(FORM, mine.key, queries, keys)
        if PRODUCER.is_member():
            PRODUCER.set_registers()
            kv_producer, q_producer = kv_pipe.producer(), q_pipe.producer()
            if kv_producer.enters():
                load_kv(kv_producer, k, v, mine)
                for i in range(group):
                    for tile in range(first_tile, q_tiles):
                        load_q(q_producer, q, dout, lse, delta, mine, i, group, tile * BLOCK_Q)
        else:
            CONSUMER.set_registers()
            warpgroup = warpgroup_number()
            # One walk round the ring, which holds two stages at a time.
            q_consumer = q_pipe.consumer()
            ring = StagedPipeline(STAGES, 1, q_consumer.barriers, PipelineState(STAGES))
            row = i32(mine.key + warpgroup * ROWS)
            limit = first_limit(FORM, row, queries, keys, first_tile)
            part = i32((mine.head * q_tiles + first_tile) * WARPGROUPS + warpgroup)
            steps = i32((q_tiles - first_tile) * group)
            kv = kv_pipe.consumer().wait()
            state = first(FORM, q_consumer, ring, kv.k, warpgroup, Walk(first_tile, part, limit))
            for i in range(steps):
                warpgroup = warpgroup_number()
                dk_sum, ds, dv_sum, dq_part = multiply(
                    FORM, q_consumer, ring, kv.k, kv.v, ds_tile, warpgroup, state, scale_log2
                )
                store_dq(sums, dq, dq_part, turns, state, mine.block, i > 0)
                scores, dk_sum = advance(
                    FORM, q_consumer, ring, kv.k, warpgroup, dk_sum, ds, i + 1 < steps
                )
                walk = next_q_tile(FORM, state.walk, first_tile, q_tiles)
                buffer = i32(1 - state.buffer)
                state = GradientState(scores, dk_sum, dv_sum, walk, buffer, state.walk.part)
            end(sums, turns, state)
            BOTH.sync()  # both have read dS, in whose place the results are staged
            store_rows_of(FORM, out, dv, state.dv, mine, row)
            store_rows_of(FORM, out, dk, state.dk * scale, mine, row)
            out.tail(read=True)
        kv_pipe.close()
        q_pipe.close()

    return cuda.jit(launch_bounds=ROLES.launch_bounds)(attention_backward)
