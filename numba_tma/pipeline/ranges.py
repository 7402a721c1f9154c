"""The ranges of loops over tiles: their rules, and the test for their end."""

from __future__ import annotations

from typing import Any

import numpy as np

from numba_tma.backend.interface import Constant, Unknown, compile_time, device_function
from numba_tma.host.environment import simulated
from numba_tma.simulator import BadOperand, check_step


@compile_time
def goes_backwards(what: str, first: object, stop: object, step: Any) -> bool:
    """Return whether a range has a negative step; raise unless it is one of integers, and ends.

    A compiled kernel goes backwards if `step` is a negative literal: a test of the sign would cost
    every loop an instruction.
    """
    for name, given in (("first", first), ("stop", stop), ("step", step)):
        if not is_integer(given):
            raise BadOperand(
                f"{what}({name}=...) takes an integer, not {shown(given)}: use // for whole "
                "quotients, or int(...)"
            )
    if not isinstance(step, Unknown) and step == 0:
        raise BadOperand(f"{what}(step=0): the loop would not end; use a step of 1 or more")
    if isinstance(step, Unknown) or step >= 0:
        return False
    if simulated():
        check_step(what, step)
    return True


@compile_time
def check_forwards(what: str, first: object, stop: object, step: object) -> None:
    """Raise unless a range has integers and a positive step, as far as it is known."""
    if goes_backwards(what, first, stop, step):
        raise BadOperand(
            f"{what}(step={step}): the tiles are loaded ahead in increasing order; iterate "
            "forwards over i, and use the tile first - i"
        )


@device_function
def is_before(tile: int, stop: int, backwards: Constant[bool]) -> bool:
    """Return whether `tile` is before the end of its range."""
    if backwards:
        return tile > stop
    return tile < stop


def is_integer(given: object) -> bool:
    """Return whether an argument is an integer, as far as the compiler knows."""
    if isinstance(given, Unknown):
        return given.is_integer
    return isinstance(given, int | np.integer) and not isinstance(given, bool)


def shown(given: object) -> str:
    """Return an argument in an error's words: its value, or else its type."""
    return str(given) if isinstance(given, Unknown) else repr(given)
