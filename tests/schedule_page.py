"""The orders drawn in docs/guide/schedulers.md, written from the code by ``make goldens``.

A block of text begins with an expression, and what stands below it is drawn from its value.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

import numba_tma as tma

FILE = Path(__file__).parents[1] / "docs" / "guide" / "schedulers.md"
DRAWN = re.compile(r"^```text\n(.+)\n(?s:.*?)^```$", re.MULTILINE)
BLOCKS = 132  # SMs of an H200


def order(schedule: Any) -> Any:
    """Return the coordinates of all tiles, a row for each number."""
    tiles = [schedule.tile(number) for number in range(int(schedule.num_tiles))]
    return np.array(tiles, np.int64).reshape(len(tiles), len(schedule.coordinates._fields))


def operands(scheduler: Any, rows: int, columns: int, tile: tuple[int, int]) -> float:
    """Return how many rows of A and columns of B a wave of blocks reads, on average."""
    tiles = order(scheduler.over(rows, columns))[:, :2]
    waves = [tiles[i : i + BLOCKS] for i in range(0, len(tiles) - BLOCKS + 1, BLOCKS)]
    read = [len(set(w[:, 0])) * tile[0] + len(set(w[:, 1])) * tile[1] for w in waves]
    return float(np.mean(read))


def waves(rows: int, columns: int, tile: tuple[int, int]) -> str:
    """Say how many rows and columns of the operands a wave of blocks reads in each order."""
    lines = ["rows of A and columns of B that 132 blocks read at a time"]
    for scheduler in (
        tma.GridStridedScheduler(),
        tma.GroupedScheduler(8),
        tma.GroupedScheduler(16),
        tma.HilbertScheduler(),
    ):
        lines.append(f"{operands(scheduler, rows, columns, tile):6.0f}  {scheduler}")
    return "\n".join(lines)


def grid(numbers: Any, labels: list[str]) -> str:
    width = len(str(numbers.max()))
    lines = (" ".join(f"{n:{width}}" for n in row) for row in numbers)
    return "\n".join(f"{label}{line}" for label, line in zip(labels, lines))


def draw(expression: str) -> str:
    """Return what stands under an expression."""
    value = eval(f"[{expression}]", {"tma": tma, "waves": waves})
    if isinstance(value[0], str):
        return value[0]
    if hasattr(value[0], "schedule"):  # the tiles of several blocks
        lengths = [[int(tile.num_key_blocks) for tile in tiles] for tiles in value]
        return "\n".join(
            f"block {b}: {' + '.join(map(str, own))} = {sum(own)} key blocks"
            for b, own in enumerate(lengths)
        )
    (schedule,) = value
    tiles = order(schedule)
    if hasattr(schedule, "rows"):
        numbers = np.zeros((schedule.rows, schedule.columns), int)
        labels = [""] * len(numbers)
        numbers[tiles[:, 0], tiles[:, 1]] = np.arange(len(tiles))
    else:
        blocks = int(schedule.num_query_blocks)
        numbers = np.zeros((blocks, schedule.heads * schedule.batch), int)
        numbers[tiles[:, 0], tiles[:, 2] * schedule.heads + tiles[:, 1]] = np.arange(len(tiles))
        lengths = [schedule.num_key_blocks(block) for block in range(blocks)]
        labels = [f"query block {m}, {n} key blocks: " for m, n in enumerate(lengths)]
    return grid(numbers, labels)


def page(text: str) -> str:
    """Return the page's text with everything drawn anew."""
    return DRAWN.sub(lambda found: f"```text\n{found[1]}\n{draw(found[1])}\n```", text)


def write() -> bool:
    """Write the page anew; return whether it changed."""
    text = FILE.read_text()
    FILE.write_text(page(text))
    return page(text) != text
