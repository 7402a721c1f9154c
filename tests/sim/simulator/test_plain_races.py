"""Races of generic accesses against the rule in its plainest form, for random programs."""

import re

import numpy as np
import pytest

from numba_tma.simulator.clocks import Clocks
from numba_tma.simulator.errors import DataRace
from numba_tma.simulator.memory import BASE, SharedMemory
from numba_tma.simulator.races import Races

THREADS, NBYTES = 4, 48


class Thread:
    def __init__(self, row, cta):
        self.row, self.cta, self.description = row, cta, f"thread {row}"


def raced(earlier, mine, known):
    """Return whether an earlier access (row, epoch, bytes, writes, atomic) races with `mine`."""
    row, epoch, its, writes, atomic = earlier
    if row == mine[0] or not its & mine[2] or not (writes or mine[3]) or atomic and mine[4]:
        return False
    return epoch > known[row]


@pytest.mark.parametrize("seed", range(60))
def test_two_accesses_race_unless_one_knows_of_the_other(seed):
    random = np.random.default_rng(seed)
    memory, clocks = SharedMemory(), Clocks(THREADS)
    threads = [Thread(row, None) for row in range(THREADS)]
    races, history = Races(memory, clocks, threads.__getitem__), []
    for _ in range(60):
        row, other = (int(n) for n in random.choice(THREADS, 2, replace=False))
        if random.random() < 0.75:  # the one tells the other
            clocks.learn(row, clocks.publish(other))
        first = int(random.integers(NBYTES))
        last = min(NBYTES, first + int(random.choice([1, 4, 8, 20])))
        writes, atomic = bool(random.integers(2)), random.random() < 0.3
        mine = row, clocks.epoch(row), {*range(first, last)}, writes, atomic
        known = clocks.epochs(row)
        found = [access for access in history if raced(access, mine, known)]
        access = races.write if writes else races.read
        if not found:
            access(row, BASE + first, BASE + last, atomic=atomic)
            history.append(mine)
            continue
        with pytest.raises(DataRace) as caught:
            access(row, BASE + first, BASE + last, atomic=atomic)
        text = str(caught.value)
        assert f": {'written' if writes else 'read'} at test_plain_races.py" in text
        start, stop = (
            int(n) - BASE for n in re.findall(r"^shared bytes (\d+) to (\d+): ", text)[0]
        )
        granule = {*range(start // 16 * 16, start // 16 * 16 + 16)}
        assert {*range(start, stop + 1)} == mine[2] & granule
        assert any(a[2] & granule for a in found)
        assert any(f"{'written' if a[3] else 'read'} by thread {a[0]} at" in text for a in found)
        return


def test_a_plain_read_is_remembered_when_an_atomic_one_follows_it():
    """An atomic write may meet the later of the two reads, and not the earlier one."""
    clocks = Clocks(3)
    threads = [Thread(row, None) for row in range(3)]
    races = Races(SharedMemory(), clocks, threads.__getitem__)
    races.read(0, BASE, BASE + 4, atomic=False)
    clocks.learn(1, clocks.publish(0))
    races.read(1, BASE, BASE + 4, atomic=True)
    with pytest.raises(DataRace, match="and read by thread 0 at"):
        races.write(2, BASE, BASE + 4, atomic=True)


IMAGE = np.arange(32).astype(np.uint8)


def written():
    """Return the records of a block after a write of its first thread."""
    memory = SharedMemory()
    races = Races(memory, Clocks(2), [Thread(row, None) for row in range(2)].__getitem__)
    memory.data[BASE + 8 : BASE + 40] = IMAGE
    races.write(0, BASE + 8, BASE + 40, IMAGE)
    return races


def test_writes_of_the_bytes_that_are_there_meet():
    for first, last in ((0, 32), (8, 16), (20, 32)):
        races = written()
        races.write(1, BASE + 8 + first, BASE + 8 + last, IMAGE[first:last])
    for place in range(32):
        other = IMAGE.copy()
        other[place] += 1
        with pytest.raises(DataRace):
            written().write(1, BASE + 8, BASE + 40, other)
    pieces = [BASE + 8, BASE + 16]
    written().write_pieces(1, pieces, IMAGE[:16].reshape(2, 8))
    for wrong in (IMAGE[8:24], np.append(IMAGE[:15], IMAGE[:1])):
        with pytest.raises(DataRace):
            written().write_pieces(1, pieces, wrong.reshape(2, 8))
    with pytest.raises(DataRace):
        written().write(1, BASE + 8, BASE + 40)  # of an atomic operation, say


@pytest.mark.parametrize("one_block", [True, False])
def test_another_block_sees_what_is_released_to_the_cluster(one_block):
    memory, clocks = SharedMemory(), Clocks(2)
    clocks.track_releases()
    threads = [Thread(row, None if one_block else row) for row in range(2)]
    races = Races(memory, clocks, threads.__getitem__)
    races.write(0, BASE, BASE + 4)
    clocks.learn(1, clocks.publish(0))
    if not one_block:
        with pytest.raises(DataRace, match="releases at block scope, which other blocks"):
            races.read(1, BASE, BASE + 4, atomic=False)
        races.write(0, BASE, BASE + 4)
        clocks.release_to_cluster(0)
        clocks.learn(1, clocks.publish(0))
    races.read(1, BASE, BASE + 4, atomic=False)


def test_what_a_load_fills_has_no_accesses_before():
    memory, clocks = SharedMemory(), Clocks(2)
    races = Races(memory, clocks, [Thread(row, None) for row in range(2)].__getitem__)
    races.write(0, BASE, BASE + 64)
    granule = BASE // 16
    races.filled(granule + 1, granule + 3)
    races.read(1, BASE + 16, BASE + 48, atomic=False)
    for place in (BASE + 15, BASE + 48):
        with pytest.raises(DataRace):
            races.read(1, place, place + 1, atomic=False)
