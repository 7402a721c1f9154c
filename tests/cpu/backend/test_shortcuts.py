"""Shortcuts in Numba's compiler: when each of them is taken, and that it changes no result."""

import functools
import inspect
import json
import operator
import re
import subprocess
import sys
import warnings
from types import SimpleNamespace
from unittest import mock

import pytest
from numba import cuda, types
from numba.cuda import dispatcher, typing
from numba.cuda.core import base, errors, ir
from numba.cuda.core.typeinfer import ConstraintNetwork
from numba.cuda.cudadrv import nvvm
from numba.cuda.descriptor import cuda_target
from numba.cuda.typing import templates

from numba_tma.backend.numba_cuda import shortcuts
from numba_tma.tools.testing import compile_ptx, instructions

#: What each shortcut replaces.
REPLACED = {
    "_get_call_type": "_get_call_type_once",
    "_get_target_registry": "_get_target_registry_once", "_has_loc": "_takes_loc",
    "_run": "_run_as_needed", "_list": "_list_variables", "_list_statement": "_list_of_statement",
    "_propagate": "_propagate_once", "_replace": "_replace_where_found",
    "_compile_ir": "_compile_without_libdevice", "_make": "_make_library",
}  # fmt: skip


@pytest.mark.parametrize("name", REPLACED)
def test_a_shortcut_is_called_as_what_it_replaces(name):
    old, new = (
        inspect.signature(getattr(shortcuts, each)).parameters for each in (name, REPLACED[name])
    )
    if inspect.Parameter.VAR_KEYWORD not in {one.kind for one in new.values()}:
        assert [one.default for one in new.values()] == [one.default for one in old.values()]


ATOMIC = 'declare i64 @"___numba_atomic_u64_inc"(i64* %".1", i64 %".2")'
WORDS = [ATOMIC, "attributes #0 = { argmemonly }", "i1 immarg 0"]


@pytest.mark.parametrize(
    "text", ["", *WORDS, "\n".join(WORDS), "\n".join(WORDS[:2]), "\n".join(WORDS[1:]), "define x"]
)
def test_a_module_is_searched_for_atomics_if_it_may_have_some(monkeypatch, text):
    asked = []
    replace = shortcuts._replace
    monkeypatch.setattr(shortcuts, "_replace", lambda text: asked.append(text) or replace(text))
    assert shortcuts._replace_where_found(text) == replace(text)
    assert asked == [text] * any(word in text for word in WORDS)


class Unhashable:
    __hash__ = None

    def __call__(self, a, b=3):
        pass


def test_the_signature_of_any_callable_is_found():
    for function in (Unhashable(), lambda a, b=3: None):
        for _ in range(2):
            assert str(shortcuts._signature(function)) == "(a, b=3)"


@functools.wraps(lambda context, loc: None)
def wrapped(*args):
    pass


def with_signature(*args):
    pass


with_signature.__signature__ = inspect.signature(lambda loc: None)


@pytest.mark.parametrize(
    ("function", "taken"),
    [
        (lambda context, builder, sig, args: None, False), (lambda context, loc: None, True),
        (lambda context, *, loc=None: None, True), (lambda context, **kws: None, False),
        (functools.partial(lambda context, loc: None, 1), True), (wrapped, True),
        (with_signature, True),
    ],
)  # fmt: skip
def test_a_lowering_that_takes_loc_is_found(function, taken):
    def local(context):
        loc = context
        return loc

    assert shortcuts._takes_loc(function) == taken and not shortcuts._takes_loc(local)


I32, I64, F32 = types.int32, types.int64, types.float32


def test_an_operator_on_numbers_is_typed_once(monkeypatch):
    context, asked = cuda_target.typing_context, []
    context.refresh()
    original = shortcuts._get_call_type

    def counted(self, context, args, kws):
        asked.append(args)
        return original(self, context, args, kws)

    monkeypatch.setattr(shortcuts, "_get_call_type", counted)
    add = context.resolve_value_type(operator.add)
    vars(add).pop("numba_tma_signatures", None)
    for args, times in (((I32, I64), 1), ((F32, F32), 1), ((types.literal(3), I32), 1)):
        signatures = {add.get_call_type(context, args, {}) for _ in range(3)}
        assert signatures == {original(add, context, args, {})} and len(asked) == times
        asked.clear()
    for _ in range(2):  # numbers alone
        add.get_call_type(context, (types.UniTuple(I32, 2), types.UniTuple(I32, 2)), {})
    assert len(asked) == 2


def block(*targets):
    """Return a block that ends in a jump, a branch, or a return."""
    loc = ir.Loc("file", 1)
    found = ir.Block(ir.Scope(None, loc), loc)
    condition = ir.Var(found.scope, "condition", loc)
    if not targets:
        found.append(ir.Return(condition, loc))
    elif len(targets) == 1:
        found.append(ir.Jump(*targets, loc))
    else:
        found.append(ir.Branch(condition, *targets, loc))
    return found


def assign(to, name):
    loc = ir.Loc("file", 1)
    return ir.Assign(ir.Const(0, loc), ir.Var(to.scope, name, loc), loc)


@pytest.mark.parametrize(
    ("targets", "loops"),
    [
        ({0: ()}, False), ({0: (1,), 1: ()}, False), ({0: (1, 2), 1: (2,), 2: ()}, False),
        ({0: (0,)}, True), ({0: (1,), 1: (1, 2), 2: ()}, True), ({0: (2,), 2: (0, 3), 3: ()}, True),
    ],
)  # fmt: skip
def test_loops_are_jumps_back(targets, loops):
    blocks = {label: block(*each) for label, each in targets.items()}
    assert shortcuts._has_loops(blocks) == loops
    for block_, name in zip(blocks.values(), "abc"):
        block_.prepend(assign(block_, name))
    inferer = SimpleNamespace(blocks=blocks)
    assert shortcuts._is_in_order(inferer) == (not loops)
    last = blocks[max(blocks)]
    last.prepend(assign(last, "a"))
    assert not shortcuts._is_in_order(inferer)


@pytest.mark.parametrize(
    ("found", "rounds"),
    [([I32], 1), ([I32, F32], 1), ([None], 2), ([I32, None], 2), ([types.undefined], 2),
     ([I32, types.undefined], 2), ([types.ListType(types.undefined), I32], 2)],
)  # fmt: skip
@pytest.mark.parametrize("errors", [[], ["no type"]])
def test_types_are_inferred_once_if_they_are_whole(found, rounds, errors, monkeypatch):
    asked, only = [], block()
    only.prepend(assign(only, "a"))
    inferer = SimpleNamespace(
        blocks={0: only},
        constraints=SimpleNamespace(propagate=lambda self: errors),
        typevars={i: SimpleNamespace(type=each) for i, each in enumerate(found)},
    )
    monkeypatch.setattr(shortcuts, "_propagate", lambda self, raised: asked.append(raised))
    shortcuts._propagate_once(inferer, raise_errors=False)
    assert asked == ([] if rounds == 1 and not errors else [False])


def test_all_variables_of_a_statement_are_listed():
    x, y, z = (ir.Var(None, name, ir.Loc("file", 1)) for name in "xyz")
    loc = x.loc
    call = ir.Expr.call(x, (y, z), (("k", y),), loc)
    values = [
        x, ir.Const(3, loc), call, ir.Expr.binop(operator.add, x, y, loc),
        ir.Expr.build_map([(x, y), (z, z)], 2, {}, {}, loc), ir.Expr.getattr(x, "a", loc),
        ir.Expr.build_tuple([x, y, x], loc),
    ]  # fmt: skip
    statements = [ir.Assign(value, z, loc) for value in values]
    statements += [ir.SetItem(x, y, z, loc), ir.Return(x, loc), ir.Branch(x, 1, 2, loc)]
    for statement in statements:
        for inst in (statement, getattr(statement, "value", None)):
            if isinstance(inst, ir.Inst):
                held = inst._kws if isinstance(inst, ir.Expr) else vars(inst)
                assert inst.list_vars() == shortcuts._list(inst, held)
        listed = {v.name for v in shortcuts._list_of_statement(statement)}
        assert listed == {v.name for v in shortcuts._list_statement(statement)}


def test_an_error_has_the_words_of_its_contexts():
    with pytest.raises(errors.TypingError) as caught:
        with errors.new_error_context("of {0}", "a call"):
            raise errors.TypingError("refused")
    assert isinstance(errors.new_error_context(""), shortcuts._ErrorContext)
    assert "refused" in str(caught.value) and "During: of a call" in str(caught.value)
    with pytest.raises(KeyError), errors.new_error_context("{0}"):
        raise KeyError


def test_constraints_keep_errors_and_warnings():
    def warn(inferer):
        for category in (errors.NumbaWarning, UserWarning, errors.NumbaWarning):
            warnings.warn("look", category, stacklevel=1)

    def refuse(inferer):
        raise errors.TypingError("refused")

    def force(inferer):
        raise errors.ForceLiteralArg({0})

    network, kept = ConstraintNetwork(), errors.WarningsFixer(errors.NumbaWarning)
    done = []
    for line, step in enumerate((warn, refuse, force, done.append)):
        constraint = mock.Mock(side_effect=step, loc=ir.Loc("file", line))
        network.append(constraint)
    with pytest.warns(UserWarning, match="look") as emitted:
        found = network.propagate(SimpleNamespace(warnings=kept))
    assert [type(error) for error in found] == [errors.TypingError, errors.ForceLiteralArg]
    assert str(found[0]).startswith('refused\n\nFile "file", line 1:')
    assert len(done) == len(emitted) == 1
    assert kept._warnings == {("file", 0, errors.NumbaWarning): {"look"}}


def test_an_error_is_coloured_once(monkeypatch):
    """What a constraint raises has its colour, and keeps it when the place is added."""

    def refuse(inferer):
        raise errors.TypingError("refused")

    colours = SimpleNamespace(errmsg="<{}>".format)
    monkeypatch.setattr(errors, "termcolor", lambda: colours)
    network, kept = ConstraintNetwork(), errors.WarningsFixer(errors.NumbaWarning)
    network.append(mock.Mock(side_effect=refuse, loc=mock.Mock(strformat=lambda: "line 1")))
    (found,) = network.propagate(SimpleNamespace(warnings=kept))
    assert str(found) == "<refused>\nline 1\n"


@pytest.mark.parametrize("text", ["call float @__nv_sqrtf(float %x)", "ret void"])
@pytest.mark.parametrize("fastmath", [False, True])
def test_libdevice_is_added_where_it_is_called(monkeypatch, text, fastmath):
    asked, unit = [], mock.Mock()
    monkeypatch.setattr(shortcuts, "_compile_ir", lambda ir, **options: asked.append(options))
    monkeypatch.setattr(nvvm, "CompilationUnit", unit)
    shortcuts._compile_without_libdevice(["define", text], fastmath=fastmath, opt=3)
    if fastmath or "__nv_" in text:
        assert asked == [{"fastmath": fastmath, "opt": 3}] and not unit.called
    else:
        unit.assert_called_once_with({"opt": 3})
        modules = [call.args[0] for call in unit().add_module.call_args_list]
        assert not asked and modules == [b"define", b"ret void"] and unit().verify.called


def test_the_module_of_a_function_with_two_callers_is_compiled_once():
    @cuda.jit(device=True)
    def inner(x):
        return x + 1

    @cuda.jit(device=True)
    def outer(x):
        return inner(x) * 2

    def kernel(values):
        values[0] = outer(values[1]) + inner(values[2])

    with mock.patch.object(shortcuts, "_modules", wraps=shortcuts._modules) as listed:
        compile_ptx(cuda.jit(kernel), (types.int32[::1],))
    libraries = {call.args[0] for call in listed.call_args_list}
    counts = {(len(one.modules), len(shortcuts._modules(one))) for one in libraries}
    assert max(counts) == (3, 4)


PROGRAM = """
import json, math
from types import SimpleNamespace
from unittest import mock
from numba import cuda, types
from numba.cuda.core.postproc import PostProcessor

def kernels():
    @cuda.jit(device=True)
    def clamp(value, low, high):
        if value < low:
            return low
        return high if value > high else value

    def histogram(values, counts, scale):
        shared = cuda.shared.array(64, types.int32)
        shared[cuda.threadIdx.x % 64] = 0
        cuda.syncthreads()
        for i in range(cuda.grid(1), values.size, cuda.gridsize(1)):
            place = clamp(int(math.floor(values[i] * scale)), 0, 63)
            if not (place % 7 == 0 and i > 2):
                cuda.atomic.add(shared, place, 1)
        cuda.syncthreads()
        while counts[0] > 3 and scale != 2:
            counts[0] -= 1
        cuda.atomic.add(counts, 1, shared[1])

    def powers(values, counts, scale):
        total = 0
        for i in range(3):
            pair = values[i], values[i + 1]
            total += counts[i]
            values[i] = pair[0] ** 2 + abs(pair[1]) if i else -pair[0]
        cuda.atomic.max(values, 0, scale + total)

    return histogram, powers

def compiled():
    signature = types.void(types.float64[::1], types.int32[::1], types.float64)
    return [cuda.compile_ptx(kernel, signature, cc=(9, 0))[0] for kernel in kernels()]

hopper = SimpleNamespace(compute_capability=(9, 0))
with mock.patch("numba.cuda.dispatcher.get_current_device", lambda: hopper):
    before, run = compiled(), PostProcessor.run
    import numba_tma.backend.numba_cuda
    assert PostProcessor.run is not run
    print(json.dumps([before, compiled()]))
"""


def test_kernels_without_the_library_compile_to_the_same():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    before, after = json.loads(done.stdout.splitlines()[-1])
    for one, other in zip(before, after, strict=True):
        found, expected = (
            instructions(re.sub(r"_cudapy_smem_\d+", "shared", text)) for text in (other, one)
        )
        assert found == expected and len(found) > 30


FORMAL = [types.int64, types.Integer, types.Any, types.Type, types.Array]
FORMAL += [types.UniTuple(types.f4, 2)]
ACTUAL = [types.int64, types.int32, types.Array(types.f4, 1, "C"), types.UniTuple(types.f4, 2)]
ACTUAL += [types.Integer, types.Any]
OPEN = types.VarArg(types.Any)


def test_an_implementation_is_for_the_types_that_numba_finds():
    selector = base.OverloadSelector()
    for formal in FORMAL:
        for actual in ACTUAL:
            expected = bool(selector._match(formal, actual))
            assert selector._match_arglist((formal,), (actual,)) is expected
            assert selector._match_arglist((types.Any, formal), (actual, actual)) is expected
            assert selector._match_arglist((types.VarArg(formal),), (actual,) * 2) is expected
    assert not selector._match_arglist((types.int64,), ())
    assert selector._match_arglist((OPEN,), ()) and selector._match_arglist((), ())
    assert not selector._match_arglist((types.int64, OPEN), ())


def called(a, b=2, *, c=3):
    pass


@pytest.mark.parametrize("function", [called, lambda a, b=2: None, lambda *a: None, lambda: None])
@pytest.mark.parametrize("args", [(), ("x",), ("x", "y"), ("x", "y", "z")])
@pytest.mark.parametrize("kws", [{}, {"b": "k"}, (), (("b", "k"),)])
def test_arguments_are_folded_as_numba_does(function, args, kws):
    def folded(fold):
        seen = []

        def handler(kind):
            def handle(index, param, value):
                seen.append((kind, index, param.name, value))
                return seen[-1]

            return handle

        try:
            handlers = map(handler, ("given", "default", "starred"))
            return fold(inspect.signature(function), args, kws, *handlers), seen
        except (errors.TypingError, IndexError, AttributeError) as error:
            return type(error), str(error)

    assert folded(templates.fold_arguments) == folded(shortcuts._fold)
    assert typing.fold_arguments is dispatcher.fold_arguments is templates.fold_arguments


def test_modules_are_linked_in_the_order_of_calls():
    codegen = cuda_target.target_context.codegen()

    def library(name, callees=()):
        made = codegen.create_library(name)
        made.add_ir_module(made.create_ir_module(name))
        for callee in callees:
            made.add_linking_library(callee)
        made.finalize()
        return made

    callees = [library(f"callee {i}") for i in range(40)]
    caller = library("caller", [*callees, *callees])
    named = [module.name for module in caller.modules]
    assert named == ["caller", *(f"callee {i}" for i in range(40))]
