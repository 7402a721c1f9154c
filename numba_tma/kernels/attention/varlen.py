"""Attention over sequences of any length, packed one after the other without padding.

Cost model: that of `attention`, for each sequence by itself. The lengths lie in device memory and
stay there: no call waits for the device, and a CUDA graph may change them. How the kernel finds
its work is told in `_attention_sequences`.
"""

from __future__ import annotations

from typing import Any

from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels._host.launching import empty, empty_like, launched_again
from numba_tma.kernels.attention.arrays import Heads, Plain, check, logarithms
from numba_tma.kernels.attention.launch import run, sides
from numba_tma.kernels.attention.plan import AttentionPlan

NAME = "attention_varlen"


def attention_varlen(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    out: Any = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: Any = None,
    softcap: float | None = None,
    return_lse: bool = False,
    lse: Any = None,
    stream: Any = None,
    dtype: object = None,
    plan: AttentionPlan | None = None,
) -> Any:
    """Return softmax(scale Q K') V for each sequence and head of packed sequences.

    Parameters
    ----------
    q
        Device array (rows, heads, depth), the queries of all sequences; else as in `attention`.
    k, v
        Device arrays (rows, kv_heads, depth), their keys and values.
    cu_seqlens_q, cu_seqlens_k
        Device arrays of int32, contiguous: where each sequence begins, and after the last where it
        ends: ascending from 0 or more, and no more than there are rows. Rows before the first and
        behind the last belong to none, and are not written. A sequence may be empty; queries
        without a key give 0. They are read when the kernel runs, and not checked.
    out
        Where to write, like `q`; a new array if None.
    causal, scale, window, softcap
        As in `attention`; places are counted from the ends of each sequence by itself.
    return_lse, lse
        As in `attention`, float32 (heads, rows).
    stream, dtype, plan
        As in `attention`.

    Returns
    -------
    Any
        `out`, or with `return_lse` (out, lse).

    Raises
    ------
    ValueError
        If shapes, types or strides do not fit, `scale` or `softcap` is not positive, `window` is
        none, or `plan` has tiles that products do not take.
    """
    out = empty_like(q) if out is None else out
    if return_lse and lse is None:
        _, rows, heads, _ = Heads("q", q, dtype, NAME, packed=True).shape
        lse = empty(q, (heads, rows), as_dtype("f32"))
    left, right = sides(NAME, window, causal)
    arrays = (q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k)
    _attention_varlen(arrays, stream, (scale, softcap, left, right), dtype, plan)
    return (out, lse) if return_lse else out


@launched_again
def _attention_varlen(
    arrays: tuple[Any, ...],
    stream: Any,
    numbers: tuple[Any, ...],
    dtype: object,
    plan: AttentionPlan | None,
) -> None:
    names = ("q", "k", "v", "out")
    q, k, v, out = (Heads(n, a, dtype, NAME, packed=True) for n, a in zip(names, arrays))
    check(q, k, v, out)
    lse = None if arrays[4] is None else logarithms(arrays[4], q)
    starts = _starts("cu_seqlens_q", arrays[5]), _starts("cu_seqlens_k", arrays[6])
    if starts[0].shape != starts[1].shape:
        raise ValueError(
            f"{NAME}(): cu_seqlens_q has shape {starts[0].shape}, but cu_seqlens_k "
            f"{starts[1].shape}; they have an element for each sequence, and one more"
        )
    run(q, k, v, out, lse, starts, stream, numbers, plan)


def _starts(name: str, array: Any) -> Any:
    """Return what tells where sequences begin, as a Numba array, or raise."""
    given = Plain(array)
    if len(given.shape) != 1 or not given.shape[0] or not given.holds(given.shape, "i32"):
        raise ValueError(
            f"{NAME}(): {name} has {given}; it takes "
            "(sequences + 1,) of i32, contiguous, as of cumsum: where each sequence begins, and "
            "the last one ends"
        )
    return given.flat()
