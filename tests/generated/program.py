"""A generated program: the source of a kernel with holes, its launch, and its signature.

A hole is a named field of the kernel's text, such as the coordinates of a load. A valid program
fills every hole by its default; a mistake fills one of them otherwise.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from dataclasses import dataclass, field
from string import Template
from typing import Any

HEADER = """\
import numpy as np
from numba import cuda, types
import numba_tma as tma
from numba_tma import ptx
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

    def source(self, **replaced: str) -> str:
        """Return the whole source, with some holes filled otherwise."""
        unknown = replaced.keys() - {*self.holes, *STATEMENTS}
        assert not unknown, (self.family, unknown)
        filled = dict.fromkeys(STATEMENTS, "pass") | self.holes | replaced
        kernel = Template(self.kernel).substitute(filled)
        launch = "\n".join(f"    {line}" for line in self.launch.strip().splitlines())
        signature = f"def signature():\n    return {self.signature}\n"
        return f"{HEADER}\n{self.objects}\n\n{kernel}\n\ndef launch():\n{launch}\n\n{signature}"

    def has(self, *names: str) -> bool:
        """Return whether the kernel has these holes."""
        return all(f"${name}" in self.kernel for name in names)


@dataclass(frozen=True)
class Case:
    """A program, and what both halves have to say of it."""

    number: int
    program: Program
    mistake: str = ""  #: its name; "" in a valid program
    replaced: dict[str, str] = field(default_factory=dict)
    compiler: str = ""  #: words of the compiler's error; "" if it accepts the program
    simulator: str = ""  #: words of the simulator's error

    def __repr__(self) -> str:
        return f"{self.number}-{self.program.family}-{self.mistake or 'valid'}"

    @property
    def source(self) -> str:
        """The whole source."""
        return self.program.source(**self.replaced)

    def load(self) -> dict[str, Callable[[], Any]]:
        """Execute the source, whose lines an error can show, and return its names."""
        name = f"<generated {self!r}>"
        linecache.cache[name] = (len(self.source), None, self.source.splitlines(True), name)
        names: dict[str, Any] = {"__name__": "generated"}
        exec(compile(self.source, name, "exec"), names)
        return names
