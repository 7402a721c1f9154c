"""Pipelines in compiled kernels, executed: each wait by its record, and the barriers' addresses."""

import re

import numpy as np
import pytest
from numba import cuda, types

import numba_tma as tma
from numba_tma.host import debug
from numba_tma.tools.testing import compile_ptx
from tests.ptx_machine import Machine

TILE, SMALL = tma.Tile((8, 32), "f32"), tma.Tile((4, 32), "f32")
MAP, SMALL_MAP = tma.TensorMapType(2, TILE), tma.TensorMapType(2, SMALL)
ROLES = tma.Roles(work=tma.Warps(1), load=tma.Warps(1))
I64, BYTES = types.int64, bytes(128)
HOPPER, BLACKWELL = (9, 0, "a"), (10, 0, "a")


def waits(kernel, kinds, *values, thread, count, cc=HOPPER, more=lambda name: 0):
    """Return the records of a thread's first waits, each as that wait never ends.

    A record is (site, iteration, stage, parity, address behind the last shared variable's start).
    """
    ptx, found = compile_ptx(kernel, kinds, cc=cc), []
    for passed in range(count):
        left = [passed]

        def answer(name, operands, left=left):
            if re.match(r"mbarrier\.(try|test)_wait", name):
                left[0] -= 1
                return int(left[0] >= 0)
            return more(name)

        machine = Machine(ptx, *values, answer=answer, block=(64, 1, 1))
        machine.run(thread)
        raw = machine.peek(debug.NO_GPU + 4 * debug.HEADER, debug.RECORD.itemsize)
        (one,) = debug.decode(np.frombuffer(raw, debug.RECORD), debug._SITES)
        site = one.site.what.strip("'").rpartition(".")[2]
        place = one.address - machine.shared[-1]
        found.append((site, one.iteration, one.stage, one.parity, place))
    return found


def turn(site, i, stages, first, apart=8):
    """Return the record of wait i of a ring: parity 0 for full stages, and 1 for empty ones."""
    parity = i // stages & 1 ^ (site == "empty")
    return site, i, i % stages, parity, first + apart * (i % stages)


def sites(records, site):
    return [record for record in records if record[0] == site]


@pytest.mark.parametrize("barriers", ["one", "each"])
def test_waits_of_a_circular_buffer(barriers):
    BUFFER = tma.CircularBuffer(
        3, 1, war="mbarrier", barriers=barriers, debug=True, x=TILE, y=SMALL
    )

    @cuda.jit
    def kernel(x, y, out, n):
        ring = BUFFER.start()
        for tile, stage in ring.tiles(0, n):
            for ahead, slot in ring.loads():
                x.load(slot.x, (ahead * 8, 0), slot.barrier_of("x"))
                y.load(slot.y, (ahead * 4, 0), slot.barrier_of("y"))
            full = stage.wait()
            out[tile] = full.x[1, 2] + full.y[3, ring.thread()]
        ring.close()

    kinds = (MAP, SMALL_MAP, types.float32[::1], I64)
    values = BYTES, BYTES, np.zeros(64, np.float32), 8
    per_tile = 2 if barriers == "each" else 1
    found = waits(kernel, kinds, *values, thread=0, count=12 * per_tile)
    empty = sites(found, "empty")
    assert len(empty) >= 6
    assert empty == [turn("empty", i, 3, 24 * per_tile) for i in range(len(empty))]
    full = [record[1:] for record in found if record[0] != "empty"]
    expected = [turn("full", i, 3, 24 * j)[1:] for i in range(8) for j in range(per_tile)]
    assert full == expected[: len(full)]


@pytest.mark.parametrize("role", ["work", "load"])
def test_waits_of_a_tile_pipeline(role):
    PIPE = tma.TilePipeline(
        3, x=TILE, producer=ROLES.load, consumer=ROLES.work, filled_by="threads", debug=True
    )

    @cuda.jit
    def kernel(n):
        pipe = PIPE.start()
        if pipe.is_producer():
            for _ in pipe.produce(0, n):
                pass
        else:
            for _ in pipe.consume(0, n):
                pass
        pipe.close()

    chosen, site, first = {
        "work": (ROLES.work, "full", 3 * TILE.nbytes),
        "load": (ROLES.load, "empty", 3 * TILE.nbytes + 24),
    }[role]
    found = waits(kernel, (I64,), 8, thread=chosen.first, count=7)
    assert found == [turn(site, i, 3, first) for i in range(7)]


def test_waits_of_launch_control():
    CONTROL = tma.LaunchControl(slots=2, debug=True)
    SCHEDULER = tma.GroupedScheduler(2)

    @cuda.jit
    def kernel(rows, columns):
        for _ in CONTROL.start().tiles(SCHEDULER.over(rows, columns)):
            pass

    found = waits(
        kernel, (I64, I64), 4, 16, thread=32, count=12, cc=BLACKWELL,
        more=lambda name: int("is_canceled" in name),
    )  # fmt: skip
    first = {
        site: CONTROL.full_offset if site == "full" else CONTROL.empty_offset
        for site in ("full", "empty")
    }
    for site, start in first.items():
        records = sites(found, site)
        assert len(records) >= 5
        assert records == [turn(site, i, 2, start) for i in range(len(records))]
