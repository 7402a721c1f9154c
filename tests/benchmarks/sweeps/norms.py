"""Which plan is fastest for rows of which length, beside what else normalises them.

``python tests/benchmarks/sweeps/norms.py [--seconds N] [--only rmsnorm ...] [--columns N ...]``
from the repository's root, whose library it measures. Every plan's values are checked before it is
measured; what fails is printed and left out, and what does not fit into the seconds is not begun.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
import traceback
import warnings

import torch

sys.path.insert(0, os.getcwd())

from numba_tma.bench.timing import time_alternating
from numba_tma.kernels._rows import Plan
from numba_tma.kernels.layernorm import layernorm
from numba_tma.kernels.rmsnorm import rmsnorm
from numba_tma.kernels.softmax import softmax

SHAPES = (
    (32768, 1024),
    (32768, 4096),
    (32768, 8192),
    (16384, 16384),
    (8192, 65536),
    (4096, 262144),
)

#: By columns, the likeliest first.
PLANS = {
    1024: [
        Plan(32, 4),
        Plan(128),
        Plan(32, 2),
        Plan(32, 4, blocks=10),
        Plan(64),
        Plan(32, 1),
        Plan(32, 4, early=True),
        Plan(32, 4, bulk=True),
        Plan(32, 8),
    ],
    4096: [
        Plan(128),
        Plan(256),
        Plan(128, early=True),
        Plan(128, blocks=10),
        Plan(128, bulk=True),
        Plan(512),
        Plan(256, early=True),
        Plan(64),
        Plan(256, blocks=2, stages=5),
    ],
    8192: [
        Plan(256),
        Plan(512),
        Plan(256, bulk=True),
        Plan(256, blocks=5),
        Plan(256, early=True),
        Plan(1024),
        Plan(512, early=True),
        Plan(128),
        Plan(256, blocks=2, stages=4),
    ],
    16384: [
        Plan(512),
        Plan(512, bulk=True),
        Plan(1024),
        Plan(256, 1, 2),
        Plan(512, 1, 2, bulk=True),
        Plan(512, early=True),
        Plan(256),
        Plan(256, bulk=True),
        Plan(512, blocks=1, stages=4),
        Plan(512, blocks=2, stages=6, slot=16384),
    ],
    65536: [
        Plan(512, 1, 4, bulk=True),
        Plan(512, blocks=1, stages=13, slot=16384),
        Plan(512, 1, 2, blocks=2, stages=6, slot=16384),
        Plan(256, 1, 8, bulk=True),
        Plan(512, 1, 4),
        Plan(512, 1, 2, blocks=1, stages=13, slot=16384),
        Plan(1024, 1, 2, bulk=True),
        Plan(256, 1, 4, bulk=True),
        Plan(512, 1, 8, bulk=True),
    ],
    262144: [
        Plan(512, 1, 4, blocks=1, stages=13, slot=16384),
        Plan(512, 1, 8, blocks=1, stages=12, slot=16384),
        Plan(1024, 1, 8, bulk=True),
        Plan(512, 1, 8, blocks=2, stages=6, slot=16384),
        Plan(1024, 1, 8),
        Plan(512, 1, 8, bulk=True),
        Plan(512, 1, 4, blocks=1, stages=26, slot=8192),
    ],
}

F = torch.nn.functional


def rms_reference(x, w, b):
    return F.rms_norm(x, (x.shape[-1],), w, 1e-6)


def layer_reference(x, w, b):
    return F.layer_norm(x, (x.shape[-1],), w, b, 1e-5)


def softmax_reference(x, w, b):
    return torch.softmax(x, -1)


OPERATIONS = {
    "rmsnorm": (lambda x, w, b, y, p: rmsnorm(x, w, out=y, plan=p), rms_reference),
    "softmax": (lambda x, w, b, y, p: softmax(x, out=y, plan=p), softmax_reference),
    "layernorm": (lambda x, w, b, y, p: layernorm(x, w, b, out=y, plan=p), layer_reference),
}


def peers(name, x, w, b):
    """Yield (name, run) of what else is installed."""
    compiled = torch.compile(OPERATIONS[name][1], dynamic=False)
    yield "compile", lambda: compiled(x, w, b)
    try:
        import quack

        of = {
            "rmsnorm": lambda: quack.rmsnorm(x, w, eps=1e-6),
            "softmax": lambda: quack.softmax(x),
            "layernorm": lambda: quack.layernorm(x, w.float(), b.float(), eps=1e-5),
        }[name]
        yield "quack", of
    except Exception as error:
        print(f"# quack: {error!r}", flush=True)
    try:
        from numba_tma.bench.norms_triton import runs

        for warps in (4, 8, 16, 32):
            yield (
                f"triton{warps}",
                functools.partial(runs[name], x, w, b, torch.empty_like(x), warps),
            )
    except Exception as error:
        print(f"# triton: {error!r}", flush=True)


def short(plan):
    """Return a plan in few letters."""
    return (
        f"{plan.threads}x{plan.rows}"
        + (f" cluster {plan.cluster}" if plan.cluster > 1 else "")
        + (" bulk" if plan.bulk else "")
        + (f" min {plan.blocks}" if plan.blocks else "")
        + (" early" if plan.early else "")
        + (f" ring {plan.stages}" if plan.stages else "")
        + (f" of {plan.slot >> 10} KB" if plan.slot else "")
    )


def sweep(name, rows, columns, plans, with_peers, deadline):
    run, reference = OPERATIONS[name]
    x = torch.randn(rows, columns, device="cuda").bfloat16()
    w, b = (torch.randn(columns, device="cuda").bfloat16() for _ in range(2))
    y, z = torch.empty_like(x), torch.empty_like(x)
    checked = [0, 1, rows // 2, rows - 1]
    exact = reference(x[checked].double(), w.double(), b.double())
    runs = {"copy": lambda: z.copy_(x)}
    started = time.perf_counter()
    for plan in plans:
        if time.perf_counter() > deadline:
            break
        try:
            y.fill_(7)
            run(x, w, b, y, plan)
            torch.cuda.synchronize()
            error = (y[checked].double() - exact).abs() / (exact.abs() + 1e-3 * exact.abs().max())
            if not (error.max() < 2**-7):
                print(f"# {name} {columns} {short(plan)}: WRONG, {error.max():.3g}", flush=True)
                continue
            runs[short(plan)] = functools.partial(run, x, w, b, y, plan)
        except Exception as error:
            print(f"# {name} {columns} {short(plan)}: {str(error)[:300]!r}", flush=True)
    ours = set(runs) - {"copy"}
    if with_peers:
        for peer, call in peers(name, x, w, b):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    call()
                    torch.cuda.synchronize()
                runs[peer] = call
            except Exception as error:
                print(f"# {name} {columns} {peer}: {str(error)[:200]!r}", flush=True)
    made = time.perf_counter() - started
    times = time_alternating(runs, repeats=11)
    rates = {k: 2 * x.nbytes / s / 1e9 for k, s in times.items()}
    best = max((rates[k] for k in rates if k not in ours and k != "copy"), default=float("nan"))
    for k, rate in sorted(rates.items(), key=lambda item: -item[1]):
        mark = f" {rate / best:.3f}" if k in ours else ""
        print(f"{name} {rows}x{columns} {k}: {rate:.0f}{mark}", flush=True)
    print(f"# {made:.1f} s to compile and check, {time.perf_counter() - started:.1f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=190)
    parser.add_argument("--only", nargs="*", default=list(OPERATIONS))
    parser.add_argument("--columns", nargs="*", type=int, default=list(PLANS))
    parser.add_argument("--no-peers", action="store_true")
    options = parser.parse_args()
    deadline = time.perf_counter() + options.seconds
    torch.manual_seed(0)
    # First what is likeliest for everything, with the peers; then the rest.
    for first, last in ((0, 3), (3, 99)):
        for rows, columns in SHAPES:
            for name in options.only:
                if columns not in options.columns or time.perf_counter() > deadline:
                    continue
                plans = PLANS[columns][first:last]
                try:
                    if plans:
                        sweep(
                            name,
                            rows,
                            columns,
                            plans,
                            first == 0 and not options.no_peers,
                            deadline,
                        )
                except Exception:
                    traceback.print_exc()
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
