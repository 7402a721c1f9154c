"""Copies beside torch's."""

from __future__ import annotations

from typing import Any

from numba_tma.bench.report import rate_row
from numba_tma.bench.timing import worse_of_two


def bench_copy(torch: Any) -> list[dict[str, Any]]:
    """Time a copy of 2 GiB, contiguous."""
    from numba_tma.kernels.copy import copy

    x = torch.empty(2 << 30, dtype=torch.uint8, device="cuda").random_()
    y = torch.empty_like(x)
    copy(x, y)
    assert torch.equal(x, y)
    times = worse_of_two({"numba_tma": lambda: copy(x, y), "torch": lambda: y.copy_(x)})
    return [rate_row("copy", "u8 2 GiB", 2 * x.nbytes, times | {"copy": times["torch"]})]
