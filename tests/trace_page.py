"""The pictures and the summaries in docs/guide/tracing.md, from the stored traces, by ``make goldens``.

The name of a trace stands above a block of text, in a comment; the block is its summary.
"""

from __future__ import annotations

import re
from pathlib import Path

import numba_tma as tma
from numba_tma.tools.pictures import picture

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "guide" / "tracing.md"
RESULTS = ROOT / "tests" / "benchmarks" / "results"
TRACES = ("matmul", "attention")
#: A picture in a page is a file of its own, which does not know the page's colours.
_STYLE = (
    "<style>svg{color:#222;background:#fff}"
    "@media(prefers-color-scheme:dark){svg{color:#ddd;background:#181818}}</style>"
)


def stored(name: str) -> tma.Trace:
    """Return a stored trace."""
    return tma.Trace.load(RESULTS / f"trace_{name}_h200.json")


def drawing(name: str) -> Path:
    """Return the file of a trace's picture."""
    return ROOT / "docs" / f"trace_{name}_h200.svg"


def drawn(name: str) -> str:
    """Return a trace's picture as a file."""
    svg = re.search(r"<svg.*</svg>", picture(stored(name)), re.DOTALL)
    assert svg is not None
    return re.sub(r"(<svg[^>]*>)", rf"\1{_STYLE}", svg[0], count=1) + "\n"


def fresh(page: str) -> str:
    """Return the page with the summaries of the stored traces."""
    for name in TRACES:
        block = rf"(<!-- {name} -->\n\n```text\n).*?(```)"
        page = re.sub(block, lambda m: f"{m[1]}{stored(name).summary()}\n{m[2]}", page, flags=re.S)
    return page


def write() -> bool:
    """Write the pictures and the page; return whether the page changed."""
    for name in TRACES:
        drawing(name).write_text(drawn(name))
    before = FILE.read_text()
    FILE.write_text(fresh(before))
    return FILE.read_text() != before
