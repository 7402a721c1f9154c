"""Atomic operations on words of global memory: values, and what they race with."""

import numpy as np
import pytest
from numba import cuda

from numba_tma import ptx
from numba_tma import simulator as sim

MOST = 2**32 - 1


@pytest.mark.parametrize(
    ("operation", "before", "given", "after"),
    [
        *((ptx.atom_inc, old, 5, new) for old, new in ((0, 1), (4, 5), (5, 0), (6, 0), (MOST, 0))),
        (ptx.atom_inc, 0, 0, 0),
        (ptx.atom_add_u32, 7, 5, 12),
        (ptx.atom_add_u32, MOST, 2, 1),
        (ptx.atom_exch_b32, 7, MOST, MOST),
    ],
)
def test_an_operation_returns_the_old_word(operation, before, given, after):
    words, found = np.array([before, 9], np.uint32), []

    def kernel(words):
        found.append(operation(words, given))
        found.append(ptx.ld_relaxed_sys_global_u32(words))

    cuda.jit(kernel)[1, 1](words)
    assert found == [before, after] and words.tolist() == [after, 9]


def read(words):
    return words[0]


def write(words):
    words[0] = 1


def relaxed(words):
    return ptx.ld_relaxed_sys_global_u32(words)


def increment(words):
    return ptx.atom_inc(words, 9)


def load(words):
    return ptx.ld_global_u32(words)


def store(words):
    ptx.st_global_u32(words, 1)


#: Steps of two threads that nothing orders, and whether they race.
PAIRS = [
    (relaxed, read, False), (relaxed, relaxed, False), (relaxed, increment, False),
    (relaxed, write, True), (increment, increment, False), (increment, read, True),
    (increment, write, True), (load, read, False), (load, load, False), (load, write, True),
    (load, increment, True), (store, read, True), (store, store, True),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other", "races"), PAIRS)
def test_what_an_atomic_operation_races_with(one, other, races):
    @cuda.jit
    def kernel(words):
        if cuda.threadIdx.x == 0:
            one(words)
        else:
            other(words)

    for seed in range(3):
        sim.seed(seed)
        with sim.global_races():
            if not races:
                kernel[1, 2](np.zeros(4, np.uint32))
                continue
            with pytest.raises(sim.DataRace):
                kernel[1, 2](np.zeros(4, np.uint32))
