"""Files that outlive the process: their folder, how they are read, replaced and locked.

The tuner's measurements and the compiled kernels follow the rules of this module. A file is
replaced as a whole, so that a reader never sees half of one. What is no regular file is never read.
Whatever the folder does not allow is warned of once, and is no error.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from numba_tma.host.environment import cache_folder, cache_setting

try:
    import fcntl
except ImportError:  # Windows; the last of two writers that meet wins there
    fcntl = None  # type: ignore[assignment]

LOCK_SECONDS = 5.0  # a writer holds the lock for milliseconds
_REPAIR = "NUMBA_TMA_CACHE names another folder, and NUMBA_TMA_CACHE=0 turns caches off"
_warned: set[str] = set()


def warn_once(text: str, repair: str = _REPAIR) -> None:
    """Warn of what is not kept, or not read; each text once in a process."""
    if text not in _warned:
        _warned.add(text)
        warnings.warn(f"{text}; {repair}", RuntimeWarning, stacklevel=2)


def usable_folder() -> Path | None:
    """Return the folder of caches, made if it is missing; None if there is none to write to."""
    folder = cache_folder()
    if folder is None:
        if cache_setting() == "":
            warn_once("NUMBA_TMA_CACHE is set to nothing, so nothing is cached")
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError("it cannot be written")
    except OSError as error:
        warn_once(f"nothing is cached in {folder}: {_reason(error)}")
        return None
    return folder


def private_folder(name: str) -> Path | None:
    """Return the folder `name` in the folder of caches, to which this user alone can write.

    Its files are code that the GPU executes. A folder that another user owns, or can write to, is
    refused: it may hold anything.
    """
    parent = usable_folder()
    if parent is None:
        return None
    folder = parent / name
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if wrong := planted(folder.stat()):
            raise PermissionError(wrong)
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError("it cannot be written")
    except OSError as error:
        warn_once(f"no kernel is cached in {folder}: {_reason(error)}")
        return None
    return folder


def planted(status: os.stat_result) -> str:
    """Say why a file or folder may be another user's work; "" if it is this user's alone."""
    if not hasattr(os, "geteuid"):  # Windows, whose folders for caches are the user's own
        return ""
    if status.st_uid != os.geteuid():
        return f"it belongs to user {status.st_uid}, and not to this one"
    if status.st_mode & 0o022:
        return f"other users can write to it (mode {stat.S_IMODE(status.st_mode):o})"
    return ""


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def read(path: Path, most_bytes: int, *, private: bool = False) -> bytes:
    """Return a file's bytes, or raise an OSError that says why they are not read.

    `private` refuses a file that another user owns or can write to.
    """
    # Without O_NONBLOCK, a pipe of this name would be waited for.
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with open(number, "rb") as file:
        status = os.fstat(number)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is not a regular file: remove it")
        if status.st_size > most_bytes:
            raise OSError(f"it has {status.st_size:,} bytes, more than {most_bytes:,}: remove it")
        if private and (wrong := planted(status)):
            raise PermissionError(f"{wrong}: remove it")
        return file.read()


def replace(path: Path, data: bytes, mode: int) -> None:
    """Replace a file as a whole; a reader sees the old bytes or the new ones."""
    import tempfile  # takes as long to import as a hit has for everything

    prefix = f".{path.name[:16]}-"
    number, temporary = tempfile.mkstemp(dir=path.parent, prefix=prefix, suffix=".tmp")
    try:
        with open(number, "wb") as file:
            file.write(data)
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, for which no file is needed; the kernel drops a dead process's."""
    if fcntl is None:
        yield
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        _lock(number)
        yield
    finally:
        os.close(number)


def _lock(number: int) -> None:
    end = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                raise TimeoutError(
                    f"another process has locked the folder for {LOCK_SECONDS:g} s"
                ) from None
            time.sleep(0.01)
