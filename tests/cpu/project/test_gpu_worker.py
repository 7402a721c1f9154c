"""The process that runs GPU cases, without a GPU: a case that skips is skipped."""

from types import SimpleNamespace

import pytest
from numba import cuda

from tests.gpu import worker

CASE = (__name__, "skips")


def skips():
    pytest.importorskip("a_library_that_nobody_has")


class Pipe:
    """An end of a pipe that gives messages, and keeps what is sent."""

    def __init__(self, *messages):
        self.messages, self.sent = list(messages), []

    def recv(self):
        if not self.messages:
            raise EOFError
        return self.messages.pop(0)

    def send(self, message):
        self.sent.append(message)

    def poll(self, limit):
        return True


def test_a_case_that_skips_is_skipped(monkeypatch):
    monkeypatch.setattr(cuda, "synchronize", lambda: None)
    monkeypatch.setitem(worker.CASES, CASE, skips)
    child = Pipe((CASE, (), {}, 60))
    worker._serve(child)
    _, answer = child.sent
    parent = worker.Worker()
    parent.process, parent.pipe = SimpleNamespace(is_alive=lambda: True), Pipe(answer)
    with pytest.raises(pytest.skip.Exception, match="a_library_that_nobody_has"):
        parent.run(CASE, (), {}, 60)
