"""Which dataclasses of a part of the library can be changed after their construction."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import fields


def changing(room: str) -> set[str]:
    """Return the names of the dataclasses of a folder of the library that are not frozen."""
    package = importlib.import_module(f"numba_tma.{room}")
    found = set()
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        for value in vars(importlib.import_module(info.name)).values():
            if isinstance(value, type) and value.__module__ == info.name:
                own = vars(value).get("__dataclass_params__")
                if own is not None and not own.frozen:
                    found.add(value.__name__)
    return found


def computed(room: str) -> dict[str, set[str]]:
    """Return the fields that constructors do not take, by the dataclass of a folder."""
    package = importlib.import_module(f"numba_tma.{room}")
    found = {}
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        for value in vars(importlib.import_module(info.name)).values():
            if isinstance(value, type) and value.__module__ == info.name:
                if "__dataclass_params__" in vars(value):
                    names = {each.name for each in fields(value) if not each.init}
                    found |= {value.__name__: names} if names else {}
    return found
