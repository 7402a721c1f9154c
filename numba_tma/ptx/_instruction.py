"""The instruction table: how an annotated function becomes one PTX instruction.

A row of the table is an annotated ``def`` under `instruction`. Its annotations name the operand
kinds below, its template is the PTX text, and its body is the simulator's implementation. In a
template ``{name}`` stands for an operand, and ``<name:text>`` for text that is present only if the
optional operand ``name`` is given. An operand annotated with an alias of ``Literal[...]`` is a
choice: a kernel passes a literal, which becomes part of the instruction's text.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import itertools
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, TypeAlias, TypeVar, get_args, get_origin

import numpy as np

from numba_tma import simulator
from numba_tma.backend.interface import instruction_row
from numba_tma.host.architectures import Targets, Version, as_targets
from numba_tma.host.environment import simulated

# Operand kinds, which annotate the operands of the rows.
u16: TypeAlias = int
u32: TypeAlias = int
i32: TypeAlias = int
u64: TypeAlias = int
f32: TypeAlias = float
f64: TypeAlias = float
u32x2: TypeAlias = tuple[int, int]  #: a vector of registers, as a tuple
u32x4: TypeAlias = tuple[int, int, int, int]
u64x2: TypeAlias = tuple[int, int]
i32x4: TypeAlias = tuple[int, int, int, int]
f32x2: TypeAlias = tuple[float, float]
f32x4: TypeAlias = tuple[float, float, float, float]
u32xnum: TypeAlias = tuple[int, ...]  #: `num` registers; `num` is a choice of the row
u32x2num: TypeAlias = tuple[int, ...]  #: 2 `num` registers
u32x4num: TypeAlias = tuple[int, ...]  #: 4 `num` registers
u32x4group: TypeAlias = tuple[int, ...]  #: 4 `cta_group` registers
u32xnumand1: TypeAlias = tuple[int, ...]  #: `num` registers, and one that is no part of them
f32xnumand1: TypeAlias = tuple[float, ...]
b128: TypeAlias = tuple[int, int]  #: two 64-bit halves of one register, the lower first
Predicate: TypeAlias = bool
Immediate: TypeAlias = int  #: a literal, printed into the instruction
RegisterCount: TypeAlias = int  #: an `Immediate`: a multiple of 8 from 24 to 256
ScaleExponent: TypeAlias = int  #: an `Immediate` from 0 to 15
BarrierAddress: TypeAlias = Any  #: a `Barrier`, or the shared-memory address of one
ClusterAddress: TypeAlias = int  #: a shared-memory address in the cluster, as `mapa` returns it
TensorMemoryAddress: TypeAlias = int  #: the lane in the upper 16 bits, the column in the lower
TileAddress: TypeAlias = Any  #: a `SharedTile`, a shared Numba array, or a shared-memory address
SharedAddress: TypeAlias = Any  #: a barrier, a tile, a shared Numba array, or an address
GlobalAddress: TypeAlias = Any  #: a Numba array in global memory, or an address
TensorMapOperand: TypeAlias = Any  #: a `TensorMap`
EditableTensorMap: TypeAlias = Any  #: an element of a `TensorMapArray`
DescriptorAddress: TypeAlias = Any  #: a `TensorMap` in global memory, or its 128 B in shared memory
Coordinates: TypeAlias = Any  #: a tuple of integers in the array's axis order
Offsets: TypeAlias = Any  #: a tuple of non-negative integers, one per spatial axis
CacheHint: TypeAlias = "int | None"  #: a `CachePolicy`, or a result of createpolicy

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONAL = re.compile(r"<(\w+):([^<>]*)>")
_OPERAND = re.compile(r"\{(\w+)\}")


#: The first PTX ISA of a form, and what has it: 90 and newer, "90a" alone, or a set of targets.
Since: TypeAlias = "tuple[Version, int | str | Targets]"


@dataclass(frozen=True)
class Instruction:
    """One row of the table: the PTX text, its operands, and the versions that have it."""

    name: str
    template: str
    isa: Version  #: first PTX ISA version
    targets: Targets  #: the targets that have it
    operands: dict[str, str]  #: operand name -> kind
    defaults: dict[str, Any]  #: operand name -> default; None: its text is left out
    choices: dict[str, tuple[Any, ...]]  #: operand name -> its possible values
    since: Mapping[str, tuple[Version, Targets]]  #: tag of a form -> its own, if narrower
    apart: tuple[tuple[str, str], ...]  #: pairs of tags that no form has together
    returns: str
    family: str
    ranks: tuple[int, ...]  #: its tensor ranks; empty if it takes no coordinates
    pure: bool = False  #: no side effect: calls may be moved and merged
    convergent: bool = False  #: executed together: may not move into a divergent branch
    body: Callable[..., Any] | None = field(default=None, compare=False)

    def forms(self) -> list[InstructionForm]:
        """Return the PTX forms that ``ptx/`` shows: each rank, choice and optional operand once."""
        ranks = self.ranks or (None,)
        required = {n: v for n, v in self.choices.items() if not self.is_optional(n)}
        first = {n: self.defaults.get(n, values[0]) for n, values in required.items()}
        shown = [InstructionForm(self, rank, first) for rank in ranks]
        for name, values in required.items():
            others = [v for v in values if v != first[name]]
            shown += [InstructionForm(self, ranks[0], first | {name: v}) for v in others]
        for name, default in self.defaults.items():
            if default is None and name in self.choices:
                shown += [
                    InstructionForm(self, ranks[0], first | {name: v}) for v in self.choices[name]
                ]
            elif default is None:
                shown += [InstructionForm(self, rank, first, frozenset({name})) for rank in ranks]
        return shown

    def combinations(self) -> Iterator[InstructionForm]:
        """Yield every PTX form: all combinations of ranks, choices and optional operands."""
        optional = [n for n, d in self.defaults.items() if d is None and n not in self.choices]
        values = [(None, *v) if self.is_optional(n) else v for n, v in self.choices.items()]
        for rank, *rest in itertools.product(
            self.ranks or (None,), *values, *[(False, True)] * len(optional)
        ):
            chosen = {n: v for n, v in zip(self.choices, rest) if v is not None}
            given = frozenset(n for n, g in zip(optional, rest[len(values) :]) if g)
            form = InstructionForm(self, rank, chosen, given)
            if form.conflict is None:
                yield form

    def is_optional(self, name: str) -> bool:
        """Whether an operand and its text can be left out."""
        return name in self.defaults and self.defaults[name] is None

    def text(self, operands: dict[str, str], given: set[str], rank: int | None = None) -> str:
        """Return the PTX instruction with `operands` in place."""
        kept = _OPTIONAL.sub(lambda m: m[2] if m[1] in given else "", self.template)
        texts = {n: str(default) for n, default in self.defaults.items()} | operands
        names = _OPERAND.sub(lambda m: texts[m[1]], kept)
        return names.replace("RANK", str(rank))

    @property
    def syntax(self) -> str:
        """The PTX with operands by name, choices as ``<name>`` and optional text in braces."""

        def named(text: str) -> str:
            return _OPERAND.sub(lambda m: f"<{m[1]}>" if m[1] in self.choices else m[1], text)

        parts = _OPTIONAL.split(self.template)  # text, operand, optional text, text, ...
        optional = [f"{{{named(part)}}}" for part in parts[2::3]]
        texts = zip(map(named, parts[::3]), [*optional, ""])
        text = "".join(itertools.chain.from_iterable(texts))
        return text.replace("RANKd", "Nd").rstrip(";").strip()


def vector_of(kind: str, choices: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the element kind and the length of a vector kind; None for any other kind."""
    match = re.fullmatch(r"([uif]\d+)x(\d*)(num|group)?(and1)?", kind)
    if match is None:
        return None
    choice = {None: None, "num": "num", "group": "cta_group"}[match[3]]
    times: int = 1 if choice is None else choices[choice]
    return match[1], int(match[2] or 1) * times + (match[4] is not None)


@dataclass(frozen=True)
class InstructionForm:
    """One PTX form of a row: its rank, the choices made, and the optional operands given."""

    row: Instruction
    rank: int | None
    choices: dict[str, Any]
    given: frozenset[str] = frozenset()

    @property
    def tags(self) -> list[str]:
        """The rank, choices and operands that distinguish this form of the row."""
        rank = [f"{self.rank}d"] if self.rank is not None else []
        return [*rank, *map(str, self.choices.values()), *sorted(self.given)]

    @property
    def name(self) -> str:
        """The function's name, with the tags in brackets."""
        return f"{self.row.name}[{', '.join(self.tags)}]" if self.tags else self.row.name

    @property
    def isa(self) -> Version:
        """The first PTX ISA version that has this form."""
        return max([self.row.isa, *(isa for isa, _ in self._narrower())])

    @property
    def targets(self) -> Targets:
        """The targets that have this form."""
        return functools.reduce(operator.and_, (t for _, t in self._narrower()), self.row.targets)

    def isa_on(self, target: str) -> Version:
        """Return the first PTX ISA version that has this form on a target."""
        return max(self.isa, self.targets[target])

    @property
    def conflict(self) -> tuple[str, str] | None:
        """Two tags that do not go together; None if PTX has the form."""
        pairs = (pair for pair in self.row.apart if set(pair) <= set(self.tags))
        return next(pairs, None)

    def _narrower(self) -> list[tuple[Version, Targets]]:
        return [self.row.since[tag] for tag in self.tags if tag in self.row.since]


#: Every row, by name.
TABLE: dict[str, Instruction] = {}


def instruction(
    template: str,
    *,
    isa: Version,
    sm: int | str | Targets,
    ranks: tuple[int, ...] = (),
    since: Mapping[str, Since] | None = None,
    apart: tuple[tuple[str, str], ...] = (),
    pure: bool = False,
    convergent: bool = False,
) -> Callable[[F], F]:
    """Make the decorated ``def`` a row of the table, and a function that kernels can call.

    `isa` is the first PTX ISA version of any target; a target's own may be later. `sm` and `since`
    name targets as `numba_tma.host.architectures.as_targets` takes them. `apart` lists pairs of
    values or optional operands that PTX does not take together.
    """

    def decorate(body: F) -> F:
        # Read from the function: to make its signature takes longer, for 300 rows at each import.
        annotations = body.__annotations__
        kinds = {
            n: kind.removesuffix(" | None") for n, kind in annotations.items() if n != "return"
        }
        positional = body.__code__.co_varnames[: body.__code__.co_argcount]
        given = body.__defaults__ or ()
        row = Instruction(
            body.__name__,
            template,
            isa,
            as_targets(sm),
            kinds,
            dict(zip(positional[len(positional) - len(given) :], given))
            | (body.__kwdefaults__ or {}),
            {n: values for n, kind in kinds.items() if (values := _choices(kind, body))},
            {tag: (first, as_targets(of)) for tag, (first, of) in (since or {}).items()},
            apart,
            annotations["return"],
            body.__module__.rpartition(".")[2],
            ranks,
            pure,
            convergent,
            body,
        )
        TABLE[row.name] = row
        about = inspect.cleandoc(body.__doc__ or "")
        body.__doc__ = f"{about}\n\nPTX: ``{row.syntax}``\n\n{_versions(row)}"
        return instruction_row(row, _checking(row, body) if simulated() else body)

    return decorate


def _checking(row: Instruction, body: F) -> F:
    """Return the body of a row that checks its operands first (simulator)."""
    checks = [_check_of(row, name, kind) for name, kind in row.operands.items()]
    if not any(checks):
        return body
    names = list(row.operands)
    checked = {name: check for name, check in zip(names, checks) if check}
    # An int is right for every operand that is checked and no choice: most operands are one.
    placed = [
        (place, check, name not in row.choices)
        for place, (name, check) in enumerate(zip(names, checks))
        if check
    ]
    apart = row.apart

    @functools.wraps(body)
    def with_checks(*args: Any, **kws: Any) -> Any:
        for place, check, takes_int in placed:
            if place < len(args) and not (takes_int and type(args[place]) is int):
                check(args[place])
        for name, given in kws.items():
            if name in checked:
                checked[name](given)
        if apart:
            _check_together(row, dict(zip(row.operands, args)) | kws)
        return body(*args, **kws)

    constant = {n: n in row.choices or kind in _IMMEDIATES for n, kind in row.operands.items()}
    with_checks.constant_operands = constant  # type: ignore[attr-defined]
    return with_checks  # type: ignore[return-value]


#: Kinds of integers, as the compiler takes them.
_INTEGERS = ("u16", "u32", "i32", "u64", "ClusterAddress", "TensorMemoryAddress")
#: Kinds of addresses in shared memory: what has such an address, and what they take.
_SHARED = {
    "BarrierAddress": ("barrier", "takes a Barrier (or its shared-memory address)"),
    "TileAddress": ("tile", "takes a tile in shared memory"),
}
_IMMEDIATES = ("Immediate", "RegisterCount", "ScaleExponent")


def _check_of(row: Instruction, name: str, kind: str) -> Callable[[object], None] | None:
    """Return what raises for a wrong operand of a kind that has one type; None for the others."""
    optional, shared = row.is_optional(name), ""
    if name in row.choices:
        accepted, expected = row.choices[name], choice_text(row, name)
    elif kind in (*_INTEGERS, *_IMMEDIATES):
        accepted, expected = None, f"takes an integer ({kind})"
    elif kind == "CacheHint":
        accepted, expected = None, "takes a CachePolicy or a createpolicy result"
    elif kind in _SHARED:
        shared, takes = _SHARED[kind]
        accepted, expected = None, takes
    else:
        return None

    def check(given: object) -> None:
        if (accepted is None and type(given) is int) or (given is None and optional):
            return
        if shared and getattr(given, "shared_kind", None) == shared:
            return
        fits = isinstance(given, int | np.integer) if accepted is None else given in accepted
        if shared == "tile" and not hasattr(given, "shared_kind"):
            fits |= hasattr(given, "dtype") and hasattr(given, "__setitem__")
        if not fits:
            raise simulator.BadOperand(f"{row.name}({name}=...) {expected}, not {given!r}")

    return check


def _check_together(row: Instruction, passed: Mapping[str, Any]) -> None:
    """Raise unless a row has a form with the choices and optional operands passed (simulator)."""
    present = {name: value for name, value in passed.items() if value is not None}
    chosen = {name: value for name, value in present.items() if name in row.choices}
    form = InstructionForm(row, None, chosen, frozenset(filter(row.is_optional, present)))
    if form.conflict is not None:
        raise simulator.BadOperand(conflict_text(form))


def conflict_text(form: InstructionForm) -> str:
    """Return the error of a call whose choices or operands PTX does not take together."""
    first, second = form.conflict or ("", "")
    return f"{form.row.name}: PTX does not take {first} together with {second}: leave one out"


def choice_text(row: Instruction, name: str) -> str:
    """Return what a choice of a row takes, for errors."""
    return f"is part of the instruction: one of {', '.join(map(repr, row.choices[name]))}"


def _versions(row: Instruction) -> str:
    """Return the first versions of a row, as a sentence for its docstring."""

    def version(isa: Version, targets: Targets) -> str:
        shown = f"sm_{targets.since}" if targets.since is not None else str(targets)
        return f"PTX ISA {isa[0]}.{isa[1]}, {shown}"

    tags = {tag for form in row.forms() for tag in form.tags} if row.since else set()
    newer = [f"{tag}: {version(*since)}" for tag, since in row.since.items() if tag in tags]
    return "; ".join([f"At least {version(row.isa, row.targets)}", *newer]) + "."


def _choices(kind: str, body: Callable[..., Any]) -> tuple[Any, ...]:
    """Return the values of a parameter annotated with an alias of ``Literal``, else ()."""
    alias = body.__globals__.get(kind)
    return get_args(alias) if get_origin(alias) is Literal else ()


# ----------------------------------------------------- helpers of simulator bodies


def address(operand: Any) -> int:
    """Return the shared-memory address of a barrier, a tile, an array or an address (simulator)."""
    if operand is None:
        raise simulator.BadOperand(
            "None is given for a barrier, a tile, or an address in shared memory"
        )
    if hasattr(operand, "address"):
        return int(operand.address)
    if hasattr(operand, "dtype") and hasattr(operand, "ndim"):
        return simulator.shared_address(operand)
    return int(operand)


def tile_address(what: str, operand: object) -> int:
    """Return the shared-memory address of what has the place of a tile (simulator)."""
    kind = getattr(operand, "shared_kind", "tile" if hasattr(operand, "__setitem__") else "")
    if kind != "tile" and not isinstance(operand, int | np.integer):
        raise simulator.BadOperand(f"{what} takes a tile in shared memory, not {operand!r}")
    return address(operand)


def global_bytes(operand: Any, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return a writable view of the first `nbytes` bytes at an array or an address (simulator).

    The simulator's global memory is the memory of this process.
    """
    if isinstance(operand, (int, np.integer)):
        memory: Any = (ctypes.c_uint8 * int(nbytes)).from_address(int(operand))
        return np.frombuffer(memory, np.uint8)
    array = getattr(operand, "_ary", operand)
    return array.reshape(-1, copy=False).view(np.uint8)[:nbytes]


def assembled_only(name: str, instead: str = "") -> NoReturn:
    """Raise the error of a row that the simulator does not model (simulator)."""
    raise NotImplementedError(
        f"{name} needs {TABLE[name].targets} and is not simulated: call it in a @cuda.jit kernel "
        f"for such a GPU{instead}"
    )
