"""Cluster launch control: requests that take the places of blocks that have not begun."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from numba_tma.simulator.copy_instructions import load_bytes
from numba_tma.simulator.errors import BadOperand, SimulatorError
from numba_tma.simulator.launch_queue import BlockIndex, LaunchQueue
from numba_tma.simulator.protocol import Unmodelled
from numba_tma.simulator.thread import current

ANSWER_BYTES = 16
#: In bit 127 of an answer: whether a block was taken. Three words of 32 bits are its index.
_CANCELED = 1 << 31


def try_cancel(response: int, mbar: int, multicast: str | None) -> None:
    """Ask for a block that has not begun; the answer completes 16 bytes on `mbar`."""
    what = "clusterlaunchcontrol_try_cancel"
    thread, response = current(), int(response)
    thread.note(Unmodelled, what)
    if response % ANSWER_BYTES:
        raise BadOperand(
            f"{what}: response is at shared address {response}; it must be a multiple of "
            f"{ANSWER_BYTES}"
        )
    queue, asking = _queue()
    if asking in queue.has_seen_failure:
        raise SimulatorError(
            f"{what} after an answer that nothing was cancelled is undefined: end the loop at "
            "the first such answer"
        )
    taken = queue.take(asking)
    words = np.array([*taken, _CANCELED] if taken else [0] * 4, np.uint32)
    everywhere = None if multicast is None else (1 << len(thread.cta.cluster)) - 1
    for block in [thread.cta] if multicast is None else thread.cta.cluster:
        block.hazards.check_fenced_reads(thread.row, response, ANSWER_BYTES, "request")
    load_bytes(what, response, words.view(np.uint8), mbar, everywhere)


def is_canceled(response: Sequence[int]) -> bool:
    """Return whether a request took a block."""
    found = _canceled(response) is not None
    if not found:
        queue, asking = _queue()
        queue.has_seen_failure.add(asking)
    return found


def first_ctaid(response: Sequence[int]) -> BlockIndex:
    """Return the index of the first block that a request took."""
    current()
    found = _canceled(response)
    if found is None:
        raise SimulatorError(
            "clusterlaunchcontrol_query_cancel_get_first_ctaid of an answer that nothing was "
            "cancelled is undefined: call it if is_canceled is True"
        )
    return found


def _canceled(response: Sequence[int]) -> BlockIndex | None:
    low, high = (int(half) & 0xFFFFFFFFFFFFFFFF for half in response)
    if not high >> 32 & _CANCELED:
        return None
    return low & 0xFFFFFFFF, low >> 32, high & 0xFFFFFFFF


def _queue() -> tuple[LaunchQueue, BlockIndex]:
    """Return the launch's queue, and the first block of the thread's cluster."""
    cta = current().cta
    assert cta.launch_queue is not None
    return cta.launch_queue, cta.cluster[0].index
