"""The picture of a results file: ours and peers against the plain copy of the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from numba_tma.bench.results import dates

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEXT = "#303030"
OURS = {"marker": "D", "color": "#d62728", "s": 42, "zorder": 3}
MARKERS = "osv^P*Xdh<>"
COLOURS = ("#1f77b4", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#17becf", "#7f7f7f")


def compared(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows that are rates, beside a copy."""
    return [row for row in results["rows"] if row["unit"] == "GB/s" and row["copy"]]


def draw(results: dict[str, Any]) -> Figure:
    """Draw a line for each row: rates of all, as a share of the plain copy's."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SystemExit(f"--plot needs matplotlib ({error}): pip install matplotlib") from None
    rows = compared(results)
    if not rows:
        raise SystemExit("--plot: no row of the results has a plain copy beside it")
    peers = list(dict.fromkeys(name for row in rows for name in row["peers"]))
    figure = Figure(figsize=(9, 1.4 + 0.27 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(1, color="#909090", linewidth=1.2, label="plain copy", zorder=1)
    for i, name in enumerate(peers):
        points = [
            (row["peers"][name] / row["copy"], y)
            for y, row in enumerate(rows)
            if name in row["peers"]
        ]
        axes.scatter(
            *zip(*points),
            marker=MARKERS[i % len(MARKERS)],
            s=26,
            alpha=0.8,
            label=name,
            color=COLOURS[i % len(COLOURS)],
            zorder=2,
        )
    shares = [row["numba_tma"] / row["copy"] for row in rows]
    axes.scatter(shares, range(len(rows)), label="numba_tma", **OURS)
    axes.set_yticks(range(len(rows)), [f"{row['kernel']}, {row['case']}" for row in rows])
    axes.invert_yaxis()
    axes.grid(axis="y", color="#e8e8e8", zorder=0)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=8, labelcolor=TEXT)
    axes.set_xlabel("bytes per second, as a share of a plain copy's", fontsize=9, color=TEXT)
    axes.set_title(f"{results['gpu']}, {dates(results)}", fontsize=9, color=TEXT, loc="left")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=4, frameon=False, fontsize=8)
    return figure


def plot(results: dict[str, Any], path: Path) -> None:
    """Write the picture, of the kind that the file's name ends with (svg, png, pdf)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draw(results).savefig(path, dpi=160)
