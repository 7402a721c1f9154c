"""The fastest plan of the row kernels by the row's length, beside their peers.

``python tests/benchmarks/sweeps/norms.py [--seconds N] [--only rmsnorm ...] [--columns N ...]``
from the repository's root, whose library it measures. Each operation and shape has a process, so
that they compile at the same time; a lock keeps what checks values or measures alone on the GPU.
What has wrong values or fails is printed and left out; what is not done in time is ended.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import multiprocessing
import os
import queue
import sys
import threading
import time
import traceback
import warnings

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # the processes are parallel already

import torch

sys.path.insert(0, os.getcwd())

from numba import typeof, types

from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels.rows.launching import prepared
from numba_tma.kernels.rows.layernorm import LAYERNORM, layernorm
from numba_tma.kernels.rows.plan import RowArrays, RowMemory, RowOptions, RowPlan, RowSizes
from numba_tma.kernels.rows.rmsnorm import RMSNORM, rmsnorm
from numba_tma.kernels.rows.softmax import SOFTMAX, softmax
from numba_tma.tools.bench.timing import time_alternating

#: Those that compile longest first.
SHAPES = (
    (4096, 262144),
    (8192, 65536),
    (16384, 32768),
    (16384, 16384),
    (32768, 8192),
    (32768, 4096),
    (32768, 1024),
)


ROWS = RowMemory(0, 0)
#: The types of a kernel's arguments: arrays, sizes, a number.
KERNEL = (
    typeof(RowArrays(ROWS, ROWS, 0, 0, ROWS, ROWS, (0, 0))),
    typeof(RowSizes(0, 0, 0)),
    types.float32,
)


def staged(cluster, **how):
    """Return a plan of rows that wait in shared memory, with slots of 16 KB."""
    return RowPlan(512, 1, cluster, bulk=True, slot=16384, **how)


def all_staged(cluster):
    """Return the plans that differ in what the compiler keeps in registers, and when."""
    return [
        staged(cluster),
        staged(cluster, early=True),
        staged(cluster, blocks=3),
        staged(cluster, blocks=3, early=True),
    ]


PLANS = {
    1024: [RowPlan(32, 2), RowPlan(32, 4), RowPlan(128)],
    4096: [RowPlan(256), RowPlan(128), RowPlan(128, bulk=True)],
    8192: [RowPlan(256, bulk=True), RowPlan(512), RowPlan(256), RowPlan(128, bulk=True)],
    16384: [RowPlan(512), RowPlan(1024), RowPlan(512, bulk=True)],
    32768: [*all_staged(1), RowPlan(1024)],
    65536: [*all_staged(2), staged(1), staged(4, blocks=3)],
    262144: [*all_staged(8), staged(4)],
}
for columns, plans in PLANS.items():  # each also with rows that the L2 cache keeps longest
    PLANS[columns] = [*plans, *(dataclasses.replace(p, cache="evict_last") for p in plans)]

F = torch.nn.functional


def rms_reference(x, w, b):
    return F.rms_norm(x, (x.shape[-1],), w, 1e-6)


def layer_reference(x, w, b):
    return F.layer_norm(x, (x.shape[-1],), w, b, 1e-5)


def softmax_reference(x, w, b):
    return torch.softmax(x, -1)


#: How it runs, what it should yield, and what is compiled for it: with a weight, with a bias.
OPERATIONS = {
    "rmsnorm": (
        lambda x, w, b, y, p: rmsnorm(x, w, out=y, plan=p),
        rms_reference,
        (RMSNORM, True, False),
    ),
    "softmax": (
        lambda x, w, b, y, p: softmax(x, out=y, plan=p),
        softmax_reference,
        (SOFTMAX, False, False),
    ),
    "layernorm": (
        lambda x, w, b, y, p: layernorm(x, w, b, out=y, plan=p),
        layer_reference,
        (LAYERNORM, True, True),
    ),
}


def compile_plan(name, rows, columns, plan):
    """Compile what a call will launch, without the GPU."""
    op, weight, bias = OPERATIONS[name][2]
    options = RowOptions(weight=weight, bias=bias)
    kernel, _, _ = prepared(op, rows, columns, as_dtype("bf16"), 16, plan, options)
    kernel.compile(KERNEL)


def peers(name, x, w, b, y, say):
    """Yield (name, run) of what else is installed; these run here, to be compiled."""
    compiled = torch.compile(OPERATIONS[name][1], dynamic=False)
    yield "compile", lambda: compiled(x, w, b)
    try:
        if name == "softmax":
            from quack import softmax as call

            yield "quack", lambda: (call if callable(call) else call.softmax)(x)
        elif name == "rmsnorm":
            from quack import rmsnorm as call

            yield "quack", lambda: (call if callable(call) else call.rmsnorm)(x, w, eps=1e-6)
        else:
            try:
                from quack.rmsnorm import layernorm_fwd as call
            except ImportError:
                from quack.layernorm import layernorm as call
            scale, shift = w.float(), b.float()
            yield "quack", lambda: call(x, scale, shift, eps=1e-5)
    except Exception as error:
        say(f"# {name} {x.shape[-1]} quack: {str(error)[:200]!r}")
    try:
        from numba_tma.tools.bench.norms_triton import runs
    except ImportError as error:
        say(f"# triton: {error!r}")
        return
    # Beyond, a thread has hundreds of values, which compile for a minute and are slow.
    for warps in {65536: (16,), 262144: ()}.get(x.shape[-1], (4, 8, 16)):
        yield f"triton{warps}", functools.partial(runs[name], x, w, b, y, warps)


def short(plan):
    """Return a plan in few letters."""
    return (
        f"{plan.threads}x{plan.rows}"
        + (f" cluster {plan.cluster}" if plan.cluster > 1 else "")
        + (" bulk" if plan.bulk else "")
        + (f" min {plan.blocks}" if plan.blocks else "")
        + (" early" if plan.early else "")
        + (f" slot {plan.slot >> 10} KB" if plan.slot else "")
        + f" {plan.cache}"
    )


def give_up(title, alone, say):
    """End this process, whose kernel hangs, and let others have the GPU."""
    say(f"# {title}: a kernel hangs")
    time.sleep(1)  # until the line is through
    alone.release()
    os._exit(3)


def sweep(name, rows, columns, alone, with_peers, say):
    """Compile and measure all plans of a shape; hold `alone` where others would disturb."""
    run, reference, _ = OPERATIONS[name]
    title = f"{name} {rows}x{columns}"
    x = torch.randn(rows, columns, device="cuda").bfloat16()
    w, b = (torch.randn(columns, device="cuda").bfloat16() for _ in range(2))
    torch.cuda.empty_cache()  # the float32 of randn
    y = torch.empty_like(x)
    checked = [0, 1, rows // 2, rows - 1]
    exact = reference(x[checked].double(), w.double(), b.double())
    started = time.perf_counter()
    compiled = []
    for plan in PLANS[columns]:
        try:
            compile_plan(name, rows, columns, plan)
            compiled.append(plan)
        except Exception as error:
            say(f"# {title} {short(plan)}: {str(error)[-200:]!r}")
    others = {}
    for peer, call in peers(name, x, w, b, y, say) if with_peers else ():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                call()
                torch.cuda.synchronize()
            others[peer] = call
        except Exception as error:
            say(f"# {title} {peer}: {str(error)[:200]!r}")
    runs = {"copy": lambda: y.copy_(x)}
    time_alternating(runs, repeats=1)  # compiles
    made = time.perf_counter() - started
    with alone:
        watch = threading.Timer(30, give_up, (title, alone, say))
        watch.start()
        began = time.perf_counter()
        for plan in compiled:
            try:
                y.fill_(7)
                run(x, w, b, y, plan)
                torch.cuda.synchronize()
            except Exception as error:
                say(f"# {title} {short(plan)}: {str(error)[:200]!r}")
                continue
            scale = exact.abs() + 1e-3 * exact.abs().max()
            error = ((y[checked].double() - exact).abs() / scale).max()
            if error < 2**-7:
                runs[short(plan)] = functools.partial(run, x, w, b, y, plan)
            else:
                say(f"# {title} {short(plan)}: WRONG, {error:.3g}")
        times = time_alternating({**runs, **others}, repeats=15)
        measured = time.perf_counter() - began
        watch.cancel()
    rates = {k: 2 * x.nbytes / s / 1e9 for k, s in times.items()}
    best = max((rates[k] for k in others), default=float("nan"))
    for k, rate in sorted(rates.items(), key=lambda item: -item[1]):
        mark = f" {rate / best:.3f}" if k in runs and k != "copy" else ""
        say(f"{title} {k}: {rate:.0f}{mark}")
    say(f"# {title}: {made:.1f} s to compile, {measured:.1f} s to check and measure")


def work(name, rows, columns, alone, with_peers, lines):
    """Be the process of an operation and a shape."""
    try:
        torch.manual_seed(0)
        sweep(name, rows, columns, alone, with_peers, lines.put)
    except Exception:  # whatever it is, the others go on
        lines.put("# " + traceback.format_exc()[-600:].replace("\n", "\n# "))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--only", nargs="*", default=list(OPERATIONS))
    parser.add_argument("--columns", nargs="*", type=int, default=list(PLANS))
    parser.add_argument("--no-peers", action="store_true")
    options = parser.parse_args()
    deadline = time.perf_counter() + options.seconds
    spawn = multiprocessing.get_context("spawn")
    alone, lines = spawn.Lock(), spawn.Queue()
    workers = [
        spawn.Process(
            target=work,
            args=(name, rows, columns, alone, not options.no_peers, lines),
            name=f"{name} {rows}x{columns}",
        )
        for rows, columns in SHAPES
        for name in options.only
        if columns in options.columns
    ]
    for worker in workers:
        worker.start()
    while True:
        running = any(worker.is_alive() for worker in workers)
        try:
            print(lines.get(timeout=0.2), flush=True)
        except queue.Empty:
            if not running:
                break
        if time.perf_counter() > deadline:
            break
    for worker in workers:
        if worker.is_alive():
            print(f"# {worker.name}: not done in {options.seconds:.0f} s", flush=True)
            worker.kill()
        elif worker.exitcode:
            print(f"# {worker.name}: ended with {worker.exitcode}", flush=True)


if __name__ == "__main__":
    main()
