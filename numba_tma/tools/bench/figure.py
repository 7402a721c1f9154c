"""The picture of a results file: ours and peers against a plain copy, cuBLAS or cuDNN."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from numba_tma.tools.bench.results import Row, dates

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TEXT = "#303030"
OURS = {"marker": "D", "color": "#d62728", "s": 42, "zorder": 3}
MARKERS = "osv^P*Xdh<>"
COLOURS = ("#1f77b4", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#17becf", "#7f7f7f")

VENDORS = ("cuBLAS", "cuBLASLt", "cuBLASLt block-scaled", "cuDNN")
#: By the unit of rows: what their line at 1 is, and what the axis says.
PANELS = {
    "GB/s": ("plain copy", "bytes per second, as a share of a plain copy's"),
    "TFLOP/s": ("cuBLAS, cuDNN", "operations per second, as a share of cuBLAS's or cuDNN's"),
}
WIDE = 2  #: shares from which on an axis is logarithmic, so that the others stay apart


def base(row: Row) -> float | None:
    """Return the rate that others of the row are shares of, if there is one."""
    found = (row["peers"][name] for name in VENDORS if name in row["peers"])
    rate: float | None = {"GB/s": row["copy"], "TFLOP/s": next(found, None)}.get(row["unit"])
    return rate


def draw(results: dict[str, Any]) -> Figure:
    """Draw a line for each row, and a panel for each unit: rates of all, as shares."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SystemExit(f"--plot needs matplotlib ({error}): pip install matplotlib") from None
    rows = [row for row in results["rows"] if base(row)]
    panels = {unit: [row for row in rows if row["unit"] == unit] for unit in PANELS}
    panels = {unit: rows for unit, rows in panels.items() if rows}
    if not panels:
        raise SystemExit(
            "--plot: no row of the results has a plain copy, cuBLAS or cuDNN beside it"
        )
    heights = [1.4 + 0.27 * len(rows) for rows in panels.values()]
    figure = Figure(figsize=(9, sum(heights)), layout="constrained")
    every = figure.subplots(len(panels), squeeze=False, height_ratios=heights)
    for axes, (unit, rows) in zip(every.flat, panels.items()):
        _draw(axes, unit, rows)
    title = f"{results['gpu']}, {dates(results)}"
    figure.suptitle(title, fontsize=9, color=TEXT, x=0.01, horizontalalignment="left")
    return figure


def _draw(axes: Axes, unit: str, rows: list[Row]) -> None:
    """Draw rows of one unit, of all of which `base` is known."""
    line, label = PANELS[unit]
    bases = [base(row) or 1.0 for row in rows]
    peers = dict.fromkeys(name for row in rows for name in row["peers"] if name not in VENDORS)
    axes.axvline(1, color="#909090", linewidth=1.2, label=line, zorder=1)
    for i, name in enumerate(peers):
        points = [
            (row["peers"][name] / bases[y], y) for y, row in enumerate(rows) if name in row["peers"]
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
    shares = [row["numba_tma"] / bases[y] for y, row in enumerate(rows)]
    axes.scatter(shares, range(len(rows)), label="numba_tma", **OURS)
    if max(shares) > WIDE:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
    axes.set_yticks(range(len(rows)), [f"{row['kernel']}, {row['case']}" for row in rows])
    axes.invert_yaxis()
    axes.grid(axis="y", color="#e8e8e8", zorder=0)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=8, labelcolor=TEXT)
    axes.set_xlabel(label, fontsize=9, color=TEXT)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=4, frameon=False, fontsize=8)


def plot(results: dict[str, Any], path: Path) -> None:
    """Write the picture, of the kind that the file's name ends with (svg, png, pdf)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draw(results).savefig(path, dpi=160)
