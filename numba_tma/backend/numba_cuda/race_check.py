"""A launch in races mode: its log is cleared before it and judged after it."""

from __future__ import annotations

from collections.abc import Sequence
from unittest import mock

from numba_tma import simulator
from numba_tma.host import races
from numba_tma.host.debug import _SITES, Record
from numba_tma.host.race_judgement import races_of


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
    """Return (shared address, name) of a pipeline's tiles and barriers, and the tiles' bytes.

    The functions that name them are those that run in the simulator.
    """
    function, owner = races.LABELS[label - 1]
    names: list[tuple[int, str]] = []

    def label_one(address: int, text: str) -> None:
        names.append((int(address), text.partition("(")[0]))

    places = (base, barriers)[: function.__code__.co_argcount - 1]
    with (
        mock.patch.object(simulator, "label", label_one),
        mock.patch.object(simulator, "labelled", lambda *_: False),
        mock.patch.object(simulator, "name_role", lambda *_: None),
        mock.patch.object(simulator, "read_by_all", lambda *_: None),
    ):
        function(owner, *places)
    return names, int(getattr(owner, "storage_nbytes", 0))
