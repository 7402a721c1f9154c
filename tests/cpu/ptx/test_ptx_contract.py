"""ptx/*.ptx, the instruction table and the kernels' PTX agree."""

import functools
import operator
import re
from dataclasses import replace

import pytest
from numba import cuda, types

from numba_tma import Tile, ptx
from numba_tma.backend.lowering.instructions import to_own_block
from numba_tma.backend.lowering.types import TensorMapType
from numba_tma.device.shared import shared_barrier, shared_tile
from numba_tma.host.architectures import TARGETS, TCGEN05, TMA, WGMMA, at_least, capability_of
from numba_tma.ptx._instruction import vector_of
from numba_tma.tools.testing import PtxasError, compile_ptx, ptxas
from tests import ptx_contract as contract
from tests.tiers import every, quick

TILE = Tile((16, 16), "f32")

#: ptxas's advice about multicast for targets without fast multicast.
ADVISORY = "Advisory: '.multicast::cluster' modifier on instruction 'cp.async.bulk{.tensor}' should"
#: ptxas's warning about a group without a wait, as a single instruction has none.
UNWAITED = "(C7517) wgmma.wait_group is injected"

FORMS = {form.name: form for row in ptx.TABLE.values() for form in row.forms()}
WRITTEN = {form.name: form for file in contract.FILES for form in contract.forms(file)}


# ------------------------------------------------------------------------------ files


def test_one_file_for_each_family():
    assert [f.stem for f in contract.FILES] == sorted({row.family for row in ptx.TABLE.values()})


@pytest.mark.parametrize("file", contract.FILES, ids=lambda f: f.stem)
@pytest.mark.parametrize("target", quick(["90", "90a", "100a", "120"], TMA))
def test_assembles(file, target):
    version = tuple(map(int, re.search(r"^\.version (\d)\.(\d)", file.read_text(), re.M).groups()))
    isa = ".".join(map(str, max(version, TARGETS[target])))
    text = re.sub(r"^\.version \S+", f".version {isa}", file.read_text(), flags=re.M)
    text = re.sub(r"^\.target \w+$", f".target sm_{target}", text, flags=re.M)
    if target not in contract.architectures(file):
        with pytest.raises(PtxasError):
            ptxas(text)
        return
    report = ptxas(text)
    assert (report.arch, warnings(report)) == (f"sm_{target}", [])
    assert report.spill_stores == report.spill_loads == 0


def warnings(report):
    """Return ptxas's warnings, but for its advice on multicast where that is slow."""
    fast = report.arch[3:] in {*WGMMA, *TCGEN05}
    found = [w for w in report.warnings if UNWAITED not in w]
    return [w for w in found if fast or ADVISORY not in w]


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


# ------------------------------------------------------- the first version and architecture


#: The newest PTX ISA of ptxas, and all that it takes.
ISAS = [*((6, n) for n in range(6)), *((7, n) for n in range(9)), *((8, n) for n in range(9))]
ISAS += [(9, n) for n in range(6)]

#: Of each instruction.
FIRST_FORMS = {form.name.partition("[")[0]: form for form in reversed(WRITTEN.values())}.values()
FIRST_NAMES = [form.name for form in FIRST_FORMS]
#: Targets whose sets of instructions differ most; `make test-all` takes all.
FEW = ["90a", "100", "103f", "110a", "120a"]


def refused(forms, isa, target):
    """Return the forms of which ptxas says that the version or the target lacks them."""
    lines = [form.entry(f"form{i}") for i, form in enumerate(forms)]
    with pytest.raises(PtxasError) as caught:
        ptxas(contract.module(lines, isa, target))
    missing = r"line (\d+); error *: .*?(?:requires?|not supported|illegal|unexpected|unknown)"
    named = set(re.findall(missing, str(caught.value), re.I))
    return [form for i, form in enumerate(forms, 4) if str(i) in named]


@pytest.mark.parametrize("target", quick(FEW, TARGETS))
def test_every_form_assembles_where_the_table_has_it(target):
    """Each at the lowest PTX ISA version that the table names for the target."""
    found = [form for form in WRITTEN.values() if target in form.targets]
    for isa in {form.isa_on(target) for form in found}:
        forms = [form for form in found if form.isa_on(target) == isa]
        ptxas(contract.module([f.entry(f"form{i}") for i, f in enumerate(forms)], isa, target))


@pytest.mark.parametrize("target", quick(FEW, TARGETS))
def test_no_form_assembles_elsewhere_or_before(target):
    lacking = [form for form in WRITTEN.values() if target not in form.targets]
    assert not lacking or refused(lacking, ISAS[-1], target) == lacking
    # A target's first version has the instructions that are older than the target, and a later
    # target may have some from its beginning.
    found = [form for form in WRITTEN.values() if target in form.targets]
    found = [f for f in found if f.targets.since is None or target == next(iter(f.targets))]
    for isa in {form.isa_on(target) for form in found} - {TARGETS[target]}:
        forms = [form for form in found if form.isa_on(target) == isa]
        assert refused(forms, ISAS[ISAS.index(isa) - 1], target) == forms


@pytest.mark.parametrize("row", every(3, ptx.TABLE.values()), ids=lambda row: row.name)
def test_every_combination_assembles(row):
    """Ranks, choices and optional operands that are legal each are legal together."""
    written = next(form for form in WRITTEN.values() if form.name.partition("[")[0] == row.name)
    every = list(row.combinations())
    # No function may act both for a block and for a pair of blocks.
    for group in {form.choices.get("cta_group") for form in every}:
        forms = [form for form in every if form.choices.get("cta_group") == group]
        target = of_all(form.targets for form in forms)
        texts = [contract.form_text(form) for form in forms]
        isa = max(form.isa_on(target) for form in forms)
        ptxas(contract.module([written.entry("forms", texts)], isa, target))


def of_all(sets):
    """Return the oldest target that all of these sets have, of those with TMA if there is one."""
    common = functools.reduce(operator.and_, sets)
    return next((target for target in common if target in TMA), next(iter(common)))


# --------------------------------------------------------------------------- emission

#: The Numba types of the parameters that hold an operand; barriers and tiles are allocated.
PARAMETERS = {
    "u16": types.uint16,
    "u32": types.uint32,
    "i32": types.int32,
    "u64": types.uint64,
    "f32": types.float32,
    "f64": types.float64,
    "Predicate": types.boolean,
    "ClusterAddress": types.uint32,
    "TensorMemoryAddress": types.uint32,
    "SharedAddress": types.uint32,
    "GlobalAddress": types.uint64,
    "DescriptorAddress": types.uint64,
    "CacheHint": types.uint64,
}


def compile_call(form, cc, given):
    """Compile a kernel of one line, the call of a form; return its PTX and its inline asm.

    Operands that have a default are passed if `given` names them.
    """
    row = form.row
    rank = form.rank or 2
    parameters, lines, arguments = {}, [], {}
    for operand, kind in row.operands.items():
        arguments[operand] = operand
        if operand in form.choices:
            arguments[operand] = repr(form.choices[operand])
        elif operand in row.defaults and operand not in given:
            del arguments[operand]
        elif kind == "BarrierAddress":
            lines.append(f"{operand} = shared_barrier()")
        elif kind == "TileAddress":
            lines.append(f"{operand} = shared_tile(TILE)")
        elif kind in ("TensorMapOperand", "EditableTensorMap"):
            plain = TensorMapType(rank, Tile((1,) * (rank - 1) + (16,), "f32"))
            parameters[operand] = plain.in_array if kind == "EditableTensorMap" else plain
        elif kind == "Coordinates":
            parameters |= {f"c{axis}": types.int32 for axis in range(rank)}
            arguments[operand] = "(" + "".join(f"c{axis}, " for axis in range(rank)) + ")"
        elif kind == "Offsets":
            parameters |= {f"o{axis}": types.uint16 for axis in range(rank - 2)}
            arguments[operand] = "(" + "".join(f"o{axis}, " for axis in range(rank - 2)) + ")"
        elif kind in ("Immediate", "RegisterCount", *contract.SMALLER):
            arguments[operand] = str(contract.SMALLER.get(kind, contract.IMMEDIATE))
        elif kind == "b128":
            parameters |= {f"{operand}{i}": types.uint64 for i in range(2)}
            arguments[operand] = f"({operand}0, {operand}1)"
        elif vector := vector_of(kind, form.choices):
            element, count = vector
            parameters |= {f"{operand}{i}": PARAMETERS[element] for i in range(count)}
            arguments[operand] = "(" + "".join(f"{operand}{i}, " for i in range(count)) + ")"
        else:
            parameters[operand] = PARAMETERS[kind]
    names = {f"param_{i}": name for i, name in enumerate(parameters)}
    call = f"ptx.{row.name}({', '.join(f'{n}={a}' for n, a in arguments.items())})"
    if vector := vector_of(row.returns, form.choices):
        element, count = vector
        parameters["out"] = PARAMETERS[element][::1]
        call = f"{''.join(f'out[{i}], ' for i in range(count))} = {call}"
    elif row.returns != "None":
        parameters["out"] = types.uint64[::1]
        call = f"out[0] = {call}"
    source = "\n    ".join([f"def kernel({', '.join(parameters)}):", *lines, call])
    scope = {"ptx": ptx, "shared_barrier": shared_barrier, "shared_tile": shared_tile, "TILE": TILE}
    exec(source, scope)
    # ptxas ignores setmaxnreg, with a remark, where it cannot tell the registers of a thread.
    options = {"cc": cc, "launch_bounds": (384, 1)}
    text = compile_ptx(cuda.jit(scope["kernel"]), tuple(parameters.values()), **options)
    kinds = {8: "BarrierAddress", TILE.nbytes: "TileAddress"}
    for symbol, size in re.findall(r"\.shared .*?(\w+)\[(\d+)\];", text):
        kind = kinds[int(size)]
        found = [n for n, k in row.operands.items() if k == kind and n in arguments]
        names[symbol] = found[sum(n in names.values() for n in found)]
    return text, contract.inline_asm(text, names)


def targets_of(form):
    """Return the targets for which a call of a form is compiled: one of each generation."""
    found = [target for target in ("90a", "100a", "120", "120a") if target in form.targets]
    return found or [next(iter(form.targets))]


CALLS = [(target, name) for name, form in FORMS.items() for target in targets_of(form)]
QUICK_CALLS = [(targets_of(FORMS[name])[0], name) for name in FIRST_NAMES]


@pytest.mark.parametrize(("target", "name"), quick(QUICK_CALLS, CALLS))
def test_a_call_emits_the_instruction_and_nothing_else(target, name):
    form = FORMS[name]
    always = {n for n, default in form.row.defaults.items() if default is not None}
    text, emitted = compile_call(form, capability_of(target), always | form.given)
    assert emitted == [to_own_block(WRITTEN[name].text, target)]
    report = ptxas(text)
    assert (report.arch, warnings(report)) == (f"sm_{target}", [])


@pytest.mark.parametrize(
    "name",
    [f for f, form in FORMS.items() if any(d is not None for d in form.row.defaults.values())],
)
def test_a_default_is_an_immediate(name):
    form, expected = FORMS[name], WRITTEN[name].text
    for operand, default in form.row.defaults.items():
        expected = expected.replace(f"%{operand}", str(default))
    _, emitted = compile_call(form, capability_of(targets_of(form)[0]), form.given)
    assert emitted == [contract.normal(expected)]


LOADS = [
    "cp_async_bulk_load",
    "cp_async_bulk_tensor_load[2d]",
    "cp_async_bulk_tensor_im2col_load[4d]",
]


@pytest.mark.parametrize("name", LOADS)
@pytest.mark.parametrize(
    ("target", "space"),
    [("90a", "cluster"), ("100a", "cluster"), ("110f", "cluster"), ("120", "cta"), ("121a", "cta")],
)
def test_unicast_loads_name_the_block_where_the_cluster_is_slow(name, target, space):
    text = to_own_block(WRITTEN[name].text, target)
    assert f".shared::{space}.global" in text
    ptxas(contract.module([replace(WRITTEN[name], text=text).entry("load")], (9, 4), target))


@pytest.mark.parametrize("name", [n for n in WRITTEN if "multicast" in n or "cta_group" in n])
def test_other_destinations_stay(name):
    text = WRITTEN[name].text
    assert to_own_block(text, "120a") == text


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
