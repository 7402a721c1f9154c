"""The conversions of arguments to parameters: what each reads, and what it refuses."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest
from numba import types

import numba_tma as tma
from numba_tma.backend.lowering.types import TensorMapArrayType, TensorMapType
from numba_tma.backend.numba_cuda import packing
from numba_tma.backend.numba_cuda.packing import Packer
from numba_tma.host.launching import Unfit

I8 = types.int8


def packed(numba_type, argument, later=None):
    """Return the plain values of an argument; with `later`, of one for a packer made by another."""
    packer = Packer(["n"], [numba_type], [argument])
    values = packer.values([argument if later is None else later])
    return [getattr(value, "value", value) for value in values]


@pytest.mark.parametrize(
    ("numba_type", "argument", "value"),
    [
        (types.boolean, 3, True), (types.boolean, 0, False), (types.boolean, np.int8(-1), True),
        (types.boolean, 0.0, False), (types.float16, 1.5, 0x3E00), (types.float16, 1, 0x3C00),
        (types.float16, np.float16(-2), 0xC000), (types.float32, 1, 1.0), (types.float32, 0.5, 0.5),
        (types.float32, 0.1, float(np.float32(0.1))), (types.float64, np.float32(0.5), 0.5),
        (types.float64, True, 1.0), (types.int32, True, 1), (types.int32, -(2**31), -(2**31)),
        (types.int32, 2**31 - 1, 2**31 - 1), (types.uint32, 2**32 - 1, 2**32 - 1),
        (types.uint64, 2**64 - 1, 2**64 - 1), (I8, -128, -128), (I8, 127, 127),
        (types.int64, np.int32(-5), -5), (types.CPointer(types.float32), 4096, 4096),
        (types.intp, 2**63 - 1, 2**63 - 1), (types.intp, -(2**63), -(2**63)),
    ],
)  # fmt: skip
def test_a_number_of_any_class_becomes_that_of_the_parameter(numba_type, argument, value):
    found = packed(numba_type, argument)
    assert found == [value] and type(found[0]) is type(value)
    with pytest.raises(Unfit, match="it is a str, not"):
        packed(numba_type, argument, "text")


@pytest.mark.parametrize(
    ("numba_type", "argument", "later"),
    [
        (I8, 0, 128), (I8, 0, -129), (types.uint32, 0, -1), (types.uint32, 0, 2**32),
        (types.int32, 0, 2**31), (types.uint64, 0, 2**64), (types.uint64, 0, -1),
        (types.int64, np.int8(0), np.int16(0)), (types.intp, 0, 2**63),
        (types.intp, 0, -(2**63) - 1), (types.intp, 0, 2**64),
        (types.boolean, 1, True), (types.boolean, 1, 1.0),
        (types.float32, 1.0, 1), (types.float32, 1.0, np.float32(1)), (types.float64, 1.0, 1),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_parameter_is_refused(numba_type, argument, later):
    with pytest.raises(Unfit, match="^n is .*, where the kernel takes .*: it is "):
        packed(numba_type, argument, later)


TILES = [TensorMapType(2, tma.Tile(shape, "f32")) for shape in ((8, 32), (16, 32))]


def test_an_array_of_maps_is_of_the_kernels_type(monkeypatch):
    ours, other = map(TensorMapArrayType, TILES)
    monkeypatch.setattr(packing, "typeof", lambda maps: maps.typed)
    for known, typed, taken in (
        *((ours, None, True), (None, ours, True), (other, ours, True)),
        *((None, other, False), (other, other, False)),
    ):
        maps = SimpleNamespace(numba_type=known, typed=typed, address=4096)
        if taken:
            assert packed(ours, maps) == [4096]
        else:
            with pytest.raises(Unfit, match="it is a .*, and the kernel takes a"):
                packed(ours, maps)


def test_a_record_is_of_the_kernels_type(monkeypatch):
    ours, other = (types.Record.make_c_struct([("x", typ)]) for typ in (types.int32, types.int64))
    monkeypatch.setattr(packing, "typeof", lambda record: record.typed)
    pointer = ctypes.c_void_p(4096)
    for typed in (ours, other):
        record = SimpleNamespace(typed=typed, device_ctypes_pointer=pointer)
        if typed is ours:
            assert packed(ours, record) == [4096]
        else:
            with pytest.raises(Unfit, match="it is a .*, and the kernel takes a"):
                packed(ours, record)


@pytest.mark.parametrize(
    ("numba_type", "argument", "values"),
    [
        (types.Tuple([types.int64, types.float32]), (3, np.float32(0.5)), [3, 0.5]),
        (types.UniTuple(types.UniTuple(types.int64, 1), 2), ((3,), (4,)), [3, 4]),
        (types.complex64, 1 - 2j, [(1.0), (-2.0)]), (types.complex128, 1 - 2j, [1.0, -2.0]),
        (types.NPDatetime("s"), np.datetime64(5, "s"), [5]),
        (types.NPTimedelta("ms"), np.timedelta64(-7, "ms"), [-7]),
    ],
)  # fmt: skip
def test_an_argument_of_several_values_is_flattened(numba_type, argument, values):
    assert packed(numba_type, argument) == values
    with pytest.raises(Unfit, match="it is a list, not a"):
        packed(numba_type, argument, [argument])
    if isinstance(argument, tuple):
        with pytest.raises(Unfit, match="argument 2 is shorter|shorter than"):
            packed(numba_type, argument, argument[:1])
