"""A compiled kernel: the GPU's code, and what a launch needs beside it; and its bytes in a file.

A file of the cache is a line that names the format, a header in JSON, the code (a cubin), and the
SHA-256 of all bytes before it. The header repeats the key under which the file is found, so that a
file under another's name is refused. Nothing of a file is executed on the host.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from numba_tma.host.launch_rules import Requirements

_MAGIC = b"numba_tma kernel 1\n"
_LENGTH = 8  # hexadecimal digits of the header's length
_DIGEST = 32


@dataclass(frozen=True)
class KernelImage:
    """A kernel that is compiled for argument types and a compute capability."""

    name: str  #: of the Python function, for errors
    entry: str  #: name of the kernel in the code
    arguments: tuple[str, ...]  #: names of the Python function's parameters
    sizes: tuple[int, ...]  #: bytes of each parameter of the kernel
    requirements: Requirements
    cooperative: bool
    code: bytes
    shared: int = 0  #: bytes of dynamic shared memory of its launches

    def header(self) -> dict[str, Any]:
        """Return everything but the code, in JSON's types."""
        needs = self.requirements._asdict() | {"blocks": sorted(self.requirements.blocks)}
        return {
            "name": self.name,
            "entry": self.entry,
            "arguments": self.arguments,
            "sizes": self.sizes,
            "requirements": needs,
            "cooperative": self.cooperative,
            "shared": self.shared,
            "code_bytes": len(self.code),
        }

    @classmethod
    def from_header(cls, header: dict[str, Any], code: bytes) -> KernelImage:
        """Return a kernel of a header and code, or raise for what `header` has not written."""
        if header["code_bytes"] != len(code):
            raise ValueError("its code has another length")
        needs, x = header["requirements"], header["requirements"]["cluster"]
        return cls(
            name=str(header["name"]),
            entry=str(header["entry"]),
            arguments=tuple(map(str, header["arguments"])),
            sizes=tuple(map(int, header["sizes"])),
            requirements=Requirements(
                blocks=frozenset(map(int, needs["blocks"])),
                line=bool(needs["line"]),
                cluster=None if x is None else (int(x[0]), int(x[1]), int(x[2])),
                watched=bool(needs["watched"]),
            ),
            cooperative=bool(header["cooperative"]),
            code=code,
            shared=int(header["shared"]),
        )

    def check_count(self, given: int) -> None:
        """Raise a TypeError unless a launch has as many arguments as the kernel has parameters."""
        if given != len(self.arguments):
            raise TypeError(
                f"{self.name}() takes {len(self.arguments)} arguments "
                f"({', '.join(self.arguments)}), and is given {given}"
            )

    def to_bytes(self, key: str) -> bytes:
        """Return the bytes of the file for a key."""
        header = json.dumps({"key": key, **self.header()}).encode()
        body = _MAGIC + b"%0*x" % (_LENGTH, len(header)) + header + self.code
        return body + hashlib.sha256(body).digest()

    @classmethod
    def from_bytes(cls, data: bytes, key: str) -> KernelImage:
        """Return the kernel of a file, or raise a ValueError for any other bytes."""
        try:
            return cls._parsed(memoryview(data), key)
        except (LookupError, TypeError, RecursionError) as error:
            raise ValueError(f"its header is not one: {error!r}") from None

    @classmethod
    def _parsed(cls, data: memoryview, key: str) -> KernelImage:
        start = len(_MAGIC) + _LENGTH
        if len(data) < start + _DIGEST or data[: len(_MAGIC)] != _MAGIC:
            raise ValueError("it is no kernel of this format")
        body = data[:-_DIGEST]
        if hashlib.sha256(body).digest() != data[-_DIGEST:]:
            raise ValueError("its checksum is wrong")
        end = start + int(bytes(data[len(_MAGIC) : start]), 16)
        header = json.loads(bytes(body[start:end]))
        if header["key"] != key:
            raise ValueError("it is the file of another key")
        return cls.from_header(header, bytes(body[end:]))
