"""The scale factors of a matmul: which operands have them, and how they lie in memory.

A scale is that of 16 or 32 elements along K of a row of a, or of a column of b. Scales are read in
atoms of 128 x 4, 512 bytes, the layout of cuBLAS and torch._scaled_mm (`host.scale_factors`).
"""

from __future__ import annotations

from dataclasses import dataclass

from numba import cuda

from numba_tma.host.annotations import DeviceArray, DTypeLike, StreamLike
from numba_tma.host.arrays import Array
from numba_tma.host.dtypes import DType, as_dtype
from numba_tma.host.environment import simulated
from numba_tma.host.scale_factors import ATOM_BYTES, ATOM_SHAPE, blocked_shape
from numba_tma.host.tcgen05_rules import ScaleFactors
from numba_tma.kernels._host.device import has_tcgen05
from numba_tma.kernels.matmul.operands import Workspace, as_loadable, as_matrices
from numba_tma.kernels.matmul.plan import AnyConfig, Tcgen05Config

#: Operands that may be mixed, and the scale factors that they have, with the formats' names.
FORMATS = {
    ("e4m3", "e5m2"): {"mxfp8": ScaleFactors("ue8m0", 32)},
    ("e2m1",): {"nvfp4": ScaleFactors("ue4m3", 16), "mxfp4": ScaleFactors("ue8m0", 32)},
}
#: Types of the results, the default first.
RESULTS = ("bf16", "f16", "f32")


@dataclass(frozen=True)
class BlockScales:
    """The scale factors of a and of b, each (1, atoms of all matrices, 512 bytes)."""

    a: Array
    b: Array
    factors: ScaleFactors
    k_atoms: int  #: atoms along K

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
        given, missing = ("b", "a") if a_scales is None else ("a", "b")
        raise ValueError(
            f"matmul(): {given}_scales is given and {missing}_scales is None: both operands have "
            "scale factors, or none has"
        )
    kinds = [(f"{name}_scales", x) for name, x in (("a", a_scales), ("b", b_scales))]
    own = [_scale_type(Array.read("matmul", *of), dtype, a) for of in kinds]
    factors = _factors(a.dtype, b.dtype, own)
    arrays = [Array.read("matmul", name, x, as_dtype(factors.dtype)) for name, x in kinds]
    operands = as_matrices(a), as_matrices(b.transposed())
    k_atoms = blocked_shape(1, elements(a) // factors.block)[1]
    atoms = [_atoms(*of, factors) for of in zip(arrays, operands)]
    return BlockScales(*atoms, factors, k_atoms)


def _scale_type(scales: Array, asked: DTypeLike | None, a: Array) -> str:
    """Return the name of the type of scale factors, which bytes may leave open."""
    name = scales.dtype.name if asked is None else as_dtype(asked).name
    if name == "e4m3":
        return "ue4m3"
    if name not in ("u8", "i8"):
        return name
    if a.dtype.name != "e2m1":
        return "ue8m0"  # the only type of 8-bit operands' scales
    raise scales.error(
        f"holds {name}, and scales of e2m1 are ue4m3 (nvfp4) or ue8m0 (mxfp4): give "
        "scale_dtype='ue4m3' or 'ue8m0'"
    )


def _factors(a: DType, b: DType, scales: list[str]) -> ScaleFactors:
    """Return the scale factors of these types, or raise a ValueError that lists what there is."""
    for operands, formats in FORMATS.items():
        if {a.name, b.name} <= set(operands):
            for factors in formats.values():
                if scales == [factors.dtype] * 2:
                    return factors
    known = "; ".join(
        f"{' or '.join(operands)} with {factors} ({name})"
        for operands, formats in FORMATS.items()
        for name, factors in formats.items()
    )
    repair = "; float32 scales of fp8 are for block_scaled_matmul()" if "f32" in scales else ""
    raise ValueError(
        f"matmul(): a is {a} with a_scales of {scales[0]}, and b is {b} with b_scales of "
        f"{scales[1]}; block-scaled products are those of {known}{repair}"
    )


def _atoms(scales: Array, operand: Array, factors: ScaleFactors) -> Array:
    """Return the scales of an operand (matrices, rows, K) as (1, atoms, 512)."""
    matrices, rows, k = operand.shape[0], operand.shape[1], elements(operand)
    if k % factors.block:
        raise ValueError(
            f"matmul(): K is {k}, and {scales.name} has {factors}: pad K of both operands with "
            f"zeros to a multiple of {factors.block}"
        )
    plain = (rows, k // factors.block)
    high, wide, *_ = blocked_shape(*plain)
    needed = matrices * high * wide * ATOM_BYTES
    of = f"{operand.name} has {plain[0]} x {plain[1]} scales" + (
        f" in each of {matrices} matrices" if matrices > 1 else ""
    )
    if len(scales.shape) > 1 and scales.shape[-2:] == plain and scales.size == needed:
        raise scales.error(
            f"has shape {scales.shape}, that of scales which are not in atoms of 128 x 4; use "
            "to_blocked(scales), or pass atoms in one dimension"
        )
    if scales.size != needed:
        raise scales.error(
            f"has shape {scales.shape}, {scales.size:,} B; {of}, which take {high} x {wide} atoms "
            f"of 128 x 4{' each' if matrices > 1 else ''}, {needed:,} B: use to_blocked(scales)"
        )
    if not scales.is_contiguous:
        raise scales.error(
            f"has shape {scales.shape} and strides {scales.strides} B, and atoms of scales follow "
            "each other: pass a contiguous copy"
        )
    return scales.view((1, matrices * high * wide, ATOM_BYTES))


def elements(operand: Array) -> int:
    """Return the elements along K of an operand (..., K), whose last axis may count bytes."""
    return operand.dtype.element_shape(operand.shape)[-1]


def check_scaled(scales: BlockScales, a: DType, b: DType, config: AnyConfig | None) -> None:
    """Raise unless the current device has a kernel of these products, and `config` is of it."""
    if config is not None and not isinstance(config, Tcgen05Config):
        raise ValueError(
            f"matmul(): config is {config}, whose kernel has no scale factors: use a "
            "Tcgen05Config, or none"
        )
    if simulated() or has_tcgen05():
        return
    device = cuda.get_current_device()
    major, minor = device.compute_capability
    repair = (
        "; on this GPU block_scaled_matmul() multiplies fp8 with float32 scales"
        if (major, minor) == (9, 0) and a.name != "e2m1"
        else ""
    )
    raise ValueError(
        f"matmul(): a is {a} and b is {b}, with {scales.factors}: {device.name} has compute "
        f"capability {major}.{minor}, and block-scaled products are those of 10.0, 10.3 and 11.0: "
        f"use such a GPU, or multiply a and b in bf16 (dequantize){repair}"
    )
