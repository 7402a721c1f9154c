"""What docs/guide/tracing.md has of results: pictures, summaries and tables, by ``make goldens``.

A comment in the page names what stands below it: a trace's summary in a block of text, or a table.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

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


def cost() -> str:
    """Return the table of what a trace costs."""
    lines = ["| call | without a trace | one block traced | four blocks |", "|---|--:|--:|--:|"]
    for row in measured()["rows"]:
        plain = row["plain_us"]
        shares = (f"{row[f'traced_{n}_us'] / plain - 1:+.1%}" for n in (1, 4))
        lines.append(f"| {row['case']} | {plain:.1f} us | {' | '.join(shares)} |")
    return "\n".join(lines)


def counters() -> str:
    """Return the table of what a trace and ncu's counters say of the same kernels."""
    lines = [
        "| call | bytes that loads bring: trace | ncu | time: trace | ncu |",
        "|---|--:|--:|--:|--:|",
    ]
    for row in measured()["rows"]:
        told = f"{row['trace_bytes']:,} | {row['ncu_bytes']:,} | "
        lines.append(
            f"| {row['case']} | {told}{row['trace_us']:.1f} us | {row['ncu_us']:.1f} us |"
        )
    return "\n".join(lines)


def measured() -> dict[str, Any]:
    """Return the measurements of traces."""
    found: dict[str, Any] = json.loads((RESULTS / "trace_h200.json").read_text())
    return found


def fresh(page: str) -> str:
    """Return the page with what the results say now."""
    for name in TRACES:
        page = _replaced(page, name, r"```text\n(?s:.*?)```\n", f"```text\n{summary(name)}\n```\n")
    for name, table in (("cost", cost()), ("counters", counters())):
        page = _replaced(page, name, r"(?:\|.*\n)*", f"{table}\n")
    return page


def summary(name: str) -> str:
    """Return the summary of a stored trace."""
    return str(stored(name).summary())


def _replaced(page: str, name: str, old: str, new: str) -> str:
    """Return a page with what stands below a comment replaced."""
    found = re.search(rf"<!-- {name} -->\n\n({old})", page)
    assert found is not None, f"{FILE.name} has no place for {name}"
    return page[: found.start(1)] + new + page[found.end(1) :]


def write() -> bool:
    """Write the pictures and the page; return whether the page changed."""
    for name in TRACES:
        drawing(name).write_text(drawn(name))
    before = FILE.read_text()
    FILE.write_text(fresh(before))
    return FILE.read_text() != before
