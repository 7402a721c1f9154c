"""ptx/*.ptx and the instruction table agree."""

import functools
import operator
import re

import pytest

from numba_tma import ptx
from numba_tma.host.architectures import TMA, at_least
from numba_tma.ptx._instruction import vector_of
from tests import ptx_contract as contract
from tests.ptx_contract import FORMS, WRITTEN

# ------------------------------------------------------------------------------ files


def test_one_file_for_each_family():
    assert [f.stem for f in contract.FILES] == sorted({row.family for row in ptx.TABLE.values()})


@pytest.mark.parametrize("file", contract.FILES, ids=lambda f: f.stem)
def test_claims_the_targets_of_its_rows_and_has_one_kernel(file):
    having = [form.targets for form in FORMS.values() if form.row.family == file.stem]
    common = functools.reduce(operator.and_, having, TMA)
    assert contract.architectures(file) == common
    assert re.findall(r"^\.visible \.entry (\w+)", file.read_text(), re.M) == [file.stem]


@pytest.mark.parametrize("file", contract.FILES, ids=lambda f: f.stem)
def test_markers_are_the_rows_of_the_family(file):
    rows = {
        name: (form.isa, form.targets.name)
        for name, form in FORMS.items()
        if form.row.family == file.stem
    }
    found = contract.forms(file)
    assert {form.name: (form.isa, form.targets.name) for form in found} == rows
    assert len(found) == len(rows), "a form stands under two markers"


@pytest.mark.parametrize("file", contract.FILES, ids=lambda f: f.stem)
def test_no_marker_is_misspelt(file):
    mentions = re.findall(r"^.*numba_tma\.ptx\..*$", file.read_text(), re.M)
    assert [line for line in mentions if not contract.MARKER.match(line)] == []


@pytest.mark.parametrize("file", contract.FILES, ids=lambda f: f.stem)
def test_every_other_instruction_is_plain_or_a_form(file):
    known = {contract.without_names(form.text) for form in WRITTEN.values()}
    others = [i for i in contract.instructions(file) if not contract.PLAIN.match(i)]
    assert [i for i in others if contract.without_names(i) not in known] == []


# -------------------------------------------------------------------------- operands


@pytest.mark.parametrize("row", ptx.TABLE.values(), ids=lambda row: row.name)
def test_the_syntax_of_a_row_is_the_text_of_its_forms(row):
    """With braces around what may be left out, and each choice by its name in angle brackets."""
    names = {*row.operands, *re.findall(r"\{(\w+)\}", row.template)}
    optional = {name for name in names if row.is_optional(name)}
    for form in [next(row.combinations()), *row.forms()]:
        operands = {n: str(form.choices.get(n, n)) for n in names}
        shown = row.syntax.replace("Nd", f"{form.rank}d")
        for name, choice in operands.items():
            shown = shown.replace(f"<{name}>", choice)
        everything = row.text(operands, optional, form.rank).rstrip(";").strip()
        assert re.sub(r"[{}]", "", shown) == re.sub(r"[{}]", "", everything)
        if "{" not in everything:  # PTX has braces around vectors, too
            some = row.text(operands, set(), form.rank).rstrip(";").strip()
            assert re.sub(r"\{[^{}]*\}", "", shown).strip() == some


def test_optional_operands_have_one_order():
    ends = {tuple(n for n, d in row.defaults.items() if d is None) for row in ptx.TABLE.values()}
    assert ("cache_hint", "multicast") in ends and ("multicast", "cache_hint") not in ends


@pytest.mark.parametrize(
    ("tiled", "im2col"),
    [
        ("cp_async_bulk_tensor_load", "cp_async_bulk_tensor_im2col_load"),
        ("cp_async_bulk_tensor_load", "cp_async_bulk_tensor_im2col_w_load"),
        ("cp_async_bulk_tensor_load", "cp_async_bulk_tensor_im2col_w_128_load"),
        ("cp_async_bulk_tensor_store", "cp_async_bulk_tensor_im2col_store"),
        ("cp_reduce_async_bulk_tensor", "cp_reduce_async_bulk_tensor_im2col"),
        ("cp_async_bulk_prefetch_tensor", "cp_async_bulk_prefetch_tensor_im2col"),
        ("cp_async_bulk_prefetch_tensor", "cp_async_bulk_prefetch_tensor_im2col_w"),
    ],
)
def test_an_im2col_row_has_the_tiled_row_s_operands_in_its_order(tiled, im2col):
    added = {"offsets", "w_halo", "w_offset", "cta_group"}  # the last: tiled loads have a row of it
    operands = {n: kind for n, kind in ptx.TABLE[im2col].operands.items() if n not in added}
    assert list(operands.items()) == list(ptx.TABLE[tiled].operands.items())


@pytest.mark.parametrize(
    ("kind", "choices", "vector"),
    [
        ("u32x4", {}, ("u32", 4)),
        ("f64x2", {}, ("f64", 2)),
        ("i32x16", {"num": 2}, ("i32", 16)),
        ("u32xnum", {"num": 8}, ("u32", 8)),
        ("u32x2num", {"num": 8}, ("u32", 16)),
        ("u32x4group", {"cta_group": 2, "num": 3}, ("u32", 8)),
        ("u32xnumand1", {"num": 8}, ("u32", 9)),
        ("u32x2numand1", {"num": 2}, ("u32", 5)),
        *((kind, {}, None) for kind in ("u32", "Coordinates", "b128", "x4", "u32x4and2")),
    ],
)
def test_a_vector_has_as_many_elements_as_its_kind_says(kind, choices, vector):
    assert vector_of(kind, choices) == vector


# ---------------------------------------------------------------- what compilers may move

#: Instructions of other threads too, although their text does not say it.
CONVERGENT = {"barrier_cluster_arrive", "barrier_cluster_wait", "activemask", "barrier_arrive"}


def test_instructions_that_threads_execute_together_are_convergent():
    found = {name for name, row in ptx.TABLE.items() if row.convergent}
    together = re.compile(r"\.(sync|aligned)\b")
    assert found == CONVERGENT | {n for n, r in ptx.TABLE.items() if together.search(r.template)}


#: Results that differ from one call to the next, or from one place in a kernel to another.
CHANGING = {"warpid", "smid", "clock64", "globaltimer", "elect_sync", "activemask"}


def test_results_of_operands_alone_are_pure():
    """Those of memory, in brackets, are not; a policy of a range of addresses reads none."""
    of_operands = {n for n, row in ptx.TABLE.items() if row.returns != "None"} - CHANGING
    found = {name for name, row in ptx.TABLE.items() if row.pure}
    in_memory = {n for n in of_operands if "[" in ptx.TABLE[n].template} - {"createpolicy_range"}
    assert found == of_operands - in_memory


# -------------------------------------------------------------- the comparison itself


@pytest.mark.parametrize(
    ("block", "read"),
    [
        ("bar.warp.sync %r1;", "bar.warp.sync %mask"),
        ("bar.warp.sync %r2;", "bar.warp.sync %barrier"),
        ("bar.warp.sync 4;", "bar.warp.sync #"),
        ("{ .reg .pred p; a.b p, [%r2]; selp.u32 %r9, 1, 0, p; }", "a.b %predicate, [%barrier]"),
        (
            "{ .reg .pred p; a.b p, [%r2]; selp.u32 %r9, 0, 1, p; }",
            "{ .reg .pred p; a.b p, [%barrier]; selp.u32 %result, 0, 1, p; }",
        ),
        ("a.b _|%p4, %r1;", "a.b _|%predicate, %mask"),
        ("a.b %rd7, %r1; c.d;", "a.b %result, %mask; c.d"),
    ],
)
def test_inline_asm_reads(block, read):
    text = (
        "\tld.param.u32 \t%r1, [_ZN1kE_param_0];\n\tmov.u64 \t%rd3, shared_0;\n"
        f"\tcvt.u32.u64 \t%r2, %rd3;\n\t// begin inline asm\n\t{block}\n\t// end inline asm\n"
    )
    assert contract.inline_asm(text, {"param_0": "mask", "shared_0": "barrier"}) == [read]


def test_a_form_is_read_from_under_its_marker():
    load = WRITTEN["cp_async_bulk_tensor_load[2d, cache_hint]"]
    assert (load.isa, load.targets) == (FORMS[load.name].row.isa, at_least(90))
    assert load.text.endswith(" [%destination], [%tensor_map, {%c1, %c0}], [%barrier], %cache_hint")
