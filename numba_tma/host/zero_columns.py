"""The zero-column mask of a weight-stationary product: which columns of B count as zeros.

64 bits describe runs of columns. The mask has a part for each fold of the accumulator: 1 with 128
rows, 2 with 64, 4 with 32. A part alternates between runs of used and of zero columns, each kind of
one length in all parts; only the first run of a part may be shorter, and the last is cut off.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from numba_tma.host.host_only import host_only

LANES = 128
ON = 1 << 39
#: First bits of the spans of zero and of used columns, and of each part's first state.
ZERO_SPAN, USED_SPAN, STATES = 40, 48, 32

Runs = list[tuple[bool, int]]


@host_only
def zero_column_mask(zero: Sequence[bool], m: int) -> int:
    """Return the mask with which columns of B count as zeros, for `tcgen05_mma_ws`.

    Parameters
    ----------
    zero
        For each column of D whether it is zero: 64, 128 or 256 of them.
    m
        Rows of the product: 32, 64 or 128.

    Raises
    ------
    ValueError
        When the columns are no runs of one length each.

    Examples
    --------
    >>> hex(zero_column_mask([False, False, True, True] * 16, 128))
    '0x1018000000000'
    """
    columns = [bool(column) for column in zero]
    if m not in (32, 64, LANES) or len(columns) not in (64, 128, 256):
        raise ValueError(
            f"zero_column_mask: {len(columns)} columns and m {m}; a product has 64, 128 or 256 "
            "columns and 32, 64 or 128 rows"
        )
    width = len(columns) * m // LANES
    parts = [_runs(columns[i : i + width]) for i in range(0, len(columns), width)]
    spans = {state: _span(state, parts) for state in (False, True)}
    mask = ON | spans[True] - 1 << ZERO_SPAN | spans[False] - 1 << USED_SPAN
    for part, runs in enumerate(parts):
        state, length = runs[0]
        mask |= state << STATES + part | spans[state] - length << 8 * part
    return mask


def _runs(columns: list[bool]) -> Runs:
    return [(state, len(list(run))) for state, run in groupby(columns)]


def _span(state: bool, parts: list[Runs]) -> int:
    """Return the length of the runs of a state, or raise a ValueError."""
    whole = {length for runs in parts for s, length in runs[1:-1] if s == state}
    ends = [length for runs in parts for s, length in (runs[0], runs[-1]) if s == state]
    span = max([*whole, *ends], default=1)
    if whole - {span}:
        raise ValueError(
            f"zero_column_mask: runs of {'zero' if state else 'used'} columns have lengths "
            f"{', '.join(map(str, sorted(whole | {span})))}; all of a kind have one length, but "
            "for a shorter first and last of each part of the columns"
        )
    return span


def zero_columns(mask: int, m: int, n: int) -> NDArray[np.bool_] | None:
    """Return the columns that a mask makes zero; None if it is off.

    Raises
    ------
    ValueError
        When the first run of a part has no column.
    """
    if not mask & ON:
        return None
    parts = LANES // m
    spans = {True: (mask >> ZERO_SPAN & 0xFF) + 1, False: (mask >> USED_SPAN & 0xFF) + 1}
    zero = []
    for part in range(parts):
        state, start = bool(mask >> STATES + part & 1), mask >> 8 * part & 0xFF
        left = spans[state] - start
        if left <= 0:
            raise ValueError(
                f"the zero-column mask {mask:#x} skips {start} columns of a first run of "
                f"{spans[state]} (sub-mask {part})"
            )
        for _ in range(n // parts):
            while left == 0:
                state = not state
                left = spans[state]
            zero.append(state)
            left -= 1
    return np.array(zero)
