"""Attention's machine code: no spills, no serialised products, and a count of each operation."""

import functools
import re
from collections import Counter

import pytest
from numba import types

from numba_tma import TensorMapType
from numba_tma.dtypes import as_dtype
from numba_tma.kernels._attention_kernel import attention_kernel
from numba_tma.kernels._attention_plan import PLANS, Problem
from numba_tma.mma_rules import ROWS
from numba_tma.testing import compile_ptx, find_tool, instructions, ptxas, sass

PROBLEMS = {
    f"d{depth}{' causal' * causal}": Problem(depth, as_dtype("bf16"), causal)
    for depth, causal in PLANS
}
by_problem = pytest.mark.parametrize("name", PROBLEMS)
needs_nvdisasm = pytest.mark.skipif(find_tool("nvdisasm") is None, reason="needs nvdisasm")


def plan_of(name):
    return PLANS[PROBLEMS[name].depth, PROBLEMS[name].causal]


@functools.cache
def compiled(name):
    problem, plan = PROBLEMS[name], plan_of(name)
    rows = (ROWS, plan.block_k, plan.block_k, ROWS)
    maps = tuple(TensorMapType(4, problem.tile(n)) for n in rows)
    return compile_ptx(attention_kernel(problem, plan), (*maps, *[types.int64] * 5, types.float32))


@by_problem
def test_registers_hold_everything(name):
    """ptxas says so itself (C7508 to C7514) when products wait for each other's registers."""
    report = ptxas(compiled(name))
    assert (report.spill_stores, report.spill_loads, report.stack_frame) == (0, 0, 0)
    assert report.warnings == ()
    assert report.registers == 65536 // plan_of(name).threads // 8 * 8  # at launch
    assert [line for line in instructions(compiled(name)) if ".local" in line] == []


@functools.cache
def main_loop(name):
    """Return the machine code of the loop over keys, as (operation, instruction), in order."""
    text = re.sub(r"/\*.*?\*/", "", sass(compiled(name)))
    code = [line.strip() for line in text.splitlines() if line.strip()]
    places = {line[:-1]: i for i, line in enumerate(code) if line.endswith(":")}
    loops = []
    for end, line in enumerate(code):
        back = re.search(r"BRA.* `\((\.L_x_\d+)\)", line)
        if back and places[back[1]] < end:
            loops.append([i for i in code[places[back[1]] : end + 1] if not i.startswith(".")])
    # Both products of a step, and the shortest such loop: the next one outside is over tiles.
    both = [b for b in loops if {"R", "gdesc"} <= set(_operands(b))]
    body = [re.sub(r"^@!?U?P\d ", "", i) for i in min(both, key=len)]
    return [(re.match(r"[A-Z0-9]+(\.(DEPBAR|ARRIVE|EX2))?", i)[0], i) for i in body]


def _operands(lines):
    return re.findall(r"HGMMA\S+ R\d+, (R|gdesc)", "\n".join(lines))


@needs_nvdisasm
@by_problem
def test_a_step_computes_and_moves_nothing(name):
    problem, plan = PROBLEMS[name], plan_of(name)
    scores, outputs = plan.block_k // 2, problem.depth // 2  # of a thread
    found = Counter(operation for operation, _ in main_loop(name))
    assert found["HGMMA"] == problem.depth // 16 + plan.block_k // 16
    assert found["MUFU.EX2"] == scores + 2  # and of each of the two rows the decay
    assert found["FFMA"] == scores + 4  # score * scale + shift
    assert found["FMUL"] == outputs + 2
    assert found["FADD"] == scores - 2
    assert found["FMNMX"] == scores + 4
    assert found["F2FP"] == scores // 2
    assert (found["WARPGROUP.ARRIVE"], found["WARPGROUP.DEPBAR"]) == (2, 2)
    masked = 3.6 if problem.causal else 2  # what a step with masked keys has more, for each score
    assert sum(found.values()) <= (4.5 + masked) * scores + outputs + 200, found


@needs_nvdisasm
@by_problem
def test_exponentials_are_computed_while_products_run(name):
    """ptxas is free to wait for the product with V at once, which would cost all the overlap."""
    order = [operation for operation, _ in main_loop(name)]
    exponentials = [i for i, operation in enumerate(order) if operation == "MUFU.EX2"]
    products = [i for i, operation in enumerate(order) if operation == "HGMMA"]
    waits = [i for i, operation in enumerate(order) if operation == "WARPGROUP.DEPBAR"]
    # Both products, the wait for the first, the softmax, the wait for the second.
    assert products[-1] < waits[0] < exponentials[0] < exponentials[-1] < waits[1]
