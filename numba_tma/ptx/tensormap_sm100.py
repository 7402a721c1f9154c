"""tensormap.replace of the swizzle atomicity, a field of tensor maps that sm_100 added."""

from __future__ import annotations

from typing import Literal, TypeAlias

from numba_tma.host.architectures import FAMILY
from numba_tma.ptx._instruction import DescriptorAddress, assembled_only, instruction
from numba_tma.ptx.tensormap import Space

__all__ = ["tensormap_replace_swizzle_atomicity"]

SwizzleAtomicity: TypeAlias = Literal[0, 1, 2, 3]


@instruction(
    "tensormap.replace.tile.swizzle_atomicity.{space}.b1024.b32 [{tensor_map}], {value};",
    isa=(8, 6),
    sm=FAMILY,
)
def tensormap_replace_swizzle_atomicity(
    tensor_map: DescriptorAddress, space: Space, value: SwizzleAtomicity
) -> None:
    """Replace the unit that a swizzle moves: 0 for 16 B, 1 and 2 for 32 B, 3 for 64 B.

    2 also swaps the 8-byte halves of each 16 B in every other row. Executed by one thread. Orders
    nothing. Assembled only: no GPU before compute capability 10.0 has the field.
    """
    assembled_only("tensormap_replace_swizzle_atomicity")
