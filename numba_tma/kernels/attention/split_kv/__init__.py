"""Split-K/V, from the host: memory for the splits' results, and the launch that combines them."""

from __future__ import annotations

from numba_tma.host.annotations import Address, DeviceArray, StreamLike
from numba_tma.host.arrays import Array
from numba_tma.host.cached_kernel import shipped
from numba_tma.kernels._host.launch import launch
from numba_tma.kernels._host.workspace import float_workspace

THREADS = 128
CHUNK = 4  # elements of a thread
combine_kernel = shipped("numba_tma.kernels.attention.split_kv.kernel", "combine_kernel")


def new_partials(out: Array, splits: int, workspace: list[DeviceArray]) -> tuple[Address, Address]:
    """Return addresses for the O and lse of splits, and append their memory to `workspace`.

    They are (batch, heads, queries, splits, head dim) and (batch, heads, queries, splits).
    """
    batch, queries, heads, head_dim = out.shape
    rows = batch * heads * queries
    memory = float_workspace(rows * splits, head_dim), float_workspace(rows, splits)
    workspace += memory
    o, lse = (Array.read(out.function, "workspace", m).address for m in memory)
    return o, lse


def combine_splits(
    partials: Address,
    partial_lse: Address,
    splits: int,
    out: Array,
    lse: Array | None,
    stream: StreamLike,
) -> None:
    """Launch the kernel that combines the splits."""
    batch, queries, heads, head_dim = out.shape
    rows = batch * queries * heads
    launch(
        combine_kernel(out.dtype, head_dim, lse is not None, 8 if splits <= 8 else 32),
        -(-rows * (head_dim // CHUNK) // THREADS),
        THREADS,
        stream,
        *(partials, partial_lse, splits),
        *(out.address, out.strides[:3], rows, queries, heads),
        lse.address if lse is not None else 0,
        pdl=True,
    )
