"""What follows from a trace: facts, verdicts on both sides of their thresholds, texts and files."""

import json
import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

import numba_tma as tma
from numba_tma.host.architectures import static_shared
from numba_tma.tools import pictures, plot
from numba_tma.tools.trace import Summary, Trace, _keep
from numba_tma.tools.trace.chrome import events_of
from numba_tma.tools.trace.facts import (
    PipelineFacts,
    block_times,
    fills_of,
    in_flight_over_time,
    mean_over_time,
    pipelines_of,
    roles_of,
    shares_of,
    stages_filled_over_time,
)
from numba_tma.tools.trace.spans import POINTS, RANGES, WAITS, Span, roles_by_behaviour
from numba_tma.tools.trace.verdicts import RULES, bandwidth_of, verdicts_of
from tests.trace_rings import BLOCK, PIPE, launch, turns

ROLES = {0: "consumer", 1: "producer"}


def kinds(found):
    return [verdict.kind for verdict in verdicts_of(found)]


def traced(*launches):
    made = Trace()
    made.launches.extend(launches)
    return made


# --------------------------------------------------------------------------------- facts


def test_the_fills_of_a_ring():
    found = fills_of(launch(*turns(5, 200, full=90, latency=100, loads=2)), PIPE)
    assert [f.stage for f in found] == [0, 1, 0, 1, 0]
    assert [f.issued for f in found] == [0, 200, 400, 600, 800]
    assert [f.full for f in found] == [100, 300, 500, 700, 900]
    assert [f.released for f in found] == [105, 305, 505, 705, 905]
    assert {(f.nbytes, f.loads) for f in found} == {(8192, 2)}
    assert all(f.awaited for f in found)
    short = fills_of(launch(*turns(5, 200, full=50)), PIPE)
    assert not any(f.awaited for f in short)  # it may have been full


def test_the_first_of_several_readers_sees_a_stage_full_and_the_last_releases_it():
    of = {"pipeline": PIPE, "stage": 0}
    found = launch(
        Span("load", 0, 0, BLOCK, 2, nbytes=64, **of), Span("full", 0, 90, BLOCK, 0, **of),
        Span("full", 0, 100, BLOCK, 1, **of), Span("release", 120, 120, BLOCK, 1, **of),
        Span("release", 150, 150, BLOCK, 0, **of), Span("load", 160, 160, BLOCK, 2, **of),
    )  # fmt: skip
    first, second = fills_of(found, PIPE)
    assert (first.full, first.released, second.issued, second.full) == (90, 150, 160, None)


def test_turns_of_which_the_readers_records_are_overwritten():
    spans = turns(6, 200, loads=2)
    kept = [s for s in spans if s.kind not in ("full", "release") or s.start > 900]
    found = fills_of(launch(*kept), PIPE)
    assert [f.nbytes for f in found] == [8192] * 6
    assert [f.full for f in found] == [None] * 5 + [1100]
    # Two warps that load into one stage each wait for it.
    of = {"pipeline": PIPE, "stage": 0}
    both = [
        Span(kind, t, t, BLOCK, warp, nbytes=32 * (kind == "load"), **of)
        for t, warp, kind in [(0, 1, "empty"), (1, 1, "load"), (2, 2, "empty"), (3, 2, "load")]
    ]
    (fill,) = fills_of(launch(*both), PIPE)
    assert (fill.loads, fill.nbytes) == (2, 64)


def test_blocks_and_pipelines_have_their_own_fills():
    other = "TilePipeline(3)"
    found = launch(*turns(3, 100), *turns(4, 100, block=(1, 0, 0)), *turns(2, 50, pipeline=other))
    assert len(fills_of(found, PIPE)) == 7 and len(fills_of(found, PIPE, BLOCK)) == 3
    assert [facts.name for facts in pipelines_of(found)] == [PIPE, other]
    assert len(fills_of(found, other)) == 2


def test_bytes_in_flight_and_stages_filled_over_time():
    found = launch(*turns(3, 200, latency=100, nbytes=1000))
    series = in_flight_over_time(found, BLOCK, PIPE)
    assert series == [(0, 1000), (100, 0), (200, 1000), (300, 0), (400, 1000), (500, 0)]
    assert stages_filled_over_time(found, BLOCK, PIPE) == [
        (0, 1), (105, 0), (200, 1), (305, 0), (400, 1), (505, 0)
    ]  # fmt: skip
    assert mean_over_time(series, 500) == 600  # three of five intervals
    assert mean_over_time([], 5) == mean_over_time([(3, 1)], 3) == 0
    facts = PipelineFacts(found, PIPE)
    assert facts.in_flight == 600 and facts.filled == pytest.approx(3 * 105 / 505)
    overlapped = launch(*turns(4, 100, latency=150, nbytes=1000))
    assert max(v for _, v in in_flight_over_time(overlapped, BLOCK, PIPE)) == 2000


def test_facts_of_a_pipeline():
    found = launch(*turns(10, 200, full=80, empty=150, latency=120, loads=4, stages=3), roles=ROLES)
    (facts,) = pipelines_of(found)
    assert (facts.num_stages, facts.stage_nbytes, facts.load_nbytes) == (3, 8192, 2048)
    assert facts.latency == 120
    end = 10 * 200 + 120 + 200
    assert facts.starved == pytest.approx(9 * 80 / end)  # but for the first
    assert facts.first_full == pytest.approx(120 / end)
    assert (facts.producer.role, facts.consumer.role) == ("producer", "consumer")
    assert facts.producer.of("empty") == pytest.approx(9 * 150 / end)
    assert facts.consumer.of("full") == pytest.approx(10 * 80 / end)
    assert facts.consumer.working == pytest.approx(1 - 10 * 80 / end)
    assert PipelineFacts(launch(*turns(4, 200)), PIPE).latency is None  # nobody waited


def test_shares_are_of_the_time_of_all_warps():
    found = launch(
        Span("run", 0, 100, BLOCK, 0), Span("run", 0, 300, BLOCK, 1), Span("full", 0, 80, BLOCK, 0),
        Span("meet", 10, 50, BLOCK, 1), Span("mark", 0, 60, BLOCK, 0, "a"),
        Span("run", 0, 50, BLOCK, 2),
        Span("mark", 60, 80, BLOCK, 1, "a"), Span("mark", 60, 70, BLOCK, 1, "b"),
        roles={0: "x", 1: "y"},
    )  # fmt: skip
    both = shares_of(found, [(BLOCK, 0), (BLOCK, 1)])
    assert (both.role, both.warps, both.time) == ("x/y", 2, 400)
    assert both.shares == {"full": 0.2, "meet": 0.1} and both.marks == {"a": 0.2, "b": 0.025}
    assert both.working == pytest.approx(0.7)
    assert [(r.role, r.warps) for r in roles_of(found)] == [("", 1), ("x", 1), ("y", 1)]
    assert set(WAITS) <= set(RANGES) and not set(RANGES) & set(POINTS)


def test_roles_by_what_warps_do():
    spans = [
        Span("full", 0, 1, BLOCK, 0), Span("load", 2, 2, BLOCK, 0), Span("full", 3, 4, BLOCK, 0),
        Span("full", 0, 1, BLOCK, 1), Span("store", 0, 0, BLOCK, 2), Span("meet", 0, 0, BLOCK, 3),
    ]  # fmt: skip
    assert roles_by_behaviour(spans) == {
        (BLOCK, 0): "producer", (BLOCK, 1): "consumer", (BLOCK, 2): "consumer"
    }  # fmt: skip


def test_a_block_runs_as_long_as_its_longest_warp():
    found = launch(
        Span("run", 0, 9, BLOCK, 0), Span("run", 5, 20, BLOCK, 1), Span("run", 0, 3, (1, 0, 0), 0)
    )
    assert block_times(found) == {BLOCK: 15, (1, 0, 0): 3}


# ------------------------------------------------------------------------------- verdicts

GPU = {"num_processors": 100, "bandwidth": 10_000.0, "grid": (100, 1, 1)}


def ring(full=0.0, empty=0.0, period=1000.0, number=40, given=None, **options):
    """Return a launch whose consumer and producer wait for these shares of a period."""
    options = {"nbytes": 32768, "latency": 50} | options
    spans = turns(number, period, full=full * period, empty=empty * period, **options)
    return launch(*spans, roles=ROLES, **GPU | (given or {}))


def exact(share, number=40):
    """Return the share of a period that makes this share of a run, without the first turn."""
    return share * (number + 1.05) / (number - 1)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (ring(full=exact(0.149), empty=0.2), []),
        (ring(full=exact(0.151), empty=0.2), ["latency"]),
        (ring(full=0.4, empty=exact(0.149)), ["producer"]),
        (ring(full=0.4, empty=exact(0.151)), ["latency"]),
        (ring(full=0.4, empty=0.2, loads=16), ["latency"]),  # of 2,048 B
        (ring(full=0.4, empty=0.2, loads=17), ["small loads"]),
        (ring(full=0.4, empty=exact(0.499), loads=17), ["small loads"]),
        (ring(full=0.4, empty=exact(0.501), loads=17), ["latency"]),
        (ring(full=0.4, empty=0.2, loads=17, given={"unit": "steps"}), ["latency"]),
        # 100 blocks that load 32,768 B in 1,000 ns each: 3,277 B/ns, less the run's ends.
        (ring(full=0.4, empty=0.2, given={"bandwidth": 4251.0}), ["memory"]),
        (ring(full=0.4, empty=0.2, given={"bandwidth": 4270.0}), ["latency"]),
        (ring(full=0.4, empty=0.2, given={"bandwidth": 0.0}), ["latency"]),
        (ring(full=exact(0.1), empty=exact(0.299)), []),
        (ring(full=exact(0.1), empty=exact(0.301)), ["compute"]),
        (ring(full=exact(0.149), empty=0.6), ["compute"]),
        # A stage of less than 4,096 B that changes hands in less than 2,000 ns.
        (ring(nbytes=4095, period=1900), ["small stages"]),
        (ring(nbytes=4095, period=2000), []),
        (ring(nbytes=4096, period=1000), []),
        (ring(nbytes=4095, period=1000, number=7), []),
        (ring(nbytes=4095, period=1000, number=8), ["small stages"]),
        (ring(nbytes=4095, period=1000, given={"unit": "steps"}), []),
        # The first stage is full behind 30 % of a run of two turns.
        (ring(number=1, latency=850), []),
        (ring(number=1, latency=860), ["start"]),
    ],
)  # fmt: skip
def test_each_rule_at_both_sides_of_its_threshold(found, expected):
    assert kinds(found) == expected


def test_the_share_at_a_threshold_is_what_it_seems():
    (facts,) = pipelines_of(ring(full=exact(0.149), empty=exact(0.151)))
    assert facts.starved == pytest.approx(0.149) and facts.producer.of("empty") == pytest.approx(
        0.151
    )


def test_the_bandwidth_is_of_the_blocks_that_run_at_once():
    found = ring(number=40)
    (facts,) = pipelines_of(found)
    rate = 40 * 32768 / (40 * 1000 + 50 + 1000)
    assert bandwidth_of(found, facts) == pytest.approx(100 * rate)
    few = ring(number=40, given={"grid": (3, 2, 1)})
    assert bandwidth_of(few, pipelines_of(few)[0]) == pytest.approx(6 * rate)
    many = ring(number=40, given={"grid": (30, 20, 5)})
    assert bandwidth_of(many, pipelines_of(many)[0]) == pytest.approx(100 * rate)


def uneven(longest):
    spans = [Span("run", 0, 1000, (i, 0, 0), 0) for i in range(3)]
    return launch(*spans, Span("run", 0, longest, (3, 0, 0), 0))


def meets(share, drains=0.0, own=0.0, first=0.0):
    """Return a launch of which warp 1 meets for a share of the role's time, and warp 0 for none."""
    spans = [Span("run", 0, 1000, BLOCK, warp) for warp in (0, 1)]
    spans.append(Span("meet", 0, first * 1000, BLOCK, 0))
    spans.append(Span("meet", 0, (2 * share - first) * 1000, BLOCK, 1))
    spans.append(Span("drain", 0, drains * 1000, BLOCK, 0, line="k.py:7"))
    spans.append(Span("drain", 0, own * 1000, BLOCK, 1))
    return launch(*spans, roles={0: "work", 1: "work"})


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (uneven(1250), []), (uneven(1251), ["uneven"]), (launch(Span("run", 0, 9, BLOCK, 0)), []),
        (meets(0.149), []), (meets(0.151), ["meeting"]), (meets(0.151, first=0.1), ["meeting"]),
        # The warp that comes last drains for as long as 0.6 of the others' wait.
        (meets(0.2, drains=0.119), ["meeting"]), (meets(0.2, drains=0.121), ["drain"]),
        (meets(0.0, drains=0.149, own=0.149), []), (meets(0.0, drains=0.151, own=0.151), ["drain"]),
        (meets(0.1, drains=0.07), []), (meets(0.1, drains=0.12), ["drain"]),
    ],
)  # fmt: skip
def test_rules_without_a_pipeline(found, expected):
    assert kinds(found) == expected


def test_verdicts_are_in_the_order_of_lost_time():
    spans = turns(40, 1000, full=200, latency=50, nbytes=32768)
    long = Span("run", 0, 200_000, (1, 0, 0), 0)
    both = launch(*spans, long, roles=ROLES)
    found = verdicts_of(both)
    assert [v.kind for v in found] == ["uneven", "producer"]
    assert found[0].share > found[1].share
    shorter = launch(*turns(40, 1000, full=900, latency=50, nbytes=32768),
                     Span("run", 0, 60_000, (1, 0, 0), 0), roles=ROLES)  # fmt: skip
    assert kinds(shorter)[0] == "producer"
    assert len(RULES) == 7


def test_texts_say_what_was_seen_and_the_repair():
    shared = static_shared("90a")
    (latency,) = verdicts_of(ring(full=0.4, empty=0.2, given={"shared_nbytes": shared - 70_000}))
    assert re.fullmatch(
        r"TilePipeline: consumers wait \d+% of their time for full stages after the first, and "
        r"[\d.]+ KiB are in flight in a block, where a latency of 50 ns needs 5 KiB on each SM to "
        r"use all of the memory's bandwidth: add stages, 2 more fit", latency.text,
    )  # fmt: skip
    (full,) = verdicts_of(ring(full=0.4, empty=0.2, given={"shared_nbytes": shared - 32_767}))
    assert full.text.endswith(
        "no stage more fits: use smaller tiles and more stages, or two blocks an SM"
    )
    (unknown,) = verdicts_of(ring(full=0.4, empty=0.2))
    assert unknown.text.endswith(": add stages")
    marked = ring(empty=0.4)
    spans = [
        *marked.spans,
        Span("mark", 0, 20_000, BLOCK, 0, "softmax"),
        Span("products", 0, 9_000, BLOCK, 0),
    ]
    (compute,) = verdicts_of(launch(*spans, roles=ROLES))
    assert compute.text.endswith(
        "of the consumers' time 'softmax' takes 49%, waits for the tensor cores take 22%"
    )
    brief = launch(*marked.spans, Span("mark", 0, 10, BLOCK, 0, "softmax"), roles=ROLES)
    assert verdicts_of(brief)[0].text.endswith(" for full ones after the first: compute-bound")
    (drain,) = verdicts_of(meets(0.2, drains=0.3))
    assert drain.text.startswith(
        "warps of role 'work' lose 35% of their time to stores that drain (longest: 300 ns at "
        "k.py:7)"
    )
    (meeting,) = verdicts_of(meets(0.2))
    assert meeting.text.startswith("warps of role 'work' wait")
    assert "warp 0 waits least and so comes last" in meeting.text
    (block,) = verdicts_of(uneven(2000))
    assert (
        "block (3, 0, 0) runs 2,000 ns, and half of the traced blocks at most 1,000" in block.text
    )
    assert block.share == 0.5


# --------------------------------------------------------------------------------- summary


def test_the_text_of_a_summary():
    one = ring(full=0.4, empty=0.3)
    more = launch(*one.spans, Span("mark", 0, 4105, BLOCK, 0, "work"), roles=ROLES, **GPU,
                  dropped=1234)  # fmt: skip
    summary = Summary((more, uneven(1000)), {"kernel": 1500})
    lines = str(summary).splitlines()
    assert lines[0] == "kernel, grid (100, 1, 1), block (64, 1, 1): 41,050 ns in 1 traced block"
    assert lines[1] == "  1,234 older records did not fit: give more megabytes"
    assert lines[2].split() == ["role", "warps", "waits:", "full", "empty", "work"]
    assert lines[3].split() == ["consumer", "1", "38%", "0%", "62%"]
    assert lines[4] == "    'work' 10%"
    assert lines[5].split() == ["producer", "1", "0%", "29%", "71%"]
    assert lines[6] == f"  {PIPE}: 40 fills of 32,768 B"
    assert "of 2 stages are filled" in lines[7] and "50 ns from a load to a full stage" in lines[7]
    assert "the grid loads 3,193 GB/s (memory: 10,000)" in lines[7]
    assert lines[8].startswith("  - TilePipeline: consumers wait")
    assert "in 4 traced blocks" in str(summary)
    assert "  - nothing stands out: no wait takes a large share of the time" in lines
    assert lines[-1] == "1,500 more launches of kernel"
    assert [v.kind for v in summary.verdicts] == kinds(more)
    assert repr(summary) == str(summary)
    assert str(Summary(())) == "nothing was launched"


def test_a_long_name_is_cut_in_a_summary():
    name = "TilePipeline(" + "x" * 100 + ")"
    text = str(Summary((launch(*turns(3, 100, pipeline=name)),)))
    assert f"  {name[:57]}...: 3 fills" in text


def test_one_is_singular_and_warps_without_a_role_are_all():
    one = launch(*turns(1, 100), Span("run", 0, 100, BLOCK, 0))
    text = str(Summary((one,), {"kernel": 1}))
    assert ": 1 fill of" in text and "1 more launch of kernel" in text and "\n  all  " in text
    found = Trace()
    found.launches = [one]
    assert repr(found).startswith("<trace of 1 launch (kernel): ")
    assert repr(one) == (
        f"<launch of kernel, grid (1, 1, 1), block (64, 1, 1): {len(one.spans)} spans>"
    )


def test_a_trace_keeps_so_many_launches_of_each_kernel():
    found = Trace()
    a, b = launch(*turns(2, 100)), launch(*turns(2, 100), kernel="other")
    _keep(found, [a, a, b, a], 2)
    _keep(found, [a, b, b], 2)
    assert [x.kernel for x in found.launches] == ["kernel", "kernel", "other", "other"]
    assert found.left_out == {"kernel": 2, "other": 1}
    assert repr(found) == f"<trace of 4 launches (kernel, other): {4 * len(a.spans)} spans>"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"blocks": 0}, "trace(blocks=0): give a number of blocks from 1 on, or a range"),
        ({"blocks": -1}, "blocks=-1"), ({"blocks": True}, "blocks=True"), ({"blocks": 2.0}, "2.0"),
        ({"blocks": range(3, 3)}, "range(3, 3)"), ({"blocks": range(5, 0, -1)}, "range(5, 0, -1)"),
        ({"blocks": range(-2, 3)}, "range(-2, 3)"), ({"blocks": [1]}, "[1]"),
        ({"launches": 0}, "trace(launches=0): give a number from 1 on, or None for all"),
        ({"megabytes": 0}, "trace(megabytes=0): give more than 0, and at most 65536"),
        ({"megabytes": -1}, "megabytes=-1"), ({"megabytes": 65537}, "megabytes=65537"),
        ({"megabytes": float("nan")}, "megabytes=nan"),
    ],
)  # fmt: skip
def test_wrong_arguments(given, text):
    with pytest.raises(ValueError, match=re.escape(text)), tma.trace(**given):
        pass


# ------------------------------------------------------------------------- Chrome's format


def chrome(*launches):
    found = json.loads(json.dumps(events_of(list(launches))))
    for event in found["traceEvents"]:
        assert {"ph", "name", "pid"} <= set(event) and event["ph"] in "XiMC"
        if event["ph"] != "M":
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0 and "tid" in event
        if event["ph"] == "i":
            assert event["s"] == "t"
        if event["ph"] == "C":
            assert all(isinstance(v, int) for v in event["args"].values())
    return found["traceEvents"], found["otherData"]


def test_a_file_for_perfetto():
    second = turns(2, 500, block=(1, 0, 0))
    one = launch(
        *turns(2, 500, full=90), *second, Span("mark", 100, 300, BLOCK, 0, "softmax"),
        Span("tile", 5, 5, BLOCK, 0, "17"),
        Span("meet", 40, 60, BLOCK, 0, "barrier 1", line="a.py:3"),
        roles=ROLES, processors={BLOCK: 7},
    )  # fmt: skip
    events, other = chrome(one)
    named = {(e["ph"], e["name"]): e for e in events}
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert names == ["kernel block (0, 0, 0) on SM 7", "kernel block (1, 0, 0)"]
    threads = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"
    }
    assert threads[0, 0] == "warp 0 consumer" and threads[1, 1] == "warp 1 producer"
    mark = named["X", "softmax"]
    assert (mark["ts"], mark["dur"], mark["pid"], mark["tid"], mark["cat"]) == (
        0.1,
        0.2,
        0,
        0,
        "mark",
    )
    wait = next(e for e in events if e["name"] == "wait full [1]")
    assert (wait["ts"], wait["dur"]) == (pytest.approx(0.51), pytest.approx(0.09))
    assert wait["args"]["pipeline"] == PIPE
    load = named["i", "load [1]"]
    assert load["args"]["nbytes"] == 8192 and load["ts"] == 0.5
    assert {e["tid"] for e in events if e["name"].startswith("load")} == {1}
    assert named["X", "tile 17"] and named["X", "meet"]["args"] == {
        "line": "a.py:3",
        "of": "barrier 1",
    }
    assert named["X", "consumer"]["cat"] == "run"
    counters = [e for e in events if e["ph"] == "C" and e["pid"] == 0]
    flight = [(e["ts"], e["args"]["bytes in flight"]) for e in counters if "flight" in e["name"]]
    assert flight == [(0, 8192), (0.1, 0), (0.5, 8192), (0.6, 0)]
    assert {e["name"] for e in counters} == {
        "TilePipeline: stages", "TilePipeline: bytes in flight"
    }  # fmt: skip
    (described,) = other["launches"]
    assert described["kernel"] == "kernel" and described["grid"] == [1, 1, 1]
    assert (described["unit"], described["dropped"]) == ("ns", 0)


def test_launches_follow_each_other_in_a_file():
    one, other = launch(*turns(2, 500), dropped=3), launch(*turns(2, 500), dropped=4)
    third = launch(*turns(1, 100), kernel="third")
    found = events_of([one, other, third])
    assert [x["dropped"] for x in found["otherData"]["launches"]] == [3, 4, 0]
    runs = [e for e in found["traceEvents"] if e.get("cat") == "run" and e["tid"] == 0]
    assert [e["pid"] for e in runs] == [0, 1, 2]
    assert runs[1]["ts"] == pytest.approx(runs[0]["dur"] + 1)
    assert runs[2]["ts"] == pytest.approx(2 * runs[0]["dur"] + 2)
    assert runs[2]["name"] == "third"


def test_a_file_can_be_read_again(tmp_path):
    marked = Span("mark", 33.3, 44.4, BLOCK, 0, "m", line="a.py:1")
    one = launch(
        *turns(9, 500, full=90), *turns(9, 321, block=(2, 1, 0)), marked,
        Span("tile", 5, 5, BLOCK, 0, "17"), roles=ROLES, processors={BLOCK: 0}, dropped=5, **GPU,
    )  # fmt: skip
    made = traced(one, launch(*turns(3, 100), unit="steps", kernel="other"))
    made.save(tmp_path / "run.json")
    found = Trace.load(tmp_path / "run.json")
    for was, now in zip(made.launches, found.launches, strict=True):
        key = lambda s: (s.start, s.end, s.block, s.warp, s.kind, s.stage)  # noqa: E731
        assert sorted(now.spans, key=key) == sorted(was.spans, key=key)
        for name in ("kernel", "grid", "block", "unit", "roles", "processors", "dropped"):
            assert getattr(now, name) == getattr(was, name), name
    assert str(found.summary()) == str(made.summary())
    assert [v.text for v in found.summary().verdicts] == [v.text for v in made.summary().verdicts]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"traceEvents": []}', "{"])
def test_another_file_is_no_trace(tmp_path, text):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"Trace\.load\('.*other\.json'\): it is no "):
        Trace.load(path)


def test_a_file_of_nothing(tmp_path):
    traced().save(tmp_path / "run.json")
    assert json.loads((tmp_path / "run.json").read_text())["traceEvents"] == []


# --------------------------------------------------------------------------------- pictures

KV = [f"KVPipeline(2, 16, 64, bf16, holds='{name}')" for name in "kv"]


K_STAGES = ["k stage 0", "k stage 1"]
V_STAGES = ["v stage 0", "v stage 1", "v stage 2"]


def two_rings():
    spans = [*turns(4, 300, pipeline=KV[0], full=80), *turns(3, 400, pipeline=KV[1], stages=3)]
    return launch(*spans, roles=ROLES, processors={BLOCK: 3})


def svg_of(found):
    html = pictures.picture(found)
    root = ET.fromstring(html)
    name = "{http://www.w3.org/2000/svg}"
    (picture,) = root.iter(f"{name}svg")
    width, height = (float(picture.get(key)) for key in ("width", "height"))
    for area in picture.iter(f"{name}rect"):
        x, y, w, h = (float(area.get(key)) for key in ("x", "y", "width", "height"))
        assert 0 <= x <= x + w <= width + 0.01 and 0 <= y <= y + h <= height
    texts = [text.text for text in picture.iter(f"{name}text")]
    tips = [tip.text for tip in picture.iter(f"{name}title")]
    return root.findtext("code"), texts, tips


def test_a_picture_of_a_trace():
    title, texts, tips = svg_of(traced(two_rings()))
    assert title == "kernel, block (0, 0, 0) on SM 3: 0 to 1,700 ns"
    assert "warp 0 consumer" in texts and "warp 1 producer" in texts
    assert [text for text in texts if text.startswith("KVPipeline")] == KV
    assert [text for text in texts if text.startswith("stage")] == [
        *("stage 0", "stage 1"), *("stage 0", "stage 1", "stage 2")
    ]  # fmt: skip
    assert "wait for full" in texts and "loading" in texts and "being read" in texts
    assert "meet" not in texts
    assert any(tip.startswith("wait for full [1], 320 to 400 ns") for tip in tips)
    assert any(tip.startswith("fill 0: 8,192 B loading, 0 to 100 ns") for tip in tips)
    assert any(tip.startswith("fill 3 being read") for tip in tips)
    title, *_ = svg_of(traced(uneven(1000), two_rings(), two_rings()))
    assert "first of 3 launches" in title and "SM 3" in title  # the first with stages


def test_a_picture_of_a_long_trace_is_cut():
    long = Span("wait", 10_000, 50_000, BLOCK, 0)
    found = traced(launch(*turns(500, 100, full=50, empty=50), long))
    assert float(re.search(r'<svg[^>]* width="([\d.]+)"', pictures.picture(found))[1]) < 1000
    title, _, tips = svg_of(found)
    end = int(re.search(r"to ([\d,]+) ns", title)[1].replace(",", ""))
    assert 10_000 < end < 15_000  # of 50,000: 250 ranges
    assert len(tips) < 2000


def test_a_picture_of_many_pipelines_and_of_none():
    spans = [s for i in range(6) for s in turns(2, 100, pipeline=f"P{i}(1)")]
    _, texts, _ = svg_of(traced(launch(*spans)))
    assert "and 2 more pipelines" in texts
    assert [text for text in texts if text.startswith("P")] == [f"P{i}(1)" for i in range(4)]
    _, texts, _ = svg_of(traced())
    assert texts == ["nothing was launched"]
    assert svg_of(traced(launch()))[1] == ["nothing was launched"]


def boxes(ax):
    """Return the boxes of the texts that matplotlib draws, by text."""
    figure = ax.figure
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    texts = [*ax.get_yticklabels(), *ax.get_xticklabels(), ax.title, ax._left_title, *ax.texts]
    texts += [*ax.get_legend().get_texts(), ax.xaxis.label]
    return [(t.get_text(), t.get_window_extent(renderer)) for t in texts if t.get_text()]


@pytest.fixture
def closed():
    from matplotlib import pyplot

    yield
    pyplot.close("all")


@pytest.mark.parametrize(
    ("pipelines", "labels"),
    [
        (None, ["stage 0", "stage 1"]), ("holds='k'", ["stage 0", "stage 1"]),
        ("holds='v'", ["stage 0", "stage 1", "stage 2"]),
        (["holds='v'", "holds='k'"], [*V_STAGES, *K_STAGES]),
        ("KVPipeline", [*K_STAGES, *V_STAGES]),
        (("KVPipeline", "holds='v'"), [*K_STAGES, *V_STAGES]),
    ],
)  # fmt: skip
def test_a_timeline_of_chosen_pipelines(closed, pipelines, labels):
    ax = plot.timeline(traced(two_rings()), pipelines=pipelines)
    assert [t.get_text() for t in ax.get_yticklabels()] == labels
    assert ax.get_xlabel() == "ns"
    places = boxes(ax)
    for i, (text, box) in enumerate(places):
        for other, against in places[i + 1 :]:
            assert not box.overlaps(against), (text, other)
    for (i, at), (j, following) in pairwise(enumerate(ax.get_yticks())):
        apart = labels[i][0] != labels[j][0]  # rows of two pipelines
        assert following - at == pytest.approx(1.6 if apart else 1)
    widths = [round(patch.get_width()) for patch in ax.patches if patch.get_width()]
    assert 100 in widths  # a load


def test_a_timeline_of_nothing(closed):
    with pytest.raises(
        ValueError, match="no pipeline has 'x' in its name; there are: KV"
    ) as caught:
        plot.timeline(traced(two_rings()), pipelines="x")
    assert KV[1] in str(caught.value)
    with pytest.raises(ValueError, match="pipeline"):
        plot.timeline(traced(uneven(100)))
    with pytest.raises(ValueError, match="pipeline"):
        plot.timeline(traced())


def test_a_timeline_of_a_stage_that_is_still_loading(closed):
    spans = [s for s in turns(3, 200) if s.kind != "full" or s.end < 400]
    ax = plot.timeline(traced(launch(*spans)))
    ends = {p.get_x() + p.get_width() for p in ax.patches if p.get_width()}
    assert max(ends) == max(s.end for s in spans)
