"""The measures of the house: ``python -m tests.house`` prints them; its status says if all hold."""

from __future__ import annotations

import ast
import builtins
import dis
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "numba_tma"
#: The folders that may import what is inside of Numba.
COMPILERS = ("numba_cuda", "mlir", "simulator")
_INSIDE = re.compile(
    r"llvmlite|numba\.core|"
    r"numba\.cuda\.(?:core|cuda|extending|typing|dispatcher|descriptor|models|cg|util|np|simulator|"
    r"types|compiler|target)"
)


@dataclass(frozen=True)
class Measure:
    """A number, and the largest that is allowed."""

    name: str
    value: int
    goal: int
    shown: str = ""

    @property
    def is_met(self) -> bool:
        """Whether the goal is reached."""
        return self.value <= self.goal


@cache
def modules(package: Path = PACKAGE) -> dict[str, Path]:
    """Return the files of a package by the names of their modules."""
    paths = sorted(package.rglob("*.py"))
    return {module_of(path, package): path for path in paths}


def module_of(path: Path, package: Path = PACKAGE) -> str:
    """Return the name of a file's module."""
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


@cache
def tree(path: Path) -> ast.Module:
    """Return the syntax of a file."""
    return ast.parse(path.read_text(), str(path))


@cache
def imports(path: Path, package: Path = PACKAGE, *, deep: bool = True) -> list[str]:
    """List the modules that a file imports, with the names it takes where these are no modules.

    What only a type checker sees does not count; what functions import does if `deep`.
    """
    known, found = modules(package), list[str]()

    def visit(node: ast.AST) -> Iterator[ast.AST]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                continue  # no import is in one
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                for other in child.orelse:
                    yield other
                    yield from visit(other)
                continue
            yield child
            if deep or isinstance(child, ast.If | ast.Try | ast.With):
                yield from visit(child)

    for node in visit(tree(path)):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                here = module_of(path, package).split(".")
                here += ["__init__"] if path.stem == "__init__" else []
                base = ".".join([*here[: -node.level], *filter(None, [node.module])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                inside_numba = re.match(r"numba(\.cuda)?$", base)
                found.append(full if full in known or inside_numba else base)
    return found


def is_compiler(module: str) -> bool:
    """Return whether a module belongs to what only a backend may import."""
    return bool(_INSIDE.match(module))


def compiler_imports() -> list[str]:
    """List the imports of Numba's insides in files of neither a backend nor the simulator."""
    return [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in modules().values()
        if not set(COMPILERS) & set(path.parts)
        for module in imports(path)
        if is_compiler(module)
    ]


def graph(*, deep: bool) -> dict[str, set[str]]:
    """Return what each module of the package imports of it."""
    known = modules()
    edges: dict[str, set[str]] = defaultdict(set)
    for name, path in known.items():
        edges[name] = {m for m in imports(path, deep=deep) if m in known and m != name}
    return edges


def cycles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in edges[module]:
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            group = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(group) > 1:
                found.append(sorted(group))

    sys.setrecursionlimit(10_000)
    for module in list(edges):
        if module not in index:
            visit(module)
    return found


# ----------------------------------------------------------------------------- the pages


#: What a reader opens first: the page of the kernel, and the public function's.
PAGES = {
    "matmul": ("matmul.kernel", "matmul.dense", 9),
    "attention": ("attention.kernel", "attention.api", 10),
    "RMSNorm": ("rows.kernel", "rows.rmsnorm", 5),
}


def files_to_read(page: str, wrapper: str) -> list[str]:
    """List the files of `kernels/` that the page of a kernel leads to, and the public wrapper.

    The page's imports within `kernels/` count, and what these import there. Of the wrapper its own
    file counts: its imports are about arguments, and not about the kernel.
    """
    prefix = "numba_tma.kernels."
    for module in (page, wrapper):
        if prefix + module not in modules():
            raise ValueError(f"{prefix}{module} is gone: PAGES names what a reader opens first")
    edges, seen, todo = graph(deep=True), {prefix + wrapper}, [prefix + page]
    while todo:
        module = todo.pop()
        if module in modules() and module not in seen:
            seen.add(module)
            todo += [m for m in edges[module] if m.startswith(prefix)]
    return sorted(module.removeprefix(prefix) for module in seen)


@dataclass(frozen=True)
class Kernel:
    """A function that a factory makes: what it captures, and its branches on that."""

    name: str
    captured: int
    outside: int
    branches: int


@cache
def kernels() -> list[Kernel]:
    """Return each function that is made in a function of `kernels/`: kernels, and what they call.

    Captured are its free variables, as Python counts them; from outside are these and the globals
    of its module. A compile-time branch is an ``if`` statement whose test names a free variable in
    upper case.
    """
    found = []
    for path in sorted((PACKAGE / "kernels").rglob("*.py")):
        codes = {
            (c.co_name, c.co_firstlineno): c
            for c in _inner(compile(path.read_text(), str(path), "exec"))
        }
        for node in ast.walk(tree(path)):
            first = min((d.lineno for d in getattr(node, "decorator_list", [])), default=0)
            key = getattr(node, "name", ""), first or getattr(node, "lineno", 0)
            if not isinstance(node, ast.FunctionDef) or not codes[key].co_freevars:
                continue
            free = set(codes[key].co_freevars)
            loads = {i.argval for i in dis.get_instructions(codes[key]) if "_GLOBAL" in i.opname}
            tests = [n.test for n in ast.walk(node) if isinstance(n, ast.If)]
            names = [{n.id for n in ast.walk(t) if isinstance(n, ast.Name)} for t in tests]
            branches = sum(any(n.isupper() for n in test & free) for test in names)
            name = f"{path.relative_to(PACKAGE / 'kernels')}:{node.name}"
            outside = free | loads - vars(builtins).keys()
            found.append(Kernel(name, len(free), len(outside), branches))
    return found


def _inner(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of every function in a module's."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _inner(constant)


# --------------------------------------------------------------------------- all measures


@cache
def definitions() -> list[ast.FunctionDef | ast.ClassDef]:
    """Return every function and class of the package."""
    return [
        node
        for path in modules().values()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    ]


def functions() -> Iterator[ast.FunctionDef]:
    """Yield every function of the package."""
    return (node for node in definitions() if isinstance(node, ast.FunctionDef))


def double_classes() -> list[str]:
    """Return the names that more than one class of the package has."""
    names = Counter(node.name for node in definitions() if isinstance(node, ast.ClassDef))
    return sorted(name for name, number in names.items() if number > 1)


def measures() -> list[Measure]:
    """Return every measure with its goal."""
    outside, double = compiler_imports(), double_classes()
    top, all_cycles = cycles(graph(deep=False)), cycles(graph(deep=True))
    anys = sum(
        a.annotation is not None and ast.unparse(a.annotation) == "Any"
        for f in functions()
        for a in f.args.args + f.args.kwonlyargs
    )
    starts = [f.name for f in functions() if f.name.startswith("_lower_start")]
    jitted = kernels()
    captures = max(jitted, key=lambda k: k.captured)
    outside_names = max(jitted, key=lambda k: k.outside)
    branches = max(jitted, key=lambda k: k.branches)
    found = [
        Measure("compiler imports outside of backends", len(outside), 0, "; ".join(outside[:4])),
        Measure("import cycles", len(top), 0, str(top or "")),
        Measure("import cycles, functions' imports too", len(all_cycles), 0, _short(all_cycles)),
        Measure("files in the package's root", len(list(PACKAGE.glob("*.py"))), 3),
        Measure("starts lowered by hand", len(starts), 0),
        Measure("parameters annotated Any", anys, 800),
        Measure("words in the README", len((ROOT / "README.md").read_text().split()), 900),
        Measure("class names that stand twice", len(double), 0, ", ".join(double)),
        Measure("free variables of a kernel", captures.captured, 25, captures.name),
        Measure("free variables and globals", outside_names.outside, 25, outside_names.name),
        Measure("compile-time branches of a kernel", branches.branches, 6, branches.name),
    ]
    for name, (page, wrapper, goal) in PAGES.items():
        files = files_to_read(page, wrapper)
        found.append(Measure(f"files to read for {name}", len(files), goal, ", ".join(files)))
    return found


def _short(groups: list[list[str]]) -> str:
    return "; ".join(f"{g[0]} and {len(g) - 1} more" for g in groups)


def largest(number: int = 8) -> list[tuple[int, str]]:
    """Return the longest files of the package."""
    lines = [(len(p.read_text().splitlines()), str(p)) for p in modules().values()]
    return sorted(lines, reverse=True)[:number]


def main() -> int:
    """Print every measure; return whether one is missed."""
    found = measures()
    for m in found:
        mark = "  " if m.is_met else "->"
        print(f"{mark} {m.name}: {m.value} ({m.goal}){'  ' + m.shown if m.shown else ''}")
    print("\nkernels, by what they capture:")
    for kernel in sorted(kernels(), key=lambda k: -k.captured)[:12]:
        print(
            f"   {kernel.name}: {kernel.captured} free, {kernel.outside} with globals, "
            f"{kernel.branches} branches"
        )
    print("\nlargest files:")
    for lines, name in largest():
        print(f"   {Path(name).relative_to(ROOT)}: {lines}")
    return int(not all(m.is_met for m in found))


if __name__ == "__main__":
    sys.exit(main())
