"""Tensor maps up to the driver: the arguments of the encode call are captured."""

import ctypes
import gc
import importlib
import os
import subprocess
import sys
import weakref

import ml_dtypes
import numpy as np
import pytest
from cuda.bindings import driver
from cuda.core._kernel_arg_handler import ParamHolder
from cuda.core._tensor_map import TensorMapDescriptor
from cuda.core.utils import StridedMemoryView
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_tma.host import array_interface as _array_interface
from numba_tma.host import encoding as _encoding
from numba_tma.host.array_interface import contiguous_strides
from numba_tma.host.dtypes import as_dtype, names
from numba_tma.host.layout import Swizzle, Tile
from numba_tma.host.tensor_map import TensorMap, tensor_map
from tests.tiers import every, quick

# The package exports the function under the name of its module.
tensor_map_module = importlib.import_module("numba_tma.host.tensor_map")

ADDRESS = 0x7F00_0000_0000
PARAMETERS = (
    "data_type rank address shape strides box element_strides interleave swizzle l2_promotion "
    "oob_fill"
).split()


@pytest.mark.parametrize(
    ("columns", "dtype", "row", "past", "whole"),
    [
        (5, "f32", 20, 12, 8), (9, "f16", 18, 14, 16), (17, "u8", 17, 15, 32), (1, "f64", 8, 8, 2),
        (10, "e2m1", 5, 11, 32), (4, "f32", 16, 0, 0), (32, "e2m1", 16, 0, 0),
    ],
)  # fmt: skip
def test_rows_are_padded_to_whole_chunks(columns, dtype, row, past, whole):
    text = _encoding.partial_rows((3, columns), as_dtype(dtype), "tensor_map")
    if not past:
        assert text == ""
        return
    assert f"{columns} {as_dtype(dtype)} = {row} B," in text
    assert f"the {past} B past each row" in text and f"pad the rows to {whole} columns" in text


class FakeDriver:
    """Records what would have been encoded, and answers with bytes that tell the calls apart."""

    def __init__(self):
        self.calls = []
        self.result = driver.CUresult.CUDA_SUCCESS
        self.device = 0

    def encode(self, *arguments):
        call = dict(zip(PARAMETERS, arguments, strict=True))
        for name in ("shape", "strides", "box", "element_strides"):
            call[name] = [int(n) for n in call[name]]
        for name in ("data_type", "interleave", "swizzle", "l2_promotion", "oob_fill"):
            call[name] = call[name].name.removeprefix("CU_TENSOR_MAP_")
        self.calls.append(call)
        self.encoded = driver.CUtensorMap()
        self.encoded.opaque = [driver.cuuint64_t(1000 * len(self.calls) + i) for i in range(16)]
        return self.result, self.encoded

    def current_device(self):
        return driver.CUresult.CUDA_SUCCESS, driver.CUdevice(self.device)


@pytest.fixture(autouse=True)
def fake_driver(monkeypatch):
    fake = FakeDriver()
    monkeypatch.setattr(driver, "cuTensorMapEncodeTiled", fake.encode)
    monkeypatch.setattr(driver, "cuCtxGetDevice", fake.current_device)
    monkeypatch.setattr(_encoding, "compute_capability", lambda device: (10, 0))
    monkeypatch.setattr(_array_interface, "readers", {})
    monkeypatch.setattr(tensor_map_module, "readers", _array_interface.readers)
    _encoding.encode.cache_clear()
    yield fake
    _encoding.encode.cache_clear()


class TorchDtype:
    def __init__(self, numpy):
        self.itemsize = np.dtype(numpy).itemsize
        self._name = f"torch.{np.dtype(numpy).name}"

    def __repr__(self):
        return self._name


TorchDtype.__module__ = "torch"
TORCH_DTYPES = {}


class Tensor:
    """Looks like a torch tensor: strides count elements."""

    def __init__(self, shape, dtype=np.float32, strides=None, address=ADDRESS, device="cuda:0"):
        dtype = np.dtype(dtype)
        self.shape = tuple(shape)
        self.dtype = TORCH_DTYPES.setdefault(dtype, TorchDtype(dtype))
        self.device, self.is_cuda = device, device.startswith("cuda")
        self._strides = strides or np.empty(shape, "u1").strides
        self._address = address

    def data_ptr(self):
        return self._address

    def stride(self):
        return self._strides

    def is_contiguous(self):
        packed = contiguous_strides(self.shape, 1)
        return all(n == 1 or s == p for n, s, p in zip(self.shape, self._strides, packed))

    def element_size(self):
        return self.dtype.itemsize


class NumbaArray:
    """Looks like a numba device array: strides count bytes."""

    __cuda_ndarray__ = True

    def __init__(self, shape, dtype=np.float32, address=ADDRESS):
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.strides = np.empty(shape, dtype).strides
        self.device_ctypes_pointer = ctypes.c_size_t(address)


class CupyArray:
    """Looks like a CuPy array."""

    def __init__(self, shape, dtype=np.float32, address=ADDRESS):
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.strides = np.empty(shape, dtype).strides
        self.data = type("MemoryPointer", (), {"ptr": address})()


CupyArray.__module__ = "cupy"


class InterfaceArray:
    """Offers __cuda_array_interface__."""

    def __init__(self, shape, typestr="<f4", address=ADDRESS, **more):
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": typestr,
            "data": (address, False),
            "version": 3,
            **more,
        }


class DlpackArray:
    """Offers __dlpack__ alone."""

    KINDS = {"i": 0, "u": 1, "f": 2, "bfloat16": 4, "float8_e4m3fn": 10}

    class Managed(ctypes.Structure):
        _fields_ = [
            ("data", ctypes.c_void_p),
            ("device_type", ctypes.c_int32),
            ("device_id", ctypes.c_int32),
            ("ndim", ctypes.c_int32),
            ("code", ctypes.c_uint8),
            ("bits", ctypes.c_uint8),
            ("lanes", ctypes.c_uint16),
            ("shape", ctypes.POINTER(ctypes.c_int64)),
            ("strides", ctypes.POINTER(ctypes.c_int64)),
            ("byte_offset", ctypes.c_uint64),
            ("context", ctypes.c_void_p),
            ("deleter", ctypes.c_void_p),
        ]

    def __init__(self, shape, dtype=np.float32, strides=None, device=(2, 0), address=ADDRESS):
        dtype = np.dtype(dtype)
        code = self.KINDS.get(dtype.name, self.KINDS.get(dtype.kind))
        axes = ctypes.c_int64 * len(shape)
        self._shape = axes(*shape)
        self._strides = axes(*strides) if strides else None
        self._managed = self.Managed(
            address, *device, len(shape), code, 8 * dtype.itemsize, 1, self._shape, self._strides
        )
        self._device = device

    def __dlpack_device__(self):
        return self._device

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        assert stream == (-1 if self._device[0] == 2 else None)  # no synchronisation
        make = ctypes.pythonapi.PyCapsule_New
        make.restype = ctypes.py_object
        make.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self._managed), b"dltensor", None)


def descriptor_bytes(descriptor):
    """The 128 bytes that a launch would pass by value."""
    holder = ParamHolder((descriptor,))
    return ctypes.string_at(ctypes.c_void_p.from_address(holder.ptr).value, 128)


def refusal(error, *arguments, **options):
    with pytest.raises(error) as caught:
        tensor_map(*arguments, **options)
    return str(caught.value)


def violations(*arguments, **options):
    """The numbered rules of the ValueError."""
    text = refusal(ValueError, *arguments, **options)
    head, *numbered, given_line = text.split("\n")
    count = len(numbered)
    assert head == f"tensor_map: {count} rule{'s are' if count > 1 else ' is'} broken:"
    assert [line.split(". ")[0] for line in numbered] == [f"  {i + 1}" for i in range(count)]
    assert given_line.startswith("Given: array of shape ")
    return [line.split(". ", 1)[1] for line in numbered]


# ---- what the driver is asked ----


def test_the_axes_are_reversed_for_the_driver(fake_driver):
    tensor = Tensor((3, 5, 7, 32), np.float16, strides=(8000, 1600, 160, 1))
    tensor_map(tensor, (1, 2, 4, 16))
    assert fake_driver.calls == [
        {
            "data_type": "DATA_TYPE_FLOAT16",
            "rank": 4,
            "address": ADDRESS,
            "shape": [32, 7, 5, 3],
            "strides": [320, 3200, 16000],
            "box": [16, 4, 2, 1],
            "element_strides": [1, 1, 1, 1],
            "interleave": "INTERLEAVE_NONE",
            "swizzle": "SWIZZLE_NONE",
            "l2_promotion": "L2_PROMOTION_L2_128B",
            "oob_fill": "FLOAT_OOB_FILL_NONE",
        }
    ]


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_every_rank(fake_driver, rank):
    shape = (2, 3, 4, 5, 32)[-rank:]
    tensor_map(Tensor(shape), (1,) * (rank - 1) + (32,))
    (call,) = fake_driver.calls
    assert call["rank"] == rank
    assert call["shape"] == list(reversed(shape))
    assert call["strides"] == ([128, 640, 2560, 7680][: rank - 1] or [16])  # rank 1: not read


@pytest.mark.parametrize("name", names)
def test_every_dtype(fake_driver, name):
    dtype = as_dtype(name)
    made = tensor_map(Tensor((64, 192), dtype.storage), Tile((8, 128), dtype), dtype=dtype)
    assert fake_driver.calls[0]["data_type"] == f"DATA_TYPE_{dtype.tensor_map}"
    assert made.dtype is dtype


@pytest.mark.parametrize(
    "options, asked",
    [
        ({"swizzle": Swizzle.B32}, {"swizzle": "SWIZZLE_32B"}),
        ({"swizzle": Swizzle.B64}, {"swizzle": "SWIZZLE_64B"}),
        ({"swizzle": Swizzle.B128}, {"swizzle": "SWIZZLE_128B"}),
        ({"swizzle": 3}, {"swizzle": "SWIZZLE_128B"}),
        ({"l2_promotion": None}, {"l2_promotion": "L2_PROMOTION_NONE"}),
        ({"l2_promotion": 64}, {"l2_promotion": "L2_PROMOTION_L2_64B"}),
        ({"l2_promotion": 256}, {"l2_promotion": "L2_PROMOTION_L2_256B"}),
        ({"oob_fill": "nan"}, {"oob_fill": "FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA"}),
        ({"element_strides": (2, 3, 1)}, {"element_strides": [1, 3, 2], "box": [8, 6, 4]}),
        ({"dtype": "tf32"}, {"data_type": "DATA_TYPE_TFLOAT32"}),
        ({"dtype": np.uint32}, {"data_type": "DATA_TYPE_UINT32"}),
    ],
)
def test_every_option_reaches_the_driver(fake_driver, options, asked):
    tensor = Tensor((16, 16, 64))
    tensor_map(tensor, (4, 6, 8), **options)
    defaults = {
        "data_type": "DATA_TYPE_FLOAT32",
        "box": [8, 6, 4],
        "element_strides": [1, 1, 1],
        "interleave": "INTERLEAVE_NONE",
        "swizzle": "SWIZZLE_NONE",
        "l2_promotion": "L2_PROMOTION_L2_128B",
        "oob_fill": "FLOAT_OOB_FILL_NONE",
    }
    (call,) = fake_driver.calls
    assert {name: call[name] for name in defaults} == defaults | asked


@pytest.mark.parametrize("interleave, swizzle", [(16, Swizzle.NONE), (32, Swizzle.B32)])
def test_the_elements_of_an_interleaved_map_are_slices(fake_driver, interleave, swizzle):
    tensor = Tensor((2, 3, 5, 24, interleave // 2), np.float16)
    box = (2, 1, 4, 8, interleave // 2)
    made = tensor_map(tensor, box, interleave=interleave, swizzle=swizzle)
    (call,) = fake_driver.calls
    assert (call["rank"], call["shape"], call["box"]) == (4, [24, 5, 3, 2], [8, 4, 1, 2])
    assert call["strides"] == [24 * interleave, 120 * interleave, 360 * interleave]
    assert call["interleave"] == f"INTERLEAVE_{interleave}B"
    assert made.tile == Tile(box, "f16", swizzle) and made.tile.nbytes == 64 * interleave


def test_the_encoded_bytes_end_up_in_the_launchers_own_class(fake_driver):
    made = tensor_map(Tensor((64, 64)), (8, 16))
    assert type(made.value) is TensorMapDescriptor
    encoded = ctypes.string_at(int(fake_driver.encoded.getPtr()), 128)
    assert descriptor_bytes(made.value) == encoded
    assert int.from_bytes(encoded[8:16], "little") == 1001


def test_a_refusal_of_the_driver_shows_what_it_was_asked(fake_driver):
    fake_driver.result = driver.CUresult.CUDA_ERROR_INVALID_VALUE
    text = refusal(RuntimeError, Tensor((64, 32)), (8, 16), swizzle=Swizzle.B64)
    assert text.startswith("cuTensorMapEncodeTiled failed: CUDA_ERROR_INVALID_VALUE. ")
    assert f"\n  globalAddress = {ADDRESS}\n" in text
    assert "tensorRank = 2" in text and "SWIZZLE_64B" in text and "L2_128B" in text
    assert [line.split(" = ")[0].strip() for line in text.split("\n")[1:]] == [
        "tensorDataType",
        "tensorRank",
        "globalAddress",
        "globalDim",
        "globalStrides",
        "boxDim",
        "elementStrides",
        "interleave",
        "swizzle",
        "l2Promotion",
        "oobFill",
    ]


def test_a_missing_driver_is_explained(monkeypatch):
    def missing(*arguments):
        raise RuntimeError("no libcuda here")

    monkeypatch.setattr(driver, "cuTensorMapEncodeTiled", missing)
    monkeypatch.setattr(driver, "cuCtxGetDevice", missing)
    text = refusal(RuntimeError, Tensor((64, 32)), (8, 16))
    assert "cuTensorMapEncodeTiled failed: no libcuda here" in text
    assert "compute capability 9.0" in text


def test_a_thread_without_a_context_still_asks_the_driver(fake_driver, monkeypatch):
    answer = (driver.CUresult.CUDA_ERROR_INVALID_CONTEXT, None)
    monkeypatch.setattr(driver, "cuCtxGetDevice", lambda: answer)
    tensor_map(Tensor((64, 32)), (8, 16))
    assert len(fake_driver.calls) == 1


# ---- the map ----


def test_the_fields_of_a_map():
    tensor = Tensor((64, 96), np.float16)
    tile = Tile((8, 16), "f16", Swizzle.B32)
    made = tensor_map(tensor, tile, l2_promotion=256, oob_fill="nan")
    assert isinstance(made, TensorMap)
    assert made.array is tensor
    assert made.tile == tile
    assert (made.dtype, made.rank, made.address) == (as_dtype("f16"), 2, ADDRESS)
    assert (made.shape, made.strides) == ((64, 96), (192, 2))
    assert (made.box, made.swizzle, made.element_strides) == ((8, 16), Swizzle.B32, (1, 1))
    assert (made.l2_promotion, made.oob_fill, made.interleave) == (256, "nan", None)


def test_a_box_becomes_a_tile():
    made = tensor_map(Tensor((64, 96)), [np.int64(8), 32], swizzle=Swizzle.B128)
    assert made.tile == Tile((8, 32), "f32", Swizzle.B128)
    assert made.box == (8, 32)
    assert tensor_map(Tensor((64,)), 32).tile == Tile((32,), "f32")


def test_element_strides_tell_the_box_from_the_tile(fake_driver):
    tensor = Tensor((64, 64))
    made = tensor_map(tensor, (7, 16), element_strides=(3, 1))
    assert (made.box, made.tile) == ((7, 16), Tile((3, 16), "f32"))
    tile = Tile((3, 16), "f32")
    made = tensor_map(tensor, tile, element_strides=[3, 1])
    assert made.tile == tile and made.box == (9, 16)
    assert [call["box"] for call in fake_driver.calls] == [[16, 7], [16, 9]]


def test_repr_shows_everything():
    made = tensor_map(Tensor((64, 96), np.float16), (8, 16), oob_fill="nan", l2_promotion=None)
    assert repr(made) == (
        "TensorMap(f16, shape (64, 96), strides (192, 2) B, address 0x7f0000000000, box (8, 16), "
        "tile Tile((8, 16), f16, NONE), element_strides (1, 1), l2_promotion None, "
        "oob_fill 'nan', interleave None)"
    )


def test_the_kernel_methods_say_where_they_belong():
    made = tensor_map(Tensor((64, 64)), (8, 16))
    calls = {
        "load": lambda: made.load(None, (0, 0), None),
        "store": lambda: made.store(None, (0, 0), cache_hint=None),
        "prefetch": lambda: made.prefetch(),
    }
    for name, call in calls.items():
        with pytest.raises(
            RuntimeError, match=rf"TensorMap\.{name} runs inside a @cuda.jit kernel"
        ):
            call()
        assert "PTX" in getattr(TensorMap, name).__doc__


def test_a_map_has_no_other_attributes():
    made = tensor_map(Tensor((64, 64)), (8, 16))
    for name in ("tile", "other"):
        with pytest.raises(AttributeError):
            setattr(made, name, 1)


# ---- legal, though odd ----


@pytest.mark.parametrize(
    "shape, strides, box, asked",
    [
        ((4, 8), (8, 1), (200, 16), [32]),  # a box larger than the tensor
        ((64, 32), (0, 1), (8, 16), [0]),  # one row, repeated
        ((64, 32), (4, 1), (8, 16), [16]),  # overlapping rows
        ((64, 8), (2**38 - 4, 1), (8, 4), [2**40 - 16]),
        ((3, 4, 8), (8, 24, 1), (1, 1, 8), [96, 32]),  # outer axes in any order
    ],
)
def test_strides_that_the_driver_takes(fake_driver, shape, strides, box, asked):
    tensor_map(Tensor(shape, strides=strides), box)
    assert fake_driver.calls[0]["strides"] == asked


@pytest.mark.parametrize(
    "shape, strides, legal",
    [
        ((1, 32), (1, 1), (128, 4)),
        ((1, 5), (7, 1), (32, 4)),
        ((1, 32), (-32, 1), (128, 4)),
        ((1, 32), (2**50, 1), (128, 4)),
        ((1, 32), (64, 1), (128, 4)),
        ((64, 1), (4, 99), (16, 4)),
        ((1,), (5,), (4,)),
        ((1, 1, 1), (1, 1, 1), (16, 16, 4)),
        ((4, 1, 8), (8, 1, 1), (32, 32, 4)),
        ((4, 1, 8, 1), (8, -1, 4, 3), (32, 128, 16, 4)),
        ((1, 2**30, 4), (3, 2**36, 1), (2**40 - 16, 2**38, 4)),
    ],
)
def test_the_stride_of_an_axis_of_one_element_means_nothing(fake_driver, shape, strides, legal):
    made = tensor_map(Tensor(shape, strides=strides), (1,) * (len(shape) - 1) + (4,))
    assert made.strides == legal
    assert fake_driver.calls[0]["strides"] == (list(reversed(legal[:-1])) or [16])


# ---- where arrays come from ----

SOURCES = {
    "torch": Tensor,
    "numba": NumbaArray,
    "cupy": CupyArray,
    "interface": lambda shape, dtype: InterfaceArray(shape, np.dtype(dtype).str),
    "dlpack": DlpackArray,
    "view": lambda shape, dtype: StridedMemoryView.from_dlpack(
        DlpackArray(shape, dtype), stream_ptr=-1
    ),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint16, np.float64], ids=str)
def test_every_source(fake_driver, source, dtype):
    array = SOURCES[source]((64, 48), dtype)
    made = tensor_map(array, (8, 16))
    assert made.array is array
    assert made.dtype.numpy == dtype
    assert (made.address, made.shape) == (ADDRESS, (64, 48))
    assert made.strides == (48 * made.dtype.itemsize, made.dtype.itemsize)
    (*_, read_only), _, _ = _array_interface.read_array(array)
    assert read_only is False
    assert tensor_map(array, (8, 16)).value is made.value
    assert len(fake_driver.calls) == 1


def test_a_torch_parameter_is_read_like_its_base():
    class Parameter(Tensor):
        pass

    assert tensor_map(Parameter((64, 48)), (8, 16)).shape == (64, 48)


@pytest.mark.parametrize("strides", [(400, 8), None])
def test_interface_strides_count_bytes(strides):
    array = InterfaceArray([64, 48], "<f8", strides=strides and list(strides), version=2)
    assert tensor_map(array, (8, 16)).strides == (strides or (384, 8))


def test_interface_of_bfloat16_says_only_its_size():
    array = InterfaceArray((64, 48), "<V2")
    assert "array dtype dtype('V2') is no TMA" in refusal(TypeError, array, (8, 16))
    assert tensor_map(array, (8, 16), dtype="bf16").dtype is as_dtype("bf16")
    array.dtype = np.dtype(ml_dtypes.bfloat16)
    assert tensor_map(array, (8, 16)).dtype is as_dtype("bf16")
    array = InterfaceArray((64, 48), np.dtype(ml_dtypes.float8_e5m2).str)  # "<f1"
    array.dtype = np.dtype(ml_dtypes.float8_e5m2)
    assert tensor_map(array, (8, 16)).dtype is as_dtype("e5m2")


def test_interface_mask_is_refused():
    array = InterfaceArray((64, 48), mask=InterfaceArray((64, 48), "|b1"))
    assert "array has a mask" in refusal(TypeError, array, (8, 16))


def test_dlpack_strides_count_elements():
    array = DlpackArray((64, 48), np.float16, strides=(200, 1))
    assert tensor_map(array, (8, 16)).strides == (400, 2)


def test_dlpack_small_floats():
    array = DlpackArray((64, 48), ml_dtypes.bfloat16)
    assert tensor_map(array, (8, 16)).dtype is as_dtype("bf16")
    array = DlpackArray((64, 48), ml_dtypes.float8_e4m3fn)
    assert tensor_map(array, (8, 16), dtype="e4m3").dtype is as_dtype("e4m3")
    array.dtype = np.dtype(ml_dtypes.float8_e4m3fn)
    assert tensor_map(array, (8, 16)).dtype is as_dtype("e4m3")


def test_a_dlpack_view_stays_alive_with_the_map(monkeypatch):
    views = []

    class Recorded:
        def __init__(self, array):
            self.__dict__ |= {"ptr": ADDRESS, "shape": (64, 48), "strides": None}
            self.dtype, self.is_device_accessible = np.dtype(np.float32), True
            self.readonly = False
            views.append(weakref.ref(self))

        @staticmethod
        def from_dlpack(array, stream_ptr):
            return Recorded(array)

    monkeypatch.setattr("cuda.core.utils.StridedMemoryView", Recorded)
    made = tensor_map(DlpackArray((64, 48)), (8, 16))
    gc.collect()
    assert views[0]() is not None
    del made
    gc.collect()
    assert views[0]() is None


@pytest.mark.parametrize(
    "array, box, text",
    [
        (None, (8,), "array is None; pass a GPU array: numba.cuda.to_device(array), a CuPy"),
        (np.zeros((64, 48)), (8, 16), "array is a numpy.ndarray in host memory; TMA copies from"),
        (np.float32(1), (8,), "array is a numpy.float32 in host memory"),
        (b"bytes", (8,), "array is a bytes in host memory"),
        (Tensor((64, 48), device="cpu"), (8, 16), "a tensor on 'cpu', which is host memory; "),
        (DlpackArray((64, 48), device=(1, 0)), (8, 16), "DlpackArray in host memory"),
        ([[1.0]], (8, 16), "array is a list, which is no array; pass a GPU array"),
        (ADDRESS, (8, 16), "array is a int, which is no array"),
        (Tensor((64, 48)), None, "None is no box; give a Tile, or one int per axis"),
        (Tensor((64, 48)), (8.0, 16), "(8.0, 16) is no box"),
        (Tensor((64, 48)), "ab", "'ab' is no box"),
        (Tensor((64, 48), np.bool_), (8, 16), "array dtype torch.bool is no TMA element"),
        (NumbaArray((64, 48), np.bool_), (8, 16), "array dtype dtype('bool') is no TMA element"),
        (InterfaceArray((64, 48), ">f4"), (8, 16), "array dtype dtype('>f4') is no TMA element"),
    ],
)
def test_what_no_map_can_be_made_of(fake_driver, array, box, text):
    message = refusal(TypeError, array, box)
    assert message.startswith("tensor_map: ") and text in message
    assert fake_driver.calls == []


def test_unknown_dtype_option():
    assert "dtype 'f128' is no TMA element type" in refusal(
        TypeError, Tensor((64, 48)), (8, 16), dtype="f128"
    )


# ---- the element type ----


@pytest.mark.parametrize(
    "stored, dtype",
    [
        (np.uint16, "bf16"),
        (np.uint8, "e5m2"),
        (np.float32, "tf32_ftz"),
        (np.bool_, "u8"),
        (np.complex64, "u64"),
        (np.int32, ml_dtypes.bfloat16),
    ],
)
def test_dtype_renames_bits_of_the_same_size(stored, dtype):
    tensor, dtype = Tensor((64, 64), stored), as_dtype(dtype)
    if np.dtype(stored).itemsize == dtype.itemsize:
        made = tensor_map(tensor, (8, 16), dtype=dtype)
        assert made.dtype is made.tile.dtype is dtype
    else:
        (text,) = violations(tensor, (8, 16), dtype=dtype)
        assert text == (
            "dtype bf16 has 2 B per element, the array's torch.int32 4 B; dtype renames bits of "
            "the same size: view or convert the array first"
        )


def test_a_tile_may_say_how_float32_is_loaded():
    assert tensor_map(Tensor((64, 64)), Tile((8, 16), "tf32")).dtype is as_dtype("tf32")
    assert tensor_map(Tensor((64, 64)), (8, 16)).dtype is as_dtype("f32")


def test_a_tile_of_another_type():
    (text,) = violations(Tensor((64, 64), np.uint16), Tile((8, 16), "bf16", Swizzle.B32))
    assert text == (
        "tile Tile((8, 16), bf16, B32) holds bf16, the array u16: make the tile "
        'Tile((8, 16), u16), or pass dtype="bf16" if that is what the bits are'
    )
    (text,) = violations(Tensor((64, 64)), Tile((8, 16), "bf16"))
    assert text.endswith("holds bf16, the array f32: make the tile Tile((8, 16), f32)")
    tile = Tile((8, 16), "bf16", Swizzle.B32)
    assert tensor_map(Tensor((64, 64), np.uint16), tile, dtype="bf16").tile == tile
    (text,) = violations(Tensor((64, 64)), Tile((8, 16), "f32"), dtype="tf32")
    assert text == (
        "dtype is tf32 but the tile Tile((8, 16), f32, NONE): make it Tile((8, 16), tf32) or "
        "leave dtype out"
    )


# ---- the rules ----

RULES = {
    "rank 0": (
        (Tensor(()), (8,)),
        {},
        "array has rank 0; TMA takes 1 to 5: array.reshape(1)",
    ),
    "rank 6": (
        (Tensor((2,) * 6), (1,) * 6),
        {"l2_promotion": 128, "interleave": 16},
        "array has rank 6; TMA takes 1 to 5: merge axes with array.reshape or index some",
    ),
    "box of less rank": (
        (Tensor((64, 64)), (16,)),
        {},
        "box (16,) has rank 1, the array 2; give one extent per axis of the array: e.g. (1, 16)",
    ),
    "box of more rank": (
        (Tensor((64, 64)), Tile((1, 8, 16), "f32")),
        {},
        "box (1, 8, 16) has rank 3, the array 2; give one extent per axis of the array: "
        "e.g. (8, 16), or array[None]",
    ),
    "box 0": (
        (Tensor((64, 64)), (0, 16)),
        {},
        "box axis 0 is 0; TMA copies 1 to 256 elements along an axis: use at least 1",
    ),
    "box 257": (
        (Tensor((64, 64)), (257, 16)),
        {},
        "box axis 0 is 257; TMA copies 1 to 256 elements along an axis: split it into 2 boxes of "
        "256 or fewer; a Tile is split by itself",
    ),
    "inner box off 16 bytes": (
        (Tensor((64, 64), np.float16), (8, 33)),
        {},
        "box axis 1 is 33 f16 = 66 B; TMA needs a multiple of 16 B along the innermost axis: "
        "use 32 or 40",
    ),
    "inner box wider than the swizzle": (
        (Tensor((64, 64)), (8, 64)),
        {"swizzle": Swizzle.B128},
        "box axis 1 is 64 f32 = 256 B; swizzle B128 spans 128 B: use 32 or fewer elements, "
        "Swizzle.NONE, or Tile((8, 64), f32, B128), which splits it into 2 boxes",
    ),
    "base off 16 bytes": (
        (Tensor((64, 64), address=ADDRESS + 4), (8, 16)),
        {},
        "array address is 0x7f0000000004, 4 B past a multiple of 16 B; TMA needs the multiple: "
        "start the view earlier by 1 or later by 3 elements, or copy the array to memory of its "
        "own",
    ),
    "base off its own elements": (
        (Tensor((64, 64), address=ADDRESS + 2), (8, 16)),
        {},
        "array address is 0x7f0000000002, 2 B past a multiple of 16 B; TMA needs the multiple: "
        "copy the array to memory of its own",
    ),
    "base off 32 bytes": (
        (Tensor((4, 2, 8, 8), address=ADDRESS + 16), (1, 1, 8, 8)),
        {"interleave": 32, "swizzle": Swizzle.B32},
        "array address is 0x7f0000000010, 16 B past a multiple of 32 B; TMA needs the multiple: "
        "start the view earlier by 4 or later by 4 elements, or copy the array to memory of its "
        "own",
    ),
    "freed": (
        (Tensor((64, 64), address=0), (8, 16)),
        {},
        "array address is 0; its memory was freed or never allocated: make the map while the "
        "array is alive",
    ),
    "freed by numba": (
        (NumbaArray((64, 64), address=0), (8, 16)),
        {},
        "array address is 0; its memory was freed or never allocated: make the map while the "
        "array is alive",
    ),
    "empty": (
        (Tensor((0, 64), address=0), (8, 16)),
        {},
        "axis 0 has 0 elements; TMA needs 1 to 2**32: skip empty arrays",
    ),
    "too long": (
        (Tensor((2**33 + 1, 4), strides=(4, 1)), (8, 4)),
        {},
        "axis 0 has 8589934593 elements; TMA takes 1 to 2**32: make 3 maps of parts of the array",
    ),
    "stride off 16 bytes": (
        (Tensor((64, 500), np.float16), (8, 16)),
        {},
        "axis 0 stride is 1000 B; TMA needs a multiple of 16 B: pad axis 1 to 504 columns",
    ),
    "stride off 32 bytes": (
        (Tensor((4, 2, 8, 8), strides=(144, 68, 8, 1)), (1, 1, 8, 8)),
        {"interleave": 32, "swizzle": Swizzle.B32},
        "axis 1 stride is 272 B; TMA needs a multiple of 32 B: lay the array out with 288 B there",
    ),
    "outer stride off 16 bytes": (
        (Tensor((4, 8, 8), strides=(65, 8, 1)), (1, 8, 8)),
        {},
        "axis 0 stride is 260 B; TMA needs a multiple of 16 B: lay the array out with 272 B there",
    ),
    "overlapping rows off 16 bytes": (
        (Tensor((64, 8), strides=(1, 1)), (8, 8)),
        {},
        "axis 0 stride is 4 B; TMA needs a multiple of 16 B: its rows overlap, so copy them apart, "
        "e.g. with ascontiguousarray",
    ),
    "stride too long": (
        (Tensor((4, 8), strides=(2**38, 1)), (1, 8)),
        {},
        "axis 0 stride is 1099511627776 B; TMA needs less than 2**40: make one map per index of "
        "axis 0",
    ),
    "reversed rows": (
        (Tensor((64, 64), strides=(-64, 1)), (8, 16)),
        {},
        "axis 0 stride is -256 B; TMA only walks forward: pass array[::-1, :] and count the "
        "coordinate from the other end",
    ),
    "reversed columns": (
        (Tensor((64, 64), strides=(64, -1)), (8, 16)),
        {},
        "axis 1 stride is -4 B; TMA only walks forward: pass array[:, ::-1] and count the "
        "coordinate from the other end",
    ),
    "transposed": (
        (Tensor((64, 32), strides=(1, 64)), (8, 16)),
        {},
        "axis 1 stride is 256 B, its elements have 4 B; TMA needs a contiguous innermost axis: "
        "axis 0 is the contiguous one, so pass array.T with the box (16, 8) and coordinates in "
        "that order",
    ),
    "transposed in 3D": (
        (Tensor((4, 64, 32), strides=(2048, 1, 64)), (1, 8, 16)),
        {},
        "axis 2 stride is 256 B, its elements have 4 B; TMA needs a contiguous innermost axis: "
        "axis 1 is the contiguous one, so pass array.transpose(0, 2, 1), in torch array.permute, "
        "with the box (1, 16, 8) and coordinates in that order",
    ),
    "Fortran order": (
        (Tensor((4, 64, 32), strides=(1, 4, 256)), (1, 8, 16)),
        {},
        "axis 2 stride is 1024 B, its elements have 4 B; TMA needs a contiguous innermost axis: "
        "axis 0 is the contiguous one, so pass array.transpose(2, 1, 0), in torch array.permute, "
        "with the box (16, 8, 1) and coordinates in that order",
    ),
    "every second column": (
        (Tensor((64, 32), strides=(64, 2)), (8, 16)),
        {},
        "axis 1 stride is 8 B, its elements have 4 B; TMA needs a contiguous innermost axis: copy "
        "the array, e.g. with ascontiguousarray",
    ),
    "broadcast columns": (
        (Tensor((64, 32), strides=(4, 0)), (8, 16)),
        {},
        "axis 1 stride is 0 B, its elements have 4 B; TMA needs a contiguous innermost axis: copy "
        "the array, e.g. with ascontiguousarray",
    ),
    "broadcast rows of a column": (
        (Tensor((64, 32), strides=(0, 64)), (8, 16)),
        {},
        "axis 1 stride is 256 B, its elements have 4 B; TMA needs a contiguous innermost axis: "
        "copy the array, e.g. with ascontiguousarray",
    ),
    "element stride 9": (
        (Tensor((64, 64)), (8, 16)),
        {"element_strides": (9, 1)},
        "axis 0 element stride is 9; TMA takes 1 to 8: view the array with every 9th element, "
        "step 1",
    ),
    "element stride 0": (
        (Tensor((64, 64)), (8, 16)),
        {"element_strides": (0, 1)},
        "axis 0 element stride is 0; TMA takes 1 to 8: use 1",
    ),
    "innermost element stride": (
        (Tensor((64, 64)), (8, 16)),
        {"element_strides": (1, 2)},
        "axis 1 element stride is 2; TMA ignores it along the innermost axis: use 1, and skip "
        "elements when the kernel reads the tile",
    ),
    "element strides of another rank": (
        (Tensor((64, 64)), (8, 16)),
        {"element_strides": (2,)},
        "element_strides (2,) has length 1, the array rank 2; give one per axis, 1 where nothing "
        "is skipped",
    ),
    "tile that its element strides spread too far": (
        (Tensor((1024, 64)), Tile((67, 16), "f32")),
        {"element_strides": (5, 1)},
        "tile axis 0 is 67; TMA copies 1 to 256 elements along an axis, and no box of 51 or fewer "
        "divides Tile((67, 16), f32, NONE) into parts aligned to 128 B: use 68",
    ),
    "nan for integers": (
        (Tensor((64, 64), np.int32), (8, 16)),
        {"oob_fill": "nan"},
        'oob_fill is "nan", but i32 is copied as INT32, which has no NaN: use "zeros"',
    ),
    "nan for fp8": (
        (Tensor((64, 64), ml_dtypes.float8_e5m2), (8, 16)),
        {"oob_fill": "nan"},
        'oob_fill is "nan", but e5m2 is copied as UINT8, which has no NaN: use "zeros"',
    ),
    "unknown fill": (
        (Tensor((64, 64)), (8, 16)),
        {"oob_fill": 0},
        'oob_fill is 0; TMA has "zeros" and "nan"',
    ),
    "unknown promotion": (
        (Tensor((64, 64)), (8, 16)),
        {"l2_promotion": 96},
        "l2_promotion is 96; TMA has None, 64, 128 and 256 bytes",
    ),
    "unknown swizzle": (
        (Tensor((64, 64)), (8, 16)),
        {"swizzle": 128},
        "swizzle is 128; TMA has Swizzle.NONE, B32, B64 and B128, and from compute capability 10.0 "
        "on B128_ATOM_32B and B128_ATOM_64B",
    ),
    "a second swizzle": (
        (Tensor((64, 64)), Tile((8, 16), "f32", Swizzle.B64)),
        {"swizzle": Swizzle.B128},
        "swizzle is B128 but the tile Tile((8, 16), f32, B64): leave swizzle out",
    ),
    "unknown interleave": (
        (Tensor((4, 64, 64)), (1, 8, 16)),
        {"interleave": 8},
        "interleave is 8; TMA has None, 16 and 32 bytes",
    ),
    "interleave in 2D": (
        (Tensor((64, 64)), (8, 16)),
        {"interleave": 16},
        "array has rank 2; interleave=16 takes slices of 16 B, (images, slices, pixels, 4) or "
        "(images, slices, rows, pixels, 4): cut the channels into slices with reshape and "
        "transpose",
    ),
    "interleave of 32 bytes without its swizzle": (
        (Tensor((4, 2, 64, 8)), (1, 1, 16, 8)),
        {"interleave": 32},
        "interleave=32 needs swizzle B32, not NONE: use Swizzle.B32",
    ),
    "interleave of 16 bytes with a swizzle": (
        (Tensor((4, 2, 64, 4)), (1, 1, 16, 4)),
        {"interleave": 16, "swizzle": Swizzle.B32},
        "interleave=16 needs swizzle NONE, not B32: use Swizzle.NONE",
    ),
    "slices of another size": (
        (Tensor((4, 2, 64, 8), strides=(1024, 512, 4, 1)), (1, 1, 16, 4)),
        {"interleave": 16},
        "axis 3 has 8 elements = 32 B; interleave=16 takes slices of 16 B there: 4 elements",
    ),
    "slices apart": (
        (Tensor((4, 2, 64, 4), strides=(1024, 512, 8, 1)), (1, 1, 16, 4)),
        {"interleave": 16},
        "axis 2 stride is 32 B; interleave=16 needs slices that follow each other, 16 B apart",
    ),
    "a box of half slices": (
        (Tensor((4, 2, 64, 4)), (1, 1, 16, 2)),
        {"interleave": 16},
        "box axis 3 is 2; interleaved copies take whole slices: use 4",
    ),
    "a box of several slices": (
        (Tensor((4, 2, 64, 4)), (1, 2, 16, 4)),
        {"interleave": 16},
        "box axis 1 is 2; an interleaved copy takes one slice of the channels: use 1, and a copy "
        "for each",
    ),
    "a box of too few pixels": (
        (Tensor((4, 2, 64, 4)), (1, 1, 6, 4)),
        {"interleave": 16},
        "box axis 2 is 6 slices; TMA needs a multiple of 4: use 8",
    ),
    "a stride inside slices": (
        (Tensor((4, 2, 64, 4)), (1, 1, 8, 4)),
        {"interleave": 16, "element_strides": (1, 1, 1, 2)},
        "axis 3 element stride is 2; use 1",
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_rule(fake_driver, rule):
    arguments, options, text = RULES[rule]
    assert violations(*arguments, **options) == [text]
    assert fake_driver.calls == []


def test_all_broken_rules_are_listed_at_once(fake_driver):
    tensor = Tensor((500, 64), np.float16, strides=(1, 500), address=ADDRESS + 2)
    options = {
        "swizzle": Swizzle.B32,
        "l2_promotion": 3,
        "oob_fill": "inf",
        "element_strides": (9, 1),
    }
    found = violations(tensor, (300, 33), **options)
    expected = [
        "array address is 0x7f0000000002",
        "pass array.T with the box (33, 300)",
        "axis 1 stride is 1000 B; TMA needs a multiple of 16 B: after the transposition, pad it",
        "box axis 0 is 300",
        "use 32 or 40",
        "swizzle B32 spans 32 B",
        "axis 0 element stride is 9",
        "l2_promotion is 3",
        "oob_fill is 'inf'",
    ]
    assert len(found) == len(expected)
    assert all(part in text for part, text in zip(expected, found, strict=True))
    assert fake_driver.calls == []


def test_one_padding_repairs_every_axis_outside_of_it():
    assert violations(Tensor((4, 3, 5)), (1, 3, 4)) == [
        "axis 0 stride is 60 B; TMA needs a multiple of 16 B: padding axis 2 as for axis 1 repairs "
        "this too",
        "axis 1 stride is 20 B; TMA needs a multiple of 16 B: pad axis 2 to 8 columns",
    ]
    assert tensor_map(Tensor((4, 3, 5), strides=(24, 8, 1)), (1, 3, 4)).strides == (96, 32, 4)
    found = violations(Tensor((3, 4, 5), strides=(5, 15, 1)), (3, 1, 4))
    assert found[0].endswith(": pad axis 2 to 8 columns")
    assert found[1].endswith(": padding axis 2 as for axis 0 repairs this too")


def test_the_refusal_ends_with_all_that_was_given():
    text = refusal(ValueError, Tensor((64, 500), np.float16), (8, 16), oob_fill="nan")
    assert text.split("\n")[-1] == (
        "Given: array of shape (64, 500), strides (1000, 2) B, f16, at 0x7f0000000000; box (8, 16),"
        " swizzle NONE, element_strides (1, 1), l2_promotion 128, oob_fill 'nan', interleave None"
    )


@st.composite
def tensors(draw):
    """Itemsize, shape, strides, box, address and swizzle: half of them legal, the rest anything."""
    careful = draw(st.booleans())

    def pick(legal, illegal):
        return draw(st.sampled_from(legal if careful else legal + illegal))

    itemsize = draw(st.sampled_from([1, 2, 4, 8]))
    swizzle = draw(st.sampled_from([s for s in Swizzle if s.atom == 16]))
    rank = pick([1, 2, 3, 4, 5], [0, 6])
    shape = tuple(pick([1, 2, 64, 2**32], [0, 2**32 + 1]) for _ in range(rank))
    strides = tuple(pick([0, 16, 48, 2**40 - 16], [1, 8, 24, -16, 2**40]) for _ in shape)
    box = tuple(pick([1, 3, 256], [0, 257]) for _ in shape)
    if rank:
        strides = (*strides[:-1], pick([itemsize], [16, 2 * itemsize, -itemsize]))
        inner = min(swizzle.span, 128) // itemsize if swizzle else pick([16, 256], [1, 8])
        box = (*box[:-1], pick([inner], [inner + 1, 2 * inner]))
    address = pick([16, ADDRESS, ADDRESS + 16], [0, ADDRESS + 8])
    return itemsize, shape, strides, box, address, swizzle


@settings(max_examples=500, deadline=None)
@given(tensors())
def test_the_driver_is_asked_when_and_only_when_every_rule_holds(tensor):
    itemsize, shape, strides, box, address, swizzle = tensor
    legal = (
        1 <= len(shape) <= 5
        and all(1 <= n <= 2**32 for n in shape)
        and address != 0
        and address % 16 == 0
        and all(
            n == 1 or (0 <= stride < 2**40 and stride % 16 == 0)
            for n, stride in zip(shape[:-1], strides[:-1], strict=True)
        )
        and (shape[-1] == 1 or strides[-1] == itemsize)
        and all(1 <= n <= 256 for n in box)
        and box[-1] * itemsize % 16 == 0
        and (swizzle == 0 or box[-1] * itemsize <= 16 << swizzle)
    )
    array = InterfaceArray(shape, f"u{itemsize}", address, strides=strides)
    _encoding.encode.cache_clear()
    if legal:
        assert tensor_map(array, box, swizzle=swizzle).box == box
    else:
        assert violations(array, box, swizzle=swizzle)


# ---- the cache ----


def test_equal_arguments_share_one_encoding(fake_driver):
    first = tensor_map(Tensor((64, 64)), Tile((8, 16), "f32"))
    second = tensor_map(Tensor((64, 64)), Tile((8, 16), "f32"))
    assert first is not second and first.array is not second.array
    assert first.value is second.value
    first.numba_type = "made once"
    assert second.numba_type == "made once"
    assert len(fake_driver.calls) == 1


def test_lists_are_cached_like_tuples(fake_driver):
    tensor = Tensor((64, 64))
    tensor_map(tensor, (8, 16), element_strides=(1, 1))
    tensor_map(tensor, [8, 16], element_strides=[1, 1])
    tensor_map(tensor, np.array([8, 16]), element_strides=np.array([1, 1]))
    assert len(fake_driver.calls) == 1


@pytest.mark.parametrize(
    "tensor, box, options",
    [
        (Tensor((64, 64), address=ADDRESS + 16), (8, 16), {}),
        (Tensor((32, 64)), (8, 16), {}),
        (Tensor((64, 64), strides=(128, 1)), (8, 16), {}),
        (Tensor((64, 64), np.int32), (8, 16), {}),
        (NumbaArray((64, 64), np.int32), (8, 16), {}),
        (Tensor((64, 64)), (8, 32), {}),
        (Tensor((64, 64)), (8, 16), {"swizzle": Swizzle.B64}),
        (Tensor((64, 64)), (8, 16), {"l2_promotion": 64}),
        (Tensor((64, 64)), (8, 16), {"oob_fill": "nan"}),
        (Tensor((64, 64)), (8, 16), {"element_strides": (2, 1)}),
        (Tensor((64, 64)), (8, 16), {"dtype": "tf32"}),
    ],
)
def test_other_arguments_are_encoded_anew(fake_driver, tensor, box, options):
    first = tensor_map(Tensor((64, 64)), (8, 16))
    second = tensor_map(tensor, box, **options)
    assert first.value is not second.value
    assert len(fake_driver.calls) == 2


def test_strides_of_elements_and_of_bytes_are_not_confused(fake_driver):
    in_bytes = tensor_map(InterfaceArray((64, 16), "<f4", strides=(64, 4)), (8, 16))
    array = DlpackArray((64, 16), strides=(64, 1))
    assert tensor_map(array, (8, 16)).strides == (256, 4)
    assert in_bytes.strides == (64, 4)


def test_another_device_is_encoded_anew(fake_driver):
    tensor = Tensor((64, 64))
    first = tensor_map(tensor, (8, 16))
    fake_driver.device = 1
    assert tensor_map(tensor, (8, 16)).value is not first.value
    fake_driver.device = 0
    assert tensor_map(tensor, (8, 16)).value is first.value


def test_the_map_keeps_the_array_alive_and_the_cache_does_not(fake_driver):
    tensor = Tensor((64, 64))
    dies = weakref.ref(tensor)
    made = tensor_map(tensor, (8, 16))
    value = made.value
    del tensor
    gc.collect()
    assert dies() is made.array
    del made
    gc.collect()
    assert dies() is None
    assert _encoding.encode.cache_info().currsize == 1
    assert tensor_map(Tensor((64, 64)), (8, 16)).value is value
    assert len(fake_driver.calls) == 1


@pytest.mark.parametrize("source", every(3, SOURCES))
def test_no_source_is_kept_alive_by_the_cache(source):
    array = SOURCES[source]((64, 48), np.float32)
    # A view cannot be referenced weakly; what it views can.
    dies = weakref.ref(getattr(array, "exporting_obj", array))
    tensor_map(array, (8, 16))
    del array
    gc.collect()
    assert dies() is None
    assert _encoding.encode.cache_info().currsize == 1


def test_the_cache_is_bounded(fake_driver):
    size = _encoding.encode.cache_info().maxsize
    assert size is not None
    for i in range(size + 2):
        tensor_map(Tensor((64, 64), address=ADDRESS + 16 * i), (8, 16))
    assert _encoding.encode.cache_info().currsize == size
    tensor_map(Tensor((64, 64)), (8, 16))
    assert len(fake_driver.calls) == size + 3


def test_a_refused_map_is_not_remembered(fake_driver):
    fake_driver.result = driver.CUresult.CUDA_ERROR_INVALID_VALUE
    refusal(RuntimeError, Tensor((64, 64)), (8, 16))
    fake_driver.result = driver.CUresult.CUDA_SUCCESS
    assert tensor_map(Tensor((64, 64)), (8, 16)).value is not None


# ---- the simulator ----


@pytest.fixture
def simulated(monkeypatch):
    monkeypatch.setattr(tensor_map_module, "simulated", lambda: True)
    monkeypatch.setattr(_array_interface, "simulated", lambda: True)


def aligned(shape, dtype=np.float32):
    """A NumPy array on a multiple of 32 bytes."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(nbytes + 32, np.uint8)
    start = -memory.ctypes.data % 32
    return memory[start : start + nbytes].view(dtype).reshape(shape)


@pytest.mark.usefixtures("simulated")
def test_the_simulator_takes_numpy_arrays_and_encodes_nothing(fake_driver):
    array = aligned((64, 64))
    made = tensor_map(array, (8, 16), oob_fill="nan")
    assert made.array is array
    assert (made.value, made.address) == (None, array.ctypes.data)
    assert (made.strides, made.oob_fill) == ((256, 4), "nan")
    assert fake_driver.calls == []


@pytest.mark.usefixtures("simulated")
def test_the_simulator_takes_ml_dtypes():
    array = aligned((64, 64), ml_dtypes.bfloat16)
    assert tensor_map(array, (8, 16)).dtype is as_dtype("bf16")


@pytest.mark.usefixtures("simulated")
def test_the_rules_hold_in_the_simulator_too():
    array = aligned((64, 500), np.float16)
    assert "pad axis 1 to 504 columns" in violations(array, (8, 16))[0]
    assert "pass array.T" in violations(aligned((64, 64)).T, (8, 16))[0]
    assert violations(aligned((64, 64))[:, 1:], (8, 16))[0].startswith("array address is")


@pytest.mark.usefixtures("simulated")
def test_what_the_simulator_cannot_take():
    assert "array is a list; in the simulator pass a NumPy" in refusal(TypeError, [1.0], (1,))


def run(program, **environment):
    finished = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_the_simulators_device_arrays_are_unwrapped():
    program = """
import numpy as np
from numba import cuda
from numba_tma.host.environment import simulated
from numba_tma.host.tensor_map import tensor_map
array = cuda.to_device(np.arange(64 * 64, dtype=np.float32).reshape(64, 64))
made = tensor_map(array, (8, 16))
assert simulated() and type(made.array) is np.ndarray and made.value is None
made.array[1, 2] = -1
assert array.copy_to_host()[1, 2] == -1
print("ran")
"""
    assert run(program, NUMBA_ENABLE_CUDASIM="1") == "ran\n"


@pytest.mark.parametrize(
    "value, expected",
    quick(
        [("1", True), ("false", False)],
        [("1", True), ("2", True), ("0", False), ("", False), ("false", False), ("true", False)],
    ),
)
def test_the_variable_that_turns_the_simulator_on(value, expected):
    program = """
import warnings
from numba_tma.host.environment import simulated
warnings.simplefilter("ignore")  # Numba's, of a value that is no integer
from numba import config
assert simulated() == bool(config.ENABLE_CUDASIM)
print(simulated())
"""
    assert run(program, NUMBA_ENABLE_CUDASIM=value) == f"{expected}\n"


def test_the_host_layer_imports_without_the_compiler():
    program = """
import sys
import numba_tma.host.layout, numba_tma.host.tensor_map
heavy = {"numba", "torch", "cupy", "cuda.core", "cuda.bindings"} & set(sys.modules)
assert not heavy, heavy
"""
    run(program)
