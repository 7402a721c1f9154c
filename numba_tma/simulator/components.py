"""The components of a launch's state: mbarriers and cells of shared memory, as small automata.

A component's value is hashable. An effect turns it into another value, blocks, or raises an error.
Both depend on their own component alone. So the result of an effect on a value is computed once
(`Table`), however many states have that value.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

from numba_tma.simulator.errors import BarrierMisuse, EarlyOverwrite, EarlyRead, WrongByteCount
from numba_tma.simulator.mbarrier import Mbarrier
from numba_tma.simulator.protocol import Arrive, CountBytes, Init, Inval, Wait


class BarrierValue(NamedTuple):
    """A live mbarrier, and the bytes of transfers in flight that complete on it."""

    arrivals: int
    pending: int
    tx: int
    phase: int
    under_way: int

    def in_words(self) -> str:
        """Return the barrier's state as text."""
        lacking = f"{self.tx} bytes missing" if self.tx >= 0 else f"{-self.tx} bytes too many"
        return (
            f"in phase {self.phase} (parity {self.phase & 1}): {self.pending} of {self.arrivals} "
            f"arrivals pending, {lacking}"
        )

    def model(self) -> Mbarrier:
        """Return the protocol's model in this state."""
        model = Mbarrier(self.arrivals)
        model.pending, model.tx, model.phase = self.pending, self.tx, self.phase
        return model


class CellValue(NamedTuple):
    """Bytes that are always moved together; contents are numbered in the order of the record.

    `coming` is the content of a copy or a thread's write in progress.
    """

    content: int = 0
    coming: int = 0
    #: The stores and copies that still read these bytes.
    readers: frozenset[Hashable] = frozenset()


Value = BarrierValue | CellValue | int | None


@dataclass(frozen=True, slots=True)
class Launch:
    """A transfer of `nbytes` that completes on the barrier begins."""

    nbytes: int


@dataclass(frozen=True, slots=True)
class Complete:
    """A transfer's bytes arrive."""

    nbytes: int


@dataclass(frozen=True, slots=True)
class Hold:
    """The phase gets one more pending arrival."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A thread or a store reads the bytes, with `content` in them."""

    content: int
    what: str = "read"


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A thread changes, in place, bytes that a copy has brought."""

    content: int


@dataclass(frozen=True, slots=True)
class Fill:
    """A copy into the bytes, or a thread's write, begins."""

    content: int
    what: str


@dataclass(frozen=True, slots=True)
class Filled:
    """A copy into the bytes, or a thread's write, is complete."""

    content: int


@dataclass(frozen=True, slots=True)
class ReadBy:
    """A store or copy begins to read the bytes."""

    reader: Hashable


@dataclass(frozen=True, slots=True)
class ReadDone:
    """A store or copy has read the bytes."""

    reader: Hashable


@dataclass(frozen=True, slots=True)
class Await:
    """A thread waits until none of these readers and contents is in flight."""

    pending: frozenset[Hashable]


@dataclass(frozen=True, slots=True)
class Advance:
    """Advance a component from one number to another."""

    before: int
    after: int


Effect = (
    Init | Inval | Arrive | CountBytes | Wait | Launch | Complete | Hold | Seen | Rewritten
    | Fill | Filled | ReadBy | ReadDone | Await | Advance
)  # fmt: skip

#: The result of an effect that blocks.
BLOCKED = -1


class Interner:
    """Numbers for values."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self._numbers: dict[Value, int] = {}

    def number(self, value: Value) -> int:
        """Return the number of a value."""
        known = self._numbers.setdefault(value, len(self.values))
        if known == len(self.values):
            self.values.append(value)
        return known


class Table(dict[int, int]):
    """The result of one effect for each value, by number; BLOCKED where it waits."""

    def __init__(self, effect: Effect, interner: Interner) -> None:
        self.effect = effect
        self._interner = interner

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __missing__(self, number: int) -> int:
        """Compute and keep a new entry; an error is raised each time."""
        result: Value | bool = apply(self.effect, self._interner.values[number])
        self[number] = after = BLOCKED if result is False else self._interner.number(result)
        return after


def apply(effect: Effect, value: Value) -> Value | bool:
    """Return the value after `effect`; False if the effect blocks."""
    if isinstance(effect, Advance):
        return effect.after if value == effect.before else False
    if isinstance(value, CellValue):
        return _apply_to_cell(effect, value)
    assert value is None or isinstance(value, BarrierValue)
    return _apply_to_barrier(effect, value)


def _apply_to_barrier(effect: Effect, value: BarrierValue | None) -> BarrierValue | bool | None:
    if isinstance(effect, Init):
        if value is not None:
            raise BarrierMisuse("mbarrier_init of a live mbarrier")
        model = Mbarrier(effect.count)
        return BarrierValue(model.count, model.pending, model.tx, model.phase, 0)
    if value is None:
        raise BarrierMisuse("used where there may be no mbarrier yet, or no longer")
    model, under_way = value.model(), value.under_way
    match effect:
        case Inval():
            if under_way:
                raise BarrierMisuse("mbarrier_inval while loads that complete on it run")
            return None
        case Wait(_, wanted, by_token):
            done = model.has_completed if by_token else model.has_completed_parity
            return value if done(wanted) else False
        case Arrive(_, count, nbytes, drop, no_complete):
            if nbytes is not None:
                model.expect_tx(nbytes)
            if drop:
                model.drop(count)
            (model.arrive_no_complete if no_complete else model.arrive)(count)
        case CountBytes(_, nbytes) if nbytes >= 0:
            model.expect_tx(nbytes)
        case CountBytes(_, nbytes):
            model.complete_tx(-nbytes)
        case Launch(nbytes):
            under_way += nbytes
        case Complete(nbytes):
            under_way -= nbytes
            model.complete_tx(nbytes)
        case Hold():
            model.hold()
    if model.phase == value.phase and model.pending == 0 and model.tx < 0:
        raise WrongByteCount(
            f"phase {value.phase}: the loads bring {-model.tx} bytes more than the phase expects"
        )
    if model.phase != value.phase and under_way:
        raise WrongByteCount(
            f"phase {value.phase} completes while {under_way} bytes of its loads are still under "
            "way: expect the bytes of every tile that completes on it"
        )
    return BarrierValue(model.count, model.pending, model.tx, model.phase, under_way)


def _apply_to_cell(effect: Effect, value: CellValue) -> CellValue | bool:
    content, coming, readers = value
    match effect:
        case Seen(wanted, what):
            _check_content(what, wanted, value)
        case Rewritten(wanted):
            _check_content("written", wanted, value)
            _check_unread("written", value)
        case Fill(new, what):
            if coming:
                raise EarlyOverwrite(f"{what} while another copy or write of them is under way")
            _check_unread(what, value)
            return CellValue(content, new, readers)
        case Filled(new):
            return CellValue(new, 0, readers) if coming == new else False
        case ReadBy(reader):
            return CellValue(content, coming, readers | {reader})
        case ReadDone(reader):
            return CellValue(content, coming, readers - {reader}) if reader in readers else False
        case Await(pending):
            return value if coming not in pending and not readers & pending else False
    return value


def _check_content(what: str, wanted: int, value: CellValue) -> None:
    if value.content < wanted:
        under_way = "is still under way" if value.coming == wanted else "has not even begun"
        raise EarlyRead(f"{what} while the copy or write that fills them {under_way}")
    if value.content > wanted:
        raise EarlyOverwrite(f"{what} after something else has overwritten them")
    if value.coming:
        raise EarlyOverwrite(f"{what} while a copy or write over them is under way already")


def _check_unread(what: str, value: CellValue) -> None:
    if value.readers:
        raise EarlyOverwrite(f"{what} while a store or copy may still be reading them")
