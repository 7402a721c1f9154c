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
    for each head of Q that      for each tile of queries:
    shares this K/V head:            start dP' = V dO'
      for each tile of queries:      P' = exp(S' - lse)                   <- while dP' is computed
        load_q: Q, lse,              wait for dP'; dS' = P' (dP' - delta)
        dO and delta                 start dV += P' dO
                                     dS to shared memory, both warpgroups <- while dV is computed
                                     start half of dQ = dS K, start dK += dS' Q
                                     wait for dV and dQ        (to here: `multiply`)
                                     `add_dq`: TMA adds dQ               <- while dK is computed
                                     start S' of the next tile    (from here: `advance`)
                                     wait for dK, release the stage of Q and dO
                                     wait for S'
                                 `store_gradient`, or `store_split`: dV and dK

Who waits for whom: the producer waits for an *empty* stage of Q, dO, lse and delta in `load_q`;
each consumer warp releases it when its dK is complete. Consumers wait for *full* right before S'.
They read two stages at a time: S' of the next tile starts before dK of this one is complete. That
is why a `StagedPipeline` walks the ring: it releases a stage that it has stepped past. dS has two
buffers, since one warpgroup may write dS while the other still multiplies the last one; the named
barrier BOTH separates writes of a buffer from its reads.

For a deterministic dQ `add_dq_in_turn` and `end_dq_in_turn` take the places of `add_dq` and
`end_dq`: blocks add to a part of dQ in the order of their keys. `tiles.py` has the tile of
keys of a block and the walk over tiles of queries.

Few K/V heads are few blocks. With splits a block has some of the heads of Q that share its K/V
head, and `store_split` writes its dK and dV to a workspace: `passes.py` adds the splits.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from numba_tma import ptx
from numba_tma.backend.interface import device_function, i32
from numba_tma.device.fragment_moves import row_fragment, store_by_thread, store_rows
from numba_tma.device.mma import fragment, wgmma, wgmma_wait
from numba_tma.device.shared import shared_tile
from numba_tma.host.annotations import Address, Integer, Real, Registers
from numba_tma.host.layout import Swizzle, Tile
from numba_tma.host.warpgroup import ALL_LANES, ROWS, THREADS
from numba_tma.kernels.attention.backward.plan import (
    BLOCK_K,
    DQ_PART,
    WARPGROUPS,
    BackwardForm,
    BackwardPlan,
)
from numba_tma.kernels.attention.backward.tiles import KeyTile, first_walk, key_tile, next_q_tile
from numba_tma.kernels.attention.plan import AttentionProblem
from numba_tma.pipeline import Roles, StorePipeline, TilePipeline, Warpgroups
from numba_tma.pipeline.roles import FIRST_FREE_BARRIER, NamedBarrier
from numba_tma.pipeline.staged import StagedPipeline
from numba_tma.pipeline.stages import ConsumerStage
from numba_tma.pipeline.state import PipelineState

MINUS_INFINITY = np.float32(-np.inf)
STEP_K = 16  # elements along K that one wgmma multiplies
K_STEPS = BLOCK_K // STEP_K
#: Where the consumer warpgroups meet.
BOTH = NamedBarrier(FIRST_FREE_BARRIER, WARPGROUPS * THREADS)


class GradientState(NamedTuple):
    """What a consumer warpgroup has in registers between two tiles of queries."""

    scores: Any  #: fragment 64 keys x block_q: S' of the tile of queries that comes next
    dk: Any  #: fragment 64 keys x head_dim
    dv: Any  #: fragment 64 keys x head_dim
    walk: Any  #: the tile of queries that comes next


class Products(NamedTuple):
    """What `multiply` returns."""

    dk: Any  #: fragment 64 keys x head_dim, whose product is still running
    ds: Any  #: fragment 64 keys x block_q: dS', which that product reads
    dv: Any  #: fragment 64 keys x head_dim
    dq: Any  #: fragment 64 x 64: this warpgroup's part of dQ


# ------------------------------------------------------------- numbers, element by element


@device_function
def weight(score: Real, scale: Real, lse: Any) -> Any:
    """Return exp(score - lse); both include the factor log2(e)."""
    return ptx.ex2_approx_ftz_f32(score * scale - lse)


@device_function
def gradient(product: Registers, weight: Real, delta: Any) -> Any:
    """Return an element of dS."""
    return weight * (product - delta)


@device_function
def before_limit(score: Real, row: Integer, column: Any, limit: Integer) -> Any:
    """Return the score of a key (row) before `limit`, else -inf."""
    return score if row < limit else MINUS_INFINITY


@device_function
def before_diagonal(score: Real, row: Integer, column: Any, limit: Integer) -> Any:
    """Return the score of a key (row) before `limit` + query (column), else -inf."""
    return score if np.int32(row - column) < limit else MINUS_INFINITY


# -------------------------------------------------------------------------------- producer


@device_function
def load_kv(producer: Any, k: Any, v: Any, keys: KeyTile) -> None:
    """Load the block's tile of K and V, once."""
    stage = producer.acquire()
    k.load(stage.k, (keys.sequence, keys.key, keys.kv_head, 0), stage.barrier)
    v.load(stage.v, (keys.sequence, keys.key, keys.kv_head, 0), stage.barrier)


@device_function
def load_q(
    form: Any,
    producer: Any,
    q: Any,
    dout: Any,
    lse: Any,
    delta: Any,
    keys: KeyTile,
    number: Integer,
    tile: Any,
) -> None:
    """Load Q, dO, lse and delta of a tile of queries, when their stage is empty.

    The head of Q is number `number` of those that the block has.
    """
    head, row = keys.q_head + number, tile * form.block_q
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
    return GradientState(scores, dk, dv, walk)


@device_function
def masked(form: Any, scores: Registers, limit: Integer) -> Any:
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
    scale: Real,
) -> Any:
    """Compute P', dS' and dV += P' dO, half of dQ = dS K, and start dK += dS' Q.

    dK is still running when it returns, and reads dS'.
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
    ds.store(ds_tile, (state.walk.buffer * BLOCK_K + warpgroup * ROWS, 0))  # while dV is computed
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
        ds_tile.matrix_descriptor("MN").advance(state.walk.buffer * K_STEPS, row),
        k.matrix_descriptor("MN").advance(row=column),
        scale_d=False,
        k_steps=K_STEPS,
    )
    dk = wgmma(state.dk, ds, stage.q.matrix_descriptor("MN"))  # dK += dS' Q
    dv, _, dq = wgmma_wait((dv, p, dq), 1)  # dV and dQ are complete, dK is still running
    return Products(dk, ds, dv, dq)


@device_function
def advance(
    form: Any,
    works: Any,
    ring: Any,
    k: Any,
    warpgroup: Any,
    products: Registers,
    more: Any,
) -> Any:
    """Start S' of the next tile of queries, wait for dK, and release the stage that it read.

    After the last tile S' is computed once more from the same queries, and not used: a product on
    one branch alone would have to be waited for there.
    """
    my_keys = k.matrix_descriptor().advance(row=warpgroup * ROWS)
    left = ring.step()
    now = left
    if more:
        ring.consumer_wait()
        now = ring.state.index
    q = ConsumerStage(works, now).q.matrix_descriptor()
    scores = wgmma(fragment(form.block_q), my_keys, q, scale_d=False)
    dk, _ = wgmma_wait((products.dk, products.ds), 1)
    ring.consumer_release_at(left)
    scores = wgmma_wait(scores)
    return scores, dk


@device_function
def store_gradient(
    form: BackwardForm,
    out: Any,
    to: Any,
    split_to: Address,
    grads: Registers,
    mine: KeyTile,
    warpgroup: Integer,
    keys: Integer,
) -> None:
    """Round a warpgroup's rows of dK or dV into shared memory and store them by TMA."""
    stage = out.acquire()
    grads.to(form.dtype).store(stage.o.view(form.rows), (0, 0))
    row = i32(mine.key + warpgroup * ROWS)
    out.store(to, stage.o, (mine.sequence, row, mine.kv_head, 0))
    out.commit()


@device_function
def store_split(
    form: BackwardForm,
    out: Any,
    to: Any,
    split_to: Address,
    grads: Registers,
    mine: KeyTile,
    warpgroup: Integer,
    keys: Integer,
) -> None:
    """Store a warpgroup's rows of dK or dV of a split, float32, (splits, keys, head dim)."""
    row, row_nbytes = i32(mine.key + warpgroup * ROWS), 4 * form.head_dim
    number = i32(mine.split * keys + row)
    store_rows(grads, split_to + row_nbytes * number, row_nbytes, i32(keys - row))


# ----------------------------------------------------- dQ: blocks add to it in any order


@device_function
def add_dq(
    sums: Registers, dq: Any, grads: Any, turns: Any, state: Any, block: Any, more: Any
) -> None:
    """Add a part of dQ to the sums in global memory, while dK is computed."""
    stage = sums.acquire()
    store_by_thread(grads, stage.dq)
    sums.reduce(dq, stage.dq, (state.walk.part, 0, 0), "add")
    sums.commit()


@device_function
def end_dq(sums: Registers, turns: Any, state: Any) -> None:
    """Let both warpgroups finish reading dS, in whose memory dV and dK are staged."""
    BOTH.sync()


# ------------------------------------------ deterministic dQ: blocks add to a part in turn


@device_function
def add_dq_in_turn(
    sums: Registers, dq: Any, grads: Any, turns: Any, state: Any, block: Any, more: Any
) -> None:
    """Do what `add_dq` does, after the blocks of smaller keys.

    The turn of the part before is passed on here, a step late: by now its addition is complete.
    """
    if more:
        pass_turn(sums, turns, state.walk.added)
    stage = sums.acquire()
    store_by_thread(grads, stage.dq)
    await_turn(sums, turns, state.walk.part, block)
    sums.reduce(dq, stage.dq, (state.walk.part, 0, 0), "add")
    sums.commit()


@device_function
def end_dq_in_turn(sums: Registers, turns: Any, state: Any) -> None:
    """Pass on the turn of the last part, and do what `end_dq` does."""
    pass_turn(sums, turns, state.walk.added)
    BOTH.sync()


@device_function
def await_turn(sums: Registers, turns: Any, part: Any, block: Any) -> None:
    """Wait until the blocks before this one have added to a part of dQ.

    The hardware starts blocks in the order of their numbers, so those have all started.
    """
    if sums.thread == 0:
        while cuda.atomic.cas(turns, part, block, block) != block:
            pass
        ptx.fence_acq_rel("gpu")
        ptx.fence_proxy_async_all()


@device_function
def pass_turn(sums: Registers, turns: Any, part: Any) -> None:
    """Let the next block add to a part of dQ, when this block's addition is complete."""
    if sums.thread == 0:
        ptx.cp_async_bulk_wait_group(0)
        ptx.fence_proxy_async_all()
        ptx.fence_acq_rel("gpu")
        cuda.atomic.add(turns, part, 1)


# --------------------------------------------------------------------------------- kernel


@functools.cache
def backward_kernel(problem: AttentionProblem, plan: BackwardPlan, deterministic: bool) -> Any:
    """Return the kernel of a problem and a plan. Its blocks have ``plan.threads`` threads.

    Its arguments: the tensor maps of Q, K, V, dO, lse, delta, the sums of dQ, dK and dV; the
    counters of turns; the queries and keys of a sequence; the heads of K; sequences; the heads of Q
    of a block; the splits of those that share a head of K; the addresses of the splits' dK and dV;
    the scale; and the scale times log2(e). If `deterministic`, blocks add to dQ in the order of
    their keys.
    """
    FORM = BackwardForm(problem, plan)
    STAGES = plan.stages
    # Each consumer warpgroup is a role of its own: it has rows of dK and dV of its own.
    consumers = {f"math{i}": Warpgroups(1) for i in range(WARPGROUPS)}
    ROLES = Roles(**consumers, load=Warpgroups(1, registers=24))
    CONSUMERS = tuple(getattr(ROLES, name) for name in consumers)
    PRODUCER, CONSUMER = ROLES.load, CONSUMERS[0]
    sides: dict[str, Any] = {"producer": PRODUCER, "consumer": CONSUMERS}
    held, of_q, of_row = (
        problem.tile(BLOCK_K),
        problem.tile(FORM.block_q),
        Tile((1, FORM.block_q), "f32"),
    )
    KV = TilePipeline(1, k=held, v=held, **sides)
    Q = TilePipeline(STAGES, q=of_q, dout=of_q, lse=of_row, delta=of_row, **sides)
    DS = Tile((2 * BLOCK_K, FORM.block_q), problem.dtype, Swizzle.B128)  # two buffers
    DQ = StorePipeline(plan.sum_stages, dq=DQ_PART, role=CONSUMERS)
    OUT = StorePipeline(1, o=problem.tile(ROWS), role=CONSUMERS)

    add, end = (add_dq_in_turn, end_dq_in_turn) if deterministic else (add_dq, end_dq)
    store = store_split if problem.splits else store_gradient

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
        splits,
        split_dk,
        split_dv,
        scale,
        scale_log2,
    ):
        # In this order, since there is a gap between barriers and the next swizzled tile.
        q_pipe, ds_tile = Q.start(sync=False), shared_tile(DS)
        kv_pipe = KV.start()
        sums, out = DQ.start(), OUT.start(ds_tile)
        mine = key_tile(FORM, queries, keys, kv_heads, batch, group, splits)
        if PRODUCER.is_member():
            PRODUCER.set_registers()
            kv_producer, q_producer = kv_pipe.producer(), q_pipe.producer()
            if kv_producer.enters():  # one thread
                load_kv(kv_producer, k, v, mine)
                for i in range(group):
                    for tile in range(mine.first_q_tile, mine.q_tiles):
                        load_q(FORM, q_producer, q, dout, lse, delta, mine, i, tile)
        else:
            CONSUMER.set_registers()
            warpgroup, q_consumer = warpgroup_number(), q_pipe.consumer()
            ring = StagedPipeline(STAGES, 1, q_consumer.barriers, PipelineState(STAGES))
            walk = first_walk(FORM, mine, warpgroup, queries, keys)
            kv = kv_pipe.consumer().wait()
            state = first(FORM, q_consumer, ring, kv.k, warpgroup, walk)
            for i in range(mine.steps):
                warpgroup = warpgroup_number()
                products = multiply(
                    FORM, q_consumer, ring, kv.k, kv.v, ds_tile, warpgroup, state, scale_log2
                )
                add(sums, dq, products.dq, turns, state, mine.block, i > 0)
                more = i + 1 < mine.steps
                scores, dk_sum = advance(FORM, q_consumer, ring, kv.k, warpgroup, products, more)
                # Here and not in `advance`, where ptxas would compute addresses anew in each step.
                walk = next_q_tile(FORM, mine, state.walk)
                state = GradientState(scores, dk_sum, products.dv, walk)
            end(sums, turns, state)
            store(FORM, out, dv, split_dv, state.dv, mine, warpgroup, keys)
            store(FORM, out, dk, split_dk, state.dk * scale, mine, warpgroup, keys)
            out.tail(read=True)
        kv_pipe.close()
        q_pipe.close()

    return cuda.jit(launch_bounds=ROLES.launch_bounds)(attention_backward)
