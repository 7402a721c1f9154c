"""What a kernel's source shows, and its run does not: Python that the compiler has not.

In the simulator a kernel is Python and would run with all of it. So the source of a kernel, and of
each device function, is read once, before it first runs: its syntax, and the globals and builtins
that it names. Types of variables are not known here; `NUMBA_TMA_SIM_COMPILES` is for these. A
function without a source (typed into an interpreter) is not checked.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import sys
import textwrap
import tokenize
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from numba_tma.host.host_only import KERNEL_CODE
from numba_tma.simulator.errors import NotCompiled

#: Syntax that no kernel has.
_SYNTAX: dict[type[ast.AST], str] = {
    ast.Set: "a set: compare with each element, or use a tuple",
    ast.SetComp: "a set: compare with each element, or use a tuple",
    ast.Dict: "a dictionary: use variables, or a tuple among the globals",
    ast.DictComp: "a dictionary: use variables, or a tuple among the globals",
    ast.ListComp: "a list comprehension: use a loop, and cuda.local.array for its results",
    ast.GeneratorExp: "a generator expression: use a loop",
    ast.FormattedValue: "a formatted string: print takes several arguments",
    ast.Try: "a try statement: test the condition, since no exception is caught on a GPU",
    ast.ClassDef: "a class: define it outside of the kernel",
    ast.Import: "an import: put it at the top of the module",
    ast.ImportFrom: "an import: put it at the top of the module",
    ast.Global: "a global statement: globals are constants; write to an array",
    ast.Nonlocal: "a nonlocal statement: captured names are constants; write to an array",
    ast.Delete: "a del statement: names end with the kernel",
    ast.Yield: "a yield: a kernel is no generator; use a loop",
    ast.YieldFrom: "a yield: a kernel is no generator; use a loop",
    ast.Await: "an await: use the barriers of the library",
    ast.AsyncFunctionDef: "an async function: use the barriers of the library",
}
_BUILTINS = frozenset(
    {"bytearray", "bytes", "callable", "compile", "delattr", "dict", "dir", "eval", "exec"}
    | {"format", "frozenset", "getattr", "globals", "id", "input", "locals", "memoryview", "object"}
    | {"open", "repr", "set", "setattr", "sorted", "super", "vars"}
)
#: Functions of NumPy that allocate memory.
_ALLOCATING = frozenset(
    {"arange", "array", "asarray", "concatenate", "copy", "empty", "empty_like", "eye", "full"}
    | {"full_like", "linspace", "ones", "ones_like", "stack", "zeros", "zeros_like"}
)
#: Modules whose builtin functions are unknown to the compiler.
_MODULES = frozenset({"math", "cmath", "operator", "builtins", "_operator", "_functools"})
_LIBRARIES = ("numba", "numpy", "numba_tma", "math", "cmath", "operator", "ml_dtypes")

_checked: weakref.WeakSet[FunctionType] = weakref.WeakSet()


def check_code(function: FunctionType, *, device: bool) -> None:
    """Raise for Python in a kernel, or in a device function, that the compiler does not take.

    Raises
    ------
    NotCompiled
        With the line and the repair.
    """
    if function in _checked:
        return
    definition = _parsed(function.__code__)
    if definition is not None:
        _Check(function, definition, device).visit_all()
    _checked.add(function)


@functools.lru_cache(maxsize=1024)
def _parsed(code: CodeType) -> ast.FunctionDef | None:
    try:
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):  # no source, or another text's
        return None
    ast.increment_lineno(tree, first - 1)
    found = tree.body[0] if len(tree.body) == 1 else None
    return found if isinstance(found, ast.FunctionDef) and found.name == code.co_name else None


class _Check:
    def __init__(self, function: FunctionType, definition: ast.FunctionDef, device: bool) -> None:
        self._function, self._definition, self._device = function, definition, device
        code = function.__code__
        self._own = {*code.co_varnames, *code.co_cellvars}
        self._names = _captured(function)

    def visit_all(self) -> None:
        for statement in self._definition.body:
            for node in self._walk(statement):
                self._visit(node)

    def _walk(self, node: ast.AST, inner: bool = False) -> Iterator[ast.AST]:
        """Yield the nodes, without the annotations and the names of inner functions' own."""
        if not (inner and isinstance(node, ast.Return)):
            yield node
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            arguments = node.args
            self._own |= {a.arg for a in ast.walk(arguments) if isinstance(a, ast.arg)}
            body = node.body if isinstance(node, ast.FunctionDef) else [node.body]
            for part in body:
                self._own |= {
                    n.id
                    for n in ast.walk(part)
                    if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
                }
            for part in body:
                yield from self._walk(part, inner=True)
            return
        for child in ast.iter_child_nodes(node):
            yield from self._walk(child, inner)

    def _visit(self, node: ast.AST) -> None:
        if refused := _SYNTAX.get(type(node)):
            self._refuse(node, f"a kernel has no place for {refused}")
        if isinstance(node, ast.Starred) and isinstance(node.ctx, ast.Store):
            self._refuse(node, "a kernel unpacks no rest of a tuple (`*rest`): name each element")
        if isinstance(node, ast.List) and isinstance(node.ctx, ast.Load) and not node.elts:
            self._refuse(node, "a kernel has no lists that grow: use cuda.local.array")
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and _is_text(node.left):
            self._refuse(node, "a kernel formats no text: print takes several arguments")
        if isinstance(node, ast.Attribute) and _is_text(node.value):
            self._refuse(node, "a kernel computes no text: make it before the launch")
        if isinstance(node, ast.Return) and not self._device and not _is_none(node.value):
            self._refuse(node, "a kernel returns no value: write it to an array")
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            self._check_written(node)
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            self._check_named(node)
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            self._check_condition(node.test)
        if isinstance(node, ast.Call):
            self._check_call(node)

    def _check_written(self, node: ast.Subscript) -> None:
        value = self._value(node.value)
        if isinstance(value, np.ndarray | list):
            self._refuse(
                node,
                f"{ast.unparse(node.value)} is a global, and so a constant: pass the array to the "
                "kernel as an argument",
            )

    def _check_named(self, node: ast.Name | ast.Attribute) -> None:
        value, name = self._value(node), ast.unparse(node)
        if value is _UNKNOWN:
            return
        if isinstance(node, ast.Name) and name in _BUILTINS and value is vars(builtins)[name]:
            self._refuse(node, f"the compiler has no {name}()")
        if isinstance(value, dict | set | frozenset):
            kind = type(value).__name__
            self._refuse(node, f"the global {name} is a {kind}: use numbers or a tuple of them")
        if isinstance(value, list) and not all(map(_of_library, value)):
            self._refuse(node, f"the global {name} is a list: make it a tuple or a NumPy array")
        if isinstance(value, FunctionType) and not _of_library(value):
            self._refuse(
                node,
                f"{name} is a plain Python function: put @cuda.jit(device=True) on it, so that it "
                "is compiled too",
            )
        if isinstance(value, BuiltinFunctionType) and value.__module__ is not None:
            if not _of_library(value) and value.__module__ not in _MODULES:
                self._refuse(node, f"the compiler has no {name}(): call it before the launch")
        if _is_foreign(value):
            self._refuse(
                node,
                f"the global {name} is of the class {type(value).__name__}, which the compiler "
                "does not know: pass its numbers to the kernel",
            )

    def _check_condition(self, test: ast.expr) -> None:
        if isinstance(test, ast.Attribute) and test.attr in _QUESTIONS:
            name = ast.unparse(test)
            self._refuse(test, f"{name} is a method, and so never false: call it, `{name}()`")

    def _check_call(self, node: ast.Call) -> None:
        by_name = [(k.arg, k.value) for k in node.keywords]
        constants = _CONSTANTS.get(getattr(node.func, "attr", ""), ())
        for name, given in [*zip(constants, node.args[2:]), *by_name]:
            if name not in ("in_flight", *constants) or self._device:
                continue
            if self._varies(given):
                self._refuse(
                    node,
                    f"{name} must be a compile-time constant: a literal, or a global; not "
                    f"{ast.unparse(given)}",
                )
        if ast.unparse(node.func).endswith(("shared.array", "local.array")) and node.args:
            if self._varies(node.args[0]):
                self._refuse(node, "the shape of an array in a kernel is a constant of the kernel")
        function = self._value(node.func)
        names = list(getattr(function, "constant_operands", {}))
        for name, given in [*zip(names, node.args), *by_name]:
            if getattr(function, "constant_operands", {}).get(name) and self._varies(given):
                self._refuse(
                    node,
                    f"{function.__name__}({name}=...) is part of the instruction and must be a "
                    f"literal, not {ast.unparse(given)}",
                )
        module, name = getattr(function, "__module__", None), getattr(function, "__name__", "")
        if function is _UNKNOWN or not isinstance(module, str):
            return
        if module.split(".")[0] == "numpy" and name in _ALLOCATING or module == "numpy.random":
            self._refuse(
                node, f"np.{name} makes an array: use cuda.local.array or cuda.shared.array"
            )

    def _varies(self, node: ast.expr) -> bool:
        """Return whether the launch decides an expression: its arguments, or a thread's index."""
        arguments = set() if self._device else {a.arg for a in self._definition.args.args}
        return any(
            isinstance(n, ast.Name)
            and n.id in arguments
            or isinstance(n, ast.Attribute)
            and n.attr in ("threadIdx", "blockIdx")
            for n in ast.walk(node)
        )

    def _value(self, node: ast.AST) -> Any:
        """Return what a name, or an attribute of a module, is; `_UNKNOWN` if a run decides it."""
        if isinstance(node, ast.Name):
            return _UNKNOWN if node.id in self._own else self._names.get(node.id, _UNKNOWN)
        if isinstance(node, ast.Attribute):
            owner = self._value(node.value)
            if isinstance(owner, ModuleType):
                return getattr(owner, node.attr, _UNKNOWN)
        return _UNKNOWN

    def _refuse(self, node: ast.AST, sentence: str) -> None:
        line = getattr(node, "lineno", self._definition.lineno)
        raise NotCompiled(f"{self._function.__name__}, line {line}: {sentence}")


_UNKNOWN = object()
#: By method: the parameters from the third on, which are compile-time constants.
_CONSTANTS = dict.fromkeys(("windows", "produce_windows"), ("step", "radius", "before", "after"))
#: Methods that return whether a thread has a role.
_QUESTIONS = frozenset({"is_producer", "is_consumer", "is_member", "enters"})


def check_step(what: str, step: int) -> None:
    """Raise for a negative step that the calling kernel's source does not write as a constant.

    A compiled loop goes backwards by a constant alone: any other step it takes to be positive.
    """
    frame = sys._getframe(1)
    while id(frame.f_code) not in KERNEL_CODE:
        if frame.f_back is None:
            return
        frame = frame.f_back
    definition = _parsed(frame.f_code)
    for node in ast.walk(definition) if definition else ():
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr == what and node.lineno <= frame.f_lineno <= (node.end_lineno or 0):
            given = [k.value for k in node.keywords if k.arg == "step"] or node.args[2:3]
            if given and definition and not _is_constant(given[0], frame.f_code, definition):
                raise NotCompiled(
                    f"{what}(step={ast.unparse(given[0])}) is {step} here, and a compiled loop "
                    "takes a step that is no literal to be positive: it would run no turn; write "
                    f"the negative step as a literal, as in {what}(n - 1, -1, -1)"
                )


def _is_constant(node: ast.expr, code: CodeType, definition: ast.AST) -> bool:
    """Return whether the compiler knows an expression: literals, globals, names of one literal."""
    for name in (n for n in ast.walk(node) if isinstance(n, ast.Name)):
        if name.id not in {*code.co_varnames, *code.co_cellvars}:
            continue
        stored = [
            n
            for n in ast.walk(definition)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.id == name.id
        ]
        literal = [
            n
            for n in ast.walk(definition)
            if isinstance(n, ast.Assign)
            and [ast.unparse(t) for t in n.targets] == [name.id]
            and not any(isinstance(part, ast.Name | ast.Call) for part in ast.walk(n.value))
        ]
        if len(stored) != 1 or len(literal) != 1:
            return False
    return True


def _captured(function: FunctionType) -> Mapping[str, Any]:
    """Return the names that a function takes from around it, and what they are."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or ())
    free = {}
    for name, cell in cells:
        try:
            free[name] = cell.cell_contents
        except ValueError:  # it is not assigned yet
            free[name] = _UNKNOWN
    return {**vars(builtins), **function.__globals__, **free}


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_none(value: ast.expr | None) -> bool:
    return value is None or isinstance(value, ast.Constant) and value.value is None


def _of_library(value: Callable[..., Any] | object) -> bool:
    """Return whether a thing's module is one that the compiler knows of."""
    module = getattr(value, "__module__", None) or type(value).__module__
    return str(module).split(".")[0] in _LIBRARIES


def _is_foreign(value: object) -> bool:
    """Return whether an object is of a class that no compiler has heard of."""
    cls = type(value)
    if cls.__module__ == "builtins" or isinstance(value, type | tuple | ModuleType):
        return False
    known = ("_numba_type_", "__cuda_array_interface__", "device_methods", "__call__", "dtype")
    return not any(hasattr(value, name) for name in known) and not any(
        _of_library(base) or base.__module__ == "enum" for base in cls.__mro__[:-1]
    )
