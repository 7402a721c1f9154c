"""Case number n: a program and, in most cases, one mistake in it."""

from __future__ import annotations

import functools
from typing import Any

from tests.generated import (  # noqa: F401  # most of them enter families and mistakes
    copies,
    draws,
    maps,
    one_half,
    operand_mistakes,
    pipelines,
    python_mistakes,
    rings,
)
from tests.generated.mistakes import MISTAKES
from tests.generated.program import Case
from tests.tiers import quick

#: Cases of `make test`. They share objects, whose bodies are compiled once.
FEW = 500
#: Cases whose programs share objects.
BLOCK = 100
#: Cases of `make test-all`, the few included; some are the same, and 5,000 are not.
MANY = 6200
#: Of the cases, one in this many is valid. A compiler takes 20 times as long for these.
VALID = 25
#: Of these, one in this many is assembled by ptxas.
ASSEMBLED = 2 * VALID


@functools.cache
def case(number: int) -> Case:
    """Return a case, the same one in every process."""
    rng = draws.Draw(number, max(0, (number - FEW) // BLOCK + 1))
    if number % VALID == 0:
        return Case(number, draws.draw(rng))
    mistake = MISTAKES[(number - number // VALID) % len(MISTAKES)]
    while not mistake.fits(program := draws.draw(rng)):
        pass
    return Case(number, program, mistake)


def blocks() -> list[Any]:
    """Return the numbers of the cases for a parametrize, `FEW` of them quick."""
    numbers = [range(start, start + BLOCK) for start in range(0, MANY, BLOCK)]
    return quick(lambda block: block.start < FEW, numbers)
