"""numba_tma.host.progress: a line for people, and nothing for anybody else."""

import contextlib
import io
import time
from types import SimpleNamespace

import pytest
from numba import cuda, types

from numba_tma.backend.numba_cuda import kernels
from numba_tma.host import progress
from numba_tma.host.progress import ProgressLine, ticking
from numba_tma.tools.testing import compile_ptx


class Terminal(io.StringIO):
    def isatty(self):
        return True


def stand_in(monkeypatch, stream):
    """Let the module write to a stream; pytest sets sys.stderr anew before each test."""
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stream))
    return stream


@pytest.fixture
def terminal(monkeypatch):
    return stand_in(monkeypatch, Terminal())


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_line_overwrites_itself_after_two_seconds(terminal, clock):
    line = ProgressLine()
    clock[0] += 1.9
    line.show("too early")
    clock[0] += 0.2
    line.show("one")
    clock[0] += 0.2
    line.show("too soon")
    clock[0] += 0.2
    line.show("x" * 100)
    line.clear()
    shown = terminal.getvalue().split("\r")
    assert shown == ["", f"{'one':<78}", "x" * 78, " " * 78, ""]


def test_work_that_is_short_shows_nothing(terminal):
    line = ProgressLine()
    line.show("text")
    line.clear()
    with ticking("compiling"):
        pass
    assert terminal.getvalue() == ""


def test_where_nobody_looks_nothing_is_shown(monkeypatch, clock):
    stream = stand_in(monkeypatch, io.StringIO())
    line = ProgressLine()
    clock[0] += 1000
    line.show("text")
    with ticking("compiling"):
        clock[0] += 1000
    line.clear()
    assert stream.getvalue() == "" and not progress.is_watched()


def test_a_process_without_a_console_is_not_watched(monkeypatch):
    stand_in(monkeypatch, None)
    assert not progress.is_watched()
    stream = stand_in(monkeypatch, Terminal())
    assert progress.is_watched()
    stream.close()
    assert not progress.is_watched()


def test_a_notebook_looks(monkeypatch):
    class OutStream(io.StringIO):
        pass

    OutStream.__module__ = "ipykernel.iostream"
    stand_in(monkeypatch, OutStream())
    assert progress.is_watched()


def test_seconds_tick_until_the_work_ends(terminal, monkeypatch):
    monkeypatch.setattr(progress, "AFTER", 0.0)
    monkeypatch.setattr(progress, "EVERY", 0.01)
    with pytest.raises(KeyError), ticking("compiling scale"):
        deadline = time.monotonic() + 20
        while not terminal.getvalue() and time.monotonic() < deadline:
            time.sleep(0.005)
        raise KeyError
    text = terminal.getvalue()
    assert "compiling scale, 0 s" in text and text.endswith("\r")
    time.sleep(0.05)
    assert terminal.getvalue() == text


@cuda.jit(device=True)
def twice(x):
    return 2 * x


@cuda.jit
def scale(x):
    x[0] = twice(x[0])


def test_a_compile_ticks_once_with_its_device_functions(monkeypatch):
    told = []

    @contextlib.contextmanager
    def noted(text):
        told.append(text)
        yield

    monkeypatch.setattr(kernels, "ticking", noted)
    compile_ptx(scale, (types.float32[:],))
    assert told == ["compiling scale"]
