"""Which negative steps of a loop over tiles the compiler knows: those of the loop's own call."""

import pytest

from numba_tma.host.host_only import KERNEL_CODE
from numba_tma.simulator.errors import NotCompiled
from numba_tma.simulator.kernel_code import check_step

BACK = -1


class Loops:
    """Loops over tiles, without the tiles."""

    def produce(self, first, stop, step=1):
        if step < 0:
            check_step("produce", step)

    consume = produce


def literal(loops, n):
    loops.produce(n - 1, -1, -1)
    loops.produce(n - 1, -1, step=-2)
    loops.produce(n - 1, -1, BACK)


def one_name(loops, n):
    step = -1
    loops.produce(n - 1, -1, step)


def beside_others(loops, n):
    loops.produce(0, n, n - 4)
    loops.consume(0, n, n - 4)
    loops.produce(n - 1, -1, -1)
    loops.produce(0, n, step=n - 4)


def within_other_calls(loops, n):
    max(n - 7, 0); loops.produce(n - 1, -1, -1)  # noqa: E702
    max(
        loops.produce(n - 1, -1, -1) or 1,
        n - 7,
        n - 8,
    )


def without_a_step(loops, n):
    check_step("produce", -1)  # as of a function of the kernel
    loops.produce(0, n)


def computed(loops, n):
    loops.produce(n - 1, -1, n - 6)


def by_keyword(loops, n):
    loops.produce(n - 1, -1, step=n - 6)


def on_the_last_line(loops, n):
    loops.produce(
        n - 1,
        -1,
        n - 6,
    )


def of_two_names(loops, n):
    step = -1
    if n > 8:
        step = -2
    loops.produce(n - 1, -1, step)


def of_a_call(loops, n):
    step = min(-1, 3)
    loops.produce(n - 1, -1, step)


def of_a_name(loops, n):
    other = n - 6
    step = other
    loops.produce(n - 1, -1, step)


def of_an_argument(loops, n):
    loops.produce(9, -1, -n)


RIGHT = [literal, one_name, beside_others, within_other_calls, without_a_step]
WRONG = {
    computed: "n - 6", by_keyword: "n - 6", on_the_last_line: "n - 6", of_two_names: "step",
    of_a_call: "step", of_a_name: "step", of_an_argument: "-n",
}  # fmt: skip


@pytest.fixture
def as_kernel(monkeypatch):
    def mark(function):
        monkeypatch.setitem(KERNEL_CODE, id(function.__code__), function.__code__)
        return function

    return mark


@pytest.mark.parametrize("function", RIGHT)
def test_a_known_step(function, as_kernel):
    as_kernel(function)(Loops(), 5)


@pytest.mark.parametrize("function", WRONG)
def test_a_step_that_only_the_launch_knows(function, as_kernel):
    function(Loops(), 5)  # no kernel
    with pytest.raises(NotCompiled) as caught:
        as_kernel(function)(Loops(), 5)
    step = -5 if function is of_an_argument else -1
    text = f"produce(step={WRONG[function]}) is {step} here, and a compiled loop takes a step"
    assert str(caught.value).startswith(text)
