"""Normalization beside torch.compile."""

from __future__ import annotations

from typing import Any

from numba_tma.bench.report import rate_row
from numba_tma.bench.timing import worse_of_two


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
        rows.append(rate_row("rmsnorm", f"bf16 {shape[0]} x {shape[1]}", 2 * x.nbytes, times))
    return rows
