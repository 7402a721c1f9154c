"""Rows that begin anywhere, beside torch.compile and a copy, in results/unaligned_rows.json.

``python tests/benchmarks/sweeps/unaligned_rows.py`` from the repository's root, whose library it
measures. Rows of bf16 whose bytes are no multiple of 16 are checked against float64 first.
"""

from __future__ import annotations

import datetime
import functools
import json
import os
import sys
from pathlib import Path

RESULTS = Path("tests/benchmarks/results/unaligned_rows.json")
SHAPES = (
    (1 << 20, 100), (1 << 20, 129), (1 << 18, 1023), (1 << 16, 4097), (1 << 15, 8191),
    (1 << 13, 30001), (4096, 50257), (2048, 100003),
)  # fmt: skip


def functions(torch):
    """Return the library's function and the exact one, by name."""
    from numba_tma.kernels.rows import layernorm, rmsnorm, softmax

    def exact_rmsnorm(x, w):
        wide = x.float()
        scale = torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-6)
        return (wide * scale * w.float()).to(x.dtype)

    def exact_layernorm(x, w):
        return torch.nn.functional.layer_norm(x, x.shape[1:], w, w, 1e-5)

    return {
        "rmsnorm": (lambda x, w, y: rmsnorm(x, w, out=y), exact_rmsnorm),
        "layernorm": (lambda x, w, y: layernorm(x, w, w, out=y), exact_layernorm),
        "softmax": (lambda x, w, y: softmax(x, out=y), lambda x, w: torch.softmax(x, -1)),
    }


def measured(torch, ours, reference, shape):
    """Return GB/s of the library and its peers."""
    from numba_tma.tools.bench.compiled import compiled_peers
    from numba_tma.tools.bench.timing import worse_of_two

    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(shape[1], device="cuda", dtype=torch.bfloat16)
    y = torch.full_like(x, float("nan"))
    ours(x, w, y)
    some = slice(0, 64)
    exact = reference(x[some].double(), w.double()).double()
    assert not y.isnan().any()
    assert torch.allclose(y[some].double(), exact, rtol=2**-6, atol=1e-3), shape
    runs = {"numba_tma": functools.partial(ours, x, w, y), "copy": functools.partial(y.copy_, x)}
    peers = compiled_peers(torch, reference, x, w, modes={"torch.compile": "default"})
    times = worse_of_two(runs | peers)
    return {run: round(2 * x.nbytes / seconds / 1e9) for run, seconds in times.items()}


def table(results):
    """Return the table of docs/kernels/norms.md."""
    lines = ["| function | bf16 rows | GB/s | torch.compile | copy |", "|---|---|---|---|---|"]
    for row in results["rows"]:
        shape, rates = " x ".join(map(str, row["shape"])), row["GB/s"]
        rest = f"{rates['torch.compile']:,} | {rates['copy']:,}"
        lines.append(f"| {row['function']} | {shape} | {rates['numba_tma']:,} | {rest} |")
    return "\n".join(lines)


def main():
    sys.path.insert(0, os.getcwd())
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    import torch

    rows = []
    for name, (ours, reference) in functions(torch).items():
        for shape in SHAPES:
            rates = measured(torch, ours, reference, shape)
            rows.append({"function": name, "shape": shape, "GB/s": rates})
            print(rows[-1], flush=True)
    found = {
        "gpu": torch.cuda.get_device_name(),
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "rows": rows,
    }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
