"""Work that makes many objects runs without collections, and what it leaves is kept or searched."""

import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from numba_tma.host import collections


@pytest.fixture(autouse=True)
def _collections_are_on():
    """Turn them on, as they are in a user's process: the other tests run without."""
    was = gc.isenabled()
    gc.enable()
    yield
    (gc.enable if was else gc.disable)()
    gc.freeze()  # again, as it was: the next test would search what all tests before have left


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_the_collector_rests_while_a_function_runs(enabled, fails):
    def function(a, *, b):
        """Say so."""
        assert not gc.isenabled()
        if fails:
            raise KeyError
        return a + b

    was = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        rested = collections.without_collections(function)
        if fails:
            with pytest.raises(KeyError):
                rested(1, b=2)
        else:
            assert rested(1, b=2) == 3
        assert gc.isenabled() == enabled and rested.__doc__ == "Say so."
    finally:
        (gc.enable if was else gc.disable)()


class Node:
    """An object that refers to itself."""

    def __init__(self):
        self.itself = self


@pytest.mark.parametrize("enough", [0, 10**9])
@pytest.mark.parametrize("frozen", [False, True])
def test_garbage_is_searched_for_once_there_may_be_much(monkeypatch, enough, frozen):
    monkeypatch.setattr(collections, "_enough", enough)
    monkeypatch.setattr(collections, "_new", 0)
    monkeypatch.setattr(gc, "get_freeze_count", lambda: int(frozen))

    @collections.without_collections
    def work():
        return weakref.ref(Node())

    left = work()
    if frozen:
        assert collections._new == 0
    else:
        assert (left() is None) == (enough == 0)
        assert gc.get_count()[0] < 500 and (enough or collections._enough >= collections._FEW)
    gc.collect()
    assert left() is None


FIRST_CALL = """
import gc, sys
sys.argv += ["rmsnorm", "--compile"]
from tests import recording_driver

searched = []
gc.collect()  # what is imported until here is old
gc.callbacks.append(lambda phase, info: searched.append(info["generation"]))
recording_driver.main()
assert 2 not in searched, searched
"""


def test_a_first_call_searches_no_old_objects():
    done = subprocess.run(
        [sys.executable, "-c", FIRST_CALL],
        env=os.environ | {"NUMBA_TMA_CACHE": "off"},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
