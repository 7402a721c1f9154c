"""Copies and transposes beside torch's."""

from __future__ import annotations

from typing import Any

from numba_tma.bench.compiled import compiled_peers
from numba_tma.bench.report import rate_row
from numba_tma.bench.timing import worse_of_two


def bench_copy(torch: Any) -> list[dict[str, Any]]:
    """Time copies of 1, 2 and 4 GiB, contiguous."""
    from numba_tma.kernels.copy import copy

    rows = []
    for gib in (1, 2, 4):
        x = torch.empty(gib << 30, dtype=torch.uint8, device="cuda").random_()
        y = torch.empty_like(x)
        copy(x, y)
        assert torch.equal(x, y)
        runs = {"numba_tma": lambda: copy(x, y), "torch": lambda: y.copy_(x)}  # noqa: B023
        times = worse_of_two(runs)
        times["copy"] = times["torch"]
        rows.append(rate_row("copy", f"u8 {gib} GiB", 2 * x.nbytes, times))
        x = y = None  # before the next, larger ones
        torch.cuda.empty_cache()
    return rows


def bench_transpose(torch: Any) -> list[dict[str, Any]]:
    """Time transposes of 16384 x 16384, beside torch.compile in two modes."""
    from numba_tma.kernels.transpose import transpose

    rows = []
    for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        x = torch.randn(16384, 16384, device="cuda").to(dtype)
        out, z = torch.empty_like(x), torch.empty_like(x)
        transpose(x, out=out)
        assert torch.equal(out, x.t())
        times = worse_of_two(
            {
                "numba_tma": lambda: transpose(x, out=out),  # noqa: B023
                **compiled_peers(torch, lambda x: x.t().contiguous(), x),
                "copy": lambda: z.copy_(x),  # noqa: B023
            }
        )
        rows.append(rate_row("transpose", f"{name} 16384 x 16384", 2 * x.nbytes, times))
    return rows
