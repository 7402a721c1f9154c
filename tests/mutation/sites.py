"""The small bugs that can be put into a source file, each as a replacement of some of its text."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_COMPARISONS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip
_OPERATORS = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "*", ast.Mod: "//",
    ast.LShift: ">>", ast.RShift: "<<", ast.BitAnd: "|", ast.BitOr: "&", ast.BitXor: "|",
}  # fmt: skip
#: Words of PTX that are mistaken for each other.
_WORDS = [
    (".acquire", ".relaxed"), (".release", ".relaxed"), (".cluster", ".cta"), (".shared::cta", ""),
    ("::before_thread_sync", "::after_thread_sync"), (".read", ""), (".aligned", ""),
]  # fmt: skip
#: Functions of two numbers, or of the builder on two, whose order is no matter.
_COMMUTE = {
    "min", "max", "minimum", "maximum", "gcd", "add", "mul", "fadd", "fmul", "and_", "or_", "xor",
}  # fmt: skip
#: Keywords whose numbers bound memory or time alone.
_LIMITS = {"maxsize", "maxlen", "max_work"}


@dataclass(frozen=True)
class Mutation:
    """A small bug: the characters `start` to `end` of a file become `text`."""

    path: str  #: from the root of the project
    line: int
    kind: str
    start: int
    end: int
    text: str

    def apply(self, source: str) -> str:
        """Return the source with the bug."""
        return source[: self.start] + self.text + source[self.end :]

    def diff(self, source: str) -> str:
        """Return the bug as a diff of its lines."""
        old, new = source.splitlines(), self.apply(source).splitlines()
        lines = difflib.unified_diff(old, new, self.path, self.path, n=1, lineterm="")
        return "\n".join(list(lines)[2:])


def mutations(path: str, source: str) -> Iterator[Mutation]:
    """Yield every small bug of a file, none of which is a syntax error or in text for people."""
    found = _Finder(path, source)
    found.visit(ast.parse(source))
    for one in found.mutations:
        try:
            ast.parse(one.apply(source))
        except SyntaxError:
            continue
        yield one


class _Finder(ast.NodeVisitor):
    """Collect the mutations of a module. What only people or type checkers read is left out."""

    def __init__(self, path: str, source: str) -> None:
        self.path, self.source = path, source
        self.mutations: list[Mutation] = []
        # Offsets of ast are in bytes of UTF-8.
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._texts = source.splitlines(keepends=True)

    # ----------------------------------------------------------------------- what is left out

    def visit_Raise(self, node: ast.Raise) -> None:  # messages are for people
        pass

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        if all(isinstance(inner, ast.Raise) for inner in node.body) and not node.orelse:
            self._add(node, "a check is left out", node.test, "False")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return
        self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for default in [*node.args.defaults, *node.args.kw_defaults]:
            if default is not None:
                self.visit(default)
        for inner in node.body:
            self.visit(inner)

    # ------------------------------------------------------------------------------ mutations

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1:
            new = _COMPARISONS[type(node.ops[0])]
            self._between(node, "comparison", node.left, node.comparators[0], new)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        new = _OPERATORS.get(type(node.op))
        text = isinstance(node.left, ast.Constant | ast.JoinedStr) and not isinstance(
            getattr(node.left, "value", ""), int | float
        )
        if new and not text:
            self._between(node, "operator", node.left, node.right, new)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        new = "or" if isinstance(node.op, ast.And) else "and"
        self._between(node, "and, or", node.values[0], node.values[1], new)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add(node, "not", node, self._text(node.operand))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        match node.value:
            case bool():
                self._add(node, "constant", node, str(not node.value))
            case int():
                self._add(node, "constant", node, str(node.value + 1))
            case str():
                written = self._text(node)
                for word, other in _WORDS:
                    if word in written:
                        self._add(node, "word", node, written.replace(word, other, 1))

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return  # a docstring
        if isinstance(node.value, ast.Call):
            self._add(node, "a statement is left out", node, "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._add(node, "a statement is left out", node, "pass")
        self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        match [] if name in _COMMUTE else node.args:
            case [ast.Name() | ast.Attribute() as a, ast.Name() | ast.Attribute() as b, *_]:
                swapped = f"{self._text(b)}{self._gap(a, b)}{self._text(a)}"
                self._replace(node, "arguments are swapped", self._start(a), self._end(b), swapped)
        self.visit(node.func)
        for argument in node.args:
            # NumPy takes any negative extent for the one that follows from the others.
            if not (name == "reshape" and isinstance(argument, ast.UnaryOp)):
                self.visit(argument)
        for keyword in node.keywords:
            if keyword.arg not in _LIMITS:
                self.visit(keyword.value)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._add(node, "condition", node.test, f"not ({self._text(node.test)})")
        self.generic_visit(node)

    # -------------------------------------------------------------------------------- offsets

    def _offset(self, line: int, column: int) -> int:
        text = self._texts[line - 1].encode()[:column].decode()
        return self._lines[line - 1] + len(text)

    def _start(self, node: ast.expr | ast.stmt) -> int:
        return self._offset(node.lineno, node.col_offset)

    def _end(self, node: ast.expr | ast.stmt) -> int:
        return self._offset(node.end_lineno or 0, node.end_col_offset or 0)

    def _text(self, node: ast.expr | ast.stmt) -> str:
        return self.source[self._start(node) : self._end(node)]

    def _gap(self, left: ast.expr, right: ast.expr) -> str:
        return self.source[self._end(left) : self._start(right)]

    def _add(
        self, node: ast.expr | ast.stmt, kind: str, part: ast.expr | ast.stmt, text: str
    ) -> None:
        self._replace(node, kind, self._start(part), self._end(part), text)

    def _between(
        self, node: ast.expr, kind: str, left: ast.expr, right: ast.expr, operator: str
    ) -> None:
        """Replace the operator between two operands, and keep parentheses and line breaks."""
        gap = self._gap(left, right)
        old = gap.strip("() \t\n\\")
        if old and "#" not in gap:
            start = self._end(left) + gap.index(old)
            self._replace(node, kind, start, start + len(old), operator)

    def _replace(
        self, node: ast.expr | ast.stmt, kind: str, start: int, end: int, text: str
    ) -> None:
        if self.source[start:end] != text:
            self.mutations.append(Mutation(self.path, node.lineno, kind, start, end, text))


def library(root: Path) -> list[Mutation]:
    """Return the mutations of every file of the library that tests must hold.

    Benches and pictures are measured or looked at, and left out.
    """
    left_out = {"tools/bench", "tools/plot.py", "tools/demo.py", "tools/doctor.py"}
    found: list[Mutation] = []
    for path in sorted((root / "numba_tma").rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if not any(f"numba_tma/{part}" in name for part in left_out):
            found += mutations(name, path.read_text())
    return found
