"""Turns in which the consumer warpgroups of a block start their products.

Warpgroups that start together stay in step for a while: all of them compute exponentials at the
same time, while the tensor cores are idle. With turns, one starts the products of a step when the
one before has started its own, so the products of one run beside the exponentials of another from
the first K/V tiles on.

Warpgroup i waits for its turn at named barrier ``FIRST_TURN + i``, where the one before arrives.
The last one arrives before the first turn, and the first one waits after the last. All warpgroups
of a block take equally many turns, one for each K/V tile but the first of each tile of queries.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba_tma.backend.interface import device_function, u32
from numba_tma.host.annotations import Integer
from numba_tma.host.warpgroup import THREADS
from numba_tma.kernels.attention.plan import AttentionForm
from numba_tma.ptx import barrier_arrive, barrier_sync

FIRST_TURN = 8  #: named barrier; roles and pipelines use those before


class WarpgroupTurn(NamedTuple):
    """The named barriers of a warpgroup's turns."""

    mine: Any
    following: Any  #: of the next warpgroup


@device_function
def begin_turns(form: AttentionForm, warpgroup: Integer) -> WarpgroupTurn:
    """Return the barriers of a warpgroup. The last warpgroup lets the first one begin."""
    following = u32(warpgroup + 1)
    if following == form.warpgroups:
        following = u32(0)
        if form.turns:
            barrier_arrive(FIRST_TURN, 2 * THREADS)
    return WarpgroupTurn(u32(FIRST_TURN + warpgroup), u32(FIRST_TURN + following))


@device_function
def take_turn(form: AttentionForm, turn: WarpgroupTurn, v: Any) -> None:
    """Wait for V, and then for the turn: no warpgroup holds its turn while V is loaded."""
    if form.turns:
        v.wait()
        barrier_sync(turn.mine, 2 * THREADS)


@device_function
def pass_turn(form: AttentionForm, turn: WarpgroupTurn) -> None:
    """Let the next warpgroup start its products. Those of this one have started."""
    if form.turns:
        barrier_arrive(turn.following, 2 * THREADS)


@device_function
def end_turns(form: AttentionForm, warpgroup: Integer) -> None:
    """Let the first warpgroup meet the arrival that follows the last turn."""
    if form.turns and warpgroup == 0:
        barrier_sync(FIRST_TURN, 2 * THREADS)
