"""Attention beside torch's backends and FlashAttention-4: 4 sequences, 16 heads, bf16.

Arrays are (sequences, rows, heads, columns); torch gets copies in its order, heads before rows.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from numba_tma.bench.peers import check, offered, shipped, working
from numba_tma.bench.results import Cases, Measured, operations
from numba_tma.bench.timing import Run, worse_of_two

BATCH, HEADS = 4, 16
LENGTHS, DEPTHS = (4096, 8192, 16384), (64, 128)
TOLERANCE = 2**-6  # probabilities and result are rounded to bf16


def _exact(torch: Any, q: Any, k: Any, v: Any, rows: Any, causal: bool) -> Any:
    """Return these rows of one head's attention, in float64."""
    scores = q[rows].double() @ k.double().T * q.shape[-1] ** -0.5
    if causal:
        later = torch.arange(k.shape[0], device=k.device) > rows[:, None]
        scores.masked_fill_(later, float("-inf"))
    return torch.softmax(scores, -1) @ v.double()


def _check(torch: Any, q: Any, k: Any, v: Any, causal: bool, out: Any) -> None:
    """Hold some rows of the first and the last head to float64."""
    rows = torch.linspace(0, q.shape[1] - 1, 256, device=q.device).long()
    for sequence, head in ((0, 0), (-1, -1)):
        one_q, one_k, one_v, one_out = (t[sequence, :, head] for t in (q, k, v, out))
        exact = _exact(torch, one_q, one_k, one_v, rows, causal)
        check(torch, one_out[rows], exact, TOLERANCE)


def _torch(torch: Any, q: Any, k: Any, v: Any, causal: bool) -> dict[str, Run]:
    """Return torch's attention by two of its backends."""
    backends = importlib.import_module("torch.nn.attention")
    attention = torch.nn.functional.scaled_dot_product_attention
    arrays = [t.transpose(1, 2).contiguous() for t in (q, k, v)]

    def run(backend: Any) -> Any:
        with backends.sdpa_kernel(backend):
            return attention(*arrays, is_causal=causal).transpose(1, 2)

    return {
        "cuDNN": functools.partial(run, backends.SDPBackend.CUDNN_ATTENTION),
        "torch FLASH": functools.partial(run, backends.SDPBackend.FLASH_ATTENTION),
    }


def _flash_attention_4(q: Any, k: Any, v: Any, causal: bool) -> dict[str, Run]:
    """Return FlashAttention-4, whose order of axes is ours."""
    attention = importlib.import_module("flash_attn.cute").flash_attn_func

    def run() -> Any:
        result = attention(q, k, v, causal=causal)
        return result[0] if isinstance(result, tuple) else result

    return {"FlashAttention-4": run}


def bench_attention(torch: Any, length: int, depth: int, causal: bool) -> Measured:
    """Time attention; what a causal mask leaves out is not counted as done."""
    attention = shipped("attention", "attention")
    shape = (BATCH, length, HEADS, depth)
    q, k, v = (torch.randn(shape, device="cuda").bfloat16() for _ in range(3))
    o = torch.full_like(q, float("nan"))
    ours = functools.partial(attention, q, k, v, out=o, causal=causal)
    right: Callable[[Any], None] = functools.partial(_check, torch, q, k, v, causal)
    ours()
    right(o)
    case = f"attention {_named(length, depth, causal)}"
    sources = {
        "SDPA": functools.partial(_torch, torch, q, k, v, causal),
        "FlashAttention-4": functools.partial(_flash_attention_4, q, k, v, causal),
    }
    peers = working(torch, case, offered(case, sources), right)
    count = 4 * BATCH * HEADS * length**2 * depth // (2 if causal else 1)
    return operations(count, worse_of_two({"numba_tma": ours, **peers}))


def _named(length: int, depth: int, causal: bool) -> str:
    return f"bf16 {'causal' if causal else 'full'} {BATCH} x {length} x {HEADS} x {depth}"


CASES: Cases = {
    ("attention", _named(length, depth, causal)): functools.partial(
        bench_attention, length=length, depth=depth, causal=causal
    )
    for depth in DEPTHS
    for causal in (False, True)
    for length in LENGTHS
}
