"""The fastest configuration of matmul by shape, the expected one, and cuBLAS.

``python tests/benchmarks/sweeps/matmul.py [--dtype bf16] [--layout TN] [--shape MxNxK ...]
[--repeats N] [--stream-k]`` from the repository's root, whose library it measures. Lines go from
the fastest to the slowest; "chosen" marks what `choose` takes. Wrong values and failures are
printed. ``--stream-k`` measures only the wide tiles, each with and without stream-K, and what is
chosen.

``--survey N [--seed S] [--prepare J] --json FILE`` measures N products of the survey instead, with
the 24 configurations that are expected to be the fastest, and writes the times that the models are
fitted to. J processes compile first, into the kernel cache.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, os.getcwd())

from numba_tma.kernels.matmul import Config, StreamKConfig, SwappedConfig, dense, matmul
from numba_tma.kernels.matmul.choice import (
    CONFIGS,
    MatmulProblem,
    candidates,
    choose,
    expected_time,
)
from numba_tma.tools.bench.survey.calls import call_of
from numba_tma.tools.bench.survey.draw import cases
from numba_tma.tools.bench.timing import time_alternating
from tests.benchmarks.sweeps.parts import add_options, share_of

SHAPES = (
    *("4096x4096x4096", "8192x8192x8192", "8192x8192x1024", "2048x2048x2048", "1024x1024x1024"),
    *("512x512x512", "3000x3000x3000", "4096x128x4096", "128x4096x4096", "128x128x16384"),
    *("1x4096x4096", "16x4096x4096", "64x4096x4096", "16x14336x4096", "16x4096x14336"),
    *("64x8192x8192", "64x1024x16384", "1x8192x28672", "32x28672x8192"),
)
#: Shapes of ``--stream-k``: little more than whole waves, whole waves, a short K, few tiles.
PARTIAL_WAVES = (
    *("3000x3000x3000", "6848x576x4792", "2048x2048x2048", "3072x3072x3072", "4096x4096x512"),
    *("576x1280x1600", "1024x1024x8192", "2304x2304x2304", "5120x5120x5120"),
)
TYPES = {
    "bf16": (torch.bfloat16, torch.bfloat16),
    "f16": (torch.float16, torch.float16),
    "f32": (torch.float32, torch.float32),
    "e4m3": (torch.float8_e4m3fn, torch.bfloat16),
    "i8": (torch.int8, torch.int32),
}
#: Beside those that are candidates.
OTHERS = (
    Config(128, 256, 4),
    Config(128, 256, 2, group=8),
    Config(128, 256, 2, out_stages=1),
    Config(64, 256, 2, group=24),
    Config(64, 128, k=256, group=16),
    Config(64, 64, group=12),
    Config(64, 64, k=512, group=12),
    Config(64, 32, group=8),
    Config(64, 32, k=512, group=8),
    Config(64, 96, group=16),
    Config(64, 192, group=16),
)


def short(config):
    """Return a configuration in few letters."""
    if isinstance(config, SwappedConfig):
        text = f"swapped {config.m}x{config.n} cluster {config.cluster} blocks {config.blocks}"
        return f"{text} k {config.k}"
    text = "stream-K " * isinstance(config, StreamKConfig)
    text += f"{config.m}x{config.n} cluster {config.cluster} splits {config.splits}"
    return f"{text} k {config.k} group {config.group} out {config.out_stages}"


def beside_stream_k(problem, cores):
    """Yield wide tiles with and without stream-K, and what is chosen."""
    for config in CONFIGS:
        if config.m == 128 and config.n >= 128:
            yield config
            yield StreamKConfig(**dataclasses.asdict(config))
    yield choose(problem, cores)


def operands(m, n, k, name, layout):
    """Return a, b, out of torch; `layout` is BLAS's."""
    dtype, kind = TYPES[name]

    def make(rows, columns):
        if name == "i8":
            return torch.randint(-128, 128, (rows, columns), device="cuda", dtype=dtype)
        return torch.randn(rows, columns, device="cuda").to(dtype)

    a = make(m, k) if layout[0] == "T" else make(k, m).T
    b = make(n, k).T if layout[1] == "N" else make(k, n)
    return a, b, torch.empty(m, n, device="cuda", dtype=kind)


def cublas(a, b, out):
    """Return the run of cuBLAS, if torch has one for these types."""
    if a.dtype == torch.float8_e4m3fn:
        one = torch.ones((), device="cuda")
        call = functools.partial(torch._scaled_mm, scale_a=one, scale_b=one, out_dtype=out.dtype)
        return lambda: call(a, b, use_fast_accum=True)
    if a.dtype == torch.int8:
        return lambda: torch._int_mm(a, b)
    other = torch.empty_like(out)
    return lambda: torch.mm(a, b, out=other)


def sweep(shape, name, layout, repeats, stream_k):
    """Check and measure all configurations for a shape, or those beside stream-K."""
    m, n, k = map(int, shape.split("x"))
    a, b, out = operands(m, n, k, name, layout)
    size, cores = a.element_size(), torch.cuda.get_device_properties(0).multi_processor_count
    problem = MatmulProblem(m, n, k, 1, size, out.element_size(), name != "i8")
    some = [*range(min(m, 32)), *range(max(0, m - 32), m)]  # of the first and the last tiles
    exact = a[some].double() @ b.double()
    runs = {}
    try:
        run = cublas(a, b, out)
        run()
        torch.cuda.synchronize()
        runs["cuBLAS"] = run
    except Exception as error:
        print(f"# {shape} cuBLAS: {str(error)[:200]!r}")
    tried = beside_stream_k if stream_k else candidates
    configs = dict.fromkeys([*tried(problem, cores), *(() if stream_k else OTHERS)])
    for config in configs:
        try:
            out.fill_(7)
            matmul(a, b, out, config=config)
            torch.cuda.synchronize()
            error = ((out[some].double() - exact).abs() / (exact.abs() + 0.1 * k**0.5)).max()
            if not error < 2**-6:
                print(f"# {shape} {short(config)}: WRONG, {error:.3g}")
                continue
            runs[short(config)] = functools.partial(matmul, a, b, out, config=config)
        except Exception as error:
            print(f"# {shape} {short(config)}: {str(error)[-300:]!r}")
    times = time_alternating(runs, repeats)
    modelled = [config for config in configs if not isinstance(config, StreamKConfig)]
    expected = {short(c): expected_time(problem, c, cores) / 1e3 for c in modelled}
    chosen = short(choose(problem, cores))
    best = times.get("cuBLAS", min(times.values()))
    for what, seconds in sorted(times.items(), key=lambda item: item[1]):
        rate, moved = 2 * m * n * k / seconds / 1e12, size * (m + n) * k + out.nbytes
        print(
            f"{name} {layout} {shape} {what}: {1e6 * seconds:.1f} us, {rate:.0f} TFLOP/s, "
            f"{moved / seconds / 1e9:.0f} GB/s, {best / seconds:.3f} of cuBLAS"
            + (f", expected {expected[what]:.1f} us" if what in expected else "")
            + (" chosen" if what == chosen else ""),
            flush=True,
        )


def constructor(config):
    """Return a configuration as Python writes it, without the order of tiles."""
    fields = [field for field in dataclasses.fields(config) if field.name != "group"]
    values = {field.name: (getattr(config, field.name), field.default) for field in fields}
    given = {name: value for name, (value, default) in values.items() if value != default}
    return f"{type(config).__name__}({', '.join(f'{k}={v!r}' for k, v in given.items())})"


def survey(given):
    """Check and measure products of the survey; write their times, or compile a part of them."""
    rows = []
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    for case in share_of(cases({"matmul": given.survey}, given.seed), given):
        call = call_of(torch, case)
        out, _, a, b = call.ours.args[:4]
        arrays = a, b, out, *[None] * 6
        problem = dense._call(arrays, (1.0, 0.0), (None,) * 3, None, None).problem
        expected = {c: expected_time(problem, c, sms) for c in candidates(problem, sms)}
        runs = {}
        for config in sorted(expected, key=expected.__getitem__)[:24]:
            run = functools.partial(matmul, a, b, out, config=config)
            try:
                run()
                if given.part is None:
                    call.right(out)
                runs[constructor(config)] = run
            except Exception as error:
                print(f"# {case.name} {constructor(config)}: {str(error)[-200:]!r}", flush=True)
        if given.part is not None:
            continue
        times = time_alternating(runs | {"cuBLAS": next(iter(call.peers.values()))}, given.repeats)
        rows.append({"case": case.name, "us": {n: round(1e6 * s, 2) for n, s in times.items()}})
        print(case.name, *sorted(rows[-1]["us"].items(), key=lambda i: i[1])[:3], flush=True)
        results = {"gpu": torch.cuda.get_device_name(), "date": time.strftime("%Y-%m-%d")}
        Path(given.json).write_text(json.dumps(results | {"rows": rows}) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="bf16", choices=TYPES)
    parser.add_argument("--layout", default="TN", choices=("TN", "TT", "NN", "NT"))
    parser.add_argument("--shape", nargs="*")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--stream-k", action="store_true")
    parser.add_argument("--survey", type=int, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", default="matmul_times.json")
    add_options(parser)
    given = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(0)
    if given.survey:
        survey(given)
        return
    for shape in given.shape or (PARTIAL_WAVES if given.stream_k else SHAPES):
        sweep(shape, given.dtype, given.layout, given.repeats, given.stream_k)


if __name__ == "__main__":
    main()
