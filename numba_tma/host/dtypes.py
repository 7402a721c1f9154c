"""The one table of element types: NumPy name, Numba type, tensor-map type, bits.

Elements of 4 and 6 bits lie packed in global memory: two e2m1 in a byte, 16 e2m3 or e3m2 in 12
bytes, the first in the low bits. Arrays of them are arrays of bytes. In shared memory two e2m1 take
a byte. 16 elements of an unpacked type take 16 bytes there: their data, then a gap.

The copy engine has no complex numbers. It copies each as two words, its real and imaginary part, so
an encoded map has twice as many elements along the innermost axis (`Copies`).
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from numba_tma.host.records import record_name, record_problem, word_nbytes

#: An index, or an array of indices.
Index = int | NDArray[np.integer[Any]]


@functools.cache
def _kernel_storage(dtype: "DType") -> np.dtype:
    if dtype.is_record:
        return dtype.numpy
    read = np.dtype(dtype.compute)
    return read if read.itemsize == dtype.itemsize else dtype.numpy


@dataclass(frozen=True, eq=False)
class DType:
    """One element type. There is one object per name, so types compare and hash by identity.

    Parameters
    ----------
    name
        Name in this library, such as ``"bf16"``.
    numpy
        How NumPy (with ml_dtypes) stores one element; elements of 4 and 6 bits in a byte each.
    numba
        Attribute of ``numba.types`` for a value of the stored size.
    compute
        Numba type in which a kernel reads an element; "" if it cannot.
    tensor_map
        Suffix of ``CU_TENSOR_MAP_DATA_TYPE_...``: how the copy engine treats the element.
    bits
        Bits of an element in global memory, and of its data in shared memory.
    shared_bits
        Bits per element in shared memory, gaps included: 8 for unpacked types.
    words
        Elements of `tensor_map` that the copy engine copies for one element: 2 for complex numbers.
        Records are copied as unsigned words of up to 8 bytes.
    """

    name: str
    numpy: np.dtype
    numba: str
    compute: str
    tensor_map: str
    bits: int
    shared_bits: int
    words: int = 1

    @property
    def word(self) -> "DType":
        """What the copy engine counts: the element itself, or a complex number's real part."""
        return self if self.words == 1 else _WORDS[self.tensor_map]

    @property
    def itemsize(self) -> int:
        """Bytes per element.

        Raises
        ------
        TypeError
            For elements of 4 and 6 bits.
        """
        if self.is_packed:
            raise TypeError(
                f"{self} has {self.bits} bits, no whole number of bytes: count the bytes of "
                "several elements, Tile.nbytes or DType.nbytes(elements)"
            )
        return self.numpy.itemsize

    @property
    def is_packed(self) -> bool:
        """Whether elements have fewer than 8 bits, so that they share bytes of global memory."""
        return self.bits < 8

    @property
    def is_unpacked(self) -> bool:
        """Whether a load gives 16 elements 16 bytes of shared memory: their data, then a gap."""
        return self.shared_bits != self.bits

    @property
    def format(self) -> str:
        """Format of the values, a name of the table: ``"e2m1"`` also if it is unpacked."""
        return self.name.removesuffix("_unpacked")

    @property
    def storage(self) -> np.dtype:
        """NumPy type of an array's elements in memory: bytes, if elements are packed."""
        return np.dtype(np.uint8) if self.is_packed else self.numpy

    @property
    def kernel_storage(self) -> np.dtype:
        """NumPy type as which kernels read the stored bits, before they widen them to `compute`."""
        return _kernel_storage(self)

    @property
    def is_record(self) -> bool:
        """Whether elements have fields, as those of NumPy's structured types."""
        return self.numpy.names is not None

    @property
    def held(self) -> np.dtype:
        """NumPy type of an element as kernels hold it: float32 of floats of 16 bits or less.

        Raises
        ------
        TypeError
            For elements of 4 and 6 bits, which kernels do not access.
        """
        if self.is_record:
            return self.numpy
        if not self.compute:
            raise TypeError(f"kernels hold no element of {self}, which has {self.bits} bits")
        return np.dtype(self.compute)

    @property
    def chunk(self) -> int:
        """Fewest elements that fill chunks of 16 bytes of shared memory."""
        return 128 // math.gcd(128, self.shared_bits)

    @property
    def coordinate_unit(self) -> int:
        """Elements of which the innermost coordinate of a copy must be a multiple."""
        return _UNPACKED_BOX if self.is_unpacked else self.chunk

    @property
    def max_inner_box(self) -> int:
        """Most elements along the innermost axis of a box; unpacked types take no fewer either."""
        return _UNPACKED_BOX if self.is_unpacked else 256 // self.words

    def nbytes(self, elements: int) -> int:
        """Return the bytes of adjacent elements in global memory, as barriers count them."""
        return elements * self.bits // 8

    def shared_nbytes(self, elements: int) -> int:
        """Return the bytes of adjacent elements in shared memory, gaps included."""
        return elements * self.shared_bits // 8

    def shared_offset(self, element: Index) -> Any:
        """Return the byte in a row of shared memory in which an element begins.

        `element` is an int or an integer array.
        """
        if not self.is_packed:
            return element * self.itemsize
        return element // 16 * (2 * self.shared_bits) + element % 16 * self.bits // 8

    def element_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape in elements of an array of `storage`, whose last axis may be bytes."""
        if not self.is_packed or not shape:
            return tuple(shape)
        return (*shape[:-1], shape[-1] * 8 // self.bits)

    def storage_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of an array of `storage`; the reverse of `element_shape`."""
        if not self.is_packed or not shape:
            return tuple(shape)
        return (*shape[:-1], shape[-1] * self.bits // 8)

    @property
    def is_float(self) -> bool:
        """Whether the copy engine treats it as a float, and can fill with NaN."""
        return "FLOAT" in self.tensor_map

    @property
    def reductions(self) -> tuple[str, ...]:
        """Operations by which the copy engine combines tiles with a tensor (`TensorMap.reduce`)."""
        return _REDUCTIONS.get(self.name, ())

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Callable[[object], "DType"], tuple[Any]]:
        # Types compare by identity, so unpickling must return the existing object.
        return as_dtype, (self.numpy if self.is_record else self.name,)


_UNPACKED_BOX = 128  # innermost extent of each box of an unpacked type


def _row(
    name: str,
    numpy: type,
    numba: str,
    compute: str,
    tensor_map: str,
    bits: int = 0,
    shared_bits: int = 0,
) -> DType:
    stored = np.dtype(numpy)
    bits = bits or 8 * stored.itemsize
    words = 2 if stored.kind == "c" else 1
    return DType(name, stored, numba, compute, tensor_map, bits, shared_bits or bits, words)


# TMA's only 8-bit and 16-bit integers are UINT8 and UINT16; it moves the bits of the others.
_TABLE = [
    _row(*row)
    for row in (
        ("u8", np.uint8, "uint8", "uint8", "UINT8"),
        ("i8", np.int8, "int8", "int8", "UINT8"),
        ("u16", np.uint16, "uint16", "uint16", "UINT16"),
        ("i16", np.int16, "int16", "int16", "UINT16"),
        ("u32", np.uint32, "uint32", "uint32", "UINT32"),
        ("i32", np.int32, "int32", "int32", "INT32"),
        ("u64", np.uint64, "uint64", "uint64", "UINT64"),
        ("i64", np.int64, "int64", "int64", "INT64"),
        ("f16", np.float16, "float16", "float32", "FLOAT16"),
        ("bf16", ml_dtypes.bfloat16, "bfloat16", "float32", "BFLOAT16"),
        ("f32", np.float32, "float32", "float32", "FLOAT32"),
        ("f64", np.float64, "float64", "float64", "FLOAT64"),
        ("tf32", np.float32, "float32", "float32", "TFLOAT32"),
        ("f32_ftz", np.float32, "float32", "float32", "FLOAT32_FTZ"),
        ("tf32_ftz", np.float32, "float32", "float32", "TFLOAT32_FTZ"),
        ("c64", np.complex64, "complex64", "complex64", "FLOAT32"),
        ("c128", np.complex128, "complex128", "complex128", "FLOAT64"),
        ("e4m3", ml_dtypes.float8_e4m3fn, "uint8", "float32", "UINT8"),
        ("e5m2", ml_dtypes.float8_e5m2, "uint8", "float32", "UINT8"),
        # Scale factors, which kernels read as bytes. ue4m3 is e4m3 whose sign is ignored.
        ("ue8m0", ml_dtypes.float8_e8m0fnu, "uint8", "uint8", "UINT8"),
        ("ue4m3", ml_dtypes.float8_e4m3fn, "uint8", "uint8", "UINT8"),
        ("e2m1", ml_dtypes.float4_e2m1fn, "uint8", "", "16U4_ALIGN8B", 4, 4),
        ("e2m1_unpacked", ml_dtypes.float4_e2m1fn, "uint8", "", "16U4_ALIGN16B", 4, 8),
        ("e2m3", ml_dtypes.float6_e2m3fn, "uint8", "", "16U6_ALIGN16B", 6, 8),
        ("e3m2", ml_dtypes.float6_e3m2fn, "uint8", "", "16U6_ALIGN16B", 6, 8),
    )
]

#: The words of elements that have several.
_WORDS = {dtype.tensor_map: dtype for dtype in reversed(_TABLE) if dtype.words == 1}

names = tuple(dtype.name for dtype in _TABLE)
#: The types of 8 bits or more that are one word, which every GPU, map and vector takes.
byte_names = tuple(d.name for d in _TABLE if not d.is_packed and d.words == 1)
#: The types of several words, whose elements kernels access one by one.
complex_names = tuple(d.name for d in _TABLE if d.words > 1)

_BITWISE = ("and", "or", "xor")
_REDUCTIONS = {
    "u32": ("add", "min", "max", "inc", "dec", *_BITWISE),
    "i32": ("add", "min", "max", *_BITWISE),
    "u64": ("add", "min", "max", *_BITWISE),
    "i64": (
        "min",
        "max",
    ),  # an H200 refuses and, or, xor of i64, although the bits are those of u64
    "f16": ("add", "min", "max"),
    "bf16": ("add", "min", "max"),
    "f32": ("add",),
    "f64": ("add",),
    "c64": ("add",),
    "c128": ("add",),
}

# Reversed: if several types have one storage, the first (f32) is found for it.
_BY_NUMPY = {dtype.numpy: dtype for dtype in reversed(_TABLE)}
_BY_SCALAR: dict[type, DType] = {dtype.numpy.type: dtype for dtype in reversed(_TABLE)}
_BY_NAME = {dtype.numpy.name: dtype for dtype in reversed(_TABLE)} | {d.name: d for d in _TABLE}
# Numba calls these by their CUDA C++ names.
_BY_NAME |= {
    "__nv_bfloat16": _BY_NAME["bf16"],
    "__nv_fp8_e4m3": _BY_NAME["e4m3"],
    "__nv_fp8_e5m2": _BY_NAME["e5m2"],
    "__nv_fp8_e8m0": _BY_NAME["ue8m0"],
    "e8m0": _BY_NAME["ue8m0"],
    "float4_e2m1fn_x2": _BY_NAME["e2m1"],  # torch's name of a byte of two
}


@functools.cache
def _record(stored: np.dtype) -> DType | None:
    """Return the type of a structured type, the same object for equal ones; None if it is none."""
    if record_problem(stored):
        return None
    nbytes = word_nbytes(stored.itemsize)
    words, bits = stored.itemsize // nbytes, 8 * stored.itemsize
    return DType(record_name(stored), stored, "", "", f"UINT{8 * nbytes}", bits, bits, words)


def as_dtype(x: object) -> DType:
    """Find the `DType` that `x` names.

    Parameters
    ----------
    x
        A `DType`, one of `names` or a spelled-out name such as ``"float32"``, a NumPy or
        ml_dtypes dtype or scalar type, a ``torch.dtype``, or a Numba type. A structured dtype of
        NumPy is a type of records.

    Raises
    ------
    TypeError
        When TMA has no such element type.
    """
    if isinstance(x, DType):
        return x
    found = _lookup(x)
    if found is None and getattr(x, "names", None):
        raise TypeError(f"dtype {x} is no TMA element type: {record_problem(x)}")  # type: ignore[arg-type]
    if found is None:
        raise TypeError(
            f"dtype {x!r} is no TMA element type: use one of {', '.join(names)}, or their "
            "NumPy, ml_dtypes, torch or Numba types; for bits of another type give the dtype of "
            'their size that should move them: dtype="u8", "u16", "u32" or "u64"'
        )
    return found


def stored_dtype(stored: object) -> DType:
    """Find the `DType` of an array's elements, by the element type of its library.

    Raises
    ------
    TypeError
        When TMA has no such element type, or the array holds elements of 4 or 6 bits in a byte
        each, as NumPy's arrays of ml_dtypes do.
    """
    found = as_dtype(stored)
    if wrong := wrong_storage(stored):
        raise TypeError(wrong)
    return found


def wrong_storage(stored: object) -> str:
    """Say why an array of this element type of NumPy does not hold packed elements, if so."""
    found = _BY_NUMPY.get(stored) if isinstance(stored, np.dtype) else None
    if found is None or not found.is_packed:
        return ""
    return (
        f"dtype {stored} holds each element in a byte, and TMA reads {found} packed, "
        f"{96 // found.bits} elements in 12 bytes: pass the bytes of numba_tma.pack(array), with "
        f'dtype="{found}"'
    )


def contradicts(stored: object, asked: DType) -> bool:
    """Return whether an array's own element type says that its bits do not mean `asked`.

    Integers may hold the bits of any type. Types of one storage, such as f32 and tf32, agree.
    """
    own = _lookup(stored) if not isinstance(stored, DType) else stored
    return own is not None and own.numpy.kind not in "iu" and own.numpy != asked.numpy


def storage_itemsize(stored: object, default: int) -> int:
    """Return the bytes of an array's element, by the element type of its library."""
    if isinstance(stored, DType):
        return stored.storage.itemsize
    return int(getattr(stored, "itemsize", default))


def name_of(stored: object) -> str:
    """Return the name of an array's element type, by the element type of its library or of Numba.

    Types that TMA does not copy have NumPy's names, such as ``"bool"``.
    """
    found = stored if isinstance(stored, DType) else _lookup(stored)
    named = found.name if found else getattr(stored, "name", None)
    return str(named or stored).removeprefix("torch.")


def _lookup(x: object) -> DType | None:
    # Strings are never handed to NumPy: its "u8" has 8 bytes, ours 8 bits.
    if isinstance(x, str):
        return _BY_NAME.get(x)
    if isinstance(x, np.dtype):
        return _record(x) if x.names else _BY_NUMPY.get(x)
    if isinstance(x, type):
        return _BY_SCALAR.get(x)
    library = type(x).__module__.partition(".")[0]
    if library == "torch":
        return _BY_NAME.get(str(x).removeprefix("torch."))
    if library == "numba":
        return _BY_NAME.get(getattr(x, "name", ""))
    return None


def complex_refusal(dtype: DType) -> str:
    """Return the error of a complex number that is written to a tile of real ones."""
    return f"a tile of {dtype} takes real numbers, not a complex one: write its real or its imag"


def words_violation(dtype: DType, what: str) -> str:
    """Say why `what`, which takes elements of one word, does not take a type; "" if it does."""
    if dtype.words == 1:
        return ""
    return (
        f"{what} takes elements of one word, and {dtype} has {dtype.words}: use tensor_map, or "
        f"view the array as {dtype.word.numpy} and give a tile of {dtype.word}, {dtype.words} "
        "times as wide"
    )


def reduction_violation(dtype: DType, operation: object) -> str | None:
    """Say why the copy engine cannot reduce elements of `dtype` by `operation`, if so."""
    if operation in dtype.reductions:
        return None
    if not dtype.reductions:
        return (
            f"the copy engine has no reduction of {dtype}, not {operation!r} either: it reduces "
            + ", ".join(_REDUCTIONS)
        )
    text = f"the copy engine has no reduction {operation!r} of {dtype}: it has " + ", ".join(
        map(repr, dtype.reductions)
    )
    others = [name for name, operations in _REDUCTIONS.items() if operation in operations]
    if others:
        text += f"; {operation!r} it has of {', '.join(others)}"
    if (dtype.name, operation) == ("i64", "add"):
        text += '. Sums wrap round, so a map with dtype="u64" gives the same bits'
    return text
