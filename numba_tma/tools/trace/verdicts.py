"""What limits a traced launch, and the repair: one rule a function.

A rule is given a launch, and says nothing or a `Verdict`. Its share is that of the time which the
warps concerned lose. A summary shows the verdicts in the order of their shares.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from typing import NamedTuple

from numba_tma.host.architectures import static_shared
from numba_tma.tools.trace.facts import PipelineFacts, block_times, pipelines_of, shares_of
from numba_tma.tools.trace.spans import TracedLaunch

#: A share of time that is worth a word.
NOTABLE = 0.15
#: Nanoseconds in which a stage changes hands: two waits, a fence, two arrivals.
HANDOVER = 300
#: Bytes below which a load is small.
SMALL = 2048
#: A share of the memory's bandwidth that leaves nothing to win.
SATURATED = 0.75


class Verdict(NamedTuple):
    """What a rule says."""

    kind: str
    share: float  #: of the time that is lost, 0 to 1
    text: str  #: what was seen, and the repair


Rule = Callable[[TracedLaunch, list[PipelineFacts]], Iterator[Verdict]]
RULES: list[Rule] = []


def _rule(rule: Rule) -> Rule:
    RULES.append(rule)
    return rule


def verdicts_of(launch: TracedLaunch) -> list[Verdict]:
    """Return what the rules say of a launch, the most important first."""
    pipelines = pipelines_of(launch)  # once: all that is known of them is computed from spans
    found = [verdict for rule in RULES for verdict in rule(launch, pipelines)]
    return sorted(found, key=lambda verdict: -verdict.share)


def bandwidth_of(launch: TracedLaunch, facts: PipelineFacts) -> float:
    """Return the bytes per ns that the grid loads into this pipeline, from the traced blocks'."""
    blocks = {fill.block for fill in facts.fills}
    if not blocks or not launch.duration:
        return 0.0
    at_once = min(math.prod(launch.grid), launch.num_processors or len(blocks))
    times = block_times(launch)
    rates = [
        sum(f.nbytes for f in facts.fills if f.block == block) / times[block]
        for block in blocks
        if times.get(block)
    ]
    return statistics.fmean(rates) * at_once if rates else 0.0


@_rule
def starved(launch: TracedLaunch, pipelines: list[PipelineFacts]) -> Iterator[Verdict]:
    """Consumers wait for full stages: because of the memory, the ring, or the producer."""
    for facts in pipelines:
        consumer, producer = facts.consumer, facts.producer
        share, name = facts.starved, facts.name.partition("(")[0]
        if consumer is None or share < NOTABLE:
            continue
        seen = f"{name}: consumers wait {share:.0%} of their time for full stages after the first"
        flight = f"{facts.in_flight / 1024:.1f} KiB are in flight in a block"
        waits = producer.of("empty") if producer else 0.0
        if launch.unit == "ns" and 0 < facts.load_nbytes < SMALL and waits < 0.5:
            yield Verdict(
                "small loads", share,
                f"{seen}, and a load brings {facts.load_nbytes:,.0f} B: use larger boxes, of 4 KiB "
                "or more, since each load costs the producer and the copy engine as much",
            )  # fmt: skip
        elif waits < NOTABLE:
            yield Verdict(
                "producer", share,
                f"{seen}, and the producer waits {waits:.0%} of its time for empty ones: stages "
                "are free, but it issues the loads late: move work out of its loop",
            )  # fmt: skip
        elif launch.bandwidth and bandwidth_of(launch, facts) > SATURATED * launch.bandwidth:
            rate = bandwidth_of(launch, facts)
            yield Verdict(
                "memory", share,
                f"{seen}, and the grid loads {rate:,.0f} GB/s of the memory's "
                f"{launch.bandwidth:,.0f}: memory-bound; load fewer bytes, or share them in "
                "clusters (multicast)",
            )  # fmt: skip
        else:
            yield Verdict("latency", share, f"{seen}, and {flight}{_need(launch, facts)}: "
                          f"{_more_stages(launch, facts)}")  # fmt: skip


def _need(launch: TracedLaunch, facts: PipelineFacts) -> str:
    """Say how many bytes in flight the memory's bandwidth needs at this latency."""
    if not (facts.latency and launch.bandwidth and launch.num_processors):
        return ""
    need = facts.latency * launch.bandwidth / launch.num_processors
    return (
        f", where a latency of {facts.latency:,.0f} ns needs {need / 1024:.0f} KiB on each SM to "
        "use all of the memory's bandwidth"
    )


def _more_stages(launch: TracedLaunch, facts: PipelineFacts) -> str:
    stage = facts.stage_nbytes
    if launch.shared_nbytes and stage:
        free = static_shared("90a") - launch.shared_nbytes
        if more := int(free // stage):
            return f"add stages, {more} more fit"
        return "no stage more fits: use smaller tiles and more stages, or two blocks an SM"
    return "add stages"


@_rule
def small_stages(launch: TracedLaunch, pipelines: list[PipelineFacts]) -> Iterator[Verdict]:
    """Stages are so small that handing them over takes most of the time."""
    if launch.unit != "ns":
        return
    times = block_times(launch)
    for facts in pipelines:
        turns = len(facts.fills) / max(1, len({fill.block for fill in facts.fills}))
        if turns < 8 or facts.stage_nbytes >= 2 * SMALL:
            continue
        period = statistics.fmean(times.values()) / turns
        if HANDOVER / period >= NOTABLE:
            name = facts.name.partition("(")[0]
            yield Verdict(
                "small stages", min(1.0, HANDOVER / period),
                f"{name}: a stage of {facts.stage_nbytes:,.0f} B changes hands every {period:,.0f} "
                f"ns, of which waits, fences and arrivals are some {HANDOVER}: use larger tiles, "
                "or several in a stage (k_group)",
            )  # fmt: skip


@_rule
def compute_bound(launch: TracedLaunch, pipelines: list[PipelineFacts]) -> Iterator[Verdict]:
    """Consumers set the pace: the producer waits for empty stages."""
    said = set()
    for facts in pipelines:
        consumer, producer = facts.consumer, facts.producer
        if consumer is None or producer is None:
            continue
        if producer.of("empty") < 2 * NOTABLE or facts.starved >= NOTABLE:
            continue
        if (producer.role, consumer.role) in said:  # of another pipeline of the same warps
            continue
        said.add((producer.role, consumer.role))
        marks = sorted(consumer.marks.items(), key=lambda mark: -mark[1])[:1]
        parts = [f"{mark!r} takes {spent:.0%}" for mark, spent in marks if spent >= 0.005]
        if consumer.of("products") >= NOTABLE:
            parts.append(f"waits for the tensor cores take {consumer.of('products'):.0%}")
        where = f"; of the consumers' time {', '.join(parts)}" if parts else ""
        name = facts.name.partition("(")[0]
        yield Verdict(
            "compute", 0.0,
            f"{name}: the producer waits {producer.of('empty'):.0%} of its time for empty stages, "
            f"and consumers {facts.starved:.0%} for full ones after the first: "
            f"compute-bound{where}",
        )  # fmt: skip


@_rule
def drains(launch: TracedLaunch, pipelines: list[PipelineFacts]) -> Iterator[Verdict]:
    """Warps wait for their stores, and perhaps others for them."""
    for role, (share, last) in _meetings(launch).items():
        own = shares_of(launch, _warps(launch, role)).of("drain")
        late = shares_of(launch, [(block, last) for block in launch.blocks]).of("drain")
        lost = own + share if share and late > 0.6 * share else own
        if lost < NOTABLE:
            continue
        longest = max(launch.of("drain"), key=lambda span: span.duration)
        at = f" at {longest.line}" if longest.line else ""
        yield Verdict(
            "drain", lost,
            f"{_named(role)} lose {lost:.0%} of their time to stores that drain (longest: "
            f"{longest.duration:,.0f} {launch.unit}{at}): store from a second tile and wait one "
            "store later (StorePipeline, in_flight=1)",
        )  # fmt: skip


@_rule
def meetings(launch: TracedLaunch, pipelines: list[PipelineFacts]) -> Iterator[Verdict]:
    """Warps wait for one that works longer."""
    for role, (share, last) in _meetings(launch).items():
        late = shares_of(launch, [(block, last) for block in launch.blocks])
        if share < NOTABLE or late.of("drain") > 0.6 * share:
            continue
        yield Verdict(
            "meeting", share,
            f"{_named(role)} wait {share:.0%} of their time at barriers; warp {last} waits "
            "least and so comes last: share its work among the others, or meet less often",
        )  # fmt: skip


@_rule
def uneven(launch: TracedLaunch, pipelines: list[PipelineFacts]) -> Iterator[Verdict]:
    """One block takes longer than the others."""
    times = block_times(launch)
    if len(times) < 2:
        return
    median = statistics.median(times.values())
    block, longest = max(times.items(), key=lambda item: item[1])
    if median and longest > 1.25 * median:
        yield Verdict(
            "uneven", 1 - median / longest,
            f"block {block} runs {longest:,.0f} {launch.unit}, and half of the traced blocks at "
            f"most {median:,.0f}: hand out tiles by a TileQueue, or long ones first",
        )  # fmt: skip


@_rule
def late_start(launch: TracedLaunch, pipelines: list[PipelineFacts]) -> Iterator[Verdict]:
    """Blocks are so short that the first stage takes much of their time."""
    for facts in pipelines:
        if facts.first_full < 2 * NOTABLE or len(facts.fills) < 1:
            continue
        name = facts.name.partition("(")[0]
        yield Verdict(
            "start", facts.first_full,
            f"{name}: {facts.first_full:.0%} of a block's time passes until its first stage is "
            "full: let fewer blocks take several tiles each (PersistentGrid), prefetch the maps",
        )  # fmt: skip


def _named(role: str) -> str:
    """Return the warps of a role as the subject of a sentence."""
    return f"warps of role {role!r}" if role else "warps"


def _warps(launch: TracedLaunch, role: str) -> list[tuple[tuple[int, int, int], int]]:
    """Return the warps of a role but for those that end early, as idle ones of a warpgroup do."""
    times = block_times(launch)
    return [
        (span.block, span.warp)
        for span in launch.of("run")
        if launch.role(span) == role and span.duration > times[span.block] / 2
    ]


def _meetings(launch: TracedLaunch) -> dict[str, tuple[float, int]]:
    """Return for each role the share of time that its warps meet, and the warp that comes last."""
    found = {}
    for role in dict.fromkeys(launch.role(span) for span in launch.of("run")):
        warps = _warps(launch, role)
        if not warps:
            continue
        waits = dict.fromkeys((warp for _, warp in warps), 0.0)
        for span in launch.of("meet"):
            if span.warp in waits:
                waits[span.warp] += span.duration
        last = min(waits, key=lambda warp: waits[warp])
        found[role] = shares_of(launch, warps).of("meet"), last
    return found
