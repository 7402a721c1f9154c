"""The files of an exported kernel: how they are written, and read back.

The JSON has a checksum of its other entries and of the code. So a file that was changed, or that
belongs to another export, is refused, and nothing of it reaches the driver.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numba_tma.host.cache_files import read
from numba_tma.host.exported_arguments import ExportedArgument, from_json
from numba_tma.host.kernel_image import KernelImage

_FORMAT = "numba_tma export 1"
_MOST_BYTES = 256 << 20  # of a file


def write(
    stem: Path, image: KernelImage, target: str, types: Sequence[ExportedArgument], header: str
) -> None:
    """Write the code, the C header, and the JSON that `read_image` needs."""
    entries = {
        "format": _FORMAT,
        **image.header(),
        "target": target,
        "types": [given.to_json() for given in types],
    }
    entries["checksum"] = _checksum(entries, image.code)
    _file(stem, "cubin").write_bytes(image.code)
    _file(stem, "h").write_text(header, encoding="utf-8")
    _file(stem, "json").write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")


def read_image(stem: Path) -> tuple[KernelImage, str, tuple[ExportedArgument, ...]]:
    """Return an exported kernel, the target of its code, and the types of its arguments."""
    path = _file(stem, "json")
    text, code = _read(path), _read(_file(stem, "cubin"))
    try:
        entries = json.loads(text)
        if not isinstance(entries, dict) or entries.get("format") != _FORMAT:
            raise ValueError(f"its format is not {_FORMAT!r}")
        if entries.pop("checksum", None) != _checksum(entries, code):
            raise ValueError(f"it or {stem.name}.cubin was changed")
        types = tuple(map(from_json, entries["types"]))
        return KernelImage.from_header(entries, code), str(entries["target"]), types
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"load: {path} is not what export wrote: {error or type(error).__name__}; export the "
            "kernel again"
        ) from None


def _file(stem: Path, suffix: str) -> Path:
    return stem.with_name(f"{stem.name}.{suffix}")


def _checksum(entries: dict[str, Any], code: bytes) -> str:
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode() + code).hexdigest()


def _read(path: Path) -> bytes:
    try:
        return read(path, _MOST_BYTES)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"load: {path} does not exist: path is what export was given, without a suffix, and "
            "both path.json and path.cubin are needed"
        ) from None
    except OSError as error:
        raise OSError(f"load: {path} cannot be read: {error}") from None
