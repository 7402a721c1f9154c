"""The attention kernel of Blackwell's tensor cores: FlashAttention-4's forward pass, persistent.

Assembled for sm_100a, 103a and 110a and simulated; it has run on no GPU.

S = Q K' and O += P V are sums in tensor memory. P is the operand A of the second product: softmax
stores it into the columns of S, which it has read. One thread starts all products. A block has two
tiles of 128 queries of a head: while threads compute the exponentials of one tile, the tensor cores
multiply for the other. Columns of tensor memory, for head dim 128 and 128 keys in a K/V tile::

    0             64            128           192           256           384           512
    | S of tile 0 | .. and its P | S of tile 1 | .. and its P | O of tile 0 | O of tile 1 |

For tiles that see K/V tiles 0 to n - 1, each role does this, from top to bottom. i is the tile of
queries, 0 and 1 in turn. Only barriers order the columns::

    load, 1 thread    mma, 1 thread              softmax, a warpgroup    correction, a warpgroup
    K0, Q0, Q1        wait for K0, Qi            for each tile i         for both tiles
    for j = 1 .. n-1  start Si = Qi K0'          for j = 0 .. n-1        for j = 1 .. n-1
        V(j-1)        for j = 1 .. n-1               wait for Si             take Oi's factors
        Kj                wait for Pi, Oi            load Si                 rescale Oi if a
    V(n-1)                start Oi += Pi V(j-1)      new maximum               row of the warp has
                          start Si = Qi Kj'          give factor of Oi         another factor than 1
                      wait for Pi, Oi                store Pi            take 1 / row sum
                      start Oi += Pi V(n-1)          add to row sum      wait for Oi, store it
                                                 give 1 / row sum

- A softmax thread has one row of S, 128 registers: no row is shared, so no thread exchanges
  numbers. The exponentials are the longest work of a block, so two warpgroups do nothing else.
- O is rescaled by threads, since tensor cores only add. Correction does it between two P V of a
  tile, beside the softmax that waits for neither. A row's factor is 1 until its maximum has grown
  by more than 2**8 (`tcgen05_softmax.py`), and a warp of such rows touches nothing.
- The product S = Qi Kj' follows Oi += Pi V(j-1) at once: products of one thread are executed in the
  order of their start, so S may overwrite P. The commit of Si also says that Oi is complete.

Who waits for whom. A *full* barrier of Q, K and V completes when the bytes have come, an empty one
by a commit of the products that have read the tile. The barriers between the roles, two of each,
one for a tile of queries::

    barrier       arrivals of a phase            who waits, and for what
    S_FULL        1: commit of Si = Qi K'        softmax: to load S
    P_FULL        4: softmax warps               mma: to start P V. S was loaded, too
    O_FREE        4: correction warps            mma: to start P V. O is rescaled or, before a
                                                 first P V, was loaded to be stored
    O_FULL        1: commit of the last P V      correction: to load O
    FACTOR_FULL   4: softmax warps               correction: to read the factors of O. Oi is
                                                 complete up to the P V before
    FACTOR_FREE   4: correction warps            softmax: to write the factors of O

Each of S_FULL, P_FULL, O_FREE and FACTOR_FULL completes a phase for each K/V tile, so that one
counter, `turn`, gives every role the parity of its waits. O_FULL completes one for each tile.

Persistent: blocks take tiles by the schedule of `tiles.py`. The loads and the first S of the next
tile begin while correction stores this one. Under a mask both tiles walk over the K/V tiles that
their 256 queries see together.

Registers: 192 a softmax thread, 80 a correction thread, 48 in the warpgroup of the other roles. The
masks are those of Hopper's kernel (`kernel.py`): causal, windows, the end of the keys, soft caps.
Packed sequences, splits of the keys, e4m3 and head dim 256 are not here (`check_tcgen05`).
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from numba import cuda

from numba_tma.backend.interface import device_function, u32
from numba_tma.device.shared import SharedTile, TileAccesses, shared_barriers, shared_tile
from numba_tma.device.tensor_memory import TensorMemory
from numba_tma.device.tensor_products import tcgen05_mma
from numba_tma.host.annotations import Integer, Kernel, Real
from numba_tma.host.layout import Tile
from numba_tma.host.mma_rules import THREADS
from numba_tma.host.tensor_tiles import LANES
from numba_tma.kernels.attention.plan import AttentionProblem
from numba_tma.kernels.attention.softmax import MINUS_INFINITY, ONE, ZERO, inverse, scale_function
from numba_tma.kernels.attention.tcgen05_correction import rescale, row_store
from numba_tma.kernels.attention.tcgen05_plan import (
    ROLES,
    TILES,
    Tcgen05AttentionForm,
    Tcgen05AttentionPlan,
)
from numba_tma.kernels.attention.tcgen05_softmax import (
    load_scores,
    next_maximum,
    store_row_lse,
    sum_of,
    weights_of,
)
from numba_tma.kernels.attention.tiles import next_kv_tile, schedule_function, tile_functions
from numba_tma.pipeline import KVPipeline, StorePipeline, TilePipeline
from numba_tma.ptx import (
    bar_warp_sync,
    elect_sync,
    fence_mbarrier_init,
    tcgen05_commit,
    tcgen05_fence_after_thread_sync,
    tcgen05_fence_before_thread_sync,
)

SOFTMAX, CORRECTION, MMA, LOAD = ROLES.softmax, ROLES.correction, ROLES.mma, ROLES.load
ALL_LANES = 0xFFFFFFFF
#: The first of two barriers, one for each tile of queries.
S_FULL, P_FULL, O_FREE, O_FULL, FACTOR_FULL, FACTOR_FREE = range(0, 6 * TILES, TILES)
NUM_BARRIERS = 6 * TILES
COMMIT, WARPS = 1, LANES // 32  # arrivals of a phase
#: A factor for each row: what its O is multiplied with next.
FACTORS = Tile((TILES, LANES), "f32")


@device_function
def init_barriers(bars: Any) -> None:
    """Initialise the barriers between the roles. Executed by every thread of the block."""
    if cuda.threadIdx.x == 0:
        for i in range(TILES):
            bars[S_FULL + i].init(COMMIT)
            bars[O_FULL + i].init(COMMIT)
            bars[P_FULL + i].init(WARPS)
            bars[O_FREE + i].init(WARPS)
            bars[FACTOR_FULL + i].init(WARPS)
            bars[FACTOR_FREE + i].init(WARPS)
        fence_mbarrier_init()


@device_function
def arrive(barrier: Any) -> None:
    """Arrive once for the warp, behind all that its threads have done."""
    bar_warp_sync()
    if elect_sync():
        barrier.arrive()


# ------------------------------------------------------------------------------------ load


@device_function
def load_q(producer: Any, q: Any, batch: Integer, row: Integer, head: Integer) -> None:
    """Load a tile of 128 queries when its memory is empty."""
    stage = producer.acquire()
    q.load(stage.q, (batch, row, head, 0), stage.barrier)


@device_function
def load_k(producer: Any, k: Any, batch: Integer, key: Integer, head: Integer) -> None:
    """Load a K tile when a stage is empty."""
    producer.acquire_k()
    barrier, to = producer.get_k()
    k.load(to, (batch, key, head, 0), barrier)
    producer.commit_step()


@device_function
def load_v(producer: Any, v: Any, batch: Integer, key: Integer, head: Integer) -> None:
    """Load a V tile when a stage is empty."""
    producer.acquire_v()
    barrier, to = producer.get_v()
    v.load(to, (batch, key, head, 0), barrier)
    producer.commit_step()


# ---------------------------------------------------------------------- mma, by one thread


@device_function
def weights_in(form: Any, scores: Any) -> Any:
    """Return P in the right half of the columns of S."""
    return scores.operand(form.block_k, form.p_dtype, form.p_column)


@device_function
def start_scores(form: Any, bars: Any, i: Integer, tmem: Any, q: Integer, k: Any) -> None:
    """Start S = Q K' of a tile of queries. Softmax waits for the commit.

    `q` is the address of the first tile of queries. S overwrites P, which the product before, of
    this thread, reads: products of one thread are executed in order.
    """
    scores = tmem.tile(LANES, form.block_k, "f32", i * form.block_k)
    q_tile = SharedTile(form.q_tile, u32(q + i * form.q_nbytes), TileAccesses())
    tcgen05_mma(scores, q_tile, k, accumulate=False)
    tcgen05_commit(bars[S_FULL + i], 1)


@device_function
def start_values(
    form: Any, bars: Any, i: Integer, tmem: Any, v: Any, turn: Integer, accumulate: Any
) -> None:
    """Start O += P V when P is stored and O rescaled, or of a first K/V tile when O is stored."""
    bars[P_FULL + i].wait(turn & 1)
    bars[O_FREE + i].wait(turn & 1 ^ 1)
    tcgen05_fence_after_thread_sync()  # of P and O
    weights = weights_in(form, tmem.tile(LANES, form.block_k, "f32", i * form.block_k))
    o = tmem.tile(LANES, form.head_dim, "f32", form.first_o + i * form.head_dim)
    tcgen05_mma(o, weights, v.matrix_descriptor("MN"), accumulate=accumulate)


@device_function
def multiply(
    form: Any,
    bars: Any,
    tmem: Any,
    q: Integer,
    q0_full: Any,
    q1_full: Any,
    kv_full: Any,
    kv_tiles: Integer,
    turn: Integer,
) -> Any:
    """Start all products of two tiles of queries; return the number of K/V tiles so far."""
    kv_full.wait_k()
    q0_full.wait()
    start_scores(form, bars, 0, tmem, q, kv_full.get_k_tile())
    q1_full.wait()
    start_scores(form, bars, 1, tmem, q, kv_full.get_k_tile())
    kv_full.release_k()
    v_stage = u32(0)
    for half in range(TILES, TILES * kv_tiles):  # two for each K/V tile: the tiles take turns
        i, later = u32(half % TILES), half >= 2 * TILES
        if i == 0:
            kv_full.wait_v()
            v_stage = kv_full.step()
        start_values(form, bars, i, tmem, kv_full.get_v_tile(v_stage), turn, later)
        if i == 0:
            kv_full.wait_k()
        else:
            kv_full.release_at(v_stage)
        start_scores(form, bars, i, tmem, q, kv_full.get_k_tile())
        if i == 1:
            kv_full.release_k()
            turn = u32(turn + 1)
    q0_full.release()
    q1_full.release()
    kv_full.wait_v()
    start_values(form, bars, 0, tmem, kv_full.get_v_tile(), turn, kv_tiles > 1)
    tcgen05_commit(bars[O_FULL + 0], 1)
    start_values(form, bars, 1, tmem, kv_full.get_v_tile(), turn, kv_tiles > 1)
    kv_full.release_v()
    tcgen05_commit(bars[O_FULL + 1], 1)  # the thread's last commit, which is waited for
    return u32(turn + 1)


# ------------------------------------------------------------------- softmax and correction


class RowState(NamedTuple):
    """Online softmax of a thread's row, between two K/V tiles."""

    row_max: Any  #: what P is relative to
    row_sum: Any  #: sum of the exponentials, in float32
    rows: Any  #: `WarpgroupRows` of the tile of queries: the columns that they see


@device_function
def softmax_step(
    form: Any,
    bars: Any,
    factors: Any,
    i: Integer,
    scores: Any,
    lane: Integer,
    state: Any,
    scales: Any,
    later: Any,
    turn: Integer,
) -> Any:
    """Compute P of a K/V tile. `later` is whether O has sums that may have to be rescaled."""
    bars[S_FULL + i].wait(turn & 1)
    tcgen05_fence_after_thread_sync()  # of S
    row = load_scores(form, scores, state.rows, lane, scales)
    top = next_maximum(row, state.row_max, scales.scores)
    if later:
        hand_over(bars, factors, i, lane, top.factor, u32(turn - 1))
    p = weights_of(form, row, top.value, scales.scores)
    weights_in(form, scores).store(0, p)  # waits, and fences for the arrival
    arrive(bars[P_FULL + i])
    row_sum = state.row_sum * top.factor + sum_of(p)
    return RowState(top.value, row_sum, next_kv_tile(form, state.rows))


@device_function
def hand_over(
    bars: Any, factors: Any, i: Integer, lane: Integer, factor: Real, turn: Integer
) -> None:
    """Give the row's factor to correction, when that has read the one before."""
    bars[FACTOR_FREE + i].wait(turn & 1 ^ 1)
    factors[i, lane] = factor
    arrive(bars[FACTOR_FULL + i])


@device_function
def take(bars: Any, factors: Any, i: Integer, lane: Integer, turn: Integer) -> Any:
    """Return the factor that softmax gives for the row. S of the K/V tile is then complete."""
    bars[FACTOR_FULL + i].wait(turn & 1)
    factor = factors[i, lane]
    arrive(bars[FACTOR_FREE + i])
    return factor


@device_function
def correct(
    form: Any, bars: Any, factors: Any, i: Integer, o: Any, lane: Integer, turn: Integer
) -> None:
    """Rescale O of a tile before the next P V is added."""
    factor = take(bars, factors, i, lane, turn)
    tcgen05_fence_after_thread_sync()  # of O, up to the last P V
    if cuda.any_sync(ALL_LANES, factor != ONE):
        rescale(form, o, factor)  # waits, and fences for the arrival
    arrive(bars[O_FREE + i])


@functools.cache
def tcgen05_attention_kernel(problem: AttentionProblem, plan: Tcgen05AttentionPlan) -> Kernel:
    """Return the kernel of a problem and a plan. Its blocks have ``ROLES.threads`` threads.

    Its arguments are those of `attention_kernel`.
    """
    FORM = Tcgen05AttentionForm(problem, plan)
    BLOCK_K, HEAD_DIM = FORM.block_k, FORM.head_dim
    O0, O1 = FORM.first_o, FORM.first_o + HEAD_DIM  # columns of tensor memory
    sides: dict[str, Any] = {"producer": LOAD, "consumer": MMA, "released_by": "tcgen05"}
    Q = TilePipeline(1, q=FORM.q_tile, **sides)  # one for each tile
    KV = KVPipeline(
        FORM.stages, (1, BLOCK_K, 1), HEAD_DIM, FORM.dtype, swizzle=problem.swizzle, **sides
    )
    OUT = StorePipeline(TILES, o=FORM.o_tile, role=CORRECTION)
    TMEM = TensorMemory(FORM.columns, role=MMA)
    # Of the block's shared memory: Q, then the K/V ring, then O.
    SECOND_Q, FIRST_KV = FORM.q_nbytes, TILES * FORM.q_nbytes
    FIRST_OUT = FIRST_KV + KV.storage_nbytes
    schedule, scales_of = schedule_function(FORM), scale_function(problem)
    locate, kv_range, rows_of = tile_functions(FORM)
    store_row = row_store(FORM)

    @device_function
    def store_output(
        bars: Any,
        factors: Any,
        i: Any,
        o: Any,
        lane: Any,
        turn: Any,
        done: Any,
        store: Any,
        out: Any,
        tile: Any,
    ) -> None:
        """Store O / row sum when the last P V is complete, and free O for the next tile."""
        factor = take(bars, factors, i, lane, turn)
        bars[O_FULL + i].wait(done & 1)
        tcgen05_fence_after_thread_sync()  # of O
        stage = store.acquire()
        store_row(o, stage.o, lane, factor)
        tcgen05_fence_before_thread_sync()  # O is loaded
        arrive(bars[O_FREE + i])
        row = tile.query_block * FORM.block_q + i * LANES
        store.store(out, stage.o, (tile.batch, row, tile.head, 0))
        store.commit()

    def attention_forward(  # type: ignore[no-untyped-def]
        q, k, v, out, queries, keys, heads, batch, group, scale, options
    ):
        memory = shared_tile(FORM.memory).address
        q0_pipe = Q.start(tiles=memory, sync=False)
        q1_pipe = Q.start(tiles=u32(memory + SECOND_Q), sync=False)
        kv_pipe = KV.start(tiles=u32(memory + FIRST_KV), sync=False)
        o_pipe = OUT.start(tiles=u32(memory + FIRST_OUT))
        factors, bars = shared_tile(FACTORS), shared_barriers(NUM_BARRIERS)
        init_barriers(bars)
        tmem = TMEM.start()  # synchronises the block, for the barriers as well
        tiles = schedule(queries, keys, heads, batch, options)
        if SOFTMAX.is_member():
            SOFTMAX.set_registers()
            # The number of the tile is the same register for the whole warp.
            i = u32(cuda.shfl_sync(ALL_LANES, cuda.threadIdx.x // THREADS, 0))
            scores = tmem.tile(LANES, BLOCK_K, "f32", i * BLOCK_K)
            lane, turn = scores.row, u32(0)
            for tile in tiles.tiles():
                sequence = locate(tile, queries, keys, options)
                kv = kv_range(tile, sequence, options)
                rows = rows_of(tile, 2 * i, sequence, kv.first_key, queries, heads, options)
                scales = scales_of(scale, sequence.batch, tile.head, heads, group, options)
                state = RowState(MINUS_INFINITY, ZERO, rows)
                for j in range(kv.tiles):
                    state = softmax_step(
                        *(FORM, bars, factors, i, scores, lane, state, scales, j > 0, turn)
                    )
                    turn = u32(turn + 1)
                hand_over(bars, factors, i, lane, inverse(state.row_sum), u32(turn - 1))
                at = queries * (sequence.batch * heads + tile.head)
                store_row_lse(FORM, state, scales.scores, rows.row + lane, at, sequence, options)
        elif CORRECTION.is_member():
            CORRECTION.set_registers()
            o0 = tmem.tile(LANES, HEAD_DIM, "f32", O0)
            o1 = tmem.tile(LANES, HEAD_DIM, "f32", O1)
            lane, turn, done = o0.row, u32(0), u32(0)
            for tile in tiles.tiles():
                kv = kv_range(tile, locate(tile, queries, keys, options), options)
                for _ in range(1, kv.tiles):
                    correct(FORM, bars, factors, 0, o0, lane, turn)
                    correct(FORM, bars, factors, 1, o1, lane, turn)
                    turn = u32(turn + 1)
                store_output(bars, factors, 0, o0, lane, turn, done, o_pipe, out, tile)
                store_output(bars, factors, 1, o1, lane, turn, done, o_pipe, out, tile)
                turn, done = u32(turn + 1), u32(done + 1)
            o_pipe.tail(read=True)
        else:
            MMA.set_registers()  # the roles of this warpgroup have equal registers
            if MMA.is_member():
                q0_full, q1_full = q0_pipe.consumer(), q1_pipe.consumer()
                kv_full = kv_pipe.consumer()
                if kv_full.enters():  # one thread
                    turn = u32(0)
                    for tile in tiles.tiles():
                        kv = kv_range(tile, locate(tile, queries, keys, options), options)
                        turn = multiply(
                            *(FORM, bars, tmem, memory, q0_full, q1_full, kv_full, kv.tiles, turn)
                        )
            elif LOAD.is_member():
                q0_empty, q1_empty = q0_pipe.producer(), q1_pipe.producer()
                kv_empty = kv_pipe.producer()
                if kv_empty.enters():  # one thread
                    for tile in tiles.tiles():
                        kv = kv_range(tile, locate(tile, queries, keys, options), options)
                        kv_head, key = tile.head // group, kv.first_key
                        load_k(kv_empty, k, tile.batch, key, kv_head)
                        row = tile.query_block * FORM.block_q
                        load_q(q0_empty, q, tile.batch, row, tile.head)
                        load_q(q1_empty, q, tile.batch, row + LANES, tile.head)
                        for _ in range(1, kv.tiles):
                            load_v(kv_empty, v, tile.batch, key, kv_head)
                            key += BLOCK_K
                            load_k(kv_empty, k, tile.batch, key, kv_head)
                        load_v(kv_empty, v, tile.batch, key, kv_head)
        tmem.close()

    return cuda.jit(launch_bounds=ROLES.launch_bounds)(attention_forward)
