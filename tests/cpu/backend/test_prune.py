"""Which conditions of a body are constants, by the statements that define them."""

import operator
from types import SimpleNamespace

import pytest
from numba import types
from numba.cuda.core import ir
from numba.cuda.descriptor import cuda_target

from numba_tma.backend.numba_cuda.prune import _NotConstant, _Pruner

LOC = ir.Loc("file", 1)
SCOPE = ir.Scope(None, LOC)
ARGS = [types.none, types.int64, types.UniTuple(types.int64, 3), types.Optional(types.int64)]
NONE, NUMBER, TUPLE, PERHAPS = range(4)


def var(name):
    return ir.Var(SCOPE, name, LOC)


def pruner(**defined):
    """Return a pruner of a body with these variables: values, or lists of several values."""
    block = ir.Block(SCOPE, LOC)
    for name, values in defined.items():
        for value in values if isinstance(values, list) else [values]:
            block.append(ir.Assign(value, var(name), LOC))
    found = SimpleNamespace(blocks={0: block})
    cuda_target.typing_context.refresh()
    return _Pruner(SimpleNamespace(func_ir=found, args=ARGS, typingctx=cuda_target.typing_context))


def arg(index):
    return ir.Arg(f"a{index}", index, LOC)


def const(value):
    return ir.Const(value, LOC)


def binop(function, lhs="a", rhs="b"):
    return ir.Expr.binop(function, var(lhs), var(rhs), LOC)


IS, IS_NOT = operator.is_, operator.is_not
LEN = ir.Expr.call(var("len"), [var("a")], (), LOC)


@pytest.mark.parametrize(
    ("defined", "value"),
    [
        ({"x": const(3)}, 3), ({"x": [const(3), const(3)]}, None), ({}, None),
        ({"x": binop(IS), "a": arg(NONE), "b": const(None)}, True),
        ({"x": binop(IS), "a": arg(NUMBER), "b": const(None)}, False),
        ({"x": binop(IS_NOT), "a": arg(NONE), "b": const(None)}, False),
        ({"x": binop(IS_NOT), "a": arg(NUMBER), "b": const(None)}, True),
        ({"x": binop(IS), "a": arg(PERHAPS), "b": const(None)}, None),
        ({"x": binop(IS), "a": arg(NUMBER), "b": arg(NUMBER)}, None),
        ({"x": binop(IS), "a": [arg(NONE), arg(NUMBER)], "b": const(None)}, None),
        ({"x": binop(operator.add), "a": const(2), "b": const(3)}, 5),
        ({"x": binop(operator.lt), "a": const(2), "b": const(None)}, None),
        ({"x": binop(operator.add), "a": const(2), "b": arg(NUMBER)}, None),
        ({"x": binop(operator.add), "a": [const(2), const(2)], "b": const(3)}, None),
        ({"x": ir.Expr.unary(operator.not_, var("a"), LOC), "a": const(2)}, False),
        ({"x": LEN, "a": arg(TUPLE), "len": ir.Global("len", len, LOC)}, 3),
        ({"x": LEN, "a": arg(NUMBER), "len": ir.Global("len", len, LOC)}, None),
        ({"x": LEN, "a": arg(TUPLE), "len": ir.Global("sum", sum, LOC)}, None),
        ({"x": arg(NUMBER)}, None),
    ],
)  # fmt: skip
def test_a_value_is_known_if_each_statement_before_it_is(defined, value):
    if value is None:
        with pytest.raises(_NotConstant):
            pruner(**defined).value(var("x"))
    else:
        found = pruner(**defined).value(var("x"))
        assert found == value and type(found) is type(value)
