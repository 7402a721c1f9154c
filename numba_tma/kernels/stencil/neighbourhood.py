"""What a stencil's function reads: its arrays, and the neighbours of each, found in its source.

A parameter that is indexed is an array, any other a number. An index that is known before the call
(an integer, or a name of one outside of the function) widens the neighbourhood that is found. An
index that is computed needs one that is given.
"""

from __future__ import annotations

import ast
import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from numba_tma.host.values import is_whole

Range = tuple[int, int]  #: the first and the last neighbour along an axis
Neighbourhood = tuple[Range, ...]  #: along each axis

MOST_AXES = 3
_OPERATORS: dict[type, Callable[..., int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_Definition = ast.FunctionDef | ast.Lambda


@dataclass(frozen=True)
class Reads:
    """What a stencil's function takes, reads and returns."""

    parameters: tuple[str, ...]
    arrays: tuple[str, ...]  #: parameters that are indexed, in order
    neighbourhoods: tuple[Neighbourhood, ...]  #: of each array
    outputs: int

    @property
    def axes(self) -> int:
        """The number of indices."""
        return len(self.neighbourhoods[0])

    @property
    def numbers(self) -> tuple[str, ...]:
        """The other parameters."""
        return tuple(name for name in self.parameters if name not in self.arrays)

    @property
    def neighbourhood(self) -> Neighbourhood:
        """The smallest neighbourhood that has the element and all that is read."""
        along = zip(*self.neighbourhoods)
        return tuple(
            (min(0, *(low for low, _ in ranges)), max(0, *(high for _, high in ranges)))
            for ranges in along
        )

    @property
    def radii(self) -> tuple[tuple[int, ...], ...]:
        """For each array the neighbours on both sides, along each axis."""
        return tuple(
            tuple(max(-low, high, 0) for low, high in ranges) for ranges in self.neighbourhoods
        )


def reads_of(fn: Callable[..., Any], given: Neighbourhood | None) -> Reads:
    """Return what a function reads; `given` is the neighbourhood of indices that are computed.

    Raises
    ------
    TypeError
        If the function does with an array what a stencil cannot.
    ValueError
        If the neighbourhood cannot be found, or is not what is given.
    """
    function: Any = getattr(fn, "py_func", fn)
    return _Reader(function, given).read()


def checked_neighbourhood(given: object) -> Neighbourhood | None:
    """Return the argument `neighbourhood` as a tuple, or raise."""
    if given is None:
        return None
    rule = (
        f"stencil(neighbourhood={given!r}): a neighbourhood is the first and the last neighbour "
        f"along each of 1 to {MOST_AXES} axes, as ((-1, 1), (-2, 0)) for rows -1 to 1 and columns "
        "-2 to 0"
    )
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise TypeError(rule)
    pairs = [tuple(pair) if isinstance(pair, Sequence) else () for pair in given]
    if any(len(pair) != 2 or not all(map(is_whole, pair)) for pair in pairs):
        raise TypeError(rule)
    if not 1 <= len(pairs) <= MOST_AXES or any(low > 0 or high < 0 for low, high in pairs):
        raise ValueError(f"{rule}; it has the element itself, 0")
    return tuple((int(low), int(high)) for low, high in pairs)


class _Reader:
    """The reading of one function."""

    def __init__(self, function: FunctionType, given: Neighbourhood | None) -> None:
        self.function, self.given = function, given
        self.called = f"stencil(fn={function.__name__})"
        self.parameters = self._parameters()
        self.known = _known_outside(function)

    def read(self) -> Reads:
        """Return what the function reads."""
        definition = self._definition()
        indexed: dict[str, list[ast.Subscript]] = {}
        parents: set[int] = set()  # names that are indexed
        for node in ast.walk(definition):
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
                if node.value.id in self.parameters:
                    indexed.setdefault(node.value.id, []).append(node)
                    parents.add(id(node.value))
        if not indexed:
            raise ValueError(
                f"{self.called}: no parameter is indexed; a stencil reads its arrays by relative "
                "indices, as in a[-1, 0] + a[1, 0]"
            )
        for node in ast.walk(definition):
            if isinstance(node, ast.Name) and node.id in indexed and id(node) not in parents:
                raise TypeError(
                    f"{self.called}: {node.id}, line {node.lineno}, is an array that is indexed, "
                    "and stands here without an index; write the element that is meant, "
                    f"{node.id}[{', '.join('0' * self._axes(indexed))}]"
                )
        arrays = tuple(name for name in self.parameters if name in indexed)
        axes = self._axes(indexed)
        found = tuple(self._neighbourhood(name, indexed[name], axes) for name in arrays)
        return Reads(self.parameters, arrays, found, self._outputs(definition))

    def _parameters(self) -> tuple[str, ...]:
        parameters = inspect.signature(self.function).parameters.values()
        for p in parameters:
            if p.kind is not p.POSITIONAL_OR_KEYWORD or p.default is not p.empty:
                raise TypeError(
                    f"{self.called}: parameter {p} is none that a call gives by its place alone; "
                    "use plain parameters, and pass all of them at each call"
                )
        return tuple(p.name for p in parameters)

    def _definition(self) -> _Definition:
        """Return the function's syntax tree."""
        code = self.function.__code__
        try:
            lines, _ = inspect.findsource(self.function)
            tree = ast.parse("".join(lines))
        except (OSError, SyntaxError) as error:
            raise ValueError(
                f"{self.called}: the neighbourhood is found in the function's source, which cannot "
                f"be read ({error}): define it in a file or a notebook's cell"
            ) from None
        named: list[_Definition] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.Lambda):
                decorated = node.decorator_list if isinstance(node, ast.FunctionDef) else []
                first = min([node.lineno, *(d.lineno for d in decorated)])
                name = node.name if isinstance(node, ast.FunctionDef) else "<lambda>"
                if (first, name) == (code.co_firstlineno, code.co_name):
                    named.append(node)
        fitting = [node for node in named if _same_code(node, self.function)] or named
        if len({ast.dump(node) for node in fitting}) != 1:
            raise ValueError(
                f"{self.called}: line {code.co_firstlineno} of {code.co_filename} has "
                f"{len(fitting)} functions that could be it: write each on a line of its own, or "
                "with def"
            )
        return fitting[0]

    # --------------------------------------------------------------------------- indices

    def _axes(self, indexed: Mapping[str, list[ast.Subscript]]) -> int:
        """Return the number of indices, which is the same everywhere."""
        lengths = {len(_indices(node)): node for nodes in indexed.values() for node in nodes}
        if self.given is not None:
            lengths.setdefault(len(self.given), next(iter(lengths.values())))
        if len(lengths) > 1:
            shown = " and ".join(sorted({ast.unparse(node) for node in lengths.values()}))
            given = f" and neighbourhood={self.given}" if self.given is not None else ""
            raise ValueError(
                f"{self.called}: {shown}{given} have {' and '.join(map(str, sorted(lengths)))} "
                "axes; every array has one index for each axis of the stencil: write 0 for the "
                "element's own"
            )
        (axes,) = lengths
        if not 1 <= axes <= MOST_AXES:
            shown = ast.unparse(lengths[axes])
            raise ValueError(
                f"{self.called}: {shown} has {axes} indices; a stencil has 1 to {MOST_AXES} axes, "
                "the last ones of its arrays: leave out those of the batch"
            )
        return axes

    def _neighbourhood(self, name: str, nodes: list[ast.Subscript], axes: int) -> Neighbourhood:
        """Return the neighbourhood of one array."""
        places: list[list[int]] = []
        computed = False
        for node in nodes:
            if not isinstance(node.ctx, ast.Load):
                raise TypeError(
                    f"{self.called}: {ast.unparse(node)}, line {node.lineno}, is written; a "
                    "stencil returns its result, and its arrays are read"
                )
            values = [self._value(index, node) for index in _indices(node)]
            if None in values:
                computed = True
                if self.given is None:
                    raise ValueError(
                        f"{self.called}: {ast.unparse(node)}, line {node.lineno}, has an index "
                        "that is computed, so that the neighbours are not known: give them as "
                        f"neighbourhood=({', '.join(['(-1, 1)'] * axes)},)"
                    )
            for i, value in enumerate(values):
                if value is not None and self.given is not None:
                    low, high = self.given[i]
                    if not low <= value <= high:
                        raise ValueError(
                            f"{self.called}: {ast.unparse(node)}, line {node.lineno}, is outside "
                            f"of neighbourhood={self.given}: widen it along axis {i}"
                        )
            if None not in values:
                places.append([value for value in values if value is not None])
        if computed:
            assert self.given is not None
            return self.given
        return tuple((min(along), max(along)) for along in zip(*places))

    def _value(self, index: ast.expr, node: ast.Subscript) -> int | None:
        """Return an index; None if it is computed."""
        if isinstance(index, ast.Slice | ast.Starred) or (
            isinstance(index, ast.Constant) and not is_whole(index.value)
        ):
            raise TypeError(
                f"{self.called}: {ast.unparse(node)}, line {node.lineno}, is indexed with "
                f"{ast.unparse(index)}; an index is an integer, relative to the element"
            )
        if isinstance(index, ast.Constant):
            return int(index.value)  # type: ignore[arg-type]
        if isinstance(index, ast.Name):
            return self.known.get(index.id)
        if isinstance(index, ast.UnaryOp) and type(index.op) in _OPERATORS:
            value = self._value(index.operand, node)
            return None if value is None else _OPERATORS[type(index.op)](value)
        if isinstance(index, ast.BinOp) and type(index.op) in _OPERATORS:
            left, right = self._value(index.left, node), self._value(index.right, node)
            if left is not None and right is not None:
                return _OPERATORS[type(index.op)](left, right)
        return None

    # --------------------------------------------------------------------------- results

    def _outputs(self, definition: _Definition) -> int:
        """Return the number of results."""
        if isinstance(definition, ast.Lambda):
            results: list[ast.expr | None] = [definition.body]
        else:
            results = [node.value for node in _returns(definition)]
        if not results or None in results:
            raise ValueError(
                f"{self.called}: the function returns nothing; it returns the result's element, or "
                "a tuple of them"
            )
        counts = {len(r.elts) if isinstance(r, ast.Tuple) else 1 for r in results if r is not None}
        if len(counts) > 1 or 0 in counts:
            raise ValueError(
                f"{self.called}: the function returns {' or '.join(map(str, sorted(counts)))} "
                "results; each return has the same number, and at least one"
            )
        return counts.pop()


def _known_outside(function: FunctionType) -> dict[str, int]:
    """Return the integers outside of a function that it names."""
    code, known = function.__code__, {}
    for name in code.co_names:
        if is_whole(value := function.__globals__.get(name)):
            known[name] = int(value)  # type: ignore[arg-type]
    for name, cell in zip(code.co_freevars, function.__closure__ or ()):
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        if is_whole(value):
            known[name] = int(value)
    for name in (*code.co_varnames, *code.co_cellvars):
        known.pop(name, None)
    return known


def _indices(node: ast.Subscript) -> list[ast.expr]:
    return node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]


def _returns(definition: ast.FunctionDef) -> Iterator[ast.Return]:
    """Yield the returns of a function, without those of functions in it."""
    nodes: list[ast.AST] = list(definition.body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Return):
            yield node
        elif not isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            nodes += ast.iter_child_nodes(node)


def _same_code(node: _Definition, function: FunctionType) -> bool:
    """Return whether a lambda's syntax is that of a function: a line may have several."""
    if not isinstance(node, ast.Lambda):
        return True
    compiled = compile(ast.Expression(node), "<stencil>", "eval").co_consts[0]
    code = function.__code__
    mine = (compiled.co_varnames, compiled.co_consts, len(compiled.co_code))
    return mine == (code.co_varnames, code.co_consts, len(code.co_code))
