"""A tile: where each 16 bytes of a row stand in shared memory."""

from __future__ import annotations

from numba_tma.host.layout import Tile
from numba_tma.tools.pictures.svg import HUES, Picture, size_of
from numba_tma.tools.plot import CHUNK, GROUPS, LINE, MAX_LINES, places_of_chunks

_CELL, _ROW, _LEFT = 46, 20, 66


def draw(tile: Tile) -> str:
    """Draw lines of 128 bytes, with the number of the chunk of its row that stands in each place.

    A warp that reads one column of the tile reads one colour: where it is below itself, the lanes
    wait for each other.
    """
    made = Picture(repr(tile))
    row_bytes = tile.shape[-1] * tile.itemsize
    facts = f"{size_of(tile.nbytes)} by each load, {size_of(tile.shared_nbytes)} of shared memory"
    facts += f", aligned to {size_of(tile.alignment)}"
    if row_bytes % CHUNK:
        made.text(0, 8, f"{facts}; rows of {row_bytes} B")
        return made.html()
    row, chunk = places_of_chunks(tile)
    shown = min(len(row), MAX_LINES)
    made.text(0, 8, facts)
    for group in range(GROUPS):
        banks = f"{4 * group}-{4 * group + 3}"
        made.text(_LEFT + (group + 0.5) * _CELL, 28, banks, "middle")
    made.text(0, 28, "banks")
    for line in range(shown):
        y = 38 + line * _ROW
        rows = sorted({int(r) for r in row[line] if r >= 0})
        ends = dict.fromkeys(map(str, (rows[0], rows[-1]))) if rows else ()
        made.text(0, y + _ROW / 2, f"row {'-'.join(ends)}" if rows else "padding")
        for group in range(GROUPS):
            x, source = _LEFT + group * _CELL, int(chunk[line, group])
            if row[line, group] < 0:
                made.area(x, y, _CELL, _ROW, tip="padding")
                continue
            start = line * LINE + group * CHUNK
            tip = f"row {row[line, group]}, bytes {source * CHUNK} to {source * CHUNK + 15}"
            hue = HUES[source % len(HUES)]
            made.area(x, y, _CELL, _ROW, hue, f"{tip}, at byte {start} of the tile")
            made.text(x + _CELL / 2, y + _ROW / 2, str(source), "middle")
    if shown < len(row):
        made.text(0, 38 + shown * _ROW + 10, f"the first {shown} of {len(row)} lines")
    return made.html()
