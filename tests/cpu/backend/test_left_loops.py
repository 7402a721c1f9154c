"""Loops over the tiles of launch control: left before their end, an error when compiled."""

import linecache
import re
import textwrap

import pytest
from numba import types
from numba.core.errors import TypingError
from numba.cuda.core.errors import TypingError as CudaTypingError

from numba_tma.tools.testing import compile_ptx
from tests.kernels import launch_control

SIGNATURE = (types.int64, types.boolean, types.int64[::1])
HEAD = """\
def kernel(n, flag, out):
    work = ALONE.start()
    schedule = SCHEDULER.over(n, n)
"""


def kernel(body):
    """Return a kernel of the statements `body`; it begins at line 4."""
    source = HEAD + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ") + "\n"
    linecache.cache["<kernel>"] = (len(source), None, source.splitlines(True), "<kernel>")
    namespace = {"ALONE": launch_control.ALONE, "SCHEDULER": launch_control.SCHEDULER}
    exec(compile(source, "<kernel>", "exec"), namespace)
    return namespace["kernel"]


WRONG = {
    "break": (
        """
        for tile in work.tiles(schedule):
            if out[tile.row] > 3:
                break
            out[tile.row] = 1
        """,
        "by the `break` at line 6",
    ),
    "break, and more after the loop": (
        """
        for tile in work.tiles(schedule):
            if flag:
                out[0] = 2
                break
        out[1] = 3
        """,
        "line 4: the loop .* is left",
    ),
    "return": (
        """
        for tile in work.tiles(schedule):
            for k in range(n):
                if out[k] == tile.row:
                    break
            if flag:
                return
        """,
        "by the `return` at line 9",
    ),
    "return from a loop inside": (
        """
        for tile in work.tiles(schedule):
            for k in range(n):
                if out[k] == tile.row:
                    return
        """,
        "by the `return` at line 7",
    ),
    "one tile only": (
        """
        for tile in work.tiles(schedule):
            out[tile.row] = 1
            break
        """,
        "line 4: the loop .* is left",
    ),
}


@pytest.mark.parametrize(("body", "expected"), WRONG.values(), ids=WRONG)
def test_a_loop_that_is_left(body, expected):
    with pytest.raises((TypingError, CudaTypingError)) as caught:
        compile_ptx(kernel(body), SIGNATURE, cc=(10, 0, "a"))
    text = re.sub(r"\s+", " ", str(caught.value))
    assert re.search(expected, text), text
    assert "line 4: the loop `for tile in work.tiles(schedule):` is left" in text
    assert "Walk the loop to its end; `continue` skips the work of a tile" in text


RIGHT = {
    "continue": """
        for tile in work.tiles(schedule):
            if out[tile.row] > 3:
                continue
            out[tile.row] = 1
        """,
    "an inner loop that is left": """
        for tile in work.tiles(schedule):
            for k in range(n):
                if out[k] > 3:
                    break
                out[k] = tile.row
        """,
    "an error": """
        for tile in work.tiles(schedule):
            if flag:
                raise ValueError
            out[tile.row] = 1
        """,
    "in a role": """
        if flag:
            for tile in work.tiles(schedule):
                out[tile.row] = 1
        else:
            for _ in work.tiles(schedule):
                pass
        """,
    "another loop": """
        for tile in schedule.tiles():
            if flag:
                break
        for tile in work.tiles(schedule):
            out[tile.row] = 1
        """,
}


@pytest.mark.parametrize("body", RIGHT.values(), ids=RIGHT)
def test_a_loop_that_is_walked_to_its_end(body):
    compile_ptx(kernel(body), SIGNATURE, cc=(10, 0, "a"))
