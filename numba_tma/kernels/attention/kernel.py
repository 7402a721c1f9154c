"""The attention kernel: FlashAttention's forward pass on Hopper, one persistent kernel.

S = Q K' times the scale, P = exp(S - row maximum), O = P V / row sum. Nothing of the size
queries x keys is stored: O, the row maxima and the row sums stay in registers and are rescaled when
a K/V tile raises a maximum (online softmax, `softmax.py`)::

    m' = max(m, S)   P = exp(S - m')   l' = l exp(m - m') + sum(P)   O' = O exp(m - m') + P V

A block has one producer warpgroup, of which one thread starts all copies, and one to three consumer
warpgroups. A tile is `block_q` queries of one head; each consumer warpgroup has 64 of its rows.
For a tile that sees K/V tiles 0 to n - 1, each side does this, from top to bottom. Only barriers
order the two columns; actions in the same line need not coincide::

    producer thread                each consumer warpgroup
    load_k(0)                      wait for Q
    load_q                         first:    wait for K0, start S = Q K0', wait for S, release K0
    for j = 1 .. n-1:                        softmax of S, wait for K1
        load_k(j)                  for j = 1 .. n-1, step:
        load_v(j-1)                          start S = Q Kj'
    load_v(n-1)                              O *= rescale, wait for V(j-1)
                                             start O += P V(j-1)
                                             wait for S alone, release Kj
                                             softmax of S         <- while P V(j-1) is computed
                                             wait for K(j+1)
                                             wait for O, release V(j-1)
                                   release Q (or after the store: see below)
                                   finish:   O *= rescale, wait for V(n-1), start O += P V(n-1)
                                             wait for O, release V(n-1), O /= l
                                   store O, and lse where it is asked for

What overlaps: threads compute the exponentials of K/V tile j while the tensor cores compute P V of
K/V tile j - 1. The products of a consumer warpgroup also run beside the exponentials of another,
from the first K/V tiles on if they take turns (`turns.py`).

Who waits for whom. A *full* barrier completes when the producer thread has arrived once, which
announces the bytes, and all bytes have come. An *empty* barrier completes when each consumer warp
has arrived once, four for each warpgroup::

         full: consumers wait               empty: the producer waits   consumer warps arrive
    K    K0 in first_scores, K1 at the end  in load_k                   in release_k, when S is
         of first, K(j+1) in step j after                               complete, before the softmax
         its softmax, before it waits for O                             (first_scores, step)
    V    in step and finish, right before   in load_v                   in release, when P V is
         they start P V                                                 complete (step, finish)
    Q    in tile_computation, before        in load_q                   in release, between the last
         first                                                          step and finish; where O is
                                                                        staged in Q's memory, when
                                                                        TMA has read O

K and V have one ring each, a `KVPipeline`. K(j) is released in the middle of step j, V(j) only at
the end of step j + 1, or in finish. In a ring whose stages hold both, K(j) would occupy its memory
as long as V(j). Consumers advance the ring of K by `release_k` and that of V by `release`; the
producer advances either by `commit_step`. The methods that wait for a stage or get its tile do not
advance. So the `wait_k` at the end of step j, which `release_k` precedes, waits for K(j+1), and the
`get_k` of step j + 1 reads the same stage.

Registers limit the number of consumer warpgroups. A thread holds head_dim / 2 registers of O,
block_k / 2 of S and block_k / 4 of P; for e4m3 twice as many of O, and block_k / 8 of P. Of an SM's
65,536 registers, a consumer thread gets 240 with two warpgroups, 160 with three, and would get 112
with four, where head dim 64 and block_k 128 need 128 for these fragments alone.

Variants are functions that take the same place, chosen in `tile_load` and `tile_computation`.
16-bit inputs have `first_16bit`, `step_16bit` and `finish_16bit`. The others:

- Masks: `apply_mask` is causal, a window, or the end of the keys alone. A causal mask or a window
  also shortens the range of K/V tiles of a tile, and causal tiles are scheduled longest first
  (`tiles.py`).
- e4m3: `first_fp8`, `step_fp8`, `finish_fp8`, `load_v_fp8`. The tensor cores sum P V of one tile,
  and threads add it to O in float32, since a sum of 8-bit products keeps about 14 bits. P is
  multiplied with 2**8 to use more of e4m3's range (`FP8_LIFT`). wgmma reads 8-bit operands only
  K-major, so a kernel before this one transposes V to V' (`transpose_v`).
- Packed sequences: `load_v_packed`, `store_packed`, and the schedule `PackedScheduler`: the second
  warp of the producer warpgroup draws the block's tiles from a counter (`packed_tiles.py`).
- Split-K/V: `store_partial` and `lse_split` instead of the stores of O and lse. A tile is scheduled
  once for each split of its K/V tiles, and a second kernel combines the splits (`split_kv`).

e4m3 can be combined with split-K/V. Packed sequences cannot be combined with either:
`attention_varlen` takes 16-bit inputs, and `check_plan` refuses splits. `tiles.py` says which tiles
there are and which keys they see. `loads.py` has the producer's side, `softmax.py` masks,
exponentials and scales, `turns.py` the turns of warpgroups, and `store.py` the stores of O and lse.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from numba import cuda

from numba_tma.backend.interface import device_function
from numba_tma.device.arithmetic import larger
from numba_tma.device.fragment_moves import packed_e4m3
from numba_tma.device.mma import fragment, wgmma, wgmma_wait
from numba_tma.device.mma import rows as per_row
from numba_tma.device.shared import shared_tile
from numba_tma.host.annotations import DeviceFunction, Kernel, Registers
from numba_tma.host.warpgroup import ALL_LANES, ROWS, THREADS
from numba_tma.kernels.attention.loads import tile_load
from numba_tma.kernels.attention.packed_tiles import draws
from numba_tma.kernels.attention.plan import AttentionForm, AttentionPlan, AttentionProblem
from numba_tma.kernels.attention.softmax import (
    apply_mask,
    exponential,
    fp8_shift_of,
    inverse,
    rescale_of,
    scale_function,
    shift_of,
)
from numba_tma.kernels.attention.store import (
    lse_dense,
    lse_split,
    no_lse,
    store_dense,
    store_packed,
    store_partial,
)
from numba_tma.kernels.attention.tiles import next_kv_tile, schedule_function, tile_functions
from numba_tma.kernels.attention.turns import (
    WarpgroupTurn,
    begin_turns,
    end_turns,
    pass_turn,
    take_turn,
)
from numba_tma.pipeline import KVPipeline, Roles, StorePipeline, TilePipeline, Warpgroups
from numba_tma.ptx import bar_warp_sync


class RowState(NamedTuple):
    """Online softmax of a warpgroup's 64 rows, between two K/V tiles. All of it in registers."""

    p: Any  #: fragment 64 x block_k: P of the latest tile, the A operand of the next P V
    o: Any  #: fragment 64 x head_dim: O without the latest tile; of e4m3, the last P V alone
    o_sum: Any  #: of e4m3: O without the last two tiles; else 0
    row_max: Any  #: maximum of S
    shift: Any  #: what is added to a scaled S before exp2
    row_sum: Any  #: sum of the exponentials, in float32, over the columns that this thread has
    rescale: Any  #: exp(previous maximum - row_max), by which O is still to be multiplied
    needs_rescale: Any  #: whether O must be multiplied by `rescale`: see `vote_on_rescale`
    rows: Any  #: `WarpgroupRows`: the 64 rows, and the columns of the latest K/V tile they see


# ------------------------------------------------------------------- consumers: 16-bit inputs


@device_function
def first_16bit(form: Any, q: Any, k: Any, rows: Any, scales: Any, more: Any) -> Any:
    """Compute S of the first K tile and its softmax. `more` is whether another K tile follows."""
    scores = first_scores(form, q, k, rows, scales)
    row_max = scores.row_max()
    shift = row_max.map(shift_of, scales.scores)
    weights = scores.map(exponential, scales.scores, shift)
    row_sum = weights.row_sum(quad=False)
    p, o = weights.to(form.dtype), fragment(form.head_dim)
    if more:
        k.wait_k()
    # O is 0, so the first step has nothing to rescale; without votes the flag is always True.
    return RowState(p, o, 0, row_max, shift, row_sum, per_row(1), not form.votes, rows)


@device_function
def step_16bit(
    form: Any, q: Any, k: Any, v: Any, state: Any, scales: Any, more: Any, turn: WarpgroupTurn
) -> Any:
    """Start S of this K tile and P V of the tile before; compute the softmax while P V runs."""
    o = state.o
    take_turn(form, turn, v)
    scores = wgmma(fragment(form.block_k), q, k.get_k(), scale_d=False)
    if state.needs_rescale:
        o *= state.rescale
    if not form.turns:
        v.wait()
    o = wgmma(o, state.p, v.get())
    pass_turn(form, turn)
    scores = wgmma_wait(scores, 1)  # S is complete; the one group still running is P V
    k.release_k()
    rows = next_kv_tile(form, state.rows)
    scores = apply_mask(form, scores, rows, scales)
    row_max = scores.row_max().map(larger, state.row_max)
    needs_rescale = vote_on_rescale(form, state, row_max)
    shift = row_max.map(shift_of, scales.scores)
    weights = scores.map(exponential, scales.scores, shift)
    rescale = state.row_max.map(rescale_of, row_max, scales.scores)
    row_sum = state.row_sum * rescale + weights.row_sum(quad=False)
    if more:
        k.wait_k()
    # P V is complete. It reads P from registers, so state.p has to live until here.
    o, _ = wgmma_wait((o, state.p))
    v.release()
    p = weights.to(form.dtype)
    return RowState(p, o, 0, row_max, shift, row_sum, rescale, needs_rescale, rows)


@device_function
def finish_16bit(form: Any, v: Any, state: Any, scales: Any) -> Any:
    """Add P V of the last tile; return O and the sums of the rows' exponentials."""
    o = state.o * state.rescale
    v.wait()
    o = wgmma(o, state.p, v.get())
    o, _ = wgmma_wait((o, state.p))
    v.release()
    row_sum = state.row_sum.quad_sum()
    o *= row_sum.map(inverse)
    return o, row_sum


# --------------------------------------------------------------------- consumers: e4m3 inputs


@device_function
def first_fp8(form: Any, q: Any, k: Any, rows: Any, scales: Any, more: Any) -> Any:
    """Do what `first_16bit` does, with P in e4m3."""
    scores = first_scores(form, q, k, rows, scales)
    row_max = scores.row_max()
    shift = row_max.map(fp8_shift_of, scales.scores)
    weights = scores.map(exponential, scales.scores, shift)
    row_sum = weights.row_sum(quad=False)
    p, o, o_sum = packed_e4m3(weights), fragment(form.head_dim), fragment(form.head_dim)
    if more:
        k.wait_k()
    # As in `first_16bit`.
    return RowState(p, o, o_sum, row_max, shift, row_sum, per_row(1), not form.votes, rows)


@device_function
def step_fp8(
    form: Any, q: Any, k: Any, v: Any, state: Any, scales: Any, more: Any, turn: WarpgroupTurn
) -> Any:
    """Do what `step_16bit` does. P V of a tile is a fragment of its own, added to O in a step."""
    take_turn(form, turn, v)
    scores = wgmma(fragment(form.block_k), q, k.get_k(), scale_d=False)
    o_sum = state.o_sum + state.o  # while S is computed
    if state.needs_rescale:
        o_sum *= state.rescale
    if not form.turns:
        v.wait()
    o = wgmma(state.o, state.p, v.get(), scale_d=False)
    pass_turn(form, turn)
    scores = wgmma_wait(scores, 1)  # S is complete; the one group still running is P V
    k.release_k()
    rows = next_kv_tile(form, state.rows)
    scores = apply_mask(form, scores, rows, scales)
    row_max = scores.row_max().map(larger, state.row_max)
    needs_rescale = vote_on_rescale(form, state, row_max)
    shift = row_max.map(fp8_shift_of, scales.scores)
    weights = scores.map(exponential, scales.scores, shift)
    rescale = state.row_max.map(rescale_of, row_max, scales.scores)
    row_sum = state.row_sum * rescale + weights.row_sum(quad=False)
    if more:
        k.wait_k()
    # P V is complete. It reads P from registers, so state.p has to live until here.
    o, _ = wgmma_wait((o, state.p))
    v.release()
    p = packed_e4m3(weights)
    return RowState(p, o, o_sum, row_max, shift, row_sum, rescale, needs_rescale, rows)


@device_function
def finish_fp8(form: Any, v: Any, state: Any, scales: Any) -> Any:
    """Do what `finish_16bit` does, and multiply O with the scale of V's head."""
    o_sum = (state.o_sum + state.o) * state.rescale
    v.wait()
    o = wgmma(state.o, state.p, v.get(), scale_d=False)
    # o_sum passes through the wait so that LLVM finishes its multiplication before it, instead of
    # fusing it into `o += o_sum` as an FMA afterwards.
    o, _, o_sum = wgmma_wait((o, state.p, o_sum))
    v.release()
    o += o_sum
    row_sum = state.row_sum.quad_sum()
    o *= row_sum.map(inverse)
    o *= scales.values
    return o, row_sum


# ------------------------------------------------------------------------- what both share


@device_function
def first_scores(form: Any, q: Any, k: Any, rows: Any, scales: Any) -> Any:
    """Return S of the first K tile, masked. The K tile is released when S is complete."""
    k.wait_k()
    scores = wgmma(fragment(form.block_k), q, k.get_k(), scale_d=False)
    scores = wgmma_wait(scores)
    k.release_k()
    return apply_mask(form, scores, rows, scales)


@device_function
def vote_on_rescale(form: Any, state: Any, row_max: Registers) -> Any:
    """Return whether the next step must rescale O.

    With ``form.votes`` it must if any row of this warp has a new maximum. The warp votes before its
    exponentials, so the answer is there when the next step begins. Without votes every step
    rescales.
    """
    if form.votes:
        old = state.row_max
        return cuda.any_sync(ALL_LANES, old[0] != row_max[0] or old[1] != row_max[1])
    return True


# ---------------------------------------------------------------------------------- kernel


@device_function
def warpgroup_number() -> Any:
    """Return the number of this thread's warpgroup; the consumers are the block's first roles.

    It is the same register for the whole warp, so that descriptors are computed once a warp.
    """
    return cuda.shfl_sync(ALL_LANES, cuda.threadIdx.x // THREADS, 0)


@functools.cache
def tile_computation(form: AttentionForm) -> DeviceFunction:
    """Return what a consumer warpgroup does with a tile: it computes and stores its rows."""
    problem, O_IN_Q = form.problem, form.stages_o_in_q
    SPLITS, PACKED = problem.splits, problem.packed
    first, step, finish = first_16bit, step_16bit, finish_16bit
    if problem.is_fp8:
        first, step, finish = first_fp8, step_fp8, finish_fp8
    store_output = store_packed if problem.packed else store_dense
    store_lse = (lse_split if SPLITS else lse_dense) if problem.lse else no_lse
    scales_of = scale_function(problem)
    locate, kv_range, rows_of = tile_functions(form)

    @device_function
    def compute(  # type: ignore[no-untyped-def]
        tile, warpgroup, turn, consumers, o_pipe, out, queries, keys, heads, group, scale, options
    ):  # fmt: skip
        q_consumer, k_consumer, v_consumer = consumers
        sequence = locate(tile, queries, keys, options)
        kv = kv_range(tile, sequence, options)
        rows = rows_of(tile, warpgroup, sequence, kv.first_key, queries, heads, options)
        scales = scales_of(scale, sequence.batch, tile.head, heads, group, options)
        my_rows = q_consumer.wait().tile(warpgroup).q
        my_q = my_rows.view(form.q_rows).matrix_descriptor()
        state = first(form, my_q, k_consumer, rows, scales, kv.tiles > 1)
        for j in range(1, kv.tiles):
            more = j + 1 < kv.tiles
            state = step(form, my_q, k_consumer, v_consumer, state, scales, more, turn)
        if not O_IN_Q:
            q_consumer.release()  # the last S is complete
        o, row_sum = finish(form, v_consumer, state, scales)
        if SPLITS:
            store_partial(form, o, sequence, rows, options)
        else:
            store_output(form, o_pipe, out, o, tile.head, sequence, rows.row)
        if O_IN_Q:
            o_pipe.tail(read=True)  # TMA has read O, the next Q may come
            q_consumer.release()
        store_lse(form, state, row_sum, queries, heads, tile.head, sequence, options)
        if PACKED:
            bar_warp_sync()  # ptxas then sees that warps do not diverge in the loop over tiles

    return compute


@functools.cache
def attention_kernel(problem: AttentionProblem, plan: AttentionPlan) -> Kernel:
    """Return the kernel of a problem and a plan. Its blocks have ``plan.threads`` threads.

    Its arguments: the tensor maps of Q, K, V and O; the queries and keys of a sequence; the heads
    of Q; sequences (times splits); the heads of Q that share one of K and V; the scale times
    log2(e); and `OptionalArguments`. With packed heads of Q, both numbers of heads count packs.
    """
    FORM = AttentionForm(problem, plan)
    SPLITS, O_IN_Q, PACKED = problem.splits, FORM.stages_o_in_q, problem.packed
    # Each consumer warpgroup is a role of its own, and its rows of Q and O are tiles of their own.
    consumers = {f"math{i}": Warpgroups(1) for i in range(plan.warpgroups)}
    ROLES = Roles(**consumers, load=Warpgroups(1, registers=plan.load_registers))
    CONSUMERS = tuple(getattr(ROLES, name) for name in consumers)
    PRODUCER, CONSUMER = ROLES.load, CONSUMERS[0]
    sides: dict[str, Any] = {"producer": PRODUCER, "consumer": CONSUMERS}
    # k_group is the number of tiles in a stage: 64 rows of Q for each consumer warpgroup.
    rows = problem.tile(ROWS, plan.packed_heads)
    Q = TilePipeline(plan.q_stages, q=rows, k_group=plan.warpgroups, **sides)
    k_ring = (plan.stages, (1, plan.block_k, 1), problem.head_dim, problem.dtype)
    K = KVPipeline(*k_ring, holds="k", swizzle=problem.swizzle, **sides)
    OUT = StorePipeline(1, o=problem.o_tile(ROWS, plan.packed_heads), role=CONSUMERS)
    # `holds` names the operand's layout: "k" is K-major, "v" is MN-major. K uses the methods named
    # _k. V uses those without a suffix (acquire, get_tile, wait, get, release), which serve both
    # layouts: V' (head dim, keys) is K-major, since P V sums over keys, which lie innermost.
    if problem.is_fp8:
        v_ring = (plan.stages, (1, problem.head_dim, 1), plan.block_k, problem.dtype)
        swizzle = problem.v_tile(plan.block_k).swizzle
        V = KVPipeline(*v_ring, holds="k", swizzle=swizzle, **sides)
    else:
        V = KVPipeline(*k_ring, holds="v", swizzle=problem.swizzle, **sides)
    schedule, load_tile = schedule_function(FORM), tile_load(FORM)
    compute_tile = tile_computation(FORM)

    def attention_forward(  # type: ignore[no-untyped-def]
        q, k, v, out, queries, keys, heads, batch, group, scale, options
    ):
        q_tile = shared_tile(FORM.q_tile)
        o_pipe: Any = None
        # With splits O_IN_Q is False: O then goes from registers to global memory.
        if O_IN_Q:
            o_pipe = OUT.start(tiles=q_tile)
        elif not SPLITS:
            o_pipe = OUT.start()
        q_pipe = Q.start(tiles=q_tile, sync=False)
        k_pipe = K.start(sync=False)
        tiles = schedule(queries, keys, heads, batch, options)
        v_pipe = V.start()  # synchronises the block, for Q, K and the schedule as well
        if q_pipe.is_producer():
            PRODUCER.set_registers()
            maps = q, k, v
            producers = q_pipe.producer(), k_pipe.producer(), v_pipe.producer()
            if PACKED and draws(PRODUCER.thread()):
                tiles.draw(options.counter)
            elif producers[0].enters():
                for tile in tiles.tiles():
                    load_tile(tiles, tile, maps, producers, queries, keys, group, options)
        else:
            CONSUMER.set_registers()  # all consumer warpgroups have equal registers
            warpgroup = warpgroup_number()
            turn = begin_turns(FORM, warpgroup)
            consumers = q_pipe.consumer(), k_pipe.consumer(), v_pipe.consumer()
            for tile in tiles.tiles():
                compute_tile(
                    *(tile, warpgroup, turn, consumers, o_pipe, out),
                    *(queries, keys, heads, group, scale, options),
                )
            end_turns(FORM, warpgroup)
            if not SPLITS:
                o_pipe.tail(read=True)
        q_pipe.close()  # K's and V's stages are all full and released

    return cuda.jit(launch_bounds=ROLES.launch_bounds)(attention_forward)
