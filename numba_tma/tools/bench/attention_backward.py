"""Gradients of attention beside those of torch's backends: 4 sequences, 16 heads, bf16.

Each has the result of its own forward pass, which is not timed.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from numba_tma.host.annotations import DeviceArray
from numba_tma.tools.bench.attention import BATCH, DEPTHS, HEADS, LENGTHS, TOLERANCE, named
from numba_tma.tools.bench.peers import check, check_whole, offered, shipped, working
from numba_tma.tools.bench.results import Cases, Measured, operations
from numba_tma.tools.bench.timing import Run, worse_of_two

SINGLE = 2**-3  # what a single value may be wrong by, of its size and of the others'
ROWS_AT_ONCE = 4096  # whose scores are held in float64
BACKENDS = {"cuDNN": "CUDNN_ATTENTION", "torch FLASH": "FLASH_ATTENTION"}


def _exact(
    torch: ModuleType,
    dout: DeviceArray,
    q: DeviceArray,
    k: DeviceArray,
    v: DeviceArray,
    causal: bool,
) -> list[Any]:
    """Return the gradients with respect to one head's q, k and v, in float64."""
    (length, depth), scale = q.shape, q.shape[-1] ** -0.5
    keys, values = k.double(), v.double()
    dq, dk, dv = [], 0 * keys, 0 * values
    for rows in torch.arange(length, device=q.device).split(ROWS_AT_ONCE):
        queries, grads = q[rows].double(), dout[rows].double()
        scores = queries @ keys.T * scale
        if causal:
            later = torch.arange(length, device=q.device) > rows[:, None]
            scores.masked_fill_(later, float("-inf"))
        weights = torch.softmax(scores, -1)
        delta = (grads * (weights @ values)).mean(-1, keepdim=True) * depth
        ds = weights * (grads @ values.T - delta) * scale
        dq.append(ds @ keys)
        dk = dk + ds.T @ queries
        dv = dv + weights.T @ grads
    return [torch.cat(dq), dk, dv]


def check_gradients(
    torch: ModuleType, arrays: tuple[Any, ...], causal: bool, got: tuple[Any, ...]
) -> None:
    """Hold the gradients of the first and the last head of k to float64, by the size of each.

    A query that sees few keys has errors far above the others': they come from the rounding of the
    forward's result, of which `delta` is made. So single values are held loosely, and all of a
    gradient together as everything else.
    """
    dout, q, k, v = arrays
    group = q.shape[2] // k.shape[2]
    for sequence, head in ((0, 0), (-1, k.shape[2] - 1)):
        heads = range(head * group, (head + 1) * group)
        key, value = k[sequence, :, head], v[sequence, :, head]
        parts = [
            _exact(torch, dout[sequence, :, h], q[sequence, :, h], key, value, causal)
            for h in heads
        ]
        pairs = [(got[0][sequence, :, h], dq) for h, (dq, _, _) in zip(heads, parts)]
        for i in (1, 2):  # sums over the heads that share a key
            pairs.append((got[i][sequence, :, head], sum(part[i] for part in parts)))
        for result, gradient in pairs:
            one, flat = result.reshape(1, -1), gradient.reshape(1, -1)
            check(torch, one, flat, SINGLE)
            check_whole(one, flat, TOLERANCE)


def by_torch(name: str, torch: ModuleType, arrays: tuple[Any, ...], causal: bool) -> dict[str, Run]:
    """Return the gradients of torch's attention by one of its backends."""
    backends = importlib.import_module("torch.nn.attention")
    dout, *qkv = (t.transpose(1, 2).contiguous() for t in arrays)
    leaves = [t.requires_grad_() for t in qkv]
    shared = {"enable_gqa": True} if qkv[0].shape[1] != qkv[1].shape[1] else {}
    with backends.sdpa_kernel(getattr(backends.SDPBackend, BACKENDS[name])):
        out = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=causal, **shared)

    def run() -> Any:
        found = torch.autograd.grad(out, leaves, dout, retain_graph=True)
        return tuple(t.transpose(1, 2) for t in found)

    return {name: run}


def bench_attention_backward(torch: ModuleType, length: int, depth: int, causal: bool) -> Measured:
    """Time the gradients; what a causal mask leaves out is not counted as done."""
    attention = shipped("attention", "attention")
    backward = shipped("attention", "attention_backward")
    shape = (BATCH, length, HEADS, depth)
    arrays = tuple(torch.randn(shape, device="cuda").bfloat16() for _ in range(4))
    dout, q, k, v = arrays
    out, lse = attention(q, k, v, causal=causal, return_lse=True)
    into = {name: torch.full_like(q, float("nan")) for name in ("dq", "dk", "dv")}
    ours = functools.partial(backward, dout, q, k, v, out, lse, causal=causal, **into)
    right: Callable[[Any], None] = functools.partial(check_gradients, torch, arrays, causal)
    ours()
    right(tuple(into.values()))
    case = f"attention backward {named(length, depth, causal)}"
    sources = {name: functools.partial(by_torch, name, torch, arrays, causal) for name in BACKENDS}
    peers = working(torch, case, offered(case, sources), right)
    count = 10 * BATCH * HEADS * length**2 * depth // (2 if causal else 1)
    return operations(count, worse_of_two({"numba_tma": ours, **peers}))


CASES: Cases = {
    ("attention backward", named(length, depth, causal)): functools.partial(
        bench_attention_backward, length=length, depth=depth, causal=causal
    )
    for depth in DEPTHS
    for causal in (False, True)
    for length in LENGTHS
}
