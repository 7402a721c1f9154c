"""Tiles and pipelines that a kernel takes from a tuple or list among its globals."""

from __future__ import annotations

from typing import Any

from numba.cuda.core import ir
from numba.cuda.core.errors import TypingError
from numba.cuda.core.untyped_passes import LiteralPropagationSubPipelinePass

from numba_tma.backend.numba_cuda.functions import FUNCTIONS
from numba_tma.backend.numba_cuda.object_types import is_constant
from numba_tma.backend.numba_cuda.passes import runs_after


@runs_after(LiteralPropagationSubPipelinePass, "lists of compile-time objects")
def lists_of_constants(state: Any) -> None:
    """Make a global list of compile-time objects a tuple, whose elements have types of their own.

    Like every global, the list counts as it is when the kernel is compiled.
    """
    if state.func_id.func in FUNCTIONS:
        return
    held: dict[str, Any] = {}
    for block in state.func_ir.blocks.values():
        for assign in block.find_insts(ir.Assign):
            source = assign.value
            if isinstance(source, ir.Global | ir.FreeVar) and _of_constants(source.value):
                held[assign.target.name] = source
    for source in held.values():
        if isinstance(source.value, list):
            source.value = tuple(source.value)
    if held:
        _check_indices(state.func_ir, held)


def _of_constants(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(map(is_constant, value))


def _check_indices(func_ir: Any, held: dict[str, Any]) -> None:
    """Raise unless each index is known when the kernel is compiled, and has an element."""
    for block in func_ir.blocks.values():
        for assign in block.find_insts(ir.Assign):
            item = assign.value
            op = getattr(item, "op", None)
            if op not in ("getitem", "static_getitem") or item.value.name not in held:
                continue
            source = held[item.value.name]
            what = f"{source.name}: {len(source.value)} objects of the host"
            if op == "getitem" and any(other != source.value[0] for other in source.value):
                raise TypingError(
                    f"{source.name}[{item.index.name.partition('.')[0]}] of {what}, each with a "
                    "type of its own: the index must be known when the kernel is compiled, as in "
                    f"{source.name}[0]: write one statement for each object",
                    loc=assign.loc,
                )
            count = len(source.value)
            if isinstance(item.index, int) and not -count <= item.index < count:
                raise TypingError(
                    f"{source.name}[{item.index}] of {what}: the index is 0 to {count - 1}",
                    loc=assign.loc,
                )
