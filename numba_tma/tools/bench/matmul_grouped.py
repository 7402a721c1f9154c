"""Grouped matmuls, as of the experts of DeepSeek-V3, beside torch's and beside a matmul for each.

Rows go to groups at random, so that groups are of about the same size, and fill no tiles. All have
M x N x K in their names, M of all groups, and weights as layers hold them, a row of K for each N.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import numpy as np

from numba_tma.host.annotations import DeviceArray
from numba_tma.tools.bench.matmul import BF16_TOLERANCE, E4M3, FP8_TOLERANCE, check_product
from numba_tma.tools.bench.peers import shipped, working
from numba_tma.tools.bench.results import Cases, Measured, operations
from numba_tma.tools.bench.timing import Run, worse_of_two

TOKENS, GROUPS = 16384, (8, 64)
GATE_UP, DOWN = (4096, 7168), (7168, 2048)  # N and K


def _ends(groups: int) -> list[int]:
    """Return where each group ends, the same at each run."""
    sizes = np.random.default_rng(0).multinomial(TOKENS, np.ones(groups) / groups)
    return [int(end) for end in sizes.cumsum()]


def _parts(w: DeviceArray, ends: list[int]) -> list[tuple[Any, slice]]:
    """Return the weights of each group, and its rows."""
    return list(zip(w, map(slice, [0, *ends], ends)))


def _check(
    torch: ModuleType,
    tolerance: float,
    a: DeviceArray,
    w: DeviceArray,
    ends: list[int],
    c: DeviceArray,
) -> None:
    for weights, rows in _parts(w, ends):
        check_product(torch, tolerance, a[rows], weights, c[rows])


def _one_by_one(
    torch: ModuleType, a: DeviceArray, w: DeviceArray, ends: list[int], out: DeviceArray
) -> Run:
    """Return a matmul for each group, of views that are made before, as they cost the host time."""
    views = [(a[rows], weights.T, out[rows]) for weights, rows in _parts(w, ends)]

    def run() -> Any:
        for left, right, into in views:
            torch.mm(left, right, out=into)
        return out

    return run


def _peers(
    torch: ModuleType,
    a: DeviceArray,
    w: DeviceArray,
    ends: list[int],
    offsets: Any,
    out: DeviceArray,
) -> dict[str, Run]:
    """Return what takes the same groups; torch scales each row and column of fp8, here by 1."""
    groups = {"offs": offsets, "out_dtype": out.dtype}
    if a.dtype == torch.float8_e4m3fn:
        ones = (torch.ones(*n, device="cuda") for n in (a.shape[:1], w.shape[:2]))
        given, fast = (a, w.mT, *ones), {"use_fast_accum": True}
        return {"torch": lambda: torch._scaled_grouped_mm(*given, **groups, **fast)}
    return {
        "torch": lambda: torch._grouped_mm(a, w.mT, **groups),
        "cuBLAS, group by group": _one_by_one(torch, a, w, ends, out),
    }


def bench_grouped(torch: ModuleType, groups: int, layer: tuple[int, int], dtype: str) -> Measured:
    """Time the products of groups of rows, each with its own weights, to bf16."""
    matmul = shipped("matmul", "grouped_matmul")
    kind, tolerance = {
        "bf16": (torch.bfloat16, BF16_TOLERANCE),
        E4M3: (torch.float8_e4m3fn, FP8_TOLERANCE),
    }[dtype]
    (N, K), ends = layer, _ends(groups)
    a = torch.randn(TOKENS, K, device="cuda").to(kind)
    w = torch.randn(groups, N, K, device="cuda").to(kind)
    offsets = torch.tensor(ends, device="cuda", dtype=torch.int32)
    size, poison = (TOKENS, N), float("nan")
    c, d = (torch.full(size, poison, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    ours = functools.partial(matmul, a, w.mT, out=c, offsets=offsets)
    right = functools.partial(_check, torch, tolerance, a, w, ends)
    ours()
    right(c)
    case = f"grouped matmul {_named(groups, layer, dtype)}"
    peers = working(torch, case, _peers(torch, a, w, ends, offsets, d), right)
    return operations(2 * TOKENS * N * K, worse_of_two({"numba_tma": ours, **peers}))


def _named(groups: int, layer: tuple[int, int], dtype: str) -> str:
    return f"{dtype} {groups} groups {TOKENS} x {layer[0]} x {layer[1]}"


CASES: Cases = {
    ("grouped matmul", _named(groups, layer, dtype)): functools.partial(
        bench_grouped, groups=groups, layer=layer, dtype=dtype
    )
    for dtype, layer in (("bf16", GATE_UP), ("bf16", DOWN), (E4M3, GATE_UP))
    for groups in GROUPS
}
