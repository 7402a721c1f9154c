"""Attention of packed sequences beside torch's and FlashAttention-4's: 16 heads of 128, bf16.

Arrays are (rows, heads, columns), the same for all.
"""

from __future__ import annotations

import functools
import importlib
import itertools
from types import ModuleType
from typing import Any

from numba_tma.host.annotations import DeviceArray
from numba_tma.tools.bench.attention import HEADS, check_rows
from numba_tma.tools.bench.peers import offered, shipped, working
from numba_tma.tools.bench.results import Cases, Measured, operations
from numba_tma.tools.bench.survey.calls import Call
from numba_tma.tools.bench.timing import Run, worse_of_two

LENGTHS, DEPTH = (2879, 512, 8192, 1200, 4000, 777, 6007, 1861), 128


def _check(
    torch: ModuleType,
    q: DeviceArray,
    k: DeviceArray,
    v: DeviceArray,
    starts: list[int],
    causal: bool,
    out: DeviceArray,
) -> None:
    """Hold some rows of each sequence to float64."""
    for rows in map(slice, starts, starts[1:]):
        one_q, one_k, one_v, one_out = (t[None, rows] for t in (q, k, v, out))
        check_rows(torch, one_q, one_k, one_v, causal, one_out)


def _torch(
    torch: ModuleType,
    q: DeviceArray,
    k: DeviceArray,
    v: DeviceArray,
    starts: Any,
    longest: int,
    causal: bool,
) -> Run:
    """Return what torch's attention of nested tensors calls."""

    def run() -> Any:
        forward = torch.ops.aten._flash_attention_forward
        return forward(q, k, v, starts, starts, longest, longest, 0.0, causal, False)[0]

    return run


def _flash_attention_4(
    q: DeviceArray, k: DeviceArray, v: DeviceArray, starts: Any, causal: bool
) -> dict[str, Run]:
    attention = importlib.import_module("flash_attn.cute").flash_attn_varlen_func

    def run() -> Any:
        result = attention(q, k, v, cu_seqlens_q=starts, cu_seqlens_k=starts, causal=causal)
        return result[0] if isinstance(result, tuple) else result

    return {"FlashAttention-4": run}


def call_of(torch: ModuleType, lengths: tuple[int, ...], depth: int, causal: bool) -> Call:
    """Return the call on such sequences; what a causal mask leaves out is not counted as done."""
    attention = shipped("attention", "attention_varlen")
    ends = list(itertools.accumulate(lengths, initial=0))
    starts = torch.tensor(ends, device="cuda", dtype=torch.int32)
    q, k, v = (torch.randn((ends[-1], HEADS, depth), device="cuda").bfloat16() for _ in range(3))
    o = torch.full_like(q, float("nan"))

    def ours(**options: Any) -> Any:
        attention(q, k, v, starts, starts, out=o, causal=causal, **options)
        return o

    of_torch = {"torch FLASH": _torch(torch, q, k, v, starts, max(lengths), causal)}
    source = functools.partial(_flash_attention_4, q, k, v, starts, causal)
    return Call(
        ours,
        functools.partial(_check, torch, q, k, v, ends, causal),
        of_torch | offered(named(lengths, depth, causal), {"FlashAttention-4": source}),
        sum(t.nbytes for t in (q, k, v, o)),
        4 * HEADS * sum(n * n for n in lengths) * depth // (2 if causal else 1),
    )


def bench_attention_varlen(torch: ModuleType, lengths: tuple[int, ...], causal: bool) -> Measured:
    """Time attention of such sequences."""
    call = call_of(torch, lengths, DEPTH, causal)
    call.right(call.ours())
    case = f"attention varlen {named(lengths, DEPTH, causal)}"
    peers = working(torch, case, call.peers, call.right)
    return operations(call.operations, worse_of_two({"numba_tma": call.ours, **peers}))


def named(lengths: tuple[int, ...], depth: int, causal: bool) -> str:
    """Return the name of a case."""
    what = f"{len(lengths)} of {min(lengths)} to {max(lengths)}"
    return f"bf16 {'causal' if causal else 'full'} {what} x {HEADS} x {depth}"


CASES: Cases = {
    ("attention varlen", named(LENGTHS, DEPTH, causal)): functools.partial(
        bench_attention_varlen, lengths=LENGTHS, causal=causal
    )
    for causal in (False, True)
}
