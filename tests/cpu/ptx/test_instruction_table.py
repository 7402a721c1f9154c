"""docs/reference/instructions.md agrees with the rows of the instruction table."""

import re

import pytest

from numba_tma import ptx
from numba_tma.host.architectures import TCGEN05, at_least
from numba_tma.ptx import Instruction
from tests import instruction_table as table
from tests.tiers import every


def test_the_page_is_fresh():
    assert table.FILE.exists() and table.FILE.read_text() == table.page(), (
        "docs/reference/instructions.md is stale: `make goldens` writes it"
    )


def test_every_row_is_a_public_name():
    missing = [name for name, row in ptx.TABLE.items() if getattr(ptx, name, None) is not row.body]
    assert missing == []


@pytest.mark.parametrize("name", every(3, ptx.TABLE))
def test_a_row_has_one_line_of_six_cells(name):
    lines = [li for li in table.page().splitlines() if li.startswith(f"| `{name}(")]
    assert len(lines) == 1
    assert len(re.split(r"(?<!\\)\|", lines[0])) == 6 + 2  # and what is before and after


def test_links_lead_to_files():
    links = set(re.findall(r"\]\((\.\./[^)]+)\)", table.page()))
    assert len(links) > 5
    assert [link for link in links if not (table.FILE.parent / link).exists()] == []


def test_every_section_is_linked():
    page = table.page()
    for row in ptx.TABLE.values():
        heading, anchor = table.section(row)
        assert f"\n[{heading}]: {table.MANUAL}#{anchor}\n" in page


def row(template, operands=None, returns="None", **more):
    """Make a row as the decorator would, outside of the table."""

    def body():
        """Do 2**20 | things.

        And more.
        """

    given = {"defaults": {}, "choices": {}, "since": {}, "apart": (), "ranks": ()} | more
    given |= {"operands": operands or {}, "returns": returns, "family": "x", "body": body}
    return Instruction("made_up", template, (8, 0), at_least(90), **given)


def test_the_syntax_names_choices_and_optional_parts():
    made = row(
        "<condition:@{condition} >ld.{space}.RANKd<hint:.L2> {result}, [{at}]<hint:, {hint}>;",
        choices={"space": ("global", "shared")},
    )
    assert made.syntax == "{@condition }ld.<space>.Nd{.L2} result, [at]{, hint}"


@pytest.mark.parametrize(
    ("template", "section"),
    [
        ("mbarrier.arrive.expect_tx.shared::cta.b64 {result}, [{b}];", "mbarrier.arrive"),
        ("mbarrier.arrive<semantics:.{semantics}>.shared::cta.b64 _, [{b}];", "mbarrier.arrive"),
        ("mbarrier.arrive_drop.b64 {result}, [{b}];", "mbarrier.arrive_drop"),
        ("mbarrier.try_wait.parity.b64 {p}, [{b}];", "mbarrier.test_wait, mbarrier.try_wait"),
        ("cp.async.ca.shared.global [{d}], [{s}], 4;", "cp.async"),
        ("@{condition} cp.async.ca.shared.global [{d}], [{s}], 4;", "cp.async"),
        ("cp.async.wait_all;", "cp.async.wait_group, cp.async.wait_all"),
        (
            "cp.async.bulk.prefetch.tensor.RANKd.L2.global [{t}, {c}];",
            "cp.async.bulk.prefetch.tensor",
        ),
        ("cp.async.bulk.prefetch.L2.global [{t}], 16;", "cp.async.bulk.prefetch"),
        ("cp.async.mbarrier.arrive.noinc.b64 [{b}];", "cp.async.mbarrier.arrive"),
        (
            "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [{d}];",
            "cp.reduce.async.bulk",
        ),
        (
            "tensormap.cp_fenceproxy.global.shared::cta [{d}], [{s}], 128;",
            "tensormap.cp_fenceproxy",
        ),
        ("bar.sync {id}, {n};", "bar, barrier"),
        ("bar.warp.sync {mask};", "bar.warp.sync"),
        ("barrier.cluster.arrive.release.aligned;", "barrier.cluster"),
        ("fence.acq_rel.{scope};", "membar, fence"),
        ("ld.shared::cluster.u32 {result}, [{a}];", "ld"),
        ("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [{a}];", "st.async"),
        ("mov.u64 {result}, %globaltimer;", "%globaltimer"),
        ("mov.u32 {result}, %cluster_ctaid.x;", "%cluster_ctaid"),
        ("mov.u32 {result}, {source};", "mov"),
    ],
)
def test_the_section_follows_from_the_mnemonic(template, section):
    assert table.section(row(template))[0] == section


def test_an_instruction_without_a_section_is_named():
    with pytest.raises(ValueError, match=r"made_up: no section .* 'frobnicate.u32;'; add"):
        table.section(row("frobnicate.u32;"))


def test_anchors_have_dashes():
    anchors = [anchor for _, anchor in table.SECTIONS.values()]
    assert all(re.fullmatch(r"[a-z][a-z0-9-]+", anchor) for anchor in anchors)
    assert table.section(row("mov.u32 {result}, %cluster_ctaid.x;"))[1] == (
        "special-registers-cluster-ctaid"
    )


def test_a_row_with_everything():
    line = table.line(
        row(
            "red.async<semantics:.{semantics}>.{op}.x{count}.RANKd.u32<hint:.L2>"
            " {result}|{predicate}, [{tensor_map}, {{row}, {coords}}], {values}<hint:, {hint}>;",
            {
                "tensor_map": "TensorMapOperand",
                "coords": "Coordinates",
                "values": "u32x4",
                "enabled": "Predicate",
                "row": "i32",
                "op": "Op",
                "count": "Count",
                "semantics": "Semantics",
                "hint": "CacheHint",
                "limit": "u32",
            },
            returns="f32x4",
            defaults={"semantics": None, "hint": None, "limit": 0xFFFFFFFF},
            choices={"op": ("add", "min"), "count": (1, 2), "semantics": ("relaxed.cta",)},
            since={
                "relaxed.cta": ((8, 6), at_least(90)),
                "min": ((7, 8), TCGEN05),
                "2": ((8, 6), TCGEN05),
                "hint": ((8, 0), at_least(90)),
                "other": ((9, 0), at_least(103)),
            },
            ranks=(3, 4),
        )
    )
    call, instruction, section, isa, sm, about = re.split(r" (?<!\\)\| ", line[2:-2])
    assert call == (
        "`made_up(tensor_map, coords, values, enabled, row, op, count, semantics=None, hint=None,"
        " limit=0xffffffff)` → 4 f32<br>coords: ints<br>values: 4 u32<br>enabled: bool<br>row: i32"
        '<br>op: `"add"`, `"min"`<br>count: `1`, `2`<br>semantics: `"relaxed.cta"`'
        "<br>hint: cache policy<br>limit: u32"
    )
    assert instruction == (
        r"`red.async{.<semantics>}.<op>.x<count>.Nd.u32{.L2} result\|predicate,"
        " [tensor_map, {row, coords}], values{, hint}`<br>N: 3, 4"
    )
    assert section == "[red.async]"
    assert isa == "8.0<br>`relaxed.cta`, `2`: 8.6"
    assert sm == "sm_90<br>`min`, `2`: TCGEN05"
    assert about == r"Do 2\*\*20 \| things."
