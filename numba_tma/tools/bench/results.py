"""The results: rows, and the file that runs add them to."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba_tma._version import __version__

RESULTS = Path("tests/benchmarks/results")
PACKAGES = (
    "numba-cuda",
    "numba",
    "numpy",
    "cuda-core",
    "cuda-bindings",
    "torch",
    "triton",
    "nvidia-cublas",
    "nvidia-cudnn-cu13",
    "quack-kernels",
    "flash-attn-4",
    "cupy-cuda13x",
)

Measured = dict[str, Any]  #: what a row has beside its names
Row = dict[str, Any]
Results = dict[str, Any]
#: By kernel and case: what measures it, given torch.
Cases = dict[tuple[str, str], Callable[[Any], Measured]]

RATES = ("GB/s", "TFLOP/s")  #: Units of which more is better.

# Of each row, and in the file once for the rows that have what most have.
SHARED = ("date", "versions")


class LeftOut(Exception):
    """Says why a case cannot be measured here; the others are."""


def first_line(error: Exception) -> str:
    """Return the beginning of an error, for a line of the report."""
    return next(iter(str(error).splitlines()), type(error).__name__)[:200]


def rate(nbytes: int, times: dict[str, float]) -> Measured:
    """Return what moves `nbytes` in these times, in seconds, of which one may be "copy"'s."""
    return _measured("GB/s", {name: round(nbytes / s / 1e9, 1) for name, s in times.items()})


def operations(count: int, times: dict[str, float]) -> Measured:
    """Return what does `count` additions and multiplications in these times, in seconds."""
    return _measured("TFLOP/s", {name: round(count / s / 1e12, 2) for name, s in times.items()})


def host_time(microseconds: float, peers: dict[str, float]) -> Measured:
    """Return what costs the host `microseconds`."""
    return _measured("us on the host", {"numba_tma": round(microseconds, 2), **peers})


def host_seconds(times: dict[str, float]) -> Measured:
    """Return what keeps the host waiting for so many seconds."""
    return _measured("s on the host", {name: round(s, 3) for name, s in times.items()})


def _measured(unit: str, values: dict[str, float]) -> Measured:
    ours, copy = values.pop("numba_tma"), values.pop("copy", None)
    return {"unit": unit, "numba_tma": ours, "copy": copy, "peers": values}


def read(path: Path, gpu: str) -> Results:
    """Return the results of a file, or none where there is no file."""
    if not path.exists():
        return {"gpu": gpu, "rows": []}
    results: Results = json.loads(path.read_text())
    if results["gpu"] != gpu:
        raise SystemExit(
            f"--output {path}: it has the results of an {results['gpu']}, and this is an {gpu}; "
            "name another file"
        )
    return results


def write(path: Path, results: Results) -> None:
    """Replace a file of results."""
    replace(path, json.dumps(results, indent=2) + "\n")


def replace(path: Path, text: str) -> None:
    """Replace a file, at once: who is stopped meanwhile keeps the one that was there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.replace(path)


def versions() -> dict[str, str]:
    """Return what of `PACKAGES` is installed, and of which version."""
    found = {"numba-tma": __version__}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def full_rows(results: Results) -> list[Row]:
    """Return the rows, each with when and with what it was measured."""
    return [
        row | {name: row.get(name, results[name]) for name in SHARED} for row in results["rows"]
    ]


def with_row(results: Results, row: Row) -> Results:
    """Return the results with a full row, in the place of the one of that kernel and case.

    What was measured before keeps its own date and versions.
    """
    rows = {(r["kernel"], r["case"]): r for r in (*full_rows(results), row)}
    kernels = list(dict.fromkeys(kernel for kernel, _ in rows))
    together = sorted(rows.values(), key=lambda r: kernels.index(r["kernel"]))
    runs = [{name: r[name] for name in SHARED} for r in together]
    most = max(runs, key=runs.count)
    own = [{n: v for n, v in r.items() if n not in SHARED or v != most[n]} for r in together]
    return {"gpu": results["gpu"], **most, "rows": own}


def dates(results: Results) -> str:
    """Return when the results were measured: a day, or the first and the last."""
    days = sorted({row["date"] for row in full_rows(results)})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
