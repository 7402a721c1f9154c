"""What the compiler of bodies keeps between compiles, and what it must not change."""

import gc
import importlib
import operator
from types import FunctionType, SimpleNamespace
from unittest import mock

import pytest
from llvmlite import ir as llvm
from numba import cuda, types
from numba.core.errors import TypingError
from numba.cuda.compiler import CUDABytecodeInterpreter
from numba.cuda.core import ir
from numba.cuda.core.bytecode import ByteCode, FunctionIdentity
from numba.cuda.core.byteflow import Flow
from numba.cuda.core.typed_passes import IRLegalization, PreLowerStripPhis
from numba.cuda.core.untyped_passes import DeadBranchPrune, GenericRewrites, ReconstructSSA

from numba_tma.backend.compiler import register_declared
from numba_tma.backend.interface import device_function
from numba_tma.backend.numba_cuda import body_compiler, translation
from numba_tma.backend.numba_cuda.body_lowering import FoldingBuilder
from numba_tma.backend.numba_cuda.functions import FUNCTIONS
from numba_tma.tools.testing import compile_ptx, instructions

STEP = 3


def add_steps(values, count):
    """Return the sum of `count` steps, and of the values if there are any."""
    total = 0
    for i in range(count):
        total += STEP * i
    if values is None:
        return total
    return total + values[0]


def compiled(function, typ):
    """Return the instructions of a kernel that calls a body with `typ`."""

    def kernel(values, out):
        out[0] = function(values, 5)

    return instructions(compile_ptx(cuda.jit(kernel), (typ, types.int64[::1])))


KINDS = [types.Array(kind, 1, "C") for kind in (types.int64, types.int32, types.int16)]


def test_a_copied_translation_compiles_to_the_same():
    device_function(add_steps)
    first = [compiled(add_steps, typ) for typ in KINDS]
    assert translation._TRANSLATIONS[add_steps] is not None
    again = [compiled(add_steps, typ) for typ in KINDS]
    assert again == first and first[0] != first[1] != first[2]
    fresh = FunctionType(add_steps.__code__, globals(), "add_steps")  # which nothing is known of
    device_function(fresh)
    unsigned = types.Array(types.uint8, 1, "C")
    copied = compiled(add_steps, unsigned)
    assert compiled(fresh, unsigned) == copied and any("ld.global.u8" in one for one in copied)


def translated(function, short):
    """Return the IR of a function, by the library's translation or Numba's, and its bytecode."""
    identity = FunctionIdentity.from_function(function)
    bytecode = ByteCode(identity)
    with mock.patch.object(
        Flow, "_run_handle_exception", translation._go_on if short else numbas_step
    ):
        if short:
            bytecode = translation._without_caches(bytecode)
        func_ir = CUDABytecodeInterpreter(identity).interpret(bytecode)
    return func_ir.dump_to_string(), bytecode


numbas_step = translation._run_handle_exception


def with_a_context(values):
    with STEP:
        values[0] = 1
    return values


def with_an_error(values):
    for value in values:
        if value:
            raise ValueError("a value")
    return values


def test_a_short_translation_is_the_same():
    importlib.import_module("numba_tma.kernels.attention.kernel")
    register_declared()
    bodies = sorted(FUNCTIONS, key=lambda f: (f.__module__, f.__qualname__))
    assert len(bodies) > 200
    for function in [*bodies[::20], add_steps, with_a_context, with_an_error]:
        (was, long), (now, short) = translated(function, False), translated(function, True)
        assert was == now
        names = [instruction.opname for instruction in long if instruction.opname != "CACHE"]
        assert names == [instruction.opname for instruction in short]


def test_only_a_function_without_exceptions_is_traced_short(monkeypatch):
    seen = []

    def step(flow, runner, state):
        seen.append(flow._bytecode.func_id.func)
        return numbas_step(flow, runner, state)

    monkeypatch.setattr(translation, "_run_handle_exception", step)
    for function in (add_steps, with_a_context, with_an_error):
        translated(function, True)
    assert set(seen) == {with_a_context}


def test_a_changed_global_is_translated_again(monkeypatch):
    def scaled(values, count):
        return values[0] * STEP + count

    device_function(scaled)
    for typ in KINDS:
        compiled(scaled, typ)
    monkeypatch.setitem(scaled.__globals__, "STEP", 4099)
    text = "\n".join(compiled(scaled, types.Array(types.uint16, 1, "C")))
    assert "4099" in text


def test_a_branch_on_none_is_decided_in_each_compile():
    def value_or_count(values, count):
        if values is None:
            return count
        return values[0]

    device_function(value_or_count)
    for typ in (*KINDS, types.none, types.Array(types.uint32, 1, "C"), types.none):
        text = "\n".join(compiled(value_or_count, typ))
        assert ("ld.global" in text) == (typ != types.none)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_before(enabled):
    def refused(values, count):
        return values.nothing

    device_function(refused)
    was = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(TypingError, match="nothing"):
            compiled(refused, KINDS[0])
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if was else gc.disable)()


def test_an_error_names_the_step_and_the_pass():
    def wrong(values, count):
        return values.absent + count

    device_function(wrong)
    with pytest.raises(TypingError) as error:
        compiled(wrong, KINDS[0])
    assert "Failed in cuda mode pipeline (step: nopython frontend)" in str(error.value)
    assert "Unknown attribute 'absent'" in str(error.value)
    assert "Pass nopython_type_inference" in str(error.value)


def test_a_failing_callee_is_looked_at():
    @cuda.jit(device=True)
    def checked(value):
        if value > 3:
            raise ValueError
        return value

    def through(values, count):
        return checked(values[0]) + count

    device_function(through)
    failing = compiled(through, KINDS[0])
    (store,) = [i for i, one in enumerate(failing) if one.startswith("st.global")]
    # A thread that fails does not store: the branch, on the value, is to a label behind the store.
    (compared,) = [one for one in failing[:store] if one.startswith("setp") and ", 3" in one]
    (branch,) = [one for one in failing[:store] if one.startswith("@") and "bra" in one]
    assert compared.split()[1].rstrip(",") == branch.split()[0].lstrip("@!")
    label = branch.rstrip(";").split()[-1]
    assert failing.index(f"{label}:") > store


def straight(values, count):
    return values[0] + count


def chosen(values, count):
    if count > 3:
        total = values[0]
    else:
        total = values[1]
    return total


def early(values, count):
    if count > 3:
        return values[0]
    return values[1]


def looped(values, count):
    total = 0
    for i in range(count):
        total += i
    return total


def redefined(values, count):
    total = values[0]
    total = total + count
    return total


BRANCHES, SSA = DeadBranchPrune.__name__, ReconstructSSA.__name__
PHIS, LIFETIMES = PreLowerStripPhis.__name__, IRLegalization.__name__
ITEMS = GenericRewrites.__name__


@pytest.mark.parametrize(
    ("function", "passes"),
    [
        (straight, {ITEMS}), (redefined, {ITEMS}), (early, {ITEMS, BRANCHES, SSA, LIFETIMES}),
        (chosen, {ITEMS, BRANCHES, SSA, PHIS, LIFETIMES}),
        (looped, {BRANCHES, SSA, PHIS, LIFETIMES}),
    ],
)  # fmt: skip
def test_a_body_goes_through_the_passes_that_it_needs(monkeypatch, function, passes):
    run = []
    body_compiler.LibraryCompiler._passes or compiled(device_function(add_steps), KINDS[0])
    manager = body_compiler.LibraryCompiler._passes

    def noted(step, body):
        def noting(state):
            if state.func_id.func is function:
                run.append(type(step))
            return body(state)

        return noting

    steps = [(step, noted(step, body), *rest) for step, body, *rest in manager._steps]
    monkeypatch.setattr(manager, "_steps", steps)
    device_function(function)
    compiled(function, types.Array(types.float64, 1, "C"))
    assert {kind.__name__ for kind in run if kind in body_compiler._NEEDED} == passes


def test_what_is_debugged_has_lifetimes():
    for debuginfo in (False, True):
        state = SimpleNamespace(
            func_ir=SimpleNamespace(blocks={0: None}), flags=SimpleNamespace(debuginfo=debuginfo)
        )
        assert body_compiler._needs_lifetimes(state) == debuginfo


LOC = ir.Loc("file", 1)
VAR = ir.Var(None, "x", LOC)


@pytest.mark.parametrize(
    ("statement", "rewritten"),
    [
        (ir.Return(VAR, LOC), False), (ir.SetItem(VAR, VAR, VAR, LOC), True),
        (ir.Raise(None, LOC), True), (ir.Assign(ir.Const(3, LOC), VAR, LOC), False),
        (ir.Assign(ir.Global("print", print, LOC), VAR, LOC), True),
        (ir.Assign(ir.Expr.getitem(VAR, VAR, LOC), VAR, LOC), True),
        (ir.Assign(ir.Expr.binop(operator.add, VAR, VAR, LOC), VAR, LOC), False),
        (ir.Assign(ir.Expr.binop(operator.pow, VAR, VAR, LOC), VAR, LOC), True),
    ],
)  # fmt: skip
def test_what_numba_rewrites_is_found(statement, rewritten):
    block = ir.Block(ir.Scope(None, LOC), LOC)
    block.append(statement)
    state = SimpleNamespace(func_ir=SimpleNamespace(blocks={0: block}))
    assert body_compiler._may_be_rewritten(state) == rewritten


def test_an_element_is_taken_from_where_it_was_inserted():
    module = llvm.Module()
    pair = llvm.LiteralStructType([llvm.IntType(32), llvm.FloatType()])
    typ = llvm.FunctionType(llvm.VoidType(), [*pair.elements, pair])
    function = llvm.Function(module, typ, "f")
    number, real, given = function.args
    builder = FoldingBuilder(function.append_basic_block())
    both = builder.insert_value(builder.insert_value(given, number, 0), number, 0)
    assert builder.extract_value(both, 0) is number
    kept = builder.extract_value(both, [1])
    assert isinstance(kept, llvm.instructions.ExtractValue) and kept.aggregate is both
    nested = builder.insert_value(llvm.Constant(llvm.ArrayType(pair, 2), None), real, [1, 1])
    assert isinstance(builder.extract_value(nested, [1, 1]), llvm.instructions.ExtractValue)
    outer = builder.insert_value(nested, both, 0)
    assert builder.extract_value(outer, (0,)) is both
    assert isinstance(builder.extract_value(outer, [0, 0]), llvm.instructions.ExtractValue)
