"""Tensor memory in kernels: the PTX for sm_100a, and the compile-time errors."""

import re

import pytest
from numba import types
from numba.core.errors import TypingError

from numba_tma import ptx
from numba_tma.tools.testing import compile_ptx, ptxas
from tests.kernels.accumulators import hand_over

SM_100A = (10, 0, "a")
TILES = types.uint32[:, :, ::1]
OUT = types.uint32[::1]


@pytest.fixture(scope="module", name="text")
def ptx_of_the_hand_over():
    return compile_ptx(hand_over, (TILES, TILES), cc=SM_100A)


def test_the_hand_over_stays_in_registers(text):
    report = ptxas(text)
    assert (report.arch, report.warnings) == ("sm_100a", ())
    assert (report.stack_frame, report.spill_stores, report.spill_loads) == (0, 0, 0)
    assert ".local" not in text and "call" not in re.findall(r"^\s*(\w+)", text, re.M)


def test_the_hand_over_executes_its_instructions_in_order(text):
    """A wait has no operands: nothing but their order holds it behind what it waits for."""
    found = re.findall(r"tcgen05\.(alloc|dealloc|ld|st|wait::\w+|commit|fence::[a-z]+)", text)
    epilogue = ["fence::after", "ld", "wait::ld", "fence::before"]
    product = ["fence::after", *["st"] * 8, "wait::st", "commit"]
    assert sorted(found) == sorted(["alloc", "dealloc", *epilogue, *product])
    for part in (epilogue, product):
        assert any(found[i : i + len(part)] == part for i in range(len(found)))


def test_the_registers_of_a_load_are_a_tuple_of_as_many_as_it_says():
    def kernel(out):
        (one,) = ptx.tcgen05_ld_32x32b(0, 1)
        four = ptx.tcgen05_ld_16x256b(0, 1)
        ptx.tcgen05_wait_ld()
        ptx.tcgen05_st_16x128b(0, (*four, *four, one, one, one, one, *four), 8)
        out[0] = len(four)

    text = compile_ptx(kernel, (OUT,), cc=SM_100A)
    assert re.search(
        r"tcgen05\.st\.sync\.aligned\.16x128b\.x8\.b32 \[%r\d+\], {(%r\d+, ){15}", text
    )
    assert ptxas(text).spill_stores == 0


ROWS = [name for name, row in ptx.TABLE.items() if row.family == "tcgen05"]


@pytest.mark.parametrize(
    ("name", "cc"), [*((name, (9, 0, "a")) for name in ROWS), ("tcgen05_wait_ld", (12, 0))]
)
def test_other_architectures_have_no_tensor_memory(name, cc):
    given = {"u32": "0", "values": "(0,)", "cta_group": "1", "num": "1", "barrier": "0"}
    row = ptx.TABLE[name]
    operands = [given.get(n, "0") for n in row.operands if n not in row.defaults]
    scope = {"ptx": ptx}
    exec(f"def kernel():\n    ptx.{name}({', '.join(operands)})", scope)
    text = rf"{name}\(\) needs sm_100a, 100f, .* or 110f; .* compiled for sm_{cc[0]}0"
    with pytest.raises(TypingError, match=text):
        compile_ptx(scope["kernel"], (), cc=cc)


def three_registers():
    ptx.tcgen05_st_32x32b(0, (0, 0, 0), 4)


def too_often():
    ptx.tcgen05_ld_16x256b(0, 64)


def of_a_variable(out):
    for num in range(4):
        ptx.tcgen05_ld_32x32b(0, num)


def of_a_text():
    ptx.tcgen05_ld_32x32b("0", 1)


def three_blocks():
    ptx.tcgen05_relinquish_alloc_permit(3)


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (three_registers, r"tcgen05_st_32x32b\(values=...\) takes a tuple of 4 numbers .uint32."),
        (too_often, r"tcgen05_ld_16x256b\(num=...\) is part of the .* 1, 2, 4, 8, 16, 32, not 64"),
        (of_a_variable, r"tcgen05_ld_32x32b\(num=...\) is part of the .* 64, 128, not int64"),
        (of_a_text, r"tcgen05_ld_32x32b\(taddr=...\) takes an integer .uint32., not "),
        (three_blocks, r"permit\(cta_group=...\) is part of the instruction: one of 1, 2, not 3"),
    ],
)
def test_operands(kernel, text):
    signature = (OUT,) if kernel is of_a_variable else ()
    with pytest.raises(TypingError, match=text):
        compile_ptx(kernel, signature, cc=SM_100A)


APART = [(name, *pair) for name, row in ptx.TABLE.items() for pair in row.apart]


@pytest.mark.parametrize(("name", "first", "second"), APART)
def test_choices_that_ptx_does_not_take_together(name, first, second):
    row = ptx.TABLE[name]
    given = {n: repr(row.choices[n][0]) if n in row.choices else "0" for n in row.operands}
    given = {n: value for n, value in given.items() if n not in row.defaults}
    for tag in (first, second):  # an operand that is given, or a choice
        chosen = {n: repr(tag) for n, values in row.choices.items() if tag in values}
        given |= chosen or {tag: "1"}
    scope = {"ptx": ptx}
    call = ", ".join(f"{operand}={value}" for operand, value in given.items())
    exec(f"def kernel():\n    ptx.{name}({call})", scope)
    with pytest.raises(TypingError, match=f"{name}: PTX does not take {first} together with"):
        compile_ptx(scope["kernel"], (), cc=SM_100A)
