"""cp.reduce.async.bulk: the copy engine combines the source with the destination's contents."""

from __future__ import annotations

from typing import Literal, TypeAlias

from numba_tma import simulator
from numba_tma.ptx._instruction import (
    CacheHint,
    ClusterAddress,
    Coordinates,
    GlobalAddress,
    TensorMapOperand,
    TileAddress,
    address,
    global_bytes,
    instruction,
    u32,
)

__all__ = [
    "cp_reduce_async_bulk_store", "cp_reduce_async_bulk_cluster", "cp_reduce_async_bulk_tensor",
]  # fmt: skip

#: Operations of `cp_reduce_async_bulk_store`, with their element types.
GlobalReduction: TypeAlias = Literal[
    "add.u32", "add.s32", "add.u64", "add.f32", "add.f64", "add.noftz.f16", "add.noftz.bf16",
    "min.u32", "min.s32", "min.u64", "min.s64", "min.f16", "min.bf16",
    "max.u32", "max.s32", "max.u64", "max.s64", "max.f16", "max.bf16",
    "inc.u32", "dec.u32",
    "and.b32", "and.b64", "or.b32", "or.b64", "xor.b32", "xor.b64",
]  # fmt: skip

#: Operations of `cp_reduce_async_bulk_cluster`, with their element types.
ClusterReduction: TypeAlias = Literal[
    "add.u32", "add.s32", "add.u64",
    "min.u32", "min.s32", "max.u32", "max.s32",
    "inc.u32", "dec.u32",
    "and.b32", "or.b32", "xor.b32",
]  # fmt: skip

#: Operations of `cp_reduce_async_bulk_tensor`; the element type is the tensor map's.
TensorReduction: TypeAlias = Literal["add", "min", "max", "inc", "dec", "and", "or", "xor"]


@instruction(
    "cp.reduce.async.bulk.global.shared::cta.bulk_group<cache_hint:.L2::cache_hint>.{operation}"
    " [{destination}], [{source}], {nbytes}<cache_hint:, {cache_hint}>;",
    isa=(8, 0),
    sm=90,
)
def cp_reduce_async_bulk_store(
    destination: GlobalAddress,
    source: TileAddress,
    nbytes: u32,
    operation: GlobalReduction,
    cache_hint: CacheHint = None,
) -> None:
    """Start to combine `nbytes` of shared memory, element by element, with global memory.

    Each element is one atomic operation, relaxed at GPU scope; the elements have no order. `inc`
    and `dec` wrap at the operand: ``0 if old >= x else old + 1`` and ``x if old == 0 or old > x
    else old - 1``. Sums of floats round to nearest even and keep subnormals. `nbytes` and both
    addresses are multiples of 16 B. The copy belongs to the executing thread's current bulk group.
    Executed by one thread, after every writer of the source has executed `fence_proxy_async` and
    synchronised with the executing thread.
    """
    simulator.cp_reduce_async_bulk_store(
        global_bytes(destination, nbytes), address(source), operation
    )


@instruction(
    "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.{operation}"
    " [{destination}], [{source}], {nbytes}, [{barrier}];",
    isa=(8, 0),
    sm=90,
)
def cp_reduce_async_bulk_cluster(
    destination: ClusterAddress,
    source: TileAddress,
    nbytes: u32,
    barrier: ClusterAddress,
    operation: ClusterReduction,
) -> None:
    """Start to combine `nbytes` of shared memory with shared memory of a block of the cluster.

    `destination` and `barrier` are addresses as `mapa` returns them. Both lie in the same block,
    which expects the bytes. The operations are those of `cp_reduce_async_bulk_store`, on integers
    only. `nbytes` and both data addresses are multiples of 16 B.

    Executed by one thread, after every writer of the source, and of the destination, has executed
    `fence_proxy_async` and synchronised with the executing thread. The source is known to be read
    only after a wait on `barrier`, and the other block must not exit before. Orders nothing.
    """
    simulator.cp_reduce_async_bulk_cluster(
        int(destination), address(source), int(nbytes), int(barrier), operation
    )


@instruction(
    "cp.reduce.async.bulk.tensor.RANKd.global.shared::cta.{operation}.bulk_group"
    "<cache_hint:.L2::cache_hint>"
    " [{tensor_map}, {coordinates}], [{source}]<cache_hint:, {cache_hint}>;",
    isa=(8, 0),
    sm=90,
    ranks=(1, 2, 3, 4, 5),
)
def cp_reduce_async_bulk_tensor(
    tensor_map: TensorMapOperand,
    coordinates: Coordinates,
    source: TileAddress,
    operation: TensorReduction,
    cache_hint: CacheHint = None,
) -> None:
    """Start to combine a box of shared memory with the box at `coordinates` in global memory.

    The element type is the tensor map's, which decides which operations are legal
    (`DType.reductions`). Elements outside the tensor are unchanged. Operations, atomicity and order
    are those of `cp_reduce_async_bulk_store`. Coordinates, alignment, bulk group and fences are
    those of `cp_async_bulk_tensor_store`. Executed by one thread.
    """
    simulator.cp_reduce_async_bulk_tensor(tensor_map, coordinates, address(source), operation)
