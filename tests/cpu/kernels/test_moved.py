"""Calls whose arrays lie elsewhere: which need no preparation, and that they launch the same."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cuda.bindings import driver as bindings
from numba import cuda

import numba_tma as tma
from numba_tma.host import driver as _driver
from numba_tma.kernels._host import memo, moved
from numba_tma.kernels._host.launch import launch
from tests.cpu.host.test_stored_launch import gpu  # noqa: F401
from tests.recording_driver import Array

ROOT = Path(__file__).parents[3]
#: Calls of `tests.every_hit` that have a workspace, or no arrays, or another function each time.
PREPARED = {
    "add, tiles", "add, tiles of rows with gaps", "pointwise", "copy, tiles", "rmsnorm_pipelined",
    "layernorm, nothing", "column_sum", "rmsnorm_backward", "layernorm_backward",
    "matmul, long K", "matmul, operands that are copied", "matmul, bytes that are transposed",
    "attention, one query", "attention_varlen", "matmul, split-K", "matmul, stream-K",
    "attention, e4m3", "attention_backward", "grouped_matmul, a result that no map addresses",
    "block_scaled_matmul", "stencil", "stencil, rows that are copied",
}  # fmt: skip
NOT_REMEMBERED = {"grouped_copy"}


def test_a_third_call_launches_what_a_prepared_one_would():
    done = subprocess.run(
        [sys.executable, "-m", "tests.moved_calls"],
        **{"capture_output": True, "text": True, "cwd": ROOT, "timeout": 600},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {name for name, call in found.items() if call["prepared"]} == PREPARED
    differ = {name for name, call in found.items() if not call["equal"]}
    assert differ <= PREPARED | NOT_REMEMBERED and len(found) - len(PREPARED) > 30


# ------------------------------------------------------------------------------ which may move


@tma.cached
@cuda.jit
def copy_some(x, out, first, n, alpha):
    if n > 0:
        out[0, 0] = x[0, 0] * alpha + first[0, 0]


TILE = tma.Tile((8, 32), "f32")


@tma.cached
@cuda.jit
def take_map(x_map, n):
    pass


class Function:
    """A function of two arrays and a number, whose preparations are counted."""

    def __init__(self):
        self.prepared, self.maps, self.workspace, self.extra = 0, False, [], 0
        self.call = memo.launched_again("f", "x", "out")(self._prepare)

    def _prepare(self, arrays, stream, numbers):
        self.prepared += 1
        x, out = arrays
        if self.maps:
            launch(take_map, 1, 32, stream, tma.tensor_map(x, TILE), out.start)
        else:
            given = np.float32(numbers[0] if numbers else 1)
            launch(copy_some, 1, 32, stream, x, out, x, self.extra, given)
        return self.workspace

    def __call__(self, x, out, *numbers, stream=None):
        """Call it; return whether it was prepared."""
        before = self.prepared
        self.call((x, out), stream, numbers)
        return self.prepared > before


def at(place, shape=(64, 32), **options):
    array = Array(1, shape, "f4", **options)
    interface = array.__cuda_array_interface__
    interface["data"] = (1 << 40) + int(512 * place), False
    array.start = interface["data"][0]
    return array


@pytest.fixture
def function(gpu):  # noqa: F811
    copy_some.found.clear()
    take_map.found.clear()
    launcher = sys.modules[launch.__module__]._launcher
    launcher.cache_clear()
    return Function()


def fields(launched):
    return [int.from_bytes(p, "little") for p in launched.packed]


X, OUT = at(0), at(1000)  # of 16 steps each


def test_two_calls_show_what_follows_an_array(function, gpu):  # noqa: F811
    assert function(X, OUT) and function(at(100), at(2000))
    for x, out in ((at(300), at(7000)), (at(3), at(40)), (at(16), at(0)), (at(0), at(16))):
        assert not function(x, out)
        assert fields(gpu.launches[-1])[4::7][:1] == [x.start]
        assert {x.start, out.start} <= {*fields(gpu.launches[-1])}
        assert {X.start, OUT.start} & {*fields(gpu.launches[-1])} <= {x.start, out.start}
        assert not function(x, out)
        assert gpu.launches[-1] == gpu.launches[-2]
    assert not function(X, OUT)
    assert gpu.launches[-1] == gpu.launches[0]


@pytest.mark.parametrize(
    ("x", "out"),
    [
        (0, 0), (0, 15), (15, 0), (1, 0),  # they overlap
        (0.5, 2000), (0, 2000 + 16 / 512),  # other multiples of 16
    ],
)  # fmt: skip
def test_a_call_is_prepared_where_arrays_lie_otherwise(function, x, out):
    function(X, OUT)
    function(at(100), at(2000))
    assert function(at(x), at(out))


def test_calls_of_each_alignment_are_compared_with_their_like(function):
    for i in range(4):
        assert function(at(100 * i), at(2000 + 300 * i)) == (i < 2)
        assert function(at(100 * i + 0.25), at(2000 + 300 * i)) == (i < 2)


def test_calls_that_show_nothing_are_not_compared_again(function):
    assert function(X, at(8)) and function(at(100), at(2000))  # the first's arrays overlap
    assert function(at(200), at(5000)) and not function(at(300), at(6000))


def test_arrays_that_moved_together_stay_together(function):
    assert function(X, OUT) and function(at(50), at(1050))
    assert not function(at(70), at(1070)) and not function(at(16), at(1016))
    assert function(at(70), at(1071))  # which shows them apart
    assert not function(at(90), at(5000))


def test_an_array_that_stayed_must_stay(function):
    assert function(X, OUT) and function(X, at(2000)) and not function(X, at(3000))
    assert function(at(100), at(3000))
    assert not function(at(200), at(4000))


def test_arrays_that_were_one_stay_one(function):
    assert function(X, X) and function(at(50), at(50)) and not function(at(90), at(90))
    assert function(at(90), at(200))


def test_only_what_differs_in_its_place_moves(function):
    function(X, OUT)
    function(at(100), at(2000))
    assert function(at(300, (32, 64)), at(3000, (32, 64)))
    assert function(at(300), at(3000), 2.0) and function(at(400), at(4000), stream=7)
    assert not function(at(300), at(3001))


def test_numbers_are_those_of_the_call(function, gpu):  # noqa: F811
    for number in (2.0, 3.0):
        for place in (0, 100, 200):
            function(at(place), at(3000 + 2 * place), number)
            (alpha,) = (np.frombuffer(p, "f4")[0] for p in gpu.launches[-1].packed if len(p) == 4)
            assert alpha == number
    assert function.prepared == 4


def test_a_call_with_a_workspace_is_prepared(function):
    function.workspace = [at(9999)]
    function.workspace[0].nbytes = 4
    assert [function(at(i), at(1000 + 2 * i)) for i in range(4)] == [True] * 4


def test_a_parameter_that_follows_no_array(function):
    for i in range(4):
        function.extra = i
        assert function(at(100 * i), at(9000 - 100 * i))
    function.extra = 3  # as in the last one, but not in the first
    assert function(at(700), at(9999))


def test_an_address_that_is_not_accessible(function, monkeypatch):
    function(X, OUT)
    function(at(100), at(2000))
    monkeypatch.setattr(moved, "misplaced", lambda address: "lies" * (address == at(300).start))
    assert function(at(300), at(3000)) and not function(at(400), at(3000))


def test_arrays_without_elements_are_not_remembered(function):
    empty = at(5, (0, 32))
    assert function(empty, OUT) and function(empty, at(2000)) and function(empty, at(3000))


def test_a_launch_that_fails_is_forgotten(function, gpu):  # noqa: F811
    function(X, OUT)
    function(at(100), at(2000))
    gpu.errors.append(bindings.CUresult.CUDA_ERROR_INVALID_VALUE)
    with pytest.raises(RuntimeError, match="CUDA_ERROR_INVALID_VALUE"):
        function(at(300), at(3000))
    assert function(at(300), at(3000)) and function(X, OUT) and not function(at(900), at(9000))


def test_maps_follow_an_array(function, gpu):  # noqa: F811
    function.maps = True
    for i in range(5):
        x, out = at(100 * i), at(5000 + 300 * i)
        assert function(x, out) == (i < 2)
        encoded = next(p for p in gpu.launches[-1].packed if len(p) == 128)
        assert int.from_bytes(encoded[:8], "little") == x.start
        assert out.start in fields(gpu.launches[-1])


def test_a_driver_that_replaces_no_address(function, monkeypatch):
    def refuse(encoded, address):
        raise RuntimeError("cuTensorMapReplaceAddress failed")

    monkeypatch.setattr(moved, "replace_address", refuse)
    function.maps = True
    assert all(function(at(100 * i), at(5000 + 300 * i)) for i in range(4))
    assert _driver.replace_address is not refuse
