"""Races mode without a GPU: the rules of its replay, its messages, and what kernels log."""

import functools
import pickle
import re

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma.backend.numba_cuda import race_check
from numba_tma.host import environment, races
from numba_tma.host.debug import Site
from numba_tma.host.race_judgement import clusters_of, races_of, without_repeats
from numba_tma.host.races import EVENT, EVENT_WORDS, HEADER, Kind
from numba_tma.tools.testing import find_tool, run_isolated
from tests.tiers import every

RACES = {"NUMBA_TMA_DEBUG": "races"}
TILE, OTHER, FULL, EMPTY = 0x400, 0x800, 0x8000, 0x8008
ALL = 0xFFFFFFFF
SEED = "1234567"
NAMES = [(TILE, "x[0] of TilePipeline"), (FULL, "full[0] of TilePipeline")]
SITES = [Site("'x.full'", "add"), Site("'x.empty'", "load")]


def event(kind, warp, address=0, size=0, other=0, *, rank=0, at=None, blocks=1, mask=0, line=0):
    where = rank if at is None else at
    row = (int(kind), warp, blocks, where, rank, address, size, other, line, rank, 4, mask)
    return row


def judge(*events, ended=True, names=NAMES):
    log = np.array([event(Kind.LABEL, 0, TILE, 0, 1), *events], EVENT)
    return races_of(log, (8, 1, 1), SITES, lambda *_: (names, 0x400), ended=ended)


def kinds(*events, ended=False):
    return [race.kind for race in judge(*events, ended=ended)]


def meet(*warps):
    return [event(Kind.MEET, w, 1, 64, ALL) for w in warps] + [event(Kind.MET, w, 1) for w in warps]


def fence(warp):
    return event(Kind.FENCE, warp)


def read(warp, **more):
    return event(Kind.READ, warp, TILE, 16, **more)


def write(warp, **more):
    return event(Kind.WRITE, warp, TILE, 16, **more)


def atomic(warp, **more):
    return event(Kind.ATOMIC, warp, TILE, 4, **more)


def load(warp, address=TILE, **more):
    return event(Kind.LOAD, warp, address, 512, FULL, **more)


def arrive(warp, barrier, nbytes=0):
    return event(Kind.ARRIVE, warp, barrier, 1, nbytes)


def wait(warp, barrier, parity):
    return event(Kind.WAITED, warp, barrier, parity)


START = [event(Kind.INIT, 0, FULL, 1), event(Kind.INIT, 0, EMPTY, 1), *meet(0, 1)]
FILL = [arrive(0, FULL, 512), load(0, line=1)]
EMPTIED = [wait(1, FULL, 0), read(1, line=2), arrive(1, EMPTY)]
STORE = [event(Kind.SOURCE, 0, TILE, 512), event(Kind.COMMIT, 0)]
DRAIN = [event(Kind.DRAINED, 0, 0, 0)]
PRODUCT = [event(Kind.PRODUCT, 1, TILE, 512), event(Kind.PRODUCT_COMMIT, 1)]
COPY = [event(Kind.COPY, 0, TILE, 16)]
BOTH = 0x8010
HALVES = [event(Kind.MEET, 0, 1, 64, lanes) for lanes in (0xFFFF, 0xFFFF0000)]
PAIR = [event(Kind.INIT, 0, BOTH, 2), *meet(0, 1)]

RIGHT = {
    "a stage that goes round": [
        *FILL, *EMPTIED, wait(0, EMPTY, 0), *FILL, wait(1, FULL, 1), read(1),
    ],
    "a fenced write, then a store": [write(1), fence(1), *meet(0, 1), *STORE, *DRAIN],
    "a drained store, then a write": [*STORE, *DRAIN, *meet(0, 1), write(1)],
    "another warp waits": [*FILL, wait(0, FULL, 0), *meet(0, 1), read(1)],
    "a product that was waited for": [
        *FILL, wait(1, FULL, 0), *PRODUCT, event(Kind.PRODUCT_DRAINED, 1), arrive(1, EMPTY),
        wait(0, EMPTY, 0), arrive(0, FULL, 512), load(0), wait(1, FULL, 1),
    ],
    "a copied stage": [*COPY, event(Kind.ARRIVE_COPIED, 0, FULL, 1), wait(1, FULL, 0), read(1)],
    "a copy that is drained": [
        *COPY, event(Kind.COPY_COMMIT, 0), event(Kind.COPY_DRAINED, 0), *meet(0, 1), read(1),
    ],
    "own words": [write(0), event(Kind.WRITE, 1, TILE + 16, 16), read(0)],
    "threads that have left a meeting": [
        write(0), event(Kind.MEET, 0, 2, 96, ALL), event(Kind.MEET, 1, 2, 96, ALL),
        event(Kind.MET, 0, 2), event(Kind.MET, 1, 2), read(1),
    ],
    "bytes expected without an arrival": [
        event(Kind.EXPECT, 0, FULL, 0, 512), arrive(0, FULL, 512), load(0, OTHER), load(0),
        wait(1, FULL, 0), read(1),
    ],
    "bytes completed by another warp": [
        write(1), event(Kind.EXPECT, 1, FULL, 0, 64), event(Kind.COMPLETE, 1, FULL, 0, 64),
        arrive(1, FULL), wait(0, FULL, 0), read(0),
    ],
    "a wait for the own arrival": [
        *PAIR, write(0), arrive(0, BOTH), arrive(1, BOTH), event(Kind.WAITED_OWN, 0, BOTH),
        event(Kind.WAITED_OWN, 1, BOTH), write(1), arrive(1, BOTH), arrive(0, BOTH),
        event(Kind.WAITED_OWN, 0, BOTH), read(0),
    ],
    "atomics": [atomic(0), atomic(1), atomic(0), *meet(0, 1), read(0), *meet(0, 1), atomic(1)],
    "fenced atomics, then a store": [
        atomic(1), fence(1), atomic(0), fence(0), *meet(0, 1), *STORE, *DRAIN,
    ],
    "turns of one meeting": [write(0), *meet(0, 1), *meet(0, 1), read(1)],
    "a write to another block": [
        event(Kind.UNTRACKED, 0), event(Kind.READ, 1, TILE + 64, 16),
    ],
    "a copy of unknown size": [
        event(Kind.UNCOUNTED, 0, FULL), event(Kind.READ, 1, TILE + 64, 16),
    ],
}  # fmt: skip
WRONG = {
    "no wait": ([*FILL, read(1)], "EarlyRead"),
    "the phase before": ([*FILL, wait(1, FULL, 1), read(1)], "EarlyRead"),
    "released too early": (
        [*FILL, wait(1, FULL, 0), arrive(1, EMPTY), read(1), wait(0, EMPTY, 0), *FILL],
        "EarlyOverwrite",
    ),
    "not waited for empty": ([*FILL, wait(1, FULL, 0), read(1), *FILL], "EarlyOverwrite"),
    "loaded twice": ([*FILL, load(0)], "EarlyOverwrite"),
    "fewer bytes expected": (
        [arrive(0, FULL, 512), load(0, OTHER), load(0), wait(1, FULL, 0), read(1)], "EarlyRead",
    ),
    "not fenced": ([write(1), *meet(0, 1), *STORE], "MissingFence"),
    "fenced by another": ([write(1), *meet(0, 1), fence(0), *STORE], "MissingFence"),
    "fenced, not met": ([write(1), fence(1), *STORE], "MissingFence"),
    "a store is under way": ([*STORE, *meet(0, 1), write(1)], "EarlyOverwrite"),
    "a product is under way": (
        [*FILL, wait(1, FULL, 0), *PRODUCT, arrive(1, EMPTY), wait(0, EMPTY, 0), *FILL],
        "EarlyOverwrite",
    ),
    "a copy is under way": ([*COPY, *meet(0, 1), read(1)], "EarlyRead"),
    "threads of another turn of the same meeting": (
        [write(0), *meet(0, 1), *meet(2, 3), read(2)], "EarlyRead",
    ),
    "written between two turns of all threads": (
        [event(Kind.MEET, 0, 0, 0, ALL), event(Kind.MEET, 1, 0, 0, ALL), event(Kind.MET, 0),
         write(0), event(Kind.MEET, 0, 0, 0, ALL), event(Kind.MET, 1), read(1)],
        "EarlyRead",
    ),
    "a fence does not drain another warp's store": (
        [*FILL, wait(0, FULL, 0), event(Kind.SOURCE, 1, OTHER, 512), event(Kind.COMMIT, 1),
         *meet(0, 1), fence(0), event(Kind.WRITE, 0, OTHER, 16)],
        "EarlyOverwrite",
    ),
    "threads write": ([write(0), write(1)], "EarlyOverwrite"),
    "an atomic and a write": ([write(0), atomic(1)], "EarlyOverwrite"),
    "a write and an atomic": ([atomic(0), write(1)], "EarlyOverwrite"),
    "an atomic and a read": ([write(0), *meet(0, 1), read(0), atomic(1)], "EarlyOverwrite"),
    "a read and an atomic": ([atomic(0), read(1)], "EarlyRead"),
    "an atomic and a load": ([*FILL, atomic(1)], "EarlyOverwrite"),
    "an atomic that is not fenced": ([atomic(1), *meet(0, 1), *STORE], "MissingFence"),
    "an atomic that is not fenced before a load": (
        [atomic(1), *meet(0, 1), *FILL], "MissingFence",
    ),
    "threads read": ([write(0), read(1)], "EarlyRead"),
    "bytes completed by other means": (
        [
            arrive(0, FULL, 512), event(Kind.COMPLETE, 0, FULL, 0, 512), load(0),
            wait(1, FULL, 0), read(1),
        ],
        "EarlyRead",
    ),
    "written after the own arrival": (
        [
            *PAIR, arrive(0, BOTH), arrive(1, BOTH), event(Kind.WAITED_OWN, 1, BOTH), write(0),
            read(1),
        ],
        "EarlyRead",
    ),
    "used after its end": ([event(Kind.INVAL, 0, FULL), arrive(1, FULL)], "BarrierMisuse"),
    "never written": ([event(Kind.READ, 1, TILE + 64, 16)], "UninitializedRead"),
    "written after its fence": ([fence(1), write(1), *meet(0, 1), *STORE], "MissingFence"),
    "copied after the wait for all copies": (
        [event(Kind.COPY_DRAINED, 0, 0, 0, 1), *COPY, *meet(0, 1), read(1)], "EarlyRead",
    ),
    "an arrival of the next phase, where the log lacks bytes of this one": (
        [arrive(0, FULL, 512), write(1), arrive(1, FULL), wait(0, FULL, 0), read(0)], "EarlyRead",
    ),
    "written after a turn in which the halves of a warp came one by one": (
        [*HALVES, event(Kind.MEET, 1, 1, 64, ALL), write(0), *HALVES, event(Kind.MET, 1, 1),
         read(1)],
        "EarlyRead",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_ordered_accesses_are_no_race(name):
    first = [] if "copi" in name or "copy" in name else [write(1), fence(1), *meet(0, 1)]
    assert kinds(*START, *first, *RIGHT[name]) == []


@pytest.mark.parametrize("name", WRONG)
def test_a_race_is_named(name):
    events, kind = WRONG[name]
    assert kinds(*START, *events)[0] == kind


@pytest.mark.parametrize(
    ("events", "kind"),
    [(FILL, "UnfinishedCopy"), (STORE, "UnfinishedCopy"), (COPY, "UnfinishedCopy")],
)
def test_a_copy_that_nobody_waits_for(events, kind):
    assert kinds(*START, write(0), fence(0), *events, ended=True)[-1] == kind
    assert kind not in kinds(*START, write(0), fence(0), *events, ended=False)


@pytest.mark.parametrize("at", [-16, 0, 16, 0x200, 0x3F0, 0x400])
def test_only_memory_of_the_kernel_can_be_known_to_be_unwritten(at):
    """The label says that x has 1,024 B."""
    found = kinds(event(Kind.READ, 1, TILE + at, 16))
    assert found == ["UninitializedRead"] * (0 <= at < 0x400)


def test_a_barrier_that_nothing_has_initialised():
    assert kinds(arrive(1, FULL)) == ["BarrierMisuse"]
    assert kinds(event(Kind.INIT, 0, FULL, 1), arrive(1, FULL)) == ["BarrierMisuse"]
    assert kinds(*START, arrive(1, FULL)) == []


def test_a_wait_that_has_passed_completes_its_phase():
    """Even if the log lacks an arrival; a wait for the phase before proves nothing."""
    start = [event(Kind.INIT, 0, FULL, 2), *meet(0, 1), write(0), arrive(0, FULL)]
    assert kinds(*start, wait(1, FULL, 0), read(1)) == []
    assert kinds(*start, wait(1, FULL, 1), read(1)) == ["EarlyRead"]


@pytest.mark.parametrize("dropped", [0, 1, 2, 3])
@pytest.mark.parametrize("written", ["in the phase", "after it"])
def test_later_phases_lack_the_arrivals_that_were_dropped(dropped, written):
    left = 4 - dropped
    start = [event(Kind.INIT, 0, BOTH, 4), *meet(0, 1), event(Kind.ARRIVE, 0, BOTH, left)]
    drop = [event(Kind.ARRIVE, 1, BOTH, dropped, mask=1)] if dropped else []
    phase, end = [arrive(0, BOTH)] * (left - 1), arrive(0, BOTH)
    step = [write(0), end] if written == "in the phase" else [end, write(0)]
    found = kinds(*start, *drop, *phase, *step, arrive(0, BOTH), wait(1, BOTH, 1), read(1))
    assert found == ([] if written == "in the phase" else ["EarlyRead"])


@pytest.mark.parametrize("between", [1, 61, 62, 63, 64, 200])
def test_a_phase_orders_its_arrivals_however_many_barriers_are_made_between_them(between):
    made = [event(Kind.INIT, 1, OTHER + 8 * i, 1) for i in range(between)]
    arrivals = [*PAIR, write(1), arrive(1, BOTH), *made, arrive(0, BOTH)]
    assert kinds(*arrivals, wait(0, BOTH, 0), read(0)) == []
    assert kinds(*arrivals, read(0)) == ["EarlyRead"]
    last = OTHER + 8 * (between - 1)
    assert kinds(*made, *meet(0, 1), write(0), arrive(0, last), wait(1, last, 0), read(1)) == []


GROUPS = {
    "stores": (Kind.SOURCE, Kind.COMMIT, Kind.DRAINED, Kind.WRITE, "EarlyOverwrite"),
    "products": (
        Kind.PRODUCT, Kind.PRODUCT_COMMIT, Kind.PRODUCT_DRAINED, Kind.WRITE, "EarlyOverwrite",
    ),
    "copies": (Kind.COPY, Kind.COPY_COMMIT, Kind.COPY_DRAINED, Kind.READ, "EarlyRead"),
}  # fmt: skip


@pytest.mark.parametrize("allowed", range(4))
@pytest.mark.parametrize("name", GROUPS)
def test_a_wait_covers_all_groups_but_the_newest(name, allowed):
    begins, commits, waits, accesses, error = GROUPS[name]
    places = [TILE + 16 * group for group in range(3)]
    written = [event(Kind.WRITE, 0, place, 16) for place in places] if name != "copies" else []
    groups = [e for p in places for e in (event(begins, 0, p, 16), event(commits, 0))]
    start = [*START, *written, fence(0), *groups, event(waits, 0, 0, allowed), *meet(0, 1)]
    for group, place in enumerate(places):
        late = group >= 3 - allowed
        assert kinds(*start, event(accesses, 1, place, 16)) == [error] * late


@pytest.mark.parametrize("warp", range(4))
def test_phases_of_a_barrier_tell_nothing_of_copies(warp):
    """What is known of each has columns of its own."""
    reader = (warp + 1) % 4
    start = [event(Kind.INIT, reader, BOTH, 1), *meet(warp, reader)]
    phases = [e for i in range(16) for e in (arrive(reader, BOTH), wait(reader, BOTH, i & 1))]
    copy = [event(Kind.COPY, warp, TILE, 16), *meet(warp, reader)]
    assert kinds(*start, *phases, *copy, read(reader)) == ["EarlyRead"]


def test_blocks_of_a_cluster():
    pair = [
        *(event(Kind.INIT, 0, FULL, 1, rank=r, blocks=2) for r in (0, 1)),
        *(
            event(Kind.CLUSTER_ARRIVE, w, other=ALL, rank=r, blocks=2)
            for r in (0, 1)
            for w in (0, 1)
        ),
        *(event(Kind.CLUSTER_WAITED, w, rank=r, blocks=2) for r in (0, 1) for w in (0, 1)),
    ]
    both = [
        event(Kind.ARRIVE, 0, FULL, 1, 512, rank=0, blocks=2),
        event(Kind.ARRIVE, 0, FULL, 1, 512, rank=1, blocks=2),
        event(Kind.LOAD, 0, TILE, 512, FULL, rank=0, blocks=2, mask=3),
    ]
    wanted = event(Kind.WAITED, 1, FULL, 0, rank=1, blocks=2)
    peer = event(Kind.READ, 1, TILE, 16, rank=1, blocks=2)
    assert kinds(*pair, *both, wanted, peer) == []
    assert kinds(*pair, *both, peer) == ["EarlyRead"]
    (race,) = judge(*pair, *both, peer, ended=False)
    assert "by warp 1 of block (1, 0, 0)" in str(races.error_of_races([race], (), 0))
    remote = event(Kind.ARRIVE, 0, FULL, 1, rank=0, at=1, blocks=2)
    assert kinds(*pair, remote, ended=True) == ["MissingClusterSync"]


@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_each_cluster_has_its_own_events_in_the_order_of_the_log(blocks):
    slots = [5, 0, 2, 5, 3, 1, 0, 4]
    rows = [event(Kind.READ, 0, 16 * i, rank=s, blocks=blocks) for i, s in enumerate(slots)]
    clusters = range(-(-6 // blocks))
    assert [part.tolist() for part in clusters_of(np.array(rows, EVENT))] == [
        [i for i, s in enumerate(slots) if s // blocks == cluster] for cluster in clusters
    ]
    assert list(clusters_of(np.array([], EVENT))) == []


def cluster_met(blocks):
    """Return the events of a cluster's start: its first warps make a barrier each, and meet."""
    ranks = range(blocks)
    return [
        *(event(Kind.INIT, 0, FULL, 1, rank=r, blocks=blocks) for r in ranks),
        *(event(Kind.CLUSTER_ARRIVE, 0, other=ALL, rank=r, blocks=blocks) for r in ranks),
        *(event(Kind.CLUSTER_WAITED, 0, rank=r, blocks=blocks) for r in ranks),
    ]


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("knows", [0, 1, 2])
def test_only_a_block_that_waits_is_known_to_live_until_a_remote_arrival(at, knows):
    """A block ends when it likes, whatever the other blocks wait for."""
    by = (at + 1) % 3
    arrivals = [
        event(Kind.ARRIVE, 0, FULL, 1, rank=by, at=at, blocks=3),
        event(Kind.ARRIVE, 0, FULL, 1, rank=by, at=knows, blocks=3),
        event(Kind.WAITED, 0, FULL, 0, rank=knows, at=knows, blocks=3),
    ]
    if at == knows:
        del arrivals[1]
    found = kinds(*cluster_met(3), *arrivals, ended=True)
    assert found == ([] if knows == at else ["MissingClusterSync"])


def test_the_message():
    first, second = ("/home/me/scale.py", 14), ("/home/me/scale.py", 21)
    lines = [races.line_number(place) for place in (first, second)]
    events = [
        *FILL, wait(1, FULL, 0), event(Kind.SITE, 1, FULL, 0, 1), arrive(1, EMPTY),
        read(1, line=lines[1]), wait(0, EMPTY, 0), event(Kind.SITE, 0, EMPTY, 0, 2),
        arrive(0, FULL, 512), load(0, line=lines[0]),
    ]  # fmt: skip
    error = races.error_of_races(judge(*START, *events, ended=False), (), 0)
    assert str(error) == (
        "EarlyOverwrite: x[0] of TilePipeline: a load by load warp 0 of block (0, 0, 0) at "
        "scale.py:14, and a read by add warp 1 of block (0, 0, 0) at scale.py:21: nothing orders "
        "them: no barrier or sync stands between"
    )
    assert isinstance(error, tma.PipelineError) and isinstance(error, tma.PipelineRace)
    copied = pickle.loads(pickle.dumps(error))
    assert copied.races == error.races and str(copied) == str(error)
    (race,) = judge(*START, *FILL, read(1, line=lines[1]), ended=False)
    assert race.rule == (
        "the load completes phase 0 (parity 0) of full[0] of TilePipeline, and no wait for it "
        "comes before"
    )
    lost = races.error_of_races([race, race], (), 2000)
    assert str(lost).splitlines()[1] == "1 more:"
    assert str(lost).endswith("2,000 steps are not in the log and were not checked")


def test_the_first_20_races_of_a_launch_are_kept():
    names = [(TILE + 16 * i, f"tile {i}") for i in range(32)]
    for number in (19, 20, 21, 32):
        places = [(warp, place) for place, _ in names[:number] for warp in (0, 1)]
        writes = [event(Kind.WRITE, warp, place, 16) for warp, place in places]
        found = judge(*writes, ended=False, names=names)
        assert [race.where for race in found] == [name for _, name in names[: min(20, number)]]


def test_a_race_names_the_indices_of_its_blocks():
    """In the grid of the launch: x is the fastest, z the slowest."""
    x, y, z = np.mgrid[:3, :4, :5].reshape(3, -1)
    for block in zip(x.tolist(), y.tolist(), z.tolist()):
        linear = block[0] + 3 * block[1] + 12 * block[2]
        log = np.array([event(Kind.WRITE, warp, TILE, 16) for warp in (0, 1)], EVENT)
        log["block"] = linear
        (race,) = races_of(log, (3, 4, 5), SITES, lambda *_: ([], 0), ended=False)
        assert race.step.block == race.other.block == block


def test_ends_of_a_wait_by_each_lane_are_one_event():
    ends = [wait(1, FULL, 0)] * 3
    log = np.array([*ends, read(0), wait(1, FULL, 0), read(1), wait(1, FULL, 0), *FILL], EVENT)
    kept = log[without_repeats(log)]
    assert kept["kind"].tolist() == [
        Kind.WAITED, Kind.READ, Kind.READ, Kind.WAITED, Kind.ARRIVE, Kind.LOAD,
    ]  # fmt: skip
    arrivals = np.array([arrive(1, EMPTY)] * 3, EVENT)
    assert without_repeats(arrivals).all()


class DeviceWords:
    """An array of words on a device."""

    def __init__(self, words):
        self.words = words

    def __getitem__(self, part):
        return DeviceWords(self.words[part])

    def copy_to_host(self):
        return self.words.copy()

    def copy_to_device(self, words):
        self.words[:] = words


def test_the_log_has_words_for_its_header_and_every_event(monkeypatch):
    monkeypatch.setattr(cuda, "to_device", lambda words: words)
    monkeypatch.setattr(cuda, "mapped_array", lambda size, kind: np.full(size, 7, kind))
    header, slots = races._header.__wrapped__(), races._events.__wrapped__()
    assert (header.dtype, header.size) == (np.uint32, HEADER)
    assert HEADER == 64 + 32 * 32 * races.SEEN  # for each warp of each tracked block
    assert (slots.dtype, slots.size) == (EVENT, races.CAPACITY)
    assert 4 * EVENT_WORDS == EVENT.itemsize
    assert not header.any() and not slots.view(np.uint32).any()


@pytest.fixture
def log(monkeypatch):
    """Return the slots of a log, of which three are taken and the second is not written."""
    slots = np.array([read(0), (0,) * len(EVENT), write(1), read(1)], EVENT)
    header = np.zeros(HEADER, np.uint32)
    header[0] = 3
    monkeypatch.setattr(races, "_header", lambda: DeviceWords(header))
    monkeypatch.setattr(races, "_events", lambda: slots)
    monkeypatch.setattr(cuda, "synchronize", lambda: None)
    return slots


def test_slots_without_an_event_are_counted(log):
    events, lost = races.read_log()
    assert events["kind"].tolist() == [Kind.READ, Kind.WRITE] and lost == 1


def test_the_events_before_a_failure_are_all_that_were_written(log, monkeypatch):
    monkeypatch.setattr(races, "_header", lambda: pytest.fail("it is gone with its context"))
    kinds = races.read_log_after_failure()["kind"].tolist()
    assert kinds == [Kind.READ, Kind.WRITE, Kind.READ]


def test_a_race_before_a_failure_is_raised_from_it(monkeypatch):
    fault = RuntimeError("launch failure")
    written = np.array([*START, *FILL, read(1), *FILL], EVENT)
    monkeypatch.setattr(races, "read_log_after_failure", lambda: written)
    with pytest.raises(races.PipelineRace) as caught:
        race_check.check_after_failure((8, 1, 1), fault)
    assert caught.value.__cause__ is fault and caught.value.races
    unfinished = np.array([*START, write(0), fence(0), *FILL], EVENT)
    assert races_of(unfinished, (8, 1, 1), SITES, lambda *_: (NAMES, 0x400), ended=True)
    for harmless in (unfinished, written[:0]):  # a launch that failed had no time to wait
        monkeypatch.setattr(races, "read_log_after_failure", lambda it=harmless: it)
        assert race_check.check_after_failure((8, 1, 1), fault) is None
    assert race_check.check_after_failure((8, 1, 1), fault) is None


def test_a_log_that_is_cleared_has_no_event(log):
    races.clear_log()
    assert races.read_log()[1] == 0 and not log[:3].view(np.uint32).any()
    assert log[3]["kind"] == Kind.READ  # beyond what was taken


def test_the_steps_before_a_race():
    from tests.gpu.race_report import trail

    reads = [event(Kind.LINE, 1), wait(1, FULL, 0), wait(0, FULL, 0), read(1), read(1)]
    log = np.array([*START, *FILL, *reads, *FILL], EVENT)
    race = races_of(log, (8, 1, 1), SITES, lambda *_: ([], 0), ended=False)[0]
    assert race.number == len(log) - 1 and log[race.number]["kind"] == Kind.LOAD
    lines = trail(log, 2, race)
    assert lines[0].endswith("no barrier or sync stands between; 2 steps are not in the log")
    assert lines[-3] == f"  {len(log) - 4}: block 0 warp 1: 2 x READ 0x400 size 16 other 0x0"
    assert "1 x LOAD 0x400 size 512 other 0x8000" in lines[-1]
    assert not any("LINE" in line for line in lines)


def condition_of(typ, values):
    """Return the comparison that guards the log of a conditional access, as LLVM IR."""
    from llvmlite import ir

    from numba_tma.backend.lowering import races

    word = ir.IntType(32)
    function = ir.Function(ir.Module(), ir.FunctionType(word, [word, word, ir.IntType(1)]), "f")
    builder = ir.IRBuilder(function.append_basic_block())
    given = [function.args[i] for i in values]
    return str(races._happens(None, builder, typ, given if len(given) > 1 else given[0]))


def test_an_access_below_a_limit_is_logged_below_it():
    """The last warp's share of a row was logged beyond the row: the index was the predicate."""
    from numba_tma.backend.compiler import types
    from numba_tma.backend.lowering.operands import BELOW

    assert 'icmp slt i32 %".1", %".2"' in condition_of(BELOW, [0, 1])
    assert "icmp ne i32" in condition_of(types.boolean, [2])


def test_an_event_is_two_vectors():
    assert EVENT.itemsize == 32
    assert [EVENT.fields[n][1] for n in ("slot", "other", "warps")] == [4, 16, 28]


def test_the_switch(monkeypatch):
    for value, racing in (("races", True), ("RACES", True), ("1", False), ("", False)):
        monkeypatch.setenv("NUMBA_TMA_DEBUG", value)
        assert environment.racing.__wrapped__() is racing
    for value, seed in (("", 0), ("7", 7)):
        monkeypatch.setenv("NUMBA_TMA_DEBUG_SEED", value)
        assert environment.debug_seed.__wrapped__() == seed
    monkeypatch.setenv("NUMBA_TMA_DEBUG_SEED", "often")
    with pytest.raises(ValueError, match="NUMBA_TMA_DEBUG_SEED='often': the seed of the delays"):
        environment.debug_seed.__wrapped__()


# ------------------------------------------------------------------------------- compiled


def compiled_programs(names):
    """Return what each program's kernel logs, and what it does not take to the assembler."""
    from numba_tma.tools.testing import compile_ptx, ptxas
    from tests.cpu.simulator.test_mutants import signature
    from tests.mutants.mutants import PROGRAMS

    found = {}
    for program in PROGRAMS:
        if program.pipeline in names:
            kernel, _, _ = program.build()
            ptx = compile_ptx(kernel, signature(program), cc=(9, 0, "a"))
            ptxas(ptx, "sm_90a")
            calls = re.findall(r"call.*\n?.*device.{1,4}races.{1,6}(note_access|note)", ptx)
            found[program.pipeline] = calls.count("note"), calls.count("note_access")
    return found


def names_in_a_program():
    from numba_tma.backend.numba_cuda.race_check import names_of
    from numba_tma.tools.testing import compile_ptx
    from tests.cpu.simulator.test_mutants import signature
    from tests.mutants.programs import RING

    kernel, _, _ = RING.build()
    ptx = compile_ptx(kernel, signature(RING), cc=(9, 0, "a"))
    mixes = re.findall(r"xor\.b32\s+%r\d+, %r\d+, (-?\d+);", ptx)
    return *names_of(1, 0x400, 0xC00), SEED in mixes, ".maxntid 96" in ptx


def test_a_programs_names_seed_and_launch_bounds():
    """Tiles and barriers have the simulator's names; the log needs the registers of a block."""
    names, nbytes, seeded, bounded = in_races_mode()["names_in_a_program"]
    assert seeded and bounded
    assert nbytes == 2048
    assert (0x600, "a[1] of TilePipeline") in names and (0x800, "b[0] of TilePipeline") in names
    assert (0xC08, "full[1] of TilePipeline") in names
    assert (0xC10, "empty[0] of TilePipeline") in names


def syncs_in_a_program():
    from numba_tma.tools.testing import compile_ptx
    from tests.cpu.simulator.test_mutants import signature
    from tests.mutants.programs import CP_ASYNC

    kernel, _, _ = CP_ASYNC.build()
    ptx = compile_ptx(kernel, signature(CP_ASYNC), cc=(9, 0, "a"))
    return re.findall(r"bar\.warp\.sync\s+(\S+);", ptx), "popc" in ptx


def test_each_lane_logs_its_own_arrival_and_no_sync_is_left_out():
    """One lane's log of a warp's arrivals came with alarms; ptxas drops syncs of a known mask."""
    masks, counted = in_races_mode()["syncs_in_a_program"]
    assert masks and all(mask.startswith("%r") for mask in masks)
    assert not counted


def products_of_a_kernel():
    """Return the groups of products, and those that no sync of the warp precedes after a call."""
    from numba_tma.kernels.matmul.block_scaled_kernel import block_scaled_kernel
    from numba_tma.kernels.matmul.block_scaled_plan import ScaledConfig
    from numba_tma.tools.assembling import sass
    from numba_tma.tools.testing import compile_ptx
    from tests.kernels.block_forms import scaled_form, scaled_signature

    form = scaled_form(ScaledConfig(64, 64))
    ptx = compile_ptx(block_scaled_kernel(form), scaled_signature(form), cc=(9, 0, "a"))
    code = re.findall(r"CALL|WARPSYNC|WARPGROUP\.ARRIVE", sass(ptx, "sm_90a"))
    groups = [i for i, name in enumerate(code) if name == "WARPGROUP.ARRIVE"]
    return len(groups), sum(code[i - 1] == "CALL" for i in groups)


def the_first_program():
    return compiled_programs(PROGRAMS[:1])


def all_in_one_process():
    cases = [names_in_a_program, syncs_in_a_program, the_first_program]
    cases += [products_of_a_kernel] if find_tool("nvdisasm") else []
    return {case.__name__: case() for case in cases}


@functools.cache
def in_races_mode():
    """Return what each of the functions returns where NUMBA_TMA_DEBUG=races."""
    chosen = RACES | {"NUMBA_TMA_DEBUG_SEED": SEED}
    return run_isolated(all_in_one_process, timeout=240, env=chosen)


@pytest.mark.skipif(find_tool("nvdisasm") is None, reason="needs nvdisasm")
def test_a_warp_is_converged_before_its_products():
    """A second product of a stage followed the log without a sync, and the GPU ended the launch."""
    groups, alone = in_races_mode()["products_of_a_kernel"]
    assert groups == 8 and alone == 0


PROGRAMS = (
    "TilePipeline, multicast", "TilePipeline", "TilePipeline, filled_by='cp_async'",
    "TilePipeline, filled_by='threads'", "TilePipeline in scopes", "StorePipeline",
    "OrderedSequenceBarrier", "OutputTilePipeline", "KVPipeline", "CircularBuffer",
    "CircularBuffer, war='mbarrier'", "barriers by hand",
)  # fmt: skip


@pytest.mark.parametrize("name", every(12, PROGRAMS))
def test_every_pipeline_logs_its_steps(name):
    if name == PROGRAMS[0]:
        found = in_races_mode()["the_first_program"]
    else:
        found = run_isolated(compiled_programs, [name], timeout=240, env=RACES)
    assert all(min(counts) > 0 for counts in found.values()) and set(found) == {name}


def compiled_kernels(names):
    from numba_tma.tools.testing import ptxas
    from tests.kernels.golden_kernels import compiled

    return [ptxas(compiled(name, (9, 0, "a")), "sm_90a").registers for name in names]


KERNELS = (
    "copy_tiles", "rmsnorm_stages", "layernorm_cluster", "softmax_staged", "swiglu", "transpose_2",
    "matmul", "matmul_swapped", "grouped_matmul", "block_scaled", "attention",
    "attention_backward", "kv_pipeline", "ring_cluster_2x2",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_shipped_kernels_assemble(name):
    assert run_isolated(compiled_kernels, [name], timeout=600, env=RACES)[0] <= 255
