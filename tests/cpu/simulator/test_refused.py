"""The compiler refuses each wrong kernel of the table, with its sentence."""

import re

import pytest
from numba import types

import numba_tma as tma
from tests.mutants.refused import REFUSED, TILE, loader

SIGNATURE = (tma.TensorMapType(2, TILE), types.float32[:, ::1], types.int64)


@pytest.mark.parametrize("wrong", REFUSED, ids=repr)
def test_the_compiler_refuses(wrong):
    with pytest.raises(Exception) as caught:  # Numba has its own, and Python's
        tma.testing.compile_ptx(wrong.build(), SIGNATURE)
    assert wrong.sentence in re.sub(r"\x1b\[\d*m", "", str(caught.value))


def test_loops_run_backwards_by_a_literal_step():
    """The mirror image of the forward loop: no instruction more."""
    forwards, backwards = (
        tma.testing.instructions(
            tma.testing.compile_ptx(
                loader(loop=f"pipe.produce{bounds}", consume=f"pipe.consume{bounds}"), SIGNATURE
            )
        )
        for bounds in ("(0, n)", "(n - 1, -1, -1)")
    )
    assert abs(len(backwards) - len(forwards)) <= 4


def test_a_name_of_one_literal_is_a_literal():
    named, literal = (
        re.sub(
            r"numba_tma_ring_\w+",
            "ring",  # its memory has the kernel's name
            tma.testing.compile_ptx(
                loader(before="back = -1", loop=f"pipe.produce(n - 1, -1, {step})"), SIGNATURE
            ),
        )
        for step in ("back", "-1")
    )
    assert tma.testing.instructions(named) == tma.testing.instructions(literal)


def test_a_step_that_is_no_literal_is_not_tested():
    ptx = tma.testing.compile_ptx(loader(loop="pipe.produce(0, n, n)"), SIGNATURE)
    assert "cp.async.bulk.tensor" in ptx
