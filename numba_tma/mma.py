"""Matrix products of a warpgroup (wgmma) and the fragments that its threads hold."""

from __future__ import annotations

from typing import Any

from numba_tma._environment import simulated


class Fragment:
    """A matrix of 64 x n in the registers of a warpgroup."""


class Rows:
    """A number for each of the two rows that a thread holds of a fragment."""


def fragment(n: int, dtype: str = "f32") -> Any:
    """Return a fragment of 64 x n zeros."""
    raise NotImplementedError


def rows(value: float) -> Any:
    """Return `Rows` of one value."""
    raise NotImplementedError


def load_fragment(tile: Any, at: Any, n: int) -> Any:
    """Return the 64 x n elements of a shared tile from `at` on."""
    raise NotImplementedError


def wgmma(
    acc: Any,
    a: Any,
    b: Any,
    *,
    scale_d: bool = True,
    negate_a: bool = False,
    negate_b: bool = False,
    k_steps: int | None = None,
    fence: bool = True,
    commit: bool = True,
) -> Any:
    """Start adding the product of two operands to a fragment."""
    raise NotImplementedError


def wgmma_wait(fragments: Any, pending: int = 0) -> Any:
    """Wait until at most `pending` groups are under way."""
    raise NotImplementedError


if not simulated():
    from numba_tma import _mma_lowering  # noqa: F401
