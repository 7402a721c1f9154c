"""Rings of keys and values on the GPU: orders of use, and products through descriptors."""

import functools

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from tests.gpu.worker import on_gpu
from tests.kernels.kv_kernels import ORDERS, Case, stages_needed

CASE = Case(cuda.to_device, lambda array: array.copy_to_host())
NAMES = tuple(ORDERS)


def counts(stages):
    return sorted({0, 1, stages - 1, stages, 2 * stages + 1, 1000})


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("stages", range(1, 9))
@on_gpu
def test_stages_and_sub_stages(stages, parts):
    shared = (stages + parts) % 2 == 0
    order = NAMES[(stages + parts) % 3]
    if stages < stages_needed(order, shared):
        order = "plain"
    for tiles in counts(stages):
        CASE.order(order, stages, parts, shared, 1, 1 + stages % 2, tiles)


@pytest.mark.parametrize("shared", [True, False], ids=["one ring", "two rings"])
@pytest.mark.parametrize("order", NAMES)
@on_gpu
def test_an_order_of_use(order, shared):
    for stages in {stages_needed(order, shared), 3}:
        for tiles in counts(stages):
            CASE.order(order, stages, 2, shared, 2, 4, tiles)


@pytest.mark.parametrize("parts", [1, 2, 4])
@on_gpu
def test_parts_are_used_as_they_land(parts):
    for tiles in counts(2):
        CASE.landing(2, parts, tiles)


# ---------------------------------------------------------------------------- products

ROWS, BN = 128, 128  # two warpgroups of 64 rows


@functools.cache
def product_kernel(dtype, depth, stages, parts):
    """Return roles, ring and kernel: S(n) = Q K(n)' for each tile, and O = the sum of P V(n)."""
    ROLES = tma.Roles(mma=tma.Warpgroups(ROWS // 64), load=tma.Warps(1))
    KV = tma.KVPipeline(stages, BN, depth, dtype, parts, producer=ROLES.load, consumer=ROLES.mma)
    Q = tma.Tile((ROWS, KV.padded_depth), dtype, tma.Swizzle.B128)
    P = tma.Tile((ROWS, BN), dtype, tma.Swizzle.B128)
    width = KV.padded_depth
    part_steps = KV.BK0 // 16
    qp_bytes = Q.nbytes + P.nbytes

    @cuda.jit
    def kernel(q, p, k, v, s_out, o_out, tiles):
        q_shared, p_shared = tma.shared_tile(Q), tma.shared_tile(P)
        first = tma.shared_barrier()
        if cuda.threadIdx.x == 0:
            first.init(1)
        pipe = KV.start()
        loads, works = pipe.producer(), pipe.consumer()
        if ROLES.load.is_member():
            if loads.enters():
                first.arrive_expect_tx(qp_bytes)
                q.load(q_shared, (0, 0), first)
                p.load(p_shared, (0, 0), first)
                for n in range(tiles):
                    for part in range(parts):
                        loads.acquire_k(part)
                        barrier, tile = loads.get_k(part)
                        k.load(tile, (n * BN, part * loads.BK), barrier)
                    loads.commit_step()
                    loads.acquire_v()
                    barrier, whole = loads.get_v()
                    v.load(whole, (n * BN, 0), barrier)
                    loads.commit_step()
        else:
            first.wait(0)
            row = ROLES.mma.thread() // 128 * 64
            q_rows = q_shared.matrix_descriptor().advance(row=row)
            p_rows = p_shared.matrix_descriptor().advance(row=row)
            o = tma.fragment(width)
            for n in range(tiles):
                s = tma.fragment(BN)
                for part in range(parts):
                    works.wait_k(part)
                    a = q_rows.advance(k_step=part * part_steps)
                    s = tma.wgmma(s, a, works.get_k(part), k_steps=part_steps)
                s = tma.wgmma_wait(s)
                left = works.step()
                works.wait_v()
                o = tma.wgmma(o, p_rows, works.get_v())
                works.release_at(left)
                o = tma.wgmma_wait(o)
                works.release_v()
                s.store_global(s_out, n * ROWS + row, 0)
            o.store_global(o_out, row, 0)

    return ROLES, KV, (Q, P), kernel


def integers(rows, columns, dtype, seed):
    """Return small integers: their sums are exact."""
    drawn = np.random.default_rng(seed).integers(-4, 5, (rows, columns))
    return drawn.astype(tma.Tile(1, dtype).dtype.numpy)


def on_device(matrix, tile):
    """Return the map of a matrix of 16-bit floats, and the memory that it lies in."""
    memory = cuda.to_device(matrix.view(np.uint16))
    return tma.tensor_map(memory, tile, dtype=tile.dtype), memory


@pytest.mark.parametrize("tiles", [1, 2, 7])
@pytest.mark.parametrize(
    ("dtype", "depth", "stages", "parts"),
    [("bf16", 128, 2, 2), ("f16", 128, 3, 1), ("bf16", 64, 4, 1), ("f16", 96, 2, 2)],
)
@on_gpu
def test_products_through_get_k_and_get_v(dtype, depth, stages, parts, tiles):
    ROLES, KV, (Q, P), kernel = product_kernel(dtype, depth, stages, parts)
    q, p = integers(ROWS, depth, dtype, 1), integers(ROWS, BN, dtype, 2)
    k, v = (integers(tiles * BN, depth, dtype, seed) for seed in (3, 4))
    maps = [on_device(*pair) for pair in ((q, Q), (p, P), (k, KV.k_tile), (v, KV.v_tile))]
    s = cuda.to_device(np.full((tiles * ROWS, BN), np.nan, np.float32))
    o = cuda.to_device(np.full((ROWS, KV.padded_depth), np.nan, np.float32))
    kernel[1, ROLES.threads](*(m for m, _ in maps), s, o, tiles)
    q, p, k, v = (x.astype(np.float32) for x in (q, p, k, v))
    for n in range(tiles):
        scores = s.copy_to_host()[n * ROWS : (n + 1) * ROWS]
        np.testing.assert_array_equal(scores, q @ k[n * BN : (n + 1) * BN].T)
    expected = p @ v.reshape(tiles, BN, depth).sum(axis=0)
    got = o.copy_to_host()
    np.testing.assert_array_equal(got[:, :depth], expected)
    np.testing.assert_array_equal(got[:, depth:], 0)  # columns that the copy filled with zeros
