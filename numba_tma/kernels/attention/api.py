"""Attention: softmax(scale Q K') V for each head, by FlashAttention on the tensor cores of Hopper.

Cost model: the two products take 4 x queries x keys x depth operations, and nothing of the size
queries x keys leaves the multiprocessor: Q, K, V and the result move once from and to the L2 cache
for each block of queries. What is computed beside the products, above all one exponential for each
score, hides behind them. How it works is told in `_attention_kernel`, and in
docs/kernels/attention.md.
"""

from __future__ import annotations

from typing import Any

from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels._host.launching import empty, empty_like, launched_again
from numba_tma.kernels.attention.arrays import Heads, check, heads_scale, logarithms
from numba_tma.kernels.attention.launch import run, sides
from numba_tma.kernels.attention.plan import E4M3, AttentionPlan


def attention(
    q: Any,
    k: Any,
    v: Any,
    out: Any = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: Any = None,
    softcap: float | None = None,
    return_lse: bool = False,
    lse: Any = None,
    q_scale: Any = None,
    k_scale: Any = None,
    v_scale: Any = None,
    stream: Any = None,
    dtype: object = None,
    out_dtype: object = None,
    plan: AttentionPlan | None = None,
) -> Any:
    """Return softmax(scale Q K') V for each sequence and head.

    Parameters
    ----------
    q
        Device array (batch, queries, heads, depth) of bf16 or f16, with a depth of 64, 96, 128 or
        256, or of e4m3, with a depth of 64 or 128: torch, CuPy, numba, or anything with
        ``__cuda_array_interface__`` or ``__dlpack__``. The depth is contiguous; the other axes may
        have any strides that are multiples of 16 B, so that views of (batch, heads, queries, depth)
        do.
    k, v
        Device arrays (batch, keys, kv_heads, depth) of the same type. Each of their heads serves
        heads / kv_heads neighbouring ones of `q`.
    out
        Where to write, like `q`, for e4m3 of `out_dtype`; a new array if None.
    causal
        Whether a query sees only the keys up to its own place, counted from the ends of both
        sequences: the last query sees all keys.
    scale
        A positive number that scores are multiplied with; 1 / sqrt(depth) if None.
    window
        How many keys beside its own place a query sees: (left, right), each 0 or more, or None for
        no limit. A causal mask is (None, 0), and takes away what `right` has. A number n is (n, n),
        and with `causal` (n, 0): FlashAttention's window_size, and n keys and the query's own.
    softcap
        A positive number c: scores become c tanh(score / c). None: they stay as they are.
    return_lse
        Whether to return, as well, the natural logarithm of the sum of exp(score) of each query:
        float32 (batch, heads, queries), -inf for a query that sees no key.
    lse
        Where to write these logarithms, a contiguous device array; a new one if None.
    q_scale, k_scale, v_scale
        For e4m3: what all numbers of a head are multiplied with, positive float32 (batch, heads) of
        the device, for `k` and `v` (batch, kv_heads), contiguous; 1 if None. They are read when the
        kernel runs, and not checked.
    stream
        A numba, torch or CuPy stream; the default stream if None.
    dtype
        What the bits of the arrays mean where their own type cannot say it: bf16 held as uint16,
        e4m3 as uint8.
    out_dtype
        Type of the result of e4m3, bf16 or f16; that of `out` if None, or bf16.
    plan
        How to cut the work up; what is measured to be fast if None.

    Returns
    -------
    Any
        `out`, or with `return_lse` (out, lse). Products are summed and the softmax is computed in
        float32; the weights are rounded to the arrays' type before they are multiplied with V. For
        e4m3 the tensor cores keep about 14 bits of a sum, so that they sum up P V of one tile of
        keys at a time. However many tiles there are, no more than about 2**-6 of a sum of values of
        the same sign is lost, and about 2**-10 if weights are alike. A query all of whose scores
        are -inf, because it sees no key or by its inputs, gives 0.

    Raises
    ------
    ValueError
        If shapes, types or strides do not fit, `scale` or `softcap` is not positive, `window` is
        none, or `plan` has tiles that products do not take, or no parts.

    Notes
    -----
    Where queries are few, their keys are shared out to several blocks, and a second kernel adds up
    the parts of results. These take a workspace, as e4m3 takes one of the size of `v`; a graph that
    captures the call keeps it.
    """
    if out is None:
        out, out_dtype = _result_like(q, dtype, out_dtype)
    if return_lse and lse is None:
        batch, queries, heads, _ = Heads("q", q, dtype).shape
        lse = empty(q, (batch, heads, queries), as_dtype("f32"))
    left, right = sides("attention", window, causal)
    arrays = (q, k, v, out, lse, q_scale, k_scale, v_scale)
    _attention(arrays, stream, (scale, softcap, left, right), dtype, out_dtype, plan)
    return (out, lse) if return_lse else out


def _result_like(q: Any, dtype: object, out_dtype: object) -> tuple[Any, object]:
    """Return a new array for the result, and what its bits are if its own type may not say it."""
    given = Heads("q", q, dtype)
    if given.dtype is not E4M3:
        return empty_like(q), out_dtype
    kind = as_dtype(out_dtype or "bf16")
    return empty(q, given.shape, kind), kind


@launched_again
def _attention(
    arrays: tuple[Any, ...],
    stream: Any,
    numbers: tuple[Any, ...],
    dtype: object,
    out_dtype: object,
    plan: AttentionPlan | None,
) -> list[Any]:
    q, k, v = (Heads(n, a, dtype) for n, a in zip(("q", "k", "v"), arrays))
    is_fp8 = q.dtype is E4M3
    out = Heads("out", arrays[3], out_dtype if is_fp8 else dtype)
    check(q, k, v, out, narrow=True)
    scaled = [pair for pair in zip(arrays[5:], (q, k, v)) if pair[0] is not None]
    if not is_fp8 and (scaled or out_dtype not in (None, q.dtype, q.dtype.name)):
        raise ValueError(
            f"attention(): q is {q.dtype}; q_scale, k_scale, v_scale and out_dtype are for e4m3: "
            "leave them out"
        )
    scales = {f"{x.name}_scale": heads_scale(f"{x.name}_scale", a, x) for a, x in scaled}
    lse = None if arrays[4] is None else logarithms(arrays[4], q)
    return run(q, k, v, out, lse, None, stream, numbers, plan, scales)
