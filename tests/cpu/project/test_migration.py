"""docs/guide/migration.md has every name of the seeds, and the names that it gives exist."""

import re

import pytest

from tests import migration
from tests.migration import resolve

TABLES = migration.tables()
NAMES = [(seed, name) for seed, names in migration.SEEDS.items() for name in names]
#: In remarks, what is spelt like a name of ours.
REMARKED = sorted(
    {
        span
        for lines in TABLES.values()
        for answer in lines
        for span in migration.spans(answer.remark)
        if re.match(r"tma\.|Pipeline\.|Producer\.|Consumer\.|Barrier\.|Tile\.|TensorMap\.", span)
    }
)


def test_the_tables_are_those_of_the_seeds():
    assert list(TABLES) == list(migration.SEEDS)


@pytest.mark.parametrize(("seed", "name"), NAMES)
def test_a_name_has_one_answer(seed, name):
    lines = [answer for answer in TABLES[seed] if name in answer.names]
    assert len(lines) == 1, f"{name} stands in {len(lines)} lines under {seed!r}"
    (answer,) = lines
    assert migration.spans(answer.numba_tma) or answer.numba_tma == migration.NONE
    if answer.numba_tma == migration.NONE:
        assert len(answer.remark) > 40, f"{name} has no counterpart: say what the reader does"


@pytest.mark.parametrize("seed", TABLES)
def test_no_name_is_made_up(seed):
    names = [name for answer in TABLES[seed] for name in answer.names]
    assert sorted(names) == sorted(migration.SEEDS[seed])


@pytest.mark.parametrize("seed", TABLES)
def test_no_cell_is_empty(seed):
    """An empty remark is one that is not needed; an empty cell is one that was forgotten."""
    assert [a.names for a in TABLES[seed] if not all((a.numba_tma, *a.others))] == []


@pytest.mark.parametrize("span", migration.given())
def test_a_name_of_ours_exists(span):
    resolve(span)


@pytest.mark.parametrize("span", REMARKED)
def test_a_name_of_ours_in_a_remark_exists(span):
    resolve(span)


@pytest.mark.parametrize(
    ("span", "message"),
    [
        ("tma.ptx.mbarrier_arrives", "has no mbarrier_arrives"),
        ("Barrier.expect_bytes", "has no expect_bytes"),
        ("barrier.wait", "barrier is no public name"),
        ("TensorMap.load(multi=...)", "takes no multi"),
        ("ConsumerStage.number", "has no number"),
    ],
)
def test_a_name_that_does_not_exist_is_found(span, message):
    with pytest.raises(AssertionError, match=message):
        resolve(span)


def test_columns_of_the_peers_are_compact():
    """A peer's cell is a dash, or names something."""
    for lines in TABLES.values():
        for answer in lines:
            for cell in answer.others:
                assert cell == migration.NONE or migration.spans(cell) or "layout" in cell
