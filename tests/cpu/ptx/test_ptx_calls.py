"""A kernel's call of a form of ptx/*.ptx becomes its instruction, and nothing else."""

import re
from dataclasses import replace

import pytest
from numba import cuda, types

from numba_tma import Tile, ptx
from numba_tma.backend.lowering.instructions import to_own_block
from numba_tma.backend.lowering.types import TensorMapType
from numba_tma.device.shared import shared_barrier, shared_tile
from numba_tma.host.architectures import capability_of
from numba_tma.ptx._instruction import vector_of
from numba_tma.tools.testing import compile_ptx, ptxas
from tests import ptx_contract as contract
from tests.ptx_contract import FORMS, WRITTEN, warnings
from tests.tiers import quick

TILE = Tile((16, 16), "f32")

#: Of each instruction.
FIRST_FORMS = {form.name.partition("[")[0]: form for form in reversed(WRITTEN.values())}.values()
FIRST_NAMES = [form.name for form in FIRST_FORMS]

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
