"""Rings of traces, made by hand: what `decode` finds in them, and which blocks have rings."""

import numpy as np
import pytest

import numba_tma as tma
from numba_tma.host import trace_buffer
from numba_tma.host.races import label_number
from numba_tma.host.trace_buffer import Rings, Sampling, sampled
from numba_tma.host.trace_records import (
    LABELS,
    RECORD,
    RECORD_NBYTES,
    RECORDS,
    SIDE_CAPACITY,
    SITES,
    counters_of,
    label_slot,
    number_of,
    records_of,
)
from numba_tma.host.trace_records import RecordKind as Kind
from numba_tma.host.trace_records import RecordSite as Site
from numba_tma.pipeline.circular import label_buffer
from numba_tma.pipeline.kv import label_ring
from numba_tma.pipeline.launch_control import label_answers
from numba_tma.pipeline.ordered import label_turns
from numba_tma.pipeline.start import label_stages
from numba_tma.pipeline.store import label_store_stages
from numba_tma.tools.trace.decode import SharedPlace as Place
from numba_tma.tools.trace.decode import decode, place_of
from tests.trace_rings import record, ring

ONE = Sampling(0, 1, 1, 1, 1)
BEGIN, END, MARK = (
    Site(Kind.BEGIN),
    Site(Kind.END),
    Site(Kind.MARK, "work"),
)
CLOCK, TIME = 5_000_000_000_000, 1_790_000_000_000_000_000


def at(nanoseconds, site=MARK, place=0, value=0, offset=0, steps=True):
    """Return a record of a multiprocessor whose clock is ahead by `offset` cycles."""
    time = TIME + nanoseconds
    return record(CLOCK + offset + 2 * nanoseconds, time // 32 * 32 if steps else time,
                  site, place, value)  # fmt: skip


def alone(*records, **options):
    made = ring([at(0, BEGIN), *records], begun=(CLOCK, TIME), **options)
    return decode(made[None], ONE, (1,))


# ------------------------------------------------------------------------------- records


def test_a_site_has_one_number():
    site = Site(Kind.WAIT, "test", "role", "a.py:1")
    assert number_of(site) == number_of(Site(*site)) > 0 and SITES[number_of(site)] == site
    assert number_of(site._replace(line="a.py:2")) != number_of(site)


def test_more_sites_than_there_are_numbers(monkeypatch):
    monkeypatch.setattr("numba_tma.host.trace_records.SITES", [None] * (1 << 16))
    assert number_of(Site(Kind.WAIT, "one more")) == 0
    assert SITES[0].kind is Kind.MARK


def test_ranges_begin_before_their_record():
    tile = Site(Kind.TILE)
    found = alone(
        at(1000, value=300), at(1500, tile, value=6), at(2000, tile, value=7), at(3000, END)
    )
    spans = {span.kind: span for span in found.spans}
    assert spans["mark"].end == pytest.approx(1000, abs=32)
    assert spans["mark"].duration == pytest.approx(300, rel=0.02)  # 600 cycles at 2 GHz
    tiles = [(s.name, round(s.duration, -2)) for s in found.spans if s.kind == "tile"]
    assert tiles == [("6", 500), ("7", 1000)]  # until the next one, or the warp's end
    assert spans["run"].start == 0 and spans["run"].end == pytest.approx(3000, abs=32)


def test_names_are_no_formats():
    found = alone(at(10, Site(Kind.MARK, "{} {value} {nothing} {0}")), at(20, END))
    assert [s.name for s in found.spans if s.kind == "mark"] == ["{} {value} {nothing} {0}"]
    found = alone(at(10, Site(Kind.MEET), place=3 << 3), at(20, END))
    assert [s.name for s in found.spans if s.kind == "meet"] == ["barrier 3"]


@pytest.mark.parametrize("number", [5, 63, 64, 65, 128, 200])
def test_a_ring_has_the_newest_records_in_their_order(number):
    sites = [Site(Kind.MARK, f"mark {i}") for i in range(number)]
    made = ring([at(10 * i, site) for i, site in enumerate(sites)], begun=(CLOCK, TIME))
    found, lost = records_of(made)
    kept = min(number, 64)
    assert lost == number - kept
    assert [SITES[i].what for i in found["site"]] == [s.what for s in sites[-kept:]]
    result = decode(made[None], ONE, (1,))
    assert result.dropped == lost and [s.name for s in result.spans] == [
        s.what for s in sites[-kept:]
    ]


def test_a_warp_whose_begin_is_overwritten_runs_from_its_oldest_record():
    records = [at(100 * i) for i in range(80)]
    found = decode(
        ring([at(0, BEGIN), *records, at(8000, END)], begun=(CLOCK, TIME))[None], ONE, (1,)
    )
    (whole,) = (s for s in found.spans if s.kind == "run")
    assert whole.start == 0 and whole.end == pytest.approx(6300, abs=40) and found.dropped == 18


def test_a_warp_that_has_not_ended_has_its_begin():
    found = alone(at(100), at(500))
    (whole,) = (s for s in found.spans if s.kind == "run")
    assert whole.end == pytest.approx(500, abs=32)


def test_no_records():
    empty = np.zeros((2, RECORDS + 64 * RECORD_NBYTES), np.uint8)
    assert decode(empty, Sampling(0, 1, 1, 1, 2), (1,)) == ([], {}, {}, 0, {})


@pytest.mark.parametrize("clock", [CLOCK, (7 << 32) - 1000, (1 << 32) - 1])
@pytest.mark.parametrize("time", [TIME, (3 << 32) - 500, (3 << 32) - 1, (4 << 32)])
def test_the_words_of_clock_and_timer_turn(clock, time):
    steps = [0, 1, 400, 499, 500, 501, 700, 5000]
    records = [record(clock + 2 * n, time + n, MARK) for n in steps]
    made = ring(records, begun=(clock, time))
    clocks, times = counters_of(made, np.array(records, RECORD))
    assert clocks.tolist() == [clock + 2 * n for n in steps]
    assert times.tolist() == [time + n for n in steps]


def test_a_clock_that_turns_twice():
    steps = np.arange(0, 6_000_000_000, 1_500_000_000)
    records = [record(CLOCK + 2 * n, TIME + n, MARK) for n in steps.tolist()]
    clocks, times = counters_of(ring(records, begun=(CLOCK, TIME)), np.array(records, RECORD))
    assert (clocks - CLOCK).tolist() == (2 * steps).tolist()
    assert (times - TIME).tolist() == steps.tolist()


# --------------------------------------------------------------------------------- clocks


def test_multiprocessors_lie_on_one_time():
    """Each has its own clock; the timer that they share steps every 32 ns."""
    offsets = [0, 123_456_789, -987_654_321, 1 << 60]  # a float does not have its cycles
    rng, rings, expected = np.random.default_rng(3), [], []
    for block, offset in enumerate(offsets):
        moments = np.sort(rng.integers(1, 200_000, 500)).tolist()
        records = [at(n, offset=offset) for n in moments]
        rings.append(
            ring([at(0, BEGIN, offset=offset), *records], begun=(CLOCK + offset, TIME),
                 block=block, processor=block, capacity=512)
        )  # fmt: skip
        expected.append(moments)
    found = decode(np.array(rings), Sampling(0, 1, 4, 1, 1), (4,))
    assert found.processors == {(i, 0, 0): i for i in range(4)}
    for block, moments in enumerate(expected):
        ends = np.array([s.end for s in found.spans if s.kind == "mark" and s.block[0] == block])
        error = ends - np.array(moments)
        assert np.abs(error - error.mean()).max() < 10  # of the order within a multiprocessor
        assert np.abs(error).max() < 32
    kinds = [s.end for s in found.spans if s.kind == "mark"]
    assert kinds == sorted(kinds)


def test_warps_of_a_multiprocessor_share_its_clock():
    """A warp with few records has the offset that the others know."""
    many = ring([at(7 * n) for n in range(400)], begun=(CLOCK, TIME), capacity=512)
    few = ring([at(1003)], begun=(CLOCK, TIME), capacity=512)
    found = decode(np.array([many, few]), Sampling(0, 1, 1, 1, 2), (1,))
    (lone,) = (s for s in found.spans if s.warp == 1)
    around = [s.end for s in found.spans if s.warp == 0]
    assert sum(end < lone.end for end in around) == 144  # 7 * 143 = 1001


def test_the_period_is_measured():
    records = [record(CLOCK + 3 * n, TIME + n, MARK, 0, 150) for n in (0, 10_000, 20_000)]
    found = decode(ring(records, begun=(CLOCK, TIME))[None], ONE, (1,))
    assert found.spans[-1].duration == pytest.approx(100)  # 300 cycles at 3 GHz
    lone = decode(ring(records[:1], begun=(CLOCK, TIME))[None], ONE, (1,))
    assert lone.spans[0].duration == pytest.approx(300 / 1.98)


# ----------------------------------------------------------------------- blocks, other lanes


def test_blocks_have_their_index_in_the_grid():
    grid = (3, 4, 2)
    blocks = {0: (0, 0, 0), 2: (2, 0, 0), 3: (0, 1, 0), 11: (2, 3, 0), 12: (0, 0, 1), 23: (2, 3, 1)}
    rings = [ring([at(0, BEGIN), at(9, END)], begun=(CLOCK, TIME), block=n) for n in blocks]
    found = decode(np.array(rings), Sampling(0, 1, 6, 1, 1), grid)
    assert set(found.processors) == {s.block for s in found.spans} == set(blocks.values())


def test_lanes_other_than_0_have_a_ring():
    side = [at(50, BEGIN), *(at(100 + 40 * i, Site(Kind.MARK, f"lane {i}")) for i in range(300)),
            at(15_000, END)]  # fmt: skip
    made = ring([at(0, BEGIN), at(20_000, END)], side, begun=(CLOCK, TIME))
    found = decode(made[None], ONE, (1,))
    names = [s.name for s in found.spans if s.kind == "mark"]
    assert names == [f"lane {i}" for i in range(300 - SIDE_CAPACITY + 1, 300)]
    assert found.dropped == 302 - SIDE_CAPACITY
    (whole,) = (s for s in found.spans if s.kind == "run")
    assert whole.end == pytest.approx(20_000, abs=32)  # not 15,000, of the lane


# ------------------------------------------------------------------------------- labels

TILE = tma.Tile((8, 32), "f32")
ROLES = tma.Roles(work=tma.Warps(2), load=tma.Warps(1))
RING = tma.TilePipeline(3, x=TILE, y=TILE, k_group=2, producer=ROLES.load, consumer=ROLES.work)
BASE, BARRIERS = 0x400, 0x9000


def place_in(label, owner, *addresses):
    """Return what a load that completes on the barrier at each address is of."""
    number = label_number(label, owner)
    base, barriers = (BASE, BARRIERS) if label not in (label_answers, label_turns) else (BASE, 0)
    records = [at(10 * i, Site(Kind.WAIT), place=a) for i, a in enumerate(addresses)]
    made = ring(records, begun=(CLOCK, TIME), labels=[(number, base, barriers)])
    found = decode(made[None], ONE, (1,))
    return [(s.kind, s.stage, s.pipeline.partition("(")[0]) for s in found.spans], found


def test_barriers_of_a_tile_pipeline():
    full, empty = [BARRIERS + 8 * i for i in range(3)], BARRIERS + RING.empty_offset
    expected = [("full", i, "TilePipeline") for i in range(3)]
    expected += [("empty", i, "TilePipeline") for i in range(3)] + [("wait", -1, "")]
    places, found = place_in(
        label_stages, RING, *full, *(empty + 8 * i for i in range(3)), empty + 8 * 3
    )
    assert places == expected
    assert found.pipelines == {str(RING): RING}


def test_an_address_of_a_cluster_is_the_own_blocks():
    label = label_number(label_stages, RING), BASE | 3 << 24, BARRIERS | 3 << 24
    made = ring([at(0, Site(Kind.WAIT), place=BARRIERS + 8)], begun=(CLOCK, TIME), labels=[label])
    assert [(s.kind, s.stage) for s in decode(made[None], ONE, (1,)).spans] == [("full", 1)]
    places, _ = place_in(label_stages, RING, BARRIERS + 8)
    assert places == [("full", 1, "TilePipeline")]
    record_place = (BARRIERS + 8 | 5 << 24) & 0x3FFF8  # as the kernel keeps it
    places, _ = place_in(label_stages, RING, record_place)
    assert places == [("full", 1, "TilePipeline")]


def test_kinds_of_arrivals_copies_and_waits():
    number = label_number(label_stages, RING)
    empty, tile = BARRIERS + RING.empty_offset + 16, BASE
    records = [
        at(0, Site(Kind.ARRIVE), place=empty), at(10, Site(Kind.ARRIVE), place=BARRIERS),
        at(20, Site(Kind.LOAD), place=BARRIERS + 16, value=4096),
        at(30, Site(Kind.STORE), place=tile, value=512),
        at(40, Site(Kind.WAIT, "'x.full'", "work"), place=0x30000),
        at(50, Site(Kind.WAIT, "'x.empty'"), place=0x30000),
        at(60, Site(Kind.WAIT, "Barrier.wait"), place=0x30000),
        at(70, Site(Kind.DRAIN, line="a.py:3"), place=BARRIERS, value=9),
        at(80, Site(Kind.CLUSTER)), at(90, Site(Kind.PRODUCT)), at(95, Site(Kind.FLAG, "flag")),
    ]  # fmt: skip
    made = ring(records, begun=(CLOCK, TIME), labels=[(number, BASE, BARRIERS)])
    found = decode(made[None], ONE, (1,))
    shown = [(s.kind, s.stage, s.nbytes) for s in sorted(found.spans, key=lambda s: s.end)]
    assert shown == [
        ("release", 2, 0), ("arrive", 0, 0), ("load", 2, 4096), ("store", 0, 512), ("full", -1, 0),
        ("empty", -1, 0), ("wait", -1, 0), ("drain", -1, 0), ("cluster", -1, 0),
        ("products", -1, 0), ("flag", -1, 0),
    ]  # fmt: skip
    assert found.roles == {((0, 0, 0), 0): "work"}  # what a pipeline says goes before
    assert [s.line for s in found.spans if s.kind == "drain"] == ["a.py:3"]


def test_other_pipelines():
    ROLE = tma.Roles(mma=tma.Warpgroups(1), load=tma.Warps(1))
    kv = tma.KVPipeline(2, 16, 128, "bf16", 2, producer=ROLE.load, consumer=ROLE.mma)
    barriers = [BARRIERS + 8 * i for i in range(4)]
    places, found = place_in(label_ring, kv, *barriers, BARRIERS + kv.empty_offset + 24)
    names = [f"sub-stage {part} of KVPipeline" for part in (0, 1)]
    assert places == [
        ("full", 0, names[0]), ("full", 0, names[1]), ("full", 1, names[0]), ("full", 1, names[1]),
        ("empty", 1, names[1]),
    ]  # fmt: skip
    assert set(found.pipelines.values()) == {kv}
    each = tma.CircularBuffer(3, 2, war="mbarrier", barriers="each", x=TILE, y=TILE)
    places, found = place_in(label_buffer, each, *(BARRIERS + 8 * i for i in range(9)))
    kinds = ["full"] * 6 + ["empty"] * 3
    assert places == [(k, i % 3, "CircularBuffer") for i, k in enumerate(kinds)]
    assert list(found.pipelines) == [str(each)]
    control = tma.LaunchControl(slots=2)
    full, empty = BASE + control.full_offset + 8, BASE + control.empty_offset
    places, _ = place_in(label_answers, control, full, empty)
    assert places == [("full", 1, "LaunchControl"), ("empty", 0, "LaunchControl")]
    pair = tma.Roles(a=tma.Warps(1), b=tma.Warps(1))
    order = tma.OrderedSequenceBarrier(2, (pair.a, pair.b))
    places, _ = place_in(label_turns, order, BASE, BASE + 8)
    assert [kind for kind, *_ in places] == ["wait", "wait"]


def test_stores_of_a_store_pipeline():
    roles = tma.Roles(a=tma.Warps(1), b=tma.Warps(1))
    out = tma.StorePipeline(2, role=(roles.a, roles.b), y=TILE)
    number = label_number(label_store_stages, out)
    places = [BASE, BASE + TILE.nbytes, BASE + out.role_nbytes]
    records = [at(10 * i, Site(Kind.STORE), place=p) for i, p in enumerate(places)]
    made = ring(records, begun=(CLOCK, TIME), labels=[(number, BASE, 0)])
    found = decode(made[None], ONE, (1,))
    assert [(s.stage, s.pipeline) for s in found.spans] == [
        (0, str(out)),
        (1, str(out)),
        (0, str(out)),
    ]


def test_labels_of_one_kernel_do_not_meet():
    assert LABELS >= 125
    assert len({label_slot(n) for n in range(7, 7 + LABELS)}) == LABELS
    slots = [label_slot(n) for n in range(1000)]
    assert (
        min(slots) >= 48 and max(slots) + RECORD_NBYTES <= RECORDS - SIDE_CAPACITY * RECORD_NBYTES
    )


def test_texts_of_places():
    assert place_of("full[2] of TilePipeline(3, x)") == Place("full", 2, "TilePipeline(3, x)")
    assert place_of("x[2][1] of TilePipeline(3)") == Place("x", 2, "TilePipeline(3)")
    assert place_of("y[1] for warps of StorePipeline(2)") == Place("y", 1, "StorePipeline(2)")
    assert place_of("mbarrier at 64") is None and place_of("") is None


# ------------------------------------------------------------------------------ sampling


@pytest.mark.parametrize(
    ("blocks", "grid", "cluster", "expected"),
    [
        (4, (132,), 1, (0, 33, 4)), (1, (132,), 1, (0, 132, 1)), (4, (2, 1), 1, (0, 1, 2)),
        (4, (10,), 1, (0, 2, 4)), (3, (2, 5, 3), 1, (0, 10, 3)), (10**9, (7,), 1, (0, 1, 7)),
        (4, (64,), 2, (0, 16, 2)), (3, (64,), 2, (0, 16, 2)), (1, (64,), 4, (0, 16, 1)),
        (range(3, 9), (132,), 1, (3, 1, 6)), (range(0, 132, 44), (132,), 1, (0, 44, 3)),
        (range(5, 6), (132,), 1, (5, 1, 1)), (range(8, 200, 4), (20,), 1, (8, 4, 3)),
        (range(500, 600), (132,), 1, (0, 1, 1)), (range(10**12), (6,), 1, (0, 1, 6)),
        (range(2, 9), (16,), 4, (0, 1, 3)), (range(0, 16, 8), (16,), 2, (0, 4, 2)),
        # Blocks 0, 3 and 6 lie in the clusters 0, 1 and 3.
        (range(0, 8, 3), (8,), 2, (0, 1, 4)),
        (range(0, 16, 5), (16,), 2, (0, 1, 8)),
    ],
)  # fmt: skip
def test_which_clusters_are_traced(blocks, grid, cluster, expected):
    found = sampled(blocks, grid, (96,), cluster)
    assert found == (*expected, cluster, 3)
    assert found.rings == expected[2] * cluster * 3
    last = found.first + (found.clusters - 1) * found.step
    assert last < int(np.prod(grid)) // cluster


@pytest.mark.parametrize(
    ("block", "warps"), [((1,), 1), ((32, 1, 1), 1), ((33,), 2), ((8, 8, 2), 4)]
)
def test_warps_of_a_block(block, warps):
    assert sampled(1, (4,), block, 1).warps == warps


@pytest.fixture
def memory(monkeypatch):
    """Let the rings have memory in NumPy arrays."""
    written, allocated = {}, []

    def allocate(shape, dtype):
        memory = type("Memory", (), {"address": 1 << 40 + len(allocated), "nbytes": shape[0]})()
        allocated.append(memory)
        return memory

    monkeypatch.setattr(trace_buffer, "device_memory", allocate)
    monkeypatch.setattr(
        trace_buffer, "_write", lambda memory, value: written.update({memory.address: value.copy()})
    )
    words = type("Words", (), {"address": 4096})()
    monkeypatch.setattr(trace_buffer, "_launch_words", lambda context: words)
    monkeypatch.setattr(trace_buffer, "current_context", lambda: 1)
    return written


def test_rings_share_the_memory(memory):
    rings = Rings(Sampling(2, 5, 4, 2, 3), 4 << 20)
    assert rings.capacity & rings.capacity - 1 == 0
    assert 24 * rings.ring_nbytes <= 4 << 20 < 24 * (rings.ring_nbytes + rings.capacity * 16)
    rings.begin()
    told = memory.pop(4096)
    (empty,) = memory.values()
    assert empty.shape == (24, rings.ring_nbytes)
    assert (empty[:, 4:8].view(np.uint32) == (rings.capacity - 1) * RECORD_NBYTES).all()
    empty[:, 4:8] = 0
    assert not empty.any()
    assert (told["first"], told["step"], told["clusters"]) == (2, 5, 4)
    assert told["nbytes"] == rings.ring_nbytes and told["rings"] != 0
    rings.end()
    assert memory[4096]["rings"] == 0


def test_rings_that_are_too_small(memory):
    sampling = Sampling(0, 1, 4, 1, 8)
    least = 32 * (RECORDS + 64 * RECORD_NBYTES)
    assert Rings(sampling, least).capacity == 64
    with pytest.raises(ValueError, match=r"4 blocks of 8 warps need 1 MB for 64 records") as caught:
        Rings(sampling, least - 32)
    assert "give more, or trace fewer blocks (blocks=...)" in str(caught.value)


def test_the_largest_rings_have_32_bits(memory):
    largest = Rings(ONE, 1 << 46)
    assert largest.ring_nbytes < 1 << 32 and largest.capacity == 1 << 26


def test_there_is_no_memory_without_a_gpu(monkeypatch):
    monkeypatch.setattr(trace_buffer, "_has_gpu", lambda: False)
    assert trace_buffer.launch_address() == trace_buffer.NO_GPU
