"""Stages that a variable carries from one turn of a loop to the next, which the compiler refuses.

The compiler sees types. Here, the line at which a thread gets a stage names the first variable, and
the kernel's source shows where it goes on.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from types import CodeType

from numba_tma.host.loop_rules import rotated_stage
from numba_tma.simulator.errors import NotCompiled
from numba_tma.simulator.kernel_code import kernel_frame, parsed

_Place = tuple[int, int]


def check_rotation() -> None:
    """Raise if the calling kernel carries the stage that it gets here to the loop's next turn."""
    if (frame := kernel_frame()) and (name := _carried(frame.f_code, frame.f_lineno)):
        raise NotCompiled(rotated_stage(name))


@functools.lru_cache(maxsize=1024)
def _carried(code: CodeType, line: int) -> str | None:
    """Return a variable that carries the stage of a line, if there is one."""
    definition = parsed(code)
    if definition is None:
        return None
    nodes = [*ast.walk(definition)]
    assigned = [pair for node in nodes for pair in _assigned(node)]
    names = {name for node in nodes for name in _given(node, line)}
    before = -1
    while before != len(names):
        before = len(names)
        names |= {to for to, value in assigned if isinstance(value, ast.Name) and value.id in names}
    loops = [node for node in nodes if isinstance(node, ast.For | ast.While)]
    return next((n for n in sorted(names) for loop in loops if _is_carried(loop, n)), None)


def _assigned(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the variables that a statement assigns to, each with its value."""
    for target in node.targets if isinstance(node, ast.Assign) else ():
        value = node.value  # type: ignore[attr-defined]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = [*zip(target.elts, value.elts)]
        else:
            pairs = [(target, value)]
        yield from ((to.id, given) for to, given in pairs if isinstance(to, ast.Name))


def _given(node: ast.AST, line: int) -> Iterator[str]:
    """Yield the variables to which a statement at `line` gives what it gets from the library."""
    if isinstance(node, ast.For) and isinstance(node.target, ast.Tuple):
        last = node.target.elts[-1]
        if node.lineno <= line <= (node.iter.end_lineno or 0) and isinstance(last, ast.Name):
            yield last.id
    elif isinstance(node, ast.Assign) and node.lineno <= line <= (node.end_lineno or 0):
        yield from (
            n for n, value in _assigned(node) if isinstance(value, ast.Call | ast.Subscript)
        )


def _is_carried(loop: ast.For | ast.While, name: str) -> bool:
    """Return whether a turn of the loop reads what an earlier turn has assigned."""
    if isinstance(loop, ast.For) and name in _names(loop.target):
        return False
    reads: list[_Place] = []
    writes: list[_Place] = []
    for node in (n for statement in loop.body for n in ast.walk(statement)):
        if isinstance(node, ast.Assign) and name in [to for to, _ in _assigned(node)]:
            writes.append((node.end_lineno or 0, node.end_col_offset or 0))
        elif isinstance(node, ast.For) and name in _names(node.target):
            writes.append((node.lineno, node.col_offset))
        elif isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
            reads.append((node.lineno, node.col_offset))
    return bool(reads and writes) and min(reads) < min(writes)


def _names(target: ast.expr) -> set[str]:
    return {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
