"""Threads in words: compressed lists of them, and the report of a deadlock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from .thread import SimulatedThread


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers as compressed ranges: 0-3, 7."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def threads_in_words(threads: Iterable[SimulatedThread]) -> str:
    """Return threads by block, warp and lane; warps with the same lanes stand together."""
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
    """Say who waits for what, once no thread can run and no copy is under way."""
    waiting: defaultdict[str, list[SimulatedThread]] = defaultdict(list)
    for thread in threads:
        if thread.wait is not None:
            waiting[thread.wait.headline()].append(thread)
    lines = [f"  {headline}: {threads_in_words(members)}" for headline, members in waiting.items()]
    exited = [thread for thread in threads if thread.exited]
    if exited:
        lines.append(f"  exited: {threads_in_words(exited)}")
    return "\n".join(["every live thread waits and no copy is under way", *lines])
