"""Rings that tcgen05 commits release, and CTA pairs: counts, rules, and the compiled kernels."""

import functools
import re

import pytest
from numba import types
from numba.core.errors import TypingError
from numba.cuda.core.errors import TypingError as CudaTypingError

import numba_tma as tma
from numba_tma import ptx
from numba_tma.backend.lowering.types import TensorMapType
from numba_tma.pipeline.multicast import axis_mask
from numba_tma.tools.testing import compile_ptx, instructions, ptxas
from tests.tiers import quick

A, B = tma.Tile((16, 32), "f16"), tma.Tile((8, 32), "f16")
W = tma.Warps
ROLES = tma.Roles(mma=W(1), one=W(1), more=W(4), load=W(1), t=tma.Threads(8))
MAP, INTS = TensorMapType(2, A), types.int64[::1]
SM_90A, SM_100A = (9, 0, "a"), (10, 0, "a")


def ring(stages=3, **options):
    """Return a ring of one tile a that commits release."""
    given = {"producer": ROLES.load, "consumer": ROLES.mma, "released_by": "tcgen05", "a": A}
    return tma.TilePipeline(stages, **(given | options))


ONE, PAIR = ring(), ring(cta_group=2)


# ------------------------------------------------------------------------------ its counts


@pytest.mark.parametrize(
    ("options", "empty", "full_bytes"),
    [
        ({}, 1, A.nbytes),
        ({"consumer": ROLES.more}, 1, A.nbytes),
        ({"consumer": (ROLES.mma, ROLES.more)}, 2, A.nbytes),
        ({"consumer": (ROLES.mma, ROLES.one), "alternate": True}, 1, A.nbytes),
        ({"producer": None, "consumer": None}, 1, A.nbytes),
        ({"cluster": (2, 1), "multicast": {"a": "x"}}, 2, A.nbytes),
        ({"b": B, "cluster": (2, 2), "multicast": {"a": "x", "b": "y"}}, 3, A.nbytes + B.nbytes),
        ({"cta_group": 2}, 1, 2 * A.nbytes),
        ({"cta_group": 2, "b": B}, 1, 2 * (A.nbytes + B.nbytes)),
        ({"cta_group": 2, "cluster": (4, 1), "multicast": {"a": "x"}}, 2, 2 * A.nbytes),
        ({"cta_group": 2, "cluster": (2, 2), "multicast": {"a": "y"}}, 2, 2 * A.nbytes),
        (
            {"cta_group": 2, "cluster": (4, 2), "multicast": {"a": "x", "b": "y"}, "b": B},
            3,
            2 * (A.nbytes + B.nbytes),
        ),
    ],
)
def test_arrivals(options, empty, full_bytes):
    pipe = ring(**options)
    assert (pipe.empty_arrivals, pipe.full_arrivals) == (empty, 1)
    assert pipe.expected_bytes == full_bytes


def test_arrivals_of_threads_stay_those_of_their_warps():
    pipe = ring(released_by="threads", consumer=(ROLES.mma, ROLES.more))
    assert (pipe.empty_arrivals, pipe.expected_bytes) == (5, A.nbytes)
    assert "released_by" not in repr(pipe) and "released_by='tcgen05'" in repr(ring())


def test_a_pair_is_a_cluster():
    assert PAIR.cluster == (2, 1) and PAIR.in_cluster and not ONE.in_cluster
    assert "cluster=(2, 1), cta_group=2" in repr(PAIR)
    assert ring(cta_group=2) == PAIR != ring(cta_group=2, cluster=(4, 1)) and PAIR != ONE
    assert hash(ring(cta_group=2)) == hash(PAIR)


def test_blocks_that_share_a_tile_have_one_place_in_their_pairs():
    assert axis_mask((4, 2), "x", 1, 1, 2) == 0b1010_0000
    assert axis_mask((4, 2), "x", 2, 0, 2) == 0b0101
    assert axis_mask((4, 2), "x", 2, 0) == 0b1111
    assert axis_mask((4, 2), "y", 3, 1) == 0b1000_1000


def test_debug_mode_counts_no_bytes_of_a_pair():
    one, pair = ring(debug=True), ring(debug=True, cta_group=2)
    assert one.ledger_offset > 0 and one.full_site.tx_bytes == A.nbytes
    assert pair.ledger_offset == 0 and pair.full_site.tx_bytes == 0
    assert one.num_barriers - pair.num_barriers == one.num_stages
    assert pair.full_site.in_cluster and pair.empty_site.in_cluster


# ------------------------------------------------------------------------------ its rules


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"released_by": "commit"}, "released_by='commit'): one of 'threads', 'tcgen05'"),
        ({"cta_group": 3}, "cta_group=3): one of 1, 2"),
        ({"cta_group": True}, "cta_group=True): one of 1, 2"),
        (
            {"filled_by": "cp_async"},
            "an arrival of cp.async copies fences nothing: fill the stages",
        ),
        ({"consumer": ROLES.t}, "a whole warp elects the thread that multiplies; use Warps"),
        ({"cta_group": 2, "released_by": "threads"}, "whose commits release the stages of both"),
        ({"cta_group": 2, "cluster": 1}, "cluster=(1, 1)): the two blocks of a CTA pair lie along"),
        ({"cta_group": 2, "cluster": (3, 2)}, "give cluster=(2, 1), and @tma.cluster((2, 1)) bel"),
        ({"cta_group": 2, "filled_by": "threads"}, "only copies of the copy engine can signal the"),
        ({"cta_group": 2, "producer": None, "consumer": None}, "name producer and consumer roles"),
        (
            {"cta_group": 2, "cluster": (2, 1), "multicast": {"a": "x"}},
            "the cluster has only one CTA pair along the axis",
        ),
    ],
)
def test_host_errors(options, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        ring(**options)


def starts():
    ONE.start()


def starts_a_pair():
    PAIR.start()


@tma.cluster((4, 1))
def another_cluster():
    PAIR.start()


def stores(a):
    pipe = ONE.start()
    for _, stage in pipe.consume(0, 2):
        pipe.store(a, stage.a, (0, 0))


def draws(counter):
    ONE.start().produce_from(tma.TileQueue(counter, 4))


@tma.cluster((2, 1))
def loads_alone(a):
    stage = PAIR.start().producer().acquire()
    a.load(stage.a, (0, 0), stage.barrier)


@tma.cluster((2, 1))
def loads_for_three(a):
    stage = PAIR.start().producer().acquire()
    a.load(stage.a, (0, 0), stage.barrier, cta_group=3)


@tma.cluster((2, 1))
def loads_for_some(a, n):
    stage = PAIR.start().producer().acquire()
    a.load(stage.a, (0, 0), stage.barrier, cta_group=n)


def loads_for_a_pair(a):
    tile, barrier = tma.shared_tile(A), tma.shared_barrier()
    a.load(tile, (0, 0), barrier, cta_group=2)


@tma.cluster((1, 2))
def loads_along_y(a):
    tile, barrier = tma.shared_tile(A), tma.shared_barrier()
    a.load(tile, (0, 0), barrier, cta_group=2)


def forgets(n):
    consumer = ONE.start().consumer()
    if consumer.enters():
        for _ in range(n):
            consumer.wait()


def forgets_sometimes(n):
    consumer = ONE.start().consumer()
    if consumer.enters():
        for k in range(n):
            consumer.wait()
            if k == 3:
                continue
            consumer.release()


COUNTER = types.uint32[::1]


@pytest.mark.parametrize(
    ("kernel", "signature", "cc", "text"),
    [
        (starts, (), SM_90A, r"a release by tcgen05.commit needs sm_100a, .*for sm_90a: .*thread"),
        (starts, (), (10, 0), r"compiled for sm_100: compile it for sm_100a or sm_100f; or give"),
        (starts, (), (12, 0, "a"), r"no GPU of compute capability 12.0 has it; or give released_"),
        (starts_a_pair, (), SM_100A, r"is for clusters of \(2, 1\).*\(1, 1, 1\): put @tma.cluster"),
        (another_cluster, (), SM_100A, r"for clusters of \(2, 1\), but .* of \(4, 1, 1\): put @tm"),
        (stores, (MAP,), SM_100A, "a commit releases the stages .* store results from a shared_t"),
        (
            draws,
            (COUNTER,),
            SM_100A,
            r"of TilePipeline.* one thread consumes: use produce\(first, stop",
        ),
        (loads_alone, (MAP,), SM_100A, r"has cta_group=1, whose barrier .* give cta_group=2"),
        (loads_for_three, (MAP,), SM_100A, r"the literal 1, or 2 for a CTA pair, not 3"),
        (loads_for_some, (MAP, types.int64), SM_100A, r"the literal 1, or 2 for a CTA pair, not i"),
        (loads_for_a_pair, (MAP,), SM_100A, r"load\(cta_group=2\): .* clusters of \(1, 1, 1\)"),
        (loads_along_y, (MAP,), SM_100A, r"runs in clusters of \(1, 2, 1\): put @tma.cluster\(\("),
        (loads_for_a_pair, (MAP,), SM_90A, r"cp_async_bulk_tensor_load_cta_group\(\).* sm_90a"),
        (forgets, (types.int64,), SM_100A, r"stage that no consumer.release\(\) follows"),
        (forgets_sometimes, (types.int64,), SM_100A, r"`if` at line .* `continue` at line"),
    ],
)
def test_kernel_errors(kernel, signature, cc, text):
    with pytest.raises((TypingError, CudaTypingError), match=text):
        compile_ptx(kernel, signature, cc=cc)


# ------------------------------------------------------------------------ what it becomes


def loop(a, out, n):
    pipe = ONE.start()
    if pipe.is_producer():
        for k, stage in pipe.produce(0, n):
            a.load(stage.a, (16 * k, 0), stage.barrier)
    elif pipe.is_consumer():
        for k, stage in pipe.consume(0, n):
            out[k] = stage.a.address
    pipe.close()


def by_hand(a, out, n):
    pipe = ONE.start()
    producer, consumer = pipe.producer(), pipe.consumer()
    if pipe.is_producer():
        if producer.enters():
            for k in range(n):
                stage = producer.acquire()
                a.load(stage.a, (16 * k, 0), stage.barrier)
    elif pipe.is_consumer():
        if consumer.enters():
            for k in range(n):
                stage = consumer.wait()
                out[k] = stage.a.address
                consumer.release()


@tma.scopes
def scopes(a, out, n):
    with ONE.start() as pipe:
        if pipe.is_producer():
            with pipe.producer() as producer:
                for k in range(n):
                    with producer.acquire() as stage:
                        a.load(stage.a, (16 * k, 0), stage.barrier)
        elif pipe.is_consumer():
            with pipe.consumer() as consumer:
                for k in range(n):
                    with consumer.acquire() as stage:
                        if k == 5:
                            continue
                        out[k] = stage.a.address


@tma.cluster((2, 1))
def pair(a, out, n):
    pipe = PAIR.start()
    if pipe.is_producer():
        for k, stage in pipe.produce(0, n):
            a.load(stage.a, (16 * k, 0), stage.barrier, cta_group=2)
    elif pipe.is_consumer():
        for k, stage in pipe.consume(0, n):
            out[k] = stage.a.address
    pipe.close()


SHARED = ring(b=B, cta_group=2, cluster=(4, 2), multicast={"a": "x", "b": "y"})


@tma.cluster((4, 2))
def shared_pairs(a, b, out, n):
    pipe = SHARED.start()
    if pipe.is_producer():
        every_a, every_b = pipe.multicast_group("a"), pipe.multicast_group("b")
        for k, stage in pipe.produce(0, n):
            if every_a.rank == 0:
                a.load(stage.a, (16 * k, 0), stage.barrier, multicast=every_a.mask, cta_group=2)
            if every_b.rank == 0:
                b.load(stage.b, (8 * k, 0), stage.barrier, multicast=every_b.mask, cta_group=2)
    elif pipe.is_consumer():
        for k, stage in pipe.consume(0, n):
            out[k] = stage.a.address
    pipe.close()


FORMS = {
    "loop": (loop, (MAP, INTS, types.int64)),
    "by_hand": (by_hand, (MAP, INTS, types.int64)),
    "scopes": (scopes, (MAP, INTS, types.int64)),
    "pair": (pair, (MAP, INTS, types.int64)),
    "shared_pairs": (shared_pairs, (MAP, TensorMapType(2, B), INTS, types.int64)),
}
TARGETS = [SM_100A, (10, 0, "f"), (10, 3, "a"), (11, 0, "a")]


@functools.cache
def compiled(form, cc=SM_100A):
    return compile_ptx(*FORMS[form], cc=cc)


def found(form, pattern):
    return [i for i in instructions(compiled(form)) if re.search(pattern, i)]


@pytest.mark.parametrize(
    ("form", "cc"),
    quick(
        lambda case: case[1] == SM_100A,
        [(form, cc) for form in FORMS for cc in TARGETS],
    ),
)
def test_it_assembles_without_spills(form, cc):
    report = ptxas(compiled(form, cc))
    assert (report.spill_stores, report.spill_loads, report.stack_frame) == (0, 0, 0)
    assert report.warnings == ()


@pytest.mark.parametrize("form", ["loop", "by_hand", "scopes"])
def test_a_release_is_a_commit_and_no_arrival(form):
    commits = found(form, r"tcgen05\.commit")
    assert commits and all(".cta_group::1" in i and "multicast" not in i for i in commits)
    arrivals = found(form, r"mbarrier\.arrive")
    assert len(arrivals) == 1 and "expect_tx" in arrivals[0], "of the producer"
    assert len(found(form, r"tcgen05\.fence::after_thread_sync")) == 1
    assert len(found(form, r"elect\.sync")) == 2, "one thread loads, one multiplies"


def test_a_pair_commits_to_both_and_its_loads_count_at_the_even_block():
    commits = found("pair", r"tcgen05\.commit")
    assert commits and all(".cta_group::2" in i and "::cluster.b64" in i for i in commits)
    assert all("multicast::cluster" in i for i in commits)
    assert len(found("pair", r"mapa")) == 1
    (load,) = found("pair", r"cp\.async\.bulk\.tensor")
    assert ".cta_group::2" in load
    mapped = re.search(r"%r\d+", found("pair", "mapa")[0])[0]
    assert load.endswith(f"[{mapped}]")
    assert not found("pair", r"mbarrier\.try_wait\.parity\.shared"), "every wait acquires from both"
    assert f", {2 * A.nbytes};" in re.sub(r"\s+", " ", compiled("pair"))


def test_pairs_that_share_tiles():
    loads = found("shared_pairs", r"cp\.async\.bulk\.tensor")
    assert len(loads) >= 2 and all("multicast::cluster.cta_group::2" in i for i in loads)


def test_a_literal_1_is_the_plain_load():
    def one(a):
        tile, barrier = tma.shared_tile(A), tma.shared_barrier()
        a.load(tile, (0, 0), barrier, cta_group=1)

    assert "cta_group" not in compile_ptx(one, (MAP,))


@pytest.mark.slow
def test_multicast_tiles_of_single_blocks_are_committed_to_all_of_them():
    RING = ring(cluster=(2, 1), multicast={"a": "x"})

    @tma.cluster((2, 1))
    def kernel(a, n):
        pipe = RING.start()
        if pipe.is_producer():
            for k, stage in pipe.produce(0, n):
                a.load(stage.a, (16 * k, 0), stage.barrier, multicast=3)
        elif pipe.is_consumer():
            for _, stage in pipe.consume(0, n):
                ptx.tcgen05_commit(stage.a.address, 1)
        pipe.close()

    text = compile_ptx(kernel, (MAP, types.int64), cc=SM_100A)
    assert ptxas(text).warnings == ()
    assert "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast" in text


@pytest.mark.slow
def test_slices_of_a_tile_count_at_the_even_block_of_each_pair():
    half = tma.Tile((8, 32), "f16")

    @tma.cluster((4, 1))
    def kernel(a):
        tile, barrier = tma.shared_tile(A), tma.shared_barrier()
        tma.load_partitioned(a, tile, (0, 0), barrier, 1, multicast=5, cta_group=2)
        tma.load_partitioned(a, tile, (0, 0), barrier, 1, cta_group=1, multicast=3)

    text = compile_ptx(kernel, (TensorMapType(2, half),), cc=SM_100A)
    assert ptxas(text).warnings == () and len(re.findall(r"^\s*mapa", text, re.M)) == 1
    assert len(re.findall(r"multicast::cluster\.cta_group::2 \[", text)) == 1
    assert len(re.findall(r"multicast::cluster \[", text)) == 1


@pytest.mark.parametrize("group", quick([2], [1, 2]))
def test_a_stage_with_scale_factors_in_atoms_counts_their_bytes(group):
    a, b = tma.Tile((128, 128), "e4m3", tma.Swizzle.B128), tma.Tile((64, 128), "e4m3")
    scales = tma.scale_tile(128, 128, "mxfp8"), tma.scale_tile(64, 128, "mxfp8")
    payload = tma.BlockScaledTilePayload(a, b, *scales)
    pipe = tma.TilePipeline(
        3, payload, k_group=2, producer=ROLES.load, consumer=ROLES.mma, released_by="tcgen05",
        cta_group=group,
    )  # fmt: skip
    assert [tile.nbytes for tile in scales] == [512, 512]  # an atom each: 64 rows take a whole one
    assert pipe.tx_bytes == 2 * (128 * 128 + 64 * 128 + 512 + 512)
    assert pipe.expected_bytes == group * pipe.tx_bytes
    assert pipe.tile_offset("sfb") - pipe.tile_offset("sfa") == 3 * 2 * 512
    assert pipe.tile_offset("sfa") % 128 == 0

    @tma.cluster((group, 1))
    def kernel(sfa, sfb, out):
        stages = pipe.start()
        if stages.is_producer():
            for k, stage in stages.produce(0, 4):
                for j in range(2):
                    _, _, sfa_tile, sfb_tile = stage.get_tile(j)
                    sfa.load(sfa_tile, (0, 2 * k + j, 0, 0), stage.barrier, cta_group=group)
                    sfb.load(sfb_tile, (0, 2 * k + j, 0, 0), stage.barrier, cta_group=group)
        elif stages.is_consumer():
            for k, stage in stages.consume(0, 4):
                out[k] = stage.tile(1).sfa.address
        stages.close()

    signature = (*(TensorMapType(4, tile) for tile in scales), INTS)
    assert ptxas(compile_ptx(kernel, signature, cc=SM_100A)).warnings == ()
