"""Lines of kernels in messages: by file and number, in a notebook by their text."""

from __future__ import annotations

import functools
import linecache
from pathlib import Path


@functools.lru_cache(maxsize=1024)
def line_in_words(filename: str, line: int) -> str:
    """Return a line as its file and number; of a cell, whose file has no name, as its text."""
    path = Path(filename)
    if not path.parent.name.startswith("ipykernel_"):
        return f"{path.name}:{line}"
    return f"line {line} of a cell, `{linecache.getline(filename, line).strip()}`"
