"""The README's picture of a results file: five rows, each beside the fastest of its peers."""

from __future__ import annotations

import html
from collections.abc import Callable
from pathlib import Path

from numba_tma.tools.bench.results import RATES, Results, Row, dates

#: Kernel, case and title of the rows that are drawn; a loss is among them.
SHOWN = (
    ("attention", "bf16 causal 4 x 8192 x 16 x 128", "attention, causal, head dim 128"),
    ("attention backward", "bf16 causal 4 x 8192 x 16 x 128", "its gradients"),
    ("matmul", "bf16 8192 x 8192 x 8192", "matmul, 8192 x 8192 x 8192"),
    ("rmsnorm", "bf16 32768 x 4096", "RMSNorm, 32768 x 4096"),
    ("column_sum", "bf16 32768 x 8192", "sum of columns, 32768 x 8192"),
)
WIDTH, LEFT, RIGHT, TOP, STEP = 980, 230, 600, 58, 34  #: of the picture, in pixels
LARGEST = 1.2  #: the share that the axis ends with
#: Colours on a light page, and on a dark one.
STYLE = (
    "text{fill:#303030}line{stroke:#303030}.card{fill:white}.won{fill:#2a7f62}.lost{fill:#c0504d}"
    "@media(prefers-color-scheme:dark){text{fill:#d8d8d8}line{stroke:#d8d8d8}.card{fill:#15181c}"
    ".won{fill:#4fb58f}.lost{fill:#e07b77}}"
)


def shares(row: Row) -> tuple[float, str]:
    """Return our rate over that of the row's fastest peer, and the peer's name."""
    name, rate = max(row["peers"].items(), key=lambda peer: peer[1])
    return row["numba_tma"] / rate, name


def draw(results: Results) -> str:
    """Return the picture as SVG: a bar for each of `SHOWN`, as long as our share of the peer.

    A row that the results lack is left out.

    Raises
    ------
    SystemExit
        None of the rows has a rate and a peer.
    """
    measured = {(row["kernel"], row["case"]): row for row in results["rows"]}
    rows = [
        (title, measured[kernel, case])
        for kernel, case, title in SHOWN
        if (kernel, case) in measured and _is_rate(measured[kernel, case])
    ]
    if not rows:
        names = "; ".join(f"{kernel} {case}" for kernel, case, _ in SHOWN)
        raise SystemExit(f"--plot: the results have none of the rows that are drawn: {names}")
    bottom = TOP + STEP * len(rows)
    heading = f"{results['gpu']}, {dates(results)}, bf16: rate over that of the fastest peer"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 10}" '
        'font-family="sans-serif" font-size="13">',
        f"<style>{STYLE}</style>",
        f'<rect class="card" width="{WIDTH}" height="{bottom + 10}"/>',
        label(12, 22, heading),
    ]
    for i, (title, row) in enumerate(rows):
        lines += _bar(TOP + STEP * i, title, row)
    one = _x(1)
    lines += [
        f'<line x1="{one}" x2="{one}" y1="{TOP - 14}" y2="{bottom}"/>',
        label(one, TOP - 18, "1.00", "middle"),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def plot(results: Results, path: Path, draw: Callable[[Results], str] = draw) -> None:
    """Write the picture of a bench, or the one that `draw` returns.

    Raises
    ------
    SystemExit
        The path does not end in ``.svg``.
    """
    if path.suffix != ".svg":
        raise SystemExit(f"--plot {path}: the picture is SVG; give a path that ends in .svg")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(draw(results))


def _is_rate(row: Row) -> bool:
    return row["unit"] in RATES and bool(row["peers"])


def _bar(y: int, title: str, row: Row) -> list[str]:
    share, peer = shares(row)
    rate = f"{row['numba_tma']:,.0f} {row['unit']}, {share:.2f} of {peer}"
    side = "won" if share >= 1 else "lost"
    return [
        label(LEFT - 10, y + 15, title, "end"),
        f'<rect class="{side}" x="{LEFT}" y="{y}" width="{_x(share) - LEFT}" height="20"/>',
        label(RIGHT + 10, y + 15, rate),
    ]


def _x(share: float) -> int:
    """Return where a share stands; what is larger than `LARGEST` ends there."""
    return round(LEFT + (RIGHT - LEFT) * min(share, LARGEST) / LARGEST)


def label(x: float, y: float, words: str, anchor: str = "start") -> str:
    """Return words in a picture."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{html.escape(words)}</text>'
