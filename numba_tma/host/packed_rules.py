"""The rules of tensor maps of elements of 4 and 6 bits, each with the repair.

They come from cuTensorMapEncodeTiled and from PTX. They hold beside those of `tensor_map_rules`,
which see an array of bytes.
"""

from numba_tma.host.dtypes import DType
from numba_tma.host.environment import simulated
from numba_tma.host.layout import Swizzle
from numba_tma.host.tensor_map_rules import MAX_EXTENT

_UNIT = 32  # bytes; address and strides of unpacked types
_UNPACKED_SWIZZLES = (Swizzle.NONE, Swizzle.B128, Swizzle.B128_ATOM_32B)


def packed_violations(
    dtype: DType,
    address: int,
    stored_shape: tuple[int, ...],
    strides: tuple[int, ...],
    swizzle: Swizzle,
) -> list[str]:
    """List the broken rules of an array of bytes that hold packed elements."""
    if not stored_shape or 0 in stored_shape:
        return []  # the rules of the rank and the extents say why
    inner, nbytes = len(stored_shape) - 1, stored_shape[-1]
    columns = nbytes * 8 // dtype.bits
    violations = []
    if columns > MAX_EXTENT:
        violations.append(
            f"axis {inner} has {columns} {dtype}; TMA takes 1 to 2**32: make "
            f"{-(-columns // MAX_EXTENT)} maps of parts of the array"
        )
    if not dtype.is_unpacked:
        return violations
    if nbytes % (whole := dtype.nbytes(128)):
        violations.append(
            f"axis {inner} has {nbytes} B = {nbytes * 8 / dtype.bits:g} {dtype}; TMA needs a "
            f"multiple of 128 elements ({whole} B) there: pad the rows to "
            f"{-(-nbytes // whole) * whole} B"
        )
    violations += unpacked_address_violations(address, dtype)
    for axis, stride in enumerate(strides[:-1]):
        if stride % _UNIT and stride % 16 == 0:  # others break the rule of every type
            violations.append(
                f"axis {axis} stride is {stride} B; TMA needs a multiple of {_UNIT} B for "
                f"{dtype.tensor_map}: lay the array out with {-(-stride // _UNIT) * _UNIT} B there"
            )
    if swizzle not in _UNPACKED_SWIZZLES:
        violations.append(
            f"swizzle is {swizzle.name}, but tiles of {dtype} have none, B128 or B128_ATOM_32B: "
            "use Swizzle.B128"
        )
    return violations


def unpacked_address_violations(address: int, dtype: DType) -> list[str]:
    """List the broken rule of the base address of unpacked types."""
    if not dtype.is_unpacked or address % 16 or not address % _UNIT:
        return []
    if simulated():  # NumPy aligns arrays to 16 B, where allocations of a GPU have 256
        return []
    return [
        f"array address is {address:#x}, 16 B past a multiple of {_UNIT} B; TMA needs the multiple "
        f"for {dtype.tensor_map}: copy the array to memory of its own"
    ]


def option_violations(dtype: DType, interleave: int | None, fold: bool) -> list[str]:
    """List the options of maps that packed elements do not have."""
    violations = []
    if interleave is not None:
        violations.append(
            f"interleave={interleave} is not modelled for {dtype}: leave interleave out, or make "
            "a map of u8"
        )
    if fold:
        violations.append(
            f"fold=True is not modelled for {dtype}: leave fold out, for one copy per box"
        )
    return violations


def unpacked_store(dtype: DType) -> str:
    """Say why no map of a type stores tiles; "" if it does."""
    if not dtype.is_unpacked:
        return ""
    return (
        f"{dtype} is copied as {dtype.tensor_map}, whose tiles are loaded and never stored: the "
        "copy engine packs no elements of such a tile; write the packed bytes to a tile of u8, and "
        "store that"
    )
