"""Measured configurations (``tune=True``), in a file that outlives the process.

The file is ``matmul.json`` in the folder of caches (`host.cache_files`), an object with an entry
for each GPU, release of the library, and kind and size of matmul. Processes and users share it: an
entry is a configuration, whose values are checked, and no code. A writer locks the folder, reads
the file again, and replaces it as a whole. What cannot be kept is measured again by the next
process, and a RuntimeWarning names the reason.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from numba_tma._version import __version__
from numba_tma.host.annotations import StreamLike
from numba_tma.host.cache_files import locked, read, replace, usable_folder, warn_once
from numba_tma.kernels._host.launch import as_stream
from numba_tma.kernels.matmul.plan import CONFIG_CLASSES, AnyConfig

RUNS, REPEATS = 10, 3  # launches per timing; timings, of which the best counts
_CLASSES = {kind.__name__: kind for kind in CONFIG_CLASSES}
_MOST_BYTES = 64 << 20


def key_of(gpu: str, *described: object) -> str:
    """Return the name of an entry: GPU, release, and what is measured."""
    return ", ".join(map(str, (gpu, f"numba_tma {__version__}", *described)))


def known(key: str) -> AnyConfig | None:
    """Return the measured configuration; None without an entry, or for one that has other fields.

    The values are integers and words in their ranges, by the checks of the configuration's class.
    """
    if (path := _path()) is None:
        return None
    try:
        return _config(_read(path).get(key))
    except FileNotFoundError:
        return None
    except OSError as error:
        _warn(path, error)
        return None


def remember(key: str, config: AnyConfig) -> None:
    """Write the fastest configuration to the file, and keep the entries of other processes."""
    if (path := _path()) is None:
        return
    entry = {"class": type(config).__name__, **dataclasses.asdict(config)}
    try:
        with locked(path.parent):
            try:
                entries = _read(path)
            except FileNotFoundError:
                entries = {}
            text = json.dumps({**entries, key: entry}, indent=1, sort_keys=True)
            replace(path, text.encode(), _mode(path))
    except OSError as error:
        _warn(path, error)


def fastest(
    key: str, configs: Iterable[AnyConfig], seconds: Callable[[AnyConfig], float]
) -> AnyConfig:
    """Return the configuration with the fewest `seconds`, from the file if it has one of `configs`.

    A configuration that raises an error is skipped; if all do, the last error is raised.
    """
    configs = list(configs)
    found = known(key)
    if found is not None and found in configs:
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


def time_on_gpu(launches: Sequence[Callable[[], None]], stream: StreamLike) -> float:
    """Return the best time of repeated launches on the GPU, in seconds; it synchronises."""
    from numba import cuda

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


def _config(entry: object) -> AnyConfig | None:
    """Return the configuration of an entry, or None if the entry is not exactly one."""
    if not isinstance(entry, dict) or entry.get("class") not in _CLASSES:
        return None
    kind = _CLASSES[entry["class"]]
    fields = {name: value for name, value in entry.items() if name != "class"}
    named = {field.name for field in dataclasses.fields(kind)}
    if fields.keys() != named or any(type(value) not in (int, str) for value in fields.values()):
        return None
    try:
        return kind(**fields)
    except (TypeError, ValueError):  # out of range
        return None


def _path() -> Path | None:
    """Return the file, where a symbolic link leads."""
    folder = usable_folder()
    return None if folder is None else Path(os.path.realpath(folder / "matmul.json"))


def _read(path: Path) -> dict[str, Any]:
    """Return the entries; a file without JSON, or with another kind of it, has none."""
    text = read(path, _MOST_BYTES)
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return entries if isinstance(entries, dict) else {}


def _mode(path: Path) -> int:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        # The folder's, without x: users who share a folder share its file. The process's mask
        # cannot be read without a change of it that other threads would see.
        return stat.S_IMODE(path.parent.stat().st_mode) & 0o666


def _warn(path: Path, error: OSError) -> None:
    warn_once(
        f"the measurements of matmul(tune=True) are not kept in {path}: {error}. Each process "
        "measures anew"
    )
