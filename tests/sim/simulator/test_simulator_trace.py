"""Traces: the recorded events, and their timeline."""

import re

import numpy as np
import pytest
from numba import cuda

from numba_tma import simulator as sim
from numba_tma.simulator.trace import _PANELS, _WIDTH

STAGES, NBYTES = 3, 256


def wait(barrier, parity):
    while not sim.mbarrier_try_wait_parity(barrier, parity):
        pass


@cuda.jit
def pipeline(x, y, tiles, name, stages):
    """One thread loads, the other stores what it was given."""
    ring = sim.allocate_shared("ring", stages * NBYTES, 128)
    full = sim.allocate_shared("full", 8 * stages, 8)
    empty = sim.allocate_shared("empty", 8 * stages, 8)
    t = cuda.threadIdx.x
    if t == 0:
        for s in range(stages):
            sim.label(full + 8 * s, f"full[{s}] of {name}")
            sim.label(empty + 8 * s, f"empty[{s}] of {name}")
            sim.mbarrier_init(full + 8 * s, 1)
            sim.mbarrier_init(empty + 8 * s, 1)
        sim.fence_mbarrier_init()
    cuda.syncthreads()
    for i in range(tiles):
        s, parity = i % stages, i // stages & 1
        if t == 0:
            wait(empty + 8 * s, parity ^ 1)
            sim.mbarrier_arrive_expect_tx(full + 8 * s, NBYTES)
            sim.cp_async_bulk_load(
                ring + s * NBYTES, x[i * NBYTES : (i + 1) * NBYTES], full + 8 * s
            )
        else:
            wait(full + 8 * s, parity)
            sim.cp_async_bulk_store(y[i * NBYTES : (i + 1) * NBYTES], ring + s * NBYTES)
            sim.cp_async_bulk_commit_group()
            sim.cp_async_bulk_wait_group_read(0)
            sim.mbarrier_arrive(empty + 8 * s)


def recorded(tiles, blocks=1, seed=0, name="Pipe(3, x)", stages=STAGES):
    sim.seed(seed)
    x = np.arange(tiles * NBYTES).astype(np.uint8)
    y = np.zeros_like(x)
    with sim.record() as trace:
        pipeline[blocks, 2](x, y, tiles, name, stages)
    np.testing.assert_array_equal(x, y)
    return trace


def test_events():
    trace = recorded(4)
    counts = {}
    for event in trace.events:
        counts[event.kind] = counts.get(event.kind, 0) + 1
    assert counts == {
        "issue": 4, "landed": 4, "full": 4, "arrive": 4, "wait": 4 + 1, "release": 4, "empty": 4,
        "store": 4, "store_read": 4, "store_done": 4, "exit": 2,
        "awaited": 4 + 4, "drained": 4, "met": 1,
    }  # fmt: skip
    issue = next(e for e in trace.events if e.kind == "issue")
    assert (issue.label, issue.nbytes) == ("full[0] of Pipe(3, x)", NBYTES)
    moved = {(e.kind, e.nbytes) for e in trace.events}
    loads, stores = ("issue", "landed", "arrive"), ("store", "store_read", "store_done")
    without = ("full", "empty", "wait", "release", "exit", "awaited", "drained", "met")
    assert moved == {(k, NBYTES) for k in (*loads, *stores)} | {(k, 0) for k in without}
    assert (issue.block, issue.thread, issue.warp) == ((0, 0, 0), (0, 0, 0), 0)
    times = [e.time for e in trace.events]
    assert times == sorted(times)
    for kinds in (("issue", "landed", "full", "wait", "store", "store_read", "release", "empty"),):
        first = [next(e.time for e in trace.events if e.kind == kind) for kind in kinds]
        assert first == sorted(first)


def test_nothing_is_recorded_outside():
    trace = recorded(1)
    before = len(trace.events)
    recorded(1)
    assert len(trace.events) == before


def test_timeline():
    trace = recorded(7)
    text = trace.timeline()
    lines = text.splitlines()
    assert lines[0] == "Pipe(3, x) in block (0, 0, 0): 7 fills, 1792 bytes loaded"
    assert all(len(line) <= 100 for line in lines)
    rows = {s: "" for s in range(STAGES)}
    for line in lines:
        for s in rows:
            if line.startswith(f"  stage {s} "):
                rows[s] += line.split("|")[1]
    for s, row in rows.items():
        squeezed = "".join(a for a, b in zip(row, row[1:] + "!") if a != b).strip(".")
        # Every fill passes through all four states, in this order.
        assert squeezed.split(".") == [">=#"] * (3 if s == 0 else 2)
    assert any(line.startswith("  stores ") for line in lines)
    assert "> loading" in lines[-1]
    assert text == recorded(7).timeline()
    assert len({recorded(7, seed=seed).timeline() for seed in range(8)}) > 1


def test_stages_are_listed_by_number_and_stores_last():
    lines = recorded(12, stages=12).timeline().splitlines()
    rows = [line.partition("|")[0].strip() for line in lines if "|" in line]
    panels = [rows[start : start + 13] for start in range(0, len(rows), 13)]
    assert panels and all(
        panel == [f"stage {s}" for s in range(12)] + ["stores"] for panel in panels
    )


def happened(*steps):
    """Return a trace of one block's events: (kind, label) at times 100, 101, ..."""
    corner = (0, 0, 0)
    return sim.EventTrace(
        [sim.Event(0, 100 + i, corner, corner, 0, *step, NBYTES) for i, step in enumerate(steps)]
    )


def joined(timeline, row):
    """Return a row of a timeline, over all of its panels."""
    return "".join(
        line.split("|")[1] for line in timeline.splitlines() if line.startswith(f"  {row} ")
    )


def test_stores_in_flight_are_counted_up_to_9():
    begun, done = [("store", "")] * 11, [("store_done", "")] * 11
    trace = happened(("issue", "full[0] of P"), *begun, *done)
    assert joined(trace.timeline(), "stores") == ".123456789+987654321."


@pytest.mark.parametrize(
    "rounds", [1, *(n // 2 + i for n in (_WIDTH, _WIDTH * _PANELS) for i in (-1, 0, 1, 30))]
)
def test_each_change_has_a_column_until_the_panels_are_full(rounds):
    trace = happened(*[("issue", "full[1] of P"), ("full", "full[1] of P")] * rounds)
    text, most = trace.timeline(), _WIDTH * _PANELS
    shown = min(2 * rounds, most)
    assert joined(text, "stage 1") == (">=" * rounds)[:most]
    assert f"{rounds} fills, {rounds * NBYTES} bytes loaded" in text
    steps = re.findall(r"steps (\d+) to (\d+)", text)
    starts = range(0, shown, _WIDTH)
    ends = [min(start + _WIDTH, shown) for start in starts]
    assert steps == [(str(100 + a), str(99 + b)) for a, b in zip(starts, ends)]
    left_out = re.findall(r"and (\d+) later changes", text)
    assert left_out == ([str(2 * rounds - most)] if 2 * rounds > most else [])


def test_a_long_timeline_is_wrapped_and_cut():
    lines = recorded(200).timeline().splitlines()
    assert len(lines) < 60 and all(len(line) <= 100 for line in lines)
    assert any("later changes" in line for line in lines)


def test_blocks_and_pipelines():
    trace = recorded(2, blocks=3)
    assert "(2 more pipelines or blocks not shown)" in trace.timeline()
    both = trace.timeline(blocks=2)
    assert "block (0, 0, 0)" in both and "block (1, 0, 0)" in both and "(1 more" in both
    assert "more" not in trace.timeline(blocks=3)
    assert {event.run for event in trace.events} == {0, 1, 2}


def test_a_long_name_is_cut():
    assert max(map(len, recorded(1, name="P" * 200).timeline().splitlines())) <= 100


def test_no_stages():
    with sim.record() as trace:
        cuda.jit(lambda: None)[1, 1]()
    assert trace.timeline() == "no pipeline stage was used"
