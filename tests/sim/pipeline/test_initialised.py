"""Which barriers the start of a ring makes, where, and for how many arrivals."""

from types import SimpleNamespace

import pytest

from numba_tma.pipeline import start
from numba_tma.pipeline.start import CONSUMER_BARRIER, MAX_ROLES

AT, EMPTY, LEDGER, MEETINGS, THREADS = 1024, 64, 128, 256, 160


def pipeline(**options):
    given = {
        "num_stages": 3, "full_arrivals": 2, "empty_arrivals": 5, "empty_offset": EMPTY,
        "ledger_offset": 0, "debug": False, "block": 0, "sync_offset": MEETINGS,
        "sync_arrivals": (0,) * (MAX_ROLES + 1), "in_cluster": False,
    }  # fmt: skip
    return SimpleNamespace(**(given | options))


@pytest.fixture
def started(monkeypatch):
    """Return what a thread does when it starts a ring."""

    def steps(ring, thread=0, sync=True):
        log = []
        for name in (
            "mbarrier_init", "st_shared_u64", "fence_mbarrier_init", "cluster_sync", "barrier_sync",
        ):  # fmt: skip
            monkeypatch.setattr(start, name, lambda *given, name=name: log.append((name, *given)))
        start.initialise(ring, AT, thread, THREADS, sync)
        return log

    return steps


def inits(log):
    return {at - AT: count for name, at, count in (each for each in log if len(each) == 3)
            if name == "mbarrier_init"}  # fmt: skip


RING = {0: 2, 8: 2, 16: 2, EMPTY: 5, EMPTY + 8: 5, EMPTY + 16: 5}


def test_each_stage_has_two_barriers(started):
    log = started(pipeline())
    assert inits(log) == RING and len(log) == len(RING) + 2
    assert log[-2:] == [("fence_mbarrier_init",), ("barrier_sync", 0, THREADS)]
    assert started(pipeline(), thread=1) == log[-1:], "one thread initialises"
    assert started(pipeline(), sync=False) == log[:-1]
    assert started(pipeline(in_cluster=True))[-1] == ("cluster_sync",)
    assert started(pipeline(in_cluster=True), sync=False) == log[:-1]


def test_without_roles_each_warp_but_the_producer_s_releases(started):
    found = inits(started(pipeline(empty_arrivals=0)))
    assert [found[EMPTY + 8 * stage] for stage in range(3)] == [THREADS // 32 - 1] * 3


def test_debug_mode_counts_bytes_and_meetings(started):
    log = started(pipeline(debug=True, ledger_offset=LEDGER))
    assert inits(log) == RING | {MEETINGS + 8 * CONSUMER_BARRIER: THREADS - 32}
    ledgers = [each for each in log if each[0] == "st_shared_u64"]
    assert ledgers == [("st_shared_u64", AT + LEDGER + 8 * stage, 0) for stage in range(3)]


def test_debug_mode_has_a_meeting_of_each_role(started):
    arrivals = tuple(32 * (number % 3) for number in range(MAX_ROLES + 1))
    meetings = {MEETINGS + 8 * n: count for n, count in enumerate(arrivals) if count}
    found = inits(started(pipeline(debug=True, block=1, sync_arrivals=arrivals)))
    assert found == RING | meetings
    assert inits(started(pipeline(block=1, sync_arrivals=arrivals))) == RING
