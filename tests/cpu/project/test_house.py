"""The goals of the house that are reached stay reached: see ``python -m tests.house``."""

import pytest

from tests import house

#: Goals that are not reached yet.
MISSED: set[str] = set()


@pytest.fixture(scope="module")
def found():
    return {m.name: m for m in house.measures()}


def test_the_goals_that_are_reached_stay(found):
    lost = [m for m in found.values() if not m.is_met and m.name not in MISSED]
    assert not lost, "\n".join(f"{m.name}: {m.value} (at most {m.goal}) {m.shown}" for m in lost)


def test_every_missed_goal_is_one(found):
    assert found.keys() >= MISSED


@pytest.mark.parametrize(
    ("module", "inside"),
    [
        ("llvmlite.ir", True),
        ("numba.core.types", True),
        ("numba.cuda.extending", True),
        ("numba.cuda.cudadrv.driver", True),
        ("numba.cuda", False),
        ("numba", False),
        ("numpy", False),
    ],
)
def test_what_belongs_to_a_backend(module, inside):
    assert house.is_compiler(module) is inside


def test_a_cycle_is_found():
    edges = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}
    assert house.cycles(edges) == [["b", "c"]]


def test_a_page_leads_to_its_imports():
    files = house.files_to_read("rows.kernel", "rows.rmsnorm")
    assert {"rows.kernel", "rows.rmsnorm"} <= set(files)


def test_a_page_that_is_gone_is_an_error():
    with pytest.raises(ValueError, match="rows.nothing is gone: PAGES"):
        house.files_to_read("rows.nothing", "rows.rmsnorm")


def test_captures_are_free_variables():
    for kernel in house.kernels():
        assert kernel.captured > 0 and kernel.branches >= 0
    assert any(k.name.startswith("attention/kernel.py:") for k in house.kernels())
