"""A fragment: the lane of a warp, and its element, at each place of 16 rows."""

from __future__ import annotations

from numba_tma.host.fragment_layout import FragmentLayout
from numba_tma.tools.pictures.svg import HUES, Picture

_CELL, _ROW, _LEFT, _COLUMNS = 44, 20, 52, 16


def draw(layout: FragmentLayout) -> str:
    """Draw the rows of the first warp; each next warp has the next 16 rows, in the same way."""
    made = Picture(f"FragmentLayout({layout.n}, {layout.dtype}): 64 x {layout.n}")
    each = f"{layout.num_elements} elements a thread; thread:element, of warp 0"
    made.text(0, 8, f"{each}. Warp w has the rows 16 w to 16 w + 15")
    shown = min(layout.n, _COLUMNS)
    for column in range(shown):
        made.text(_LEFT + (column + 0.5) * _CELL, 28, str(column), "middle")
    for row in range(16):
        y = 38 + row * _ROW
        made.text(0, y + _ROW / 2, f"row {row}")
        for column in range(shown):
            thread, i = layout.holder(row, column)
            x = _LEFT + column * _CELL
            tip = f"row {row}, column {column}: element {i} of thread {thread}"
            made.area(x, y, _CELL, _ROW, HUES[thread % 4], tip)
            made.text(x + _CELL / 2, y + _ROW / 2, f"{thread}:{i}", "middle")
    if shown < layout.n:
        made.text(0, 38 + 16 * _ROW + 10, f"the first {shown} of {layout.n} columns")
    return made.html()
