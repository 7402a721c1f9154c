"""Work that makes many objects and little garbage runs without collections: imports, compiles."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])

#: So many new objects are kept without a search for garbage, or as many as the last search left.
_FEW = 1_000_000

_new, _enough = 0, _FEW  # objects since the last search for garbage, and how many call for one


def without_collections(function: _F) -> _F:
    """Let `function` run without collections, and keep what it made for a later one."""

    @functools.wraps(function)
    def run(*args: object, **kws: object) -> object:
        if not gc.isenabled():
            return function(*args, **kws)
        gc.disable()
        try:
            return function(*args, **kws)
        finally:
            _keep_new_objects()
            gc.enable()

    return run  # type: ignore[return-value]


def _keep_new_objects() -> None:
    """Move new objects to the oldest generation, which is searched seldom.

    Else the next object would start a search of them all, and the survivors would be searched
    again for each older generation. So what was made here is counted, and searched here.
    """
    global _new, _enough
    if gc.get_freeze_count():
        return  # the user has frozen objects, which stay so
    _new += gc.get_count()[0]
    if _new < _enough:
        gc.freeze()
        gc.unfreeze()
    else:
        gc.collect()
        _new, _enough = 0, max(_FEW, len(gc.get_objects()))
