"""What goes to the compiler's process: the types of a launch's arguments, and a kernel."""

import pickle
import types

import numpy as np
import pytest
from numba import cuda

import numba_tma as tma
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
