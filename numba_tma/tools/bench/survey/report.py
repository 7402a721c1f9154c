"""The distribution of a survey's ratios: numbers, tables, and a picture."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from numba_tma.tools.bench.figure import STYLE, label
from numba_tma.tools.bench.report import markers, with_section
from numba_tma.tools.bench.results import Results, Row

#: Bytes per second of the memory, and operations per second of the tensor cores with 16-bit types.
PEAKS = {"H200": (4.8e12, 989e12), "H100 80GB HBM3": (3.35e12, 989e12)}
LATENCY = 2e-6  #: seconds; what would take less at these rates is limited by neither
WORST = 10
PICTURES = Path("docs")

WIDTH, LEFT, RIGHT, TOP, STEP, HEIGHT = 860, 150, 620, 56, 92, 64  #: of the picture, in pixels
LOW, OCTAVES, BINS = 0.5, 3, 20  #: where the axis begins, its octaves, and the bins of each
TICKS = (0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0, 4.0)


# ------------------------------------------------------------------------------- statistics


def limit(
    gpu: str, dtype: str, nbytes: int, operations: int, seconds: float
) -> tuple[str | None, float | None]:
    """Return what limits a call that moves and does so much, and the share of that it reaches.

    It is "memory" or "arithmetic", whichever takes longer at the peak, or "latency" where that is
    below `LATENCY`; of a GPU that `PEAKS` lacks, nothing is known.
    """
    peak = next((rates for name, rates in PEAKS.items() if gpu.endswith(name)), None)
    if peak is None:
        return None, None
    memory, arithmetic = nbytes / peak[0], operations / (peak[1] * (1 + (dtype == "e4m3")))
    least = max(memory, arithmetic)
    name = "memory" if memory >= arithmetic else "arithmetic"
    return "latency" if least < LATENCY else name, round(least / seconds, 3)


def ratios(rows: Sequence[Row], family: str) -> list[float]:
    """Return a family's ratios, the smallest first."""
    return sorted(row["ratio"] for row in rows if row["family"] == family and "ratio" in row)


def families(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the distribution of each family: cases, errors, geometric mean, 5th percentile, worst.

    A case that failed is no part of the others. Of a family without ratios there are only counts.
    """
    found: dict[str, Any] = {}
    for family in dict.fromkeys(row["family"] for row in rows):
        of_it = ratios(rows, family)
        errors = sum(row["family"] == family and "error" in row for row in rows)
        found[family] = {"cases": len(of_it), "errors": errors}
        if of_it:
            found[family] |= {
                "geomean": round(float(np.exp(np.mean(np.log(of_it)))), 4),
                "p5": round(float(np.percentile(of_it, 5)), 4),
                "worst": round(of_it[0], 4),
            }
    return found


def text(results: Results) -> str:
    """Return a results file: JSON with a line for each row."""
    head = {name: value for name, value in results.items() if name not in ("families", "rows")}
    head["families"] = families(results["rows"])
    rows = ",\n".join(json.dumps(row) for row in results["rows"])
    return f'{json.dumps(head)[:-1]},\n"rows": [\n{rows}\n]}}\n'


# ----------------------------------------------------------------------------------- tables


def summary(results: Results) -> str:
    """Return the distribution of each family as a Markdown table."""
    lines = [
        "| family | cases | geometric mean | 5th percentile | worst | failed |",
        "|---|---|---|---|---|---|",
    ]
    for family, found in families(results["rows"]).items():
        numbers = (found.get(name) for name in ("geomean", "p5", "worst"))
        shown = " | ".join("" if number is None else f"{number:.3f}" for number in numbers)
        lines.append(f"| {family} | {found['cases']} | {shown} | {found['errors']} |")
    return "\n".join(lines)


def worst(results: Results) -> str:
    """Return the worst cases of each family, and those that failed, as a Markdown table."""
    lines = [
        "| case | ratio | us | best peer | limited by | of that |",
        "|---|---|---|---|---|---|",
    ]
    rows = results["rows"]
    for family in dict.fromkeys(row["family"] for row in rows):
        measured = [row for row in rows if row["family"] == family and "ratio" in row]
        for row in sorted(measured, key=lambda row: row["ratio"])[:WORST]:
            peer = min(row["peers"], key=row["peers"].get)
            reached = "" if row["reached"] is None else f"{row['reached']:.2f}"
            cells = f"{row['ratio']:.3f} | {row['numba_tma']:,g} | {peer} {row['peers'][peer]:,g}"
            lines.append(f"| {_name(row)} | {cells} | {row['limit'] or ''} | {reached} |")
    for row in rows:
        if "error" in row:
            lines.append(f"| {_name(row)} | failed: {row['error'].replace('|', '/')} ||||||")
    return "\n".join(lines)


def _name(row: Row) -> str:
    return f"{row['kernel']} {row['case']}"


def picture(gpu: str) -> Path:
    """Return where the picture of a GPU's survey is that pages show."""
    return PICTURES / f"survey_{tag(gpu)}.svg"


def section(results: Results, page: Path) -> str:
    """Return what a page shows of a survey."""
    shown = os.path.relpath(picture(results["gpu"]), page.parent)
    days = sorted({row["date"] for row in results["rows"]})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    torch = results["versions"].get("torch", "absent")
    return (
        f"![The ratios on an {results['gpu']}]({shown})\n\n"
        f"Measured on an {results['gpu']} on {when}, torch {torch}. A ratio is the best peer's "
        f"time over ours.\n\n{summary(results)}\n\n"
        f"The worst {WORST} of each family, and what failed:\n\n{worst(results)}"
    )


def write_section(page: Path, results: Results) -> None:
    """Replace what stands between the markers of a GPU.

    Raises
    ------
    SystemExit
        The page has no such markers.
    """
    whole, name = page.read_text(), f"survey {tag(results['gpu'])}"
    begin, end = markers(name)
    if begin not in whole:
        raise SystemExit(f"--page {page}: it has no lines {begin} and {end}; add them")
    page.write_text(with_section(whole, name, section(results, page)))


def tag(gpu: str) -> str:
    """Return the short name of a GPU: h200."""
    found = re.search(r"\b[A-Z]+\d+\b", gpu)
    return (found.group() if found else gpu.split()[-1]).lower()


# ---------------------------------------------------------------------------------- picture

def draw(results: Results) -> str:
    """Return the picture as SVG: for each family, how many cases have which ratio.

    The axis is logarithmic; what is off it stands at its end.

    Raises
    ------
    SystemExit
        No case has a ratio.
    """
    found = {name: of for name, of in families(results["rows"]).items() if of["cases"]}
    if not found:
        raise SystemExit("--plot: the results have no ratios")
    bottom = TOP + STEP * len(found)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 24}" '
        'font-family="sans-serif" font-size="13">',
        f"<style>{STYLE}</style>",
        f'<rect class="card" width="{WIDTH}" height="{bottom + 24}"/>',
        label(12, 22, f"{results['gpu']}: the best peer's time over ours, all cases drawn"),
    ]
    for i, (family, of) in enumerate(found.items()):
        base = TOP + STEP * i + HEIGHT
        lines += _bars(base, ratios(results["rows"], family))
        lines += [
            f'<line x1="{LEFT}" x2="{RIGHT}" y1="{base}" y2="{base}" stroke-opacity="0.4"/>',
            label(LEFT - 12, base - 8, family.replace("_", " "), "end"),
            label(RIGHT + 14, base - 40, f"{of['cases']} cases, mean {of['geomean']:.3f}"),
            label(RIGHT + 14, base - 22, f"5th percentile {of['p5']:.3f}"),
            label(RIGHT + 14, base - 4, f"worst {of['worst']:.3f}"),
        ]
    one = _x(1)
    lines.append(f'<line x1="{one}" x2="{one}" y1="{TOP - 10}" y2="{bottom - 16}"/>')
    lines += [label(round(_x(tick)), bottom + 2, f"{tick:g}", "middle") for tick in TICKS]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _bars(base: int, of_it: list[float]) -> list[str]:
    """Return a bar for each bin that has cases; 1 is a bin's edge."""
    edges = [LOW * 2 ** (i / BINS) for i in range(OCTAVES * BINS + 1)]
    places = np.searchsorted(edges[1:-1], of_it, "right")  # what is off the axis is in its last bin
    counts = np.bincount(places)
    lines = []
    for i, count in enumerate(map(int, counts)):
        if count:
            left, height = _x(edges[i]), max(2, round(HEIGHT * count / int(counts.max())))
            side = "won" if edges[i] >= 1 else "lost"
            lines.append(
                f'<rect class="{side}" x="{left}" y="{base - height}" '
                f'width="{round(_x(edges[i + 1]) - left - 1, 1)}" height="{height}">'
                f"<title>{count} from {edges[i]:.2f} to {edges[i + 1]:.2f}</title></rect>"
            )
    return lines


def _x(ratio: float) -> float:
    """Return where a ratio stands."""
    return round(LEFT + (RIGHT - LEFT) * math.log2(ratio / LOW) / OCTAVES, 1)
