"""Pointwise kernels beside torch.compile."""

from __future__ import annotations

from typing import Any

from numba_tma.bench.report import rate_row
from numba_tma.bench.timing import worse_of_two


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
        row = rate_row("scale_add", f"{name} 2^{size.bit_length() - 1}", 3 * x.nbytes, times)
        row["copy"] = round(row["copy"] * 2 / 3, 1)  # a copy moves two thirds of the bytes
        rows.append(row)
    return rows
