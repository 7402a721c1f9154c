"""What a family of random calls is: the choices of a call, its arrays, and what they must become.

A case is plain data: ``{"family": name, "seed": n, "choices": {...}, "views": {...}, ...}``. The
first value of each choice is the simplest; a failure is reduced towards it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.fuzz.memory import EPS32 as EPS32
from tests.fuzz.memory import TYPES

Case = dict[str, Any]
#: (expected, what it may be wrong by besides one rounding to its type); None if exact.
Bound = tuple[Any, Any]


@dataclass(frozen=True)
class Draw:
    """A choice of a call: one of `values`, or a whole number from `low` to `high`."""

    values: tuple[Any, ...] = ()
    low: int = 0
    high: int = 0
    tiny: int = 0  #: the largest in the simulator
    fixed: bool = False  #: one of few in a pool, since each is a compilation
    few: tuple[Any, ...] = ()  #: the values in the simulator

    def take(self, rng: np.random.Generator, tiny: bool) -> Any:
        """Draw a value."""
        if self.values:
            values = self.few if tiny and self.few else self.values
            return values[int(rng.integers(len(values)))]
        high = min(self.high, self.tiny) if tiny else self.high
        kind = rng.integers(8)
        if kind == 0:
            return self.low
        if kind < 4:  # around the sizes of tiles
            near = int(rng.choice([8, 16, 32, 64, 128, 256, 512, 1024])) + int(rng.integers(-1, 2))
            return min(max(near, self.low), high)
        return int(np.exp(rng.uniform(np.log(self.low + 1), np.log(high + 2)))) - 1 or self.low


def one(*values: Any, few: tuple[Any, ...] = ()) -> Draw:
    """Return a choice among values that need no compilation."""
    return Draw(values, few=few)


def kind(*values: Any, few: tuple[Any, ...] = ()) -> Draw:
    """Return a choice among values, of which each is a compilation."""
    return Draw(values, fixed=True, few=few)


def size(low: int, high: int, tiny: int, fixed: bool = False) -> Draw:
    """Return the choice of a number."""
    return Draw((), low, high, tiny, fixed)


@dataclass
class Problem:
    """The arrays of a call, and what must come of it."""

    arrays: dict[str, Any]  #: inputs by argument; a list is a list of arrays
    outputs: dict[str, tuple[tuple[int, ...], str]]  #: shape and type by argument
    expect: Callable[[], dict[str, Bound]]
    options: dict[str, Any] = field(default_factory=dict)
    in_place: dict[str, str] = field(default_factory=dict)  #: output: the input that it replaces
    views: tuple[str, ...] = ()  #: arrays that may be any view with contiguous rows
    aligned: bool = False  #: whether rows start at multiples of 16 B
    refusable: bool = False  #: whether it may be impossible, which a sentence says
    returned: tuple[str, ...] = ("out",)  #: outputs that are new arrays if they are not given
    ulps: float = 0.51  #: of the result's type, for its rounding
    dtype: str | None = None  #: of bits, where the function has this argument


@dataclass(frozen=True)
class Family:
    """Calls of one public function."""

    function: Callable[..., Any]
    choices: dict[str, Draw]
    problem: Callable[[Any, np.random.Generator], Problem]
    weight: int = 1  #: how often it is drawn

    @property
    def name(self) -> str:
        """Return the function's name."""
        return str(getattr(self.function, "__name__", self.function)).lstrip("_")


def normal(rng: np.random.Generator, shape: tuple[int, ...], name: str) -> Any:
    """Return random values of a type: normal ones, or for integers any bits."""
    dtype = np.dtype(TYPES[name])
    if dtype.kind in "iu":
        return rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8).view(dtype)[..., 0]
    return rng.standard_normal(shape).astype(dtype)


def wide(x: Any) -> Any:
    """Return an array in float64."""
    return np.asarray(x).astype(np.float64)
