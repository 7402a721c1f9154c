"""K/V rings and accumulators that commits hand over, and the scopes of every pipeline."""

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma import simulator as sim
from tests.tiers import seeds

W = tma.Warps
ROLES = tma.Roles(epilogue=W(4), mma=W(1), load=W(1))
KV = tma.KVPipeline(
    2, 16, 64, "bf16", 1, producer=ROLES.load, consumer=ROLES.mma, released_by="tcgen05"
)
ACC = tma.Tile((128, 32), "u32")
OUT = tma.OutputTilePipeline(2, ACC, mma=ROLES.mma, epilogue=ROLES.epilogue, memory="tensor")


def keys(tiles):
    return np.zeros((16 * tiles, 64), np.uint16)


def one_thread(kv, out, walked, n):
    """One thread multiplies, commits K, V and the accumulator."""
    consumer = kv.consumer()
    if consumer.enters():
        for k in range(n):
            stage = out.acquire_for_mma()
            consumer.wait_k()
            walked[2 * k] = consumer.get_k_tile().address
            consumer.release_k()
            consumer.wait_v()
            walked[2 * k + 1] = consumer.get_v_tile().address
            consumer.release_v()
            out.release_from_mma(stage, True)


def whole_warp(kv, out, walked, n):
    """The whole warp waits, and elects once, as the seed's kernel does."""
    consumer, e = kv.consumer(), tma.elect_sync()
    for k in range(n):
        stage = out.acquire_for_mma()
        consumer.wait_k()
        if e:
            walked[2 * k] = consumer.get_k_tile().address
        left = consumer.step()
        consumer.release_at(left, e=e)
        consumer.wait_v()
        if e:
            walked[2 * k + 1] = consumer.get_v_tile().address
        consumer.release_v(e)
        out.release_from_mma(stage, e)


def kernel_of(multiplies):
    @cuda.jit
    @tma.scopes
    def kernel(k_map, v_map, walked, n):
        with KV.start(sync=False) as kv, OUT.start() as out:
            if ROLES.load.is_member():
                with kv.producer() as producer:
                    for t in range(n):
                        producer.acquire_k()
                        barrier, tile = producer.get_k()
                        k_map.load(tile, (16 * t, 0), barrier)
                        producer.commit_step()
                        producer.acquire_v()
                        barrier, tile = producer.get_v()
                        v_map.load(tile, (16 * t, 0), barrier)
                        producer.commit_step()
            elif ROLES.mma.is_member():
                multiplies(kv, out, walked, n)
            else:
                for _, _ in out.consume(0, n):
                    pass

    return kernel


@seeds(1, 4)
@pytest.mark.parametrize("multiplies", [one_thread, whole_warp])
def test_the_commit_of_each_tile_releases_it(multiplies, seeds):
    for seed in seeds:
        sim.seed(seed)
        for n in (0, 5):
            walked = np.zeros(10, np.int64)
            maps = [tma.tensor_map(keys(5), t, dtype="bf16") for t in (KV.k_tile, KV.v_tile)]
            kernel_of(multiplies)[1, ROLES.threads](*maps, walked, n)
            if n:
                first, second = walked[:2]
                assert second - first == KV.full_kv_bytes
                np.testing.assert_array_equal(walked, np.tile(walked[:2], 5))


def test_a_forgotten_release_of_k_is_a_deadlock():
    def forgets(kv, out, walked, n):
        consumer = kv.consumer()
        if consumer.enters():
            for _ in range(n):
                consumer.wait_k()
                consumer.step()
                consumer.wait_v()
                consumer.release_v()

    maps = [tma.tensor_map(keys(5), t, dtype="bf16") for t in (KV.k_tile, KV.v_tile)]
    with pytest.raises(sim.Deadlock, match="empty"):
        kernel_of(forgets)[1, ROLES.threads](*maps, np.zeros(10, np.int64), 5)


TILE = tma.Tile((4, 32), "u32")
BUFFER = tma.CircularBuffer(3, 1, x=TILE)


@cuda.jit
@tma.scopes
def buffered(x, out, n):
    with BUFFER.start() as ring:
        for tile, stage in ring.tiles(0, n):
            for ahead, slot in ring.loads():
                x.load(slot.x, (4 * ahead, 0), slot.barrier)
            full = stage.wait()
            if tile == 4:
                break
            out[4 * tile + cuda.threadIdx.x // 8, 0] = full.x[cuda.threadIdx.x // 8, 0]


def test_a_circular_buffer_is_a_scope():
    x = np.arange(7 * 128, dtype=np.uint32).reshape(28, 32)
    out = np.zeros_like(x)
    buffered[1, 32](tma.tensor_map(x, TILE), out, 7)
    np.testing.assert_array_equal(out[:16, 0], x[:16, 0])
    assert not out[16:].any()


PAIR_ROLES = tma.Roles(mma=W(1), epilogue=W(4), load=W(1))
PAIR_ACC = tma.OutputTilePipeline(
    2, ACC, mma=PAIR_ROLES.mma, epilogue=PAIR_ROLES.epilogue, memory="tensor", cta_group=2
)
PAIR = tma.TilePipeline(
    2, a=TILE, producer=PAIR_ROLES.load, consumer=PAIR_ROLES.mma, released_by="tcgen05",
    cta_group=2,
)  # fmt: skip


@cuda.jit
@tma.cluster((2, 1))
def persistent_pair(a, walked, tiles, n):
    pipe, out = PAIR.start(sync=False), PAIR_ACC.start()
    rank = cuda.blockIdx.x
    if pipe.is_producer():
        for k, stage in pipe.produce(0, tiles * n):
            a.load(stage.a, (8 * k + 4 * rank, 0), stage.barrier, cta_group=2)
    elif pipe.is_consumer():
        for t, _ in out.produce(0, tiles):
            for k, stage in pipe.consume(0, n):
                walked[rank, t * n + k] = stage.index + 1
    else:
        for t, _ in out.consume(0, tiles):
            if cuda.threadIdx.x == 32:
                walked[rank, tiles * n + t] = 7
    out.close()
    pipe.close()


@seeds(1, 4)
def test_a_pair_passes_accumulators_to_both_epilogues(seeds):
    for seed in seeds:
        sim.seed(seed)
        walked = np.zeros((2, 12), np.int64)
        a = tma.tensor_map(np.zeros((72, 32), np.uint32), TILE)
        persistent_pair[(2, 1), PAIR_ROLES.threads](a, walked, 3, 3)
        assert walked[0, :9].tolist() == [1, 2, 1, 2, 1, 2, 1, 2, 1]
        assert not walked[1, :9].any() and (walked[:, 9:] == 7).all()
