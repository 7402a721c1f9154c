"""Loops over the tiles of launch control that a function leaves before their end.

All roles of a block read the same answers, and the block computes every tile that it has taken. A
loop that is left by ``break`` or ``return`` reads fewer answers than the others, which wait for
ever, or drops a tile. After type inference, the pass looks for a way from a loop's body to a return
of the function that does not pass the loop's head.
"""

from __future__ import annotations

import linecache
import re
from typing import Any

from numba.cuda.core import ir
from numba.cuda.core.errors import TypingError
from numba.cuda.core.typed_passes import NopythonTypeInference

from numba_tma.backend.numba_cuda.object_types import ObjectType
from numba_tma.backend.numba_cuda.passes import runs_after

#: Iterators that are walked to their end, by their class's name.
WALKED = ("LaunchedTiles",)


@runs_after(NopythonTypeInference, "looking for loops over tiles that are left")
def check_left_loops(state: Any) -> None:
    """Raise a TypingError for a loop over the tiles of launch control that has another way out."""
    for head, block in state.func_ir.blocks.items():
        if any(_is_walked(statement, state.typemap) for statement in block.body):
            _check(state.func_ir.blocks, head)


def _is_walked(statement: ir.Stmt, typemap: dict[str, Any]) -> bool:
    value = getattr(statement, "value", None)
    if not isinstance(value, ir.expr_types) or value.op != "iternext":
        return False
    iterator = typemap[value.value.name]
    return isinstance(iterator, ObjectType) and iterator.cls.__qualname__ in WALKED


def _check(blocks: dict[int, Any], head: int) -> None:
    """Raise if a return can be reached from the body of the loop, but for its head."""
    inside, before = _reaching(blocks, head), dict[int, int]()
    todo = [blocks[head].terminator.truebr]
    while todo:
        block = todo.pop()
        if isinstance(blocks[block].terminator, ir.return_types):
            while block not in inside and before.get(block, head) not in (head, *inside):
                block = before[block]
            _report(blocks[head].loc, blocks[block].body[0].loc)
        for target in blocks[block].terminator.get_targets():
            if target != head and target not in before:
                before[target] = block
                todo.append(target)


def _reaching(blocks: dict[int, Any], head: int) -> set[int]:
    """Return the blocks from which the loop goes on."""
    found, size = {head}, 0
    while size != len(found):
        size = len(found)
        found |= {b for b, x in blocks.items() if found.intersection(x.terminator.get_targets())}
    return found


def _report(loop: ir.Loc, left: ir.Loc) -> None:
    word = re.match(r"(break|return)\b", _source(left))
    how = f"by the `{word[1]}` at line {left.line}" if word else f"before line {left.line}"
    raise TypingError(
        f"line {loop.line}: the loop `{_source(loop)}` is left {how}: a thread that leaves it "
        "reads fewer answers of launch control than the others, which wait for ever, or drops a "
        "tile. Walk the loop to its end; `continue` skips the work of a tile",
        loc=loop,
    )


def _source(loc: ir.Loc) -> str:
    return linecache.getline(loc.filename, loc.line).strip()
