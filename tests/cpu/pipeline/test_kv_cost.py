"""The cost of a ring of keys and values beside the same loops by hand."""

import re

import pytest
from numba import types

from numba_tma.tools.testing import compile_ptx, find_tool, instructions, ptxas, sass
from tests.kernels import kv_kernels as kernels
from tests.tiers import quick

FORMS = {"ours": kernels.kv_pipeline, "by hand": kernels.kv_pipeline_by_hand}


@pytest.fixture(scope="module")
def compiled():
    return {name: compile_ptx(*form()) for name, form in FORMS.items()}


def machine_count(ptx):
    """Count machine instructions, less the padding at the end."""
    code = re.findall(r"^\s*/\*[0-9a-f]+\*/\s+(\S.*?) ?;", sass(ptx), re.M)
    return sum(not instruction.startswith("NOP") for instruction in code)


def test_ptx_is_within_2_percent_of_the_loops_by_hand(compiled):
    ours, hand = (
        sum(not line.endswith(":") for line in instructions(compiled[name])) for name in FORMS
    )
    assert ours <= 1.02 * hand, f"{ours} PTX instructions with KVPipeline, {hand} by hand"


@pytest.mark.skipif(find_tool("nvdisasm") is None, reason="nvdisasm is not installed")
def test_machine_code_is_within_2_percent_of_the_loops_by_hand(compiled):
    ours, hand = (machine_count(compiled[name]) for name in FORMS)
    assert ours <= 1.02 * hand, f"{ours} machine instructions with KVPipeline, {hand} by hand"


def test_registers_are_within_2_percent_of_the_loops_by_hand(compiled):
    ours, hand = (ptxas(compiled[name]).registers for name in FORMS)
    assert ours <= 1.02 * hand, f"{ours} registers with KVPipeline, {hand} by hand"


def check_no_spill(ptx):
    report = ptxas(ptx)
    assert (report.spill_stores, report.spill_loads, report.stack_frame) == (0, 0, 0)
    assert report.warnings == ()
    assert [i for i in instructions(ptx) if ".local" in i or i.startswith("call")] == []


@pytest.mark.parametrize("name", FORMS)
def test_nothing_is_spilled(compiled, name):
    check_no_spill(compiled[name])


ORDERS = [(order, shared) for order in kernels.ORDERS for shared in (True, False)]


@pytest.mark.parametrize(("order", "shared"), quick(ORDERS[::5], ORDERS))
def test_nothing_is_spilled_in_any_order_of_use(order, shared):
    _, rings, kernel = kernels.order_kernel(order, 3, 2, shared, 2, 2)
    maps = kernels.map_of(rings[0].k_tile), kernels.map_of(rings[-1].v_tile)
    ptx = compile_ptx(kernel, (*maps, types.float32[:, :, ::1], types.int64))
    check_no_spill(ptx)
    assert sum(i.startswith("bar.sync") for i in instructions(ptx)) == 1  # for both rings
