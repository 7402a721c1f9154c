"""The table of a results file, and the page that shows it."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from numba_tma.tools.bench import buffering
from numba_tma.tools.bench.matmul import LAYER_MATMUL
from numba_tma.tools.bench.results import RATES, Results, Row, full_rows


def markers(name: str) -> tuple[str, str]:
    """Return the lines of a page between which the table of this name stands."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


BEGIN, END = markers("results")


def table(results: Results, short: bool = False) -> str:
    """Return the results as a Markdown table.

    A short table has only the mean of the layers, and leaves out what has a table of its own.
    """
    lines = [
        f"Measured on an {results['gpu']} {_measured(results)}; median of alternating runs with a "
        "cold L2 cache, the worse of two. In brackets: numba_tma's rate over that one's. `launch` "
        "is the host's time for a launch of an empty kernel with these arguments, ours by "
        "`tma.launcher`; `call` is its time for a call of a kernel's function.",
        "",
        "| kernel | case | numba_tma | beside it | plain copy |",
        "|---|---|---|---|---|",
    ]
    for row in _with_mean(results["rows"], short):
        faster = row["unit"] in RATES
        peers = []
        for name, value in row["peers"].items():
            ratio = row["numba_tma"] / value if faster else value / row["numba_tma"]
            peers.append(f"{name} {value:,g} ({ratio:.2f} x)" if faster else f"{name} {value:,g}")
        copied = (
            ""
            if row["copy"] is None
            else f"{row['copy']:,g} ({row['numba_tma'] / row['copy']:.2f} x)"
        )
        lines.append(
            f"| {row['kernel']} | {row['case']} | {row['numba_tma']:,g} {row['unit']} | "
            f"{', '.join(peers)} | {copied} |"
        )
    return "\n".join(lines)


def write_table(page: Path, results: Results) -> None:
    """Replace the tables between the markers of a page."""
    text = page.read_text()
    tables: dict[str, Callable[[Results], str]] = {
        "results": partial(table, short=True),
        buffering.KERNEL: buffering.table,
    }
    for name, make in tables.items():
        if markers(name)[0] in text:
            text = with_section(text, name, make(results))
    page.write_text(text)


def with_section(text: str, name: str, section: str) -> str:
    """Return the text of a page with this section between the markers of a name."""
    begin, end = markers(name)
    head, rest = text.split(begin)
    _, tail = rest.split(end)
    return f"{head}{begin}\n{section}\n{end}{tail}"


def _with_mean(rows: list[Row], alone: bool) -> list[Row]:
    """Return the rows with the geometric mean of all layers after them, or instead of them.

    `alone` leaves out the layers, and the rows that `buffering.table` shows.
    """
    if alone:
        rows = [row for row in rows if row["kernel"] != buffering.KERNEL]
    layers = [row for row in rows if row["kernel"] == LAYER_MATMUL]
    if not layers:
        return rows
    peers = [name for name in layers[0]["peers"] if all(name in row["peers"] for row in layers)]
    mean = layers[-1] | {
        "case": f"geometric mean of {len(layers)}",
        "numba_tma": _geometric_mean([row["numba_tma"] for row in layers]),
        "peers": {name: _geometric_mean([row["peers"][name] for row in layers]) for name in peers},
    }
    last = rows.index(layers[-1]) + 1
    before = [row for row in rows[:last] if not alone or row not in layers]
    return [*before, mean, *rows[last:]]


def _geometric_mean(values: list[float]) -> float:
    return round(statistics.geometric_mean(values), 2)


def _measured(results: Results) -> str:
    """Return when and with what rows were measured: most, and by their names the others."""
    runs: dict[str, list[Row]] = {_when(results): []}
    for row in full_rows(results):
        runs.setdefault(_when(row), []).append(row)
    most, *others = runs
    return "; ".join([most, *(f"{_names(runs[when], results)} {when}" for when in others)])


def _when(measured: dict[str, Any]) -> str:
    versions = measured["versions"]
    torch = versions.get("torch", "absent")
    return f"on {measured['date']}, torch {torch}, numba-cuda {versions['numba-cuda']}"


def _names(rows: list[Row], results: Results) -> str:
    """Name rows by kernel and case, or all that there are of a kernel by that."""
    names = []
    for kernel in dict.fromkeys(row["kernel"] for row in rows):
        cases = [row["case"] for row in rows if row["kernel"] == kernel]
        whole = len(cases) == sum(row["kernel"] == kernel for row in results["rows"])
        names += [kernel] if whole else [f"{kernel} {case}" for case in cases]
    return ", ".join(names)
