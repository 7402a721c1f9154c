"""What belongs to one process: objects that hold addresses, and locks, which a fork would copy."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

LockType = TypeVar("LockType")


class ProcessBound:
    """An immutable object that holds addresses: a copy of it is itself."""

    __slots__ = ()
    #: What to do in another process, or with a deep copy of the arrays.
    _REPAIR = ""

    def __copy__(self) -> ProcessBound:
        return self

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise TypeError(
            f"{self!r} holds addresses, and a deep copy would point to the same memory as before: "
            f"{self._REPAIR} the copies of the arrays, or copy.copy it"
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} holds addresses of this process's memory, and cannot be pickled: pickle "
            f"the arrays, and {self._REPAIR} them in the other process"
        )


def new_in_children(make: Callable[[], LockType]) -> LockType:
    """Return a lock that is free in a forked child, though a thread may hold it at the fork."""
    lock: Any = make()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lock._at_fork_reinit)
    found: LockType = lock
    return found
