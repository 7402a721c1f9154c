"""Copies and transposes beside torch's."""

from __future__ import annotations

from functools import partial
from types import ModuleType

from numba_tma.tools.bench.compiled import compiled_peers
from numba_tma.tools.bench.results import Cases, Measured, rate
from numba_tma.tools.bench.timing import worse_of_two


def bench_copy(torch: ModuleType, gib: int) -> Measured:
    """Time a contiguous copy."""
    from numba_tma.kernels.copy import copy

    x = torch.empty(gib << 30, dtype=torch.uint8, device="cuda").random_()
    y = torch.empty_like(x)
    copy(x, y)
    assert torch.equal(x, y)
    times = worse_of_two({"numba_tma": lambda: copy(x, y), "torch": lambda: y.copy_(x)})
    times["copy"] = times["torch"]
    return rate(2 * x.nbytes, times)


def bench_transpose(torch: ModuleType, name: str) -> Measured:
    """Time the transpose of a square matrix, beside torch.compile in two modes."""
    from numba_tma.kernels.transpose import transpose

    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[name]
    x = torch.randn(16384, 16384, device="cuda").to(dtype)
    out, z = torch.empty_like(x), torch.empty_like(x)
    transpose(x, out=out)
    assert torch.equal(out, x.t())
    times = worse_of_two(
        {
            "numba_tma": lambda: transpose(x, out=out),
            **compiled_peers(torch, lambda x: x.t().contiguous(), x),
            "copy": lambda: z.copy_(x),
        }
    )
    return rate(2 * x.nbytes, times)


CASES: Cases = {
    **{("copy", f"u8 {gib} GiB"): partial(bench_copy, gib=gib) for gib in (1, 2, 4)},
    **{
        ("transpose", f"{name} 16384 x 16384"): partial(bench_transpose, name=name)
        for name in ("f32", "bf16")
    },
}
