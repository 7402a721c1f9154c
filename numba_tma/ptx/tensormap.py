"""tensormap: the descriptors themselves, edited by threads, and the fences that publish them.

The 128 bytes of a tensor map belong to a proxy of their own. A map that a kernel edits is therefore
edited as a copy in shared memory, brought to global memory by `tensormap_cp_fenceproxy`, and used
only after `fence_proxy_tensormap_acquire`; `edit_map` does it in that order. A map that is a kernel
argument cannot be edited: it is constant.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from numba_tma import simulator
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
    sm="90a",
)
def tensormap_replace_global_address(
    tensor_map: DescriptorAddress, space: Space, address: u64
) -> None:
    """Replace the address of the tensor, a multiple of 16 B (32 B where it is interleaved).

    `tensor_map` is a map in global memory (an element of a `TensorMapArray`) for the space
    ``"global"``, or 128 bytes of shared memory that hold a copy of one (a `SharedTile`, or an
    address) for ``"shared::cta"``. Executed by one thread. Orders nothing: it is an access of the
    generic proxy, and the copy engine sees it after a release and an acquire (see the module).
    """
    simulator.tensormap_replace(tensor_map, space, "global_address", 0, address)


@instruction(
    "tensormap.replace.tile.rank.{space}.b1024.b32 [{tensor_map}], {rank};",
    isa=(8, 3),
    sm="90a",
)
def tensormap_replace_rank(tensor_map: DescriptorAddress, space: Space, rank: u32) -> None:
    """Replace the rank; `rank` is the rank less one.

    By one thread. Orders nothing. The fields of the axes that are added must be replaced too.
    """
    simulator.tensormap_replace(tensor_map, space, "rank", 0, rank)


@instruction(
    "tensormap.replace.tile.box_dim.{space}.b1024.b32 [{tensor_map}], {ordinal}, {extent};",
    isa=(8, 3),
    sm="90a",
)
def tensormap_replace_box_dim(
    tensor_map: DescriptorAddress, space: Space, ordinal: Ordinal, extent: u32
) -> None:
    """Replace the extent of the box along axis `ordinal`, counted from the innermost: 1 to 256.

    By one thread. Orders nothing. What a copy moves changes with it, and so does what its barrier
    has to expect.
    """
    simulator.tensormap_replace(tensor_map, space, "box_dim", ordinal, extent)


@instruction(
    "tensormap.replace.tile.global_dim.{space}.b1024.b32 [{tensor_map}], {ordinal}, {extent};",
    isa=(8, 3),
    sm="90a",
)
def tensormap_replace_global_dim(
    tensor_map: DescriptorAddress, space: Space, ordinal: Ordinal, extent: u32
) -> None:
    """Replace the extent of the tensor along axis `ordinal`, counted from the innermost.

    In elements. By one thread. Orders nothing.
    """
    simulator.tensormap_replace(tensor_map, space, "global_dim", ordinal, extent)


@instruction(
    "tensormap.replace.tile.global_stride.{space}.b1024.b64 [{tensor_map}], {ordinal}, {stride};",
    isa=(8, 3),
    sm="90a",
)
def tensormap_replace_global_stride(
    tensor_map: DescriptorAddress, space: Space, ordinal: StrideOrdinal, stride: u64
) -> None:
    """Replace the stride of axis ``ordinal + 1``, counted from the innermost, in bytes.

    The innermost axis has no stride, so 0 is the one outside it. A multiple of 16 B below 2**40,
    which nothing checks. ptxas of CUDA 12.5 and newer takes bytes and divides them by 16 itself;
    older ones took ``bytes >> 4``. By one thread. Orders nothing.
    """
    simulator.tensormap_replace(tensor_map, space, "global_stride", ordinal, stride)


@instruction(
    "tensormap.replace.tile.element_stride.{space}.b1024.b32 [{tensor_map}], {ordinal}, {step};",
    isa=(8, 3),
    sm="90a",
)
def tensormap_replace_element_stride(
    tensor_map: DescriptorAddress, space: Space, ordinal: Ordinal, step: u32
) -> None:
    """Replace the step between elements along axis `ordinal`, counted from the innermost: 1 to 8.

    By one thread. Orders nothing.
    """
    simulator.tensormap_replace(tensor_map, space, "element_stride", ordinal, step)


@instruction(
    "tensormap.replace.tile.elemtype.{space}.b1024.b32 [{tensor_map}], {value};",
    isa=(8, 3),
    sm="90a",
)
def tensormap_replace_elemtype(
    tensor_map: DescriptorAddress, space: Space, value: ElementType
) -> None:
    """Replace the element type, by its number in PTX.

    0 to 5 are u8, u16, u32, i32, u64, i64; 6 f16, 7 f32, 8 f32 (ftz), 9 f64, 10 bf16, 11 tf32,
    12 tf32 (ftz). These are not the driver's CUtensorMapDataType numbers. By one thread. Orders
    nothing.
    """
    simulator.tensormap_replace(tensor_map, space, "elemtype", 0, value)


@instruction(
    "tensormap.replace.tile.interleave_layout.{space}.b1024.b32 [{tensor_map}], {value};",
    isa=(8, 3),
    sm="90a",
)
def tensormap_replace_interleave_layout(
    tensor_map: DescriptorAddress, space: Space, value: InterleaveLayout
) -> None:
    """Replace the interleave: 0 none, 1 for 16 B, 2 for 32 B.

    By one thread. Orders nothing.
    """
    simulator.tensormap_replace(tensor_map, space, "interleave_layout", 0, value)


@instruction(
    "tensormap.replace.tile.swizzle_mode.{space}.b1024.b32 [{tensor_map}], {value};",
    isa=(8, 3),
    sm="90a",
)
def tensormap_replace_swizzle_mode(
    tensor_map: DescriptorAddress, space: Space, value: SwizzleMode
) -> None:
    """Replace the swizzle: 0 none, 1 for 32 B, 2 for 64 B, 3 for 128 B.

    By one thread. Orders nothing.
    """
    simulator.tensormap_replace(tensor_map, space, "swizzle_mode", 0, value)


@instruction(
    "tensormap.replace.tile.fill_mode.{space}.b1024.b32 [{tensor_map}], {value};",
    isa=(8, 3),
    sm="90a",
)
def tensormap_replace_fill_mode(
    tensor_map: DescriptorAddress, space: Space, value: FillMode
) -> None:
    """Replace what a load puts outside of the tensor: 0 for zeros, 1 for NaN.

    By one thread. Orders nothing.
    """
    simulator.tensormap_replace(tensor_map, space, "fill_mode", 0, value)


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

    Both are aligned to 128 B. Executed by all threads of a warp together, after the thread that
    edited the shared copy has synchronised with them (`bar_warp_sync`). What the warp wrote before
    is visible to the tensor-map proxy of whoever executes `fence_proxy_tensormap_acquire` on the
    map afterwards, within `scope`. No copy through the old map may still be under way.
    """
    simulator.tensormap_cp_fenceproxy(destination, address(source))


@instruction(
    "fence.proxy.tensormap::generic.acquire.{scope} [{tensor_map}], 128;", isa=(8, 3), sm=90
)
def fence_proxy_tensormap_acquire(tensor_map: TensorMapOperand, scope: Scope) -> None:
    """Let this thread's later copies use the newest contents of a map in global memory.

    Executed by each thread that issues copies through a map which a kernel has edited, after it
    has synchronised with the editor. A map that only the host wrote, before the launch, needs none.
    """
    simulator.fence_proxy_tensormap_acquire(tensor_map)


@instruction("fence.proxy.tensormap::generic.release.{scope};", isa=(8, 3), sm=90)
def fence_proxy_tensormap_release(scope: Scope) -> None:
    """Publish this thread's edits of maps in global memory to the tensor-map proxy.

    Executed by the thread that edited in place (the space ``"global"``), before it synchronises
    with those that acquire. `tensormap_cp_fenceproxy` has this in it.
    """
    simulator.fence_proxy_tensormap_release()
