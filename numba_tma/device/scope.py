"""`scopes`: ``with`` blocks in kernels, written out as the calls that Numba can compile.

A scope is an object with two methods. ``enters()`` says whether this thread executes the block:
true everywhere but in a producer's, which one elected thread executes. ``close()`` is executed at
its end by every thread that reached it: it commits or releases a stage, drains a producer, hands
back what a consumer holds. The source of the decorated function is parsed, ``with E as n: BODY``
becomes ``s = E; n = s``, ``if s.enters(): BODY`` and ``s.close()``, and whatever leaves BODY early
closes the scopes that it leaves first. The result has the lines, globals and closure of the
original.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Sequence
from types import CellType, CodeType, FunctionType
from typing import Any, NoReturn, TypeVar

from numba_tma import simulator
from numba_tma.backend.interface import native
from numba_tma.host.host_only import host_only

F = TypeVar("F")

WANTED = (
    "a scope is what a pipeline's producer() and consumer() return and what acquire() returns on "
    "them, or a device object of your own with methods enters() and close()"
)
EXPLICIT = (
    "scope = pipe.consumer()  # what stands after with\n"
    "    if scope.enters():\n"
    "        ...\n"
    "    scope.close()"
)
#: Set on a function that returns a value from within a scope.
RETURNS = "__numba_tma_scope_returns__"


@native
def as_scope(value: object, line: int) -> Any:
    """Return `value`, which the ``with`` on `line` of a kernel was given, if it can be a scope."""
    if not (hasattr(value, "enters") and hasattr(value, "close")):
        raise simulator.BadOperand(f"line {line}, with over {value!r}: {WANTED}")
    return value


@host_only
def scopes(function: F) -> F:
    """Let a kernel or device function use ``with`` blocks over producers, consumers and stages.

    It stands below ``@cuda.jit``::

        @cuda.jit
        @tma.scopes
        def kernel(x, n):
            pipe = PIPE.start()
            if pipe.is_producer():
                with pipe.producer() as producer:
                    for k in range(n):
                        with producer.acquire() as stage:
                            x.load(stage.x, (k * 64, 0), stage.barrier)
            else:
                with pipe.consumer() as consumer:
                    for k in range(n):
                        with consumer.acquire() as stage:
                            ...

    ``break``, ``continue`` and ``return`` close the scopes that they leave, innermost first; the
    value of a ``return`` is computed before. An exception closes nothing. The block of a producer's
    scope is executed by one thread of its warp: what that thread leaves early, the other 31 go on
    after.

    The same code runs as is in the simulator, and costs what the calls cost that it stands for.
    """
    if not isinstance(function, FunctionType):
        raise TypeError(
            f"@tma.scopes is given {function!r}: it belongs on the plain function, so write it "
            "below @cuda.jit"
        )
    definition, owner = _definition(function)
    writer = _Writer(definition)
    writer.visit(definition)
    if not writer.found:
        return function
    rewritten = _compile(function, definition, owner, writer.helper)
    if writer.returns:
        setattr(rewritten, RETURNS, True)
    return rewritten  # type: ignore[return-value]


# ------------------------------------------------------------------------------- source


def _definition(function: FunctionType) -> tuple[ast.FunctionDef, str | None]:
    """Return the parsed `function`, and the name of the class in which it stands, if any."""
    code = function.__code__
    if code.co_name == "<lambda>":
        raise TypeError("@tma.scopes is given a lambda, which holds no with statement: use def")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"@tma.scopes: {function.__qualname__} is an async function, and no thread of a GPU "
            "awaits anything: write def and with"
        )
    try:
        source = "".join(inspect.findsource(function)[0])
        # Notebook cells may hold a top-level await.
        flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        tree = compile(source, code.co_filename, "exec", flags, dont_inherit=True)
    except (OSError, TypeError, SyntaxError) as error:
        _refuse(function, str(error))
    found = _search(tree, code, ())
    if found is None:
        _refuse(function, f"line {code.co_firstlineno} of {code.co_filename} no longer defines it")
    definition, parents = found
    if parents and isinstance(parents[-1], ast.ClassDef):
        raise TypeError(
            f"@tma.scopes: {function.__qualname__} is a method; kernels and device functions are "
            f"plain functions: write it outside of class {parents[-1].name}"
        )
    classes = [p.name for p in parents if isinstance(p, ast.ClassDef)]
    return definition, classes[-1] if classes else None


def _refuse(function: FunctionType, why: str) -> NoReturn:
    raise ValueError(
        f"@tma.scopes rewrites the source of a function, and that of {function.__qualname__} is "
        f"not to be had ({why}): define it in a file or a notebook cell, or write each with "
        f"statement out:\n\n    {EXPLICIT}\n"
    )


def _search(
    node: ast.AST, code: CodeType, parents: tuple[ast.AST, ...]
) -> tuple[ast.FunctionDef, tuple[ast.AST, ...]] | None:
    for child in ast.iter_child_nodes(node):
        inside = parents
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = (*parents, child)
            first = min(n.lineno for n in (child, *child.decorator_list))
            named = child.name == code.co_name and first == code.co_firstlineno
            if named and isinstance(child, ast.FunctionDef):
                return child, parents
        if found := _search(child, code, inside):
            return found
    return None


# ------------------------------------------------------------------------------ rewrite


class _Writer(ast.NodeTransformer):
    """Writes the ``with`` statements of a function out."""

    def __init__(self, definition: ast.FunctionDef) -> None:
        nodes = list(ast.walk(definition))
        self.taken = {n.id for n in nodes if isinstance(n, ast.Name)}
        self.taken |= {n.arg for n in nodes if isinstance(n, ast.arg)}
        self.helper = self.fresh("as_scope")
        self.found = False  # whether there is a with statement
        self.returns = False
        # What the statement at hand stands in: the name of each scope, and None for each loop.
        self.inside: list[str | None] = []

    def fresh(self, name: str) -> str:
        """Return a name that the function does not use."""
        name = f"_{name}"
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    def block(self, statements: list[ast.stmt], inside: str | None) -> list[ast.stmt]:
        """Rewrite the statements of a scope's or loop's body."""
        self.inside.append(inside)
        holder = self.generic_visit(ast.Module(statements, []))
        self.inside.pop()
        return holder.body  # type: ignore[attr-defined, no-any-return]

    def visit_With(self, node: ast.With) -> list[ast.stmt]:
        item, *others = node.items
        body = node.body
        if others:
            body = [ast.copy_location(ast.With(others, node.body), node)]
        self.found = True
        scope = self.fresh(f"scope_{node.lineno}")
        line = item.context_expr.lineno
        opened = [_statement(f"{scope} = {self.helper}(_, {line})", item.context_expr)]
        opened[0].value.args[0] = item.context_expr  # type: ignore[attr-defined]
        if item.optional_vars is not None:
            bound = _statement(f"_ = {scope}", item.optional_vars)
            bound.targets = [item.optional_vars]  # type: ignore[attr-defined]
            opened.append(bound)
        entered = _statement(f"if {scope}.enters(): pass", item.context_expr)
        entered.body = self.block(body, scope)  # type: ignore[attr-defined]
        return [*opened, entered, _statement(f"{scope}.close()", item.context_expr)]

    def visit_For(self, node: ast.For | ast.While) -> ast.stmt:
        node.body = self.block(node.body, None)
        node.orelse = self.generic_visit(ast.Module(node.orelse, [])).body  # type: ignore[attr-defined]
        return node

    visit_While = visit_For

    def visit_Break(self, node: ast.Break | ast.Continue) -> list[ast.stmt]:
        left = []
        for scope in reversed(self.inside):
            if scope is None:
                break
            left.append(scope)
        return [*_closed(left, node), node]

    visit_Continue = visit_Break

    def visit_Return(self, node: ast.Return) -> list[ast.stmt]:
        left = [scope for scope in reversed(self.inside) if scope is not None]
        if not left or node.value is None:
            return [*_closed(left, node), node]
        self.returns = True
        value = self.fresh(f"result_{node.lineno}")
        computed = _statement(f"{value} = 0", node)
        computed.value = node.value  # type: ignore[attr-defined]
        return [computed, *_closed(left, node), _statement(f"return {value}", node)]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        outer, self.inside = self.inside, []
        self.generic_visit(node)
        self.inside = outer
        return node


def _closed(left: Sequence[str], node: ast.AST) -> list[ast.stmt]:
    return [_statement(f"{scope}.close()", node) for scope in left]


def _statement(source: str, place: ast.AST) -> ast.stmt:
    """Return the statement `source`, all of it on the line of `place`."""
    statement = ast.parse(source).body[0]
    for node in ast.walk(statement):
        if "lineno" in node._attributes:
            ast.copy_location(node, place)
    return statement


# ------------------------------------------------------------------------------ compile


def _compile(
    function: FunctionType, definition: ast.FunctionDef, owner: str | None, helper: str
) -> FunctionType:
    """Make a function of the rewritten `definition`, with the identity of the original."""
    code = function.__code__
    # What is evaluated where a function is defined has been; the first decorator keeps its line.
    definition.decorator_list = [
        ast.copy_location(ast.Constant(None), d) for d in definition.decorator_list[:1]
    ]
    definition.returns = None
    definition.args.defaults = []
    definition.args.kw_defaults = [None] * len(definition.args.kwonlyargs)
    for argument in ast.walk(definition.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    if hasattr(definition, "type_params"):
        definition.type_params = []

    # Names are free in the function if a function around it has them: one with the original's.
    cells = dict(zip(code.co_freevars, function.__closure__ or ()))
    cells[helper] = CellType(as_scope)
    tree = ast.parse(f"def factory({', '.join(cells)}): pass")
    own = definition.name  # in its body it is a global, unless a function around has it
    named = [] if own in cells else [_statement(f"global {own}", definition)]
    tree.body[0].body = [*named, definition]  # type: ignore[attr-defined]
    if owner is not None:  # for the private names of a class
        around = ast.parse(f"class {owner}: pass")
        around.body[0].body = tree.body  # type: ignore[attr-defined]
        tree = around
    whole = compile(tree, code.co_filename, "exec", dont_inherit=True)
    new = _find_code(whole, code)
    if hasattr(new, "co_qualname"):
        new = new.replace(co_qualname=code.co_qualname)
    closure = tuple(cells[name] for name in new.co_freevars)
    result = FunctionType(
        new, function.__globals__, function.__name__, function.__defaults__, closure
    )
    result.__kwdefaults__ = function.__kwdefaults__
    functools.update_wrapper(result, function)
    del result.__wrapped__  # type: ignore[attr-defined]
    return result


def _find_code(within: CodeType, code: CodeType) -> CodeType:
    """Return the code in `within` that stands for `code`: of its name, on its line."""
    inner = [c for c in within.co_consts if isinstance(c, CodeType)]
    for candidate in inner:
        if (candidate.co_name, candidate.co_firstlineno) == (code.co_name, code.co_firstlineno):
            return candidate
    return _find_code(inner[0], code)
