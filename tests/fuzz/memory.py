"""Arrays of random calls: how they lie in memory, on the GPU or in the simulator.

This text is part of each script of a failure, so it imports nothing of the fuzzer.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
from numba import cuda

from numba_tma.host.environment import simulated

EPS32 = 2.0**-24  #: relative error of one rounding to float32
TYPES: dict[str, Any] = {
    **{"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16},
    **{"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2},
    **{"i8": np.int8, "u8": np.uint8, "i32": np.int32, "u32": np.uint32, "i64": np.int64},
    **{"u16": np.uint16, "u64": np.uint64, "f64": np.float64},
}
#: Types that Numba's arrays cannot say: those hold integers.
NOT_NUMBAS = tuple(np.dtype(TYPES[name]) for name in ("bf16", "e4m3", "e5m2"))
#: Elements between rows and before the first one, by the name of a view.
GAPS = {
    **{
        "plain": (0, 0),
        "starts at 1": (0, 1),
        "starts at 8": (0, 8),
        "starts at 16": (0, 16),
        "gaps of 1": (1, 0),
    },
    **{"gaps of 16": (16, 0), "gaps of 7 from 3": (7, 3)},
}
FILL = 0xA5
GUARD = 64  # elements behind the last one


def layout(shape: tuple[int, ...], size: int, view: str) -> tuple[int, int, tuple[int, ...]]:
    """Return the bytes of a view's memory, where it starts in them, and its strides."""
    axes = list(range(len(shape)))
    if view == "transposed":
        axes[-1], axes[-2] = axes[-2], axes[-1]
    if view == "permuted":
        axes[-2], axes[-3] = axes[-3], axes[-2]
    gap, start = GAPS.get(view, (0, 0))
    step = 2 if view == "every second" else 1
    strides, stride = [0] * len(shape), step * size
    for place, axis in enumerate(reversed(axes)):
        strides[axis] = stride
        stride = stride * max(shape[axis], 1) + gap * size * (place == 0 and len(shape) > 1)
    first = start * size
    if view == "expanded":
        strides[0] = 0
    if view == "reversed":
        first += strides[0] * max(shape[0] - 1, 0)
        strides[0] = -strides[0]
    return start * size + stride + GUARD * size, first, tuple(strides)


class Memory:
    """A host array as it lies in the memory of the device, with guards around it."""

    def __init__(self, values: Any, view: str = "plain", bits: bool = False) -> None:
        """Place `values`; `bits`: in a Numba array, of integers where Numba has no such type."""
        self.shape, self.dtype, self.bits = values.shape, values.dtype, bits
        nbytes, self.start, self.strides = layout(self.shape, self.dtype.itemsize, view)
        room = np.full(nbytes + 256, FILL, np.uint8)
        first = -room.ctypes.data % 256  # as aligned as on a GPU
        self.host = room[first : first + nbytes]
        self._elements(self.host)[...] = values
        self.before = self.host.copy()
        if simulated():
            self.given: Any = self._elements(self.host, bits)
        else:
            self.memory = cuda.to_device(self.host)
            self.given = cuda.as_cuda_array(self._described()) if bits else self._described()

    def _elements(self, memory: Any, bits: bool = False) -> Any:
        kind = f"u{self.dtype.itemsize}" if bits and self.dtype in NOT_NUMBAS else self.dtype
        return np.ndarray(self.shape, kind, memory, self.start, self.strides)

    def _described(self) -> Any:
        typestr = self.dtype.str
        if self.dtype in NOT_NUMBAS:
            typestr = f"{'<u' if self.bits else '<V'}{self.dtype.itemsize}"
        shown = type("Shown", (), {})()
        shown.memory, shown.dtype, shown.shape = self.memory, self.dtype, self.shape
        place = self.memory.device_ctypes_pointer.value + self.start
        shown.__cuda_array_interface__ = {
            **{"shape": self.shape, "strides": self.strides, "typestr": typestr},
            **{"data": (place if math.prod(self.shape) else 0, False), "version": 3},
        }
        return shown

    def _now(self) -> Any:
        return self.host if simulated() else self.memory.copy_to_host()

    def get(self) -> Any:
        """Return the elements as they are now."""
        return self._elements(self._now()).copy()

    def is_unchanged(self, written: bool) -> bool:
        """Return whether all bytes are what they were; of one that is written, those outside."""
        now = self._now().copy()
        if written:
            self._elements(now)[...] = self._elements(self.before)
        return bool((now == self.before).all())


def taken(result: Any, dtype: Any) -> Any:
    """Return a new array that a function returned, on the host."""
    host = np.asarray(result if simulated() else result.copy_to_host())
    return (
        host if host.dtype == dtype or host.dtype.itemsize != dtype.itemsize else host.view(dtype)
    )


def ulp(values: Any, dtype: Any) -> Any:
    """Return the distance of neighbours in `dtype` at the magnitudes of float64 `values`."""
    info = ml_dtypes.finfo(dtype)
    _, exponents = np.frexp(np.maximum(np.abs(values), float(info.smallest_normal)))
    return np.ldexp(1.0, exponents - 1 - info.nmant)
