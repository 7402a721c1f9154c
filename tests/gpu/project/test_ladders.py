"""The kernels of the notebooks' ladders, held to NumPy as the notebooks do it, and run again."""

import functools

import pytest

from tests.gpu.worker import on_gpu
from tests.ladders import RUNGS, executed

LIMIT = 240  # seconds: the first case of a ladder makes its matrices, and each compiles


@functools.cache
def ladder_of(name):
    names = executed(name, "where", "tiles", "arrays", "rung")
    assert not names["simulated"]
    return names


@on_gpu(limit=LIMIT)
def climb(ladder, rung):
    names = ladder_of(ladder)
    for _ in range(2):
        names["climb"](rung)


@pytest.mark.parametrize(
    ("ladder", "rung"), [(name, rung) for name in RUNGS for rung in RUNGS[name]]
)
def test_a_rung_is_right(ladder, rung):
    climb(ladder, rung)
