"""Rules of clusters: their size, and the grids that they divide."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

Dim3 = tuple[int, int, int]
F = TypeVar("F")

#: Largest cluster, in blocks, that every GPU with clusters can run.
MAX_BLOCKS = 8

_ATTRIBUTE = "__numba_tma_cluster__"


def cluster_size(size: object, owner: str = "") -> Dim3:
    """Return `size` along x, y and z, or raise a ValueError.

    `owner` is the function or class whose argument `cluster` it is; without one the decorator.
    """
    given = f"{owner}(cluster={size!r})" if owner else f"cluster({size!r})"
    if callable(size):
        raise ValueError("@tma.cluster stands without a size: write @tma.cluster(2)")
    extents = size if isinstance(size, tuple | list) else (size,)
    try:
        x, y, z = _integers(extents)
    except (TypeError, ValueError):
        raise ValueError(
            f"{given}: the size is an integer or a tuple of 1 to 3 integers, for example 2 or "
            "(2, 1, 1)"
        ) from None
    if min(x, y, z) < 1:
        raise ValueError(f"{given}: there is at least 1 block along each axis")
    if x * y * z > MAX_BLOCKS:
        raise ValueError(
            f"{given}: {x * y * z} blocks are more than the {MAX_BLOCKS} that every GPU "
            "with clusters can run. Up to 16 are a non-portable size, which a kernel must be "
            f"allowed before its launch, and a plain launch does not: use {MAX_BLOCKS} or fewer"
        )
    return x, y, z


def _integers(extents: Any) -> list[int]:
    """Return one to three integers as three; missing ones are 1."""
    if not 1 <= len(extents) <= 3 or any(isinstance(n, bool) for n in extents):
        raise TypeError
    return [*map(operator.index, extents), *[1] * (3 - len(extents))]


def pair_rule(given: Dim3) -> str:
    """Return the error of a kernel with CTA pairs that runs in clusters without pairs."""
    return (
        "load(cta_group=2): the two blocks of a CTA pair lie along x of the cluster, but the "
        f"kernel runs in clusters of {given}: put @tma.cluster((2, 1)), or another even number "
        "below @cuda.jit"
    )


def set_cluster(function: F, size: Dim3 | None) -> F:
    """Make the kernel of `function` run in clusters of `size`."""
    if not isinstance(function, FunctionType):
        raise TypeError(
            f"@tma.cluster is given {function!r}: it belongs on the plain function, so write it "
            "below @cuda.jit"
        )
    setattr(function, _ATTRIBUTE, size)
    return function


def cluster_of(function: Callable[..., Any]) -> Dim3 | None:
    """Return the size of the clusters that `function` was decorated with, if it was."""
    return getattr(function, _ATTRIBUTE, None)


def check_device_function(function: Callable[..., Any]) -> None:
    """Raise a ValueError if a function that a kernel calls was given a cluster of its own."""
    if size := cluster_of(function):
        raise ValueError(
            f"{function.__qualname__} is called in a kernel, but stands under @tma.cluster({size}):"
            " only a launch has clusters: decorate the kernel that calls it"
        )


def check_grid(grid: Dim3, size: Dim3) -> None:
    """Raise a ValueError unless clusters of `size` divide `grid`."""
    for axis, blocks, extent in zip("xyz", grid, size):
        if blocks % extent:
            raise ValueError(
                f"grid {tuple(grid)}: the kernel's blocks run in clusters of {size}, and {blocks} "
                f"blocks along {axis} are not a multiple of {extent}: launch "
                f"{-(-blocks // extent) * extent} blocks along {axis}"
            )


def check_group(what: str, cta_group: object) -> None:
    """Raise a ValueError unless `cta_group` is 1 or 2."""
    if cta_group not in (1, 2):
        raise ValueError(f"{what}(cta_group={cta_group!r}): 1, or 2 for a CTA pair")


def pair_cluster(
    what: str, cta_group: int, cluster: int | tuple[int, int] | None
) -> tuple[int, int]:
    """Return the blocks of a cluster along x and y; raise a ValueError if it has half a pair."""
    blocks = cluster_size(cta_group if cluster is None else cluster, what)
    if blocks[0] % cta_group:
        raise ValueError(
            f"{what}(cta_group=2, cluster={cluster}): the two blocks of a CTA pair lie along x, so "
            "the cluster has an even number there: give cluster=(2, 1), and @tma.cluster((2, 1)) "
            "below @cuda.jit"
        )
    return blocks[0], blocks[1]
