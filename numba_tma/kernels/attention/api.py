"""`attention` and `attention_varlen`: FlashAttention's forward pass on the tensor cores.

Cost model: the two products take 4 x queries x keys x head dim operations. Nothing of the size
queries x keys leaves the SM: Q, K, V and O move once between the L2 cache and an SM for each tile
of queries. What is computed beside the products, above all one exponential for each score, overlaps
with them. `kernel.py` is the page to read, for Blackwell `tcgen05_kernel.py`;
docs/kernels/attention.md has the details.

`attention_varlen` costs the same for each sequence. The lengths stay in device memory: no call
waits for the device, and a CUDA graph may change them.
"""

from __future__ import annotations

from typing import Any

from numba_tma.host.annotations import DeviceArray, DTypeLike, StreamLike
from numba_tma.host.arrays import option_dtype
from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.values import FLAG, checked
from numba_tma.kernels._host.memo import launched_again
from numba_tma.kernels._host.outputs import check_outputs, empty, empty_like
from numba_tma.kernels.attention.arrays import (
    check,
    read_head_scales,
    read_heads,
    read_lse,
    read_starts,
)
from numba_tma.kernels.attention.launch import ScoreOptions, launch_attention, sides
from numba_tma.kernels.attention.plan import E4M3
from numba_tma.kernels.attention.tcgen05_plan import AnyAttentionPlan

F32 = as_dtype("f32")
Arrays = tuple[DeviceArray | None, ...]
Result = Any  # an array, or a pair of arrays


def attention(
    q: DeviceArray,
    k: DeviceArray,
    v: DeviceArray,
    out: DeviceArray | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: int | tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    return_lse: bool = False,
    lse: DeviceArray | None = None,
    q_scale: DeviceArray | None = None,
    k_scale: DeviceArray | None = None,
    v_scale: DeviceArray | None = None,
    stream: StreamLike = None,
    dtype: DTypeLike | None = None,
    out_dtype: DTypeLike | None = None,
    plan: AnyAttentionPlan | None = None,
) -> Result:
    """Return softmax(scale Q K') V for each sequence and head.

    Parameters
    ----------
    q
        Device array (batch, queries, heads, head dim): torch, CuPy, numba, or anything with
        ``__cuda_array_interface__`` or ``__dlpack__``. bf16 or f16 with a head dim of 64, 96, 128
        or 256, or e4m3 with a head dim of 64 or 128. The head dim is contiguous. The other strides
        are any multiples of 16 B, so views of (batch, heads, queries, head dim) are accepted.
    k, v
        Device arrays (batch, keys, kv_heads, head dim) of the same type. Each of their heads serves
        heads / kv_heads neighbouring heads of `q`.
    out
        Where to write: like `q`, for e4m3 of type `out_dtype`; a new array if None.
    causal
        Whether a query sees only keys up to its own position. Positions are counted from the ends
        of both sequences: the last query sees all keys.
    scale
        Positive number that scores are multiplied with; 1 / sqrt(head dim) if None.
    window
        (left, right): the numbers of keys before and after its own position that a query sees, each
        0 or more, or None for no limit. One number n means (n, n), and with `causal` (n, 0).
        `causal` replaces `right` by 0.
    softcap
        Positive number c: a score becomes c tanh(score / c). None leaves scores as they are.
    return_lse
        Whether to return, as well, the natural logarithm of the sum of exp(score) of each query:
        float32 (batch, heads, queries), -inf for a query that sees no key.
    lse
        Contiguous device array to write these logarithms to; a new one if None.
    q_scale, k_scale, v_scale
        For e4m3: factors of the heads, positive float32 on the device, contiguous, of shape (batch,
        heads), for `k` and `v` (batch, kv_heads); 1 if None. The kernel reads them; they are not
        checked.
    stream
        A numba, torch or CuPy stream; the default stream if None.
    dtype
        Meaning of the arrays' bits where their own type cannot say it: bf16 held as uint16, e4m3 as
        uint8.
    out_dtype
        Type of the result of e4m3 inputs, bf16 or f16; that of `out` if None, or bf16.
    plan
        How the work is cut into tiles, stages and splits: an `AttentionPlan` on Hopper, a
        `Tcgen05AttentionPlan` on Blackwell (compute capability 10.0, 10.3 and 11.0), which has no
        splits, e4m3 or head dim 256. The fastest known plan if None; on Blackwell none is measured.

    Returns
    -------
    Any
        `out`, or with `return_lse` (out, lse). Products are summed and the softmax is computed in
        float32; P is rounded to the arrays' type before it is multiplied with V. For e4m3 the
        tensor cores keep about 14 bits of a sum, so they sum P V of one K/V tile at a time: for any
        number of tiles, at most about 2**-6 of a sum of values of one sign is lost, and about
        2**-10 if weights are alike. A query whose scores are all -inf, because it sees no key or by
        its inputs, gives 0.

    Raises
    ------
    TypeError
        If an argument is no array in GPU memory, or `plan` is of another class.
    ValueError
        If shapes, types or strides do not fit, `scale` or `softcap` is not positive, `window` is
        none, the GPU's kernel does not have the problem, or the kernels cannot follow `plan`.

    Notes
    -----
    On Hopper, where there are fewer tiles of queries than SMs, the keys of a tile are split over
    several blocks, and a second kernel combines the results (split-K/V). That takes a workspace,
    and e4m3 takes one of the size of `v`. A graph that captures the call keeps it.
    """
    out_dtype = option_dtype("attention", "out_dtype", out_dtype)
    if out is None:
        out, out_dtype = _output_like(q, dtype, out_dtype)
    if checked("attention", "return_lse", return_lse, FLAG) and lse is None:
        batch, queries, heads, _ = read_heads("attention", "q", q, dtype).shape
        lse = empty("attention", "q", q, (batch, heads, queries), F32, "lse")
    left, right = sides("attention", window, causal)
    arrays = (q, k, v, out, lse, q_scale, k_scale, v_scale)
    options = ScoreOptions(scale, softcap, left, right)
    _attention(arrays, stream, options, dtype, out_dtype, plan)
    return (out, lse) if return_lse else out


def _output_like(
    q: DeviceArray, dtype: DTypeLike | None, out_dtype: DType | None
) -> tuple[DeviceArray, DType | None]:
    """Return a new array for O, and its type where the array's own type may not say it."""
    given = read_heads("attention", "q", q, dtype)
    if given.dtype is not E4M3:
        return empty_like("attention", "q", q), out_dtype
    kind = out_dtype or as_dtype("bf16")
    return empty("attention", "q", q, given.shape, kind), kind


@launched_again("attention", "q", "k", "v", "out", "lse", "q_scale", "k_scale", "v_scale")
def _attention(
    arrays: Arrays,
    stream: StreamLike,
    options: ScoreOptions,
    dtype: DTypeLike | None,
    out_dtype: DType | None,
    plan: AnyAttentionPlan | None,
) -> list[DeviceArray]:
    """Read and check the arrays, and launch; return the workspace."""
    q, k, v = (read_heads("attention", n, a, dtype) for n, a in zip("qkv", arrays))
    is_fp8 = q.dtype is E4M3
    out = read_heads("attention", "out", arrays[3], out_dtype if is_fp8 else dtype)
    check(q, k, v, out, fp8=True)
    scaled = [(x, scale) for x, scale in zip((q, k, v), arrays[5:]) if scale is not None]
    if not is_fp8 and (scaled or out_dtype not in (None, q.dtype)):
        raise ValueError(
            f"attention(): q is {q.dtype}; q_scale, k_scale, v_scale and out_dtype are for e4m3: "
            "leave them out"
        )
    scales = {f"{x.name}_scale": read_head_scales(x, scale) for x, scale in scaled}
    lse = None if arrays[4] is None else read_lse(q, arrays[4])
    check_outputs([out, lse], [q, k, v, *scales.values()])
    return launch_attention(q, k, v, out, lse, stream, options, plan, scales=scales)


def attention_varlen(
    q: DeviceArray,
    k: DeviceArray,
    v: DeviceArray,
    cu_seqlens_q: DeviceArray,
    cu_seqlens_k: DeviceArray,
    out: DeviceArray | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: int | tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    return_lse: bool = False,
    lse: DeviceArray | None = None,
    stream: StreamLike = None,
    dtype: DTypeLike | None = None,
    plan: AnyAttentionPlan | None = None,
) -> Result:
    """Return softmax(scale Q K') V for each sequence and head of packed sequences.

    Parameters
    ----------
    q
        Device array (rows, heads, head dim), the queries of all sequences; else as in `attention`,
        in bf16 or f16.
    k, v
        Device arrays (rows, kv_heads, head dim), their keys and values.
    cu_seqlens_q, cu_seqlens_k
        Contiguous device arrays of int32, (sequences + 1): the first row of each sequence, and the
        end of the last. They ascend from 0 or more and do not exceed the number of rows. Rows
        before the first sequence and after the last are not written. A sequence may be empty;
        queries without a key give 0. The kernel reads them; they are not checked.
    out
        Where to write, like `q`; a new array if None.
    causal, scale, window, softcap
        As in `attention`; positions are counted from the ends of each sequence.
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
    TypeError
        If an argument is no array in GPU memory, or `plan` is of another class.
    ValueError
        If shapes, types or strides do not fit, `scale` or `softcap` is not positive, `window` is
        none, the GPU's kernel does not have the problem, or the kernels cannot follow `plan`.
    """
    out = empty_like("attention_varlen", "q", q) if out is None else out
    if checked("attention_varlen", "return_lse", return_lse, FLAG) and lse is None:
        _, rows, heads, _ = read_heads("attention_varlen", "q", q, dtype, packed=True).shape
        lse = empty("attention_varlen", "q", q, (heads, rows), F32, "lse")
    left, right = sides("attention_varlen", window, causal)
    arrays = (q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k)
    options = ScoreOptions(scale, softcap, left, right)
    _attention_varlen(arrays, stream, options, dtype, plan)
    return (out, lse) if return_lse else out


@launched_again("attention_varlen", "q", "k", "v", "out", "lse", "cu_seqlens_q", "cu_seqlens_k")
def _attention_varlen(
    arrays: Arrays,
    stream: StreamLike,
    options: ScoreOptions,
    dtype: DTypeLike | None,
    plan: AnyAttentionPlan | None,
) -> list[DeviceArray]:
    """Read and check the arrays, and launch; return the workspace."""
    name, names = "attention_varlen", ("q", "k", "v", "out")
    q, k, v, out = (read_heads(name, n, a, dtype, packed=True) for n, a in zip(names, arrays))
    check(q, k, v, out, packed=True)
    lse = None if arrays[4] is None else read_lse(q, arrays[4], packed=True)
    starts_q = read_starts(name, "cu_seqlens_q", arrays[5])
    starts_k = read_starts(name, "cu_seqlens_k", arrays[6])
    if starts_q.shape != starts_k.shape:
        raise ValueError(
            f"{name}(): cu_seqlens_q has shape {starts_q.shape}, but cu_seqlens_k "
            f"{starts_k.shape}; they have an element for each sequence, and one more"
        )
    check_outputs([out, lse], [q, k, v, starts_q, starts_k])
    starts = starts_q, starts_k
    return launch_attention(q, k, v, out, lse, stream, options, plan, starts=starts)
