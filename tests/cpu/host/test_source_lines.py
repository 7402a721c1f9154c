"""Lines in messages: a file's name helps, the number that a notebook gives a cell does not."""

import linecache

from numba_tma.host.source_lines import line_in_words


def test_a_line_of_a_file():
    assert line_in_words("/home/me/scale.py", 14) == "scale.py:14"


def test_a_line_of_a_cell(monkeypatch):
    cell = "/tmp/ipykernel_7/123456.py"
    lines = ["def kernel(x):\n", "    x.load(tile, (0, 0), barrier)\n"]
    monkeypatch.setitem(linecache.cache, cell, (len(lines), None, lines, cell))
    assert line_in_words(cell, 2) == "line 2 of a cell, `x.load(tile, (0, 0), barrier)`"
