"""Pointwise kernels beside torch, torch.compile, and the same written plainly in numba-cuda."""

from __future__ import annotations

from typing import Any

from numba_tma.bench import plain
from numba_tma.bench.compiled import compiled_peers
from numba_tma.bench.report import rate_row
from numba_tma.bench.timing import Run, worse_of_two

PLAIN = "plain numba-cuda"


def _inputs(torch: Any, name: str, size: int, count: int) -> list[Any]:
    dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[name]
    return [torch.randn(size, device="cuda").to(dtype) for _ in range(count)]


def _check(torch: Any, result: Any, exact: Any) -> None:
    """Hold the first elements to a float64 result."""
    rtol = 2**-7 if result.dtype is torch.bfloat16 else 1e-5
    assert torch.allclose(result[: exact.numel()].double(), exact, rtol=rtol, atol=rtol * 1e-1)


def _row(
    kernel: str, name: str, arrays: list[Any], runs: dict[str, Run], copied: Run
) -> dict[str, Any]:
    """Time `runs` on inputs and one output of one size, beside a copy of one of them."""
    moved = (len(arrays) + 1) * arrays[0].nbytes
    times = worse_of_two(runs | {"copy": copied})
    # A copy moves the bytes of two arrays; its rate is that of as many bytes.
    times["copy"] *= moved / (2 * arrays[0].nbytes)
    size = arrays[0].numel()
    return rate_row(kernel, f"{name} 2^{size.bit_length() - 1}", moved, times)


def bench_scale_add(torch: Any) -> list[dict[str, Any]]:
    """Time alpha * x + beta * y, beside torch.compile."""
    from numba_tma.kernels.pointwise import scale_add

    rows = []
    for name, size in (("bf16", 2**29), ("f32", 2**28)):
        x, y = _inputs(torch, name, size, 2)
        out, z = torch.empty_like(x), torch.empty_like(x)
        scale_add(x, y, 2.0, 0.5, out=out)
        _check(torch, out, 2.0 * x[:4096].double() + 0.5 * y[:4096].double())
        runs = {
            "numba_tma": lambda: scale_add(x, y, 2.0, 0.5, out=out),  # noqa: B023
            **compiled_peers(torch, lambda x, y: 2.0 * x + 0.5 * y, x, y),
        }
        rows.append(_row("scale_add", name, [x, y], runs, lambda: z.copy_(x)))  # noqa: B023
    return rows


def bench_add(torch: Any) -> list[dict[str, Any]]:
    """Time x + y."""
    from numba_tma.kernels.pointwise import add

    rows = []
    for name, size in (("bf16", 2**29), ("f32", 2**28)):
        x, y = _inputs(torch, name, size, 2)
        out, z = torch.empty_like(x), torch.empty_like(x)
        exact = x[:4096].double() + y[:4096].double()
        plainly = plain.run(torch, plain.add_bf16 if name == "bf16" else plain.add, x, y, out)
        for run in (plainly, lambda: add(x, y, out=out)):  # noqa: B023
            out.zero_()
            run()
            _check(torch, out, exact)
        runs = {
            "numba_tma": lambda: add(x, y, out=out),  # noqa: B023
            "torch": lambda: torch.add(x, y, out=out),  # noqa: B023
            **compiled_peers(torch, lambda x, y: x + y, x, y),
            PLAIN: plainly,
        }
        rows.append(_row("add", name, [x, y], runs, lambda: z.copy_(x)))  # noqa: B023
    return rows


def bench_gelu(torch: Any) -> list[dict[str, Any]]:
    """Time GELU by erf, in bf16."""
    from numba_tma.kernels.activations import gelu

    (x,) = _inputs(torch, "bf16", 2**29, 1)
    out, z = torch.empty_like(x), torch.empty_like(x)
    function = torch.nn.functional.gelu
    exact = x[:4096].double()
    exact = 0.5 * exact * torch.erfc(-exact * 0.5**0.5)
    plainly = plain.run(torch, plain.gelu_bf16, x, out)
    for run in (plainly, lambda: gelu(x, out=out)):
        out.zero_()
        run()
        _check(torch, out, exact)
    runs = {
        "numba_tma": lambda: gelu(x, out=out),
        "torch": lambda: function(x),
        **compiled_peers(torch, lambda x: function(x), x),
        PLAIN: plainly,
    }
    return [_row("gelu (erf)", "bf16", [x], runs, lambda: z.copy_(x))]


def bench_swiglu(torch: Any) -> list[dict[str, Any]]:
    """Time SwiGLU, in bf16."""
    from numba_tma.kernels.activations import swiglu

    gate, up = _inputs(torch, "bf16", 2**29, 2)
    out, z = torch.empty_like(gate), torch.empty_like(gate)
    silu = torch.nn.functional.silu
    swiglu(gate, up, out=out)
    _check(torch, out, silu(gate[:4096].double()) * up[:4096].double())
    runs = {
        "numba_tma": lambda: swiglu(gate, up, out=out),
        "torch": lambda: silu(gate) * up,
        **compiled_peers(torch, lambda gate, up: silu(gate) * up, gate, up),
    }
    return [_row("swiglu", "bf16", [gate, up], runs, lambda: z.copy_(gate))]
