"""Utilisation of the units by kernel, from ncu, in tests/benchmarks/results/profile.json.

``python tests/benchmarks/sweeps/utilisation.py`` from the repository's root, whose library it runs
under ncu (`--clock-control none`). Shares are percent of what a unit could do at the clock it had.
"""

from __future__ import annotations

import csv
import datetime
import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, os.getcwd())

RESULTS = Path("tests/benchmarks/results/profile.json")
#: ncu's names, and ours.
METRICS = {
    "Duration": "us",
    "SM Frequency": "GHz",
    "DRAM Throughput": "DRAM",
    "L2 Cache Throughput": "L2",
    "L1/TEX Cache Throughput": "L1 and shared memory",
    "SM Busy": "busiest pipe",
    "Issue Slots Busy": "issue slots",
}
SEPARATOR = "spin_kernel"  #: of torch.cuda._sleep
UNITS = {"us": 1e-3, "GHz": 1e-9}


def cases():
    """Return the runs by name."""
    import torch

    from numba_tma.kernels.attention import attention
    from numba_tma.kernels.matmul import matmul
    from numba_tma.kernels.matmul.block_scaled import block_scaled_matmul
    from numba_tma.kernels.pointwise.api import add
    from numba_tma.kernels.rows.layernorm import layernorm
    from numba_tma.kernels.rows.rmsnorm import rmsnorm
    from numba_tma.kernels.rows.softmax import softmax
    from numba_tma.kernels.transpose.api import transpose

    e4m3 = torch.float8_e4m3fn

    def normal(*shape, dtype=torch.bfloat16):
        return torch.randn(*shape, device="cuda").to(dtype)

    def product(m, n, k, dtype=torch.bfloat16):
        a, w, c = normal(m, k, dtype=dtype), normal(n, k, dtype=dtype), normal(m, n)
        return lambda: matmul(a, w.T, out=c)

    def scaled(m, n, k):
        a, w, c = normal(m, k, dtype=e4m3), normal(n, k, dtype=e4m3), normal(m, n)
        of_rows, of_blocks = (torch.rand(k // 128, x, device="cuda") for x in (m, n // 128))
        return lambda: block_scaled_matmul(a, w.T, of_rows.T, of_blocks, out=c)

    def attend(depth, length, causal=False):
        q, k, v, o = (normal(4, length, 16, depth) for _ in range(4))
        return lambda: attention(q, k, v, o, causal=causal)

    def rows(function, m, n, *vectors):
        x, y, given = normal(m, n), normal(m, n), [normal(n) for _ in vectors]
        return lambda: function(x, *given, out=y)

    x, y, z = (normal(16384, 16384) for _ in range(3))
    return {
        "matmul bf16 4096 x 4096 x 4096": product(4096, 4096, 4096),
        "matmul bf16 8192 x 8192 x 8192": product(8192, 8192, 8192),
        "matmul bf16 8192 x 8192 x 1024": product(8192, 8192, 1024),
        "matmul bf16 8192 x 32768 x 512": product(8192, 32768, 512),
        "matmul bf16 1 x 6144 x 4096": product(1, 6144, 4096),
        "matmul bf16 16 x 7168 x 2048": product(16, 7168, 2048),
        "matmul fp8 e4m3 4096 x 4096 x 4096": product(4096, 4096, 4096, e4m3),
        "matmul fp8 e4m3 4096 x 7168 x 16384": product(4096, 7168, 16384, e4m3),
        "block-scaled matmul 4096 x 7168 x 16384": scaled(4096, 7168, 16384),
        "attention bf16 full 4 x 4096 x 16 x 64": attend(64, 4096),
        "attention bf16 full 4 x 4096 x 16 x 128": attend(128, 4096),
        "attention bf16 full 4 x 16384 x 16 x 128": attend(128, 16384),
        "attention bf16 causal 4 x 4096 x 16 x 64": attend(64, 4096, causal=True),
        "attention bf16 causal 4 x 4096 x 16 x 128": attend(128, 4096, causal=True),
        "rmsnorm bf16 16384 x 16384": rows(rmsnorm, 16384, 16384, "weight"),
        "layernorm bf16 32768 x 1024": rows(layernorm, 32768, 1024, "weight", "bias"),
        "softmax bf16 32768 x 4096": rows(softmax, 32768, 4096),
        "transpose bf16 16384 x 16384": lambda: transpose(x, out=y),
        "add bf16 2^28": lambda: add(x, z, out=y),
    }


def run():
    """Run every case once while ncu looks, warmed up before, each behind a `SEPARATOR`."""
    import torch

    runs = cases()
    for call in runs.values():
        call()
    profiler = torch.cuda.cudart()
    print(f"on {torch.cuda.get_device_name()}", flush=True)
    for name, call in runs.items():
        torch.cuda.synchronize()
        profiler.cudaProfilerStart()
        torch.cuda._sleep(1)
        call()
        torch.cuda.synchronize()
        profiler.cudaProfilerStop()
        print(f"ran {name}", flush=True)


def read(output):
    """Return {case: {kernel: {metric: value}}} from what ncu and the runs printed."""
    lines = output.splitlines()
    names = (line.removeprefix("ran ") for line in lines if line.startswith("ran "))
    header = next(i for i, line in enumerate(lines) if line.startswith('"ID"'))
    found, separator = {}, None
    for row in csv.DictReader(lines[header:]):
        if SEPARATOR in row["Kernel Name"]:
            if row["ID"] != separator:
                separator, case = row["ID"], found.setdefault(next(names), {})
        elif row["Metric Name"] in METRICS:
            name = METRICS[row["Metric Name"]]
            value = float(row["Metric Value"].replace(",", "")) * UNITS.get(name, 1)
            kernel = row["Kernel Name"].split("::")[1].split("[")[0]
            case.setdefault(kernel, {})[name] = round(value, 2)
    return found


def main():
    sections = [f"--section={s}" for s in ("SpeedOfLight", "ComputeWorkloadAnalysis")]
    command = ["ncu", "--clock-control=none", "--profile-from-start=off", *sections]
    command += ["--csv", "--page=details", sys.executable, __file__, "run"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    gpu = next(line for line in output.splitlines() if line.startswith("on ")).removeprefix("on ")
    found = {"gpu": gpu, "date": datetime.date.today().isoformat(), "kernels": read(output)}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    run() if sys.argv[1:] == ["run"] else main()
