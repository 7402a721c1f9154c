"""Attention: softmax(scale Q K') V for each head, by FlashAttention on the tensor cores of Hopper.

Cost model: the two products take 4 x queries x keys x depth operations, and nothing of the size
queries x keys leaves the multiprocessor: Q, K, V and the result move once from and to the L2 cache
for each block of queries. What is computed beside the products, above all one exponential for each
score, hides behind them. How it works is told in `_attention_kernel`, and in
docs/kernels_attention.md.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from numba_tma._array_interface import contiguous_strides, read_array, readers
from numba_tma._environment import simulated
from numba_tma.dtypes import DType, as_dtype
from numba_tma.kernels._attention_kernel import More, attention_kernel
from numba_tma.kernels._attention_plan import DEPTHS, DTYPES, Plan, Problem, plan_for
from numba_tma.kernels._host import View, empty, empty_like, launch, launched_again, multiprocessors
from numba_tma.mma_rules import ROWS
from numba_tma.tensor_map import tensor_map

AXES = ("batch", "sequence", "heads", "depth")


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
    stream: Any = None,
    dtype: object = None,
    plan: Plan | None = None,
) -> Any:
    """Return softmax(scale Q K') V for each sequence and head.

    Parameters
    ----------
    q
        Device array (batch, queries, heads, depth) of bf16 or f16, with a depth of 64, 96 or 128:
        torch, CuPy, numba, or anything with ``__cuda_array_interface__`` or ``__dlpack__``.
        The depth is contiguous; the other axes may have any strides that are multiples of 16 B, so
        that views of (batch, heads, queries, depth) do.
    k, v
        Device arrays (batch, keys, kv_heads, depth) of the same type. Each of their heads serves
        heads / kv_heads neighbouring ones of `q`.
    out
        Where to write, like `q`; a new array if None.
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
    stream
        A numba, torch or CuPy stream; the default stream if None.
    dtype
        What the bits of the arrays mean where their own type cannot say it: bf16 held as uint16.
    plan
        How to cut the work up; what is measured to be fast if None.

    Returns
    -------
    Any
        `out`, or with `return_lse` (out, lse). Products are summed and the softmax is computed in
        float32; the weights are rounded to the arrays' type before they are multiplied with V. A
        query all of whose scores are -inf, because it sees no key or by its inputs, gives 0.

    Raises
    ------
    ValueError
        If shapes, types or strides do not fit, `scale` or `softcap` is not positive, or
        `window` is none.
    """
    out = empty_like(q) if out is None else out
    if return_lse and lse is None:
        batch, queries, heads, _ = Heads("q", q, dtype).shape
        lse = empty(q, (batch, heads, queries), as_dtype("f32"))
    left, right = _sides(window, causal)
    _attention((q, k, v, out, lse), stream, (scale, softcap, left, right), dtype, plan)
    return (out, lse) if return_lse else out


@launched_again
def _attention(
    arrays: tuple[Any, ...],
    stream: Any,
    numbers: tuple[Any, ...],
    dtype: object,
    plan: Plan | None,
) -> None:
    q, k, v, out = (Heads(n, a, dtype) for n, a in zip(("q", "k", "v", "out"), arrays))
    _check(q, k, v, out)
    lse = None if arrays[4] is None else _lse(arrays[4], q)
    (batch, queries, heads, depth), (_, keys, kv_heads, _) = q.shape, k.shape
    scale, softcap, left, right = numbers
    scale = 1 / math.sqrt(depth) if scale is None else scale
    if not 0 < scale < math.inf:
        raise ValueError(
            f"attention(scale={scale}): the scale is a positive number; negate q for a negative one"
        )
    if softcap is not None and not 0 < softcap < math.inf:
        raise ValueError(
            f"attention(softcap={softcap}): the cap is a positive number, or None for none"
        )
    if 0 in q.shape:
        return
    # A side on which all keys are in the window has no limit, which takes no masks.
    more = {
        "lse": lse,
        "left": left if left is not None and left < keys - 1 else None,
        "right": right if right and right < queries - 1 else None,
        "softcap": None if softcap is None else np.float32(scale / softcap),
    }
    more = {name: value for name, value in more.items() if value is not None}
    problem = Problem(depth, q.dtype, right == 0, **{name: True for name in more})
    sharing, blocks = heads // kv_heads, multiprocessors()
    plan = plan or plan_for(problem, queries, keys, batch * heads, sharing, blocks)
    tiles = batch * heads * -(-queries // plan.block_q)
    launch(
        attention_kernel(problem, plan),
        min(tiles, blocks),
        plan.threads,
        stream,
        *(a.map(problem.tile(rows)) for a, rows in ((q, ROWS), (k, plan.block_k))),
        *(a.map(problem.tile(rows)) for a, rows in ((v, plan.block_k), (out, ROWS))),
        *(queries, keys, heads, batch, sharing),
        np.float32((scale if softcap is None else softcap) * math.log2(math.e)),
        More(**more),
    )


def _sides(window: Any, causal: bool) -> tuple[int | None, int | None]:
    """Return how many keys a query sees before its place and behind it; None: all."""
    pair = isinstance(window, tuple | list) and len(window) == 2
    sides = window if pair else (window, window)
    for side in sides:
        whole = isinstance(side, int | np.integer) and not isinstance(side, bool)
        if side is not None and not (whole and side >= 0):
            raise ValueError(
                f"attention(window={window!r}): a window is (left, right), the numbers of keys "
                "that a query sees before its place and behind it: whole numbers from 0, or None "
                "for all; or one number for both"
            )
    left, right = (None if side is None else int(side) for side in sides)
    return left, 0 if causal else right


class Heads:
    """An array (batch, sequence, heads, depth) of any library: where it lies, and its type."""

    def __init__(self, name: str, array: Any, dtype: object, function: str = "attention") -> None:
        read = readers.get(type(array), read_array)
        self.address, shape, strides, stored, in_elements, self.array, _ = read(array)
        self.name, self.shape = name, tuple(int(n) for n in shape)
        self.function = function  #: of which it is an argument
        self.dtype: DType = as_dtype(stored if dtype is None else dtype)
        size = self.dtype.itemsize
        if len(self.shape) != len(AXES) or size != as_dtype(stored).itemsize:
            raise ValueError(
                f"{function}(): {name} has shape {self.shape} of {as_dtype(stored)}; it takes "
                f"({', '.join(AXES)}) of {' or '.join(DTYPES)}"
            )
        if strides is None or 0 in self.shape:
            self.strides = contiguous_strides(self.shape, size)
        else:
            steps = (s * size if in_elements else s for s in strides)
            self.strides = tuple(int(s) for s in steps)

    def map(self, tile: Any) -> Any:
        """Return the tensor map that copies `tile`, all its columns at once."""
        # The stride of an axis of one element is any; the copy engine wants one that it can take.
        plain = contiguous_strides(self.shape, self.dtype.itemsize)
        strides = tuple(s if n > 1 else p for n, s, p in zip(self.shape, self.strides, plain))
        if simulated():
            host: Any = getattr(self.array, "_ary", self.array)
            bits = host.view(self.dtype.numpy)
            source: Any = np.lib.stride_tricks.as_strided(bits, self.shape, strides)
        else:
            source = View(self.array, self.address, self.shape, strides, self.dtype.numpy)
        return tensor_map(source, tile, dtype=self.dtype, fold=True)


def _lse(array: Any, q: Heads) -> int:
    """Return the address of where to write the logarithms of sums, or raise."""
    address, shape, strides, stored, in_elements, _, _ = readers.get(type(array), read_array)(array)
    (batch, queries, heads, _), dtype, size = q.shape, as_dtype(stored), as_dtype(stored).itemsize
    plain = contiguous_strides(tuple(shape), 1 if in_elements else size)
    wrong = strides is not None and any(n > 1 and s != p for n, s, p in zip(shape, strides, plain))
    if tuple(shape) != (batch, heads, queries) or dtype.name != "f32" or wrong or address % size:
        raise ValueError(
            f"attention(): lse has shape {tuple(shape)} of {dtype} and strides {strides}, but q "
            f"has shape {q.shape}; lse takes (batch, heads, queries) = {batch, heads, queries} of "
            "f32, contiguous: leave it out for a new one"
        )
    return int(address)


def _check(q: Heads, k: Heads, v: Heads, out: Heads) -> None:
    """Raise unless the arrays fit each other and the copy engine."""
    if q.dtype.name not in DTYPES or q.shape[3] not in DEPTHS:
        raise ValueError(
            f"{q.function}(): q has shape {q.shape} of {q.dtype}; it takes {' and '.join(DTYPES)} "
            f"with a depth of {', '.join(map(str, DEPTHS))}"
        )
    batch, _, heads, depth = q.shape
    fits = k.shape[0] == batch and k.shape[3] == depth
    if not fits or 0 in k.shape[1:3] or heads % k.shape[2]:
        raise ValueError(
            f"{q.function}(): k has shape {k.shape}, but q {q.shape}; k takes the same batch and "
            "depth, at least one key, and a number of heads that divides that of q"
        )
    for array, like in ((v, k), (out, q)):
        if array.shape != like.shape:
            raise ValueError(
                f"{q.function}(): {array.name} has shape {array.shape}, but {like.name} has "
                f"{like.shape}; they must agree"
            )
    for array in (q, k, v, out):
        if array.dtype is not q.dtype:
            raise ValueError(
                f"{q.function}(): {array.name} is {array.dtype}, but q is {q.dtype}; they must "
                "agree: convert one"
            )
        steps = [s for n, s in zip(array.shape, array.strides) if n > 1]
        contiguous = array.strides[3] == array.dtype.itemsize
        if not contiguous or any(s % 16 for s in (array.address, *steps[:-1])):
            raise ValueError(
                f"{q.function}(): {array.name} lies at {array.address:#x} with strides "
                f"{array.strides} B; the depth is contiguous, and the address and the other "
                "strides are multiples of 16 B: pass a contiguous copy"
            )
