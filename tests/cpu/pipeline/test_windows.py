"""Compiled windows: what they cost, and which stages they wait for, read and release."""

import re

import numpy as np
import pytest
from numba import cuda, types

import numba_tma as tma
from numba_tma.tools.testing import compile_ptx, find_tool, instructions, ptxas, sass
from tests.kernels.window_kernels import PLANE, TILE, stencil
from tests.ptx_arithmetic import SHARED_WINDOW
from tests.ptx_machine import Machine
from tests.tiers import every

STENCIL = tma.map_type(PLANE), types.float32[:, :, ::1], types.int32, types.int32


def counted(by_hand):
    text = compile_ptx(stencil(by_hand)[1], STENCIL)
    report = ptxas(text)
    assert (report.spill_stores, report.spill_loads, report.stack_frame) == (0, 0, 0)
    counts = {"PTX instructions": len(instructions(text)), "registers": report.registers}
    if find_tool("nvdisasm") is not None:
        code = re.findall(r"^\s*/\*[0-9a-f]+\*/\s+(\S.*?) ?;", sass(text), re.M)
        counts["machine instructions"] = sum(not line.startswith("NOP") for line in code)
    return counts


def test_a_stencil_with_windows_costs_little_more_than_sums_in_registers():
    """Each of a thread's 4 points reads 7 elements in place of 5."""
    ours, by_hand = counted(False), counted(True)
    assert ours["PTX instructions"] <= by_hand["PTX instructions"]
    assert ours["registers"] <= by_hand["registers"]
    assert ours.get("machine instructions", 0) <= 1.12 * by_hand.get("machine instructions", 0)


def executed(before, after, stages, backwards, chunks):
    """Return the stages of each window of a compiled kernel, and its waits and releases.

    Thread 0 is executed. Element 0 of the tile in a stage is the stage's number.
    """
    PIPE, tiles = tma.TilePipeline(stages, x=TILE), before + 1 + after
    FIRST, LAST, STEP = -before, after + 1, -1 if backwards else 1

    @cuda.jit
    def kernel(chunks, y):
        pipe, turn = PIPE.start(), 0
        for chunk in range(chunks.shape[0]):
            for _, window in pipe.windows(
                chunks[chunk, 0], chunks[chunk, 1], STEP, before=before, after=after
            ):
                for d in range(FIRST, LAST):
                    y[turn, d - FIRST] = window[d].x[0, 0]
                turn += 1
                if turn == chunks[chunk, 2]:
                    break
        pipe.close()

    y = np.full((20, tiles), -1, np.float32)
    kinds = types.int64[:, ::1], types.float32[:, ::1]
    text = compile_ptx(kernel, kinds)
    assert ptxas(text).stack_frame == 0  # though a distance is a variable
    machine = Machine(text, np.array(chunks), y, block=(64, 1, 1))
    names = {}
    for stage in range(stages):
        place = machine.shared[-1] + PIPE.tile_offset("x") + stage * TILE.nbytes
        machine.poke(SHARED_WINDOW + place, np.float32(stage).tobytes())
        first = machine.shared[-1] + PIPE.barriers_offset + 8 * stage
        names[first], names[first + PIPE.empty_offset] = ("wait", stage), ("release", stage)
    log = machine.run(0)
    acts = [given[0] for name, given in log if re.match(r"mbarrier\.(try_wait|arrive)", name)]
    return y[y[:, 0] >= 0], [names[place] for place in acts if place in names]


@pytest.mark.parametrize(
    ("before", "after", "stages", "backwards"),
    every(4, [(1, 1, 4, False), (0, 0, 2, False), (1, 0, 2, False), (2, 1, 5, True)]),
)
def test_compiled_windows_walk_the_ring(before, after, stages, backwards):
    """A chunk, an empty one, one that is left, and one that ends with the loop."""
    chunks = [(0, 4, -1), (7, 7, -1), (2, 9, 6), (5, 6, -1)]
    if backwards:
        chunks = [(stop - 1, first - 1, left) for first, stop, left in chunks]
    found, acts = executed(before, after, stages, backwards, chunks)
    rows, expected, arrived, width = [], [], 0, before + 1 + after
    for turns in (4, 2, 1):
        oldest = arrived
        for _ in range(turns):
            while arrived < oldest + width:
                expected.append(("wait", arrived % stages))
                arrived += 1
            row = [stage % stages for stage in range(oldest, arrived)]
            rows.append(row[::-1] if backwards else row)
            expected.append(("release", oldest % stages))
            oldest += 1
        expected += [("release", stage % stages) for stage in range(oldest, arrived)]
    assert found.tolist() == rows
    assert acts == expected
