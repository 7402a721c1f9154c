"""How a row of the instruction table becomes a function: one PTX instruction, nothing more.

A row is an ordinary annotated ``def`` under `instruction`. Its annotations name the operand kinds
below, its template is the PTX text, and its body is what the simulator executes. In a template
``{name}`` stands for an operand and ``<name:text>`` for text that is there only when the optional
operand ``name`` was given.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import numpy as np

from numba_tma import simulator
from numba_tma._environment import simulated

# Operand kinds, as they stand in the annotations of the rows.
u32: TypeAlias = int
i32: TypeAlias = int
u64: TypeAlias = int
f32: TypeAlias = float
Immediate: TypeAlias = int  #: a literal, printed into the instruction
BarrierAddress: TypeAlias = Any  #: a `Barrier`, or the shared-memory address of one
TileAddress: TypeAlias = Any  #: a `SharedTile`, a shared Numba array, or a shared-memory address
GlobalAddress: TypeAlias = Any  #: a Numba array in global memory, or an address
TensorMapOperand: TypeAlias = Any  #: a TensorMap
Coordinates: TypeAlias = Any  #: a tuple of integers in the array's axis order
CacheHint: TypeAlias = "int | None"  #: a `CachePolicy`, or what createpolicy returned

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONAL = re.compile(r"<(\w+):([^<>]*)>")


@dataclass(frozen=True)
class Instruction:
    """One row of the table: what is emitted, and where it is available."""

    name: str
    template: str
    isa: tuple[int, int]  #: first PTX ISA version
    sm: int  #: first architecture
    operands: dict[str, str]  #: operand name -> kind
    defaults: dict[str, Any]  #: of the operands that have one; None: the text is left out
    returns: str
    family: str
    ranks: tuple[int, ...]  #: the tensor ranks it exists for; empty when it takes no coordinates
    pure: bool = False  #: no side effect: may be moved and merged
    convergent: bool = False  #: threads meet in it: may not be moved into a divergent branch
    body: Callable[..., Any] | None = field(default=None, compare=False)

    def forms(self) -> list[str]:
        """Name every PTX form of this row: per rank, without and with the optional operands."""
        ranks = [f"{r}d" for r in self.ranks] or [""]
        options = ["", *(n for n, default in self.defaults.items() if default is None)]
        tags = [", ".join(t for t in (rank, option) if t) for option in options for rank in ranks]
        return [f"{self.name}[{tag}]" if tag else self.name for tag in tags]

    def text(self, operands: dict[str, str], given: set[str], rank: int | None = None) -> str:
        """Return the PTX instruction with `operands` in place."""
        kept = _OPTIONAL.sub(lambda m: m[2] if m[1] in given else "", self.template)
        texts = {n: str(default) for n, default in self.defaults.items()} | operands
        names = re.sub(r"\{(\w+)\}", lambda m: texts[m[1]], kept)
        return names.replace("RANK", str(rank))


#: Every row, by name.
TABLE: dict[str, Instruction] = {}


def instruction(
    template: str,
    *,
    isa: tuple[int, int],
    sm: int,
    ranks: tuple[int, ...] = (),
    pure: bool = False,
    convergent: bool = False,
) -> Callable[[F], F]:
    """Make the decorated ``def`` a row of the table, and a function that kernels can call."""

    def decorate(body: F) -> F:
        parameters = inspect.signature(body).parameters
        row = Instruction(
            body.__name__,
            template,
            isa,
            sm,
            {n: str(p.annotation) for n, p in parameters.items()},
            {n: p.default for n, p in parameters.items() if p.default is not p.empty},
            str(inspect.signature(body).return_annotation),
            body.__module__.rpartition(".")[2],
            ranks,
            pure,
            convergent,
            body,
        )
        TABLE[row.name] = row
        if not simulated():
            from numba_tma.ptx._lowering import register

            register(row, body)
        return body

    return decorate


# ------------------------------------------------- what the simulator bodies need


def address(operand: Any) -> int:
    """Return the shared-memory address of a barrier, a tile or a plain address (simulator)."""
    if hasattr(operand, "address"):
        return int(operand.address)
    if hasattr(operand, "dtype") and hasattr(operand, "ndim"):
        return simulator.shared_address(operand)
    return int(operand)


def global_bytes(operand: Any, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return a writable view of the first `nbytes` bytes of an array (simulator)."""
    array = getattr(operand, "_ary", operand)
    flat = array.reshape(-1, copy=False) if array.ndim != 1 else array
    return flat.view(np.uint8)[:nbytes]
