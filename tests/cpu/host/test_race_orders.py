"""Races mode, whatever the order: parts of warps that log and act at random, many times."""

from functools import partial

import pytest

from numba_tma.host.races import Kind
from tests.cpu.host.race_machine import Lanes, Machine
from tests.tiers import seeds

STAGES, TILES, NBYTES = 2, 5, 256
FULL, EMPTY, OUT = 0x8000, 0x8100, 0x4000
FIRST, REST = 1, 0xFFFFFFFE


def stage(i):
    return i % STAGES, i // STAGES & 1


def ring(machine, without=""):
    """A ring of two stages, then a stage that all write and the first warp stores.

    Lane 0 of warp 0 initialises. Warp 2 fills the stages by its lane 0; its other lanes exit.
    """
    parts = [Lanes(0, FIRST), Lanes(0, REST), Lanes(1, 0xFF), Lanes(1, 0xFFFFFF00)]

    def consume(who):
        if who.warp == 0 and who.lanes & 1:
            for s in range(STAGES):
                yield from machine.init(who, FULL + 8 * s, 1)
                yield from machine.init(who, EMPTY + 8 * s, 64)
        if without != "sync":
            yield from machine.sync(who)
        for i in range(TILES):
            s, parity = stage(i)
            if without != "wait":
                wrong = without == "parity"
                yield from machine.wait(who, FULL + 8 * s, parity ^ wrong)
            if without == "late release":
                yield from machine.arrive(who, EMPTY + 8 * s)
            yield from machine.note(who, Kind.READ, s * NBYTES, 16)
            if without != "late release":
                yield from machine.arrive(who, EMPTY + 8 * s)
        for turn in range(3):
            yield from machine.note(who, Kind.WRITE, OUT + 256 * who.warp, 16)
            if without != "fence":
                yield from machine.note(who, Kind.FENCE)
            if without != "named barrier":
                yield from machine.sync(who, 1, 64)
            if who.warp == 0 and who.lanes & 1:
                yield from machine.note(who, Kind.SOURCE, OUT, 512)
                yield from machine.note(who, Kind.COMMIT)
                if without != "drain":
                    yield from machine.note(who, Kind.DRAINED, 0, 0)
            yield from machine.sync(who, 1, 64)
            if turn == 1:
                yield from machine.sync(who)

    def produce(who):
        if without != "sync":
            yield from machine.sync(who)
        if who.lanes == FIRST:
            for i in range(TILES):
                s, parity = stage(i)
                if i >= STAGES and without != "empty":
                    yield from machine.wait(who, EMPTY + 8 * s, parity ^ 1)
                yield from machine.arrive(who, FULL + 8 * s, NBYTES)
                yield from machine.load(who, s * NBYTES, NBYTES, FULL + 8 * s)

    for part in parts:
        machine.start(part, consume(part))
    for part in (Lanes(2, FIRST), Lanes(2, REST)):
        machine.start(part, produce(part))


def cluster(machine, without=""):
    """Two blocks: rank 0 fills a tile of both, and each releases it to both."""

    def work(who):
        if who.warp == 0 and who.lanes & 1:
            yield from machine.init(who, FULL, 1)
            yield from machine.init(who, EMPTY, 2)
        if without != "sync":
            yield from machine.cluster_sync(who)
        for i in range(3):
            if who.warp == 1:
                if who.lanes == FIRST:
                    if i and without != "empty":
                        yield from machine.wait(who, EMPTY, i + 1 & 1)
                    yield from machine.arrive(who, FULL, NBYTES)
                    if who.rank == 0:
                        yield from machine.load(who, 0, NBYTES, FULL, 3)
                continue
            if who.lanes == FIRST:
                if without != "wait":
                    yield from machine.wait(who, FULL, i & 1)
                yield from machine.note(who, Kind.READ, 0, 16)
                for rank in (0, 1):
                    yield from machine.arrive(who, EMPTY, at=rank)
        yield from machine.cluster_sync(who)

    for rank in (0, 1):
        for warp in (0, 1):
            for lanes in (FIRST, REST):
                who = Lanes(warp, lanes, rank)
                machine.start(who, work(who))


def products(machine, without=""):
    """A ring whose stages wgmma reads: the parts of the consumer's warp wait one by one."""

    def logged(who, kind, address=0, size=0):
        """Log a step of the whole warp by lane 0, between two meetings of its lanes."""
        if without != "converge":
            yield from machine.converge(who)
        if who.lanes & 1 or without == "lane 0":
            yield from machine.note(who, kind, address, size)
        if without != "converge":
            yield from machine.converge(who)

    def consume(who):
        if who.lanes & 1:
            for s in range(STAGES):
                yield from machine.init(who, FULL + 8 * s, 1)
                yield from machine.init(who, EMPTY + 8 * s, 1)
        yield from machine.sync(who)
        for i in range(TILES):
            s, parity = stage(i)
            if without != "ends" or who.lanes & 1:
                yield from machine.wait(who, FULL + 8 * s, parity)
            else:  # the wait of these lanes is logged by lane 0 alone
                yield partial(machine.passed, who, FULL + 8 * s, parity)
            yield from machine.note(who, Kind.READ, s * NBYTES, 16)
            yield from logged(who, Kind.PRODUCT, s * NBYTES, NBYTES)
            yield from logged(who, Kind.PRODUCT_COMMIT)
            if without != "drain":
                yield from logged(who, Kind.PRODUCT_DRAINED)
            if who.lanes & 1 == 0:
                yield from machine.arrive(who, EMPTY + 8 * s, each=False)

    def produce(who):
        yield from machine.sync(who)
        for i in range(TILES):
            s, parity = stage(i)
            if i >= STAGES:
                yield from machine.wait(who, EMPTY + 8 * s, parity ^ 1)
            yield from machine.arrive(who, FULL + 8 * s, NBYTES, each=False)
            yield from machine.load(who, s * NBYTES, NBYTES, FULL + 8 * s)

    for part in (Lanes(0, FIRST), Lanes(0, REST)):
        machine.start(part, consume(part))
    producer = Lanes(1, FIRST)
    machine.start(producer, produce(producer))


def copies(machine, without=""):
    """A ring that cp.async fills: each lane arrives, and parts of the warp run apart."""

    def consume(who):
        if who.lanes & 1:
            for s in range(STAGES):
                yield from machine.init(who, FULL + 8 * s, 32)
                yield from machine.init(who, EMPTY + 8 * s, 32)
        yield from machine.sync(who)
        for i in range(TILES):
            s, parity = stage(i)
            if without != "wait":
                yield from machine.wait(who, FULL + 8 * s, parity)
            for chunk in range(0, NBYTES, 16):
                yield from machine.note(who, Kind.READ, s * NBYTES + chunk, 16)
            yield from machine.arrive(who, EMPTY + 8 * s)

    def produce(who):
        yield from machine.sync(who)
        for i in range(TILES):
            s, parity = stage(i)
            if i >= STAGES and without != "empty":
                yield from machine.wait(who, EMPTY + 8 * s, parity ^ 1)
            for chunk in range(NBYTES // 16):
                if who.lanes >> chunk & 1:
                    yield from machine.note(who, Kind.COPY, s * NBYTES + 16 * chunk, 16)
            yield from machine.arrive(who, FULL + 8 * s, kind=Kind.ARRIVE_COPIED)

    for lanes in (FIRST, REST):
        machine.start(Lanes(0, lanes), consume(Lanes(0, lanes)))
    for lanes in (FIRST, 0xFFFE, 0xFFFF0000):
        machine.start(Lanes(1, lanes), produce(Lanes(1, lanes)))


PROGRAMS = {
    "ring": (ring, 3, 1), "cluster": (cluster, 2, 2), "products": (products, 2, 1),
    "copies": (copies, 2, 1),
}  # fmt: skip
WRONG = [
    ("ring", "sync", {"BarrierMisuse"}),
    ("ring", "wait", {"EarlyRead", "EarlyOverwrite"}),  # which of both is in the log first
    ("ring", "parity", {"EarlyRead", "EarlyOverwrite"}),
    ("ring", "late release", {"EarlyOverwrite"}),
    ("ring", "empty", {"EarlyOverwrite"}),
    ("ring", "fence", {"MissingFence"}),
    ("ring", "named barrier", {"MissingFence", "EarlyOverwrite"}),
    ("ring", "drain", {"EarlyOverwrite"}),
    ("products", "drain", {"EarlyOverwrite"}),
    ("cluster", "sync", {"BarrierMisuse"}),
    ("cluster", "wait", {"EarlyRead", "EarlyOverwrite"}),
    ("cluster", "empty", {"EarlyOverwrite"}),
    ("copies", "wait", {"EarlyRead", "EarlyOverwrite"}),
    ("copies", "empty", {"EarlyOverwrite", "EarlyRead"}),
]


def launch(name, seed, without=""):
    program, warps, blocks = PROGRAMS[name]
    machine = Machine(seed, warps, blocks)
    program(machine, without)
    ended = machine.run()
    return ended, machine.races(ended)


@pytest.mark.parametrize("name", PROGRAMS)
@seeds(40, 1000)
def test_no_order_of_a_right_program_has_a_race(name, seeds):
    for seed in seeds:
        ended, races = launch(name, seed)
        assert ended and races == [], f"{name}, order {seed}"


@pytest.mark.parametrize(("name", "without", "kinds"), WRONG)
@seeds(6, 60)
def test_every_order_of_a_wrong_program_has_its_race_or_hangs(name, without, kinds, seeds):
    hung = 0
    for seed in seeds:
        ended, races = launch(name, seed, without)
        found = {race.kind for race in races}
        assert found & kinds or not ended, f"{name} without {without}, order {seed}"
        hung += not found & kinds
    assert hung < len(seeds)


@pytest.mark.parametrize("without", ["ends", "converge"])
def test_a_log_by_the_first_lane_alone_would_alarm(without):
    """Lanes go on before the first one has logged the end of their wait, or their product."""
    assert any(launch("products", seed, without)[1] for seed in range(40))
