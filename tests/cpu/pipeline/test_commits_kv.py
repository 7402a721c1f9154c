"""K/V rings and accumulators that commits hand over: counts, rules, and the compiled kernels."""

import re

import pytest
from numba import types
from numba.core.errors import TypingError
from numba.cuda.core.errors import TypingError as CudaTypingError

import numba_tma as tma
from numba_tma.backend.lowering.types import TensorMapType
from numba_tma.host.matrix_layout import MatrixLayout
from numba_tma.tools.testing import compile_ptx, instructions, ptxas
from tests.kernels import commit_matmul
from tests.tiers import every

W = tma.Warps
ROLES = tma.Roles(epilogue=W(4), mma=W(1), two=W(2), load=W(1))
SM_90A, SM_100A = (9, 0, "a"), (10, 0, "a")
INT = types.int64


def ring(stages=2, parts=2, **options):
    given = {"producer": ROLES.load, "consumer": ROLES.mma, "released_by": "tcgen05"}
    return tma.KVPipeline(stages, 64, 128, "bf16", parts, **(given | options))


KV, WAITS = ring(), ring(released_by="threads")
ACC = tma.Tile((128, 32), "f32")


def output(**options):
    return tma.OutputTilePipeline(2, ACC, mma=ROLES.mma, epilogue=ROLES.epilogue, **options)


OUT, SHARED, PAIR = output(memory="tensor"), output(), output(memory="tensor", cta_group=2)


def test_arrivals():
    assert ring().empty_arrivals == 1 and WAITS.empty_arrivals == 1
    both = tma.Roles(a=W(1), b=W(1), load=W(1))
    assert ring(producer=both.load, consumer=(both.a, both.b)).empty_arrivals == 2
    assert KV != WAITS and repr(KV).endswith("holds='kv', released_by='tcgen05')")
    assert "released_by" not in repr(WAITS)
    assert (PAIR.ring.full_arrivals, PAIR.ring.empty_arrivals) == (1, 8)
    assert PAIR.ring.full_site.in_cluster and not OUT.ring.full_site.in_cluster


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"released_by": "mma"}, "KVPipeline(released_by='mma'): 'threads' or 'tcgen05'"),
        ({"consumer": ROLES.two}, "one thread of a warp starts the products and commits: use War"),
    ],
)
def test_host_errors(options, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        ring(**options)


def starts():
    KV.start()


def describes(out):
    out[0] = KV.start().consumer().get_k(0).value


def commits_shared():
    pipe = SHARED.start()
    pipe.release_from_mma(pipe.acquire_for_mma(), True)


def accumulates_in_shared():
    SHARED.start().producer().acquire().accumulator.address  # noqa: B018


@pytest.mark.parametrize(
    ("kernel", "signature", "cc", "text"),
    [
        (starts, (), SM_90A, r"KVPipeline.*: a release by tcgen05.commit needs sm_100a.*threads'"),
        (commits_shared, (), SM_90A, r"commit\(e=...\): every warp fences .* leave e out"),
        (accumulates_in_shared, (), SM_90A, r"stage.accumulator: .* are in shared memory"),
    ],
)
def test_kernel_errors(kernel, signature, cc, text):
    with pytest.raises((TypingError, CudaTypingError), match=text):
        compile_ptx(kernel, signature, cc=cc)


def test_descriptors_are_those_of_tcgen05():
    layout = MatrixLayout(KV.k_tile, "K", "tcgen05")
    text = compile_ptx(describes, (types.uint64[::1],), cc=SM_100A)
    assert f", {layout.high << 32 | layout.low};" in text


def multiplies_alone(kv, out, walked, n):
    consumer = kv.consumer()
    if consumer.enters():
        for _ in range(n):
            stage = out.acquire_for_mma()
            for part in range(2):
                consumer.wait_k(part)
                walked[part] = consumer.get_k_tile(part).address
                consumer.release_k(part)
            consumer.wait_v()
            walked[2] = stage.accumulator.address
            consumer.release_v()
            out.release_from_mma(stage, True)


def multiplies_by_warp(kv, out, walked, n):
    consumer, e = kv.consumer(), tma.elect_sync()
    for _ in range(n):
        stage = out.acquire_for_mma()
        consumer.wait_k(0)
        consumer.wait_k(1)
        left = consumer.step()
        if e:
            walked[0] = stage.accumulator.address
        consumer.release_at(left, e=e)
        consumer.wait_v()
        consumer.release_v(e)
        out.release_from_mma(stage, e)


def kernel_of(multiplies):
    from numba import cuda

    function = cuda.jit(device=True, forceinline=True)(multiplies)

    @tma.scopes
    def kernel(k_map, v_map, walked, n):
        with KV.start(sync=False) as kv, OUT.start() as out:
            if ROLES.load.is_member():
                with kv.producer() as producer:
                    for t in range(n):
                        for part in range(2):
                            producer.acquire_k(part)
                            barrier, tile = producer.get_k(part)
                            k_map.load(tile, (64 * t, 64 * part), barrier)
                        producer.commit_step()
                        producer.acquire_v()
                        barrier, tile = producer.get_v()
                        v_map.load(tile, (64 * t, 0), barrier)
                        producer.commit_step()
            elif ROLES.mma.is_member():
                function(kv, out, walked, n)
            elif ROLES.epilogue.is_member():
                for tile, stage in out.consume(0, n):
                    walked[tile] = INT(stage.load(0, 1)[0])

    return kernel


SIGNATURE = (TensorMapType(2, KV.k_tile), TensorMapType(2, KV.v_tile), types.int64[::1], INT)


@pytest.mark.parametrize("multiplies", every(2, [multiplies_by_warp, multiplies_alone]))
@pytest.mark.parametrize("cc", every(3, [(SM_100A,), ((10, 3, "a"),), ((11, 0, "a"),)]))
def test_a_ring_of_keys_and_values(multiplies, cc):
    text = compile_ptx(kernel_of(multiplies), SIGNATURE, cc=cc)
    report = ptxas(text)
    assert (report.spill_stores, report.spill_loads, report.stack_frame) == (0, 0, 0)
    assert report.warnings == ()
    commits = [i for i in instructions(text) if "tcgen05.commit" in i]
    assert len(commits) >= 4 and all(".cta_group::1" in i for i in commits)
    arrivals = [i for i in instructions(text) if "mbarrier.arrive" in i and "expect_tx" not in i]
    assert len(arrivals) in (1, 2), "of the epilogue alone"
    fences = [i for i in instructions(text) if "tcgen05.fence::after_thread_sync" in i]
    assert len(fences) == 6, "of waits for K and V, for accumulators, and of the start"


def test_releases_of_a_pairs_accumulators_are_at_the_clusters_scope():
    @tma.cluster((2, 1))
    def kernel(out, n):
        pipe = PAIR.start()
        if ROLES.mma.is_member():
            for tile, stage in pipe.produce(0, n):
                out[tile] = stage.accumulator.address
        elif ROLES.epilogue.is_member():
            for tile, stage in pipe.consume(0, n):
                out[tile] = INT(stage.load(0, 1)[0])
        pipe.close()

    text = compile_ptx(kernel, (types.int64[::1], INT), cc=SM_100A)
    assert ptxas(text).warnings == ()
    assert "mbarrier.arrive.release.cluster.shared::cluster" in text
    waits = re.findall(r"mbarrier\.try_wait\S*", text)
    assert waits and all(".acquire.cluster" in wait for wait in waits)


BUFFER = tma.CircularBuffer(2, 1, x=tma.Tile((4, 32), "u32"))


def test_every_pipeline_is_a_scope():
    @tma.scopes
    def kernel(x, n):
        with BUFFER.start() as ring:
            for _, stage in ring.tiles(0, n):
                for ahead, slot in ring.loads():
                    x.load(slot.x, (4 * ahead, 0), slot.barrier)
                stage.wait()

    signature = (TensorMapType(2, tma.Tile((4, 32), "u32")), INT)
    assert "mbarrier.inval" in compile_ptx(kernel, signature, cc=SM_90A)


@pytest.mark.parametrize("group", every(2, [2, 1]))
@pytest.mark.parametrize("cc", every(3, [(SM_100A,), ((10, 3, "a"),), ((11, 0, "a"),)]))
def test_a_matmul_of_products(group, cc):
    arrays = [TensorMapType(2, tile) for tile in commit_matmul.tiles(group)]
    signature = (*arrays, types.float32[:, ::1], INT, INT)
    text = compile_ptx(commit_matmul.matmul(group), signature, cc=cc)
    report = ptxas(text)
    assert (report.spill_stores, report.spill_loads, report.stack_frame) == (0, 0, 0)
    assert report.warnings == () and "tcgen05.mma" in text
    assert f"cta_group::{3 - group}" not in text
