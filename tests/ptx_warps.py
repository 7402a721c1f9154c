"""What the 32 threads of a warp compute together: shuffles, ldmatrix, stmatrix and mma.sync.

Each function takes the machine and what each lane gives, ``(name, operands)``, and returns what
each lane gets. The layouts are those of the PTX ISA.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fragments import fragments
from tests.ptx_arithmetic import FLOATS, SHARED_WINDOW

Lanes = list[tuple[str, tuple[Any, ...]]]


def shuffle(machine: Any, lanes: Lanes) -> list[int]:
    """Return the values of other lanes, within segments."""
    found = []
    for lane, (name, (_, other, clamp, _)) in enumerate(lanes):
        segment = clamp >> 8 & 31
        wanted = {
            "bfly": lane ^ other,
            "idx": lane & segment | other & ~segment & 31,
        }[name.split(".")[2]]
        assert wanted & segment == lane & segment, "a lane of another segment"
        found.append(lanes[wanted][1][0])
    return found


def _rows(lanes: Lanes, at: int) -> tuple[int, list[int]]:
    """Return the number of matrices, and the address of each of their rows."""
    name, operands = lanes[0]
    (count,) = (int(part[1:]) for part in name.split(".") if part in ("x1", "x2", "x4"))
    assert "m8n8" in name and name.endswith("b16"), name
    places = [operands[at] for _, operands in lanes[: 8 * count]]
    assert not any(place % 16 for place in places), "a row is aligned to 16 B"
    return count, places


def load_matrices(machine: Any, lanes: Lanes) -> list[tuple[int, ...]]:
    """Execute ldmatrix: lanes 8 m to 8 m + 7 have the addresses of matrix m's rows."""
    count, places = _rows(lanes, 0)
    raw = b"".join(machine.peek(SHARED_WINDOW + place, 16) for place in places)
    matrices = np.frombuffer(raw, np.uint16).reshape(count, 8, 8)
    words = fragments(matrices, trans=".trans" in lanes[0][0])
    return [tuple(row) for row in words.tolist()]


def store_matrices(machine: Any, lanes: Lanes) -> list[None]:
    """Execute stmatrix, the reverse."""
    count, places = _rows(lanes, 0)
    words = np.array([operands[1] for _, operands in lanes], np.uint32).reshape(32, count)
    rows = np.ascontiguousarray(words.T).view(np.uint16).reshape(count, 8, 8)
    rows = rows.transpose(0, 2, 1) if ".trans" in lanes[0][0] else rows
    for place, row in zip(places, rows.reshape(-1, 8)):
        machine.poke(SHARED_WINDOW + place, row.tobytes())
    return [None] * 32


def multiply(machine: Any, lanes: Lanes) -> list[tuple[int, ...]]:
    """Execute mma.sync: 16 rows of A and 8 columns of B, both of 32 bytes along K."""
    name = lanes[0][0]
    *_, result, a_type, b_type, _ = name.split(".")
    a, b, c = (np.array([operands[i] for _, operands in lanes], np.uint32) for i in range(3))
    # Lane 4 g + t has the words t and t + 4 of row g, and of row g + 8.
    a_words = a.reshape(8, 4, 2, 2).transpose(3, 0, 2, 1).reshape(16, 8)
    b_words = b.reshape(8, 4, 2).transpose(0, 2, 1).reshape(8, 8)
    left, right = (
        np.ascontiguousarray(words).view(MULTIPLIED[kind]).astype(np.float64)
        for words, kind in ((a_words, a_type), (b_words, b_type))
    )
    kind = np.float32 if result == "f32" else np.int32
    held = c.view(kind).reshape(8, 4, 2, 2).transpose(2, 0, 1, 3).reshape(16, 8)
    sums = (left @ right.T + held).astype(kind)
    by_lane = sums.reshape(2, 8, 4, 2).transpose(1, 2, 0, 3).reshape(32, 4)
    return [tuple(row) for row in np.ascontiguousarray(by_lane).view(np.uint32).tolist()]


MULTIPLIED = {name: number for name, (_, number) in FLOATS.items()}
MULTIPLIED |= {"tf32": np.float32, "s8": np.int8, "u8": np.uint8}

TOGETHER = {
    "shfl": shuffle, "ldmatrix": load_matrices, "stmatrix": store_matrices, "mma": multiply,
}  # fmt: skip
