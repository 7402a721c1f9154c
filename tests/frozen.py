"""How dataclasses of a part of the library are made: which change, and which equal others."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import fields
from typing import Any


def _dataclasses(room: str) -> Iterator[tuple[type, Any]]:
    """Yield the dataclasses of a folder of the library, and how each was made."""
    package = importlib.import_module(f"numba_tma.{room}")
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        for value in vars(importlib.import_module(info.name)).values():
            if isinstance(value, type) and value.__module__ == info.name:
                if made := vars(value).get("__dataclass_params__"):
                    yield value, made


def changing(room: str) -> set[str]:
    """Return the names of the dataclasses of a folder of the library that are not frozen."""
    return {one.__name__ for one, made in _dataclasses(room) if not made.frozen}


def by_identity(room: str) -> set[str]:
    """Return the names of the dataclasses of a folder whose objects equal themselves alone."""
    return {one.__name__ for one, made in _dataclasses(room) if not made.eq}


def computed(room: str) -> dict[str, set[str]]:
    """Return the fields that constructors do not take, by the dataclass of a folder."""
    found = {
        one.__name__: {each.name for each in fields(one) if not each.init}
        for one, _ in _dataclasses(room)
    }
    return {name: names for name, names in found.items() if names}
