"""What goes to the compiler's process: the types of a launch's arguments, and a kernel."""

import io
import os
import pickle
import types
import weakref

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
from numba_tma.simulator import compiling
from numba_tma.simulator.shipping import _options, ship
from numba_tma.simulator.signatures import (
    ArrayType,
    MapArrayType,
    RaggedMapType,
    SimulatedMapType,
    ValueType,
    type_of,
)

TILE = tma.Tile((4, 8), "f32")
X = np.zeros((8, 16), np.float32)
F32 = np.dtype(np.float32)


def read_only():
    array = np.zeros(4)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        (X, ArrayType(F32, 2, "C", True)), (X.T, ArrayType(F32, 2, "F", True)),
        (X[:, ::2], ArrayType(F32, 2, "A", True)), (X[0], ArrayType(F32, 1, "C", True)),
        (X[:, 0], ArrayType(F32, 1, "A", True)),
        (read_only(), ArrayType(np.dtype(float), 1, "C", False)),
        (cuda.to_device(X), ArrayType(F32, 2, "C", True)),
        (np.int16(7), ValueType(np.int16(0))), (True, ValueType(False)), (2.5, ValueType(0.0)),
        (1j, ValueType(0j)), (7, ValueType(0)), (-(2**63), ValueType(0)),
        (2**63 - 1, ValueType(0)), (2**63, ValueType(2**63)),
        (-(2**63) - 1, ValueType(-(2**63) - 1)), (None, ValueType(None)),
        ((1, (X,), 2.5), (ValueType(0), (ArrayType(F32, 2, "C", True),), ValueType(0.0))),
    ],
)  # fmt: skip
def test_types_of_arrays_and_values(argument, expected):
    found = type_of(argument)
    assert found == expected
    if isinstance(expected, ValueType):
        assert type(found.example) is type(expected.example)


def test_types_of_maps():
    plain, rows = tma.tensor_map(X, TILE), tma.gather_map(X, TILE)
    expected = SimulatedMapType(2, TILE, None, "", plain.copies, "tiled")
    assert type_of(plain) == expected and not expected.editable
    assert type_of(tma.TensorMapArray([plain, plain])) == MapArrayType(expected)
    assert type_of(rows) == SimulatedMapType(2, rows.tile, None, rows.partial_rows, None, "gather")
    ragged = tma.ragged_tensor_map(X, TILE)
    names = ("rank", "tile", "axis", "encoding", "extent", "partial_rows")
    assert type_of(ragged) == RaggedMapType(*(getattr(ragged, name) for name in names))


@cuda.jit(device=True)
def doubled(x):
    return 2 * x


@cuda.jit(fastmath=True, launch_bounds=(64, 1))
def kernel(y, n):
    y[0] = doubled(n)


def test_a_kernel_comes_back_with_its_options():
    again, number = pickle.loads(ship(kernel, 7))
    assert number == 7 and again is not kernel
    assert _options(again) == _options(kernel) == {"fastmath": True, "launch_bounds": (64, 1)}
    assert _options(doubled) == {"device": True} == _options(pickle.loads(ship(doubled))[0])
    y = np.zeros(1)
    again[1, 1](y, 4)
    assert y[0] == 8
    of_compiler = types.SimpleNamespace(targetoptions={"device": True, "opt": False, "link": ()})
    assert _options(of_compiler) == {"opt": False, "device": True}
    assert _options(types.SimpleNamespace(given_options={"debug": True})) == {"debug": True}
    assert _options(types.SimpleNamespace(_device=True)) == {"device": True}


def test_a_kernel_of_a_closure_travels_and_one_of_a_generator_does_not():
    def made(value):
        @cuda.jit
        def kernel(y):
            y[0] = value

        return kernel

    y = np.zeros(1)
    pickle.loads(ship(made(5)))[0][1, 1](y)
    assert y[0] == 5
    with pytest.raises(TypeError, match="^a kernel cannot be sent to another process, because"):
        ship(made(n for n in ()))


# ------------------------------------------------------------------- the process that compiles


class Helper:
    """A process, as far as `compiling` looks at one; it answers with what it is given."""

    def __init__(self, answer=b"", ended=False):
        self.stdin, (read, write) = io.BytesIO(), os.pipe()
        os.write(write, answer)
        os.close(write)
        self.stdout, self.returncode, self.calls = os.fdopen(read, "rb"), 3, []
        self.ended = ended

    def poll(self):
        return 3 if self.ended else None

    def kill(self):
        self.calls.append("kill")

    def wait(self):
        self.calls.append("wait")


@pytest.fixture
def helpers(monkeypatch):
    """Yield the helpers to be started, one after another, and those that are."""
    waiting, started = [], []
    monkeypatch.setattr(compiling, "_helper", None)
    monkeypatch.setattr(compiling, "_owner", 0)
    monkeypatch.setattr(compiling, "_start", lambda: started.append(waiting.pop(0)) or started[-1])
    yield waiting, started
    for helper in waiting + started:
        helper.stdout.close()


def test_one_helper_takes_all_kernels(helpers):
    waiting, started = helpers
    answers = [compiling.Compiled(ptx=name) for name in ("one", "two")]
    waiting.append(Helper(b"".join(map(pickle.dumps, answers))))
    assert [compiling._ask(job) for job in (b"job", b"other")] == answers
    (helper,) = started
    helper.stdin.seek(0)
    assert [pickle.load(helper.stdin) for _ in range(2)] == [b"job", b"other"]
    assert helper.calls == [] and compiling._owner == os.getpid()


@pytest.mark.parametrize("answer", [b"", b"no pickle"])
def test_a_helper_that_ends_is_replaced(helpers, answer):
    waiting, started = helpers
    waiting += [Helper(answer), Helper(pickle.dumps(compiling.Compiled("ptx")))]
    with pytest.raises(ChildProcessError, match="^the compiler's process ended with exit status 3"):
        compiling._ask(b"job")
    assert started[0].calls == ["kill", "wait"] and started[0].stdin.closed
    assert started[0].stdout.closed
    assert compiling._ask(b"job").ptx == "ptx" and len(started) == 2


def test_a_helper_that_does_not_answer(helpers, monkeypatch):
    waiting, started = helpers
    waiting.append(Helper())
    monkeypatch.setattr(compiling.select, "select", lambda *_: ([], [], []))
    with pytest.raises(ChildProcessError, match="^the compiler's process gave no answer in 600 s$"):
        compiling._ask(b"job")
    assert started[0].calls == ["kill", "wait"] and compiling._helper is None


def test_a_fork_leaves_the_helper_to_its_parent(helpers, monkeypatch):
    waiting, started = helpers
    waiting += [Helper(), Helper(), Helper(ended=True)]
    assert compiling._running() is compiling._running() is started[0]
    monkeypatch.setattr(compiling.os, "getpid", lambda: -1)
    compiling._end()
    assert started[0].calls == [] and not started[0].stdin.closed
    assert compiling._running() is started[1]
    compiling._end()
    assert started[1].calls == ["kill", "wait"]
    compiling._end()
    compiling._running()
    compiling._end()
    assert started[2].calls == ["wait"], "it has ended by itself"


def test_each_kernel_is_compiled_once_for_its_types_and_target(monkeypatch):
    asked = []

    def ask(job):
        asked.append(pickle.loads(job)[1:])
        if len(asked) == 3:
            raise ChildProcessError("no answer")
        return compiling.Compiled(ptx=str(len(asked)))

    monkeypatch.setattr(compiling, "_ask", ask)
    monkeypatch.setattr(compiling, "_answers", weakref.WeakKeyDictionary())
    one, other = (type_of(1),), (type_of(1.0),)
    calls = [(one, "90a"), (one, "90a"), (other, "90a"), (one, "100a"), (one, "100a"), (one, "90a")]
    found = [compiling.compile_elsewhere(kernel, *call) for call in calls]
    assert [(f.ptx, f.error) for f in found] == [
        ("1", ""), ("1", ""), ("2", ""), ("", "no answer"), ("4", ""), ("1", "")]  # fmt: skip
    assert asked == [(one, "90a"), (other, "90a"), (one, "100a"), (one, "100a")]
    wrong = type_of(n for n in ())
    assert "does not pickle" in compiling.compile_elsewhere(kernel, (wrong,), "90a").error
