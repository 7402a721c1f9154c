"""The summary of a trace: for each launch where the time goes, and what limits it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from numba_tma.tools.trace.facts import PipelineFacts, RoleShares, pipelines_of, roles_of
from numba_tma.tools.trace.spans import TracedLaunch
from numba_tma.tools.trace.verdicts import Verdict, bandwidth_of, verdicts_of

_COLUMNS = ("full", "empty", "wait", "products", "drain", "meet", "cluster", "flag")


@dataclass(frozen=True)
class Summary:
    """What `Trace.summary` returns; its text is a table."""

    launches: tuple[TracedLaunch, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)  #: launches that were not recorded

    @property
    def verdicts(self) -> list[Verdict]:
        """What limits the launches, launch by launch, the most important first."""
        return [verdict for launch in self.launches for verdict in verdicts_of(launch)]

    def __str__(self) -> str:
        if not self.launches:
            return "nothing was launched"
        parts = ["\n".join(_lines(launch)) for launch in self.launches]
        parts += [f"{counted(n, 'more launch', 'es')} of {k}" for k, n in self.left_out.items()]
        return "\n\n".join(parts)

    __repr__ = __str__


def counted(number: int, noun: str, ending: str = "s") -> str:
    """Return a number and its noun, which ends so if there is not one."""
    return f"{number:,} {noun}{'' if number == 1 else ending}"


def _lines(launch: TracedLaunch) -> Iterator[str]:
    yield (
        f"{launch.kernel}, grid {launch.grid}, block {launch.block}: {launch.duration:,.0f} "
        f"{launch.unit} in {counted(len(launch.blocks), 'traced block')}"
    )
    if launch.dropped:
        yield f"  {launch.dropped:,} older records did not fit: give more megabytes"
    roles = roles_of(launch)
    used = [kind for kind in _COLUMNS if any(role.of(kind) >= 0.005 for role in roles)]
    waits = "".join(f"{kind:>9}" for kind in used)
    yield "  " + f"{'role':<20}{'warps':>6}{'waits:' if used else '':>8}{waits}{'work':>8}"
    for role in roles:
        yield "  " + _row(role, used, "other" if len(roles) > 1 else "all")
        for mark, share in sorted(role.marks.items(), key=lambda item: -item[1]):
            yield f"    {mark!r} {share:.0%}"
    for facts in pipelines_of(launch):
        yield from _pipeline(launch, facts)
    found = verdicts_of(launch)
    for verdict in found:
        yield f"  - {verdict.text}"
    if not found:
        yield "  - nothing stands out: no wait takes a large share of the time"


def _row(role: RoleShares, used: list[str], unnamed: str) -> str:
    shares = "".join(f"{role.of(kind):>9.0%}" for kind in used)
    return f"{role.role or unnamed:<20}{role.warps:>6}{'':>8}{shares}{role.working:>8.0%}"


def _pipeline(launch: TracedLaunch, facts: PipelineFacts) -> Iterator[str]:
    if not facts.fills:
        return
    name = facts.name if len(facts.name) < 60 else facts.name[:57] + "..."
    yield f"  {name}: {counted(len(facts.fills), 'fill')} of {facts.stage_nbytes:,.0f} B"
    line = (
        f"    {facts.filled:.1f} of {facts.num_stages} stages are filled, "
        f"{facts.in_flight / 1024:.1f} KiB in flight in a block"
    )
    if facts.latency:
        line += f", {facts.latency:,.0f} {launch.unit} from a load to a full stage"
    if launch.bandwidth:
        rate = bandwidth_of(launch, facts)
        line += f"; the grid loads {rate:,.0f} GB/s (memory: {launch.bandwidth:,.0f})"
    yield line
