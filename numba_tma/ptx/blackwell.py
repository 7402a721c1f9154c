"""Bulk copies that sm_100 and PTX 9.2 added: rows by index, CTA pairs, byte masks, ignored bytes.

The rows are assembled and simulated, and have run on no GPU.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from numba_tma import simulator
from numba_tma.host.architectures import BLACKWELL, TCGEN05
from numba_tma.ptx._instruction import (
    BarrierAddress,
    CacheHint,
    Coordinates,
    GlobalAddress,
    Offsets,
    TensorMapOperand,
    TileAddress,
    address,
    global_bytes,
    i32,
    instruction,
    u16,
    u32,
)

__all__ = [
    "cp_async_bulk_tensor_load_cta_group", "cp_async_bulk_tensor_gather4",
    "cp_async_bulk_tensor_gather4_cta", "cp_async_bulk_tensor_im2col_load_cta_group",
    "cp_async_bulk_prefetch_tensor_gather4", "cp_async_bulk_tensor_scatter4",
    "cp_async_bulk_store_masked", "cp_async_bulk_load_ignore_oob",
]  # fmt: skip

#: The barrier of a load: 1 in the destination's block, 2 in either block of its CTA pair.
CtaGroup: TypeAlias = Literal[1, 2]


@instruction(
    "cp.async.bulk.tensor.RANKd.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    "<multicast:.multicast::cluster>.cta_group::{cta_group}<cache_hint:.L2::cache_hint>"
    " [{destination}], [{tensor_map}, {coordinates}], [{barrier}]"
    "<multicast:, {multicast}><cache_hint:, {cache_hint}>;",
    isa=(8, 6),
    sm=TCGEN05,
    ranks=(1, 2, 3, 4, 5),
)
def cp_async_bulk_tensor_load_cta_group(
    destination: TileAddress,
    tensor_map: TensorMapOperand,
    coordinates: Coordinates,
    barrier: BarrierAddress,
    cta_group: CtaGroup,
    cache_hint: CacheHint = None,
    multicast: u16 | None = None,
) -> None:
    """Start the copy of `cp_async_bulk_tensor_load`, with a barrier in a block or a CTA pair.

    With `cta_group` 1 the barrier is in the destination's block. With 2 it may be in either block
    of the CTA pair of the destination's block. The ranks of a pair differ in the last bit. With
    `multicast` each copy completes on the barrier of that block of its pair whose rank has the last
    bit of the rank of `barrier`. Executed by one thread. Orders nothing. The row is assembled and
    simulated, and has run on no GPU.
    """
    simulator.cp_async_bulk_tensor_load(
        address(destination), tensor_map, coordinates, address(barrier), multicast, cta_group
    )


@instruction(
    "cp.async.bulk.tensor.RANKd.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
    "<multicast:.multicast::cluster>.cta_group::{cta_group}<cache_hint:.L2::cache_hint>"
    " [{destination}], [{tensor_map}, {coordinates}], [{barrier}], {offsets}"
    "<multicast:, {multicast}><cache_hint:, {cache_hint}>;",
    isa=(8, 6),
    sm=TCGEN05,
    ranks=(3, 4, 5),
)
def cp_async_bulk_tensor_im2col_load_cta_group(
    destination: TileAddress,
    tensor_map: TensorMapOperand,
    coordinates: Coordinates,
    barrier: BarrierAddress,
    offsets: Offsets,
    cta_group: CtaGroup,
    cache_hint: CacheHint = None,
    multicast: u16 | None = None,
) -> None:
    """Start the copy of `cp_async_bulk_tensor_im2col_load`, with a barrier in a CTA pair.

    `cta_group`, `barrier` and `multicast` are those of `cp_async_bulk_tensor_load_cta_group`.
    Executed by one thread. Orders nothing. The row is assembled and simulated, and has run on no
    GPU.
    """
    simulator.cp_async_bulk_tensor_im2col_load(
        *(address(destination), tensor_map, coordinates, address(barrier), offsets),
        *(multicast, cta_group),
    )


@instruction(
    "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes"
    "<cache_hint:.L2::cache_hint>"
    " [{destination}], [{tensor_map}, {{column}, {row0}, {row1}, {row2}, {row3}}], [{barrier}]"
    "<cache_hint:, {cache_hint}>;",
    isa=(8, 6),
    sm=BLACKWELL,
)
def cp_async_bulk_tensor_gather4_cta(
    destination: TileAddress,
    tensor_map: TensorMapOperand,
    row0: i32,
    row1: i32,
    row2: i32,
    row3: i32,
    column: i32,
    barrier: BarrierAddress,
    cache_hint: CacheHint = None,
) -> None:
    """Start to copy four rows of a matrix, from `column` on, to this block's shared memory.

    The map is one of `gather_map`. The rows need not be adjacent. In shared memory they form one
    box of 4 rows, at a multiple of 128 B. The swizzle follows the bits of the address. Elements
    outside the matrix are filled. `column` times the item size is a multiple of 16 B. The copy
    completes the bytes of all four rows on `barrier`. Executed by one thread. Orders nothing.
    """
    simulator.cp_async_bulk_tensor_gather4(
        address(destination), tensor_map, (row0, row1, row2, row3), column, address(barrier)
    )


@instruction(
    "cp.async.bulk.tensor.2d.shared::cluster.global.tile::gather4.mbarrier::complete_tx::bytes"
    "<multicast:.multicast::cluster><cta_group:.cta_group::{cta_group}>"
    "<cache_hint:.L2::cache_hint>"
    " [{destination}], [{tensor_map}, {{column}, {row0}, {row1}, {row2}, {row3}}], [{barrier}]"
    "<multicast:, {multicast}><cache_hint:, {cache_hint}>;",
    isa=(8, 6),
    sm=TCGEN05,
)
def cp_async_bulk_tensor_gather4(
    destination: TileAddress,
    tensor_map: TensorMapOperand,
    row0: i32,
    row1: i32,
    row2: i32,
    row3: i32,
    column: i32,
    barrier: BarrierAddress,
    cache_hint: CacheHint = None,
    multicast: u16 | None = None,
    cta_group: CtaGroup | None = None,
) -> None:
    """Start to copy four rows of a matrix, from `column` on, to shared memory of the cluster.

    All is as for `cp_async_bulk_tensor_gather4_cta`, and `multicast` as for
    `cp_async_bulk_tensor_load`. `cta_group` is that of `cp_async_bulk_tensor_load_cta_group`.
    Executed by one thread. Orders nothing.
    """
    simulator.cp_async_bulk_tensor_gather4(
        *(address(destination), tensor_map, (row0, row1, row2, row3), column, address(barrier)),
        *(multicast, cta_group),
    )


@instruction(
    "cp.async.bulk.prefetch.tensor.2d.L2.global.tile::gather4<cache_hint:.L2::cache_hint>"
    " [{tensor_map}, {{column}, {row0}, {row1}, {row2}, {row3}}]<cache_hint:, {cache_hint}>;",
    isa=(8, 6),
    sm=TCGEN05,
)
def cp_async_bulk_prefetch_tensor_gather4(
    tensor_map: TensorMapOperand,
    row0: i32,
    row1: i32,
    row2: i32,
    row3: i32,
    column: i32,
    cache_hint: CacheHint = None,
) -> None:
    """Start to prefetch the four rows of a `cp_async_bulk_tensor_gather4` into the L2 cache.

    Executed by one thread. A hint: its completion cannot be observed, and it orders nothing.
    """
    simulator.cp_async_bulk_prefetch_tensor_gather4(tensor_map, (row0, row1, row2, row3), column)


@instruction(
    "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group"
    "<cache_hint:.L2::cache_hint>"
    " [{tensor_map}, {{column}, {row0}, {row1}, {row2}, {row3}}], [{source}]"
    "<cache_hint:, {cache_hint}>;",
    isa=(8, 6),
    sm=TCGEN05,
)
def cp_async_bulk_tensor_scatter4(
    tensor_map: TensorMapOperand,
    row0: i32,
    row1: i32,
    row2: i32,
    row3: i32,
    column: i32,
    source: TileAddress,
    cache_hint: CacheHint = None,
) -> None:
    """Start to copy a box of 4 rows from shared memory to four rows of a 2-dimensional tensor.

    The reverse of `cp_async_bulk_tensor_gather4`. Bulk group and fences are those of
    `cp_async_bulk_tensor_store`. No coordinate is negative. Executed by one thread.
    """
    simulator.cp_async_bulk_tensor_scatter4(
        tensor_map, (row0, row1, row2, row3), column, address(source)
    )


@instruction(
    "cp.async.bulk.global.shared::cta.bulk_group<cache_hint:.L2::cache_hint>.cp_mask"
    " [{destination}], [{source}], {nbytes}<cache_hint:, {cache_hint}>, {byte_mask};",
    isa=(8, 6),
    sm=BLACKWELL,
)
def cp_async_bulk_store_masked(
    destination: GlobalAddress,
    source: TileAddress,
    nbytes: u32,
    byte_mask: u16,
    cache_hint: CacheHint = None,
) -> None:
    """Start the copy of `cp_async_bulk_store` for selected bytes of every 16.

    Byte i of each 16 is written if bit i of `byte_mask` is set. All else is as for
    `cp_async_bulk_store`. Executed by one thread.
    """
    simulator.cp_async_bulk_store(global_bytes(destination, nbytes), address(source), byte_mask)


@instruction(
    "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes<cache_hint:.L2::cache_hint>"
    ".ignore_oob [{destination}], [{source}], {nbytes}, {ignored_left}, {ignored_right},"
    " [{barrier}]<cache_hint:, {cache_hint}>;",
    isa=(9, 2),
    sm=90,
)
def cp_async_bulk_load_ignore_oob(
    destination: TileAddress,
    source: GlobalAddress,
    nbytes: u32,
    ignored_left: u32,
    ignored_right: u32,
    barrier: BarrierAddress,
    cache_hint: CacheHint = None,
) -> None:
    """Start the copy of `cp_async_bulk_load`, whose first and last bytes may not exist.

    The first `ignored_left` and the last `ignored_right` bytes of the source, 0 to 15 each, may lie
    outside of the array. The bytes in their places in shared memory are indeterminate. `nbytes` and
    both addresses are multiples of 16 B all the same, and the copy completes `nbytes` on `barrier`.
    So a row of any length at any address is copied with its neighbours of up to 15 B. All else is
    as for `cp_async_bulk_load`. Executed by one thread.
    """
    simulator.cp_async_bulk_load_ignore_oob(
        address(destination),
        global_bytes(source, nbytes),
        int(nbytes),
        (int(ignored_left), int(ignored_right)),
        address(barrier),
    )
