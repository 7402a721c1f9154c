"""What races mode and traces ask of the compiler: the line under compilation, events of a compile.

Nothing here changes a kernel outside of `watching`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from numba.cuda import lowering
from numba.cuda.core import ir as numba_ir

from numba_tma.backend.numba_cuda.body_lowering import LeanLower
from numba_tma.backend.numba_cuda.constants import LABELLED
from numba_tma.backend.numba_cuda.facts import COMPILING
from numba_tma.backend.numba_cuda.functions import CALLED, FUNCTIONS

_PACKAGE = Path(__file__).parents[2]
_KERNELS = _PACKAGE / "kernels"
#: The statements that are being lowered, the innermost last: file and line.
_PLACES: list[tuple[str, int]] = []


def current_line() -> tuple[str, int] | None:
    """Return the file and line of the statement under compilation; None inside the library."""
    if not _PLACES:
        return None
    path = Path(_PLACES[-1][0])
    inside = _PACKAGE in path.parents and _KERNELS not in path.parents
    return None if inside else _PLACES[-1]


def is_compiling(module: str) -> bool:
    """Return whether the innermost function under compilation is one of a module."""
    return bool(COMPILING) and COMPILING[-1].__module__ == module


@contextmanager
def watching(
    *,
    called: Callable[..., None] | None = None,
    labelled: Callable[..., None],
    synchronises: Callable[..., None],
) -> Iterator[None]:
    """Call the functions when a kernel is compiled meanwhile.

    `called` (context, builder, function) before a user's function calls a body of the library;
    `labelled` (context, builder, function, sig, args) where the simulator alone has a call;
    `synchronises` (context, builder, after) before and after a ``cuda.syncthreads``.
    """

    def before_body(context: object, builder: object, function: object) -> None:
        if called is not None and COMPILING and COMPILING[-1] not in FUNCTIONS:
            called(context, builder, function)

    CALLED.append(before_body)
    LABELLED.append(labelled)
    originals = [(cls, cls.lower_inst) for cls in (lowering.Lower, LeanLower)]
    for cls, original in originals:
        setattr(cls, "lower_inst", _watched(original, synchronises))  # noqa: B010
    try:
        yield
    finally:
        CALLED.remove(before_body)
        LABELLED.remove(labelled)
        for cls, original in originals:
            setattr(cls, "lower_inst", original)  # noqa: B010


def _watched(
    original: Callable[[lowering.Lower, object], None], synchronises: Callable[..., None]
) -> Callable[[lowering.Lower, object], None]:
    """Return the lowering of a statement, watched."""

    @functools.wraps(original)
    def lower_inst(self: lowering.Lower, inst: object) -> None:
        _PLACES.append((str(self.loc.filename), int(self.loc.line)))
        try:
            if not _is_meeting(self, inst):
                original(self, inst)
                return
            synchronises(self.context, self.builder, False)
            original(self, inst)
            synchronises(self.context, self.builder, True)
        finally:
            _PLACES.pop()

    return lower_inst


def _is_meeting(lower: lowering.Lower, inst: object) -> bool:
    """Whether a statement is a call of ``cuda.syncthreads``, or one of its kind."""
    value = getattr(inst, "value", None)
    if not isinstance(value, numba_ir.Expr) or value.op != "call":
        return False
    key = getattr(lower.typeof(value.func.name), "typing_key", None)
    return str(getattr(key, "__name__", key)).startswith("syncthreads")
