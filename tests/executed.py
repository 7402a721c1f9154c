"""A pytest plugin that notes which answers of docs/guide/migration.md the tests of a run execute.

``python -m pytest -p tests.executed tests/sim/...`` writes the others to the file that the
environment names in `FILE`. A function or method is executed when it is called, and ``f(x=...)``
when it is called with an x; a field or property when it is read; a class when it is instantiated; a
constant when it is an argument of `Tile` or `shared_tile`.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable
from enum import EnumType
from pathlib import Path
from typing import Any

import numba_tma as tma
from tests import migration

FILE = "NUMBA_TMA_TESTS_NOT_EXECUTED"

#: The answers that have not been executed.
missing = set(migration.given())
#: Values that are answers, by their identity; fields and properties, by their class and name.
_constants: dict[int, str] = {}
_read: dict[type, dict[str, str]] = {}


def watched(function: Callable[..., Any], path: str) -> Callable[..., Any]:
    """Return the function, whose calls are noted from now on, with the parameters they give."""
    forms = {s: re.findall(r"(\w+)=", s) for s in missing if s.partition("(")[0] == path}
    signature = inspect.signature(function)

    @functools.wraps(function)
    def noted(*args: Any, **kwargs: Any) -> Any:
        if forms:
            given = signature.bind(*args, **kwargs).arguments
            for form in [form for form, names in forms.items() if given.keys() >= set(names)]:
                missing.discard(form)
                del forms[form]
        return function(*args, **kwargs)

    return noted


def watch(path: str) -> None:
    """Let an answer note that it is executed."""
    owner, name, found = migration.resolve(path)
    if isinstance(found, EnumType):
        _constants.update({id(member): path for member in found})
    elif inspect.isclass(found):
        found.__init__ = watched(found.__init__, path)  # type: ignore[misc]
    elif inspect.isroutine(found) and not isinstance(found, functools.cached_property):
        setattr(owner, name, watched(found, path))
    elif inspect.isclass(owner):
        _read.setdefault(owner, {})[name] = path
    else:
        _constants[id(found)] = path


def watch_reads(owner: type, paths: dict[str, str]) -> None:
    """Note the first read of each of some fields and properties of a class's objects."""
    read = owner.__getattribute__

    def noted(self: Any, asked: str) -> Any:
        if asked in paths:
            missing.discard(paths.pop(asked))
            if not paths:
                owner.__getattribute__ = read  # type: ignore[assignment,method-assign]
        return read(self, asked)

    owner.__getattribute__ = noted  # type: ignore[assignment,method-assign]


def noting_constants(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, which from now on notes the answers among its arguments."""

    @functools.wraps(function)
    def noted(*args: Any, **kwargs: Any) -> Any:
        missing.difference_update(_constants.get(id(a), "") for a in args)
        return function(*args, **kwargs)

    return noted


def pytest_configure() -> None:
    for path in sorted({span.partition("(")[0] for span in missing}):
        watch(path)
    for owner, paths in _read.items():
        watch_reads(owner, paths)
    tma.shared_tile = noting_constants(tma.shared_tile)
    tma.Tile.__init__ = noting_constants(tma.Tile.__init__)  # type: ignore[method-assign]


def pytest_sessionfinish() -> None:
    Path(os.environ[FILE]).write_text("\n".join(sorted(missing)))
