"""``cuda.atomic`` in kernels: what each operation does, and what it races with."""

import numpy as np
import pytest
from numba import cuda

from numba_tma import simulator as sim

#: Of each operation what it makes of 5 with the operand 3, or with (5, 9) and (6, 9) to compare.
OPERATIONS = {
    "add": ((3,), 8), "sub": ((3,), 2), "and_": ((3,), 1), "or_": ((3,), 7), "xor": ((3,), 6),
    "inc": ((3,), 0), "dec": ((3,), 3), "exch": ((3,), 3), "max": ((3,), 5), "min": ((3,), 3),
    "cas": ((5, 9), 9), "compare_and_swap": ((5, 9), 9),
}  # fmt: skip


def call(name, array, index, given):
    """Call an operation; of an array's first element is `compare_and_swap`."""
    place = () if name == "compare_and_swap" else (index,)
    return getattr(cuda.atomic, name)(array, *place, *given)


@pytest.mark.parametrize("index", [(0, 0), (1, 2)])
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_changes_an_element_and_returns_what_it_was(name, index):
    given, after = OPERATIONS[name]
    place = (0, 0) if name == "compare_and_swap" else index

    def in_global(array, old):
        old[0] = call(name, array, index, given)

    def in_shared(array, old):
        here = cuda.shared.array((2, 3), np.uint32)
        here[:] = array
        old[0] = call(name, here, index, given)
        for i in range(2):
            for j in range(3):
                array[i, j] = here[i, j]

    for kernel in (in_global, in_shared):
        array, old = np.full((2, 3), 4, np.uint32), np.zeros(1, np.uint32)
        array[place] = 5
        expected = array.copy()
        expected[place] = after
        cuda.jit(kernel)[1, 1](array, old)
        np.testing.assert_array_equal(array, expected)
        assert old.tolist() == [5]


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_races_with_plain_accesses_to_its_element_alone(name):
    given, _ = OPERATIONS[name]
    own = (0, 0) if name == "compare_and_swap" else (1, 2)

    @cuda.jit
    def kernel(array, i, j):
        if cuda.threadIdx.x == 0:
            call(name, array, own, given)
        else:
            array[i, j] = 4

    for index in np.ndindex(2, 3):
        array = np.full((2, 3), 5, np.uint32)
        with sim.global_races():
            if index == own:
                with pytest.raises(sim.DataRace):
                    kernel[1, 2](array, *index)
            else:
                kernel[1, 2](array, *index)
