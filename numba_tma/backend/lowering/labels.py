"""Where a pipeline's memory is in a kernel, for messages and traces that name it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from numba_tma.backend.compiler import I32, Builder, Context, Signature, Value, ir, types
from numba_tma.host.races import label_number


class LabelledMemory(NamedTuple):
    """The memory that a call of one of the functions ``label_...`` names."""

    owner: Any  #: the pipeline
    number: int  #: of the label
    base: Value  #: shared address of the tiles
    barriers: Value  #: that of the barriers; 0 where the tiles' says both


def labelled_memory(
    context: Context,
    builder: Builder,
    function: Callable[..., object],
    sig: Signature,
    args: Sequence[Value],
) -> LabelledMemory | None:
    """Return the memory that a call names; None for a call of another function."""
    if not function.__name__.startswith("label_"):
        return None
    (owner,) = sig.args[0].static
    places = [context.cast(builder, a, t, types.uint32) for a, t in zip(args[1:], sig.args[1:])]
    base, barriers = (*places, ir.Constant(I32, 0))[:2]
    return LabelledMemory(owner, label_number(function, owner), base, barriers)
