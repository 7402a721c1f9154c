"""The simulator's records, by themselves: clocks, meetings, groups of copies, cuts, collectors."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from numba_tma.host.layout import Swizzle
from numba_tma.simulator.async_copies import AsyncCopies, AsyncRecords, AsyncWait
from numba_tma.simulator.barriers import TrackedBarrier
from numba_tma.simulator.cells import _Cuts
from numba_tma.simulator.clocks import Clocks, join
from numba_tma.simulator.cluster_instructions import REDUCTIONS
from numba_tma.simulator.collectors import Collectors
from numba_tma.simulator.column_accesses import ColumnAccesses, Region
from numba_tma.simulator.copies import BulkGroups, GroupWait, PendingStore
from numba_tma.simulator.errors import (
    BadOperand,
    BarrierMisuse,
    EarlyOverwrite,
    EarlyRead,
    MissingFence,
    UnfinishedCopy,
)
from numba_tma.simulator.memory import SharedMemory
from numba_tma.simulator.products import ProductGroups
from numba_tma.simulator.protocol import ByteSpan
from numba_tma.simulator.rendezvous import Rendezvous

# ------------------------------------------------------------------------------- clocks


def clock(*numbers):
    return np.array(numbers, np.int32)


def test_clocks_join_to_what_either_has_seen():
    assert join(clock(1, 5), clock(4, 2)).tolist() == [4, 5]
    for pair in itertools.permutations([clock(1, 5, 7), clock(4, 2)]):
        given = [each.copy() for each in pair]
        assert join(*pair).tolist() == [4, 5, 7]
        assert all(map(np.array_equal, pair, given)), "neither is changed"


def test_a_clock_has_a_component_of_each_thread_and_kind():
    clocks = Clocks(3)
    assert clocks.table[:3, :3].tolist() == np.eye(3).tolist() and clocks.table.shape == (4, 25)
    clocks.table[1, :9] = range(10, 19)
    assert clocks.epochs(1).tolist() == [10, 11, 12] and clocks.epoch(1) == 11
    assert clocks.fences(1).tolist() == [13, 14, 15] and clocks.stores(1).tolist() == [16, 17, 18]
    assert clocks.waited_for(1)[:9].tolist() == [10, 0, 12, 13, 0, 15, 16, 17, 18]
    assert clocks.started(2)[:9].tolist() == [0, 0, 1] + [0] * 6
    assert not clocks.nothing().any() and len(clocks.nothing()) == 25
    before = clocks.publish(1)
    assert (before[1], clocks.epoch(1), clocks.epoch(0)) == (11, 12, 1)


def test_columns_are_added_behind_the_others():
    clocks, firsts = Clocks(2), []
    for count in (1, 10, 4, 1, 1, 60):
        first = clocks.new_columns(count)
        assert not clocks.table[:, first : first + count].any()
        assert clocks.table.shape[1] >= first + count
        clocks.table[:, first : first + count] = 1  # no other column's
        firsts.append(first)
        assert clocks.table[:, :2].tolist() == [[1, 0], [0, 1], [0, 0]]
    assert firsts == [6, 7, 17, 21, 22, 23] and clocks.new_column() == 83
    assert (clocks.copies, clocks.fenced_copies, clocks.new_column()) == (84, 86, 88)
    assert (clocks.copies, clocks.fenced_copies) == (84, 86)


def test_a_thread_learns_what_a_clock_has_seen():
    clocks = Clocks(3)
    clocks.learn(0, clock(0, 4))
    assert clocks.epochs(0).tolist() == [1, 4, 0] and clocks.epochs(1).tolist() == [0, 1, 0]


@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [1, 2], [0, 3], [2], [3, 1]])
@pytest.mark.parametrize("told", [None, clock(9, 9, 9, 9)])
def test_threads_that_meet_know_what_any_of_them_does(rows, told):
    clocks = Clocks(4)
    clocks.table[:4, :4] += np.arange(4, dtype=np.int32) * 2
    seen = clocks.table[:4].copy()
    clocks.meet(rows, told)
    known = seen[rows].max(axis=0)
    if told is not None:
        known[:4] = np.maximum(known[:4], told)
    for row in range(4):
        expected = seen[row] if row not in rows else known + (np.arange(len(known)) == row)
        np.testing.assert_array_equal(clocks.table[row], expected)
    row = clocks.together(slice(1, 3))
    np.testing.assert_array_equal(clocks.table[row], np.minimum(*clocks.table[1:3]))
    assert row == 4


def test_a_fence_orders_the_thread_s_writes_and_the_copies_that_it_knows():
    clocks = Clocks(2)
    clocks.fence(1)
    assert clocks.fences(1).tolist() == [0, 1] and clocks.epochs(1).tolist() == [0, 2]
    copies, fenced = clocks.copies, clocks.fenced_copies
    clocks.table[1, copies : copies + 2] = 5, 3
    clocks.table[1, fenced : fenced + 2] = 2, 4
    clocks.fence(1)
    assert clocks.table[1, fenced : fenced + 2].tolist() == [5, 4]
    assert clocks.fences(1).tolist() == [0, 2] and not clocks.fences(0).any()


def test_releases_to_the_cluster_are_known_apart():
    clocks = Clocks(2)
    clocks.learn(0, clock(0, 7))
    clocks.release_to_cluster(0)
    assert clocks.released(0, 1) == 7, "without a cluster each release is one"
    clocks.track_releases()
    assert clocks.released(0, 1) == 0
    clocks.release_to_cluster(0)
    assert (clocks.released(0, 1), clocks.released(0, 0), clocks.released(1, 1)) == (7, 1, 0)


# ----------------------------------------------------------------------------- meetings


def test_a_meeting_is_complete_when_all_have_come():
    meeting = Rendezvous("key", "sync", lambda: 2, 0)
    assert meeting.headline() == "sync: 0 of 2 threads have arrived; waiting"
    meeting.values["one"] = 1
    assert not meeting.complete
    meeting.values["two"] = 2
    assert meeting.complete and meeting.headline().startswith("sync: 2 of 2")
    results = iter([5, 6])
    assert [meeting.once(lambda: next(results)) for _ in range(2)] == [5, 5]


@pytest.mark.parametrize("tracked", [False, True])
def test_who_goes_on_tells_those_who_wait(tracked):
    clocks = Clocks(2) if tracked else None
    thread = SimpleNamespace(cta=SimpleNamespace(clocks=clocks), row=0)
    meeting = Rendezvous("key", "sync", lambda: 2, 0)
    meeting.learn_of(None)
    meeting.learn(thread)
    assert meeting.clock is None
    for known in (clock(3, 1), clock(1, 4)):
        meeting.learn_of(known)
    meeting.learn(thread)
    assert not tracked or clocks.epochs(0).tolist() == [3, 4]


# ------------------------------------------------------------------------------- groups


def stores(groups, *sizes):
    """Put groups of stores into `groups`; return them by number."""
    made, thread = {}, SimpleNamespace(groups=groups)
    for size in sizes:
        for _ in range(size):
            groups.stores += 1
            store = made[groups.stores] = PendingStore(thread, groups.stores, 0, 16, None)
            groups.add(store)
        groups.commit()
    return made


@pytest.mark.parametrize("allowed", range(5))
@pytest.mark.parametrize("read", [False, True])
def test_a_wait_covers_all_groups_but_the_newest(allowed, read):
    groups = BulkGroups()
    made = stores(groups, 1, 2, 0, 1)
    wait = GroupWait(groups, allowed, read)
    awaited = [number for last, number in ((1, 1), (2, 2), (2, 3), (4, 4)) if last <= 4 - allowed]
    assert wait.satisfied() == (not awaited)
    for number, store in made.items():
        missing = [n for n in awaited if n >= number]
        assert wait.satisfied() == (not missing)
        store._image = b""
        assert wait.satisfied() == (not missing or read and missing == [number])
        store.written = True
    suffix = "_read" if read else ""
    assert wait.headline() == f"cp_async_bulk_wait_group{suffix}({allowed}): waiting"
    assert groups.finish_wait(wait) == max(awaited, default=0) == groups.known_read
    assert groups.known_written == (0 if read else groups.known_read)
    assert len(groups.committed) == min(4, allowed)


def test_groups_are_dropped_once_they_are_written():
    groups = BulkGroups()
    made = stores(groups, 1, 1, 1)
    for store in made.values():
        store._image = b""
    made[2].written = True
    assert groups.finish_wait(GroupWait(groups, 0, True)) == 3
    assert [len(group) for group in groups.committed] == [1, 1, 1], "the first is not written"
    groups.check_done()
    made[1].written = True
    groups.finish_wait(GroupWait(groups, 0, True))
    assert groups.committed == [[made[3]]]


@pytest.mark.parametrize(
    ("committed", "known", "text"),
    [((), 0, "ends with 1 store(s) that were never committed"),
     ((1, 1), 0, "ends with 2 committed store(s) that it has not waited for"),
     ((1, 1), 1, "ends with 1 committed store(s) that it has not waited for")],
)  # fmt: skip
def test_a_thread_that_ends_with_stores(committed, known, text):
    groups = BulkGroups()
    stores(groups, *committed)
    if not committed:
        groups.add(PendingStore(SimpleNamespace(groups=groups), 1, 0, 16, None))
    groups.known_read = known
    with pytest.raises(UnfinishedCopy) as caught:
        groups.check_done()
    assert text in str(caught.value) and "issued at test_records.py:" in str(caught.value)


def test_async_copies_are_complete_in_any_order():
    copies, woken = AsyncCopies(), []
    assert [copies.issue() for _ in range(4)] == [1, 2, 3, 4]
    assert copies.site.startswith("test_records.py:")
    copies.commit()
    copies.commit()
    assert copies.groups == [4, 4] and copies.complete(0)
    thread = SimpleNamespace(cta=SimpleNamespace(scheduler=SimpleNamespace(wake=woken.append)))
    thread.wait = AsyncWait(copies, "cp_async_wait_all()", 3)
    assert thread.wait.headline() == "cp_async_wait_all(): waiting"
    for number, complete in ((4, 0), (2, 0), (1, 2), (3, 4)):
        copies.land(thread, number)
        assert [n for n in range(5) if copies.complete(n)] == [*range(complete + 1)]
        assert woken == [thread] * (complete == 4)
    thread.wait = AsyncWait(AsyncCopies(), "other copies", 9)
    copies.issue()
    copies.land(thread, 5)
    assert woken == [thread]


@pytest.mark.parametrize(("address", "nbytes"), [(1024, 4), (1028, 8), (1026, 1), (1030, 4)])
def test_words_of_async_copies_are_ordered_before_who_knows_of_them(address, nbytes):
    memory, clocks = SharedMemory(), Clocks(3)
    threads = [SimpleNamespace(row=row, description=f"thread {row}") for row in range(3)]
    records = AsyncRecords(memory, clocks, threads.__getitem__)
    records.record(1, 2, address, nbytes)
    words = range(address // 4 * 4, -(-(address + nbytes) // 4) * 4)
    checks = (
        (EarlyRead, lambda row, at: records.check_read(row, at, 1), "read before the cp.async of"),
        (EarlyOverwrite, lambda row, at: records.check_write(row, at, 1), "overwritten before the"),
        (MissingFence, lambda row, at: records.check_fence(row, at, 1, "loads"), "loads what a"),
    )
    for kind, check, text in checks:
        for at in range(1016, 1044):
            if at not in words:
                check(0, at)
                continue
            for row in range(3):
                with pytest.raises(kind, match=rf"{text}.*thread 1 ") as caught:
                    check(row, at)
                own = ": wait with cp_async_wait_group() or" in str(caught.value)
                assert own == (row == 1 and kind is not MissingFence)
    known, fenced = (clocks.table[0, column : column + 3] for column in (
        clocks.copies, clocks.fenced_copies))  # fmt: skip
    for part, kinds in ((known, checks[:2]), (fenced, checks[2:])):
        for kind, check, _ in kinds:
            part[:] = 9, 1, 9  # not the copy's thread, or not this copy
            with pytest.raises(kind):
                check(0, address)
            part[:] = 0, 2, 0
            check(0, address)


@pytest.mark.parametrize("pending", range(4))
def test_products_are_waited_for_by_groups(pending):
    groups, ended = ProductGroups(), []
    for name in "abc":
        product = SimpleNamespace(end=lambda thread, name=name: ended.append(name), site="here")
        groups.open.append(product)
        if name != "b":
            groups.commit()
    groups.wait("thread", pending)
    assert ended == {0: ["a", "b", "c"], 1: ["a"]}.get(pending, [])
    assert len(groups.committed) == min(pending, 2)


def test_remote_reductions_are_those_of_global_memory():
    """inc and dec wrap round at the operand."""
    numbers = range(6)
    for old, given in itertools.product(numbers, repeat=2):
        found = {name: int(combine(old, given)) for name, combine in REDUCTIONS.items()}
        assert found == {
            "inc": old + 1 if old < given else 0,
            "dec": old - 1 if 0 < old <= given else given,
            "min": min(old, given), "max": max(old, given), "add": old + given,
            "and": old & given, "or": old | given, "xor": old ^ given,
        }  # fmt: skip


# ------------------------------------------------------------------ bytes and columns


@pytest.mark.parametrize("seed", range(6))
def test_cuts_are_where_spans_begin_and_end(seed):
    random = np.random.default_rng(seed)
    spans = []
    for _ in range(random.integers(1, 6)):
        start = int(random.integers(0, 20))
        spans.append(ByteSpan(int(random.integers(2)), start, start + int(random.integers(1, 8))))
    spans += spans[:1]
    cuts = _Cuts(spans)
    for rank, start, stop in itertools.product((0, 1), range(0, 28, 3), range(1, 31, 3)):
        if start >= stop:
            continue
        ends = sorted({end for span in spans if span[0] == rank for end in span[1:]})
        pieces = zip(ends, ends[1:])
        covered = [
            ByteSpan(rank, first, last) for first, last in pieces
            if any(span[0] == rank and span[1] <= first and last <= span[2] for span in spans)
        ]  # fmt: skip
        touched = [piece for piece in covered if piece[1] < stop and start < piece[2]]
        assert cuts.atoms(ByteSpan(rank, start, stop)) == touched


@pytest.mark.parametrize("seed", range(3))
def test_what_memory_knows_of_its_bytes(seed):
    """Bytes as they were written, and swizzles of the 16 bytes that they lie in."""
    random, memory = np.random.default_rng(seed), SharedMemory()
    start = memory.allocate("key", "owner", 256, 16, tracked=True).start
    written, swizzles = np.zeros(256, bool), np.full(16, -1)
    for _ in range(12):
        first, nbytes = int(random.integers(200)), int(random.integers(1, 50))
        swizzle = (None, *Swizzle)[random.integers(5)]
        if random.integers(3):
            memory.wrote(start + first, nbytes, swizzle)
        else:
            first, nbytes, swizzle = first // 16 * 16, 4, None
            memory.wrote_words(np.array([start + first]), nbytes)
        written[first : first + nbytes] = True
        swizzles[first // 16 : (first + nbytes - 1) // 16 + 1] = -1 if swizzle is None else swizzle
    for first, nbytes in itertools.product(range(0, 240, 7), (1, 9, 16)):
        assert memory.is_written(start + first, nbytes) == written[first : first + nbytes].all()
    chunks = start + 16 * np.arange(16)
    for swizzle in Swizzle:
        others = [i for i in range(16) if swizzles[i] not in (-1, swizzle)]
        found = memory.other_swizzle(chunks, swizzle)
        assert found == ((chunks[others[0]], Swizzle(swizzles[others[0]])) if others else None)


def test_an_allocation_may_be_empty_but_not_negative():
    memory = SharedMemory()
    starts = [memory.allocate(n, "owner", n, 16, tracked=False).start for n in (0, 1, 16, 17, 8)]
    assert starts == [1024, 1040, 1056, 1072, 1104], "each has an address of its own"
    with pytest.raises(BadOperand, match="owner: nbytes is -1; it must not be negative"):
        memory.allocate(-1, "owner", -1, 16, tracked=False)
    for alignment in (0, -16, 3, 24):
        with pytest.raises(BadOperand, match=f"alignment is {alignment}; it must be"):
            memory.allocate("more", "owner", 16, alignment, tracked=False)


def test_freed_columns_have_no_accesses():
    clocks = Clocks(64)
    accesses = ColumnAccesses("ld", clocks, 2)
    accesses._last[:] = 7
    accesses.forget(Region(slice(0, 128), slice(32, 64)))
    assert not accesses._last[:, :, 32:64].any()
    assert (np.delete(accesses._last, range(32, 64), axis=2) == 7).all()
    accesses.forget(Region(slice(16, 48), slice(0, 1)))
    assert (accesses._last[0, :, 0] == 0).tolist() == [False, True, True] + [False] * 5


@pytest.mark.parametrize("buffer", ["a", "b0", "b3"])
def test_what_a_collector_holds(buffer):
    collectors, one, name = Collectors(), np.array([[1.0, np.nan]]), buffer[0].upper()

    def refused(operation, operand, text):
        with pytest.raises(BadOperand) as caught:
            collectors.pass_through("mma", buffer, operation, operand)
        assert str(caught.value).startswith(f"mma.collector::{buffer}::{operation}: {text}")

    for end in ("lastuse", "discard"):
        refused("use", one, "the buffer is empty")
        refused("lastuse", one, "the buffer is empty")
        given = one.copy()
        collectors.pass_through("mma", buffer, "fill", given)
        given[:] = 0  # the memory, afterwards
        for _ in range(2):
            collectors.pass_through("mma", buffer, "use", one)
        refused("use", given, f"{name} in memory is not the {name} of")
        refused("use", one[0], f"{name} in memory is not the {name} of")
        other = "b1"
        collectors.pass_through("mma", other, "fill", given)
        collectors.pass_through("mma", buffer, end, one)
        collectors.pass_through("mma", other, "lastuse", given)
    collectors.pass_through("mma", buffer, "discard", one)


# ---------------------------------------------------------------- bytes and tokens in words


def test_what_memory_calls_its_bytes():
    memory = SharedMemory()
    first = memory.allocate("a", "first", 40, 16, tracked=False).start
    second = memory.allocate("b", "second", 16, 16, tracked=False).start
    assert (first, second) == (1024, 1072)
    memory.set_label(first + 16, "label")
    memory.set_label(second, "other")
    memory.set_label(first + 8, "earlier")
    assert memory.label(first + 16) == "label" and memory.label(first) is None
    said = {
        first: "first, bytes 0 to 3", first + 7: "first, bytes 7 to 10",
        first + 8: "earlier, bytes 0 to 3", first + 15: "earlier, bytes 7 to 10",
        first + 16: "label, bytes 0 to 3", first + 39: "label, bytes 23 to 26",
        first + 40: "shared bytes 1064 to 1067", second - 1: "shared bytes 1071 to 1074",
        second: "other, bytes 0 to 3", second + 15: "other, bytes 15 to 18",
        second + 16: "shared bytes 1088 to 1091", first - 1: "shared bytes 1023 to 1026",
    }  # fmt: skip
    assert {place: memory.describe(place, 4) for place in said} == said
    memory.set_label(first + 16, "new name")
    assert memory.describe(first + 20, 4) == "new name, bytes 4 to 7"
    for place in (first - 1, first, first + 39, first + 40, second - 1, second, second + 15):
        owner = memory.allocation_at(place)
        inside = first <= place < first + 40 or second <= place < second + 16
        assert (owner is not None) == inside
        assert owner is None or owner.owner == ("first" if place < second else "second")


@pytest.mark.parametrize(
    ("address", "nbytes", "text"),
    [(1024, 40, ""), (1063, 1, ""), (1024, 41, "past the end of first, which has 40 bytes at 1024"),
     (1063, 2, "past the end of first"), (1064, 1, "not in any allocation of this block"),
     (1023, 2, "not in any allocation"), (1071, 1, "not in any allocation"), (1072, 16, "")],
)  # fmt: skip
def test_bytes_in_and_out_of_range(address, nbytes, text):
    memory = SharedMemory()
    memory.allocate("a", "first", 40, 16, tracked=False)
    memory.allocate("b", "second", 16, 16, tracked=False)
    if not text:
        memory.check_range("it", address, nbytes)
        return
    with pytest.raises(BadOperand) as caught:
        memory.check_range("it", address, nbytes)
    begin = f"it: shared bytes {address} to {address + nbytes - 1} are out of range: {text}"
    assert str(caught.value).startswith(begin)


def test_all_threads_ask_for_the_same_memory():
    memory = SharedMemory()
    asked = [memory.allocate("key", "owner", 64, 32, tracked=False) for _ in range(2)]
    assert asked[0] is asked[1] and asked[0].start % 32 == 0
    for nbytes, alignment in ((65, 32), (64, 16), (32, 64)):
        with pytest.raises(BadOperand, match=f"64 .* to 32, .* for {nbytes} .* {alignment};"):
            memory.allocate("key", "owner", nbytes, alignment, tracked=False)
    assert memory.allocate("more", "owner", 64, 32, tracked=False).start == asked[0].start + 64
    memory.allocate("free", "owner", 3, 1, tracked=False)
    lengths = {"a": 1, "b": 2, "c": 0, "d": 1}  # no two at one place, nothing between others
    placed = [memory.allocate(k, "owner", n, 1, tracked=False).start for k, n in lengths.items()]
    assert np.diff(placed).tolist() == [1, 2, 1]
    numbers = [memory.number_of(owner) for owner in ("a", (1, 2), "a", (1, 2), "b")]
    assert numbers == [0, 1, 0, 1, 2]


@pytest.mark.parametrize("phase", [0, 1, 2, 2**20])
@pytest.mark.parametrize("pending", [0, 1, 2**20 - 1])
@pytest.mark.parametrize("address", [1024, 1032, 233464])
def test_a_token_holds_barrier_arrivals_and_phase(phase, pending, address):
    clocks, memory = Clocks(1), SharedMemory()
    thread = SimpleNamespace(cta=SimpleNamespace(memory=memory), row=0)
    barrier, other = (TrackedBarrier(place, 1, thread, clocks) for place in (address, 2048))
    barrier.model.phase, barrier.model.pending = phase, pending
    token = barrier.token()
    assert barrier.phase_of(token) == phase
    assert token >> 18 & (1 << 20) - 1 == pending and token & (1 << 18) - 1 == address
    with pytest.raises(BarrierMisuse, match=f"at 2048: the token {token} was not returned by"):
        other.phase_of(token)
