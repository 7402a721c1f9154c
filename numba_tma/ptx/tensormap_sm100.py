"""The field of a tensor map that came with sm_100: how fine its swizzle is."""

from __future__ import annotations

from typing import Literal, TypeAlias

from numba_tma.ptx._instruction import DescriptorAddress, instruction
from numba_tma.ptx.tensormap import Space

SwizzleAtomicity: TypeAlias = Literal[0, 1, 2, 3]


@instruction(
    "tensormap.replace.tile.swizzle_atomicity.{space}.b1024.b32 [{tensor_map}], {value};",
    isa=(8, 6),
    sm="100a",
)
def tensormap_replace_swizzle_atomicity(
    tensor_map: DescriptorAddress, space: Space, value: SwizzleAtomicity
) -> None:
    """Replace the unit that a swizzle moves: 0 for 16 B, 1 for 32 B, 2 and 3 for more.

    2 is 32 B with the halves of 16 B swapped in every other row, 3 is 64 B. By one thread. Orders
    nothing. Assembled only: no GPU before compute capability 10.0 has it.
    """
    raise NotImplementedError(
        "tensormap_replace_swizzle_atomicity: only compute capability 10.0 has this field; the "
        "simulator models the swizzles of 9.0, so call it on such a GPU, in a @cuda.jit kernel"
    )
