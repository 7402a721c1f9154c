"""A launch in races mode: its log is cleared before it and judged after it."""

from __future__ import annotations

from collections.abc import Sequence

from numba_tma.host import races
from numba_tma.host.debug import _SITES, Record
from numba_tma.host.race_judgement import races_of
from numba_tma.simulator import label_names


def clear() -> None:
    """Forget the events of earlier launches."""
    races.clear_log()


def check(grid: Sequence[int], records: Sequence[Record]) -> None:
    """Raise a `PipelineRace` for the races of the launch that has ended, if there are any."""
    events, lost = races.read_log()
    ended = not records and not lost
    found = races_of(events, (*grid, 1, 1), _SITES, names_of, ended=ended)
    if found:
        raise races.error_of_races(found, records, lost)


def check_after_failure(grid: Sequence[int], cause: BaseException) -> None:
    """Raise a `PipelineRace` for the races before the error that ended the launch, if any."""
    events = races.read_log_after_failure()
    if found := races_of(events, (*grid, 1, 1), _SITES, names_of, ended=False):
        raise races.error_of_races(found, (), 0) from cause


def names_of(label: int, base: int, barriers: int) -> tuple[list[tuple[int, str]], int]:
    """Return (shared address, name) of a pipeline's tiles and barriers, and the tiles' bytes."""
    found = label_names.names_of(label, base, barriers)
    names = [(at, text.partition("(")[0]) for at, text in found]
    return names, int(getattr(races.LABELS[label - 1][1], "storage_nbytes", 0))
