"""The arguments of attention's kernels that only some problems have."""

from __future__ import annotations

from typing import Any, NamedTuple


class OptionalArguments(NamedTuple):
    """Kernel arguments of some problems only; an absent one is () and takes no parameter space."""

    lse: Any = ()  #: address of lse, float32 (batch, heads, queries, splits); packed (heads, rows)
    left: Any = ()  #: keys before its own position that a query sees
    right: Any = ()  #: keys after its own position that a query sees
    softcap: Any = ()  #: float32: scale / cap; the kernel's `scale` is then the cap times log2(e)
    q_scale: Any = ()  #: float32 array (batch * heads): scale of each head of Q
    k_scale: Any = ()  #: float32 array (batch * kv_heads): scale of each head of K
    v_scale: Any = ()  #: float32 array (batch * kv_heads): scale of each head of V
    starts_q: Any = ()  #: int32 array (sequences + 1): where each packed sequence's queries begin
    starts_k: Any = ()  #: int32 array (sequences + 1): where each packed sequence's keys begin
    counter: Any = ()  #: uint32 array (1), 0 before the launch: counts the tiles that are drawn
    splits: Any = ()  #: number of splits of the K/V tiles of each tile of queries
    partials: Any = ()  #: address of float32 (batch, heads, queries, splits, head dim)
