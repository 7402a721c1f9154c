"""What the compiler, or the simulator, of this process says of a case."""

from __future__ import annotations

import re
import warnings

import numba_tma as tma
from tests.generated.program import Case


def compiled(case: Case, *, assembled: bool = False) -> str:
    """Compile a case; return the compiler's error, or ""."""
    assert case.source
    try:
        names = case.load()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ptx = tma.testing.compile_ptx(names["kernel"], names["signature"]())
        if assembled:
            tma.testing.ptxas(ptx)
        return ""
    except Exception as error:
        return re.sub(r"\x1b\[\d*m", "", f"{type(error).__name__}: {error}")


def simulated(case: Case) -> str:
    """Launch a case and compare its results; return the error, or ""."""
    assert case.source
    try:
        case.load()["launch"]()
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {error}"
