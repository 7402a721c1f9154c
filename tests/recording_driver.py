"""A driver without a GPU: it loads any code, and notes each launch with its arguments' bytes.

``python -m tests.recording_driver all`` calls shipped kernels on arrays at made-up addresses, or
those whose names are given, and prints what was launched, what was imported, and how long each
first call took.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
from cuda.bindings import driver

SUCCESS = driver.CUresult.CUDA_SUCCESS
IN_CONTEXT = 1 << 20  #: times a context's number, plus a kernel: that kernel's function in it
OWN_STREAM = 99  #: handle of a stream that the library makes
RELAXED = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": 9,
    "COMPUTE_CAPABILITY_MINOR": 0,
    "MULTIPROCESSOR_COUNT": 132,
}


class RecordingDriver:
    """Stands for functions of ``cuda.bindings.driver`` under their names."""

    def __init__(self) -> None:
        self.launches: list[Any] = []
        self.loaded: list[bytes] = []
        self.errors: list[Any] = []  #: of the next launches
        self.refused = False  #: whether loads fail
        self.most_threads = 1024
        self.contexts = 0
        self.sizes: dict[str, tuple[int, ...]] = {}  #: of parameters, of kernels not in the cache
        self.shared: list[int] = []  #: bytes of dynamic shared memory that kernels were allowed
        self.memory: dict[int, int] = {}  #: bytes that are allocated, by address
        self.freed: list[int] = []  #: addresses
        self.memory_left = 1 << 40
        self.context = 1  #: number of the current one, 0 where there is none
        self.mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
        self.capturing: int | None = None  #: handle of the stream that a graph captures
        self.waits: list[int] = []  #: streams that were waited for
        self.copied: list[tuple[int, bytes, int]] = []  #: addresses, bytes and streams
        self.zeroed: list[tuple[int, int]] = []  #: addresses and bytes
        self._entries: list[str] = []

    def cuInit(self, flags: int) -> Any:
        assert flags == 0
        return (SUCCESS,)

    def cuCtxGetDevice(self) -> Any:
        return SUCCESS, driver.CUdevice(0)

    def cuDeviceGet(self, ordinal: int) -> Any:
        return SUCCESS, driver.CUdevice(ordinal)

    def cuDevicePrimaryCtxRetain(self, device: Any) -> Any:
        assert int(device) == 0, "the first GPU is the one that is made current"
        self.contexts += 1
        return SUCCESS, driver.CUcontext(1)

    def cuCtxSetCurrent(self, context: Any) -> Any:
        return (SUCCESS,)

    def cuDeviceGetAttribute(self, which: Any, device: Any) -> Any:
        return SUCCESS, ATTRIBUTES.get(which.name.removeprefix("CU_DEVICE_ATTRIBUTE_"), 1)

    def cuDeviceGetName(self, length: int, device: Any) -> Any:
        return SUCCESS, b"H200".ljust(length, b"\0")

    def cuPointerGetAttribute(self, which: Any, address: int) -> Any:
        return SUCCESS, 0

    def cuStreamIsCapturing(self, stream: int) -> Any:
        states = driver.CUstreamCaptureStatus
        captured = stream == self.capturing
        return SUCCESS, states(states.CU_STREAM_CAPTURE_STATUS_ACTIVE if captured else 0)

    def cuLibraryLoadData(self, code: bytes, *options: Any) -> Any:
        if self.refused:
            return driver.CUresult.CUDA_ERROR_INVALID_IMAGE, driver.CUlibrary(0)
        assert options == ([], [], 0, [], [], 0)  # as many as the lists have
        self.loaded.append(bytes(code))
        return SUCCESS, driver.CUlibrary(len(self.loaded))

    def cuLibraryGetKernel(self, library: Any, entry: bytes) -> Any:
        self._entries.append(entry.decode())
        return SUCCESS, driver.CUkernel(len(self._entries))

    def cuKernelGetFunction(self, kernel: Any) -> Any:
        if not self.context:
            return driver.CUresult.CUDA_ERROR_INVALID_CONTEXT, driver.CUfunction(0)
        return SUCCESS, driver.CUfunction(self.context * IN_CONTEXT + int(kernel))

    def cuKernelGetAttribute(self, which: Any, kernel: Any, device: Any) -> Any:
        return SUCCESS, self.most_threads

    def cuKernelSetAttribute(self, which: Any, value: int, kernel: Any, device: Any) -> Any:
        assert which.name == "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"
        self.shared.append(value)
        return (SUCCESS,)

    def cuLaunchKernelEx(self, config: Any, function: Any, parameters: int, extra: int) -> Any:
        from numba_tma.host.stored_launch import _loaded

        assert extra == 0
        assert config.numAttrs == len(config.attrs)
        context, kernel = divmod(int(function), IN_CONTEXT)
        assert context in (0, self.context), "the function is of another context"
        entry = self._entries[kernel - 1]
        sizes = self.sizes.get(entry)
        if sizes is None:
            sizes = next(k.image.sizes for k in _loaded.values() if k.image.entry == entry)
        pointers = (ctypes.c_void_p * len(sizes)).from_address(parameters)
        packed = [ctypes.string_at(p, n) for p, n in zip(pointers, sizes)]
        assert all(p % (64 if n == 128 else n) == 0 for p, n in zip(pointers, sizes))
        self.launches.append(
            SimpleNamespace(
                entry=entry,
                context=context,  #: of the function, 0 for a kernel of any context
                packed=packed,
                grid=(config.gridDimX, config.gridDimY, config.gridDimZ),
                block=(config.blockDimX, config.blockDimY, config.blockDimZ),
                stream=int(config.hStream),
                shared=config.sharedMemBytes,
                attributes=sorted(attribute.id.name for attribute in config.attrs),
                cluster=[
                    (a.value.clusterDim.x, a.value.clusterDim.y, a.value.clusterDim.z)
                    for a in config.attrs
                    if a.id.name.endswith("CLUSTER_DIMENSION")
                ],
            )
        )
        return (self.errors.pop(0) if self.errors else SUCCESS,)

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> Any:
        before, self.mode = self.mode, mode
        return SUCCESS, before

    def cuCtxGetId(self, context: Any) -> Any:
        assert int(context) == 0
        refused = driver.CUresult.CUDA_ERROR_INVALID_CONTEXT
        return SUCCESS if self.context else refused, self.context

    def cuMemAlloc(self, nbytes: int) -> Any:
        assert nbytes > 0 and self.mode == RELAXED, "it ends the captures of other threads"
        if nbytes > self.memory_left:
            return driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY, driver.CUdeviceptr(0)
        self.memory_left -= nbytes
        address = (1 << 46) + ((len(self.memory) + len(self.freed)) << 32)
        self.memory[address] = nbytes
        return SUCCESS, driver.CUdeviceptr(address)

    def cuMemFree(self, address: int) -> Any:
        assert self.mode == RELAXED, "it ends the captures of other threads"
        self.memory_left += self.memory.pop(address)
        self.freed.append(address)
        return (SUCCESS,)

    def cuStreamCreate(self, flags: Any) -> Any:
        return SUCCESS, driver.CUstream(OWN_STREAM)

    def cuMemsetD8Async(self, address: int, byte: int, nbytes: int, stream: Any) -> Any:
        assert byte == 0 and int(stream) == OWN_STREAM and self.memory[address] >= nbytes
        self.zeroed.append((address, nbytes))
        return (SUCCESS,)

    def cuMemcpyHtoDAsync(self, address: int, source: int, nbytes: int, stream: Any) -> Any:
        assert self.memory[address] >= nbytes
        self.copied.append((address, ctypes.string_at(source, nbytes), int(stream)))
        return (SUCCESS,)

    def cuStreamSynchronize(self, stream: Any) -> Any:
        self.waits.append(int(stream))
        return (SUCCESS,)

    def cuStreamDestroy(self, stream: Any) -> Any:
        return (SUCCESS,)

    def cuTensorMapEncodeTiled(self, *arguments: Any) -> Any:
        encoded = driver.CUtensorMap()
        words = [int(arguments[2]), *map(int, arguments[3]), *map(int, arguments[5])]
        encoded.opaque = [driver.cuuint64_t(n) for n in (words + [0] * 16)[:16]]
        return SUCCESS, encoded

    def cuTensorMapReplaceAddress(self, encoded: Any, address: int) -> Any:
        ctypes.c_uint64.from_address(int(encoded.getPtr())).value = address
        return (SUCCESS,)

    @contextlib.contextmanager
    def installed(self) -> Iterator[RecordingDriver]:
        """Put the functions above in the place of the driver's."""
        names = [name for name in dir(self) if name.startswith("cu")]
        before = {name: getattr(driver, name) for name in names}
        try:
            for name in names:
                setattr(driver, name, getattr(self, name))
            yield self
        finally:
            for name, function in before.items():
                setattr(driver, name, function)


class Array:
    """A device array at a made-up address."""

    def __init__(
        self,
        place: int,
        shape: tuple[int, ...],
        dtype: str = "f2",
        strides: tuple[int, ...] | None = None,
        start: int = 0,
    ) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.__cuda_array_interface__ = {
            "shape": shape,
            "strides": strides,
            "typestr": self.dtype.str,
            "data": ((place << 32) + start, False),
            "version": 3,
        }


def _rmsnorm() -> None:
    from numba_tma.kernels.rows import rmsnorm

    rmsnorm(Array(1, (512, 4096)), Array(2, (4096,)), out=Array(3, (512, 4096)))


def _matmul() -> None:
    from numba_tma.kernels.matmul import matmul

    matmul(Array(1, (2048, 2048)), Array(2, (2048, 2048)), Array(3, (2048, 2048)))


def _gelu() -> None:
    from numba_tma.kernels.pointwise import gelu

    gelu(Array(1, (512, 4096)), out=Array(2, (512, 4096)))


def _attention(kv_heads: int, causal: bool) -> None:
    from numba_tma.kernels.attention import attention

    q, k = (1, 2048, 16, 128), (1, 2048, kv_heads, 128)
    attention(Array(1, q), Array(2, k), Array(3, k), Array(4, q), causal=causal)


CALLS = {
    "rmsnorm": _rmsnorm,
    "gelu": _gelu,
    "matmul": _matmul,
    "attention": lambda: _attention(16, False),
    "attention, causal, grouped heads": lambda: _attention(4, True),
}


WATCHED = ("numba_tma", "numba", "llvmlite", "cuda")  #: packages whose modules are shown


def main() -> None:
    """Make each call once."""
    import numba_tma

    assert numba_tma.__version__
    compiles = contextlib.nullcontext()
    if "--compile" in sys.argv:
        from tests.cpu.backend.test_compiler import hopper_that_loads_nothing

        compiles = hopper_that_loads_nothing()
    names, times, imported = set(sys.argv[1:]), {}, {}
    with RecordingDriver().installed() as recorded, compiles:
        for name, call in CALLS.items():
            if not names & {name, "all"}:
                continue
            start = time.perf_counter()
            call()
            times[name] = time.perf_counter() - start
            imported[name] = sorted(m for m in sys.modules if m.split(".")[0] in WATCHED)
    shown = [{**vars(one), "packed": [p.hex() for p in one.packed]} for one in recorded.launches]
    print(json.dumps({"launches": shown, "imported": imported, "seconds": times}))


if __name__ == "__main__":
    main()
