"""The cost of each pipeline's demonstration beside the same kernel by hand."""

import functools
import re

import pytest

from numba_tma.tools.testing import compile_ptx, find_tool, instructions, ptxas, sass
from tests.kernels.pipeline_kernels import PIPELINES
from tests.tiers import every

HOPPER, BLACKWELL = (9, 0, "a"), (10, 0, "a")


@functools.cache
def compiled(name, by_hand, cc=HOPPER):
    kernel, arguments = PIPELINES[name][by_hand]()
    return compile_ptx(kernel, arguments, cc=cc)


def ptx_count(text):
    return sum(not line.endswith(":") for line in instructions(text))


def machine_count(text):
    """Count machine instructions, less the padding at the end."""
    code = re.findall(r"^\s*/\*[0-9a-f]+\*/\s+(\S.*?) ?;", sass(text), re.M)
    return sum(not instruction.startswith("NOP") for instruction in code)


# What every run compiles of each is compared with its golden: test_kernel_goldens.py.
by_name = pytest.mark.parametrize("name", every(3, PIPELINES))


@by_name
def test_ptx_is_within_2_percent_of_the_kernel_by_hand(name):
    ours, hand = (ptx_count(compiled(name, by_hand)) for by_hand in (False, True))
    assert ours <= 1.02 * hand, f"{ours} PTX instructions with the pipeline, {hand} by hand"


@pytest.mark.skipif(find_tool("nvdisasm") is None, reason="nvdisasm is not installed")
@by_name
def test_machine_code_is_within_2_percent_of_the_kernel_by_hand(name):
    ours, hand = (machine_count(compiled(name, by_hand)) for by_hand in (False, True))
    assert ours <= 1.02 * hand, f"{ours} machine instructions with the pipeline, {hand} by hand"


@by_name
def test_registers_are_those_of_the_kernel_by_hand(name):
    ours, hand = (ptxas(compiled(name, by_hand)).registers for by_hand in (False, True))
    # A warp gets them by eights for each thread.
    assert -(-ours // 8) <= -(-hand // 8), f"{ours} registers with the pipeline, {hand} by hand"


@pytest.mark.parametrize("by_hand", [False, True], ids=["pipeline", "by_hand"])
@pytest.mark.parametrize("cc", every(2, [(HOPPER,), (BLACKWELL,)]), ids=["sm_90a", "sm_100a"])
@by_name
def test_nothing_is_spilled(name, cc, by_hand):
    text = compiled(name, by_hand, cc)
    report = ptxas(text)
    assert (report.spill_stores, report.spill_loads, report.stack_frame) == (0, 0, 0)
    assert report.warnings == ()
    assert [line for line in instructions(text) if ".local" in line or "call" in line] == []
