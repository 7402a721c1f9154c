"""What maps and launches cost the host."""

from __future__ import annotations

import functools
import time
from types import ModuleType
from typing import Any

import numpy as np

from numba_tma.tools.bench.results import Cases, Measured, host_time
from numba_tma.tools.bench.timing import Run, time_host

BLOCKS, THREADS = 132, 128

RAW = """
extern "C" __global__ void take_pointers(float* a, float* b, float* c, float* d, long long n) {}
"""


def host_costs(runs: dict[str, Run], rounds: int = 3) -> dict[str, float]:
    """Return microseconds per call of each run: the least of several rounds, in turn."""
    for run in runs.values():
        run()  # compiles
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            best[name] = min(best[name], time_host(run))
    return {name: round(cost, 2) for name, cost in best.items()}


def _compared(runs: dict[str, Run]) -> Measured:
    costs = host_costs(runs)
    return host_time(costs.pop("numba_tma"), costs)


def bench_call(torch: ModuleType, name: str) -> Measured:
    """Time a call of a wrapper, beside torch's function."""
    from numba_tma.kernels.pointwise import add
    from numba_tma.kernels.rows import rmsnorm, softmax

    x, w = torch.rand(64, 1024, device="cuda"), torch.rand(1024, device="cuda")
    y, norm = torch.empty_like(x), torch.nn.functional.rms_norm
    ours, torchs = {
        "add(x, x, out=y)": (lambda: add(x, x, out=y), lambda: torch.add(x, x, out=y)),
        "add(x, x)": (lambda: add(x, x), lambda: torch.add(x, x)),
        "softmax(x, out=y)": (
            lambda: softmax(x, out=y),
            lambda: torch.softmax(x, 1, out=y),
        ),
        "softmax(x)": (lambda: softmax(x), lambda: torch.softmax(x, 1)),
        "rmsnorm(x, w, out=y)": (
            lambda: rmsnorm(x, w, out=y),
            lambda: norm(x, (1024,), w, 1e-6),  # which has no out=
        ),
        "rmsnorm(x, w)": (lambda: rmsnorm(x, w), lambda: norm(x, (1024,), w, 1e-6)),
    }[name]
    return _compared({"numba_tma": ours, "torch": torchs})


def bench_encoding(torch: ModuleType) -> Measured:
    """Time the first map of a tensor."""
    from numba_tma.host.layout import Tile
    from numba_tma.host.tensor_map import tensor_map

    tile = Tile((8, 32), "f32")
    many = [torch.zeros(64, 64, device="cuda") for _ in range(1000)]
    start = time.perf_counter()
    for tensor in many:
        tensor_map(tensor, tile)
    return host_time((time.perf_counter() - start) / len(many) * 1e6, {})


def bench_cached_map(torch: ModuleType) -> Measured:
    """Time a map of a tensor that has had the same one."""
    from numba_tma.host.layout import Tile
    from numba_tma.host.tensor_map import tensor_map

    tile, tensor = Tile((8, 32), "f32"), torch.zeros(64, 64, device="cuda")
    return host_time(time_host(lambda: tensor_map(tensor, tile)), {})


def bench_launch_of_pointers(torch: ModuleType) -> Measured:
    """Time launches of a kernel that takes pointers."""
    from numba import cuda, types

    def take_pointers(a, b, c, d, n):  # type: ignore[no-untyped-def]
        pass

    pointer = types.CPointer(types.float32)
    kernel = cuda.jit(types.void(pointer, pointer, pointer, pointer, types.int64))(take_pointers)
    tensor = torch.empty(64, 1024, device="cuda")
    address = tensor.data_ptr()
    runs = _launches(kernel, (address,) * 4, (address,) * 4)
    try:
        import cupy

        raw = cupy.RawKernel(RAW, "take_pointers")
        array = cupy.zeros(4, np.float32)
        given = (array, array, array, array, np.int64(7))
        runs["CuPy RawKernel"] = lambda: raw((BLOCKS,), (THREADS,), given)
        runs["CuPy RawKernel"]()
    except Exception as error:  # not here, or without a compiler: then the others are compared
        runs.pop("CuPy RawKernel", None)
        print(f"launch: no CuPy beside it: {str(error)[:200]}", flush=True)
    return _compared(runs)


def bench_launch_of_maps(torch: ModuleType) -> Measured:
    """Time launches of a kernel that takes tensor maps."""
    from numba import cuda

    from numba_tma.host.layout import Tile
    from numba_tma.host.tensor_map import tensor_map

    @cuda.jit
    def take_maps(x, y, n):  # type: ignore[no-untyped-def]
        pass

    tensor = torch.empty(64, 1024, device="cuda")
    x_map = tensor_map(tensor, Tile((8, 32), "f32"))
    return _compared(_launches(take_maps, (x_map, x_map), (x_map.value, x_map.value)))


def _launches(kernel: Any, arguments: tuple[Any, ...], values: tuple[Any, ...]) -> dict[str, Run]:
    """Return launches of one compiled kernel: ours, cuda.core's, which takes `values`, and numba's.

    All take the integer 7 as well, and go to the default stream.
    """
    from cuda.core import LaunchConfig
    from cuda.core import launch as core_launch

    from numba_tma.backend.numba_cuda import launches
    from numba_tma.host.launching import launcher

    ours, plain = launcher(kernel, BLOCKS, THREADS), kernel[BLOCKS, THREADS]
    ours(*arguments, 7)
    (compiled,) = kernel.overloads.values()
    config, stream = LaunchConfig(grid=BLOCKS, block=THREADS), launches.stream_of(0)
    function = launches.handle_of(compiled)
    return {
        "numba_tma": functools.partial(ours, *arguments, 7),
        "cuda.core": functools.partial(core_launch, stream, config, function, *values, 7),
        "numba-cuda": functools.partial(plain, *arguments, 7),
    }


CASES: Cases = {
    ("tensor_map", "encoded"): bench_encoding,
    ("tensor_map", "cached"): bench_cached_map,
    ("launch", "4 pointers + 1 integer"): bench_launch_of_pointers,
    ("launch", "2 TensorMaps + 1 integer"): bench_launch_of_maps,
    **{
        ("call", f"{name} of 64 x 1024"): functools.partial(bench_call, name=name)
        for name in (
            *("add(x, x, out=y)", "add(x, x)", "softmax(x, out=y)", "softmax(x)"),
            *("rmsnorm(x, w, out=y)", "rmsnorm(x, w)"),
        )
    },
}
