"""A mutant: a correct program, edits that break it, and the checks that must catch it.

A program is a function that returns a kernel and its launch. The edits change its source text, so
docs/guide/gallery.md shows the code that was run. If a pipeline's user cannot make a mistake, a
function of the library is replaced instead; only the simulator runs such a mutant.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import sys
import textwrap
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np

import numba_tma as tma

ROWS, COLUMNS, TILES = 4, 32, 6
TILE = tma.Tile((ROWS, COLUMNS), "u32")
SIZE, NBYTES = TILE.size, TILE.nbytes
POISON = 0xABABABAB

#: The mutations. The table has a cell for each mutation of each pipeline.
MUTATIONS = (
    "dropped wait",
    "dropped arrival",
    "dropped fence",
    "wrong parity",
    "wrong bytes",
    "early release",
    "missing sync after init",
    "exit with something outstanding",
    "setmaxnreg over budget",
)

#: Before a new line: its indentation is one level less than that of the line it replaces.
DEDENT = "<<"

#: The catchers, and their names on the page.
CATCHERS = {
    "host": "when its objects are made",
    "compile": "when it is compiled",
    "launch": "when it is launched",
    "simulator": "in the simulator",
    "debug": "on a GPU, in debug mode",
}


@dataclass(frozen=True)
class Program:
    """A correct kernel over `TILES` tiles: the left half of each row of x plus the right half.

    The kernel takes x once for each of `inputs`, as a map of that tile or (None) as the array, then
    y likewise, then the number of tiles.
    """

    pipeline: str
    build: Callable[[], tuple[Any, Any, Any]]  #: kernel, grid, block
    inputs: tuple[tma.Tile | None, ...] = (TILE,)
    output: tma.Tile | None = None
    reference: Callable[[Any], Any] = lambda x: x[:, :COLUMNS] + x[:, COLUMNS:]
    blocks: int = 1
    shapes: tuple[tuple[int, str], tuple[int, str]] = ((2 * COLUMNS, "u4"), (COLUMNS, "u4"))
    rows: int = ROWS  #: of a tile
    on_hopper: bool = True

    @property
    def source(self) -> str:
        """The text of its function, from the first line of its body."""
        lines = inspect.getsource(self.build).splitlines()
        start = next(i for i, line in enumerate(lines) if line.startswith("def ")) + 1
        return textwrap.dedent("\n".join(lines[start:])) + "\n"

    def arrays(self) -> tuple[Any, Any]:
        """Return an input and a poisoned output."""
        rows = self.blocks * TILES * self.rows
        (columns, kind), (out_columns, out_kind) = self.shapes
        x = np.random.default_rng(7).integers(0, 1000, (rows, columns), np.uint32).astype(kind)
        y = np.full((rows, out_columns), POISON, np.uint32).astype(out_kind)
        return x, y


def run(program: Program, built: Any, to_device: Any = lambda a: a, to_host: Any = lambda a: a):
    """Launch a kernel of `program`; return its output and the expected output."""
    kernel, grid, block = built
    x, y = program.arrays()
    given, out = to_device(x), to_device(y)
    inputs = [tma.tensor_map(given, tile) if tile else given for tile in program.inputs]
    result = tma.tensor_map(out, program.output) if program.output else out
    kernel[grid, block](*inputs, result, TILES)
    return to_host(out), program.reference(x)


@dataclass(frozen=True)
class Mistake:
    """A mistake that any pipeline may have: an entry of the gallery."""

    title: str
    symptom: str  #: a heading of the gallery
    sees: str
    cause: str
    repair: str


@dataclass(frozen=True)
class Mutant:
    """A broken kernel of a pipeline, and the errors that catch it.

    `edits` are lines of the program and their replacements. `caught` has, by catcher, the names of
    the errors, of which one is raised, and a part of the first error's message.
    """

    program: Program
    mutation: str
    mistake: Mistake
    edits: tuple[tuple[str, str], ...] = ()
    caught: dict[str, tuple[str, str]] = field(default_factory=dict)
    patched: tuple[tuple[Any, str, Any], ...] = ()  #: object, attribute, replacement
    some_orders: bool = False  #: the simulator reports it in some orders of the threads only
    note: str = ""

    def __repr__(self) -> str:
        return f"{self.program.pipeline}: {self.mistake.title}"

    @property
    def pipeline(self) -> str:
        """The pipeline that is broken."""
        return self.program.pipeline

    @property
    def source(self) -> str:
        """The text of the broken program."""
        return broken(self.program.source, self.edits)

    def build(self) -> Any:
        """Return the broken kernel, with its grid and block."""
        return built(self.program, self.source)

    def patches(self) -> ExitStack:
        """Return the context in which the mutant's patches replace functions of the library."""
        stack = ExitStack()
        for owner, name, value in self.patched:
            stack.enter_context(mock.patch.object(owner, name, value))
        return stack


@dataclass(frozen=True)
class Impossible:
    """A cell of the table without a mutant, and the reason."""

    pipeline: str
    mutation: str
    reason: str


def broken(source: str, edits: tuple[tuple[str, str], ...]) -> str:
    """Return the source with each line of `edits`, which occurs once, replaced."""
    lines = source.splitlines()
    replaced = {}
    for old, new in edits:
        found = [i for i, line in enumerate(lines) if line.strip() == old]
        if len(found) != 1:
            raise ValueError(f"{old!r} stands {len(found)} times in\n{source}")
        indent = lines[found[0]][: -len(old)]
        if new.startswith(DEDENT):
            indent, new = indent[4:], new.removeprefix(DEDENT)
        replaced[found[0]] = [f"{indent}{line}" for line in new.splitlines()]
    text = [part for i, line in enumerate(lines) for part in replaced.get(i, [line])]
    return "\n".join(text) + "\n"


def built(program: Program, source: str) -> Any:
    """Return the kernel and launch of a source text; tracebacks and `tma.scopes` find its lines."""
    text = f"def {program.build.__name__}():\n{textwrap.indent(source, '    ')}"
    name = f"mutant-{_number(text)}.py"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    namespace = dict(vars(sys.modules[program.build.__module__]))
    exec(compile(text, name, "exec"), namespace)
    return namespace[program.build.__name__]()


@functools.cache
def _number(text: str) -> int:
    return _number.cache_info().currsize


#: 3 warpgroups have 168 registers a thread at launch, and 2 x 240 + 40 are more.
OVER_BUDGET = "= 66,560 registers, but a launch of 384 threads has 168 x 384 = 64,512"


def over_budget(roles: str, *names: str) -> tuple[tuple[str, str], ...]:
    """Return the edit by which all roles but the last request more than the last one releases."""
    *asking, giving = names
    groups = 2 if len(asking) == 1 else 1
    terms = [f"{name}=tma.Warpgroups({groups}, registers=240)" for name in asking]
    terms.append(f"{giving}=tma.Warpgroups(1, registers=40)")
    return ((roles, f"ROLES = tma.Roles({', '.join(terms)})"),)
