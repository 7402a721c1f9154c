"""`Moves`: how the launches of a call follow its arrays to other addresses, as two calls showed.

To prepare a call takes a hundred times as long as to repeat it, and results of an allocator lie at
ever new addresses. Two calls whose arrays differ in their addresses alone have launches that differ
in parameters that are addresses. So a parameter that grew by as much as an array has moved follows
this array from then on, and a third call needs no preparation.

Arrays that moved equally far between the two calls form a group: which of them a parameter follows
is unknown, so they must stay together. Those that stayed where they were must stay there.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numba_tma.host.array_interface import byte_strides, read_array, readers
from numba_tma.host.driver import misplaced, replace_address
from numba_tma.host.dtypes import storage_itemsize
from numba_tma.host.parameters import MAP_FORM
from numba_tma.kernels._host.launch import Launch

#: Kernels are chosen by what addresses are multiples of, up to 128 B: arrays move in such steps.
STEP = 512

#: Bytes before an array's address, and from it to the end, of each array.
Spans = tuple[tuple[int, int], ...]


def spans_of(arrays: Sequence[Any]) -> Spans | None:
    """Return the spans of arrays; None if one is empty, or of unknown element size."""
    spans = []
    for array in arrays:
        _, shape, strides, stored, in_elements, _ = readers.get(type(array), read_array)(array)[0]
        itemsize = storage_itemsize(stored, 0)
        if not itemsize or 0 in shape:
            return None
        steps = byte_strides(tuple(shape), strides and tuple(strides), in_elements, itemsize)
        ends = [(n - 1) * step for n, step in zip(shape, steps)]
        before = sum(end for end in ends if end < 0)
        spans.append((before, sum(end for end in ends if end > 0) + itemsize))
    return tuple(spans)


@dataclass(frozen=True, slots=True)
class Moves:
    """What `learned` returns."""

    launches: tuple[Any, ...]  #: of a call
    addresses: tuple[int, ...]  #: of its arrays
    spans: Spans  #: of its arrays
    groups: tuple[int, ...]  #: of each array: the first of its group, or -1 if it stayed
    #: For each launch its parameters that follow an array: their numbers, and the array's.
    followers: tuple[tuple[tuple[int, int], ...], ...]

    def launched_at(self, addresses: tuple[int, ...]) -> list[Launch] | None:
        """Return the launches for arrays at other addresses; None if they must be prepared.

        They must be if arrays moved otherwise than they did, overlap, or are inaccessible. They
        have moved by multiples of `STEP`.
        """
        moved = [new - old for new, old in zip(addresses, self.addresses)]
        for distance, group in zip(moved, self.groups):
            if distance != (0 if group < 0 else moved[group]):
                return None
        if not _are_apart(addresses, self.spans, self.groups):
            return None
        if any(misplaced(address) for address, distance in zip(addresses, moved) if distance):
            return None
        launches: list[Launch] = []
        for launch, followers in zip(self.launches, self.followers):
            fields, changed = launch.parameters.fields, {}
            for number, array in followers:
                form, value = fields[number]
                changed[number] = (
                    replace_address(value, addresses[array])
                    if form == MAP_FORM
                    else value + moved[array]
                )
            launches.append(launch.with_parameters(launch.parameters.changed(changed)))
        return launches


def learned(
    first: Sequence[Any],
    first_at: tuple[int, ...],
    second: Sequence[Any],
    second_at: tuple[int, ...],
    spans: Spans,
) -> Moves | None:
    """Return how launches follow arrays; None if two calls do not show it.

    Parameters
    ----------
    first, second
        The launches of two calls that differ in the addresses of their arrays alone.
    first_at, second_at
        These addresses, which differ by multiples of `STEP`.
    """
    moved = [new - old for new, old in zip(second_at, first_at)]
    groups = tuple(moved.index(distance) if distance else -1 for distance in moved)
    if not _are_apart(first_at, spans, groups) or not _are_apart(second_at, spans, groups):
        return None
    if len(first) != len(second):
        return None
    followers = []
    for one, other in zip(first, second):
        if getattr(one, "prepared", None) is None or one.prepared != getattr(other, "prepared", 0):
            return None  # of another kernel or grid, or one that only numba-cuda launches
        found = _followers(one.parameters.fields, other.parameters.fields, moved, first_at, spans)
        if found is None:
            return None
        followers.append(found)
    return Moves(tuple(first), first_at, spans, groups, tuple(followers))


def _followers(
    first: Sequence[tuple[str, Any]],
    second: Sequence[tuple[str, Any]],
    moved: list[int],
    first_at: tuple[int, ...],
    spans: Spans,
) -> tuple[tuple[int, int], ...] | None:
    """Return the parameters of a launch that follow an array; None if one differs otherwise."""
    found = []
    for number, ((form, old), (other_form, new)) in enumerate(zip(first, second, strict=True)):
        if form != other_form:
            return None
        if old == new:
            continue
        for array, (distance, at, (before, end)) in enumerate(zip(moved, first_at, spans)):
            if not distance:
                continue
            if form == MAP_FORM:
                follows = _replaced(old, at + distance) == new
            else:
                follows = form in "qQ" and new - old == distance and before <= old - at <= end
            if follows:
                found.append((number, array))
                break
        else:
            return None
    return tuple(found)


def _replaced(encoded: bytes, address: int) -> bytes | None:
    try:
        return replace_address(encoded, address)
    except RuntimeError:  # of a driver without the function
        return None


def _are_apart(addresses: tuple[int, ...], spans: Spans, groups: tuple[int, ...]) -> bool:
    """Return whether arrays of different groups share no memory; those of one stay as they are."""
    places = [
        (at + before, at + end, group) for at, (before, end), group in zip(addresses, spans, groups)
    ]
    return all(
        group == other or end <= begin or other_end <= start
        for (start, end, group), (begin, other_end, other) in itertools.combinations(places, 2)
    )
