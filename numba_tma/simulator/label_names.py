"""The names of a pipeline's tiles and barriers, from the functions that give them here."""

from __future__ import annotations

from unittest import mock

from numba_tma import simulator
from numba_tma.host import races


def names_of(label: int, base: int, barriers: int) -> list[tuple[int, str]]:
    """Return (shared address, name) of a pipeline's tiles and barriers.

    `label` is the number that `host.races.label_number` gave it.
    """
    function, owner = races.LABELS[label - 1]
    names: list[tuple[int, str]] = []

    def label_one(address: int, text: str) -> None:
        names.append((int(address), text))

    places = (base, barriers)[: function.__code__.co_argcount - 1]
    with (
        mock.patch.object(simulator, "label", label_one),
        mock.patch.object(simulator, "labelled", lambda *_: False),
        mock.patch.object(simulator, "name_role", lambda *_: None),
        mock.patch.object(simulator, "read_by_all", lambda *_: None),
    ):
        function(owner, *places)
    return names
