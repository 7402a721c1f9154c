"""The results: their rows, the file they are written to, and the table that is made of it."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

RESULTS = Path("tests/benchmarks/results")
PACKAGES = (
    "numba-cuda",
    "numba",
    "numpy",
    "cuda-core",
    "cuda-bindings",
    "torch",
    "triton",
    "quack-kernels",
    "cupy-cuda13x",
)
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"


def rate_row(kernel: str, case: str, nbytes: int, times: dict[str, float]) -> dict[str, Any]:
    """Return the row of a kernel that moves `nbytes`; `times` are in seconds, one is "copy"'s."""
    rates = {name: round(nbytes / seconds / 1e9, 1) for name, seconds in times.items()}
    return {
        "kernel": kernel,
        "case": case,
        "unit": "GB/s",
        "numba_tma": rates.pop("numba_tma"),
        "copy": rates.pop("copy", None),
        "peers": rates,
    }


def host_row(kernel: str, case: str, microseconds: float, peers: dict[str, float]) -> Any:
    """Return the row of what costs the host `microseconds`."""
    return {
        "kernel": kernel,
        "case": case,
        "unit": "us on the host",
        "numba_tma": round(microseconds, 2),
        "copy": None,
        "peers": peers,
    }


def table(results: dict[str, Any]) -> str:
    """Return the results as a Markdown table."""
    lines = [
        f"Measured on an {results['gpu']} on {results['date']}, torch "
        f"{results['versions'].get('torch', 'absent')}, numba-cuda "
        f"{results['versions']['numba-cuda']}; median of alternating runs with a cold L2 cache, "
        "the worse of two. In brackets: numba_tma's rate over that one's. `launch` is the host's "
        "time for a launch of an empty kernel with these arguments, ours by `tma.launcher`; `call` "
        "is its time for a call of a kernel's function.",
        "",
        "| kernel | case | numba_tma | beside it | plain copy |",
        "|---|---|---|---|---|",
    ]
    for row in results["rows"]:
        faster = row["unit"] == "GB/s"
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


def write_readme_table(readme: Path, results: dict[str, Any]) -> None:
    """Replace the table between the markers of the README."""
    text = readme.read_text()
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    readme.write_text(f"{head}{BEGIN}\n{table(results)}\n{END}{tail}")


def version(package: str) -> str | None:
    """Return a package's version, or None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
