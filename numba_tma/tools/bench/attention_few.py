"""Attention of few queries on many keys, as in generating text, beside torch's backends: bf16.

Arrays are (sequences, rows, heads, columns); torch gets copies in its order, heads before rows.
What takes time of one query is to read its keys and values; of more, operations are counted.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import NamedTuple

from numba_tma.tools.bench.attention import by_torch, check_rows
from numba_tma.tools.bench.peers import offered, shipped, working
from numba_tma.tools.bench.results import Cases, Measured, operations, rate
from numba_tma.tools.bench.timing import worse_of_two


class Shape(NamedTuple):
    """The lengths of a case."""

    batch: int
    queries: int
    heads: int
    depth: int
    keys: int
    kv_heads: int

    def __str__(self) -> str:
        q, kv = self[:4], self[4:]
        return f"bf16 {' x '.join(map(str, q))} on {' x '.join(map(str, kv))}"


SHAPES = (
    Shape(1, 1, 32, 128, 16384, 8),
    Shape(8, 1, 32, 128, 8192, 8),
    Shape(64, 1, 32, 128, 4096, 8),
    Shape(16, 1, 16, 64, 8192, 16),
    Shape(1, 1, 8, 128, 131072, 1),
    Shape(1, 16, 16, 128, 8192, 16),
    Shape(1, 128, 16, 128, 16384, 16),
    Shape(1, 1000, 4, 128, 1000, 4),
)


def bench_attention_few(torch: ModuleType, shape: Shape) -> Measured:
    """Time attention of each query on all keys."""
    attention = shipped("attention", "attention")
    kv = (shape.batch, shape.keys, shape.kv_heads, shape.depth)
    shapes = (shape[:4], kv, kv)
    q, k, v = (torch.randn(s, device="cuda").bfloat16() for s in shapes)
    o = torch.full_like(q, float("nan"))
    ours = functools.partial(attention, q, k, v, out=o)
    # The first head has the first one's keys, and the last the last one's.
    right = functools.partial(check_rows, torch, q, k, v, False)
    ours()
    right(o)
    case = f"attention few {shape}"
    shared = shape.heads != shape.kv_heads
    source = functools.partial(by_torch, torch, q, k, v, enable_gqa=shared)
    peers = working(torch, case, offered(case, {"SDPA": source}), right)
    times = worse_of_two({"numba_tma": ours, **peers})
    if shape.queries == 1:
        return rate(2 * sum(t.numel() for t in (q, k, v, o)), times)
    return operations(4 * q.numel() * shape.keys, times)


CASES: Cases = {
    ("attention few", str(shape)): functools.partial(bench_attention_few, shape=shape)
    for shape in SHAPES
}
