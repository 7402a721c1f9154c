"""Both kinds of fibers do the same: greenlets, and operating-system threads in their place."""

import pytest

from numba_tma.simulator import fibers, thread_fibers

greenlet = pytest.importorskip("greenlet")


@pytest.fixture(params=["greenlets", "threads"])
def kind(request):
    if request.param == "threads":
        return thread_fibers.Fiber, thread_fibers.running_fiber
    return greenlet.greenlet, greenlet.getcurrent


def worker(kind, steps):
    """Return a class of fibers, each of which has a name and runs `steps(fiber, host)`."""
    fiber_class, running = kind
    host = running()

    class Worker(fiber_class):
        def __init__(self, name):
            super().__init__()
            self.name = name

        def run(self):
            assert running() is self
            return steps(self, host)

    return Worker


def test_greenlets_are_used_where_they_are_installed():
    assert fibers.Fiber is greenlet.greenlet


def test_fibers_switch_to_each_other_and_end_in_the_one_that_made_them(kind):
    said, others = [], []

    def steps(fiber, host):
        said.append(f"{fiber.name} begins")
        given = host.switch(f"from {fiber.name}")
        said.append(f"{fiber.name} got {given}")
        if fiber is others[0]:
            others[1].switch("greetings")
            said.append("first again")
        return f"end of {fiber.name}"

    make = worker(kind, steps)
    first, second = make("first"), make("second")
    others += [first, second]
    assert not first and not second
    assert [first.switch(), second.switch()] == ["from first", "from second"]
    assert first and second
    assert first.switch("go") == "end of second"
    assert first and not second
    assert first.switch() == "end of first"
    assert not first
    assert said == [
        "first begins",
        "second begins",
        "first got go",
        "second got greetings",
        "first again",
    ]


class Ended(BaseException):
    pass


def test_an_exception_is_thrown_into_a_fiber(kind):
    cleaned = []

    def steps(fiber, host):
        try:
            host.switch()
        except Ended:
            cleaned.append(fiber.name)
            return "ended"

    fiber = worker(kind, steps)("it")
    fiber.switch()
    assert fiber.throw(Ended) == "ended"
    assert cleaned == ["it"] and not fiber


def test_an_error_of_a_fiber_is_raised_where_it_was_made(kind):
    def steps(fiber, host):
        host.switch()
        raise ZeroDivisionError("of a fiber")

    fiber = worker(kind, steps)("it")
    fiber.switch()
    with pytest.raises(ZeroDivisionError, match="of a fiber"):
        fiber.switch()
    assert not fiber
