"""What messages say of an mbarrier: phase, arrivals, bytes; and where elements of arrays lie."""

import numpy as np
import pytest
from numba import cuda

from numba_tma import simulator as sim
from numba_tma.simulator import shared_arrays
from numba_tma.simulator.memory import BASE, CAPACITY, END
from numba_tma.simulator.thread import current

X = np.zeros(64, np.uint8)
COUNT = 4


def arrive(count=1):
    return lambda shared, bar: sim.mbarrier_arrive(bar, count)


def arrive_expect(nbytes):
    return lambda shared, bar: sim.mbarrier_arrive_expect_tx(bar, nbytes)


def expect(nbytes):
    return lambda shared, bar: sim.mbarrier_expect_tx(bar, nbytes)


def complete(nbytes):
    return lambda shared, bar: sim.mbarrier_complete_tx(bar, nbytes)


def load(nbytes):
    return lambda shared, bar: sim.cp_async_bulk_load(shared + nbytes, X[:nbytes], bar)


#: Steps, and what is said after each: phase, pending arrivals, bytes, (expected, issued).
STEPS = [
    [(arrive(), 0, 3, "0 bytes missing", None), (arrive(2), 0, 1, "0 bytes missing", None),
     (arrive(), 1, 4, "0 bytes missing", None)],
    [(expect(48), 0, 4, "48 bytes missing", (48, 0)),
     (complete(16), 0, 4, "32 bytes missing", (48, 16)),
     (complete(40), 0, 4, "8 bytes too many", (48, 56)),
     (expect(8), 0, 4, "0 bytes missing", (56, 56)),
     (arrive(4), 1, 4, "0 bytes missing", None),
     (complete(16), 1, 4, "16 bytes too many", (0, 16))],
    [(arrive_expect(32), 0, 3, "32 bytes missing", (32, 0)),
     (load(16), 0, 3, "16 bytes missing", (32, 16)),
     (arrive_expect(16), 0, 2, "32 bytes missing", (48, 16)),
     (load(32), 0, 2, "0 bytes missing", (48, 48)),
     (arrive(2), 1, 4, "0 bytes missing", None)],
]  # fmt: skip


@pytest.mark.parametrize("steps", STEPS)
def test_what_is_said_of_a_barrier(steps):
    said = []

    @cuda.jit
    def kernel():
        shared = sim.allocate_shared("shared", 64, 16)
        bar = sim.allocate_shared("barrier", 8, 8)
        sim.mbarrier_init(bar, COUNT)
        sim.fence_mbarrier_init()
        for step, *_ in steps:
            step(shared, bar)
            barrier = current().cta.barriers[bar]
            while barrier.under_way:
                cuda.nanosleep(1)
            said.append(barrier.status())
        assert sim.mbarrier_try_wait_parity(bar, 0)

    kernel[1, 1]()
    bar = BASE + 64
    for (_, phase, pending, nbytes, counted), text in zip(steps, said, strict=True):
        counts = "" if counted is None else f" ({counted[0]} expected, {counted[1]} issued)"
        assert text == (
            f"mbarrier at {bar} is in phase {phase} (parity {phase & 1}): {pending} of {COUNT} "
            f"arrivals pending, {nbytes}{counts}"
        )


VIEWS = {
    "an element": lambda a: a[1, 2], "the first": lambda a: a[0, 0], "a row": lambda a: a[2],
    "a column": lambda a: a[:, 3], "a block": lambda a: a[1:3, ::2], "backwards": lambda a: a[::-1],
    "none of them": lambda a: a[:0], "everything": lambda a: a,
}  # fmt: skip


@pytest.mark.parametrize("view", VIEWS)
def test_the_addresses_of_a_view_are_those_of_its_elements(view):
    numbers, found = np.arange(16).reshape(4, 4), []

    @cuda.jit
    def kernel():
        array = cuda.shared.array((4, 4), np.uint32)
        plain = shared_arrays.plain(array)
        index = VIEWS[view](plain)
        part = index if isinstance(index, np.ndarray) else shared_arrays.element(plain, (1, 2))
        if view == "the first":
            part = shared_arrays.element(plain, (0, 0))
        found.append(shared_arrays._addresses(current(), part))
        found.append(shared_arrays._addresses(current(), part.copy()))

    kernel[1, 1]()
    expected = BASE + 4 * np.ravel(VIEWS[view](numbers))
    assert found == [expected.tolist(), []]


def test_arrays_take_all_of_the_memory():
    found = []

    @cuda.jit
    def kernel():
        array = cuda.shared.array(CAPACITY, np.uint8)
        plain = shared_arrays.plain(array)
        found.extend(shared_arrays._addresses(current(), plain[i:][:1]) for i in (0, -1))

    kernel[1, 1]()
    assert found == [[BASE], [END - 1]] and END == 228 * 1024
