"""Compiled kernels on disk: a file a kernel, in ``kernels`` of the folder of caches.

A file's name is its key (`kernel_key`). Its time of modification is that of its last use: when the
files exceed `cache_limit`, those that were used longest ago are removed. A file that cannot be read
as the key's kernel is removed, and the kernel is compiled again. Whatever the disk refuses is
warned of once.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import NamedTuple

from numba_tma.host.cache_files import private_folder, read, replace, warn_once
from numba_tma.host.environment import cache_limit
from numba_tma.host.kernel_image import KernelImage

_FOLDER, _SUFFIX = "kernels", ".kernel"
_MOST_BYTES = 256 << 20  # of a file
_ABANDONED = 3600.0  # seconds after which a temporary file's writer is dead
_KEPT = 0.9  # of the limit is left by an eviction, so that the next write does not cause another


class Entry(NamedTuple):
    """A file of the cache."""

    path: Path
    nbytes: int
    used: float  #: when it was last used, in seconds as `time.time`


def find(key: str) -> KernelImage | None:
    """Return the kernel that is kept under a key; None if there is none that can be read."""
    if (folder := private_folder(_FOLDER)) is None:
        return None
    path = folder / f"{key}{_SUFFIX}"
    try:
        image = KernelImage.from_bytes(read(path, _MOST_BYTES, private=True), key)
        with contextlib.suppress(OSError):
            os.utime(path)
        return image
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        forget(key)
        return None


def keep(key: str, image: KernelImage) -> None:
    """Keep a kernel under a key, and evict others if they take too much room."""
    if (folder := private_folder(_FOLDER)) is None:
        return
    data, limit = image.to_bytes(key), _limit()
    if len(data) > min(limit, _MOST_BYTES):
        return
    try:
        replace(folder / f"{key}{_SUFFIX}", data, 0o600)
        _evict(folder, limit)
    except OSError as error:
        warn_once(f"the kernel {image.name} is not cached in {folder}: {error}")


def forget(key: str) -> None:
    """Remove the file of a key."""
    if (folder := private_folder(_FOLDER)) is not None:
        _remove(folder / f"{key}{_SUFFIX}")


def entries() -> list[Entry]:
    """Return the files of the cache, the one that was used longest ago first."""
    folder = private_folder(_FOLDER)
    return [] if folder is None else _entries(folder, _SUFFIX)


def clear() -> int:
    """Remove all files of the cache, and return how many they were."""
    removed = entries()
    for entry in removed:
        _remove(entry.path)
    return len(removed)


def _entries(folder: Path, suffix: str) -> list[Entry]:
    found = []
    with os.scandir(folder) as files:
        for file in files:
            if not file.name.endswith(suffix):
                continue
            with contextlib.suppress(OSError):  # another process has removed it
                status = file.stat(follow_symlinks=False)
                found.append(Entry(folder / file.name, status.st_size, status.st_mtime))
    return sorted(found, key=lambda entry: entry.used)


def _limit() -> int:
    try:
        return cache_limit()
    except ValueError as error:
        warn_once(str(error))
        return 0


def _evict(folder: Path, limit: int) -> None:
    for entry in _entries(folder, ".tmp"):
        if time.time() - entry.used > _ABANDONED:
            _remove(entry.path)
    kept = _entries(folder, _SUFFIX)
    total = sum(entry.nbytes for entry in kept)
    if total <= limit:
        return
    for entry in kept[:-1]:  # the last is the one that was written just now
        if total <= limit * _KEPT:
            return
        _remove(entry.path)
        total -= entry.nbytes


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
