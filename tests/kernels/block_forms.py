"""Forms of the block-scaled and the grouped matmul, with the types of their arguments."""

from __future__ import annotations

from typing import Any

from numba import types

from numba_tma.backend.lowering.types import RaggedTensorMapType, TensorMapType
from numba_tma.host.dtypes import as_dtype
from numba_tma.kernels.matmul.arguments import BScales, MatmulExtents, RowGroups
from numba_tma.kernels.matmul.block_scaled_plan import ScaledConfig, ScaledPlan
from numba_tma.kernels.matmul.plan import MatmulPlan
from tests.kernels.matmul_forms import BYTES, F32, INT

_SIZES = types.NamedUniTuple(INT, len(MatmulExtents._fields), MatmulExtents)
_BITS = types.Array(types.uint16, 3, "A")


def scaled_form(config: ScaledConfig, b: str = "e4m3", addressable: bool = True) -> ScaledPlan:
    """Return the form of e4m3 times `b`, to bf16."""
    kinds = [as_dtype(name) for name in ("e4m3", b, "bf16")]
    return ScaledPlan(*kinds[:2], "K", "K", kinds[2], config, addressable=addressable)


def scaled_signature(form: ScaledPlan) -> tuple[Any, ...]:
    """Return the argument types of the block-scaled kernel of a form."""
    return (
        *map(_map, (form.a_tile, form.b_copy, form.scales_tile)),
        types.NamedTuple((BYTES, INT, INT, INT), BScales),
        _map(form.out_tile) if form.addressable else _BITS,
        _SIZES,
    )


def grouped_signature(form: MatmulPlan, scaled: bool = False) -> tuple[Any, ...]:
    """Return the argument types of the grouped kernel of a form."""
    out = RaggedTensorMapType(3, form.out_tile, axis=1, encoding="wrap", extent=1 << 30)
    return (
        *(_map(form.a_tile), _map(form.b_copy), out if form.addressable else _BITS),
        types.NamedTuple((BYTES, BYTES if scaled else INT, *(INT,) * 4), RowGroups),
        *(_SIZES, F32),
    )


def _map(tile: Any) -> TensorMapType:
    return TensorMapType(tile.ndim, tile)
