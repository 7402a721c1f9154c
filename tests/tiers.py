"""Which cases of a test `make test` runs: a few of each kind. `make test-all` runs them all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def quick(chosen: Iterable[Any] | Callable[[Any], bool], cases: Iterable[Any]) -> list[Any]:
    """Return the cases of a parametrize, of which those that are not `chosen` are slow.

    A tuple is a case of several arguments. What is chosen has to be among the cases.
    """
    cases = list(cases)
    if not callable(chosen):
        names = list(chosen)
        missing = [name for name in names if name not in cases]
        assert names and not missing, f"{missing} are not among the cases"
    is_quick = chosen if callable(chosen) else names.__contains__
    marks = [[] if is_quick(case) else [pytest.mark.slow] for case in cases]
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=mark)
        for case, mark in zip(cases, marks)
    ]


def every(step: int, cases: Iterable[Any]) -> list[Any]:
    """Return the cases of a parametrize, of which each `step`-th is not slow."""
    cases = list(cases)
    return quick(cases[::step], cases)


def seeds(few: int, many: int) -> Any:
    """Give a test the argument `seeds`: a few in every run, those up to `many` where it is slow."""
    more = pytest.param(range(few, many), id="more seeds", marks=pytest.mark.slow)
    return pytest.mark.parametrize("seeds", [pytest.param(range(few), id="few seeds"), more])
