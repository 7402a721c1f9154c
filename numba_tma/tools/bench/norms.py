"""The cases of ``bench`` for norms, softmax and reductions, beside what else is installed."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from numba_tma.host.annotations import DeviceArray
from numba_tma.tools.bench.compiled import compiled_peers
from numba_tma.tools.bench.peers import with_fastest, working
from numba_tma.tools.bench.results import Cases, Measured, rate
from numba_tma.tools.bench.timing import Run, worse_of_two

SHAPES = (
    (32768, 1024),
    (32768, 4096),
    (32768, 8192),
    (16384, 16384),
    (8192, 65536),
    (4096, 262144),
)
TRITON_WARPS = (4, 8, 16, 32)


QUACK = ("rmsnorm", "layernorm", "softmax")


def by_quack(name: str, x: DeviceArray, w: DeviceArray, b: DeviceArray) -> dict[str, Run]:
    """Return one of `QUACK`, QuACK's functions, whose LayerNorm takes float32 weights."""
    quack = importlib.import_module("quack")
    wide, shift = w.float(), b.float()
    return {
        "QuACK": {
            "rmsnorm": lambda: quack.rmsnorm(x, w, eps=1e-6),
            "layernorm": lambda: quack.layernorm(x, wide, shift, eps=1e-5),
            "softmax": lambda: quack.softmax(x),
        }[name]
    }


def _peers(
    torch: ModuleType,
    name: str,
    reference: Callable[..., Any],
    x: DeviceArray,
    w: DeviceArray,
    b: DeviceArray,
) -> Any:
    """Return what runs here, of torch.compile, QuACK and Triton with its best number of warps."""
    from numba_tma.tools.bench.norms_triton import runs

    candidates: dict[str, Run] = {}
    try:
        candidates |= by_quack(name, x, w, b)
    except ImportError:
        pass
    if name in runs:
        out = torch.empty_like(x)
        for warps in TRITON_WARPS:
            candidates[f"Triton, {warps} warps"] = functools.partial(
                runs[name], x, w, b, out, warps
            )
    others = working(torch, f"{name} {tuple(x.shape)}", candidates)
    return compiled_peers(torch, reference, x, w, b) | with_fastest(others, "Triton")


def _bench(
    torch: ModuleType,
    name: str,
    shape: tuple[int, int],
    ours: Callable[..., Any],
    reference: Callable[..., Any],
) -> Measured:
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    w, b = (torch.randn(shape[1], device="cuda").bfloat16() for _ in range(2))
    y, z = torch.empty_like(x), torch.empty_like(x)
    ours(x, w, b, y)
    some = slice(0, 64)
    exact = reference(x[some].double(), w.double(), b.double())
    assert torch.allclose(y[some].double(), exact, rtol=2**-7, atol=1e-4), (name, shape)
    runs = {
        "numba_tma": functools.partial(ours, x, w, b, y),
        "copy": functools.partial(z.copy_, x),
        **_peers(torch, name, reference, x, w, b),
    }
    return rate(2 * x.nbytes, worse_of_two(runs))


def bench_rmsnorm(torch: ModuleType, shape: tuple[int, int]) -> Measured:
    """Time RMSNorm of bf16 rows."""
    from numba_tma.kernels.rows import rmsnorm

    norm = torch.nn.functional.rms_norm
    return _bench(
        *(torch, "rmsnorm", shape),
        lambda x, w, b, y: rmsnorm(x, w, eps=1e-6, out=y),
        lambda x, w, b: norm(x, (x.shape[-1],), w, 1e-6),
    )


def bench_rmsnorm_pipelined(torch: ModuleType, shape: tuple[int, int]) -> Measured:
    """Time RMSNorm through a `TilePipeline` beside `rmsnorm`, which has none."""
    from numba_tma.kernels.rows import rmsnorm
    from numba_tma.kernels.rows.pipelined import rmsnorm_pipelined

    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(shape[1], device="cuda").bfloat16()
    y, z, copied = (torch.empty_like(x) for _ in range(3))
    rmsnorm_pipelined(x, w, out=y)
    exact = torch.nn.functional.rms_norm(x[:64].double(), (shape[1],), w.double(), 1e-6)
    assert torch.allclose(y[:64].double(), exact, rtol=2**-7, atol=1e-4), shape
    runs = {
        "numba_tma": lambda: rmsnorm_pipelined(x, w, out=y),
        "rmsnorm": lambda: rmsnorm(x, w, out=z),
        "copy": lambda: copied.copy_(x),
    }
    return rate(2 * x.nbytes, worse_of_two(runs))


def bench_layernorm(torch: ModuleType, shape: tuple[int, int]) -> Measured:
    """Time LayerNorm of bf16 rows."""
    from numba_tma.kernels.rows import layernorm

    norm = torch.nn.functional.layer_norm
    return _bench(
        *(torch, "layernorm", shape),
        lambda x, w, b, y: layernorm(x, w, b, eps=1e-5, out=y),
        lambda x, w, b: norm(x, (x.shape[-1],), w, b, 1e-5),
    )


def bench_softmax(torch: ModuleType, shape: tuple[int, int]) -> Measured:
    """Time softmax of bf16 rows."""
    from numba_tma.kernels.rows import softmax

    return _bench(
        *(torch, "softmax", shape),
        lambda x, w, b, y: softmax(x, out=y),
        lambda x, w, b: torch.softmax(x, -1),
    )


def bench_reduction(torch: ModuleType, name: str, shape: tuple[int, int]) -> Measured:
    """Time sums or columns of maxima of rows, or sums of columns, beside torch."""
    from numba_tma.kernels.rows import column_sum, row_argmax, row_sum

    x = torch.randn(shape, device="cuda").bfloat16()
    sums, columns = (torch.empty(n, device="cuda") for n in shape)
    places = torch.empty(shape[0], dtype=torch.int64, device="cuda")
    reductions: dict[str, tuple[Run, Callable[[Any], Any]]] = {
        "row_sum": (lambda: row_sum(x, out=sums), lambda x: x.sum(-1, dtype=torch.float32)),
        "row_argmax": (lambda: row_argmax(x, out=places), lambda x: x.argmax(-1)),
        "column_sum": (
            lambda: column_sum(x, out=columns),
            lambda x: x.sum(0, dtype=torch.float32),
        ),
    }
    ours, reference = reductions[name]
    got, want = ours(), reference(x)
    if name == "row_argmax":
        assert torch.equal(x.gather(1, got[:, None]), x.gather(1, want[:, None]))
    else:
        assert torch.allclose(got, want, rtol=1e-3, atol=0.05), name
    times = worse_of_two(
        {
            "numba_tma": ours,
            "torch": functools.partial(reference, x),
            **compiled_peers(torch, reference, x),
        }
    )
    return rate(x.nbytes, times)


def bench_norm_backward(torch: ModuleType, name: str, shape: tuple[int, int]) -> Measured:
    """Time the gradients of LayerNorm beside torch's, or those of RMSNorm beside a copy."""
    from numba_tma.kernels.rows import layernorm, layernorm_backward, rmsnorm_backward

    x, dy = (torch.randn(shape, device="cuda").bfloat16() for _ in range(2))
    w, b = (torch.randn(shape[1], device="cuda").bfloat16() for _ in range(2))
    mean, rstd = (torch.empty(shape[0], device="cuda") for _ in range(2))
    y, dx, dw, db = (torch.empty_like(t) for t in (x, x, w, b))
    layernorm(x, w, b, mean=mean, rstd=rstd, out=y)
    if name == "rmsnorm backward":
        rms = functools.partial(rmsnorm_backward, dy, x, w, rstd=rstd, dx=dx, dweight=dw)
        times = worse_of_two({"numba_tma": rms, "copy": functools.partial(y.copy_, x)})
        times["copy"] *= 3 / 2  # a copy moves two thirds of the bytes
        return rate(3 * x.nbytes, times)
    backward = torch.ops.aten.native_layer_norm_backward
    theirs = functools.partial(
        backward, dy, x, shape[1:], mean[:, None], rstd[:, None], w, b, [True, True, True]
    )
    ours = functools.partial(
        layernorm_backward, dy, x, w, mean=mean, rstd=rstd, dx=dx, dweight=dw, dbias=db
    )
    ours()
    for got, want in zip((dx, dw, db), theirs()):
        assert torch.allclose(got.float(), want.float(), rtol=2**-6, atol=0.5), shape
    return rate(3 * x.nbytes, worse_of_two({"numba_tma": ours, "torch": theirs}))


def named(shape: tuple[int, int]) -> str:
    """Return the name of the case of so many rows and columns."""
    return f"bf16 {shape[0]} x {shape[1]}"


CASES: Cases = {
    **{
        (name, named(shape)): functools.partial(bench, shape=shape)
        for name, bench in (
            ("rmsnorm", bench_rmsnorm),
            ("layernorm", bench_layernorm),
            ("softmax", bench_softmax),
        )
        for shape in SHAPES
    },
    **{
        ("rmsnorm pipelined", named(shape)): functools.partial(bench_rmsnorm_pipelined, shape=shape)
        for shape in SHAPES[:3]
    },
    **{
        (name, named(shape)): functools.partial(bench_norm_backward, name=name, shape=shape)
        for name in ("layernorm backward", "rmsnorm backward")
        for shape in SHAPES[1:3]
    },
    **{
        (name, named(SHAPES[2])): functools.partial(bench_reduction, name=name, shape=SHAPES[2])
        for name in ("row_sum", "row_argmax", "column_sum")
    },
}
