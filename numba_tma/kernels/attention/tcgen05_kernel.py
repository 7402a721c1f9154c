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
from numba_tma.device.barrier import Barrier, BarrierArray
from numba_tma.device.causal_scheduler import AttentionTile, CausalSchedule
from numba_tma.device.shared import SharedTile, TileAccesses, shared_barriers, shared_tile
from numba_tma.device.tensor_memory import TensorMemory, TensorMemoryHandle
from numba_tma.device.tensor_products import tcgen05_mma
from numba_tma.device.tensor_tile import TensorTile
from numba_tma.host.annotations import Kernel, Real
from numba_tma.host.layout import Tile
from numba_tma.host.tensor_map import TensorMap
from numba_tma.host.tensor_tiles import LANES
from numba_tma.host.warpgroup import ALL_LANES, THREADS
from numba_tma.kernels.attention.plan import AttentionProblem
from numba_tma.kernels.attention.softmax import (
    MINUS_INFINITY,
    ONE,
    ZERO,
    Scales,
    inverse,
    scale_function,
)
from numba_tma.kernels.attention.tcgen05_correction import rescale, row_store
from numba_tma.kernels.attention.tcgen05_plan import (
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
from numba_tma.kernels.attention.tiles import (
    KVRange,
    next_kv_tile,
    schedule_function,
    tile_functions,
)
from numba_tma.pipeline import KVPipeline, Roles, StorePipeline, TilePipeline, Warpgroups, Warps
from numba_tma.pipeline.consumer import TileConsumer
from numba_tma.pipeline.kv_consumer import TMAConsumerPipeline
from numba_tma.pipeline.kv_producer import TMAProducerPipeline
from numba_tma.pipeline.producer import TileProducer
from numba_tma.pipeline.store_handle import StorePipelineHandle
from numba_tma.ptx import (
    bar_warp_sync,
    elect_sync,
    fence_mbarrier_init,
    tcgen05_commit,
    tcgen05_fence_after_thread_sync,
    tcgen05_fence_before_thread_sync,
)

#: The block: registers of a thread after setmaxnreg; the last three roles share a warpgroup.
ROLES = Roles(
    softmax=Warpgroups(TILES, registers=192),
    correction=Warpgroups(1, registers=80),
    mma=Warps(1),
    load=Warps(1),
    idle=Warps(2),
)
SOFTMAX, CORRECTION, MMA, LOAD = ROLES.softmax, ROLES.correction, ROLES.mma, ROLES.load
#: The first of two barriers, one for each tile of queries.
S_FULL, P_FULL, O_FREE, O_FULL, FACTOR_FULL, FACTOR_FREE = range(0, 6 * TILES, TILES)
NUM_BARRIERS = 6 * TILES
COMMIT, WARPS = 1, LANES // 32  # arrivals of a phase
#: A factor for each row: what its O is multiplied with next.
FACTORS = Tile((TILES, LANES), "f32")


class AttentionCall(NamedTuple):
    """The numbers of a launch."""

    queries: Any
    keys: Any
    heads: Any
    group: Any  #: heads of Q that share one of K and V
    scale: Any
    options: Any  #: `OptionalArguments`


class BlockMemory(NamedTuple):
    """What the roles of a block share."""

    tmem: TensorMemoryHandle
    bars: BarrierArray  #: between the roles
    factors: SharedTile  #: `FACTORS`
    q: u32  #: address of the two tiles of queries in shared memory


@device_function
def init_barriers(bars: BarrierArray) -> None:
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
def arrive(barrier: Barrier) -> None:
    """Arrive once for the warp, behind all that its threads have done."""
    bar_warp_sync()
    if elect_sync():
        barrier.arrive()


# ------------------------------------------------------------------------------------ load


@device_function
def load_q(producer: TileProducer, q: TensorMap, batch: int, row: int, head: int) -> None:
    """Load a tile of 128 queries when its memory is empty."""
    stage = producer.acquire()
    q.load(stage.q, (batch, row, head, 0), stage.barrier)


@device_function
def load_k(producer: TMAProducerPipeline, k: TensorMap, batch: int, key: int, head: int) -> None:
    """Load a K tile when a stage is empty."""
    producer.acquire_k()
    barrier, to = producer.get_k()
    k.load(to, (batch, key, head, 0), barrier)
    producer.commit_step()


@device_function
def load_v(producer: TMAProducerPipeline, v: TensorMap, batch: int, key: int, head: int) -> None:
    """Load a V tile when a stage is empty."""
    producer.acquire_v()
    barrier, to = producer.get_v()
    v.load(to, (batch, key, head, 0), barrier)
    producer.commit_step()


# ---------------------------------------------------------------------- mma, by one thread


@device_function
def scores_of(form: Tcgen05AttentionForm, tmem: TensorMemoryHandle, i: int) -> TensorTile:
    """Return S of a tile of queries."""
    return tmem.tile(LANES, form.block_k, "f32", i * form.block_k)


@device_function
def weights_in(form: Tcgen05AttentionForm, scores: TensorTile) -> TensorTile:
    """Return P in the right half of the columns of S."""
    return scores.operand(form.block_k, form.p_dtype, form.p_column)


@device_function
def output_of(form: Tcgen05AttentionForm, tmem: TensorMemoryHandle, i: int) -> TensorTile:
    """Return O of a tile of queries."""
    return tmem.tile(LANES, form.head_dim, "f32", form.first_o + i * form.head_dim)


@device_function
def start_scores(form: Tcgen05AttentionForm, memory: BlockMemory, i: int, k: SharedTile) -> None:
    """Start S = Q K' of a tile of queries. Softmax waits for the commit.

    S overwrites P, which the product before, of this thread, reads: products of one thread are
    executed in order.
    """
    q = SharedTile(form.q_tile, u32(memory.q + i * form.q_nbytes), TileAccesses())
    tcgen05_mma(scores_of(form, memory.tmem, i), q, k, accumulate=False)
    tcgen05_commit(memory.bars[S_FULL + i], 1)


@device_function
def start_values(
    form: Tcgen05AttentionForm, memory: BlockMemory, i: int, v: SharedTile, turn: int, later: bool
) -> None:
    """Start O += P V when P is stored and O rescaled, or of a first K/V tile when O is stored."""
    memory.bars[P_FULL + i].wait(turn & 1)
    memory.bars[O_FREE + i].wait(turn & 1 ^ 1)
    tcgen05_fence_after_thread_sync()  # of P and O
    p = weights_in(form, scores_of(form, memory.tmem, i))
    tcgen05_mma(output_of(form, memory.tmem, i), p, v.matrix_descriptor("MN"), accumulate=later)


@device_function
def multiply(
    form: Tcgen05AttentionForm,
    memory: BlockMemory,
    q0_full: TileConsumer,
    q1_full: TileConsumer,
    kv_full: TMAConsumerPipeline,
    kv_tiles: int,
    turn: int,
) -> int:
    """Start all products of two tiles of queries; return the number of K/V tiles so far."""
    kv_full.wait_k()
    q0_full.wait()
    start_scores(form, memory, 0, kv_full.get_k_tile())
    q1_full.wait()
    start_scores(form, memory, 1, kv_full.get_k_tile())
    kv_full.release_k()
    v_stage = u32(0)
    for half in range(TILES, TILES * kv_tiles):  # two for each K/V tile: the tiles take turns
        i, later = u32(half % TILES), half >= 2 * TILES
        if i == 0:
            kv_full.wait_v()
            v_stage = kv_full.step()
        start_values(form, memory, i, kv_full.get_v_tile(v_stage), turn, later)
        if i == 0:
            kv_full.wait_k()
        else:
            kv_full.release_at(v_stage)
        start_scores(form, memory, i, kv_full.get_k_tile())
        if i == 1:
            kv_full.release_k()
            turn = u32(turn + 1)
    q0_full.release()
    q1_full.release()
    kv_full.wait_v()
    start_values(form, memory, 0, kv_full.get_v_tile(), turn, kv_tiles > 1)
    tcgen05_commit(memory.bars[O_FULL + 0], 1)
    start_values(form, memory, 1, kv_full.get_v_tile(), turn, kv_tiles > 1)
    kv_full.release_v()
    tcgen05_commit(memory.bars[O_FULL + 1], 1)  # the thread's last commit, which is waited for
    return u32(turn + 1)


# ------------------------------------------------------------------- softmax and correction


class SoftmaxRow(NamedTuple):
    """Online softmax of a thread's row, between two K/V tiles."""

    row_max: Any  #: what P is relative to
    row_sum: Any  #: sum of the exponentials, in float32
    rows: Any  #: `WarpgroupRows` of the tile of queries: the columns that they see


@device_function
def softmax_step(
    form: Tcgen05AttentionForm,
    memory: BlockMemory,
    i: int,
    lane: int,
    state: SoftmaxRow,
    scales: Scales,
    later: bool,
    turn: int,
) -> SoftmaxRow:
    """Compute P of a K/V tile. `later` is whether O has sums that may have to be rescaled."""
    scores = scores_of(form, memory.tmem, i)
    memory.bars[S_FULL + i].wait(turn & 1)
    tcgen05_fence_after_thread_sync()  # of S
    row = load_scores(form, scores, state.rows, lane, scales)
    top = next_maximum(row, state.row_max, scales.scores)
    if later:
        hand_over(memory, i, lane, top.factor, u32(turn - 1))
    p = weights_of(form, row, top.value, scales.scores)
    weights_in(form, scores).store(0, p)  # waits, and fences for the arrival
    arrive(memory.bars[P_FULL + i])
    row_sum = state.row_sum * top.factor + sum_of(p)
    return SoftmaxRow(top.value, row_sum, next_kv_tile(form, state.rows))


@device_function
def hand_over(memory: BlockMemory, i: int, lane: int, factor: Real, turn: int) -> None:
    """Give the row's factor to correction, when that has read the one before."""
    memory.bars[FACTOR_FREE + i].wait(turn & 1 ^ 1)
    memory.factors[i, lane] = factor
    arrive(memory.bars[FACTOR_FULL + i])


@device_function
def take(memory: BlockMemory, i: int, lane: int, turn: int) -> float:
    """Return the factor that softmax gives for the row. S of the K/V tile is then complete."""
    memory.bars[FACTOR_FULL + i].wait(turn & 1)
    factor: float = memory.factors[i, lane]
    arrive(memory.bars[FACTOR_FREE + i])
    return factor


@device_function
def correct(form: Tcgen05AttentionForm, memory: BlockMemory, i: int, lane: int, turn: int) -> None:
    """Rescale O of a tile before the next P V is added."""
    factor = take(memory, i, lane, turn)
    tcgen05_fence_after_thread_sync()  # of O, up to the last P V
    if cuda.any_sync(ALL_LANES, factor != ONE):
        rescale(form, output_of(form, memory.tmem, i), factor)  # waits, and fences
    arrive(memory.bars[O_FREE + i])


@functools.cache
def tcgen05_attention_kernel(problem: AttentionProblem, plan: Tcgen05AttentionPlan) -> Kernel:
    """Return the kernel of a problem and a plan. Its blocks have ``ROLES.threads`` threads.

    Its arguments are those of `attention_kernel`.
    """
    FORM = Tcgen05AttentionForm(problem, plan)
    sides: dict[str, Any] = {"producer": LOAD, "consumer": MMA, "released_by": "tcgen05"}
    Q = TilePipeline(1, q=FORM.q_tile, **sides)  # one for each tile
    kv_ring = (FORM.stages, (1, FORM.block_k, 1), FORM.head_dim, FORM.dtype)
    KV = KVPipeline(*kv_ring, swizzle=problem.swizzle, **sides)
    OUT = StorePipeline(TILES, o=FORM.o_tile, role=CORRECTION)
    TMEM = TensorMemory(FORM.columns, role=MMA)
    # Of the block's shared memory: Q, then the K/V ring, then O.
    FIRST_KV = TILES * FORM.q_nbytes
    FIRST_OUT = FIRST_KV + KV.storage_nbytes
    schedule, scales_of = schedule_function(FORM), scale_function(problem)
    locate, kv_range, rows_of = tile_functions(FORM)
    store_row = row_store(FORM)

    @device_function
    def kv_tiles_of(tile: AttentionTile, call: AttentionCall) -> KVRange:
        """Return the K/V tiles that two tiles of queries need."""
        sequence = locate(tile, call.queries, call.keys, call.options)
        kv: KVRange = kv_range(tile, sequence, call.options)
        return kv

    @device_function
    def softmax(memory: BlockMemory, tiles: CausalSchedule, call: AttentionCall) -> None:
        """Compute P of one tile of queries, by a warpgroup."""
        # The number of the tile is the same register for the whole warp.
        i = u32(cuda.shfl_sync(ALL_LANES, cuda.threadIdx.x // THREADS, 0))
        lane, turn = scores_of(FORM, memory.tmem, i).row, u32(0)
        queries, heads, group, options = call.queries, call.heads, call.group, call.options
        for tile in tiles.tiles():
            sequence = locate(tile, queries, call.keys, options)
            kv = kv_range(tile, sequence, options)
            rows = rows_of(tile, 2 * i, sequence, kv.first_key, queries, heads, options)
            scales = scales_of(call.scale, sequence.batch, tile.head, heads, group, options)
            state = SoftmaxRow(MINUS_INFINITY, ZERO, rows)
            for j in range(kv.tiles):
                state = softmax_step(FORM, memory, i, lane, state, scales, j > 0, turn)
                turn = u32(turn + 1)
            hand_over(memory, i, lane, inverse(state.row_sum), u32(turn - 1))
            at = queries * (sequence.batch * heads + tile.head)
            store_row_lse(FORM, state, scales.scores, rows.row + lane, at, sequence, options)

    @device_function
    def correction(
        memory: BlockMemory,
        tiles: CausalSchedule,
        call: AttentionCall,
        store: StorePipelineHandle,
        out: TensorMap,
    ) -> None:
        """Rescale and store O of both tiles of queries, by a warpgroup."""
        lane, turn, done = output_of(FORM, memory.tmem, 0).row, u32(0), u32(0)
        for tile in tiles.tiles():
            for _ in range(1, kv_tiles_of(tile, call).tiles):
                for i in range(TILES):
                    correct(FORM, memory, i, lane, turn)
                turn = u32(turn + 1)
            for i in range(TILES):
                factor = take(memory, i, lane, turn)
                memory.bars[O_FULL + i].wait(done & 1)
                tcgen05_fence_after_thread_sync()  # of O
                stage = store.acquire()
                store_row(output_of(FORM, memory.tmem, i), stage.o, lane, factor)
                tcgen05_fence_before_thread_sync()  # O is loaded
                arrive(memory.bars[O_FREE + i])  # for the next tile
                row = tile.query_block * FORM.block_q + i * LANES
                store.store(out, stage.o, (tile.batch, row, tile.head, 0))
                store.commit()
            turn, done = u32(turn + 1), u32(done + 1)
        store.tail(read=True)

    @device_function
    def load(
        tiles: CausalSchedule,
        call: AttentionCall,
        maps: tuple[TensorMap, TensorMap, TensorMap],
        q0_empty: TileProducer,
        q1_empty: TileProducer,
        kv_empty: TMAProducerPipeline,
    ) -> None:
        """Load Q, K and V, by one thread."""
        q, k, v = maps
        for tile in tiles.tiles():
            kv = kv_tiles_of(tile, call)
            batch, kv_head, key = tile.batch, tile.head // call.group, kv.first_key
            load_k(kv_empty, k, batch, key, kv_head)
            row = tile.query_block * FORM.block_q
            load_q(q0_empty, q, batch, row, tile.head)
            load_q(q1_empty, q, batch, row + LANES, tile.head)
            for _ in range(1, kv.tiles):
                load_v(kv_empty, v, batch, key, kv_head)
                key += FORM.block_k
                load_k(kv_empty, k, batch, key, kv_head)
            load_v(kv_empty, v, batch, key, kv_head)

    def attention_forward(  # type: ignore[no-untyped-def]
        q, k, v, out, queries, keys, heads, batch, group, scale, options
    ):
        base = shared_tile(FORM.memory).address
        q0_pipe = Q.start(tiles=base, sync=False)
        q1_pipe = Q.start(tiles=u32(base + FORM.q_nbytes), sync=False)
        kv_pipe = KV.start(tiles=u32(base + FIRST_KV), sync=False)
        o_pipe = OUT.start(tiles=u32(base + FIRST_OUT))
        factors, bars = shared_tile(FACTORS), shared_barriers(NUM_BARRIERS)
        init_barriers(bars)
        tmem = TMEM.start()  # synchronises the block, for the barriers as well
        memory = BlockMemory(tmem, bars, factors, base)
        tiles = schedule(queries, keys, heads, batch, options)
        call = AttentionCall(queries, keys, heads, group, scale, options)
        if SOFTMAX.is_member():
            SOFTMAX.set_registers()
            softmax(memory, tiles, call)
        elif CORRECTION.is_member():
            CORRECTION.set_registers()
            correction(memory, tiles, call, o_pipe, out)
        else:
            MMA.set_registers()  # the roles of this warpgroup have equal registers
            if MMA.is_member():
                q0_full, q1_full, kv_full = (
                    q0_pipe.consumer(),
                    q1_pipe.consumer(),
                    kv_pipe.consumer(),
                )
                if kv_full.enters():  # one thread
                    turn = u32(0)
                    for tile in tiles.tiles():
                        kv = kv_tiles_of(tile, call)
                        turn = multiply(FORM, memory, q0_full, q1_full, kv_full, kv.tiles, turn)
            elif LOAD.is_member():
                kv_empty = kv_pipe.producer()
                if kv_empty.enters():  # one thread
                    load(tiles, call, (q, k, v), q0_pipe.producer(), q1_pipe.producer(), kv_empty)
        tmem.close()

    return cuda.jit(launch_bounds=ROLES.launch_bounds)(attention_forward)
