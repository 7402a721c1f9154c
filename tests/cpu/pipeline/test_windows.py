"""The machine code of windows: no local memory, and no more around the work than a plain loop."""

import re

import pytest
from numba import types

import numba_tma as tma
from numba_tma.tools.testing import compile_ptx, find_tool, instructions, ptxas, sass
from tests.kernels.window_kernels import PLANE, TILE, stencil, window_sums
from tests.tiers import every

STENCIL = tma.map_type(PLANE), types.float32[:, :, ::1], types.int32, types.int32
SUMS = tma.map_type(TILE), types.float32[:, ::1], types.int64[::1], types.int64[:, ::1]


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


@pytest.mark.parametrize(
    ("before", "after", "stages", "backwards", "cc"),
    every(2, [(2, 2, 6, True, 9), (1, 0, 3, False, 10), (0, 0, 2, False, 9), (2, 2, 5, False, 10)]),
)
def test_windows_have_no_local_memory(before, after, stages, backwards, cc):
    """A distance that is a variable is an address, too."""
    _, kernel = window_sums(before, after, stages, backwards)
    text = compile_ptx(kernel, SUMS, cc=(cc, 0, "a"))
    report = ptxas(text)
    assert (report.spill_stores, report.spill_loads, report.stack_frame) == (0, 0, 0)
    assert [line for line in instructions(text) if ".local" in line] == []
