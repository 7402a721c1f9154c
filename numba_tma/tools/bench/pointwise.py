"""Pointwise kernels beside torch, torch.compile, and the same written plainly in numba-cuda."""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

from numba_tma.host.annotations import DeviceArray
from numba_tma.tools.bench import plain
from numba_tma.tools.bench.compiled import compiled_peers
from numba_tma.tools.bench.results import Cases, Measured, rate
from numba_tma.tools.bench.timing import Run, worse_of_two

PLAIN = "plain numba-cuda"


def _inputs(torch: ModuleType, name: str, size: int, count: int) -> list[Any]:
    dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[name]
    return [torch.randn(size, device="cuda").to(dtype) for _ in range(count)]


def _check(torch: ModuleType, result: DeviceArray, exact: Any) -> None:
    """Hold the first elements to a float64 result."""
    rtol = 2**-7 if result.dtype is torch.bfloat16 else 1e-5
    assert torch.allclose(result[: exact.numel()].double(), exact, rtol=rtol, atol=rtol * 1e-1)


def _rate(arrays: list[Any], runs: dict[str, Run], copied: Run) -> Measured:
    """Time `runs` on inputs and one output of one size, beside a copy of one of them."""
    moved = (len(arrays) + 1) * arrays[0].nbytes
    times = worse_of_two(runs | {"copy": copied})
    # A copy moves the bytes of two arrays; its rate is that of as many bytes.
    times["copy"] *= moved / (2 * arrays[0].nbytes)
    return rate(moved, times)


def bench_scale_add(torch: ModuleType, name: str, size: int) -> Measured:
    """Time alpha * x + beta * y, beside torch.compile."""
    from numba_tma.kernels.pointwise import scale_add

    x, y = _inputs(torch, name, size, 2)
    out, z = torch.empty_like(x), torch.empty_like(x)
    scale_add(x, y, 2.0, 0.5, out=out)
    _check(torch, out, 2.0 * x[:4096].double() + 0.5 * y[:4096].double())
    runs = {
        "numba_tma": lambda: scale_add(x, y, 2.0, 0.5, out=out),
        **compiled_peers(torch, lambda x, y: 2.0 * x + 0.5 * y, x, y),
    }
    return _rate([x, y], runs, lambda: z.copy_(x))


def bench_add(torch: ModuleType, name: str, size: int) -> Measured:
    """Time x + y."""
    from numba_tma.kernels.pointwise import add

    x, y = _inputs(torch, name, size, 2)
    out, z = torch.empty_like(x), torch.empty_like(x)
    exact = x[:4096].double() + y[:4096].double()
    plainly = plain.run(torch, plain.add_bf16 if name == "bf16" else plain.add, x, y, out)
    for run in (plainly, lambda: add(x, y, out=out)):
        out.zero_()
        run()
        _check(torch, out, exact)
    runs = {
        "numba_tma": lambda: add(x, y, out=out),
        "torch": lambda: torch.add(x, y, out=out),
        **compiled_peers(torch, lambda x, y: x + y, x, y),
        PLAIN: plainly,
    }
    return _rate([x, y], runs, lambda: z.copy_(x))


def bench_gelu(torch: ModuleType, name: str, size: int) -> Measured:
    """Time GELU by erf, in bf16."""
    from numba_tma.kernels.pointwise import gelu

    (x,) = _inputs(torch, name, size, 1)
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
    return _rate([x], runs, lambda: z.copy_(x))


def bench_swiglu(torch: ModuleType, name: str, size: int) -> Measured:
    """Time SwiGLU, in bf16."""
    from numba_tma.kernels.pointwise import swiglu

    gate, up = _inputs(torch, name, size, 2)
    out, z = torch.empty_like(gate), torch.empty_like(gate)
    silu = torch.nn.functional.silu
    swiglu(gate, up, out=out)
    _check(torch, out, silu(gate[:4096].double()) * up[:4096].double())
    runs = {
        "numba_tma": lambda: swiglu(gate, up, out=out),
        "torch": lambda: silu(gate) * up,
        **compiled_peers(torch, lambda gate, up: silu(gate) * up, gate, up),
    }
    return _rate([gate, up], runs, lambda: z.copy_(gate))


_EXPONENTS = {"bf16": 29, "f32": 28}

CASES: Cases = {
    (kernel, f"{name} 2^{_EXPONENTS[name]}"): partial(bench, name=name, size=2 ** _EXPONENTS[name])
    for kernel, bench, names in (
        ("add", bench_add, ("bf16", "f32")),
        ("scale_add", bench_scale_add, ("bf16", "f32")),
        ("gelu (erf)", bench_gelu, ("bf16",)),
        ("swiglu", bench_swiglu, ("bf16",)),
    )
    for name in names
}
