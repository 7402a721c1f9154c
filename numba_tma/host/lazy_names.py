"""Names of a package that are imported when they are first used; its stub is the list of them."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

_LINE = re.compile(r"^from (\S+) import (\w+) as \2$", re.MULTILINE)


def homes_of(file: str) -> dict[str, str]:
    """Return the module of each public name, which the stub beside a package's file lists."""
    with open(f"{file}i", encoding="utf-8") as stub:
        return {name: home for home, name in _LINE.findall(stub.read())}


def imported_from(
    package: dict[str, Any], homes: dict[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package whose globals are `package`."""

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        found = package[name] = getattr(importlib.import_module(homes[name]), name)
        return found

    return find, lambda: sorted(homes)
