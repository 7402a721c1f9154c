"""Races in short logs that are written by hand: groups of copies, waits, multicasts, arrivals."""

import itertools

import numpy as np
import pytest

from numba_tma.host.race_judgement import races_of
from numba_tma.host.races import EVENT, Kind

BAR, OTHER, NBYTES = 0x8000, 0x8008, 64


def step(kind, address=0, size=0, other=0, *, warp=0, rank=0, at=None, mask=0):
    """Return an event of a warp of the block `rank`, without what all events of a log share."""
    return kind, warp, rank if at is None else at, rank, address, size, other, mask


def found(*steps, blocks=1, ended=False):
    """Return the hazards that the events of one cluster show."""
    events = np.zeros(len(steps), EVENT)
    for event, (kind, warp, at, rank, address, size, other, mask) in zip(events, steps):
        event["kind"], event["warp"], event["rank"], event["mask"] = kind, warp, at, mask
        event["slot"] = event["block"] = rank
        event["address"], event["size"], event["other"] = address, size, other
    events["blocks"], events["warps"] = blocks, 2
    races = races_of(events, (64, 1, 1), [], lambda *_: ([], 0), ended=ended)
    return [race.kind for race in races]


def place(i):
    return i * NBYTES


def write(i, **more):
    return step(Kind.WRITE, place(i), NBYTES, **more)


def read(i, **more):
    return step(Kind.READ, place(i), NBYTES, **more)


def in_clusters(blocks, counts):
    """Return a log that initialises barriers, whose cluster then meets."""
    log = [step(Kind.INIT, address, n, rank=r) for r in range(blocks) for address, n in counts]
    every = list(itertools.product(range(blocks), (0, 1)))
    log += [step(Kind.CLUSTER_ARRIVE, 0, 0, 0xFFFFFFFF, rank=r, warp=w) for r, w in every]
    return log + [step(Kind.CLUSTER_WAITED, rank=r, warp=w) for r, w in every]


QUEUES = {
    "bulk copies": (Kind.SOURCE, Kind.COMMIT, Kind.DRAINED),
    "products": (Kind.PRODUCT, Kind.PRODUCT_COMMIT, Kind.PRODUCT_DRAINED),
}


@pytest.mark.parametrize("queue", QUEUES)
def test_a_wait_for_all_groups_but_some_is_for_the_first_ones(queue):
    source, commit, drained = QUEUES[queue]
    other = next(name for name in QUEUES if name != queue)
    for groups, left, written in itertools.product(range(1, 4), range(4), range(3)):
        if written >= groups:
            continue
        log = [*map(write, range(groups)), step(Kind.FENCE)]
        for group in range(groups):
            log += [step(source, place(group), NBYTES), step(commit)]
        open_ = written >= groups - left
        assert found(*log, step(drained, 0, left), write(written)) == ["EarlyOverwrite"] * open_
        assert found(*log, write(written)) == ["EarlyOverwrite"]
        assert found(*log, step(QUEUES[other][2]), write(written)) == ["EarlyOverwrite"]
        assert found(*log, read(written)) == []


def test_a_wait_for_groups_of_cp_async_is_for_the_first_ones():
    for groups, left, place_read in itertools.product(range(1, 4), range(4), range(3)):
        if place_read >= groups:
            continue
        log = []
        for group in range(groups):
            log += [step(Kind.COPY, place(group), NBYTES), step(Kind.COPY_COMMIT)]
        waits, waits_for_all = (step(Kind.COPY_DRAINED, 0, left, all_) for all_ in (0, 1))
        open_ = place_read >= groups - left
        assert found(*log, waits, read(place_read)) == ["EarlyRead"] * open_
        assert found(*log, waits_for_all, read(place_read)) == []
        assert found(*log, read(place_read)) == ["EarlyRead"]


@pytest.mark.parametrize("mask", range(8))
def test_a_multicast_lands_in_the_blocks_of_its_mask(mask):
    """In its own block without one. Who waits in its block may read."""
    into = [rank for rank in range(3) if mask >> rank & 1] or [1]
    log = in_clusters(3, [(BAR, 1)])
    log += [step(Kind.ARRIVE, BAR, 1, NBYTES, rank=rank) for rank in into]
    log += [step(Kind.LOAD, place(0), NBYTES, BAR, rank=1, mask=mask)]
    for rank in range(3):
        waits = step(Kind.WAITED, BAR, 0, rank=rank)
        assert found(*log, read(0, rank=rank), blocks=3) == ["EarlyRead"] * (rank in into)
        if rank in into:
            assert found(*log, waits, read(0, rank=rank), blocks=3) == []


def test_a_wait_learns_what_came_before_the_arrivals_of_its_phase():
    meet = [step(Kind.MEET, 0, 0, 0xFFFFFFFF, warp=warp) for warp in (0, 1)]
    both = [step(Kind.INIT, BAR, 1), *meet, step(Kind.MET, warp=0), step(Kind.MET, warp=1)]
    phases = [s for i in range(3) for s in (write(i), step(Kind.ARRIVE, BAR, 1))]
    for waits, i in itertools.product(range(4), range(3)):
        waited = [step(Kind.WAITED, BAR, phase & 1, warp=1) for phase in range(waits)]
        for end in range(3):  # the log ends with phases that nobody has waited for
            own = [*phases[: 2 * min(waits, 3)], *waited, *phases[2 * waits : 2 * waits + 2 * end]]
            expected = "EarlyRead" if waits <= i < waits + end else ""
            races = found(*both, *own, read(i, warp=1))
            assert races == [expected] * bool(expected), (waits, i, end)


@pytest.mark.parametrize("warp", [0, 1])
def test_a_kernel_ends_after_its_copies(warp):
    for groups, left in itertools.product(range(1, 4), range(4)):
        bulk, small = [write(0, warp=warp), step(Kind.FENCE, warp=warp)], []
        for group in range(groups):
            bulk += [step(Kind.SOURCE, place(0), NBYTES, warp=warp), step(Kind.COMMIT, warp=warp)]
            small += [
                step(Kind.COPY, place(group), NBYTES, warp=warp),
                step(Kind.COPY_COMMIT, warp=warp),
            ]
        for log, drained in ((bulk, Kind.DRAINED), (small, Kind.COPY_DRAINED)):
            waits = step(drained, 0, left, warp=warp)
            assert found(*log, waits, ended=True) == ["UnfinishedCopy"] * (left > 0)
            assert found(*log, ended=True) == ["UnfinishedCopy"]
            assert found(*log) == []


def test_what_another_block_knows_is_not_known_to_the_block_that_ends():
    log = in_clusters(3, [(BAR, 1), (OTHER, 1)])
    log.append(step(Kind.ARRIVE, BAR, 1, at=1))
    for rank in (0, 2):
        learned = [step(Kind.ARRIVE, OTHER, 1, at=rank), step(Kind.WAITED, OTHER, 0, rank=rank)]
        assert found(*log, *learned, blocks=3, ended=True) == ["MissingClusterSync"]
    for warp in (0, 1):
        waited = step(Kind.WAITED, BAR, 0, rank=1, warp=warp)
        assert found(*log, waited, blocks=3, ended=True) == []


@pytest.mark.parametrize("blocks", [2, 3])
def test_a_block_waits_for_the_arrivals_of_its_peers_before_it_ends(blocks):
    """Its peers' barriers may be gone; its own are its own."""
    log = in_clusters(blocks, [(BAR, 2)])
    for at in range(blocks):
        arrives = step(Kind.ARRIVE, BAR, 1, at=at)
        missing = ["MissingClusterSync"] * (at != 0)
        assert found(*log, arrives, blocks=blocks, ended=True) == missing
        waits = step(Kind.WAITED, BAR, 0, rank=at)
        assert found(*log, arrives, waits, blocks=blocks, ended=True) == []
        assert found(*log, arrives, blocks=blocks) == []
