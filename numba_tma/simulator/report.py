"""Texts of reports: compressed lists of threads, operations, and deadlocks."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from numba_tma.simulator.barriers import MbarrierWait
from numba_tma.simulator.protocol import (
    Arrive,
    ArriveAfterCopies,
    AwaitCopies,
    AwaitMeeting,
    AwaitStores,
    CommitProducts,
    CopyAsync,
    CountBytes,
    Init,
    Inval,
    Issue,
    IssueStore,
    Meet,
    Multiply,
    Operation,
    Run,
    Wait,
)
from numba_tma.simulator.turns import lines_of_turns

if TYPE_CHECKING:
    from numba_tma.simulator.thread import SimulatedThread


class Lane(Protocol):
    """A thread's place in the grid."""

    block: tuple[int, int, int]
    warp: int
    lane: int


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers as compressed ranges: 0-3, 7."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def threads_in_words(threads: Iterable[Lane]) -> str:
    """Return threads by block, warp and lane; warps with the same lanes are listed together."""
    lanes: defaultdict[tuple[tuple[int, ...], int], list[int]] = defaultdict(list)
    for thread in threads:
        lanes[thread.block, thread.warp].append(thread.lane)
    warps: defaultdict[tuple[tuple[int, ...], str], list[int]] = defaultdict(list)
    for (block, warp), members in lanes.items():
        warps[block, ranges(members)].append(warp)
    parts: defaultdict[tuple[int, ...], list[str]] = defaultdict(list)
    for (block, members_text), numbers in warps.items():
        warp_word = "warp" if len(numbers) == 1 else "warps"
        lane_word = "lane" if members_text.isdecimal() else "lanes"
        parts[block].append(f"{warp_word} {ranges(numbers)} {lane_word} {members_text}")
    return "; ".join(f"block {block}: " + "; ".join(texts) for block, texts in parts.items())


def deadlock_report(threads: Sequence[SimulatedThread]) -> str:
    """Return the waits of all threads, once no thread can run and no copy is in flight."""
    waiting: defaultdict[str, list[SimulatedThread]] = defaultdict(list)
    for thread in threads:
        if thread.wait is not None:
            waiting[thread.wait.headline()].append(thread)
    lines = [f"  {headline}: {threads_in_words(members)}" for headline, members in waiting.items()]
    exited = [thread for thread in threads if thread.exited]
    if exited:
        lines.append(f"  exited: {threads_in_words(exited)}")
    lines += _ranges_differ(waiting) if exited else []
    waits = [thread.wait for thread in threads]
    lines += lines_of_turns(wait.barrier for wait in waits if isinstance(wait, MbarrierWait))
    return "\n".join(["every live thread waits and no copy is under way", *lines])


def _ranges_differ(headlines: Iterable[str]) -> list[str]:
    """Return the usual cause of waits for a pipeline's stages when threads have exited."""
    stages = [line for line in headlines if re.match(r"(full|empty)\[\d+\] of \w*Pipeline\(", line)]
    if any(line.startswith("empty") for line in stages):  # consumers wait in turn for the producer
        return [
            "  the consumers have released fewer stages than the producer fills: release each "
            "stage on every way through the loop, and give both sides the same range, computed once"
        ]
    if any(", 0 bytes missing" in line for line in stages):  # otherwise a load is missing
        return [
            "  the producer has filled fewer stages than its consumers wait for: give both sides "
            "the same range, computed once (and pipe.windows a producer with pipe.produce_windows)"
        ]
    return []


def operation_in_words(operation: Operation, run: Run) -> str:
    """Return the text of an operation, with the names of barriers and bytes."""
    match operation:
        case Init(barrier, count):
            return f"init {run.barrier_name(barrier)} for {count} arrivals"
        case Inval(barrier):
            return f"inval {run.barrier_name(barrier)}"
        case Arrive(barrier, count, nbytes, drop):
            bytes_too = "" if nbytes is None else f", expecting {nbytes} bytes"
            twice = "" if count == 1 else f" {count} times"
            return f"arrive{'_drop' * drop}{twice} on {run.barrier_name(barrier)}{bytes_too}"
        case CountBytes(barrier, nbytes):
            verb = "expect" if nbytes >= 0 else "complete"
            return f"{verb} {abs(nbytes)} bytes on {run.barrier_name(barrier)}"
        case Wait(barrier, wanted, by_token):
            phase = f"phase {wanted}" if by_token else f"parity {wanted}"
            return f"wait for {phase} of {run.barrier_name(barrier)}"
        case Issue(transfers):
            return "load " + " and ".join(run.span_name(transfer.into) for transfer in transfers)
        case IssueStore(_, source):
            return f"store {run.span_name(source)}"
        case AwaitStores():
            return "wait for its stores to have read"
        case CopyAsync(_, _, into):
            return f"cp.async into {run.span_name(into)}"
        case AwaitCopies():
            return "wait for its cp.async copies"
        case ArriveAfterCopies(barrier):
            return f"let its cp.async copies arrive on {run.barrier_name(barrier)}"
        case Multiply(_, sources):
            return f"tcgen05 reads {', '.join(dict.fromkeys(map(run.span_name, sources)))}"
        case CommitProducts(_, barriers):
            return f"tcgen05.commit on {', '.join(map(run.barrier_name, barriers))}"
        case Meet(name=name, blocking=blocking):
            return f"{'wait' if blocking else 'arrive'} at {name}"
        case AwaitMeeting():
            return "wait for the cluster"
    return str(operation)
