import copy
import pickle

import ml_dtypes
import numba.cuda.types
import numpy as np
import pytest
from cuda.bindings import driver

from numba_tma.host.dtypes import DType, as_dtype, names

# name: NumPy type, Numba type of the stored size, Numba type of a read, tensor-map type, float?
TABLE = {
    "u8": (np.uint8, "uint8", "uint8", "UINT8", False),
    "i8": (np.int8, "int8", "int8", "UINT8", False),
    "u16": (np.uint16, "uint16", "uint16", "UINT16", False),
    "i16": (np.int16, "int16", "int16", "UINT16", False),
    "u32": (np.uint32, "uint32", "uint32", "UINT32", False),
    "i32": (np.int32, "int32", "int32", "INT32", False),
    "u64": (np.uint64, "uint64", "uint64", "UINT64", False),
    "i64": (np.int64, "int64", "int64", "INT64", False),
    "f16": (np.float16, "float16", "float32", "FLOAT16", True),
    "bf16": (ml_dtypes.bfloat16, "bfloat16", "float32", "BFLOAT16", True),
    "f32": (np.float32, "float32", "float32", "FLOAT32", True),
    "f64": (np.float64, "float64", "float64", "FLOAT64", True),
    "tf32": (np.float32, "float32", "float32", "TFLOAT32", True),
    "f32_ftz": (np.float32, "float32", "float32", "FLOAT32_FTZ", True),
    "tf32_ftz": (np.float32, "float32", "float32", "TFLOAT32_FTZ", True),
    "e4m3": (ml_dtypes.float8_e4m3fn, "uint8", "float32", "UINT8", False),
    "e5m2": (ml_dtypes.float8_e5m2, "uint8", "float32", "UINT8", False),
}


def library_dtype(library: str, name: str, text: str) -> object:
    """An object that looks like the element type of a library that is not installed."""
    cls = type("dtype", (), {"__module__": library, "__repr__": lambda self: text, "name": name})
    return cls()


def test_names_are_those_of_the_table():
    assert names == tuple(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_row(name):
    numpy, numba_name, compute, tensor_map, is_float = TABLE[name]
    dtype = as_dtype(name)
    assert dtype.name == repr(dtype) == name
    assert dtype.numpy == np.dtype(numpy)
    assert dtype.itemsize == np.dtype(numpy).itemsize
    assert (dtype.numba, dtype.compute, dtype.tensor_map) == (numba_name, compute, tensor_map)
    assert dtype.is_float is is_float


@pytest.mark.parametrize("name", TABLE)
def test_the_names_exist_where_they_will_be_looked_up(name):
    dtype = as_dtype(name)
    assert hasattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{dtype.tensor_map}")
    stored = getattr(numba.cuda.types, dtype.numba)
    assert getattr(stored, "bitwidth", 16) == 8 * dtype.itemsize
    assert hasattr(numba.cuda.types, dtype.compute)


@pytest.mark.parametrize("name", [n for n in TABLE if n not in ("tf32", "f32_ftz", "tf32_ftz")])
def test_as_dtype_finds_it_under_every_other_name(name):
    dtype = as_dtype(name)
    assert as_dtype(dtype) is dtype
    assert as_dtype(dtype.numpy) is dtype
    assert as_dtype(dtype.numpy.type) is dtype
    assert as_dtype(dtype.numpy.name) is dtype
    torch_name = dtype.numpy.name
    assert as_dtype(library_dtype("torch", "", f"torch.{torch_name}")) is dtype


@pytest.mark.parametrize("name", [n for n in TABLE if not n.startswith(("tf32", "f32_", "e"))])
def test_as_dtype_takes_numba_types(name):
    dtype = as_dtype(name)
    assert as_dtype(getattr(numba.cuda.types, dtype.numba)) is dtype


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_as_dtype_takes_numba_fp8_types(name):
    numba_type = library_dtype("numba.cuda._internal.cuda_fp8", f"__nv_fp8_{name}", "")
    assert as_dtype(numba_type) is as_dtype(name)


def test_a_name_of_ours_is_never_read_as_one_of_numpy():
    assert np.dtype("u8").itemsize == 8
    assert as_dtype("u8").itemsize == 1
    assert np.dtype("i2") == np.int16
    with pytest.raises(TypeError, match="dtype 'i2' is no TMA element type"):
        as_dtype("i2")


@pytest.mark.parametrize(
    "bad",
    [
        None,
        3,
        [1],
        float,
        bool,
        list,
        "float128",
        np.bool_,
        np.floating,
        np.dtype(np.complex64),
        np.dtype(">f4"),
        np.dtype("V2"),
        np.dtype([("x", "f4")]),
        library_dtype("torch", "", "torch.complex64"),
        library_dtype("numba.core.types", "boolean", "bool"),
        library_dtype("elsewhere", "float32", "torch.float32"),
    ],
    ids=repr,
)
def test_other_types_are_refused_with_the_list(bad):
    with pytest.raises(
        TypeError, match="is no TMA element type: use one of u8, i8, .*, e4m3, e5m2"
    ):
        as_dtype(bad)


@pytest.mark.parametrize("name", TABLE)
def test_there_is_one_object_per_name(name):
    dtype = as_dtype(name)
    assert copy.deepcopy(dtype) is dtype
    assert pickle.loads(pickle.dumps(dtype)) is dtype


def test_types_of_one_storage_differ():
    assert len({as_dtype(name) for name in names}) == len(names)
    assert as_dtype("f32") != as_dtype("tf32")


def test_it_cannot_be_changed():
    with pytest.raises(AttributeError):
        as_dtype("f32").name = "f64"
    assert isinstance(as_dtype("f32"), DType)
