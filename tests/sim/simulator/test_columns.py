"""The columns and lanes of tensor memory: what is allocated, and which cells an access reaches."""

import itertools
from functools import partial

import numpy as np
import pytest

from numba_tma import simulator as sim
from numba_tma.simulator.clocks import Clocks
from numba_tma.simulator.column_accesses import Region
from numba_tma.simulator.errors import TensorMemoryMisuse
from numba_tma.simulator.tensor_memory import (
    SHAPES,
    ColumnAllocation,
    CtaTensorMemory,
    Reduction,
    fragment,
)
from numba_tma.simulator.thread import current
from tests.kernels.tensor_products import run

COLUMNS, LANES = 512, 128


class Thing:
    """A block, thread or scheduler, as far as tensor memory looks at one."""

    def __init__(self, **fields):
        self.__dict__.update(fields)


class Parked(Exception):
    pass


def memory(threads=128):
    """Return the tensor memory of a block, and a thread of each of its warps."""
    clocks = Clocks(8)

    def park(wait):
        raise Parked(wait.headline())

    woken = []
    cta = Thing(
        tracked_clocks=lambda: clocks, threads=range(threads), index=(1, 0, 0), rows=slice(0, 8)
    )
    cta.scheduler = Thing(park=park, wake=woken.append, woken=woken)
    warps = [Thing(warp=warp, row=warp, cta=cta, description=f"warp {warp}") for warp in range(8)]
    return CtaTensorMemory(cta), warps


def refused(text, call, *given):
    with pytest.raises(TensorMemoryMisuse) as caught:
        call(*given)
    assert text in str(caught.value), str(caught.value)


def test_sizes_of_allocations():
    for columns in (-32, 0, 1, 16, 31, 32, 33, 64, 96, 128, 256, 384, 511, 512, 513, 1024):
        made, (thread, *_) = memory()
        if columns in (32, 64, 128, 256, 512):
            found = made.allocate(thread, columns)
            assert (found.first, found.count) == (COLUMNS - columns, columns)
        else:
            refused(
                f"of {columns} columns; it must be a power of two", made.allocate, thread, columns
            )


@pytest.mark.parametrize("seed", range(4))
def test_columns_are_taken_from_the_end_and_once(seed):
    random, (made, (thread, *_)) = np.random.default_rng(seed), memory()
    sizes, taken = (256, 128, 64, 32), np.zeros(COLUMNS, bool)
    limit = 512
    for _ in range(40):
        if made.live and random.integers(3) == 0:
            gone = made.live[random.integers(len(made.live))]
            made.learn(thread, gone)
            made.deallocate([thread], gone.first, gone.count)
            taken[gone.first : gone.first + gone.count] = False
            continue
        columns = int(random.choice(sizes))
        if columns > limit:
            refused(f"of {columns} columns after one of {limit}", made.allocate, thread, columns)
            continue
        limit = columns
        starts = range(COLUMNS - columns, -1, -columns)
        free = [first for first in starts if not taken[first : first + columns].any()]
        if not free:
            with pytest.raises(Parked, match=f"tcgen05.alloc of {columns} columns, with columns"):
                made.allocate(thread, columns)
            continue
        assert made.allocate(thread, columns).first == free[0]
        taken[free[0] : free[0] + columns] = True
    made.relinquish()
    refused("after the block has executed tcgen05_relinquish", made.allocate, thread, 32)


def test_freed_columns_are_as_new_and_wake_who_waits():
    made, (thread, other, *_) = memory()
    whole = made.allocate(thread, 512)
    for _ in range(2):
        with pytest.raises(Parked):
            made.allocate(other, 512)
    refused("that has not synchronised with their tcgen05_alloc", made.deallocate, [other], 0, 512)
    made.learn(thread, whole)
    for address, columns in ((0, 256), (32, 512), (1 << 16, 512)):
        refused(f"of {columns} columns at address {address}, which is no allocation; there is 512",
                made.deallocate, [thread], address, columns)  # fmt: skip
    made.written[:], made.data[:] = True, 7
    made.deallocate([thread], 0, 512)
    assert not made.written.any() and (made.data == 0xFFFFFFFF).all() and not made.live
    assert made.cta.scheduler.woken == [other, other]
    refused("there is nothing", made.deallocate, [thread], 0, 512)
    made.check_end()
    made.allocate(thread, 512)
    assert made.cta.scheduler.woken == [other, other], "they wait no more"
    refused("block (1, 0, 0) ended without tcgen05_dealloc of columns 0 to 511", made.check_end)


def test_one_group_in_a_kernel():
    made, _ = memory()
    made.check_group("first", 2)
    made.check_group("second", 2)
    refused("third: cta_group is 1, and was 2 before", made.check_group, "third", 1)
    made.check_group("fourth", 2)


def test_a_region_lies_in_allocations_that_the_thread_knows():
    made, (thread, other, *_) = memory()
    spans = {name: ColumnAllocation(first, count, "here", made._clocks.new_columns(1))
             for name, first, count in (("a", 0, 32), ("b", 32, 64), ("c", 128, 32))}  # fmt: skip
    made.live += spans.values()
    made._freed.append(ColumnAllocation(96, 32, "there", made._clocks.new_columns(1)))
    made.learn(thread, spans["a"])
    made.learn(thread, spans["b"])
    made.learn(other, spans["c"])
    for first, last in itertools.product((0, 16, 31, 32, 95), (1, 32, 33, 95, 96)):
        if first < last:
            check = partial(made.check_allocated, thread, "it")
            check(Region(slice(0, 32), slice(first, last)))
    for first, last, text in (
        (0, 97, "it, but columns 96 to 127 of tensor memory have been deallocated"),
        (90, 100, "columns 96 to 127 of tensor memory have been"), (96, 97, "columns 96 to 127"),
        (160, 161, "it, but column 160 is not allocated (there is columns 0 to 31 of tens"),
        (159, 161, "columns 128 to 159 of tensor memory are used by a thread that has not synch"),
        (128, 129, "columns 128 to 159 of tensor memory are used by a thread that has not synch"),
    ):  # fmt: skip
        place = Region(slice(0, 32), slice(first, last))
        refused(text, made.check_allocated, thread, "it", place)
    made.check_allocated(other, "it", Region(slice(0, 32), slice(128, 160)))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_warp_reaches_a_quarter_of_the_lanes(shape):
    made, warps = memory()
    allocation = made.allocate(warps[0], 512)
    lanes = SHAPES[shape][0]
    for thread in warps:
        made.learn(thread, allocation)
        own = range(32 * (thread.warp % 4), 32 * (thread.warp % 4) + 32, lanes)
        for lane in range(0, LANES, 8):
            if lane not in own:
                starts = " or ".join(map(str, own))
                text = f"it: the address begins at lane {lane}; warp {thread.warp} reaches lanes "
                refused(text, made.regions, thread, "it", shape, lane << 16 | 5, 3, 9)
                refused(f"begins at {starts}: add", made.regions, thread, "it", shape,
                        lane << 16, 3, 9)  # fmt: skip
                continue
            found = made.regions(thread, "it", shape, lane << 16 | 5, 3, 9)
            places = [(r.lanes.start, r.lanes.stop, r.columns.start, r.columns.stop) for r in found]
            if shape == "16x32bx2":
                assert places == [(lane, lane + 16, 5, 8), (lane + 16, lane + 32, 14, 17)]
            else:
                assert places == [(lane, lane + lanes, 5, 8)]
        outside = own[0] << 16 | 510
        refused("column 512 is not allocated", made.regions, thread, "it", shape, outside, 3, 0)
        made.regions(thread, "it", shape, outside, 2, 0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("num", [1, 2, 4])
def test_registers_of_a_warp_are_the_cells_of_a_region(shape, num):
    """Each cell once; of shape 16x32bx2, at two places."""
    lanes, columns, registers = SHAPES[shape]
    cells = np.zeros((32, 64), int)
    for thread in range(32):
        lane, column = fragment(shape, num, thread, 32)
        assert len(lane) == len(column) == registers * num
        cells[lane, column] += 1
    expected = np.zeros_like(cells)
    expected[:lanes, : columns * num] = 1
    if shape == "16x32bx2":
        expected[16:] = np.roll(expected[16:], 32, axis=1)
    np.testing.assert_array_equal(cells, expected)


FLOATS = [1.5, -4.0, 0.0, -0.0, 2.0, np.inf, -np.inf]


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("operation", ["min", "max"])
def test_a_reduction_of_registers(operation, absolute):
    random = np.random.default_rng(0)
    pick = {"min": min, "max": max}[operation]
    for _ in range(20):
        values = random.choice(FLOATS, 3)
        words = values.astype(np.float32).view(np.uint32)
        expected = pick(abs(values) if absolute else values)
        for nan in (False, True):
            of = Reduction(operation, "f32", absolute, nan).of
            assert np.uint32(of(words)).view(np.float32) == expected
            missing = np.append(words, np.uint32(0x7FC00001))
            found = np.uint32(of(missing)).view(np.float32)
            assert of(missing) == 0x7FFFFFFF if nan else found == expected
            assert of(missing[-1:]) == 0x7FFFFFFF
        numbers = random.integers(-5, 5, 4).astype(np.int32)
        words = numbers.view(np.uint32)
        assert Reduction(operation, "u32", False, False).of(words) == pick(words.tolist())
        signed = pick((abs(numbers) if absolute else numbers).tolist())
        found = Reduction(operation, "s32", absolute, False).of(words)
        assert found == signed & 0xFFFFFFFF


def test_loads_and_stores_are_recorded_for_the_cells_of_their_registers():
    """By 16 lanes and column, with packed registers and without."""
    found, forms = [], list(itertools.product(SHAPES, (1, 2), (False, True)))

    def body(rank, base, at, barrier):
        memory = current().cta.tensor_memory
        for number, (shape, num, packed) in enumerate(forms):
            place, registers = base + 64 * number % 512, SHAPES[shape][2] * num
            sim.tcgen05_st(shape, place, [1] * registers, num, unpack=packed, offset=32)
            sim.tcgen05_wait_st()
            sim.tcgen05_ld(shape, place, num, pack=packed, offset=32)
            sim.tcgen05_wait_ld()
            if current().lane == 0:
                of_columns = slice(64 * number % 512, 64 * number % 512 + 64)
                found.append([
                    np.array(part[..., of_columns] > 0)
                    for part in (memory.written, memory.stores._last[0], memory.loads._last[0])
                ])  # fmt: skip
                for accesses in (memory.stores, memory.loads):
                    accesses._last[:] = 0
                memory.written[:] = False
            current().cta.warp_meeting(current(), "again", 0xFFFFFFFF, None, orders_memory=True)

    run(body, [])
    for form, (written, stored, loaded) in zip(forms, found, strict=True):
        halves = written.reshape(8, 16, 64)
        np.testing.assert_array_equal(halves.any(axis=1), halves.all(axis=1))
        np.testing.assert_array_equal(stored, halves.any(axis=1), str(form))
        np.testing.assert_array_equal(loaded, stored)
        shape, num, packed = form
        assert written.sum() == 32 * SHAPES[shape][2] * num * (1 + packed)
