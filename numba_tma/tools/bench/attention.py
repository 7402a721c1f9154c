"""Attention beside torch's backends and FlashAttention-4: 4 sequences, 16 heads, bf16 and fp8.

Arrays are (sequences, rows, heads, columns); torch gets copies in its order, heads before rows.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from numba_tma.host.annotations import DeviceArray
from numba_tma.tools.bench.peers import check, check_whole, offered, shipped, working
from numba_tma.tools.bench.results import Cases, Measured, operations
from numba_tma.tools.bench.timing import Run, worse_of_two

BATCH, HEADS = 4, 16
LENGTHS, DEPTHS = (4096, 8192, 16384), (64, 128)
SHAPES = {depth: LENGTHS for depth in DEPTHS} | {256: (4096, 16384)}
E4M3, FP8_SHAPES = "fp8 e4m3", {64: (16384,), 128: (4096, 16384)}
TOLERANCE = 2**-6  # probabilities and result are rounded to bf16
# To e4m3 by up to 2^-4 of each, and mostly by less; where few count, that is an error of the sum.
FP8_TOLERANCE, FP8_SINGLE = 2**-4, 2**-2


def _exact(
    torch: ModuleType,
    q: DeviceArray,
    k: DeviceArray,
    v: DeviceArray,
    rows: DeviceArray,
    causal: bool,
) -> Any:
    """Return these rows of one head's attention, in float64."""
    scores = q[rows].double() @ k.double().T * q.shape[-1] ** -0.5
    if causal:
        later = torch.arange(k.shape[0], device=k.device) > rows[:, None]
        scores.masked_fill_(later, float("-inf"))
    return torch.softmax(scores, -1) @ v.double()


def check_rows(
    torch: ModuleType,
    q: DeviceArray,
    k: DeviceArray,
    v: DeviceArray,
    causal: bool,
    out: DeviceArray,
    narrow: bool = False,
) -> None:
    """Hold some rows of the first and the last head to float64, or to what fp8 makes of it."""
    rows = torch.linspace(0, q.shape[1] - 1, 256, device=q.device).long()
    for sequence, head in ((0, 0), (-1, -1)):
        one_q, one_k, one_v, one_out = (t[sequence, :, head] for t in (q, k, v, out))
        exact = _exact(torch, one_q, one_k, one_v, rows, causal)
        check(torch, one_out[rows], exact, FP8_SINGLE if narrow else TOLERANCE)
        if narrow:
            check_whole(one_out[rows], exact, FP8_TOLERANCE)


def by_torch(
    torch: ModuleType, q: DeviceArray, k: DeviceArray, v: DeviceArray, **options: bool
) -> dict[str, Run]:
    """Return torch's attention, with its own options, by two of its backends."""
    backends = importlib.import_module("torch.nn.attention")
    attention = torch.nn.functional.scaled_dot_product_attention
    arrays = [t.transpose(1, 2).contiguous() for t in (q, k, v)]

    def run(backend: Any) -> Any:
        with backends.sdpa_kernel(backend):
            return attention(*arrays, **options).transpose(1, 2)

    return {
        "cuDNN": functools.partial(run, backends.SDPBackend.CUDNN_ATTENTION),
        "torch FLASH": functools.partial(run, backends.SDPBackend.FLASH_ATTENTION),
    }


def flash_attention_4(
    q: DeviceArray, k: DeviceArray, v: DeviceArray, causal: bool
) -> dict[str, Run]:
    """Return FlashAttention-4, whose order of axes is ours."""
    attention = importlib.import_module("flash_attn.cute").flash_attn_func

    def run() -> Any:
        result = attention(q, k, v, causal=causal)
        return result[0] if isinstance(result, tuple) else result

    return {"FlashAttention-4": run}


def bench_attention(torch: ModuleType, length: int, depth: int, causal: bool) -> Measured:
    """Time attention; what a causal mask leaves out is not counted as done."""
    attention = shipped("attention", "attention")
    shape = (BATCH, length, HEADS, depth)
    q, k, v = (torch.randn(shape, device="cuda").bfloat16() for _ in range(3))
    o = torch.full_like(q, float("nan"))
    ours = functools.partial(attention, q, k, v, out=o, causal=causal)
    right: Callable[[Any], None] = functools.partial(check_rows, torch, q, k, v, causal)
    ours()
    right(o)
    case = f"attention {named(length, depth, causal)}"
    sources = {
        "SDPA": functools.partial(by_torch, torch, q, k, v, is_causal=causal),
        "FlashAttention-4": functools.partial(flash_attention_4, q, k, v, causal),
    }
    peers = working(torch, case, offered(case, sources), right)
    return _rate(length, depth, causal, ours, peers)


def bench_fp8(torch: ModuleType, length: int, depth: int, causal: bool) -> Measured:
    """Time attention of e4m3 whose heads have scales, beside that of bf16 with the same values."""
    attention = shipped("attention", "attention")
    shape = (BATCH, length, HEADS, depth)
    narrow = [torch.randn(shape, device="cuda").to(torch.float8_e4m3fn) for _ in range(3)]
    # Of scales that are powers of 2, bf16 holds all products.
    scales = [torch.rand(BATCH, HEADS, device="cuda").round().add_(1) / 2 for _ in narrow]
    q, k, v = (t.bfloat16() * s.bfloat16()[:, None, :, None] for t, s in zip(narrow, scales))
    o, wide = torch.full_like(q, float("nan")), torch.full_like(q, float("nan"))
    given = dict(zip(("q_scale", "k_scale", "v_scale"), scales))
    ours = functools.partial(attention, *narrow, out=o, causal=causal, **given)
    right: Callable[..., None] = functools.partial(check_rows, torch, q, k, v, causal)
    ours()
    right(o, narrow=True)
    case = f"attention {named(length, depth, causal, E4M3)}"
    of_bf16 = offered(case, {"SDPA": functools.partial(by_torch, torch, q, k, v, is_causal=causal)})
    runs: dict[str, Run] = {
        "numba_tma bf16": functools.partial(attention, q, k, v, out=wide, causal=causal),
        **{f"{name} bf16": run for name, run in of_bf16.items() if name == "cuDNN"},
    }
    peers = working(torch, case, runs, right)
    return _rate(length, depth, causal, ours, peers)


def _rate(length: int, depth: int, causal: bool, ours: Run, peers: dict[str, Run]) -> Measured:
    count = 4 * BATCH * HEADS * length**2 * depth // (2 if causal else 1)
    return operations(count, worse_of_two({"numba_tma": ours, **peers}))


def named(length: int, depth: int, causal: bool, dtype: str = "bf16") -> str:
    """Return the name of a case."""
    return f"{dtype} {'causal' if causal else 'full'} {BATCH} x {length} x {HEADS} x {depth}"


CASES: Cases = {
    ("attention", named(length, depth, causal, dtype)): functools.partial(
        bench, length=length, depth=depth, causal=causal
    )
    for dtype, shapes, bench in (("bf16", SHAPES, bench_attention), (E4M3, FP8_SHAPES, bench_fp8))
    for depth in shapes
    for causal in (False, True)
    for length in shapes[depth]
}
