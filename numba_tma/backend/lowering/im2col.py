"""How kernels copy columns of pixels through an im2col map: the compiled half of `im2col`."""

from __future__ import annotations

from typing import Any

from numba_tma.backend import compiler
from numba_tma.backend.compiler import TypingError, signature, types
from numba_tma.backend.lowering.instructions import emit, type_call
from numba_tma.backend.lowering.shared import tile_of
from numba_tma.backend.lowering.types import METHODS, check_copy, check_store
from numba_tma.host.im2col_rules import offset_limit
from numba_tma.ptx import TABLE

_LOAD = TABLE["cp_async_bulk_tensor_im2col_load"]
_STORE = TABLE["cp_async_bulk_tensor_im2col_store"]


def _type_load(
    self: Any,
    tile: Any,
    coords: Any,
    offsets: Any,
    barrier: Any,
    cache_hint: Any = types.none,
    multicast: Any = types.none,
) -> Any:
    given = {
        "destination": tile,
        "coordinates": coords,
        "offsets": offsets,
        "barrier": barrier,
        "cache_hint": cache_hint,
        "multicast": multicast,
    }
    typed = dict(zip(("tensor_map", *given), type_call(_LOAD, {"tensor_map": self, **given}).args))
    check_copy("TensorMap.load_im2col", self, tile_of(tile), coords, mode="im2col")
    _check_offsets(self, offsets)
    return signature(types.void, self, *(typed[name] for name in given))


def _check_offsets(tensor_map: types.Type, offsets: types.Type) -> None:
    limit = offset_limit(len(offsets) + 2)
    for axis, offset in enumerate(offsets):
        if isinstance(offset, types.IntegerLiteral) and offset.literal_value > limit:
            raise TypingError(
                f"TensorMap.load_im2col: the offset of axis {axis + 1} is {offset.literal_value}; "
                f"{tensor_map} takes 0 to {limit}: move the coordinates instead"
            )


def _lower_load(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    names = ["tensor_map", "destination", "coordinates", "offsets", "barrier"]
    names += ["cache_hint", "multicast"]
    return emit(_LOAD, context, builder, dict(zip(names, zip(sig.args, args))))


def _type_store(self: Any, tile: Any, coords: Any, cache_hint: Any = types.none) -> Any:
    given = {"source": tile, "coordinates": coords, "cache_hint": cache_hint}
    typed = dict(zip(("tensor_map", *given), type_call(_STORE, {"tensor_map": self, **given}).args))
    check_copy("TensorMap.store_im2col", self, tile_of(tile), coords, mode="im2col")
    check_store("TensorMap.store_im2col", self, coords)
    return signature(types.void, self, *(typed[name] for name in given))


def _lower_store(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    names = ["tensor_map", "source", "coordinates", "cache_hint"]
    return emit(_STORE, context, builder, dict(zip(names, zip(sig.args, args))))


METHODS["load_im2col"] = compiler.NativeMethod("TensorMap", "load_im2col", _type_load, _lower_load)
METHODS["store_im2col"] = compiler.NativeMethod(
    "TensorMap", "store_im2col", _type_store, _lower_store
)
