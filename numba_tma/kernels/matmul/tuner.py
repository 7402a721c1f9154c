"""Configurations of matmuls that were measured to be fastest, in a file that outlives the process.

The file is ``matmul.json`` in `cache_folder()`, an object with one entry for each GPU, release of
the library and kind and size of matmul. Processes may share it: it is read anew before it is
written, and replaced as a whole. What cannot be read or written counts as empty.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from numba import cuda

from numba_tma._version import __version__
from numba_tma.kernels._host.launching import as_stream
from numba_tma.kernels.matmul.plan import AnyConfig, Config, SwappedConfig

RUNS, REPEATS = 10, 3  # launches that are timed together; of which the best counts
_CLASSES: dict[str, type[AnyConfig]] = {c.__name__: c for c in (Config, SwappedConfig)}


def cache_folder() -> Path:
    """Return where measurements are kept.

    ``NUMBA_TMA_CACHE_DIR``, or ``numba_tma`` in what Numba or the system has for caches.
    """
    if own := os.environ.get("NUMBA_TMA_CACHE_DIR"):
        return Path(own)
    usual = {
        "win32": os.environ.get("LOCALAPPDATA", "~/AppData/Local"),
        "darwin": "~/Library/Caches",
    }.get(sys.platform, os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return Path(os.environ.get("NUMBA_CACHE_DIR") or usual, "numba_tma").expanduser()


def key_of(gpu: str, *described: object) -> str:
    """Return the name of an entry."""
    return ", ".join(map(str, (gpu, f"numba_tma {__version__}", *described)))


def known(key: str) -> AnyConfig | None:
    """Return what was measured to be fastest, if it was measured."""
    try:
        fields = dict(_read()[key])
        return _CLASSES[fields.pop("class")](**fields)
    except (KeyError, TypeError, ValueError):  # none, or that of another release
        return None


def remember(key: str, config: AnyConfig) -> None:
    """Write down what is fastest, beside all that other processes have found."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        entry = {"class": type(config).__name__, **dataclasses.asdict(config)}
        entries = {**_read(), key: entry}
        with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".tmp", delete=False) as file:
            json.dump(entries, file, indent=1, sort_keys=True)
        os.replace(file.name, folder / "matmul.json")
    except OSError:  # it is measured again next time
        pass


def _read() -> dict[str, Any]:
    try:
        entries = json.loads((cache_folder() / "matmul.json").read_text())
    except (OSError, ValueError):
        return {}
    return entries if isinstance(entries, dict) else {}


def fastest(
    key: str, configs: Iterable[AnyConfig], seconds: Callable[[AnyConfig], float]
) -> AnyConfig:
    """Return the configuration with the fewest `seconds`, from the file if it is there.

    One that raises an error is left out; the error is raised if all do.
    """
    found = known(key)
    if found is not None:
        return found
    times: dict[AnyConfig, float] = {}
    error: Exception | None = None
    for config in configs:
        try:
            times[config] = seconds(config)
        except Exception as raised:
            error = raised
    if not times:
        raise error or ValueError("fastest(): no configuration was given")
    best = min(times, key=lambda config: times[config])
    remember(key, best)
    return best


def time_on_gpu(launches: Sequence[Callable[[], None]], stream: Any) -> float:
    """Return the seconds that launches take on the GPU, again and again; it synchronises."""
    on, best = as_stream(stream), math.inf
    for _ in range(REPEATS):
        start, end = cuda.event(), cuda.event()
        start.record(on)
        for _ in range(RUNS):
            for launch in launches:
                launch()
        end.record(on)
        end.synchronize()
        best = min(best, start.elapsed_time(end))
    return best / RUNS / 1e3
