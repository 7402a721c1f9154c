"""The one table of element types: NumPy name, Numba type, tensor-map type, size."""

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np


@dataclass(frozen=True, eq=False, repr=False)
class DType:
    """One element type. There is one object per name, so types compare and hash by identity.

    Parameters
    ----------
    name
        Name in this library, such as ``"bf16"``.
    numpy
        How NumPy (with ml_dtypes) stores one element.
    numba
        Attribute of ``numba.types`` for a value of the stored size.
    compute
        Numba type in which a kernel reads an element.
    tensor_map
        Suffix of ``CU_TENSOR_MAP_DATA_TYPE_...``: how the copy engine treats the element.
    """

    name: str
    numpy: np.dtype
    numba: str
    compute: str
    tensor_map: str

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        """Whether the copy engine treats it as a float, and can fill with NaN."""
        return "INT" not in self.tensor_map

    @property
    def reductions(self) -> tuple[str, ...]:
        """Operations by which the copy engine combines tiles with a tensor (`TensorMap.reduce`)."""
        return _REDUCTIONS.get(self.name, ())

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Callable[[object], "DType"], tuple[str]]:
        return as_dtype, (
            self.name,
        )  # types compare by identity, so unpickling must return the existing object


# TMA's only 8-bit and 16-bit integers are UINT8 and UINT16; it moves the bits of the others.
_TABLE = [
    DType(name, np.dtype(numpy), numba, compute, tensor_map)
    for name, numpy, numba, compute, tensor_map in (
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
        ("e4m3", ml_dtypes.float8_e4m3fn, "uint8", "float32", "UINT8"),
        ("e5m2", ml_dtypes.float8_e5m2, "uint8", "float32", "UINT8"),
    )
]

names = tuple(dtype.name for dtype in _TABLE)

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
}


def as_dtype(x: object) -> DType:
    """Find the `DType` that `x` names.

    Parameters
    ----------
    x
        A `DType`, one of `names` or a spelled-out name such as ``"float32"``, a NumPy or
        ml_dtypes dtype or scalar type, a ``torch.dtype``, or a Numba type.

    Raises
    ------
    TypeError
        When TMA has no such element type.
    """
    if isinstance(x, DType):
        return x
    found = _lookup(x)
    if found is None:
        raise TypeError(
            f"dtype {x!r} is no TMA element type: use one of {', '.join(names)}, or their "
            "NumPy, ml_dtypes, torch or Numba types; for bits of another type give the dtype of "
            'their size that should move them: dtype="u8", "u16", "u32" or "u64"'
        )
    return found


def _lookup(x: object) -> DType | None:
    # Strings are never handed to NumPy: its "u8" has 8 bytes, ours 8 bits.
    if isinstance(x, str):
        return _BY_NAME.get(x)
    if isinstance(x, np.dtype):
        return _BY_NUMPY.get(x)
    if isinstance(x, type):
        return _BY_SCALAR.get(x)
    library = type(x).__module__.partition(".")[0]
    if library == "torch":
        return _BY_NAME.get(str(x).removeprefix("torch."))
    if library == "numba":
        return _BY_NAME.get(getattr(x, "name", ""))
    return None


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
