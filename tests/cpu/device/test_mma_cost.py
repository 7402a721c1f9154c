"""The machine code of loops around wgmma: no spills, no serialisation, no moves."""

import functools
import re
from collections import Counter

import pytest

from numba_tma.tools.testing import compile_ptx, find_tool
from tests.kernels.mma_kernels import attention, matmul
from tests.machine_code import all_in_registers, shortest_loop
from tests.tiers import quick

KERNELS = {"matmul": matmul, "attention": attention}
needs_nvdisasm = pytest.mark.skipif(find_tool("nvdisasm") is None, reason="needs nvdisasm")

#: Machine instructions of the same loop over K, each of its PTX instructions written by hand.
MATMUL_BY_HAND = 74


@functools.cache
def compiled(name):
    return compile_ptx(*KERNELS[name](), cc=(9, 0, "a"))


# tests/cpu/kernels/test_attention.py looks at the attention that is shipped.
@pytest.mark.parametrize("name", quick(["matmul"], KERNELS))
def test_registers_hold_everything(name):
    assert all_in_registers(compiled(name)).registers == 168  # of each thread at launch


@functools.cache
def main_loop(name):
    """Return the operations and instructions of the shortest loop with products in it."""
    return shortest_loop(compiled(name), lambda code: "HGMMA" in code)


def operations(name):
    """Count the operations, without their modifiers."""
    return Counter(operation for operation, _ in main_loop(name))


def accumulators(name):
    """Return the registers that each kind of product adds to, by its operand A: "R" or "gdesc"."""
    found = {}
    for _, line in main_loop(name):
        if product := re.search(r"HGMMA\.64x(\d+)x16\.F32\S* R(\d+), (R|gdesc)", line):
            columns, first = int(product[1]), int(product[2])
            held = {f"R{r}" for r in range(first, first + columns // 2)}
            assert found.setdefault(product[3], held) == held
    return found


def naming(name, registers):
    """Return the operations that name one of the registers."""
    named = [i for _, i in main_loop(name) if registers & set(re.findall(r"\bR\d+\b", i))]
    return {re.match(r"\w+", i)[0] for i in named}


@needs_nvdisasm
def test_the_loop_of_a_matmul_is_as_short_as_by_hand():
    found = operations("matmul")
    expected = {"HGMMA": 4, "WARPGROUP.ARRIVE": 1, "WARPGROUP.DEPBAR": 1}
    expected |= {"SYNCS": 2, "SYNCS.ARRIVE": 1}  # a wait, which is asked for twice, and an arrival
    assert {name: found[name] for name in expected} == expected
    assert sum(found.values()) <= MATMUL_BY_HAND, found
    assert naming("matmul", accumulators("matmul")["gdesc"]) == {"HGMMA"}


@pytest.mark.slow
@needs_nvdisasm
def test_the_loop_of_attention_computes_and_moves_nothing():
    found = operations("attention")
    assert (found["HGMMA"], found["MUFU.EX2"]) == (16, 64 + 2)
    assert (found["WARPGROUP.ARRIVE"], found["WARPGROUP.DEPBAR"]) == (2, 2)
    held = accumulators("attention")
    assert not held["gdesc"] & held["R"]  # the scores of these keys, and the sum over the last
    assert naming("attention", held["R"]) == {"HGMMA", "FMUL"}


@pytest.mark.slow
@needs_nvdisasm
def test_a_wait_stays_behind_what_is_to_overlap_with_the_product():
    code = [line for _, line in main_loop("attention")]
    waits, powers = (
        [n for n, line in enumerate(code) if name in line] for name in ("DEPBAR", "MUFU.EX2")
    )
    assert waits[0] < powers[0] and powers[-1] < waits[1]
