"""The scale factors of a matmul: which operands have them, and how they lie in memory.

A scale is that of 16 or 32 elements along K of a row of a, or of a column of b. Scales are read in
atoms of 128 x 4, 512 bytes, the layout of cuBLAS and torch._scaled_mm (`host.scale_factors`).
"""

from __future__ import annotations

from dataclasses import dataclass

from numba_tma.host.annotations import DeviceArray, DTypeLike, StreamLike
from numba_tma.host.architectures import architecture_of, target_of
from numba_tma.host.arrays import Array
from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.environment import simulated
from numba_tma.host.scale_factors import ATOM_BYTES, ATOM_ROWS, ATOM_SHAPE, blocked_shape
from numba_tma.host.tcgen05_rules import ScaleFactors
from numba_tma.kernels._host.device import capability, device_name, has_tcgen05
from numba_tma.kernels.matmul.operands import Workspace, as_loadable, as_matrices, elements
from numba_tma.kernels.matmul.plan import AnyConfig, Tcgen05Config

#: Formats: operands that may be mixed, and the scale factors that they have. The first fits.
FORMATS = {
    "nvfp4": (("e2m1",), ScaleFactors("ue4m3", 16)),
    "mxfp4": (("e2m1",), ScaleFactors("ue8m0", 32)),
    "mxfp8, mxfp6 and mixes": (("e4m3", "e5m2", "e3m2", "e2m3", "e2m1"), ScaleFactors("ue8m0", 32)),
}


@dataclass(frozen=True)
class BlockScales:
    """The scale factors of a and of b, each (1, atoms of all matrices, 512 bytes)."""

    a: Array
    b: Array
    operand_types: tuple[DType, DType]  #: as which the tensor cores read a and b
    factors: ScaleFactors
    k_atoms: int  #: atoms along K

    def have_whole_atoms(self, rows: int) -> bool:
        """Return whether the scales of the next matrix follow those of so many rows at once."""
        return rows % ATOM_ROWS == 0

    def as_map_sources(self, stream: StreamLike, workspace: Workspace) -> list[Array]:
        """Return the scales of a and b as sources of tensor maps.

        They are (atoms of rows, atoms of K, 2, 256), as `scale_tile` has them, and without K one
        atom of anything.
        """
        sources = []
        for scales in (self.a, self.b):
            loaded = as_loadable(scales, stream, workspace)
            k_atoms = max(1, self.k_atoms)
            rows = max(1, loaded.shape[1] // k_atoms)
            sources.append(loaded.view((rows, k_atoms, *ATOM_SHAPE)))
        return sources


def read_scales(
    a: Array,
    b: Array,
    a_scales: DeviceArray | None,
    b_scales: DeviceArray | None,
    dtype: DTypeLike | None,
) -> BlockScales | None:
    """Return the scale factors of a (..., M, K) and b (..., K, N), or None if they have none.

    Raises
    ------
    ValueError
        If one operand alone is scaled, or types, sizes or layouts do not fit the operands.
    """
    if a_scales is None and b_scales is None:
        return None
    if a_scales is None or b_scales is None:
        one, missing = ("b", "a") if a_scales is None else ("a", "b")
        raise ValueError(
            f"matmul(): {one}_scales is given and {missing}_scales is None: both operands have "
            "scale factors, or none has"
        )
    given = (("a_scales", a_scales), ("b_scales", b_scales))
    is_open = a.dtype.name == b.dtype.name == "e2m1"
    kinds = [_scale_type(Array.read("matmul", *of), dtype, is_open) for of in given]
    factors = _factors(a.dtype, b.dtype, kinds)
    types = _read_as(a.dtype, b.dtype), _read_as(b.dtype, a.dtype)
    left, right = as_matrices(a), as_matrices(b.transposed())
    _check_k(elements(left), factors, types)
    arrays = [Array.read("matmul", *of, as_dtype(factors.dtype)) for of in given]
    k_atoms = blocked_shape(1, elements(left) // factors.block)[1]
    return BlockScales(
        _atoms(arrays[0], left, factors), _atoms(arrays[1], right, factors), types, factors, k_atoms
    )


def _scale_type(scales: Array, asked: DTypeLike | None, is_open: bool) -> str:
    """Return the name of the type of scale factors, which for bytes may be open."""
    name = scales.dtype.name if asked is None else as_dtype(asked).name
    if name == "e4m3":
        return "ue4m3"
    if name not in ("u8", "i8"):
        return name
    if not is_open:
        return "ue8m0"
    raise scales.error(
        f"holds {name}, and scales of e2m1 are ue4m3 (nvfp4) or ue8m0 (mxfp4): give "
        "scale_dtype='ue4m3' or 'ue8m0'"
    )


def _factors(a: DType, b: DType, scales: list[str]) -> ScaleFactors:
    """Return the scale factors of these types, or raise a ValueError that lists what there is."""
    for operands, factors in FORMATS.values():
        if {a.name, b.name} <= set(operands) and scales == [factors.dtype] * 2:
            return factors
    known = "; ".join(
        f"{' or '.join(operands)} with {factors} ({name})"
        for name, (operands, factors) in FORMATS.items()
    )
    repair = "; float32 scales of fp8 are for block_scaled_matmul()" if "f32" in scales else ""
    raise ValueError(
        f"matmul(): a is {a} with a_scales of {scales[0]}, and b is {b} with b_scales of "
        f"{scales[1]}; block-scaled products are those of {known}{repair}"
    )


def _read_as(operand: DType, other: DType) -> DType:
    """Return the type of an operand's tiles: e2m1 beside wider types has a byte an element."""
    mixed = operand.name == "e2m1" != other.name
    return as_dtype("e2m1_unpacked") if mixed else operand


def _check_k(k: int, factors: ScaleFactors, types: tuple[DType, DType]) -> None:
    """Raise unless K is a multiple of a block, and of what the copy engine loads of each type."""
    for unit, reason in (
        (factors.block, f"a scale is {factors}"),
        *((t.coordinate_unit, f"a copy takes 128 {t} along K") for t in types if t.is_unpacked),
    ):
        if k % unit:
            raise ValueError(
                f"matmul(): K is {k}, and {reason}: pad K of both operands with zeros to a "
                f"multiple of {unit}"
            )


def _atoms(scales: Array, operand: Array, factors: ScaleFactors) -> Array:
    """Return the scales of an operand (matrices, rows, K) as (1, atoms, 512)."""
    matrices, rows, _ = operand.shape
    plain = (rows, elements(operand) // factors.block)
    high, wide, *_ = blocked_shape(*plain)
    needed = matrices * high * wide * ATOM_BYTES
    if len(scales.shape) > 1 and scales.shape[-2:] == plain and scales.size == needed:
        raise scales.error(
            f"has shape {scales.shape}, that of scales which are not in atoms of 128 x 4; use "
            "to_blocked(scales), or pass atoms in one dimension"
        )
    if scales.size != needed:
        each = f"in each of {matrices} matrices " if matrices > 1 else ""
        raise scales.error(
            f"has shape {scales.shape}, {scales.size:,} B; {operand.name} has {plain[0]} x "
            f"{plain[1]} scales {each}in {high} x {wide} atoms of 128 x 4, {needed:,} B together: "
            "use to_blocked(scales)"
        )
    if not scales.is_contiguous:
        raise scales.error(
            f"has shape {scales.shape} and strides {scales.strides} B, and atoms of scales follow "
            "each other: pass a contiguous copy"
        )
    return scales.view((1, matrices * high * wide, ATOM_BYTES))


def check_scaled(scales: BlockScales, a: DType, b: DType, config: AnyConfig | None) -> None:
    """Raise unless the current device has a kernel of these products, and `config` is of it."""
    if config is not None and not isinstance(config, Tcgen05Config):
        raise ValueError(
            f"matmul(): config is {config}, whose kernel has no scale factors: use a "
            "Tcgen05Config, or none"
        )
    if simulated() or has_tcgen05():
        return
    major, minor = capability()
    repair = (
        "; on this GPU block_scaled_matmul() multiplies fp8 with float32 scales"
        if architecture_of(target_of((major, minor))).tensor_cores == "wgmma"
        and not (a.is_packed or b.is_packed)
        else ""
    )
    raise ValueError(
        f"matmul(): a is {a} and b is {b}, with {scales.factors}: {device_name()} has compute "
        f"capability {major}.{minor}, and block-scaled products are those of 10.0, 10.3 and 11.0: "
        f"use such a GPU, or multiply a and b in bf16 (dequantize){repair}"
    )
