"""The compiler's types of a launch's arguments, from the simulator's description of them."""

from __future__ import annotations

import numpy as np

from numba_tma.backend.compiler import from_dtype, typeof, types
from numba_tma.backend.lowering.types import (
    RaggedTensorMapType,
    TensorMapArrayType,
    TensorMapType,
)
from numba_tma.simulator import signatures
from numba_tma.simulator.signatures import ArgumentType


def compiled_type(described: ArgumentType) -> types.Type:
    """Return the compiler's type.

    Raises
    ------
    TypeError
        When the compiler has no type for the argument.
    """
    if isinstance(described, tuple):
        return types.BaseTuple.from_types(tuple(map(compiled_type, described)))
    if isinstance(described, signatures.SimulatedMapType):
        return TensorMapType(**vars(described))
    if isinstance(described, signatures.RaggedMapType):
        return RaggedTensorMapType(**vars(described))
    if isinstance(described, signatures.MapArrayType):
        return TensorMapArrayType(compiled_type(described.element))
    try:
        if isinstance(described, signatures.ArrayType):
            element = _element(described.dtype)
            layout, readonly = described.layout, not described.mutable
            return types.Array(element, described.ndim, layout, readonly=readonly)
        return typeof(described.example)
    except Exception as error:
        raise TypeError(f"the compiler has no type for {_named(described)}: {error}") from None


def _element(dtype: np.dtype[np.generic]) -> types.Type:
    return types.bfloat16 if dtype.name == "bfloat16" else from_dtype(dtype)


def _named(described: object) -> str:
    if isinstance(described, signatures.ArrayType):
        return f"an array of {described.dtype}"
    return repr(getattr(described, "example", described))
