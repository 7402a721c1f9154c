"""How long the first call of a matmul takes in a fresh process: its compiler, and the rest."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from types import ModuleType

from numba_tma.host.annotations import DeviceArray
from numba_tma.tools.bench.peers import shipped
from numba_tma.tools.bench.results import Cases, Measured, host_seconds
from numba_tma.tools.bench.timing import Run

SIZE = 4096
PEERS = ("cuBLAS", "torch.compile", "Triton")
ROUNDS, SECONDS = 2, 300
# Where they would find what an earlier process compiled.
CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH")


def _call(torch: ModuleType, name: str, a: DeviceArray, w: DeviceArray, c: DeviceArray) -> Run:
    """Return what calls a function, whose modules are imported here."""
    if name == "numba_tma":
        return partial(shipped("matmul", "matmul"), a, w.T, out=c)
    if name == "cuBLAS":
        return partial(torch.mm, a, w.T, out=c)
    if name == "torch.compile":
        return partial(torch.compile(lambda a, w: a @ w.T), a, w)
    from numba_tma.tools.bench import matmul_triton

    count = torch.cuda.get_device_properties(0).multi_processor_count
    return next(iter(matmul_triton.candidates(a, w, c, count).values()))


def main(name: str) -> None:
    """Print the seconds that the first call takes, until its result is there."""
    torch: ModuleType = importlib.import_module("torch")
    a, w, c = (torch.randn(SIZE, SIZE, device="cuda").bfloat16() for _ in range(3))
    call = _call(torch, name, a, w, c)
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    print(time.perf_counter() - start)


def seconds(name: str) -> float:
    """Return what a fresh process measures, which finds nothing compiled before."""
    program = f"from numba_tma.tools.bench.first_call import main; main({name!r})"
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | dict.fromkeys(CACHES, empty),
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    if done.returncode:
        raise RuntimeError(done.stderr[-300:])
    return float(done.stdout.split()[-1])


def bench_first_call(torch: ModuleType) -> Measured:
    """Time first calls of a matmul, each in processes of its own, and keep the shortest."""
    shipped("matmul", "matmul")  # or the case is left out
    times = {"numba_tma": min(seconds("numba_tma") for _ in range(ROUNDS))}
    for peer in PEERS:
        try:
            times[peer] = min(seconds(peer) for _ in range(ROUNDS))
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            print(f"first call: {peer} fails: {error}", flush=True)
    return host_seconds(times)


CASES: Cases = {("first call", f"matmul bf16 {SIZE} x {SIZE} x {SIZE}"): bench_first_call}
