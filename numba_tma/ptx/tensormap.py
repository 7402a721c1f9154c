"""tensormap: threads edit tensor maps, and fences publish the edits.

The 128 bytes of a tensor map belong to a proxy of their own, the tensormap proxy. A kernel
therefore edits a copy of a map in shared memory, brings the copy to global memory with
`tensormap_cp_fenceproxy`, and uses it only after `fence_proxy_tensormap_acquire`. `edit_map` takes
these steps in order. A map that is a kernel argument is constant, and cannot be edited.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from numba_tma import simulator
from numba_tma.host.architectures import ACCELERATED
from numba_tma.ptx._instruction import (
    DescriptorAddress,
    EditableTensorMap,
    TensorMapOperand,
    TileAddress,
    address,
    instruction,
    u32,
    u64,
)

__all__ = [
    "tensormap_replace_global_address", "tensormap_replace_rank", "tensormap_replace_box_dim",
    "tensormap_replace_global_dim", "tensormap_replace_global_stride",
    "tensormap_replace_element_stride", "tensormap_replace_elemtype",
    "tensormap_replace_interleave_layout", "tensormap_replace_swizzle_mode",
    "tensormap_replace_fill_mode", "tensormap_cp_fenceproxy", "fence_proxy_tensormap_acquire",
    "fence_proxy_tensormap_release",
]  # fmt: skip

Space: TypeAlias = Literal["global", "shared::cta"]
Scope: TypeAlias = Literal["cta", "cluster", "gpu", "sys"]
Ordinal: TypeAlias = Literal[0, 1, 2, 3, 4]
StrideOrdinal: TypeAlias = Literal[0, 1, 2, 3]
ElementType: TypeAlias = Literal[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
InterleaveLayout: TypeAlias = Literal[0, 1, 2]
SwizzleMode: TypeAlias = Literal[0, 1, 2, 3]
FillMode: TypeAlias = Literal[0, 1]


@instruction(
    "tensormap.replace.tile.global_address.{space}.b1024.b64 [{tensor_map}], {address};",
    isa=(8, 3),
    sm=ACCELERATED,
)
def tensormap_replace_global_address(
    tensor_map: DescriptorAddress, space: Space, address: u64
) -> None:
    """Replace the tensor's address, a multiple of 16 B (32 B if the interleave is 32 B).

    For the space ``"global"``, `tensor_map` is a map in global memory (an element of a
    `TensorMapArray`). For ``"shared::cta"``, `tensor_map` is a copy of a map in 128 bytes of shared
    memory (a `SharedTile`, or an address). Executed by one thread. Orders nothing: the edit is an
    access of the generic proxy, visible to the copy engine after a release and an acquire (see the
    module).
    """
    simulator.tensormap_replace(tensor_map, space, "global_address", address)


@instruction(
    "tensormap.replace.tile.rank.{space}.b1024.b32 [{tensor_map}], {rank};",
    isa=(8, 3),
    sm=ACCELERATED,
)
def tensormap_replace_rank(tensor_map: DescriptorAddress, space: Space, rank: u32) -> None:
    """Replace the rank; `rank` is the new rank minus 1.

    The fields of added axes must be replaced too. Executed by one thread. Orders nothing.
    """
    simulator.tensormap_replace(tensor_map, space, "rank", rank)


@instruction(
    "tensormap.replace.tile.box_dim.{space}.b1024.b32 [{tensor_map}], {ordinal}, {extent};",
    isa=(8, 3),
    sm=ACCELERATED,
)
def tensormap_replace_box_dim(
    tensor_map: DescriptorAddress, space: Space, ordinal: Ordinal, extent: u32
) -> None:
    """Replace the box's extent along axis `ordinal`, counted from the innermost: 1 to 256.

    The bytes of a copy change with the extent, and so do the bytes that its barrier must expect.
    Executed by one thread. Orders nothing.
    """
    simulator.tensormap_replace(tensor_map, space, "box_dim", extent, ordinal)


@instruction(
    "tensormap.replace.tile.global_dim.{space}.b1024.b32 [{tensor_map}], {ordinal}, {extent};",
    isa=(8, 3),
    sm=ACCELERATED,
)
def tensormap_replace_global_dim(
    tensor_map: DescriptorAddress, space: Space, ordinal: Ordinal, extent: u32
) -> None:
    """Replace the tensor's extent along axis `ordinal`, counted from the innermost.

    The extent is in elements. Executed by one thread. Orders nothing.
    """
    simulator.tensormap_replace(tensor_map, space, "global_dim", extent, ordinal)


@instruction(
    "tensormap.replace.tile.global_stride.{space}.b1024.b64 [{tensor_map}], {ordinal}, {stride};",
    isa=(8, 3),
    sm=ACCELERATED,
)
def tensormap_replace_global_stride(
    tensor_map: DescriptorAddress, space: Space, ordinal: StrideOrdinal, stride: u64
) -> None:
    """Replace the stride of axis ``ordinal + 1``, counted from the innermost, in bytes.

    The innermost axis has no stride: ordinal 0 is the axis outside it. The stride is a multiple of
    16 B below 2**40, which nothing checks. ptxas of CUDA 12.5 and newer takes bytes and divides
    them by 16 itself; older versions took ``bytes >> 4``. Executed by one thread. Orders nothing.
    """
    simulator.tensormap_replace(tensor_map, space, "global_stride", stride, ordinal)


@instruction(
    "tensormap.replace.tile.element_stride.{space}.b1024.b32 [{tensor_map}], {ordinal}, {step};",
    isa=(8, 3),
    sm=ACCELERATED,
)
def tensormap_replace_element_stride(
    tensor_map: DescriptorAddress, space: Space, ordinal: Ordinal, step: u32
) -> None:
    """Replace the element stride along axis `ordinal`, counted from the innermost: 1 to 8.

    Executed by one thread. Orders nothing.
    """
    simulator.tensormap_replace(tensor_map, space, "element_stride", step, ordinal)


@instruction(
    "tensormap.replace.tile.elemtype.{space}.b1024.b32 [{tensor_map}], {value};",
    isa=(8, 3),
    sm=ACCELERATED,
)
def tensormap_replace_elemtype(
    tensor_map: DescriptorAddress, space: Space, value: ElementType
) -> None:
    """Replace the element type; `value` is its number in PTX.

    0 to 5 are u8, u16, u32, i32, u64, i64; 6 f16, 7 f32, 8 f32 (ftz), 9 f64, 10 bf16, 11 tf32, 12
    tf32 (ftz). The driver's CUtensorMapDataType has other numbers. Executed by one thread. Orders
    nothing.
    """
    simulator.tensormap_replace(tensor_map, space, "elemtype", value)


@instruction(
    "tensormap.replace.tile.interleave_layout.{space}.b1024.b32 [{tensor_map}], {value};",
    isa=(8, 3),
    sm=ACCELERATED,
)
def tensormap_replace_interleave_layout(
    tensor_map: DescriptorAddress, space: Space, value: InterleaveLayout
) -> None:
    """Replace the interleave: 0 none, 1 for 16 B, 2 for 32 B.

    Executed by one thread. Orders nothing.
    """
    simulator.tensormap_replace(tensor_map, space, "interleave_layout", value)


@instruction(
    "tensormap.replace.tile.swizzle_mode.{space}.b1024.b32 [{tensor_map}], {value};",
    isa=(8, 3),
    sm=ACCELERATED,
)
def tensormap_replace_swizzle_mode(
    tensor_map: DescriptorAddress, space: Space, value: SwizzleMode
) -> None:
    """Replace the swizzle: 0 none, 1 for 32 B, 2 for 64 B, 3 for 128 B.

    Executed by one thread. Orders nothing.
    """
    simulator.tensormap_replace(tensor_map, space, "swizzle_mode", value)


@instruction(
    "tensormap.replace.tile.fill_mode.{space}.b1024.b32 [{tensor_map}], {value};",
    isa=(8, 3),
    sm=ACCELERATED,
)
def tensormap_replace_fill_mode(
    tensor_map: DescriptorAddress, space: Space, value: FillMode
) -> None:
    """Replace the fill of loaded elements outside the tensor: 0 for zeros, 1 for NaN.

    Executed by one thread. Orders nothing.
    """
    simulator.tensormap_replace(tensor_map, space, "fill_mode", value)


@instruction(
    "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.{scope}.sync.aligned"
    " [{destination}], [{source}], 128;",
    isa=(8, 3),
    sm=90,
    convergent=True,
)
def tensormap_cp_fenceproxy(
    destination: EditableTensorMap, source: TileAddress, scope: Scope
) -> None:
    """Copy 128 bytes of shared memory over a map in global memory, and release them.

    Both addresses are multiples of 128 B. Executed by all threads of a warp together, after the
    thread that edited the shared copy has synchronised with them (`bar_warp_sync`). The warp's
    earlier writes are visible to the tensormap proxy of a thread that afterwards executes
    `fence_proxy_tensormap_acquire` on the map, within `scope`. No copy through the old map may be
    in flight.
    """
    simulator.tensormap_cp_fenceproxy(destination, address(source))


@instruction(
    "fence.proxy.tensormap::generic.acquire.{scope} [{tensor_map}], 128;", isa=(8, 3), sm=90
)
def fence_proxy_tensormap_acquire(tensor_map: TensorMapOperand, scope: Scope) -> None:
    """Make the thread's later copies use the newest contents of a map in global memory.

    Executed by each thread that issues copies through a map that a kernel has edited, after it has
    synchronised with the editing thread. A map that only the host wrote, before the launch, needs
    no fence.
    """
    simulator.fence_proxy_tensormap_acquire(tensor_map)


@instruction("fence.proxy.tensormap::generic.release.{scope};", isa=(8, 3), sm=90)
def fence_proxy_tensormap_release(scope: Scope) -> None:
    """Publish the thread's edits of maps in global memory to the tensormap proxy.

    Executed by the thread that edited in place (the space ``"global"``), before it synchronises
    with the threads that acquire. `tensormap_cp_fenceproxy` includes this release.
    """
    simulator.fence_proxy_tensormap_release()
