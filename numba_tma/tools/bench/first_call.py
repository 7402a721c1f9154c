"""How long the first call takes in a fresh process, with nothing compiled and from the cache.

The time has the imports of this library, what is compiled or found, the load and the launch; torch
has been imported before.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

from numba_tma.tools.bench.peers import shipped
from numba_tma.tools.bench.results import Cases, Measured, host_seconds
from numba_tma.tools.bench.timing import Run

PEERS = ("cuBLAS", "torch.compile", "Triton")
ROUNDS, HITS, SECONDS = 2, 7, 300
# Where all of them would find what an earlier process compiled.
CACHES = ("NUMBA_TMA_CACHE", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH")


def _matmul(torch: ModuleType) -> dict[str, Callable[[], Run]]:
    a, w, c = (torch.randn(4096, 4096, device="cuda").bfloat16() for _ in range(3))

    def triton() -> Run:
        from numba_tma.tools.bench import matmul_triton

        count = torch.cuda.get_device_properties(0).multi_processor_count
        return next(iter(matmul_triton.candidates(a, w, c, count).values()))

    return {
        "numba_tma": lambda: partial(shipped("matmul", "matmul"), a, w.T, out=c),
        "cuBLAS": lambda: partial(torch.mm, a, w.T, out=c),
        "torch.compile": lambda: partial(torch.compile(lambda a, w: a @ w.T), a, w),
        "Triton": triton,
    }


def _rmsnorm(torch: ModuleType) -> dict[str, Callable[[], Run]]:
    x, w = (torch.randn(*shape, device="cuda").half() for shape in ((512, 4096), (4096,)))
    out = torch.empty_like(x)
    return {"numba_tma": lambda: partial(shipped("rows", "rmsnorm"), x, w, out=out)}


def _attention(torch: ModuleType, kv_heads: int, causal: bool) -> dict[str, Callable[[], Run]]:
    q, k, v = (torch.randn(1, 2048, n, 128, device="cuda").half() for n in (16, kv_heads, kv_heads))
    out = torch.empty_like(q)
    return {
        "numba_tma": lambda: partial(
            shipped("attention", "attention"), q, k, v, out, causal=causal
        )
    }


#: By case: what returns the function that imports and returns the call, by name.
CALLS: dict[str, Callable[[ModuleType], dict[str, Callable[[], Run]]]] = {
    "matmul bf16 4096 x 4096 x 4096": _matmul,
    "rmsnorm f16 512 x 4096": _rmsnorm,
    "attention f16 d128": partial(_attention, kv_heads=16, causal=False),
    "attention f16 d128 causal, grouped heads": partial(_attention, kv_heads=4, causal=True),
}


def main(case: str, name: str) -> None:
    """Print the seconds that the first call takes, from its imports until its result is there."""
    torch: ModuleType = importlib.import_module("torch")
    find = CALLS[case](torch)[name]
    torch.cuda.synchronize()
    start = time.perf_counter()
    find()()
    torch.cuda.synchronize()
    print(time.perf_counter() - start)


@contextlib.contextmanager
def fresh_caches() -> Iterator[dict[str, str]]:
    """Yield an environment whose caches are empty; modules are compiled once, as by pip."""
    with tempfile.TemporaryDirectory() as empty:
        yield os.environ | dict.fromkeys(CACHES, empty) | {"PYTHONDONTWRITEBYTECODE": ""}


def seconds(case: str, name: str, environment: dict[str, str]) -> float:
    """Return what a fresh process measures."""
    program = f"from numba_tma.tools.bench.first_call import main; main({case!r}, {name!r})"
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=SECONDS
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-300:])
    return float(done.stdout.split()[-1])


def _uncached(case: str, name: str) -> float:
    """Return the shortest time of some processes that find nothing compiled."""
    times = []
    for _ in range(ROUNDS):
        with fresh_caches() as environment:
            times.append(seconds(case, name, environment))
    return min(times)


def bench_first_call(torch: Any, case: str) -> Measured:
    """Time first calls with nothing compiled, each in processes of its own."""
    times = {"numba_tma": _uncached(case, "numba_tma")}
    for peer in PEERS if "matmul" in case else ():
        try:
            times[peer] = _uncached(case, peer)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            print(f"first call: {peer} fails: {error}", flush=True)
    return host_seconds(times)


def bench_cached_call(torch: Any, case: str) -> Measured:
    """Time first calls that find the code of a process before them: their median."""
    with fresh_caches() as environment:
        seconds(case, "numba_tma", environment)
        hits = [seconds(case, "numba_tma", environment) for _ in range(HITS)]
    return host_seconds({"numba_tma": statistics.median(hits)})


CASES: Cases = {
    **{("first call", case): functools.partial(bench_first_call, case=case) for case in CALLS},
    **{("cached call", case): functools.partial(bench_cached_call, case=case) for case in CALLS},
}
