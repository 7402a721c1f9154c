"""What the shipped kernels tell the GPU: reviewed instructions, no spills, no local memory."""

import difflib

import pytest

from numba_tma.testing import instructions, ptxas
from tests import update_goldens as goldens
from tests.shipped_kernels import SHIPPED, compiled


@pytest.mark.parametrize("name", goldens.NAMES)
def test_the_golden_holds(name):
    if difference := goldens.difference():
        pytest.skip(f"goldens hold for the compiler of constraints.txt, but here {difference}")
    file = goldens.path(name)
    assert file.exists(), f"{file.name} is missing: `make goldens` writes it"
    was, now = file.read_text().splitlines(), goldens.golden(name).splitlines()
    changes = list(difflib.unified_diff(was, now, file.name, "now", lineterm="", n=2))
    assert not changes, "\n".join(
        ["what the GPU is told has changed; if that is meant, `make goldens` and review:", *changes]
    )


def test_no_golden_is_left_over():
    assert set(goldens.FOLDER.iterdir()) == {goldens.path(name) for name in goldens.NAMES}


@pytest.mark.parametrize("cc", [(9, 0, "a"), (10, 0, "a")], ids=["sm_90a", "sm_100a"])
@pytest.mark.parametrize("name", SHIPPED)
def test_nothing_is_spilled(name, cc):
    ptx = compiled(name, cc)
    report = ptxas(ptx)
    assert (report.spill_stores, report.spill_loads, report.stack_frame) == (0, 0, 0)
    assert report.warnings == ()
    assert [i for i in instructions(ptx) if ".local" in i] == []


def test_the_skeleton_is_the_same_for_equal_kernels():
    kernel, signature = SHIPPED["copy_tiles"]
    compiled.cache_clear()
    again = compiled("copy_tiles", goldens.CC)
    assert again != (first := compiled.__wrapped__("copy_tiles", goldens.CC))
    assert goldens.skeleton(again) == goldens.skeleton(first)
    assert "numba" not in goldens.skeleton(again)


def test_another_compiler_is_named(monkeypatch):
    here = goldens.pinned() | {"ptxas": "12.9.86"}
    monkeypatch.setattr(goldens, "installed", lambda: here)
    assert goldens.difference() == f"ptxas is 12.9.86, not {goldens.pinned()['ptxas']}"
    monkeypatch.setattr(goldens, "installed", goldens.pinned)
    assert goldens.difference() == ""
