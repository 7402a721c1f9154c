"""Errors of kernels: the library's sentence comes first, with the line of the kernel.

Numba lists all candidates around the error of a function, and repeats the error of a method, for
literal and for other arguments. numba-cuda adds the line of the kernel to its own errors alone, and
functions and methods raise Numba's. ``NUMBA_TMA_FULL_ERRORS=1`` leaves the texts of Numba.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import TracebackType

from numba.core import types
from numba.cuda.core.ir import Loc

from numba_tma.host.environment import full_errors

_PACKAGE = str(Path(__file__).parents[2])
#: Modules through which every error passes.
_PASSED = ("shortcuts.py", "kernels.py", "body_compiler.py", "refusals.py")
_SPECIFIC = re.compile(
    r"Rejected as the implementation raised a specific error:\n\s+\w+: (.*?)\n"
    r"\s+raised from (\S+):\d+",
    re.DOTALL,
)
_METHOD = re.compile(
    r"- Resolution failure for (?:non-)?literal arguments:\n(.*?)\n(?=- Resolution|\Z)", re.DOTALL
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_STEP = re.compile(r"\AFailed in \w+ mode pipeline \(step: .*?\)\n")
_PLACE = re.compile(r"\n\n(File .*?)(?=\n\n|\Z)", re.DOTALL)


def note_place(error: Exception, called: object, loc: Loc) -> None:
    """Keep with an error of Numba where it was raised, in the kernel rather than in the library."""
    own = isinstance(called, types.BoundFunction) and _is_ours(called.template)
    known = getattr(error, "numba_tma_place", None)
    if known is None or known.filename.startswith(_PACKAGE):
        error.numba_tma_place = loc  # type: ignore[attr-defined]
    error.numba_tma_method = own or getattr(error, "numba_tma_method", False)  # type: ignore[attr-defined]


def _is_ours(template: type) -> bool:
    """Return whether the library types the calls of a method."""
    return any(cls.__module__.startswith("numba_tma.") for cls in template.__mro__)


def shorten(error: Exception) -> None:
    """Leave of the text of the library's error its sentence and the line of the kernel."""
    text = _COLOUR.sub("", str(error))
    if full_errors() or not error.args or (reason := _reason(error, text)) is None:
        return
    place = getattr(error, "numba_tma_place", None)
    if place is not None:
        reason = f"{reason}\n{place.strformat()}"
    elif found := _PLACE.search(text):
        reason = f"{reason}\n\n{found[1]}"
    error.args = (reason, *error.args[1:])


def _reason(error: Exception, text: str) -> str | None:
    """Return what the library says; None if the error is not its own."""
    for said, file in _SPECIFIC.findall(text):
        if file.startswith(_PACKAGE):
            return " ".join(map(str.strip, said.splitlines()))
    if getattr(error, "numba_tma_method", False):
        return next((said for said in _METHOD.findall(text) if said != "None"), None)
    if _is_own(error):
        return re.split(r"\n\n(?:File|During)|\nDuring", _STEP.sub("", text), maxsplit=1)[0]
    return None


def _is_own(error: BaseException | None) -> bool:
    """Return whether the library has raised an error, or the one that it follows."""
    while error is not None:
        if _raised_in(error.__traceback__):
            return True
        error = error.__cause__ or error.__context__
    return False


def _raised_in(trace: TracebackType | None) -> bool:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    file = trace.tb_frame.f_code.co_filename if trace else ""
    return file.startswith(_PACKAGE) and not file.endswith(_PASSED)
