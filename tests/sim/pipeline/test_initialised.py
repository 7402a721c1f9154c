"""Which barriers the start of a ring makes, where, and for how many arrivals."""

from types import SimpleNamespace

import pytest

from numba_tma.pipeline import circular_handle, start
from numba_tma.pipeline.start import CONSUMER_BARRIER, MAX_ROLES

AT, EMPTY, LEDGER, MEETINGS, THREADS = 1024, 64, 128, 256, 160


def pipeline(**options):
    given = {
        "num_stages": 3, "full_arrivals": 2, "empty_arrivals": 5, "empty_offset": EMPTY,
        "ledger_offset": 0, "debug": False, "block": 0, "sync_offset": MEETINGS,
        "sync_arrivals": (0,) * (MAX_ROLES + 1), "in_cluster": False,
    }  # fmt: skip
    return SimpleNamespace(**(given | options))


STEPS = (
    *("mbarrier_init", "st_shared_u64", "fence_mbarrier_init"),
    *("barrier_cluster_arrive", "barrier_cluster_wait", "barrier_sync"),
)


def noted(monkeypatch, module):
    """Return a list that gets each step of the functions of a module."""
    log = []
    for name in STEPS:
        if hasattr(module, name):
            step = lambda *given, name=name: log.append((name, *given))  # noqa: E731
            monkeypatch.setattr(module, name, step)
    return log


@pytest.fixture
def started(monkeypatch):
    """Return what a thread does when it starts a ring."""

    def steps(ring, thread=0, sync=True):
        log = noted(monkeypatch, start)
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
    assert started(pipeline(in_cluster=True))[-3:] == [
        ("barrier_cluster_arrive", "relaxed"), log[-1], ("barrier_cluster_wait",)
    ]  # fmt: skip
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


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("thread", [0, 1])
@pytest.mark.parametrize(
    ("debug", "by_mbarrier", "arrivals", "meeting"),
    [(False, True, 5, 0), (True, True, 0, 0), (True, False, 5, 64)],
)
def test_a_circular_buffer_has_full_barriers_of_each_operand(
    monkeypatch, debug, by_mbarrier, arrivals, meeting, thread, sync
):
    """Two of each of three stages; debug mode has a ledger of each, which begins at 0."""
    ring = SimpleNamespace(
        num_stages=3, num_full=2, by_mbarrier=by_mbarrier, empty_arrivals=arrivals,
        empty_offset=EMPTY, debug=debug, sync_offset=MEETINGS, sync_threads=meeting,
        ledger_offset=LEDGER,
    )  # fmt: skip
    log = noted(monkeypatch, circular_handle)
    circular_handle.initialise_circular(ring, AT, thread, THREADS, sync)
    made = {8 * number: 1 for number in range(6)}
    if by_mbarrier:  # without a number of arrivals every warp releases
        made |= {EMPTY + 8 * stage: arrivals or THREADS // 32 for stage in range(3)}
    made |= {MEETINGS: meeting or THREADS} if debug else {}
    ledgers = [("st_shared_u64", AT + LEDGER + 8 * n, 0) for n in range(6)] if debug else []
    assert inits(log) == (made if thread == 0 else {})
    assert [each for each in log if each[0] == "st_shared_u64"] == (ledgers if thread == 0 else [])
    ends = [("fence_mbarrier_init",)] * (thread == 0) + [("barrier_sync", 0, THREADS)] * sync
    assert log[-2:][-len(ends):] == ends if ends else not log
