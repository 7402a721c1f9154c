import copy
import pickle

import ml_dtypes
import numba.cuda.types
import numpy as np
import pytest
from cuda.bindings import driver

from numba_tma.host.dtypes import DType, as_dtype, byte_names, complex_names, names, stored_dtype

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
    "c64": (np.complex64, "complex64", "complex64", "FLOAT32", True),
    "c128": (np.complex128, "complex128", "complex128", "FLOAT64", True),
    "e4m3": (ml_dtypes.float8_e4m3fn, "uint8", "float32", "UINT8", False),
    "e5m2": (ml_dtypes.float8_e5m2, "uint8", "float32", "UINT8", False),
    "ue8m0": (ml_dtypes.float8_e8m0fnu, "uint8", "uint8", "UINT8", False),
    "ue4m3": (ml_dtypes.float8_e4m3fn, "uint8", "uint8", "UINT8", False),
    "e2m1": (ml_dtypes.float4_e2m1fn, "uint8", "", "16U4_ALIGN8B", False),
    "e2m1_unpacked": (ml_dtypes.float4_e2m1fn, "uint8", "", "16U4_ALIGN16B", False),
    "e2m3": (ml_dtypes.float6_e2m3fn, "uint8", "", "16U6_ALIGN16B", False),
    "e3m2": (ml_dtypes.float6_e3m2fn, "uint8", "", "16U6_ALIGN16B", False),
}
# name: bits of an element in global and in shared memory.
PACKED = {"e2m1": (4, 4), "e2m1_unpacked": (4, 8), "e2m3": (6, 8), "e3m2": (6, 8)}
#: Names whose storage an earlier name has.
SECOND = ("tf32", "f32_ftz", "tf32_ftz", "ue4m3", "e2m1_unpacked")


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
    bits = PACKED.get(name, (8 * np.dtype(numpy).itemsize,) * 2)
    assert (dtype.bits, dtype.shared_bits) == bits
    assert (dtype.numba, dtype.compute, dtype.tensor_map) == (numba_name, compute, tensor_map)
    assert dtype.is_float is is_float


@pytest.mark.parametrize("name", TABLE)
def test_the_names_exist_where_they_will_be_looked_up(name):
    dtype = as_dtype(name)
    assert hasattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{dtype.tensor_map}")
    stored = getattr(numba.cuda.types, dtype.numba)
    assert getattr(stored, "bitwidth", 16) == 8 * dtype.numpy.itemsize
    assert hasattr(numba.cuda.types, dtype.compute) or name in PACKED


def test_types_under_a_byte_have_no_itemsize():
    assert byte_names == tuple(name for name in names if name not in (*PACKED, *complex_names))
    assert all(as_dtype(n).itemsize == as_dtype(n).numpy.itemsize for n in byte_names)
    for name in PACKED:
        with pytest.raises(TypeError, match=f"{name} has . bits, no whole number of bytes"):
            _ = as_dtype(name).itemsize


@pytest.mark.parametrize(
    ("name", "elements", "data", "shared", "offsets"),
    [
        ("e2m1", 32, 16, 16, [0, 0, 1, 1, 8]),
        ("e2m1_unpacked", 128, 64, 128, [0, 0, 1, 1, 16]),
        ("e2m3", 128, 96, 128, [0, 0, 1, 2, 16]),
        ("f16", 16, 32, 32, [0, 2, 4, 6, 32]),
    ],
)
def test_bytes_of_adjacent_elements(name, elements, data, shared, offsets):
    dtype = as_dtype(name)
    assert (dtype.nbytes(elements), dtype.shared_nbytes(elements)) == (data, shared)
    assert [dtype.shared_offset(i) for i in (0, 1, 2, 3, 16)] == offsets
    assert dtype.shared_offset(np.array([0, 16])).tolist() == [0, offsets[-1]]
    assert dtype.chunk * dtype.shared_bits == 128


def test_shapes_of_packed_arrays():
    assert as_dtype("e2m1").element_shape((3, 8)) == (3, 16)
    assert as_dtype("e3m2").element_shape((3, 12)) == (3, 16)
    assert as_dtype("f32").element_shape((3, 12)) == (3, 12)
    for name in names:
        assert as_dtype(name).storage_shape(as_dtype(name).element_shape((2, 12))) == (2, 12)


def test_an_array_of_one_element_a_byte_is_refused():
    for name in ("e2m1", "e2m3", "e3m2"):
        with pytest.raises(TypeError, match=rf"pass the bytes of numba_tma.pack\(array\).*{name}"):
            stored_dtype(as_dtype(name).numpy)
    assert stored_dtype(np.dtype("f4")) is as_dtype("f32")
    torch_x2 = library_dtype("torch", "", "torch.float4_e2m1fn_x2")
    assert stored_dtype(torch_x2) is as_dtype("e2m1")


def test_aliases():
    assert as_dtype("e8m0") is as_dtype("ue8m0") is as_dtype(ml_dtypes.float8_e8m0fnu)
    assert as_dtype(library_dtype("torch", "", "torch.float8_e8m0fnu")) is as_dtype("ue8m0")
    assert as_dtype("e2m1_unpacked").format == as_dtype("e2m1").format == "e2m1"
    assert as_dtype("tf32").format == "tf32"


@pytest.mark.parametrize("name", [n for n in TABLE if n not in SECOND])
def test_as_dtype_finds_it_under_every_other_name(name):
    dtype = as_dtype(name)
    assert as_dtype(dtype) is dtype
    assert as_dtype(dtype.numpy) is dtype
    assert as_dtype(dtype.numpy.type) is dtype
    assert as_dtype(dtype.numpy.name) is dtype
    torch_name = dtype.numpy.name
    assert as_dtype(library_dtype("torch", "", f"torch.{torch_name}")) is dtype


@pytest.mark.parametrize(
    "name", [n for n in TABLE if not n.startswith(("tf32", "f32_", "e", "ue"))]
)
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
        np.dtype(np.longlong).newbyteorder(),
        np.dtype(">f4"),
        np.dtype("V2"),
        np.dtype([]),
        library_dtype("torch", "", "torch.complex32"),
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
