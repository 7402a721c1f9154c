"""How kernels iterate over the tiles of packed sequences: the compiled half."""

from __future__ import annotations

from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import types
from numba_tma.kernels.attention import sequences as packed


def _yields(typ: types.Type) -> types.Type:
    return types.NamedUniTuple(types.int32, len(packed.PackedTile._fields), packed.PackedTile)


def _idle(context: Any, builder: Any, typ: Any, value: Any) -> Any:
    return context.get_constant_null(typ.yield_type)


compiler.describe(packed.PackedTiles).yields = _yields
compiler.describe(packed.PackedTiles).idle = _idle
