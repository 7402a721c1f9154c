"""Two query tiles over a K/V ring that commits release, in the order of Mojo's consumer pipeline.

The seed consumes and produces, for each key tile n::

    0. S0 <- Q0 @ Kn'
    1. O1 <- O1 + P1 @ V{n-1}
    2. S1 <- Q1 @ Kn'
    3. O0 <- O0 + P0 @ Vn

Here P is S in bf16, so that small integers are exact. K has two sub-stages along the depth. P lies
in the columns of its S, which the next product with K overwrites.
"""

from __future__ import annotations

from numba import cuda

import numba_tma as tma
from numba_tma import ptx

ROLES = tma.Roles(softmax=tma.Warpgroups(1), mma=tma.Warps(1), load=tma.Warps(1))
ROWS, BN, DEPTH, PARTS = 128, 32, 64, 2
KV = tma.KVPipeline(
    3,
    BN,
    DEPTH,
    "bf16",
    PARTS,
    swizzle=tma.Swizzle.B64,
    producer=ROLES.load,
    consumer=ROLES.mma,
    released_by="tcgen05",
)
Q = tma.Tile((ROWS, DEPTH), "bf16", tma.Swizzle.B64)
PART = DEPTH // PARTS  #: elements of a sub-stage along the depth
STEPS = 2 * PART // 32  #: instructions along K of a sub-stage, of 32 bytes each
TMEM = tma.TensorMemory(256, role=ROLES.mma)
#: mbarriers: Q is full; S of tile i is full; P of tile i is full; O is full.
Q_FULL, S_FULL, P_FULL, O_FULL = 0, 1, 3, 5


@cuda.jit(device=True)
def multiply_q_k(s, q, consumer):
    """S <- Q @ K', summed over the sub-stages of K as they land."""
    for part in range(PARTS):
        consumer.wait_k(part)
        left = q.matrix_descriptor("K").advance(part * STEPS)
        right = consumer.get_k(part)
        tma.tcgen05_mma(s, left, right, accumulate=part > 0, k_steps=STEPS)


@cuda.jit(device=True)
def multiply_p_v(o, p, v, full, phase, more):
    """O <- O + P @ V, when the threads have written P."""
    full.wait(phase)
    ptx.tcgen05_fence_after_thread_sync()
    tma.tcgen05_mma(o, p, v, accumulate=more)


@tma.scopes
def attend(q_map, k_map, v_map, out, n):
    """Out = (Q K') V for two query tiles, without a softmax."""
    q0, q1, bars = tma.shared_tile(Q), tma.shared_tile(Q), tma.shared_barriers(6)
    if cuda.threadIdx.x == 0:
        for number in range(6):
            bars[number].init(ROLES.softmax.members if P_FULL <= number < O_FULL else 1)
        tma.fence_mbarrier_init()
    with KV.start(sync=False) as kv, TMEM.start() as tmem:
        s0, s1 = tmem.tile(ROWS, BN, "f32", 0), tmem.tile(ROWS, BN, "f32", BN)
        o0 = tmem.tile(ROWS, DEPTH, "f32", 2 * BN)
        o1 = tmem.tile(ROWS, DEPTH, "f32", 2 * BN + DEPTH)
        p0, p1 = s0.operand(BN, "bf16"), s1.operand(BN, "bf16")
        if ROLES.load.is_member():
            with kv.producer() as producer:
                bars[Q_FULL].arrive_expect_tx(2 * Q.nbytes)
                q_map.load(q0, (0, 0), bars[Q_FULL])
                q_map.load(q1, (ROWS, 0), bars[Q_FULL])
                for t in range(n):
                    for part in range(PARTS):
                        producer.acquire_k(part)
                        barrier, tile = producer.get_k(part)
                        k_map.load(tile, (t * BN, part * PART), barrier)
                    producer.commit_step()
                    producer.acquire_v()
                    barrier, tile = producer.get_v()
                    v_map.load(tile, (t * BN, 0), barrier)
                    producer.commit_step()
        elif ROLES.mma.is_member():
            with kv.consumer() as consumer:
                bars[Q_FULL].wait(0)
                v_stage = 0
                for t in range(n):
                    multiply_q_k(s0, q0, consumer)
                    ptx.tcgen05_commit(bars[S_FULL], 1)
                    if t > 0:
                        v = consumer.get_v(v_stage)
                        multiply_p_v(o1, p1, v, bars[P_FULL + 1], 1 - t % 2, t > 1)
                        consumer.release_at(v_stage)
                    multiply_q_k(s1, q1, consumer)
                    ptx.tcgen05_commit(bars[S_FULL + 1], 1)
                    for part in range(PARTS):
                        consumer.release_k(part)
                    consumer.wait_v()
                    multiply_p_v(o0, p0, consumer.get_v(), bars[P_FULL], t % 2, t > 0)
                    v_stage = consumer.step()
                multiply_p_v(o1, p1, consumer.get_v(v_stage), bars[P_FULL + 1], 1 - n % 2, n > 1)
                consumer.release_at(v_stage)
                ptx.tcgen05_commit(bars[O_FULL], 1)
        else:
            for t in range(n):
                bars[S_FULL].wait(t % 2)
                ptx.tcgen05_fence_after_thread_sync()
                p0.store(0, s0.load(0, BN))
                ptx.tcgen05_fence_before_thread_sync()
                bars[P_FULL].arrive()
                bars[S_FULL + 1].wait(t % 2)
                ptx.tcgen05_fence_after_thread_sync()
                p1.store(0, s1.load(0, BN))
                ptx.tcgen05_fence_before_thread_sync()
                bars[P_FULL + 1].arrive()
            bars[O_FULL].wait(0)
            ptx.tcgen05_fence_after_thread_sync()
            row = o0.row
            for column in range(0, DEPTH, 2):
                out[row, column], out[row, column + 1] = o0.load(column, 2)
                out[ROWS + row, column], out[ROWS + row, column + 1] = o1.load(column, 2)
