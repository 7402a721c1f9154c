"""A generated program: the source of a kernel with holes, its launch, and its signature.

A hole is a named field of the kernel's text, such as the coordinates of a load. A valid program
fills every hole by its default; a mistake fills one of them otherwise.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from string import Template
from typing import Any

HEADER = """\
import numpy as np
from numba import cuda, types
import numba_tma as tma
from numba_tma import ptx

TILE2 = tma.Tile((64, 64), 'f32')
OTHER = tma.Tile((3, 16), 'f32')
"""

#: Statements that a mistake may put in; nothing in a valid program.
STATEMENTS = ("start", "use", "elected")


@dataclass(frozen=True)
class Program:
    """A kernel's source with holes."""

    family: str
    objects: str  #: the globals of the kernel, as source
    kernel: str  #: with ``$name`` for each hole
    launch: str  #: the body of a function that launches the kernel and compares its results
    signature: str  #: of the kernel, as source
    holes: dict[str, str] = field(default_factory=dict)

    def source(self, objects: str = "", **replaced: str) -> str:
        """Return the whole source, with further globals, and some holes filled otherwise."""
        unknown = replaced.keys() - {*self.holes, *STATEMENTS}
        assert not unknown, (self.family, unknown)
        filled = dict.fromkeys(STATEMENTS, "pass") | self.holes | replaced
        kernel = Template(self.kernel).substitute(filled)
        launch = "\n".join(f"    {line}" for line in self.launch.strip().splitlines())
        signature = f"def signature():\n    return {self.signature}\n"
        names = f"{HEADER}\n{self.objects}\n{objects}"
        return f"{names}\n{kernel}\n\ndef launch():\n{launch}\n\n{signature}"

    def has(self, *names: str) -> bool:
        """Return whether the kernel has these holes."""
        return all(
            name in self.holes or name in STATEMENTS and f"${name}\n" in self.kernel
            for name in names
        )


@dataclass(frozen=True)
class Mistake:
    """One hole filled wrongly."""

    name: str
    hole: str
    text: str
    says: str  #: words of both errors; "" where Numba and Python have their own
    families: tuple[str, ...]
    refused_by: tuple[str, ...] = ("compiler", "simulator")
    objects: str = ""  #: further globals, as source
    reason: str = ""  #: why the other half cannot know

    def fits(self, program: Program) -> bool:
        """Return whether a program has the hole."""
        names = [n for n in program.holes if "{" + n + "}" in self.text]
        wants = [n for n in NAMES if "{" + n + "}" in self.text]
        known = not self.families or any(
            f"{program.family} ".startswith(f"{family} ") for family in self.families
        )
        if re.search(r"\by\b", self.text) and not re.search(r"\(.*\by\b.*\):", program.kernel):
            return False  # the kernel has no array of that name
        return known and program.has(self.hole) and set(wants) <= set(names)

    def replaced(self, program: Program) -> dict[str, str]:
        """Return how the hole is filled."""
        return {self.hole: self.text.format_map(program.holes)}


#: Holes whose default a mistake may name.
NAMES = ("map", "tile", "coords", "barrier", "first", "stop", "step")


@dataclass(frozen=True)
class Case:
    """A program, and what both halves have to say of it."""

    number: int
    program: Program
    mistake: Mistake | None = None  #: None in a valid program

    def __repr__(self) -> str:
        what = self.mistake.name if self.mistake else "valid"
        return f"{self.number}: {self.program.family}, {what}"

    @property
    def source(self) -> str:
        """The whole source."""
        if self.mistake is None:
            return self.program.source()
        return self.program.source(self.mistake.objects, **self.mistake.replaced(self.program))

    def verdict(self, half: str, error: str) -> str:
        """Return what is wrong with the verdict of "compiler" or "simulator"; "" if it is right."""
        expected = self.mistake is not None and half in self.mistake.refused_by
        if bool(error) != expected:
            return f"{self!r}: the {half} says: {error or 'nothing'}"
        if self.mistake and self.mistake.says not in error:
            return f"{self!r}: the {half} does not say {self.mistake.says!r}: {error}"
        return ""

    def load(self) -> dict[str, Callable[[], Any]]:
        """Execute the source, whose lines an error can show, and return its names."""
        name = f"<generated {self!r}>"
        linecache.cache[name] = (len(self.source), None, self.source.splitlines(True), name)
        names: dict[str, Any] = {"__name__": "generated"}
        exec(compile(self.source, name, "exec"), names)
        return names
