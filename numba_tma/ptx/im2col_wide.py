"""cp.async.bulk.tensor in the im2col::w modes, which traverse W alone and came with sm_100."""

from __future__ import annotations

from numba_tma import simulator
from numba_tma.host.architectures import BLACKWELL, TCGEN05
from numba_tma.ptx._instruction import (
    BarrierAddress,
    CacheHint,
    Coordinates,
    TensorMapOperand,
    TileAddress,
    address,
    instruction,
    u16,
)
from numba_tma.ptx.blackwell import CtaGroup

__all__ = [
    "cp_async_bulk_tensor_im2col_w_load", "cp_async_bulk_tensor_im2col_w_load_cta",
    "cp_async_bulk_tensor_im2col_w_128_load",
    "cp_async_bulk_prefetch_tensor_im2col_w", "cp_async_bulk_prefetch_tensor_im2col_w_128",
]  # fmt: skip

RANKS = (3, 4, 5)


@instruction(
    "cp.async.bulk.tensor.RANKd.shared::cluster.global.im2col::w.mbarrier::complete_tx::bytes"
    "<multicast:.multicast::cluster><cta_group:.cta_group::{cta_group}><cache_hint:.L2::cache_hint>"
    " [{destination}], [{tensor_map}, {coordinates}], [{barrier}], {{w_halo}, {w_offset}}"
    "<multicast:, {multicast}><cache_hint:, {cache_hint}>;",
    isa=(8, 6),
    sm=TCGEN05,
    ranks=RANKS,
)
def cp_async_bulk_tensor_im2col_w_load(
    destination: TileAddress,
    tensor_map: TensorMapOperand,
    coordinates: Coordinates,
    barrier: BarrierAddress,
    w_halo: u16,
    w_offset: u16,
    cache_hint: CacheHint = None,
    multicast: u16 | None = None,
    cta_group: CtaGroup | None = None,
) -> None:
    """Start to copy pixels along W, and a halo, from global to shared memory.

    The map is one of `im2col_wide_map` in mode ``"w"``. The copy takes the map's pixels from
    `coordinates` on, at fixed D, H and image. At the end of the image it takes `w_halo` more
    pixels, which are adjacent to the others in shared memory. `w_offset` shifts the pixel box and
    the first pixel along W. Alignment, fill and `multicast` are those of
    `cp_async_bulk_tensor_im2col_load`, and `cta_group` is that of
    `cp_async_bulk_tensor_load_cta_group`. Executed by one thread. Orders nothing. Simulated without
    a halo.
    """
    simulator.cp_async_bulk_tensor_im2col_w_load(
        *(address(destination), tensor_map, coordinates, address(barrier), w_halo, w_offset),
        *("im2col_w", multicast, cta_group),
    )


@instruction(
    "cp.async.bulk.tensor.RANKd.shared::cta.global.im2col::w.mbarrier::complete_tx::bytes"
    "<cache_hint:.L2::cache_hint>"
    " [{destination}], [{tensor_map}, {coordinates}], [{barrier}], {{w_halo}, {w_offset}}"
    "<cache_hint:, {cache_hint}>;",
    isa=(8, 6),
    sm=BLACKWELL,
    ranks=RANKS,
)
def cp_async_bulk_tensor_im2col_w_load_cta(
    destination: TileAddress,
    tensor_map: TensorMapOperand,
    coordinates: Coordinates,
    barrier: BarrierAddress,
    w_halo: u16,
    w_offset: u16,
    cache_hint: CacheHint = None,
) -> None:
    """Start the copy of `cp_async_bulk_tensor_im2col_w_load` to this block's own shared memory.

    Every GPU from compute capability 10.0 on has this form. Executed by one thread. Orders nothing.
    Simulated without a halo.
    """
    simulator.cp_async_bulk_tensor_im2col_w_load(
        *(address(destination), tensor_map, coordinates, address(barrier), w_halo, w_offset),
        "im2col_w",
    )


@instruction(
    "cp.async.bulk.tensor.RANKd.shared::cluster.global.im2col::w::128.mbarrier::complete_tx::bytes"
    "<multicast:.multicast::cluster><cta_group:.cta_group::{cta_group}><cache_hint:.L2::cache_hint>"
    " [{destination}], [{tensor_map}, {coordinates}], [{barrier}], {{w_halo}, {w_offset}}"
    "<multicast:, {multicast}><cache_hint:, {cache_hint}>;",
    isa=(8, 6),
    sm=TCGEN05,
    ranks=RANKS,
)
def cp_async_bulk_tensor_im2col_w_128_load(
    destination: TileAddress,
    tensor_map: TensorMapOperand,
    coordinates: Coordinates,
    barrier: BarrierAddress,
    w_halo: u16,
    w_offset: u16,
    cache_hint: CacheHint = None,
    multicast: u16 | None = None,
    cta_group: CtaGroup | None = None,
) -> None:
    """Start to copy 128 pixels along W, with halos between them, from global to shared memory.

    The map is one of `im2col_wide_map` in mode ``"w128"``. `w_halo` more pixels are copied after
    every 32. All else is as for `cp_async_bulk_tensor_im2col_w_load`. Executed by one thread.
    Orders nothing. Simulated without a halo.
    """
    simulator.cp_async_bulk_tensor_im2col_w_load(
        *(address(destination), tensor_map, coordinates, address(barrier), w_halo, w_offset),
        *("im2col_w128", multicast, cta_group),
    )


@instruction(
    "cp.async.bulk.prefetch.tensor.RANKd.L2.global.im2col::w<cache_hint:.L2::cache_hint>"
    " [{tensor_map}, {coordinates}], {{w_halo}, {w_offset}}<cache_hint:, {cache_hint}>;",
    isa=(8, 6),
    sm=TCGEN05,
    ranks=RANKS,
)
def cp_async_bulk_prefetch_tensor_im2col_w(
    tensor_map: TensorMapOperand,
    coordinates: Coordinates,
    w_halo: u16,
    w_offset: u16,
    cache_hint: CacheHint = None,
) -> None:
    """Prefetch the pixels of a `cp_async_bulk_tensor_im2col_w_load` into the L2 cache.

    Completion cannot be observed. Executed by one thread. Orders nothing.
    """
    simulator.cp_async_bulk_prefetch_tensor_im2col_w(
        tensor_map, coordinates, w_halo, w_offset, "im2col_w"
    )


@instruction(
    "cp.async.bulk.prefetch.tensor.RANKd.L2.global.im2col::w::128<cache_hint:.L2::cache_hint>"
    " [{tensor_map}, {coordinates}], {{w_halo}, {w_offset}}<cache_hint:, {cache_hint}>;",
    isa=(8, 6),
    sm=TCGEN05,
    ranks=RANKS,
)
def cp_async_bulk_prefetch_tensor_im2col_w_128(
    tensor_map: TensorMapOperand,
    coordinates: Coordinates,
    w_halo: u16,
    w_offset: u16,
    cache_hint: CacheHint = None,
) -> None:
    """Prefetch the pixels of a `cp_async_bulk_tensor_im2col_w_128_load` into the L2 cache.

    Completion cannot be observed. Executed by one thread. Orders nothing.
    """
    simulator.cp_async_bulk_prefetch_tensor_im2col_w(
        tensor_map, coordinates, w_halo, w_offset, "im2col_w128"
    )
