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
from numba_tma.kernels._attention_kernel import attention_kernel
from numba_tma.kernels._attention_plan import DEPTHS, DTYPES, Plan, Problem, plan_for
from numba_tma.kernels._host import View, empty_like, launch, launched_again, multiprocessors
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
    stream
        A numba, torch or CuPy stream; the default stream if None.
    dtype
        What the bits of the arrays mean where their own type cannot say it: bf16 held as uint16.
    plan
        How to cut the work up; what is measured to be fast if None.

    Returns
    -------
    Any
        `out`. Products are summed and the softmax is computed in float32; the weights are rounded
        to the arrays' type before they are multiplied with V. A query all of whose scores are -inf,
        because it sees no key or by its inputs, gives 0.

    Raises
    ------
    ValueError
        If shapes, types or strides do not fit, or `scale` is not positive.
    """
    out = empty_like(q) if out is None else out
    _attention((q, k, v, out), stream, (scale,), causal, dtype, plan)
    return out


@launched_again
def _attention(
    arrays: tuple[Any, Any, Any, Any],
    stream: Any,
    numbers: tuple[float | None],
    causal: bool,
    dtype: object,
    plan: Plan | None,
) -> None:
    q, k, v, out = (Heads(n, a, dtype) for n, a in zip(("q", "k", "v", "out"), arrays))
    _check(q, k, v, out)
    (batch, queries, heads, depth), (_, keys, kv_heads, _) = q.shape, k.shape
    scale = 1 / math.sqrt(depth) if numbers[0] is None else numbers[0]
    if not 0 < scale < math.inf:
        raise ValueError(
            f"attention(scale={scale}): the scale is a positive number; negate q for a negative one"
        )
    if 0 in q.shape:
        return
    problem = Problem(depth, q.dtype, bool(causal))
    plan = plan_for(problem, queries) if plan is None else plan
    tiles = batch * heads * -(-queries // plan.block_q)
    launch(
        attention_kernel(problem, plan),
        min(tiles, multiprocessors()),
        plan.threads,
        stream,
        *(a.map(problem.tile(rows)) for a, rows in ((q, ROWS), (k, plan.block_k))),
        *(a.map(problem.tile(rows)) for a, rows in ((v, plan.block_k), (out, ROWS))),
        *(queries, keys, heads, batch, heads // kv_heads),
        np.float32(scale * math.log2(math.e)),
    )


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
