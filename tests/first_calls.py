"""The first call of a shipped function in a new process: how long it takes, and what it imports.

``python -m tests.first_calls NAME`` prints one line of JSON. Arrays are torch's where torch is
installed, as most users' are, else memory of the driver. Neither imports Numba. The time begins
when the arrays are there, and ends when the result is: it has the imports of this library, the
look-up or the compile, the load and the launch.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray[Any, Any]]


def rmsnorm_arrays(rng: np.random.Generator) -> Arrays:
    """Return the inputs, and the result as NumPy computes it."""
    x = rng.standard_normal((512, 4096), np.float32).astype(np.float16)
    weight = rng.standard_normal(4096, np.float32).astype(np.float16)
    wide = x.astype(np.float32)
    norm = wide / np.sqrt((wide * wide).mean(axis=1, keepdims=True) + 1e-6)
    return {"x": x, "weight": weight, "expected": norm * weight.astype(np.float32)}


def matmul_arrays(rng: np.random.Generator) -> Arrays:
    """Return the inputs, and the result as NumPy computes it."""
    a, b = (rng.standard_normal((1024, 1024), np.float32).astype(np.float16) / 8 for _ in "ab")
    return {"a": a, "b": b, "expected": a.astype(np.float32) @ b.astype(np.float32)}


def attention_arrays(rng: np.random.Generator, kv_heads: int, causal: bool) -> Arrays:
    """Return the inputs, and the result as NumPy computes it."""
    queries, heads, depth = 512, 8, 128
    shapes = (heads, kv_heads, kv_heads)
    q, k, v = (
        rng.standard_normal((1, queries, n, depth), np.float32).astype(np.float16) for n in shapes
    )
    wide = [x[0].astype(np.float32).transpose(1, 0, 2) for x in (q, k, v)]
    keys, values = (np.repeat(x, heads // kv_heads, axis=0) for x in wide[1:])
    scores = wide[0] @ keys.transpose(0, 2, 1) / np.sqrt(depth)
    if causal:
        scores = np.where(np.tri(queries, dtype=bool), scores, -np.inf)
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    result = (p / p.sum(axis=-1, keepdims=True)) @ values
    return {"q": q, "k": k, "v": v, "expected": result.transpose(1, 0, 2)[None]}


def call_rmsnorm(x: Any, weight: Any, out: Any) -> None:
    """Call the function, which is imported here."""
    from numba_tma.kernels.rows import rmsnorm

    rmsnorm(x, weight, out=out)


def call_matmul(a: Any, b: Any, out: Any) -> None:
    """Call the function, which is imported here."""
    from numba_tma.kernels.matmul import matmul

    matmul(a, b, out)


def call_attention(q: Any, k: Any, v: Any, out: Any, causal: bool = False) -> None:
    """Call the function, which is imported here."""
    from numba_tma.kernels.attention import attention

    attention(q, k, v, out, causal=causal)


def call_causal(**arrays: Any) -> None:
    """Call attention with a causal mask."""
    call_attention(**arrays, causal=True)


#: Each with the inputs, and the call.
CASES: dict[str, tuple[Callable[[np.random.Generator], Arrays], Callable[..., None]]] = {
    "rmsnorm": (rmsnorm_arrays, call_rmsnorm),
    "matmul": (matmul_arrays, call_matmul),
    "attention": (lambda rng: attention_arrays(rng, 8, False), call_attention),
    "attention_causal_grouped": (lambda rng: attention_arrays(rng, 2, True), call_causal),
}


class Torch:
    """Arrays of torch."""

    def __init__(self) -> None:
        import torch

        self.torch = torch

    def to_device(self, array: np.ndarray[Any, Any]) -> Any:
        """Return a copy on the GPU."""
        return self.torch.from_numpy(array).cuda()

    def to_host(self, array: Any) -> Any:
        """Return a copy as NumPy's; it waits for the GPU."""
        return array.cpu().numpy()

    def synchronize(self) -> None:
        """Wait for the GPU."""
        self.torch.cuda.synchronize()


class Memory:
    """Arrays in memory of the driver."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self.driver = driver
        self.call(driver.cuInit(0))
        device = self.call(driver.cuDeviceGet(0))
        context = self.call(driver.cuDevicePrimaryCtxRetain(device))
        self.call(driver.cuCtxSetCurrent(context))

    @staticmethod
    def call(returned: tuple[Any, ...]) -> Any:
        """Return the result of a call."""
        error, *results = returned
        assert not error, error
        return results[0] if results else None

    def to_device(self, array: np.ndarray[Any, Any]) -> Any:
        """Return a copy on the GPU."""
        address = int(self.call(self.driver.cuMemAlloc(array.nbytes)))
        self.call(self.driver.cuMemcpyHtoD(address, array.ctypes.data, array.nbytes))
        return Array(array, address)

    def to_host(self, array: Any) -> Any:
        """Return a copy as NumPy's; it waits for the GPU."""
        result = np.empty(array.shape, array.dtype)
        self.synchronize()
        self.call(self.driver.cuMemcpyDtoH(result.ctypes.data, array.address, result.nbytes))
        return result

    def synchronize(self) -> None:
        """Wait for the GPU."""
        self.call(self.driver.cuCtxSynchronize())


class Array:
    """An array on the GPU."""

    def __init__(self, like: np.ndarray[Any, Any], address: int) -> None:
        self.shape, self.dtype, self.address = like.shape, like.dtype, address
        self.__cuda_array_interface__ = {
            "shape": like.shape,
            "strides": None,
            "typestr": like.dtype.str,
            "data": (address, False),
            "version": 3,
        }


def main() -> None:
    """Make one call, and print what it took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=CASES)
    parser.add_argument("--memory", action="store_true", help="use no torch")
    options = parser.parse_args()
    library: Any = Memory if options.memory or not importlib.util.find_spec("torch") else Torch
    library = library()
    make, call = CASES[options.name]
    arrays = make(np.random.default_rng(7))
    expected = arrays.pop("expected")
    on_gpu = {name: library.to_device(array) for name, array in arrays.items()}
    out = library.to_device(np.zeros(expected.shape, np.float16))
    library.synchronize()
    before = set(sys.modules)
    start = time.perf_counter()
    call(**on_gpu, out=out)
    library.synchronize()
    first = time.perf_counter() - start
    start = time.perf_counter()
    call(**on_gpu, out=out)
    library.synchronize()
    second = time.perf_counter() - start
    result = library.to_host(out).astype(np.float32)
    imported = {"numba", "llvmlite", "cuda.core", "numba_tma.simulator"} & (
        set(sys.modules) - before
    )
    error = np.abs(result - expected).max() / np.abs(expected).max()
    print(
        json.dumps(
            {
                "library": type(library).__name__,
                "seconds": first,
                "again": second,
                "imported": sorted(imported),
                "error": float(error),
                "result": result.astype(np.float64).sum(),
            }
        )
    )


if __name__ == "__main__":
    main()
