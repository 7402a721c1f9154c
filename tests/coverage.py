"""The coverage of instructions and names by tests: ``python -m tests.coverage``.

Every row of the instruction table is assembled, by itself and in its file of ptx/. Beyond that it
is executed on a GPU or in the simulator when a test of tests/gpu or tests/sim calls it, or calls a
function of the library that does. Calls are read from the source, so this says what is tested, not
what passed. After the rows come the names of the seed documents, with their answers.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from numba_tma import ptx
from tests import migration
from tests import ptx_contract as contract

TESTS = Path(__file__).parent
LIBRARY = TESTS.parent / "numba_tma"
#: Where the library's own code calls rows on behalf of its users.
CALLERS = [
    path
    for folder in ("device", "pipeline", "kernels", "host")
    for path in (LIBRARY / folder).rglob("*.py")
]
#: Kernels that tests of several tiers run, as ``kernels.NAME``.
CALLERS += [TESTS / "kernels" / name for name in ("mma_rows.py", "word_kernels.py")]
#: Methods that the language calls: those of loops, and all with two underscores.
OF_LOOPS = {"has_next", "take"}
#: Families that Hopper has not, which the simulator executes all the same.
SIMULATED = {
    "launch_control", "mma_scaled", "tcgen05", "tcgen05_copy", "tcgen05_ld_red", "tcgen05_mma",
    "tcgen05_mma_scaled", "tcgen05_mma_ws",
}  # fmt: skip
TIERS = {"GPU": "gpu", "simulator": "sim"}


def mentioned(tree: ast.AST) -> Iterator[str]:
    """Yield the names that code calls, ``ptx.NAME`` and ``kernels.NAME``, and names it makes up.

    ``f"red_async_{kind}"``, alone or as a call in the text of a kernel, stands for all rows whose
    names are so.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Call(function):
                if isinstance(function, ast.Subscript):  # a launch: kernel[grid, block](...)
                    function = function.value
                if isinstance(function, ast.Call):  # of a factory: make(...)[grid, block](...)
                    function = function.func
                if isinstance(function, ast.Attribute):
                    yield function.attr
                elif isinstance(function, ast.Name):
                    yield function.id
            case ast.Attribute(ast.Name("ptx" | "kernels"), name):
                yield name
            case ast.Constant(str(text)):
                yield from named(text)
            case ast.JoinedStr(parts):
                yield from named(
                    "".join(str(p.value) if isinstance(p, ast.Constant) else "{}" for p in parts)
                )


def named(text: str) -> Iterator[str]:
    """Yield the rows that a text names, by itself or in calls; ``{...}`` stands for anything."""
    part = r"(?:\w|\{\w*\})+"
    for name in re.findall(rf"\bptx\.({part})\(", text) + re.findall(rf"^{part}$", text):
        if len(re.sub(r"\{\w*\}", "", name)) > 5:  # more of a name than a placeholder
            yield from rows_named(re.sub(r"\{\w*\}", r"\\w+", name))


@functools.cache
def rows_named(pattern: str) -> list[str]:
    """Return the rows whose names match a pattern."""
    return [row for row in ptx.TABLE if re.fullmatch(pattern, row)]


def edges(tree: ast.AST) -> Iterator[tuple[str, set[str]]]:
    """Yield functions and methods with the names that they call, and classes with what loops call.

    A method whose compiled body is not Python is assigned a function where it is simulated, as in
    ``TensorMap.load = _load``, and calls that.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield node.name, set(mentioned(node))
        elif isinstance(node, ast.ClassDef):
            methods = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
            yield node.name, {m for m in methods if m in OF_LOOPS or m.startswith("__")}
        elif isinstance(node, ast.Assign):
            (target,), value = node.targets[:1], node.value
            targets = target.elts if isinstance(target, ast.Tuple) else [target]
            values = value.elts if isinstance(value, ast.Tuple) else [value]
            for method, function in zip(targets, values):
                if of_a_class(method) and isinstance(function, ast.Name):
                    yield method.attr, {function.id}


def of_a_class(target: ast.expr) -> bool:
    """Tell whether something assigned to is an attribute of a class, which is spelt in capitals."""
    return (
        isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id[0].isupper()
    )


@functools.cache
def library() -> dict[str, set[str]]:
    """Return what each function of the library calls, by its name; methods share theirs."""
    calls: dict[str, set[str]] = {}
    for path in CALLERS:
        for name, called in edges(ast.parse(path.read_text())):
            calls.setdefault(name, set()).update(called)
    return calls


def exercised(folder: str) -> set[str]:
    """Return the rows that the tests in a folder call, directly or through the library."""
    calls = library()
    waiting = [
        name
        for path in (TESTS / folder).rglob("*.py")
        for name in mentioned(ast.parse(path.read_text()))
    ]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += calls.get(name, ())
    return seen & ptx.TABLE.keys()


@functools.cache
def coverage() -> dict[str, list[str]]:
    """Return how each row is exercised, best evidence first."""
    tiers = {tier: exercised(folder) for tier, folder in TIERS.items()}
    tiers["assembled"] = {
        form.name.partition("[")[0] for file in contract.FILES for form in contract.forms(file)
    }
    found = {row: [tier for tier, rows in tiers.items() if row in rows] for row in ptx.TABLE}
    # Tests of rows that Hopper has not hold that they say so, except where they are simulated.
    return {
        row: t if runs_on_hopper(row) else [tier for tier in t if tier in elsewhere(row)]
        for row, t in found.items()
    }


def elsewhere(row: str) -> list[str]:
    """Return where a row that Hopper has not is exercised."""
    return [*(["simulator"] if ptx.TABLE[row].family in SIMULATED else []), "assembled"]


def runs_on_hopper(row: str) -> bool:
    """Tell whether compute capability 9.0 has the instruction."""
    return ptx.TABLE[row].targets.on((9, 0))


def main() -> None:
    """Print the rows per family, how each is exercised, and the answers to the seeds' names."""
    found = coverage()
    columns = [*TIERS, "assembled"]
    by_family = sorted(found, key=lambda name: ptx.TABLE[name].family)
    families = {f: list(g) for f, g in groupby(by_family, lambda name: ptx.TABLE[name].family)}
    print(f"{'family':20}{'rows':>6}" + "".join(f"{column:>12}" for column in columns))
    for family, rows in [*families.items(), ("all", by_family)]:
        counts = [sum(column in found[row] for row in rows) for column in columns]
        print(f"{family:20}{len(rows):6}" + "".join(f"{count:12}" for count in counts))
    for family, rows in families.items():
        print(f"\n{family}")
        for row in rows:
            only = "" if runs_on_hopper(row) else f" only: needs {ptx.TABLE[row].targets}"
            print(f"  {row:44}{', '.join(found[row])}{only}")
    for seed, answers in migration.answers().items():
        print(f"\n{seed}")
        for name, answer in answers.items():
            said = answer.numba_tma if answer.numba_tma != migration.NONE else answer.remark
            print(f"  {name:44}{said}")


if __name__ == "__main__":
    main()
