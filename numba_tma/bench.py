"""``python -m numba_tma bench``: the kernels beside their peers, in one run, into a file."""

from __future__ import annotations

import argparse
import datetime
import importlib
import importlib.metadata
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from numba_tma._version import __version__

Run = Callable[[], Any]

RESULTS = Path("tests/benchmarks/results")
PACKAGES = ("numba-cuda", "numba", "numpy", "cuda-core", "cuda-bindings", "torch")
FLUSH_BYTES = 256 << 20  # several times the L2 cache
SLEEPS = 10  # of 100 us: the GPU waits until even a slow host has launched the run to be timed
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"


def time_alternating(runs: dict[str, Run], repeats: int = 30) -> dict[str, float]:
    """Return each run's median GPU time in seconds, measured in turn with a cold L2 cache."""
    from numba import cuda

    def sleep_on_gpu() -> None:
        for _ in range(SLEEPS):
            cuda.nanosleep(100_000)

    sleep = cuda.jit(sleep_on_gpu)[512, 32]  # fewer blocks draw a performance warning
    flush = cuda.device_array(FLUSH_BYTES, np.uint8)
    zeros = cuda.device_array_like(flush)
    spans: dict[str, list[tuple[Any, Any]]] = {name: [] for name in runs}
    for run in runs.values():
        run()
        run()
    for _ in range(repeats):
        for name, run in runs.items():
            sleep()
            flush.copy_to_device(zeros)
            start, end = cuda.event(), cuda.event()
            start.record()
            run()
            end.record()
            spans[name].append((start, end))
    cuda.synchronize()
    return {
        name: statistics.median(start.elapsed_time(end) for start, end in pairs) / 1e3
        for name, pairs in spans.items()
    }


def worse_of_two(runs: dict[str, Run], ours: str = "numba_tma") -> dict[str, float]:
    """Time twice; return the measurement in which `ours` does worse against the best other."""
    measured = [time_alternating(runs) for _ in range(2)]
    return max(measured, key=lambda t: t[ours] / min(v for n, v in t.items() if n != ours))


def time_host(run: Run, calls: int = 2000, repeats: int = 5) -> float:
    """Return the host's time per call in microseconds: the best of several repeats."""
    from numba import cuda

    best = float("inf")
    for _ in range(repeats):
        cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            run()
        best = min(best, (time.perf_counter() - start) / calls * 1e6)
    cuda.synchronize()
    return best


# ------------------------------------------------------------------------------- cases


def _row(kernel: str, case: str, nbytes: int, times: dict[str, float]) -> dict[str, Any]:
    rates = {name: round(nbytes / seconds / 1e9, 1) for name, seconds in times.items()}
    return {
        "kernel": kernel,
        "case": case,
        "unit": "GB/s",
        "numba_tma": rates.pop("numba_tma"),
        "copy": rates.pop("copy", None),
        "peers": rates,
    }


def bench_copy(torch: Any) -> list[dict[str, Any]]:
    """Time a copy of 2 GiB, contiguous."""
    from numba_tma.kernels.copy import copy

    x = torch.empty(2 << 30, dtype=torch.uint8, device="cuda").random_()
    y = torch.empty_like(x)
    copy(x, y)
    assert torch.equal(x, y)
    times = worse_of_two({"numba_tma": lambda: copy(x, y), "torch": lambda: y.copy_(x)})
    return [_row("copy", "u8 2 GiB", 2 * x.nbytes, times | {"copy": times["torch"]})]


def bench_rmsnorm(torch: Any) -> list[dict[str, Any]]:
    """Time RMSNorm of bf16 rows, beside torch.compile and a copy of the same tensor."""
    from numba_tma.kernels.rmsnorm import rmsnorm

    rms = torch.nn.functional.rms_norm
    rows = []
    for shape in ((32768, 1024), (32768, 4096), (32768, 8192), (16384, 16384)):
        x = torch.randn(shape, device="cuda").bfloat16()
        weight = torch.randn(shape[1], device="cuda").bfloat16()
        y, z = torch.empty_like(x), torch.empty_like(x)
        compiled = torch.compile(lambda x, w: rms(x, (x.shape[-1],), w, 1e-6), dynamic=False)
        rmsnorm(x, weight, eps=1e-6, out=y)
        exact = rms(x[:512].double(), (shape[1],), weight.double(), 1e-6)
        assert torch.allclose(y[:512].double(), exact, rtol=2**-7, atol=1e-6)
        times = worse_of_two(
            {
                "numba_tma": lambda: rmsnorm(x, weight, eps=1e-6, out=y),  # noqa: B023
                "copy": lambda: z.copy_(x),  # noqa: B023
                "torch.compile": lambda: compiled(x, weight),  # noqa: B023
            }
        )
        rows.append(_row("rmsnorm", f"bf16 {shape[0]} x {shape[1]}", 2 * x.nbytes, times))
    return rows


def bench_scale_add(torch: Any) -> list[dict[str, Any]]:
    """Time alpha * x + beta * y, beside torch.compile."""
    from numba_tma.kernels.pointwise import scale_add

    rows = []
    for name, dtype, size in (("bf16", torch.bfloat16, 2**29), ("f32", torch.float32, 2**28)):
        x = torch.randn(size, device="cuda").to(dtype)
        y = torch.randn(size, device="cuda").to(dtype)
        out, z = torch.empty_like(x), torch.empty_like(x)
        compiled = torch.compile(lambda x, y: 2.0 * x + 0.5 * y, dynamic=False)
        scale_add(x, y, 2.0, 0.5, out=out)
        exact = 2.0 * x[:4096].double() + 0.5 * y[:4096].double()
        assert torch.allclose(out[:4096].double(), exact, rtol=2**-7, atol=1e-2)
        times = worse_of_two(
            {
                "numba_tma": lambda: scale_add(x, y, 2.0, 0.5, out=out),  # noqa: B023
                "torch.compile": lambda: compiled(x, y),  # noqa: B023
                "copy": lambda: z.copy_(x),  # noqa: B023
            }
        )
        row = _row("scale_add", f"{name} 2^{size.bit_length() - 1}", 3 * x.nbytes, times)
        row["copy"] = round(row["copy"] * 2 / 3, 1)  # a copy moves two thirds of the bytes
        rows.append(row)
    return rows


def bench_host(torch: Any) -> list[dict[str, Any]]:
    """Time what maps cost the host: to make, and to pass to a launch."""
    from numba import cuda

    from numba_tma.layout import Tile
    from numba_tma.tensor_map import tensor_map

    x = torch.zeros(64, 64, device="cuda")
    tile = Tile((8, 32), "f32")
    many = [torch.zeros(64, 64, device="cuda") for _ in range(1000)]
    start = time.perf_counter()
    for tensor in many:
        tensor_map(tensor, tile)
    encoded = (time.perf_counter() - start) / len(many) * 1e6
    cached = time_host(lambda: tensor_map(x, tile))

    @cuda.jit
    def takes(argument):  # type: ignore[no-untyped-def]
        pass

    launch, x_map = takes[1, 32], tensor_map(x, tile)
    launch(1)
    launch(x_map)
    rounds = [(time_host(lambda: launch(1)), time_host(lambda: launch(x_map))) for _ in range(3)]
    with_int, with_map = (min(times) for times in zip(*rounds))
    return [
        _host_row("tensor_map", "encoded", encoded, {}),
        _host_row("tensor_map", "cached", cached, {}),
        _host_row("launch", "one TensorMap", with_map, {"one integer": round(with_int, 2)}),
    ]


def _host_row(kernel: str, case: str, microseconds: float, peers: dict[str, float]) -> Any:
    return {
        "kernel": kernel,
        "case": case,
        "unit": "us on the host",
        "numba_tma": round(microseconds, 2),
        "copy": None,
        "peers": peers,
    }


CASES = {
    "copy": bench_copy,
    "rmsnorm": bench_rmsnorm,
    "scale_add": bench_scale_add,
    "host": bench_host,
}


# ----------------------------------------------------------------------------- results


def table(results: dict[str, Any]) -> str:
    """Return the results as a Markdown table."""
    lines = [
        f"Measured on an {results['gpu']} on {results['date']}, torch "
        f"{results['versions'].get('torch', 'absent')}, numba-cuda "
        f"{results['versions']['numba-cuda']}; median of alternating runs with a cold L2 cache, "
        "the worse of two. In brackets: numba_tma's rate over that one's. `launch` is the host's "
        "time for a launch with one TensorMap argument, beside one with an integer.",
        "",
        "| kernel | case | numba_tma | beside it | plain copy |",
        "|---|---|---|---|---|",
    ]
    for row in results["rows"]:
        faster = row["unit"] == "GB/s"
        peers = []
        for name, value in row["peers"].items():
            ratio = row["numba_tma"] / value if faster else value / row["numba_tma"]
            peers.append(f"{name} {value:,g} ({ratio:.2f} x)" if faster else f"{name} {value:,g}")
        copied = (
            ""
            if row["copy"] is None
            else f"{row['copy']:,g} ({row['numba_tma'] / row['copy']:.2f} x)"
        )
        lines.append(
            f"| {row['kernel']} | {row['case']} | {row['numba_tma']:,g} {row['unit']} | "
            f"{', '.join(peers)} | {copied} |"
        )
    return "\n".join(lines)


def write_readme_table(readme: Path, results: dict[str, Any]) -> None:
    """Replace the table between the markers of the README."""
    text = readme.read_text()
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    readme.write_text(f"{head}{BEGIN}\n{table(results)}\n{END}{tail}")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, and write the results file."""
    parser = argparse.ArgumentParser(prog="python -m numba_tma bench", description=__doc__)
    parser.add_argument("--only", choices=sorted(CASES), action="append", help="run these cases")
    parser.add_argument("--output", type=Path, help=f"results file (default: in {RESULTS})")
    parser.add_argument("--readme", type=Path, help="README whose table is replaced")
    parser.add_argument("--from-results", type=Path, help="measure nothing: use this file")
    options = parser.parse_args(argv)
    if options.from_results:
        results = json.loads(options.from_results.read_text())
    else:
        results = measure(options.only or list(CASES))
        path = options.output or RESULTS / f"{results['gpu'].split()[-1].lower()}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(results, indent=2) + "\n")
    print(table(results))
    if options.readme:
        write_readme_table(options.readme, results)
    return 0


def measure(cases: Sequence[str]) -> dict[str, Any]:
    """Run the named cases on the current GPU."""
    from numba import cuda

    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise SystemExit(
            f"bench measures beside torch, which is not here ({error}): pip install '.[bench]'"
        ) from None
    name = cuda.get_current_device().name
    rows: list[dict[str, Any]] = []
    for case in cases:
        rows += CASES[case](torch)
        torch.cuda.empty_cache()
    return {
        "gpu": name if isinstance(name, str) else name.decode(),
        "date": datetime.date.today().isoformat(),
        "versions": {"numba-tma": __version__} | {p: v for p in PACKAGES if (v := _version(p))},
        "rows": rows,
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
