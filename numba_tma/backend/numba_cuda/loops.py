"""Calls that a loop must not have: a pipeline's start, and whole warps' work for an elected thread.

After type inference, the loops of the control-flow graph are known, and the types of the iterators
that drive them.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from numba.core import types
from numba.cuda.core import ir
from numba.cuda.core.analysis import compute_cfg_from_blocks
from numba.cuda.core.errors import TypingError
from numba.cuda.core.typed_passes import NopythonTypeInference

from numba_tma.backend.numba_cuda.object_types import IteratorObjectType, ObjectType, is_constant
from numba_tma.backend.numba_cuda.passes import runs_after
from numba_tma.host.loop_rules import (
    BOTH_SIDES,
    LOOPS,
    MEETINGS,
    nested_refusal,
    restart_refusal,
    starts_again,
)

#: Functions that all lanes of a warp, or all threads of a block, execute together.
_MEETINGS = frozenset(
    {"elect_sync", "bar_warp_sync", "syncwarp", "syncthreads", "cluster_sync", "barrier_sync"}
    | {"syncthreads_count", "syncthreads_and", "syncthreads_or", "barrier_arrive"}
    | {"ballot_sync", "all_sync", "any_sync", "eq_sync", "match_any_sync", "match_all_sync"}
    | {"shfl_sync", "shfl_up_sync", "shfl_down_sync", "shfl_xor_sync"}
)


#: Functions that start a pipeline, themselves or in a function that they call, and that pipeline.
_STARTS: weakref.WeakKeyDictionary[Any, object] = weakref.WeakKeyDictionary()

#: Of an iterator: the field with its side, the loop's name, and the property of a pipeline for
#: which one thread executes the body.
_SIDES = (("producer", "produce", "by_tma"), ("consumer", "consume", "by_commit"))


@runs_after(NopythonTypeInference, "looking for calls that a loop must not have")
def check_loops(state: Any) -> None:
    """Raise a TypingError for a call that its loop must not have."""
    blocks, typemap = state.func_ir.blocks, state.typemap
    for block in blocks.values():
        for call in _calls(block):
            if started := _started(typemap.get(call.func.name)):
                _STARTS[state.func_id.func] = started
    if state.func_id.func not in _STARTS and not any(map(_is_ours, typemap.values())):
        return
    graph = compute_cfg_from_blocks(blocks)
    _check_sides(blocks, typemap, graph.dominators())
    for loop in graph.loops().values():
        elected = next(_elected(blocks[loop.header], typemap), None)
        for number in sorted(loop.body):
            for call in _calls(blocks[number]):
                function = typemap.get(call.func.name)
                _check_start(function, call)
                if elected and number != loop.header:
                    _check_meeting(function, elected, call)


def _is_ours(typ: types.Type) -> bool:
    return isinstance(typ, types.BoundFunction) and isinstance(typ.this, ObjectType)


def _calls(block: ir.Block) -> Iterator[Any]:
    for statement in block.body:
        value = getattr(statement, "value", None)
        if isinstance(statement, ir.assign_types) and isinstance(value, ir.expr_types):
            if value.op == "call":
                yield value


def _elected(header: ir.Block, typemap: dict[str, types.Type]) -> Iterator[str]:
    """Yield the name of the loop whose body one thread executes, by its iterator in the header."""
    for statement in header.body:
        value = getattr(statement, "value", None)
        if not isinstance(value, ir.expr_types) or value.op != "iternext":
            continue
        iterator = typemap[value.value.name]
        if not isinstance(iterator, IteratorObjectType):
            continue
        for side, name, elects in _SIDES:
            if side in (fields := list(iterator.description.fields)):
                handle = iterator.field_types[fields.index(side)]
                if "pipeline" in handle.description.static:
                    if getattr(handle.static_value("pipeline"), elects, False):
                        yield name


def _check_sides(
    blocks: dict[int, Any], typemap: dict[str, types.Type], dominators: dict[int, set[int]]
) -> None:
    """Raise if the threads that execute one side's loop always execute the other side's, too."""
    loops: dict[str, list[tuple[int, Any, Any]]] = {"produce": [], "consume": []}
    for number, block in blocks.items():
        for call in _calls(block):
            function = typemap.get(call.func.name)
            if function is None or not _is_ours(function):
                continue
            if (name := function.typing_key[-1]) in LOOPS:
                if function.this.cls.__name__ == "TilePipelineHandle":
                    loops[LOOPS[name]].append((number, function.this, call))
    for block, handle, _ in loops["produce"]:
        for other, same, call in loops["consume"]:
            if handle == same and (block in dominators[other] or other in dominators[block]):
                raise TypingError(BOTH_SIDES, loc=call.loc)


def _started(function: types.Type | None) -> object | None:
    """Return the pipeline that a call starts, itself or in a device function; None if none."""
    if isinstance(function, types.Dispatcher):
        return _STARTS.get(function.dispatcher.py_func)
    if function is None or not _is_ours(function) or function.typing_key[-1] != "start":
        return None
    owner = function.this
    if owner.description.static == ("value",) and is_constant(owner.static[0]):
        if not starts_again(owner.static[0]):
            return owner.static[0]
    return None


def _check_start(function: types.Type, call: ir.Expr) -> None:
    if started := _started(function):
        raise TypingError(restart_refusal(started), loc=call.loc)


def _check_meeting(function: types.Type, loop: str, call: ir.Expr) -> None:
    if _is_ours(function):
        name = function.typing_key[-1]
        if name in (*LOOPS, *MEETINGS):
            raise TypingError(nested_refusal(name, loop), loc=call.loc)
    elif isinstance(function, types.Function):
        name = getattr(function.typing_key, "__name__", "")
        if name in _MEETINGS:
            raise TypingError(nested_refusal(name, loop), loc=call.loc)
