"""What the options of public functions and plans may be, and the error of a value that is none.

A `Rule` belongs to one argument or field. `checked` compares a value with its rule; the error names
the owner (a function or class), the argument, the value and the rule::

    eps = checked("rmsnorm", "eps", eps, NOT_NEGATIVE)  # rmsnorm(eps=-1): eps is a number from 0 on
"""

from __future__ import annotations

import math
import numbers
import operator
import reprlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

_LARGEST = float(np.finfo(np.float32).max)  # kernels compute in float32


class Rule(NamedTuple):
    """What a value may be.

    Parameters
    ----------
    text
        The rule, as errors say it after "is".
    of_kind
        Whether a value is of the right type; if not, the error is a TypeError.
    holds
        Whether such a value is allowed; if not, the error is a ValueError.
    convert
        Makes the value what the code behind the check takes.
    """

    text: str
    of_kind: Callable[[Any], bool]
    holds: Callable[[Any], bool] = lambda value: True
    convert: Callable[[Any], Any] = lambda value: value


def checked(owner: str, name: str, value: object, rule: Rule, repair: str = "") -> Any:
    """Return a value, converted, or raise a TypeError or ValueError.

    `repair` is what to do instead, if the rule does not say so.
    """
    if rule.of_kind(value) and rule.holds(value):
        return rule.convert(value)
    error = ValueError if rule.of_kind(value) else TypeError
    text = f"{owner}({name}={reprlib.repr(value)}): {name} is {rule.text}"
    raise error(f"{text}; {repair}" if repair else text)


def check_fields(plan: object, **rules: Rule) -> None:
    """Check fields of a frozen dataclass, in its `__post_init__`, and convert them."""
    owner = type(plan).__name__
    for name, rule in rules.items():
        given = getattr(plan, name)
        value = checked(owner, name, given, rule)
        if value is not given:
            object.__setattr__(plan, name, value)


# ------------------------------------------------------------------------------- numbers


class _Reals(dict[type, bool]):
    def __missing__(self, cls: type) -> bool:
        self[cls] = found = issubclass(cls, numbers.Real) and not issubclass(cls, bool)
        return found


#: Whether the values of a class are real numbers. Each call of a pointwise function asks.
IS_REAL = _Reals()


def _is_real(value: object) -> bool:
    return IS_REAL[type(value)]


def _wide(x: float) -> float:
    """Return a real number that compares as itself: NumPy would round the limit to x's type."""
    return float(x) if isinstance(x, np.floating) else x


#: A real number that float32 can hold.
NUMBER = Rule("a finite number", _is_real, lambda x: -_LARGEST <= _wide(x) <= _LARGEST)
NOT_NEGATIVE = Rule("a number from 0 on", _is_real, lambda x: 0 <= _wide(x) <= _LARGEST)
POSITIVE = Rule("a positive number", _is_real, lambda x: 0 < _wide(x) <= _LARGEST)
#: A real number, infinite ones and NaN too: an argument of the user's own function.
REAL = Rule(
    "a number that float32 can hold",
    _is_real,
    lambda x: -_LARGEST <= _wide(x) <= _LARGEST or not -math.inf < _wide(x) < math.inf,
)


def is_whole(value: object) -> bool:
    """Return whether a value is an integer of Python or NumPy, and no bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def whole(low: int, high: int, step: int = 1) -> Rule:
    """Return the rule of whole numbers from `low` to `high`, multiples of `step`."""
    text = f"a multiple of {step}" if step > 1 else "a whole number"
    text += f" up to {high:,}" if low == step > 1 else f" from {low:,} to {high:,}"
    return Rule(text, is_whole, lambda n: low <= n <= high and n % step == 0, operator.index)


def power_of_2(low: int, high: int) -> Rule:
    """Return the rule of powers of 2 from `low` to `high`."""
    text = f"a power of 2, {low:,} to {high:,}" if low > 1 else f"a power of 2, up to {high:,}"
    powers = {1 << k for k in range(high.bit_length())}
    return Rule(text, is_whole, lambda n: low <= n <= high and n in powers, operator.index)


# ------------------------------------------------------------------------------- choices

FLAG = Rule("True or False", lambda value: isinstance(value, bool | np.bool_), convert=bool)


def one_of(*choices: object, unit: str = "") -> Rule:
    """Return the rule of some values of one type, integers (of a unit) or strings."""
    of_kind = is_whole if is_whole(choices[0]) else lambda value: isinstance(value, str)
    *some, last = map(repr, choices)
    text = f"{', '.join(some)} or {last}" if some else last
    text += f" {unit}" * bool(unit)
    return Rule(text, of_kind, lambda value: value in choices, type(choices[0]))


def instance(*kinds: type) -> Rule:
    """Return the rule of objects of these classes, and of no class derived from one."""
    names = [kind.__name__ for kind in kinds]
    return Rule(f"a {' or '.join(names)}", lambda value: type(value) in kinds)


def optional(rule: Rule) -> Rule:
    """Return the rule with None allowed besides."""

    def or_none(test: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda value: value is None or test(value)

    return Rule(
        f"{rule.text}, or None",
        or_none(rule.of_kind),
        or_none(rule.holds),
        lambda value: None if value is None else rule.convert(value),
    )
